"""Staged changes: how they are written so that none that was acknowledged is lost, and how layers of them are read."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.branch.attempts import Attempts
from strandline.branch.cell import BranchCell, Seen
from strandline.branch.record import refuse_blocked
from strandline.branch.stores import Stores
from strandline.errors import BranchGone, NotAllowed, OutcomeUnknown, StoreUnavailable
from strandline.ids import BranchId, StagingToken
from strandline.kv.store import Page, in_part
from strandline.tree.rows import Changes, changes_from_staged

BULK_PAGE_KEYS = 20_000
SCAN_PAGE_KEYS = 10_000
"""Entries that a commit reads at a time: small pages keep the processor's caches warm and the range writers busy."""


def stage(cell: BranchCell, branch_id: BranchId, write: Callable[[bytes], None], fresh: Seen | None = None) -> None:
    """Write into the staging token so that the write is surely a part of the branch when this returns.

    Invariant: a token that is the staging token in a read begun after the write ended was not sealed before the write
    ended, so every later scan of it, by a committer or anyone else, sees the write. If it is not, a committer may or
    may not have seen it, and writing the same again is harmless: equal identities are no change.

    The token comes from a read begun after the call. One from a cache would do for the above, but might have been
    sealed long ago: a commit that is scanning it would show this write and lack others that returned before it began.

    Args:
        write: puts the entries into the partition it is given; raises if that failed.
        fresh: a record that was read after the caller's own call began.
    """
    has_written = False
    attempts = Attempts(cell, "write")
    while True:
        if attempts.next():
            fresh = None
        try:
            seen = fresh or cell.read(branch_id, shared=True)
            refuse_blocked(seen.branch, "stage", cell.name)
            token = seen.branch.staging_token
            write(cell.stores.staging(token))
            has_written = True
            attempts.safe = f"It is unknown whether the write is a part of branch {cell.name!r}."
            fresh = cell.read(branch_id, shared=True)
            if fresh.branch.staging_token == token:
                return
        except BranchGone as error:
            if has_written:
                error.safe = "The write went to the deleted branch and is lost with it."
                error.args = (" ".join((error.what, error.safe, error.next)),)
            raise
        except NotAllowed as error:
            raise (refused_too_late(cell.name, error) if has_written else error) from None
        except StoreUnavailable as error:
            if not has_written:
                raise
            raise unchecked(cell.name, error) from error


def unchecked(name: str, error: StoreUnavailable) -> StoreUnavailable:
    """The error of a write that was made, when the store failed before it was known to be a part of the branch."""
    return StoreUnavailable(
        error.what,
        happened="unknown",
        safe=f"The write was made, but it is unknown whether it is a part of branch {name!r}.",
        next="Read it back, or repeat the call.",
    )


def refused_too_late(name: str, error: NotAllowed) -> OutcomeUnknown:
    """The error of a write that met a protection which came after it had been made, in a token sealed meanwhile.

    Whether it was made before the seal, or what a committer saw of it, cannot be told.
    """
    return OutcomeUnknown(
        f"{error.what} The protection came while this was being written.",
        safe=f"It is unknown whether the write is a part of branch {name!r}.",
        next="Read it back.",
    )


def stage_one(cell: BranchCell, branch_id: BranchId, key: bytes, value: bytes, fresh: Seen | None = None) -> None:
    stage(cell, branch_id, lambda partition: cell.stores.kv.set(partition, key, value), fresh)


def stage_many(cell: BranchCell, branch_id: BranchId, pairs: Sequence[tuple[bytes, bytes]]) -> None:
    """Stage any number of entries with one check of the branch; not atomic: a failed call may have staged some."""
    stage(cell, branch_id, lambda partition: write_pairs(cell.stores, partition, pairs))


def write_pairs(stores: Stores, partition: bytes, pairs: Sequence[tuple[bytes, bytes]]) -> None:
    for first in range(0, len(pairs), BULK_PAGE_KEYS):
        with in_part(first > 0):
            stores.kv.set_many(partition, pairs[first : first + BULK_PAGE_KEYS])


def staged_window(
    stores: Stores, tokens: Sequence[StagingToken], start: bytes, end: bytes | None, limit: int
) -> tuple[list[bytes], list[bytes], bytes | None]:
    """Staged pairs of several tokens from `start` on, the newest for each path.

    Args:
        tokens: newest first.
        limit: pairs to fetch of each token.

    Returns:
        Keys, values, and the last key up to which the window is complete; None if it reaches the end.
    """
    pages = [stores.kv.scan_page(stores.staging(token), start, end, limit) for token in tokens]
    full = [page.keys[-1] for page in pages if len(page.keys) == limit]
    reach = min(full, default=None)
    if reach is not None:  # what lies behind the shortest page belongs to the next window
        pages = [_up_to(page, reach) for page in pages]
    some = [page for page in pages if page.keys]
    if not some:
        return [], [], reach
    if len(some) == 1:
        keys, values = some[0]
    else:
        newest: dict[bytes, bytes] = {}
        for page in reversed(some):
            newest.update(zip(page.keys, page.values, strict=True))
        keys = sorted(newest)
        values = [newest[key] for key in keys]
    return keys, values, reach


def _up_to(page: Page, last: bytes) -> Page:
    if not page.keys or page.keys[-1] <= last:
        return page
    kept = bisect_right(page.keys, last)
    return Page(page.keys[:kept], page.values[:kept])


def scan_staged(
    stores: Stores,
    tokens: Sequence[StagingToken],
    start: bytes = b"",
    end: bytes | None = None,
    page_keys: int = SCAN_PAGE_KEYS,
) -> Iterator[Changes]:
    """All changes staged under `tokens` (newest first), merged, in order, in batches."""
    if not tokens:
        return
    while True:
        keys, values, reach = staged_window(stores, tokens, start, end, page_keys)
        if keys:
            yield changes_from_staged(keys, values)
        if reach is None:
            return
        start = reach + b"\0"


def outside(batches: Iterator[Changes], start: str, end: str | None) -> Iterator[Changes]:
    """The changes whose path is not in `start <= path < end`."""
    for batch in batches:
        first = pc.search_sorted(batch.paths, start).as_py()
        last = len(batch) if end is None else pc.search_sorted(batch.paths, end).as_py()
        kept = np.concatenate([np.arange(first), np.arange(max(first, last), len(batch))])
        if len(kept) == len(batch):
            yield batch
        elif len(kept):
            yield Changes(batch.rows.take(pa.array(kept)), batch.deleted[kept])
