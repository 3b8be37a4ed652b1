"""Builds a tree from ranges that stay as they are and rows that are new."""

from __future__ import annotations

import os
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from types import TracebackType
from typing import Self

import numpy as np
import pyarrow as pa

from strandline.tree.chunking import Chunker, is_closed, is_natural_end
from strandline.tree.range_file import RangeInfo
from strandline.tree.rows import BoolArray, column
from strandline.tree.store import Tree, TreeStore

WRITERS = 2
"""Threads that write ranges; hashing, compressing and syncing let go of the interpreter."""
MAX_IN_FLIGHT = 8
"""Ranges that wait to be written: bounds the memory of a large build."""


NICENESS = 10


def _give_way() -> None:
    """Let writers of the branch have the processor first: on Linux a thread can be nicer than its process."""
    with suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)


def ends_of_range(info: RangeInfo, rows: pa.Table) -> BoolArray:
    """The natural ends among the rows of an existing range: only its last row can be one."""
    ends = np.zeros(rows.num_rows, np.bool_)
    if rows.num_rows:
        last = column(rows, "path")[rows.num_rows - 1].as_py()
        ends[-1] = last == info.max_path and is_natural_end(last)
    return ends


class TreeBuilder:
    """Collects the ranges of a new tree, in order. Use as a context manager, then call `finish` inside it.

    Args:
        base: trees whose ranges may be carried over; a range with the rows of one of theirs is not written again.
    """

    def __init__(self, store: TreeStore, *base: Tree) -> None:
        self._store = store
        self._base = base[0]
        self._known = {str(info.id): info for tree in base for info in tree.ranges}
        self._chunker = Chunker()
        self._done: list[RangeInfo | Future[RangeInfo]] = []
        self._held: pa.Table | None = None
        self._open: RangeInfo | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._waiting: deque[Future[RangeInfo]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    @property
    def at_boundary(self) -> bool:
        """Whether a closed range added now is carried over unread."""
        return self._chunker.is_empty and self._open is None

    def add_range(self, info: RangeInfo) -> None:
        """Add an existing range: by reference where ranges begin anyway, else its rows."""
        self._reopen()
        if not self._chunker.is_empty:
            rows = self._store.rows(info)
            self.add_rows(rows, ends_of_range(info, rows))
        elif is_closed(info.max_path, info.count, info.raw_bytes):
            self._keep(info)
        else:
            self._open = info  # fine if it turns out to be the last, else what follows belongs to it

    def add_ranges(self, infos: tuple[RangeInfo, ...]) -> None:
        """Add closed ranges at once, all by reference; only `at_boundary`."""
        self._flush_held(inline=False)
        self._done.extend(infos)

    def add_rows(self, rows: pa.Table, ends: BoolArray) -> None:
        """Add rows that come after all before; `ends` tells which are natural ends."""
        if not rows.num_rows:
            return
        self._reopen()
        for chunk in self._chunker.feed(rows, ends):
            self._write(chunk)

    def finish(self) -> Tree:
        """Write what is left and the metarange; a tree equal to the first base is that base."""
        for chunk in self._chunker.finish():
            self._write(chunk)
        if self._open is not None:
            self._keep(self._open)
            self._open = None
        self._flush_held(inline=True)
        ranges = tuple(item if isinstance(item, RangeInfo) else item.result() for item in self._done)
        if [info.id for info in ranges] == [info.id for info in self._base.ranges]:
            return self._base
        return self._store.write_tree(ranges)

    def _reopen(self) -> None:
        if self._open is not None:
            info, self._open = self._open, None
            rows = self._store.rows(info)
            for chunk in self._chunker.feed(rows, ends_of_range(info, rows)):
                self._write(chunk)

    def _keep(self, info: RangeInfo) -> None:
        self._flush_held(inline=False)
        self._done.append(info)

    def _write(self, rows: pa.Table) -> None:
        self._flush_held(inline=False)
        self._held = rows

    def _flush_held(self, *, inline: bool) -> None:
        """Write the range that was completed last: in a thread if others may follow, else here."""
        if self._held is None:
            return
        rows, self._held = self._held, None
        if inline and self._pool is None:
            self._done.append(self._store.write_range(rows, self._known))
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(WRITERS, "strandline-range", initializer=_give_way)
        if len(self._waiting) == MAX_IN_FLIGHT:
            self._waiting.popleft().result()
        try:
            future = self._pool.submit(self._store.write_range, rows, self._known)
        except RuntimeError:  # the interpreter ends, and a compaction is being finished
            self._done.append(self._store.write_range(rows, self._known))
            return
        self._waiting.append(future)
        self._done.append(future)
