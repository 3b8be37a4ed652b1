"""Where nodes end: decided by content alone, as with ranges, so that equal content gives equal trees.

A list of parts that is too long for one file is cut into nodes. A node ends at a part whose last path hashes below the
threshold of its level, or at its cap; the hash is that by which ranges end, and the threshold is smaller on each level.
Values move no end, only paths do. The last node of a level may end anywhere; all others are closed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from strandline.tree import chunking
from strandline.tree.node_file import NodeInfo, Part

FLAT_MAX = 512
"""How many parts a single file lists at most; more are cut into nodes (docs/design/decisions.md has the reasons)."""
MEAN_CHILDREN = 64
MAX_CHILDREN = 4 * MEAN_CHILDREN

Open = Callable[[NodeInfo], Sequence[Part]]
"""Reads what a node lists."""
Make = Callable[[Sequence[Part]], NodeInfo]
"""Makes a node of parts."""


def is_natural_end(path: str, height: int) -> bool:
    """Whether nodes of a height, and ranges at height 0, end after a path wherever it occurs."""
    return bool(chunking.path_hash(path) < _threshold(height))


def _threshold(height: int) -> int:
    threshold: int = int(chunking.THRESHOLD) // MEAN_CHILDREN**height
    return max(1, threshold)


def is_closed(part: Part) -> bool:
    """Whether nothing can be appended to a part, were it the last of its tree.

    A node at its cap does not count: the last range in it may be open.
    """
    if isinstance(part, NodeInfo):
        return is_natural_end(part.max_path, part.height)
    return chunking.is_closed(part.max_path, part.count, part.raw_bytes)


def is_large(parts: Sequence[Part]) -> bool:
    """Whether a tree has levels, or would have some if it were written anew: only then may equal trees differ in id."""
    return len(parts) > FLAT_MAX or any(part.height for part in parts)


def levelled(parts: Iterable[Part], open_node: Open, make: Make) -> tuple[Part, ...]:
    """What a metarange lists, of parts in order: they themselves, or nodes above them.

    Args:
        parts: ranges, and nodes that may be carried over where a node of their height begins. All but the last are
            closed.
    """
    found, height = list(parts), 0
    while _are_more_than(FLAT_MAX, found, height, open_node):
        height += 1
        found = _cut(found, height, open_node, make)
    return tuple(at_height(found, height, open_node))


def at_height(parts: Sequence[Part], height: int, open_node: Open) -> list[Part]:
    """The parts of one height that are in others."""
    found: list[Part] = []
    for part in parts:
        if isinstance(part, NodeInfo) and part.height > height:
            found += at_height(open_node(part), height, open_node)
        else:
            found.append(part)
    return found


def _are_more_than(limit: int, parts: list[Part], height: int, open_node: Open) -> bool:
    """Whether a level has more parts than that; nodes far above it are opened only if that decides."""
    count = 0
    for part in parts:
        count += part.children if isinstance(part, NodeInfo) and part.height > height else 1
        if count > limit:
            return True
    if any(part.height > height + 1 for part in parts):
        return len(at_height(parts, height, open_node)) > limit
    return False


def _cut(parts: Sequence[Part], height: int, open_node: Open, make: Make) -> list[Part]:
    """The nodes of a height; one that is there already is taken as it is if it begins where a node begins."""
    found: list[Part] = []
    pending: list[Part] = []
    threshold, most, path_hash = _threshold(height), MAX_CHILDREN, chunking.path_hash

    def take(part: Part) -> None:
        if isinstance(part, NodeInfo) and part.height >= height:
            if not pending:
                found.append(part)
                return
            for child in open_node(part):
                take(child)
            return
        pending.append(part)
        if len(pending) >= most or path_hash(part.max_path) < threshold:
            found.append(make(pending))
            pending.clear()

    for part in parts:
        take(part)
    if pending:
        found.append(make(pending))
    return found
