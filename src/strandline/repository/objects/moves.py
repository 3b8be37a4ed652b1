"""What copies and renames have in common, on a branch and in a transaction."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.errors import ObjectNotFound, UsageError
from strandline.ids import check_path
from strandline.repository.refs.ref import Ref
from strandline.tree.rows import TOMBSTONE, Entry, encode_staged, entries_of


def check_move(source: str, target: str, *, is_rename: bool, is_here: bool) -> bool:
    """Check the ends of a copy or a rename; returns whether they are prefixes.

    Args:
        is_here: whether source and target are in one place.
    """
    check_path(source)
    check_path(target)
    is_prefix = source.endswith("/")
    if is_prefix != target.endswith("/"):
        raise UsageError(f"{source!r} and {target!r} must both end with '/', or neither.")
    if is_prefix and is_rename and (target.startswith(source) or source.startswith(target)):
        raise UsageError(f"{source!r} cannot be renamed into {target!r}: one lies in the other.")
    if source == target and is_here:
        raise UsageError(f"{source!r} cannot be copied onto itself.")
    return is_prefix


def entries_below(ref: Ref, source: str, *, exactly: bool) -> list[tuple[str, Entry]]:
    """The object at a path, or all below a prefix, with their paths."""
    if exactly:
        entry = ref._find(source, check_path(source))
        return [] if entry is None else [(source, entry)]
    return [pair for rows in ref.list(source).tables() for pair in entries_of(rows)]


def moved(
    found: Sequence[tuple[str, Entry]], source: str, target: str, ref: Ref, *, is_rename: bool
) -> dict[bytes, bytes]:
    """The staged values of a copy or a rename, by key.

    Raises:
        ObjectNotFound: nothing was found at the source.
    """
    if not found:
        raise ObjectNotFound(
            f"There is {'nothing below' if source.endswith('/') else 'no object'} {source!r} in {ref!r}.",
            next=f"`strandline ls {ref.place}/` lists what there is.",
        )
    changes = {path.encode(): encode_staged(TOMBSTONE) for path, _ in found} if is_rename else {}
    for path, entry in found:
        changes[check_path(target + path[len(source) :])] = encode_staged(entry)
    return changes
