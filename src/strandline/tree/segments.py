"""Aligns trees: cuts the space of paths where no range of any of them crosses."""

from __future__ import annotations

from collections.abc import Iterator

from strandline.tree.range_file import RangeInfo
from strandline.tree.store import Tree

Segment = tuple[list[RangeInfo], ...]
"""For each tree, its ranges in one stretch of paths."""


def segments(*trees: Tree) -> Iterator[Segment]:
    """The smallest stretches of paths in which all ranges of all trees are whole, in order.

    Ranges end where their content says, so trees that differ in a few places share most of their ends, and a stretch
    seldom holds more than one or two ranges of each.
    """
    lists = [tree.ranges for tree in trees]
    at = [0] * len(lists)
    while True:
        starts = [ranges[i].min_path for ranges, i in zip(lists, at, strict=True) if i < len(ranges)]
        if not starts:
            return
        reach = min(starts)
        segment: Segment = tuple([] for _ in lists)
        grew = True
        while grew:
            grew = False
            for which, ranges in enumerate(lists):
                i = at[which]
                while i < len(ranges) and ranges[i].min_path <= reach:
                    segment[which].append(ranges[i])
                    if ranges[i].max_path > reach:
                        reach = ranges[i].max_path
                    i += 1
                    grew = True
                at[which] = i
        yield segment


def same_ranges(left: list[RangeInfo], right: list[RangeInfo]) -> bool:
    return len(left) == len(right) and all(a.id == b.id for a, b in zip(left, right, strict=True))
