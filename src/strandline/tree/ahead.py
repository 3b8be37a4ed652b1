"""Reads ranges before they are needed, in threads, where several reads at once take less time than one by one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from strandline.tree.range_file import RangeInfo
from strandline.tree.store import OpenRange, TreeStore

Item = TypeVar("Item")


def read_ahead(
    store: TreeStore, items: Iterable[Item], ranges_of: Callable[[Item], Iterable[RangeInfo]]
) -> Generator[Item, None, None]:
    """The same items, while the ranges of those that come next are read into memory.

    The first item is passed on at once, so that a caller that wants no more reads no more. If all ranges are in memory
    already, no thread is started. Ranges that are read ahead fill a part of the cache at most; with more, the cache
    would drop them before the caller takes them.
    """
    readers = store.readers
    waiting: deque[tuple[Item, list[Future[OpenRange]], int]] = deque()
    waiting_bytes = 0
    pool: ThreadPoolExecutor | None = None

    def first() -> Item:
        nonlocal waiting_bytes
        item, reads, size_bytes = waiting.popleft()
        waiting_bytes -= size_bytes
        for read in reads:
            read.result()
        return item

    try:
        for number, item in enumerate(items):
            missing = []
            if readers > 1 and number > 0:
                missing = [info for info in ranges_of(item) if not store.is_in_memory(info)]
            if missing and pool is None:
                pool = ThreadPoolExecutor(readers, "strandline-read")
            size_bytes = sum(info.raw_bytes for info in missing)
            while waiting and waiting_bytes + size_bytes > store.ahead_max_bytes:
                yield first()
            waiting_bytes += size_bytes
            reads = [pool.submit(store.open_range, info) for info in missing] if pool else []
            waiting.append((item, reads, size_bytes))
            if number == 0 or len(waiting) > 2 * readers:
                yield first()
        while waiting:
            yield first()
    finally:
        if pool is not None:
            pool.shutdown(wait=True, cancel_futures=True)
