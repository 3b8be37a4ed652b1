"""Applies sorted changes to a tree: ranges without changes are carried over unread."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.tree.ahead import read_ahead
from strandline.tree.build import TreeBuilder, ends_of_range
from strandline.tree.chunking import natural_ends
from strandline.tree.node_file import NodeInfo
from strandline.tree.range_file import RangeInfo
from strandline.tree.rows import (
    POOL,
    BoolArray,
    Changes,
    IntArray,
    column,
    concat,
    other_etags,
    same_identity,
    search,
)
from strandline.tree.store import Tree, TreeStore

FEW_CHANGES = 32
"""Up to this many changes of a range, slicing it costs less than indexing it."""


@dataclass(frozen=True, slots=True)
class Applied:
    """A new tree and the number of changes that made a difference."""

    tree: Tree
    changed: int


def apply(store: TreeStore, base: Tree, batches: Iterable[Changes]) -> Applied:
    """Overlay changes on a tree.

    A deletion of what is not there and a copy of what is (equal identity) make no difference: the tree keeps its row,
    but for a copy with an ETag that the row does not have. That one takes its place, and still makes no difference.
    Memory: one batch, the ranges that it touches, and the ranges that wait to be written.

    Args:
        batches: in order; all paths of a batch come before those of the next.
    """
    with TreeBuilder(store, base) as builder:
        overlay = _Overlay(store, base, builder)
        for batch in batches:
            if len(batch):
                overlay.feed(batch)
        overlay.finish()
        return Applied(builder.finish(), overlay.changed)


class _Overlay:
    """A cursor in the base: the range that it stands in, and the rows of it that no batch has passed yet.

    The range lies in nodes that were opened because it has changes; what is beside it in them is carried over unread.
    """

    def __init__(self, store: TreeStore, base: Tree, builder: TreeBuilder) -> None:
        self._store = store
        self._base = base
        self._builder = builder
        self._levels = [_Level(base)]
        self._info: RangeInfo | None = None
        self._rest: pa.Table | None = None
        self.changed = 0

    def feed(self, batch: Changes) -> None:
        # where nothing is waited for, threads that decode take the interpreter from this one, and from those that write
        wanted = self._touched(batch) if self._store.blobs.is_remote else ()
        with closing(read_ahead(self._store, wanted, lambda info: (info,))) as ahead:
            self._feed(batch, ahead)

    def _touched(self, batch: Changes) -> Iterator[RangeInfo]:
        """The ranges into which the changes of a batch fall, in order."""
        start = 0
        while start < len(batch):
            info = self._store.first_range(self._base, batch.paths[start].as_py())
            if info is None:
                return
            yield info
            start = pc.search_sorted(batch.paths, info.max_path, side="right").as_py()

    def _feed(self, batch: Changes, ahead: Iterator[RangeInfo]) -> None:
        paths = batch.paths
        start = 0
        while start < len(batch):
            next(ahead, None)
            first = paths[start].as_py()
            info = self._info = self._skip_to(first)
            if info is None:
                self._merge(None, batch.slice(start, len(batch)))
                return
            end = len(batch)
            if paths[end - 1].as_py() > info.max_path:
                end = pc.search_sorted(paths, info.max_path, side="right").as_py()
            rows = self._rest if self._rest is not None else self._store.rows(info)
            # rows after the last change wait: the next batch may have changes among them
            passed = rows.num_rows
            if end == len(batch):
                last = paths[end - 1].as_py()
                passed = pc.search_sorted(column(rows, "path"), last, side="right").as_py()
            self._merge(rows.slice(0, passed), batch.slice(start, end))
            self._rest = rows.slice(passed)
            start = end

    def _skip_to(self, path: str) -> RangeInfo | None:
        """Pass all that ends before `path`; the range where it is or belongs, None behind the last one."""
        if self._info is not None:
            if self._info.max_path >= path:
                return self._info
            self._pass_range()
        while self._levels:
            level = self._levels[-1]
            self._pass(bisect_left(level.node.max_paths, path, lo=level.at))
            if level.at == len(level.node.parts):
                if len(self._levels) == 1:
                    return None
                self._leave()
                continue
            part = level.node.parts[level.at]
            if not isinstance(part, NodeInfo):
                return part
            self._builder.open_node(part)
            self._levels.append(_Level(self._store.open_node(part)))
        return None

    def _leave(self) -> None:
        """Go up: the node that was opened is passed, part by part."""
        self._levels.pop()
        self._levels[-1].at += 1

    def _pass(self, target: int) -> None:
        """Pass parts of the innermost level unread."""
        level = self._levels[-1]
        parts = level.node.parts
        closed = target - (target > level.at and self._base.is_last(parts[target - 1]))
        while level.at < target:
            if level.at < closed and self._builder.at_boundary:
                self._builder.add_parts(parts[level.at : closed])
                level.at = closed
            else:
                self._builder.add_part(parts[level.at], is_last=self._base.is_last(parts[level.at]))
                level.at += 1

    def _pass_range(self) -> None:
        """Pass the range that the cursor stands in: what no batch has passed of it, or all of it."""
        assert self._info is not None
        if self._rest is not None:
            self._builder.add_rows(self._rest, ends_of_range(self._info, self._rest))
        self._info = self._rest = None
        self._levels[-1].at += 1

    def _merge(self, rows: pa.Table | None, changes: Changes) -> None:
        base_rows = rows if rows is not None else changes.rows.slice(0, 0)
        base_ends = np.zeros(0, np.bool_)
        if rows is not None:
            assert self._info is not None
            base_ends = ends_of_range(self._info, rows)
        merged, merged_ends, changed = overlay_rows(base_rows, base_ends, changes)
        self.changed += changed
        self._builder.add_rows(merged, merged_ends)

    def finish(self) -> None:
        if self._info is not None:
            self._pass_range()
        self._pass(len(self._levels[-1].node.parts))
        while len(self._levels) > 1:
            self._leave()
            self._pass(len(self._levels[-1].node.parts))


@dataclass(slots=True)
class _Level:
    """A node on the way to the cursor, and where it stands in it. The highest one is the tree."""

    node: Tree
    at: int = 0


def _splice(
    base: pa.Table, rows: pa.Table, positions: IntArray, found: BoolArray, placed: BoolArray, added: BoolArray
) -> pa.Table:
    """The same as taking rows by index, with one copy instead of two: slices of both sides, put in a row."""
    pieces: list[pa.Table] = []
    passed = 0
    for i in np.flatnonzero(placed):
        at = int(positions[i])
        if at > passed:
            pieces.append(base.slice(passed, at - passed))
        if added[i]:
            pieces.append(rows.slice(int(i), 1))
        passed = at + int(found[i])
    if passed < base.num_rows:
        pieces.append(base.slice(passed))
    return concat(pieces)


def overlay_rows(base: pa.Table, base_ends: BoolArray, changes: Changes) -> tuple[pa.Table, BoolArray, int]:
    """Overlay changes on sorted rows.

    Args:
        base_ends: which rows of the base are natural ends; those of the changes are computed.

    Returns:
        The rows, their natural ends, and the number of changes that made a difference.
    """
    positions, found = search(column(base, "path"), changes.paths)
    useful = found | ~changes.deleted
    placed = useful
    if found.any():
        there = np.flatnonzero(found)
        old = base.take(pa.array(positions[there]))
        new = changes.rows.take(pa.array(there))
        same = same_identity(old, new) & ~changes.deleted[there]
        useful[there[same]] = False
        placed = useful.copy()
        placed[there[same & other_etags(old, new)]] = True
    count = int(useful.sum())
    if not placed.any():
        return base, base_ends, 0
    kept = np.ones(base.num_rows, np.bool_)
    kept[positions[placed & found]] = False
    added = placed & ~changes.deleted
    if not base.num_rows and added.all():
        return changes.rows, natural_ends(changes.paths), count
    # the output as indices into base followed by changes: each change goes before the row at its position
    order = np.insert(np.arange(base.num_rows), positions, base.num_rows + np.arange(len(changes)))
    order = order[np.concatenate([kept, added])[order]]
    if placed.sum() <= FEW_CHANGES:
        merged = _splice(base, changes.rows, positions, found, placed, added)
    else:
        merged = pc.take(concat([base, changes.rows]), pa.array(order), memory_pool=POOL)
    change_ends = np.zeros(len(changes), np.bool_)
    new_at = np.flatnonzero(added)
    if len(new_at):
        change_ends[new_at] = natural_ends(changes.paths.take(pa.array(new_at)))
    return merged, np.concatenate([base_ends, change_ends])[order], count
