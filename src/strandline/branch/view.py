"""What a reader of a branch sees: staging over sealed tokens over the compacted tree, or head.

Invariant of every read here: what was read were the layers of one record that was current at some moment between the
start and the end of the call, and nothing but seals happened to them until the read ended. So nobody was deleting from
the tokens, and whatever was staged in them meanwhile lies over the very trees that were read.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.branch.at import BranchAt
from strandline.branch.attempts import Attempts
from strandline.branch.cell import BranchCell, Seen
from strandline.branch.commits import CommitLog
from strandline.branch.rules.record import BranchRecord
from strandline.branch.staged import scan_staged, staged_window
from strandline.errors import ObjectMissing
from strandline.ids import encoded
from strandline.tree.apply import overlay_rows
from strandline.tree.diff import Difference, Kind, cached_diff, diff
from strandline.tree.rows import (
    SCHEMA,
    Changes,
    Entry,
    Tombstone,
    are_tombstones,
    changes_from_staged,
    column,
    concat,
    decode_staged,
    empty_rows,
    same_identity,
    search,
)
from strandline.tree.store import Tree, TreeStore

Result = TypeVar("Result")
WINDOW_MAX_ROWS = 50_000
"""What is read at once where much is asked for, or nothing is found."""


def consistently(at: BranchAt, read: Callable[[BranchRecord], Result]) -> Result:
    """Do a read of the branch's layers until it is known to be valid."""
    return consistently_seen(at, read)[0]


def consistently_seen(at: BranchAt, read: Callable[[BranchRecord], Result]) -> tuple[Result, Seen]:
    """Like `consistently`, with the record that was read at the end.

    It is if the record was read from the store after the call began and nothing but seals happened to it until the
    end; or if it came from the cache and a fresh read at the end shows the same layers. It is not enough that the
    tokens stay: a merge whose staging token is empty keeps it, and a put that follows would show over the head before.

    A record that is not the newest may name a tree that was replaced and collected since: what is missing is only
    missing if the record still says so.
    """
    seen, is_fresh = at.cell.cached(at.branch_id)
    attempts = Attempts(at.cell, "read")
    while True:
        try:
            result = read(seen.branch)
        except ObjectMissing:
            now = at.read(shared=True)
            if now.branch.layers == seen.branch.layers:
                raise
        else:
            now = at.read(shared=True)
            if now.branch.layers == seen.branch.layers:
                return result, now
            if is_fresh and now.branch.only_sealed_since(seen.branch):
                return result, now
        seen, is_fresh = at.read() if attempts.again() else now, True


@dataclass(frozen=True, slots=True)
class Layers:
    """The layers of one record, ready to be read.

    Attributes:
        staged: whether there can be anything above the tree.
    """

    cell: BranchCell
    commits: CommitLog
    branch: BranchRecord

    @property
    def trees(self) -> TreeStore:
        return self.cell.stores.trees

    @property
    def head(self) -> Tree:
        return self.commits.tree(self.branch.head)

    @property
    def base(self) -> Tree:
        """The tree beneath the staged layers."""
        return self.trees.tree(self.branch.compacted) if self.branch.compacted else self.head

    def find(self, path: str, key: bytes) -> Entry | None:
        staged = self.find_staged(key)
        if staged is not None:
            return staged if isinstance(staged, Entry) else None
        return self.trees.find(self.base, path)

    def find_staged(self, key: bytes) -> Entry | Tombstone | None:
        """What the staged layers say of a path; None if nothing."""
        get, partition = self.cell.stores.kv.get, self.cell.stores.staging
        for token in self.branch.tokens:
            value = get(partition(token), key)
            if value is not None:
                return decode_staged(value)
        return None

    def window(self, start: bytes, end: bytes | None, limit: int) -> tuple[pa.Table, bytes | None]:
        """Some consecutive rows of the branch from `start` on.

        Returns:
            `SCHEMA` rows, possibly none, and the last key up to which they are complete; None at the end.
        """
        keys, values, reach = staged_window(self.cell.stores, self.branch.tokens, start, end, limit)
        rows, tree_reach = tree_window(self.trees, self.base, start, end, limit)
        if tree_reach is not None:
            reach = tree_reach if reach is None else min(reach, tree_reach)
        if reach is not None:
            after = reach.decode() + "\0"
            rows = rows.slice(0, pc.search_sorted(column(rows, "path"), after).as_py())
            if keys and keys[-1] > reach:
                kept = bisect_right(keys, reach)
                keys, values = keys[:kept], values[:kept]
        if keys:
            rows, tombstones = overlaid(rows, keys, values)
            if self.cell.sensor is not None:
                self.cell.sensor.saw_tombstones(self.cell.name, self.branch, tombstones)
        return rows, reach


def overlaid(rows: pa.Table, keys: Sequence[bytes], values: Sequence[bytes]) -> tuple[pa.Table, int]:
    """Sorted rows under staged pairs, at least one, and how many of these are tombstones."""
    if are_tombstones(values):
        return without(rows, keys), len(keys)
    changes = changes_from_staged(keys, values)
    tombstones = int(changes.deleted.sum())
    if not rows.num_rows and not tombstones:
        return changes.rows, 0
    merged, _, _ = overlay_rows(rows, np.zeros(rows.num_rows, np.bool_), changes)
    return merged, tombstones


def without(rows: pa.Table, keys: Sequence[bytes]) -> pa.Table:
    """Sorted rows without some sorted paths: what is left of a window where all that is staged is deletions."""
    gone = pa.array(keys, pa.binary()).cast(pa.string())
    paths = column(rows, "path")
    if paths.equals(gone):
        return rows.slice(0, 0)
    return rows.filter(pc.invert(pc.is_in(paths, value_set=gone)))


def tree_window(
    trees: TreeStore, tree: Tree, start: bytes, end: bytes | None, limit: int
) -> tuple[pa.Table, bytes | None]:
    """Rows of a tree from `start` on, at least `limit` if there are so many; and how far they reach."""
    pieces: list[pa.Table] = []
    count = 0
    for rows in trees.scan(tree, start.decode(), None if end is None else end.decode()):
        rows = rows.slice(0, limit - count)
        pieces.append(rows)
        count += rows.num_rows
        if count >= limit:
            last = column(rows, "path")[rows.num_rows - 1].as_py()
            return concat(pieces), last.encode()
    return concat(pieces) if pieces else empty_rows(), None


def lookup_rows(trees: TreeStore, tree: Tree, paths: pa.StringArray) -> pa.Table:
    """The rows of sorted `paths` in a tree, in their order; a row of nulls where the tree has no such path."""
    pieces: list[pa.Table] = []
    start = 0
    while start < len(paths):
        first = paths[start].as_py()
        info = trees.first_range(tree, first)
        if info is None:
            pieces.append(_missing(len(paths) - start))
            break
        stop = pc.search_sorted(paths, info.max_path, side="right").as_py()
        wanted = paths.slice(start, stop - start)
        rows = trees.rows(info)
        pieces.append(rows.take(pc.index_in(wanted, value_set=column(rows, "path"))))
        start = stop
    return concat(pieces) if pieces else empty_rows()


def _missing(count: int) -> pa.Table:
    return pa.Table.from_arrays([pa.nulls(count, field.type) for field in SCHEMA], schema=SCHEMA)


def in_effect(
    trees: TreeStore,
    head: Tree,
    base: Tree,
    staged: Iterator[Changes],
    folded: Iterable[Difference] | None = None,
) -> Difference:
    """What committing would change: the difference between head and (staged over base).

    Entries that change nothing, a tombstone of what is not there or a copy of what is, do not count.

    Args:
        staged: changes over `base`.
        folded: the differences of head and base where the staged ones are from; None for all.
    """
    found: list[Difference] = []
    paths: list[pa.StringArray] = []
    for batch in staged:
        left = lookup_rows(trees, head, batch.paths)
        differs = ~same_identity(left, batch.rows)
        found.append(_difference(batch.paths, left, batch.rows, differs))
        if base.id != head.id:
            paths.append(batch.paths)
    if base.id != head.id:
        covered = pa.concat_arrays(paths) if paths else pa.array([], pa.string())
        for part in cached_diff(trees, head, base) if folded is None else folded:
            _, is_staged = search(covered, part.paths)
            found.append(_take(part, ~is_staged))
    return _join(found)


def _difference(paths: pa.StringArray, left: pa.Table, right: pa.Table, differs: np.ndarray) -> Difference:
    had = column(left, "checksum").is_valid().to_numpy(zero_copy_only=False)
    has = column(right, "checksum").is_valid().to_numpy(zero_copy_only=False)
    kinds = np.where(had & has, Kind.CHANGED, np.where(had, Kind.REMOVED, Kind.ADDED)).astype(np.int8)
    return _take(Difference(paths, kinds, left, right), differs)


def _take(part: Difference, mask: np.ndarray) -> Difference:
    if mask.all():
        return part
    at = pa.array(np.flatnonzero(mask))
    return Difference(part.paths.take(at), part.kinds[mask], part.left.take(at), part.right.take(at))


def _join(parts: Sequence[Difference]) -> Difference:
    parts = [part for part in parts if len(part)]
    if not parts:
        return Difference(pa.array([], pa.string()), np.zeros(0, np.int8), empty_rows(), empty_rows())
    if len(parts) == 1:
        return parts[0]
    paths = pa.concat_arrays([part.paths for part in parts])
    order = pc.sort_indices(paths)
    return Difference(
        paths.take(order),
        np.concatenate([part.kinds for part in parts])[order.to_numpy(zero_copy_only=False)],
        concat([part.left for part in parts]).take(order),
        concat([part.right for part in parts]).take(order),
    )


def uncommitted(at: BranchAt, start: str = "", end: str | None = None) -> Difference:
    """The uncommitted changes of a branch in effect."""

    def read(branch: BranchRecord) -> Difference:
        layers = Layers(at.cell, at.commits, branch)
        staged = scan_staged(at.stores, branch.tokens, start.encode(), encoded(end))
        folded = cached_diff(layers.trees, layers.head, layers.base, start, end)
        return in_effect(layers.trees, layers.head, layers.base, staged, folded)

    return consistently(at, read)


def uncommitted_pieces(at: BranchAt, start: str, end: str | None, rows: int) -> Iterator[Difference]:
    """The uncommitted changes of a branch in effect, in pieces; for the first one about so many rows are read.

    Each piece shows the branch at one instant.
    """
    low: str | None = start
    size = rows
    while low is not None:
        piece, reach = uncommitted_window(at, low, end, size)
        size = min(WINDOW_MAX_ROWS, size * 4)  # a range that is compared is compared whole: rather once than often
        if len(piece):
            yield piece
        low = None if reach is None else reach + "\0"


def uncommitted_window(at: BranchAt, low: str, end: str | None, rows: int) -> tuple[Difference, str | None]:
    """The changes in effect from a start on, and the last path up to which they are complete; None at the end."""

    def read(branch: BranchRecord) -> tuple[Difference, str | None]:
        layers = Layers(at.cell, at.commits, branch)
        keys, values, staged_reach = staged_window(at.stores, branch.tokens, low.encode(), encoded(end), rows)
        reach = None if staged_reach is None else staged_reach.decode()
        folded: list[Difference] = []
        count = 0
        for part in diff(layers.trees, layers.head, layers.base, low, end):
            if reach is not None and part.paths[0].as_py() > reach:
                break
            folded.append(part)
            count += len(part)
            if count >= rows:
                last = part.paths[len(part) - 1].as_py()
                reach = last if reach is None else min(reach, last)
                break
        if reach is not None:
            folded = [_up_to(part, reach) for part in folded]
            kept = bisect_right(keys, reach.encode())
            keys, values = keys[:kept], values[:kept]
        staged = iter([changes_from_staged(keys, values)] if keys else [])
        return in_effect(layers.trees, layers.head, layers.base, staged, folded), reach

    return consistently(at, read)


def _up_to(part: Difference, last: str) -> Difference:
    return part.slice(0, pc.search_sorted(part.paths, last, side="right").as_py())
