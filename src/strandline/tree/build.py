"""Builds a tree from ranges and nodes that stay as they are, and rows that are new."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from types import TracebackType
from typing import Self

import numpy as np
import pyarrow as pa

from strandline.tree.chunking import Chunker, is_natural_end
from strandline.tree.levels import at_height, is_closed, is_large, levelled
from strandline.tree.node_file import NodeInfo, Part
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


def _ids(parts: Sequence[Part]) -> list[str]:
    return [part.id for part in parts]


class TreeBuilder:
    """Collects the parts of a new tree, in order. Use as a context manager, then call `finish` inside it.

    Args:
        base: trees whose parts may be carried over. A range or a node with the content of one of theirs is not written
            again, if that is in what was opened of them.
    """

    def __init__(self, store: TreeStore, *base: Tree) -> None:
        self._store = store
        self._base = base[0]
        self._known: dict[str, Part] = {}
        self._own: set[str] = set()
        for tree in base:
            self.may_keep(tree)
        self._chunker = Chunker()
        self._done: list[Part | Future[RangeInfo] | None] = []
        self._writes = False
        self._alone: tuple[int, pa.Table] | None = None
        self._files: list[tuple[str, bytes]] = []
        self._held: pa.Table | None = None
        self._open: Part | None = None
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
        """Whether a closed part added now is carried over unread."""
        return self._chunker.is_empty and self._open is None

    def may_keep(self, tree: Tree) -> None:
        """Parts of this tree may be carried over, as those of the base."""
        self._note(tree.parts)

    def open_node(self, info: NodeInfo) -> tuple[Part, ...]:
        """What a node lists."""
        parts = self._store.parts_of(info)
        if info.address in self._own:
            self._note(parts)
        return parts

    def _note(self, parts: Sequence[Part]) -> None:
        self._known.update((part.id, part) for part in parts)
        self._own.update(part.address for part in parts if part.height)

    def add_part(self, part: Part, *, is_last: bool) -> None:
        """Add an existing part: by reference where ranges begin anyway, else its rows.

        Args:
            is_last: of its tree, whose other parts are all closed.
        """
        self._reopen()
        if self._chunker.is_empty:
            self._keep_or_hold(part, is_last=is_last)
        elif isinstance(part, NodeInfo):
            *parts, last = self.open_node(part)
            for one in parts:
                self.add_part(one, is_last=False)
            self.add_part(last, is_last=is_last)
        else:
            rows = self._store.rows(part)
            self.add_rows(rows, ends_of_range(part, rows))

    def add_parts(self, parts: Sequence[Part]) -> None:
        """Add closed parts at once, all by reference; only `at_boundary`."""
        self._flush_held(inline=False)
        self._done.extend(parts)

    def _keep_or_hold(self, part: Part, *, is_last: bool) -> None:
        if is_last and not is_closed(part):
            self._open = part  # fine if it turns out to be the last, else what follows belongs to it
        else:
            self._keep(part)

    def add_rows(self, rows: pa.Table, ends: BoolArray) -> None:
        """Add rows that come after all before; `ends` tells which are natural ends."""
        if not rows.num_rows:
            return
        self._reopen()
        for chunk in self._chunker.feed(rows, ends):
            self._write(chunk)

    def finish(self) -> Tree:
        """Write what is left, the nodes and the metarange; a tree equal to the first base is that base.

        Invariant: a node is carried over only where one of its height begins, on every level below as well, and only if
        it is closed or nothing follows: so the nodes are those of the same rows in a tree that is built of them alone.
        """
        for chunk in self._chunker.finish():
            self._write(chunk)
        if self._open is not None:
            self._keep(self._open)
            self._open = None
        done = self._written()
        if _ids(done) == _ids(self._base.parts):
            return self._base  # also of a flat tree that would have levels now

        def make(parts: Sequence[Part]) -> NodeInfo:
            info, content = self._store.new_node(parts, self._known)
            if content is not None:
                self._files.append((info.address, content))
            return info

        if self._store.has_levels:
            found = levelled(done, self.open_node, make)
        else:
            found = tuple(at_height(done, 0, self.open_node))
        if _ids(found) == _ids(self._base.parts):
            return self._base
        if is_large(found) and self._store.are_same(Tree("", found), self._base):
            return self._base  # one of them is flat, as an older version left it
        return self._store.write_tree(found, self._files)

    def _reopen(self) -> None:
        while self._open is not None:
            part, self._open = self._open, None
            if isinstance(part, NodeInfo):
                *parts, last = self.open_node(part)
                self.add_parts(parts)
                self._keep_or_hold(last, is_last=True)
            else:
                rows = self._store.rows(part)
                for chunk in self._chunker.feed(rows, ends_of_range(part, rows)):
                    self._write(chunk)

    def _keep(self, part: Part) -> None:
        self._flush_held(inline=False)
        self._done.append(part)

    def _write(self, rows: pa.Table) -> None:
        self._flush_held(inline=False)
        self._held = rows

    def _flush_held(self, *, inline: bool) -> None:
        """Write the range that was completed last: in a thread if there are others, else here, and not before the end.

        Most changes write one range, and to start a thread takes as long as that.
        """
        if self._held is None:
            return
        rows, self._held = self._held, None
        if not self._writes:
            self._writes = True
            self._alone = len(self._done), rows
            self._done.append(None)
            return
        if self._alone is not None:
            at, first = self._alone
            self._alone = None
            if self._store.blobs.readers > 1:
                self._pool = ThreadPoolExecutor(WRITERS, "strandline-range", initializer=_give_way)
            self._done[at] = self._submit(first)
        self._done.append(self._store.write_range(rows, self._known) if inline else self._submit(rows))

    def _submit(self, rows: pa.Table) -> RangeInfo | Future[RangeInfo]:
        if self._pool is None:  # the store is not for threads
            return self._store.write_range(rows, self._known)
        if len(self._waiting) == MAX_IN_FLIGHT:
            self._waiting.popleft().result()
        try:
            future = self._pool.submit(self._store.write_range, rows, self._known)
        except RuntimeError:  # the interpreter ends, and a compaction is being finished
            return self._store.write_range(rows, self._known)
        self._waiting.append(future)
        return future

    def _written(self) -> list[Part]:
        """All parts in order; a range that is the only new one is still to be written, in one go with its nodes."""
        self._flush_held(inline=True)
        if self._alone is not None:
            at, rows = self._alone
            self._alone = None
            info, content = self._store.new_range(rows, self._known)
            self._done[at] = info
            if content is not None:
                self._files.append((info.address, content))
        parts = (item.result() if isinstance(item, Future) else item for item in self._done)
        return [part for part in parts if part is not None]
