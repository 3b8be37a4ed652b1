"""Applies sorted changes to a tree: ranges without changes are carried over unread."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.tree.build import TreeBuilder, ends_of_range
from strandline.tree.chunking import natural_ends
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
    """A cursor in the base: the range that it stands in, and the rows of it that no batch has passed yet."""

    def __init__(self, store: TreeStore, base: Tree, builder: TreeBuilder) -> None:
        self._store = store
        self._base = base
        self._builder = builder
        self._at = 0
        self._rest: pa.Table | None = None
        self.changed = 0

    def feed(self, batch: Changes) -> None:
        paths = batch.paths
        start = 0
        while start < len(batch):
            first = paths[start].as_py()
            self._skip_to(first)
            if self._at == len(self._base.ranges):
                self._merge(None, batch.slice(start, len(batch)), natural_ends)
                return
            info = self._base.ranges[self._at]
            end = len(batch)
            if paths[end - 1].as_py() > info.max_path:
                end = pc.search_sorted(paths, info.max_path, side="right").as_py()
            rows = self._rest if self._rest is not None else self._store.rows(info)
            # rows after the last change wait: the next batch may have changes among them
            passed = rows.num_rows
            if end == len(batch):
                last = paths[end - 1].as_py()
                passed = pc.search_sorted(column(rows, "path"), last, side="right").as_py()
            self._merge(rows.slice(0, passed), batch.slice(start, end), natural_ends)
            self._rest = rows.slice(passed)
            start = end

    def _skip_to(self, path: str) -> None:
        """Pass all ranges that end before `path`."""
        ranges = self._base.ranges
        target = bisect_left(self._base.max_paths, path, lo=self._at)
        if self._rest is not None and target > self._at:
            self._pass_rest()
        while self._at < target:
            if self._builder.at_boundary and target < len(ranges):
                # only the last range of a tree can be open, and it is not among these
                self._builder.add_ranges(ranges[self._at : target])
                self._at = target
            else:
                self._builder.add_range(ranges[self._at])
                self._at += 1

    def _pass_rest(self) -> None:
        assert self._rest is not None
        self._builder.add_rows(self._rest, ends_of_range(self._base.ranges[self._at], self._rest))
        self._rest = None
        self._at += 1

    def _merge(self, rows: pa.Table | None, changes: Changes, ends: object) -> None:
        base_rows = rows if rows is not None else changes.rows.slice(0, 0)
        base_ends = np.zeros(0, np.bool_)
        if rows is not None:
            base_ends = ends_of_range(self._base.ranges[self._at], rows)
        merged, merged_ends, changed = overlay_rows(base_rows, base_ends, changes)
        self.changed += changed
        self._builder.add_rows(merged, merged_ends)

    def finish(self) -> None:
        if self._rest is not None:
            self._pass_rest()
        ranges = self._base.ranges
        while self._at < len(ranges):
            if self._builder.at_boundary:
                self._builder.add_ranges(ranges[self._at :])
                return
            self._builder.add_range(ranges[self._at])
            self._at += 1


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
