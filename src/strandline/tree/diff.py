"""Two-way differences between trees: equal ranges are skipped unread, the rest is compared as columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from strandline.tree.ahead import read_ahead
from strandline.tree.range_file import RangeInfo
from strandline.tree.rows import Changes, column, concat, same_identity
from strandline.tree.segments import Segment, are_ranges, same_parts, segments
from strandline.tree.store import Tree, TreeStore

Stretch = tuple[list[RangeInfo], list[RangeInfo]]
"""The ranges of two trees between two places where neither has a range that crosses."""


class Kind(IntEnum):
    ADDED = 0
    REMOVED = 1
    CHANGED = 2


@dataclass(frozen=True, slots=True)
class Difference:
    """Differences in the order of their paths.

    Attributes:
        paths: each path once.
        kinds: a `Kind` for each.
        left, right: rows of both sides, null where a side has no such path.
    """

    paths: pa.StringArray
    kinds: npt.NDArray[np.int8]
    left: pa.Table
    right: pa.Table

    def __len__(self) -> int:
        return len(self.kinds)

    def slice(self, first: int, count: int) -> Difference:
        """Some consecutive ones; fewer where it ends."""
        return Difference(
            self.paths.slice(first, count),
            self.kinds[first : first + count],
            self.left.slice(first, count),
            self.right.slice(first, count),
        )

    def as_changes(self) -> Changes:
        """The changes that make the left side into the right one."""
        rows = self.right.set_column(0, self.right.schema.field(0), self.paths)
        return Changes(rows, self.kinds == Kind.REMOVED)


def compare_rows(left: pa.Table, right: pa.Table) -> Difference:
    """Differences of two sorted tables."""
    left_paths, right_paths = column(left, "path"), column(right, "path")
    if len(left_paths) == len(right_paths) and left_paths.equals(right_paths):
        changed = np.flatnonzero(~same_identity(left, right))
        left_at = right_at = changed
        only_left = only_right = np.zeros(0, np.int64)
    else:
        matches = pc.index_in(right_paths, value_set=left_paths)
        is_common = matches.is_valid().to_numpy(zero_copy_only=False)
        common_right = np.flatnonzero(is_common)
        common_left = matches.drop_null().to_numpy(zero_copy_only=False).astype(np.int64)
        differs = ~same_identity(left.take(pa.array(common_left)), right.take(pa.array(common_right)))
        left_at, right_at = common_left[differs], common_right[differs]
        only_right = np.flatnonzero(~is_common)
        seen = np.zeros(left.num_rows, np.bool_)
        seen[common_left] = True
        only_left = np.flatnonzero(~seen)
    kinds = np.repeat(
        np.array([Kind.CHANGED, Kind.REMOVED, Kind.ADDED], np.int8), [len(left_at), len(only_left), len(only_right)]
    )
    left_index = pa.concat_arrays([_indices(left_at), _indices(only_left), pa.nulls(len(only_right), pa.int64())])
    right_index = pa.concat_arrays([_indices(right_at), pa.nulls(len(only_left), pa.int64()), _indices(only_right)])
    paths = pa.concat_arrays(
        [
            left_paths.take(_indices(left_at)),
            left_paths.take(_indices(only_left)),
            right_paths.take(_indices(only_right)),
        ]
    )
    order = pc.sort_indices(paths)
    return Difference(
        paths.take(order),
        kinds[order.to_numpy(zero_copy_only=False)],
        left.take(left_index.take(order)),
        right.take(right_index.take(order)),
    )


def _indices(values: npt.NDArray[np.int64]) -> pa.Int64Array:
    return pa.array(values, pa.int64())


def diff_of(
    store: TreeStore,
    left: Tree,
    right: Tree,
    wanted: Callable[[pa.StringArray], pa.BooleanArray],
    start: str = "",
    end: str | None = None,
) -> Iterator[Difference]:
    """Differences of some paths in `start <= path < end`, in order: ranges that have none of them are not compared."""
    for stretch in stretches(store, left, right, start, end):
        if not any(pc.any(wanted(store.paths(info))).as_py() for side in stretch for info in side):
            continue
        held = (concat([store.open_range(info).between(start, end) for info in side]) for side in stretch)
        found = compare_rows(*(_only(rows, wanted) for rows in held))
        if len(found):
            yield found


def _is_same(segment: Segment) -> bool:
    return same_parts(*segment)


def _only(rows: pa.Table, wanted: Callable[[pa.StringArray], pa.BooleanArray]) -> pa.Table:
    return rows.filter(wanted(column(rows, "path"))).combine_chunks()


def diff(store: TreeStore, left: Tree, right: Tree, start: str = "", end: str | None = None) -> Iterator[Difference]:
    """Differences between two trees in `start <= path < end`, in order, none of them empty."""
    wanted = stretches(store, left, right, start, end)
    for stretch in read_ahead(store, wanted, lambda stretch: (*stretch[0], *stretch[1])):
        found = compare(store, stretch, start, end)
        if len(found):
            yield found


def stretches(store: TreeStore, left: Tree, right: Tree, start: str = "", end: str | None = None) -> Iterator[Stretch]:
    """The ranges of two trees that may differ in `start <= path < end`, in order; nodes are opened as needed."""
    if left.id == right.id:
        return

    def is_before(segment: Segment) -> bool:
        return all(part.max_path < start for side in segment for part in side)

    def is_after(segment: Segment) -> bool:
        return end is not None and all(part.min_path >= end for side in segment for part in side)

    def is_settled(segment: Segment) -> bool:
        return _is_same(segment) or is_before(segment) or is_after(segment)

    for segment in segments((left, right), is_settled, store.parts_of):
        left_ranges, right_ranges = segment
        if same_parts(left_ranges, right_ranges) or is_before(segment):
            continue
        if is_after(segment):
            return
        assert are_ranges(left_ranges)
        assert are_ranges(right_ranges)
        yield left_ranges, right_ranges


def compare(store: TreeStore, stretch: Stretch, start: str = "", end: str | None = None) -> Difference:
    """What differs in a stretch."""
    left, right = (concat([store.open_range(info).between(start, end) for info in side]) for side in stretch)
    return compare_rows(left, right)


def are_alike(store: TreeStore, left: Tree, right: Tree) -> bool:
    """Whether two trees hold the same objects: they may differ in ETags, which have a part in the ids of ranges."""
    return next(diff(store, left, right), None) is None


def cached_diff(
    store: TreeStore, left: Tree, right: Tree, start: str = "", end: str | None = None
) -> Iterator[Difference]:
    """Like `diff`, for pairs of trees that are asked for again and again: a head and what is compacted over it."""
    key = f"{left.ref} {right.ref} {start!r} {end!r}"
    held: list[Difference] | None = store.diffs.get(key)
    if held is not None:
        yield from held
        return
    found: list[Difference] = []
    size_bytes = 0
    for part in diff(store, left, right, start, end):
        size_bytes += part.left.nbytes + part.right.nbytes
        if size_bytes <= store.diffs.max_bytes:
            found.append(part)
        yield part
    store.diffs.put(key, found, size_bytes + len(key))
