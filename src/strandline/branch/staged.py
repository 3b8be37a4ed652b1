"""Entries under staging tokens: how many are written at once, and how layers of them are read as one."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.branch.stores import Stores
from strandline.ids import StagingToken
from strandline.kv.store import Page, in_part
from strandline.tree.rows import Changes, changes_from_staged

BULK_PAGE_KEYS = 20_000
SCAN_PAGE_KEYS = 10_000
"""Entries that a commit reads at a time: small pages keep the processor's caches warm and the range writers busy."""


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
