"""Puts a tree together of stretches that were made elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from strandline.tree.build import TreeBuilder
from strandline.tree.chunking import natural_ends
from strandline.tree.node_file import NodeInfo, Part
from strandline.tree.range_file import RangeInfo
from strandline.tree.rows import column
from strandline.tree.segments import PathSpan
from strandline.tree.store import Tree, TreeRef, TreeStore


def splice(store: TreeStore, base: Tree, start: str, end: str | None, made: Iterable[RangeInfo | pa.Table]) -> Tree:
    """The tree with what lies in `start <= path < end` replaced.

    The result has the id of a tree that is built of the same rows in one go: the builder takes a range by reference
    only where one begins, and reads its rows elsewhere.

    Args:
        made: in order, within the stretch: closed ranges whose files are written, and rows.
    """
    with TreeBuilder(store, base) as builder:
        _keep(store, builder, base, base.parts, ("", start))
        for part in made:
            if isinstance(part, RangeInfo):
                builder.add_part(part, is_last=False)
            else:
                builder.add_rows(part, natural_ends(column(part, "path")))
        if end is not None:
            _keep(store, builder, base, base.parts, (end, None))
        return builder.finish()


def join(store: TreeStore, pieces: Sequence[tuple[TreeRef, str]]) -> Tree:
    """The tree that has of each piece what lies from its start on, up to the start of the next one.

    As a tree that is built of the same rows in one go has it; only ranges at the edges are read.

    Args:
        pieces: trees and where they count, in order; the first one from "" on. One is open at a time.
    """
    with TreeBuilder(store, store.tree(pieces[0][0])) as builder:
        ends = [start for _, start in pieces[1:]]
        for (ref, start), end in zip(pieces, [*ends, None], strict=True):
            tree = store.tree(ref)
            builder.may_keep(tree)
            _keep(store, builder, tree, tree.parts, (start, end))
        return builder.finish()


def _keep(store: TreeStore, builder: TreeBuilder, base: Tree, parts: Sequence[Part], kept: PathSpan) -> None:
    """Add what lies in a stretch: whole parts unread, and of those at its edges what is in it."""
    first, before = kept
    for part in parts:
        if before is not None and part.min_path >= before:
            return
        if part.max_path < first:
            continue
        if part.min_path >= first and (before is None or part.max_path < before):
            builder.add_part(part, is_last=base.is_last(part))
        elif isinstance(part, NodeInfo):
            _keep(store, builder, base, builder.open_node(part), kept)
        else:
            rows = store.open_range(part).between(first, before)
            builder.add_rows(rows, natural_ends(column(rows, "path")))
