"""Aligns trees: cuts the space of paths where no part of any of them crosses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeGuard

from strandline.tree.node_file import NodeInfo, Part
from strandline.tree.range_file import RangeInfo
from strandline.tree.store import Tree

PathSpan = tuple[str, str | None]
"""Paths from the first on, before the second; None is behind all paths."""
Segment = tuple[list[Part], ...]
"""For each tree, its parts in one stretch of paths."""


def segments(
    trees: Sequence[Tree], is_settled: Callable[[Segment], bool], open_node: Callable[[NodeInfo], Sequence[Part]]
) -> Iterator[Segment]:
    """The smallest stretches of paths in which all parts of all trees are whole, in order.

    Parts end where their content says, so trees that differ in a few places share most of their ends, and a stretch
    seldom holds more than one or two parts of each. Where a stretch has nodes they are opened, the highest first, and
    it is cut further.

    Args:
        is_settled: whether a stretch need not be cut further; nodes of it stay unread.
    """
    yield from _aligned([tree.parts for tree in trees], is_settled, open_node)


def _aligned(
    lists: Sequence[Sequence[Part]],
    is_settled: Callable[[Segment], bool],
    open_node: Callable[[NodeInfo], Sequence[Part]],
) -> Iterator[Segment]:
    at = [0] * len(lists)
    while True:
        starts = [parts[i].min_path for parts, i in zip(lists, at, strict=True) if i < len(parts)]
        if not starts:
            return
        reach = min(starts)
        segment: Segment = tuple([] for _ in lists)
        grew = True
        while grew:
            grew = False
            for which, parts in enumerate(lists):
                i = at[which]
                while i < len(parts) and parts[i].min_path <= reach:
                    segment[which].append(parts[i])
                    if parts[i].max_path > reach:
                        reach = parts[i].max_path
                    i += 1
                    grew = True
                at[which] = i
        height = max(part.height for parts in segment for part in parts)
        if height == 0 or is_settled(segment):
            yield segment
        else:
            yield from _aligned([_opened(parts, height, open_node) for parts in segment], is_settled, open_node)


def _opened(parts: Sequence[Part], height: int, open_node: Callable[[NodeInfo], Sequence[Part]]) -> list[Part]:
    found: list[Part] = []
    for part in parts:
        if isinstance(part, NodeInfo) and part.height == height:
            found += open_node(part)
        else:
            found.append(part)
    return found


def same_parts(left: Sequence[Part], right: Sequence[Part]) -> bool:
    """Whether two lists hold the same paths and objects, by the ids of their parts."""
    return len(left) == len(right) and all(a.id == b.id for a, b in zip(left, right, strict=True))


def are_ranges(parts: list[Part]) -> TypeGuard[list[RangeInfo]]:
    """Whether no part is a node."""
    return all(part.height == 0 for part in parts)
