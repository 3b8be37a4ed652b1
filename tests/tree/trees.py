"""Small trees for tests: ranges of a few rows, so that few paths make many of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import strategies as st

from strandline.blob import open_store
from strandline.ids import new_id
from strandline.tree import chunking, levels
from strandline.tree.apply import apply
from strandline.tree.range_file import RangeInfo
from strandline.tree.rows import Changes, Entry, Staged, changes_from_staged, encode_staged, entries_of
from strandline.tree.store import EMPTY, Tree, TreeStore

FLAT = st.sampled_from([levels.FLAT_MAX, 2])
"""How many ranges a tree without levels has at most: with the smaller number most trees of tests have levels."""


def entry(content: object, metadata: str | None = None) -> Entry:
    """An entry whose identity is its content."""
    return Entry(f"data/{content}", 1, f"sum:{content}", 1_770_000_000_000_000, None, metadata)


def changes(model: Mapping[str, Staged]) -> Changes:
    keys = sorted(path.encode() for path in model)
    return changes_from_staged(keys, [encode_staged(model[key.decode()]) for key in keys])


def memory_trees() -> TreeStore:
    return TreeStore(open_store(f"memory://{new_id()}"))


def make(store: TreeStore, model: Mapping[str, Staged]) -> Tree:
    return apply(store, EMPTY, [changes(model)]).tree if model else EMPTY


def read(store: TreeStore, tree: Tree) -> dict[str, Entry]:
    return {path: found for rows in store.scan(tree) for path, found in entries_of(rows)}


def ranges(store: TreeStore, tree: Tree) -> list[RangeInfo]:
    return list(store.ranges(tree))


def identities(model: Mapping[str, Entry]) -> dict[str, object]:
    return {path: found.identity for path, found in model.items()}


@contextmanager
def small_ranges(mean_rows: int = 4, max_rows: int = 9, flat_max: int = levels.FLAT_MAX) -> Iterator[None]:
    """Ranges of few rows; with a small `flat_max`, nodes of few parts as well."""
    with pytest.MonkeyPatch.context() as patch:
        if flat_max < levels.FLAT_MAX:
            patch.setattr(levels, "FLAT_MAX", flat_max)
            patch.setattr(levels, "MEAN_CHILDREN", 2)
            patch.setattr(levels, "MAX_CHILDREN", 4)
        patch.setattr(chunking, "THRESHOLD", np.uint32(2**32 // mean_rows))
        patch.setattr(chunking, "MAX_ROWS", max_rows)
        yield
