"""Three-way merge of trees: whole ranges first, rows only where both sides moved.

Identities alone do not decide: equal content under two paths is two objects. Every comparison here is of one path in
three trees.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.tree.apply import overlay_rows
from strandline.tree.build import TreeBuilder, ends_of_range
from strandline.tree.diff import compare_rows
from strandline.tree.node_file import Part
from strandline.tree.range_file import RangeInfo
from strandline.tree.rows import Changes, column, concat, same_identity
from strandline.tree.segments import PathSpan, Segment, are_ranges, same_parts, segments
from strandline.tree.store import Tree, TreeStore

Strategy = Literal["source-wins", "dest-wins"]
Strategies = Mapping[str, Strategy | None]
"""What to do with conflicts, by path prefix; the longest prefix counts, "" is everything. None leaves them."""


@dataclass(frozen=True, slots=True)
class Merged:
    """The merged tree, or why there is none.

    Attributes:
        conflicts: by path, what both sides did to an object, where they differ and no strategy decides.
    """

    tree: Tree
    conflicts: dict[str, str] = field(default_factory=dict)


def merge(
    store: TreeStore, base: Tree, source: Tree, dest: Tree, strategies: Strategies, within: PathSpan = ("", None)
) -> Merged:
    """Bring what changed between base and source into dest.

    Conflicts are collected, not raised; a merge with conflicts still writes ranges that nobody will refer to.

    Args:
        within: ranges that lie outside of this stretch of paths stay as in dest; of those at its edges all is merged.
    """
    conflicts: dict[str, str] = {}

    def chosen_of(segment: Segment) -> list[Part] | None:
        return segment[2] if _is_outside(segment, within) else _chosen(segment)

    with TreeBuilder(store, dest, source) as builder:
        for segment in segments((base, source, dest), lambda one: chosen_of(one) is not None, builder.open_node):
            chosen = chosen_of(segment)
            if chosen is None:
                _merge_rows(store, builder, segment, strategies, conflicts)
                continue
            from_tree = source if chosen is segment[1] else dest
            for part in chosen:
                builder.add_part(part, is_last=from_tree.is_last(part))
        return Merged(dest, conflicts) if conflicts else Merged(builder.finish())


def _is_outside(segment: Segment, within: PathSpan) -> bool:
    start, end = within
    return all(part.max_path < start for side in segment for part in side) or (
        end is not None and all(part.min_path >= end for side in segment for part in side)
    )


def _chosen(segment: Segment) -> list[Part] | None:
    """The side that holds what both sides make of a stretch, if that is one of them as it is."""
    in_base, in_source, in_dest = segment
    if same_parts(in_base, in_source) or same_parts(in_source, in_dest):
        return in_dest
    return in_source if same_parts(in_base, in_dest) else None


def _merge_rows(
    store: TreeStore,
    builder: TreeBuilder,
    segment: Segment,
    strategies: Strategies,
    conflicts: dict[str, str],
) -> None:
    sides: list[list[RangeInfo]] = []
    for parts in segment:
        assert are_ranges(parts)
        sides.append(parts)
    base, source, dest = (concat([store.rows(info) for info in ranges]) for ranges in sides)
    wanted = compare_rows(base, source)
    at = pc.index_in(wanted.paths, value_set=column(dest, "path"))
    present = dest.take(at)
    untouched = same_identity(present, wanted.left)
    equal = same_identity(present, wanted.right)
    conflicting = ~untouched & ~equal
    take = untouched & ~equal
    there = [
        column(rows, "path").is_valid().to_numpy(zero_copy_only=False) for rows in (wanted.left, wanted.right, present)
    ]
    for i in np.flatnonzero(conflicting):
        path = wanted.paths[int(i)].as_py()
        strategy = strategy_for(path, strategies)
        if strategy is None:
            conflicts[path] = _both(*(bool(side[i]) for side in there))
        take[i] = strategy == "source-wins"
    ends = [ends_of_range(info, store.rows(info)) for info in sides[2]]
    chosen = np.flatnonzero(take)
    all_changes = wanted.as_changes()
    changes = Changes(all_changes.rows.take(pa.array(chosen)), all_changes.deleted[chosen])
    dest_ends = np.concatenate(ends) if ends else np.zeros(0, np.bool_)
    rows, row_ends, _ = overlay_rows(dest, dest_ends, changes)
    builder.add_rows(rows, row_ends)


def _both(in_base: bool, in_source: bool, in_dest: bool) -> str:
    """What both sides did to an object that differs in them."""
    if not in_base:
        return "both sides added it differently"
    if not in_source:
        return "the source deleted it, and the branch changed it"
    if not in_dest:
        return "the branch deleted it, and the source changed it"
    return "both sides changed it differently"


def strategy_for(path: str, strategies: Strategies) -> Strategy | None:
    """The strategy of the longest prefix that covers a path."""
    best = max((prefix for prefix in strategies if path.startswith(prefix)), key=len, default=None)
    return None if best is None else strategies[best]
