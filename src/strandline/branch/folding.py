"""Staged entries laid over a tree: in this process, or by whatever has more hands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from strandline.branch.staged import scan_staged
from strandline.branch.stores import Stores
from strandline.ids import StagingToken
from strandline.tree.apply import apply
from strandline.tree.rows import Changes
from strandline.tree.store import Tree


@dataclass(frozen=True, slots=True)
class Folded:
    """A tree with staged entries over it.

    Attributes:
        entries: how many there were, tombstones too.
    """

    tree: Tree
    entries: int


class Folder(Protocol):
    """Lays what is staged over a tree."""

    def __call__(self, stores: Stores, base: Tree, tokens: Sequence[StagingToken]) -> Folded:
        """The tree with the entries of sealed tokens, newest first, over it.

        Raises:
            ObjectMissing: a file of the base is gone.
        """


def fold_here(stores: Stores, base: Tree, tokens: Sequence[StagingToken]) -> Folded:
    """In this process. Memory: a batch of entries and the ranges that it touches."""
    counted = _Counted(scan_staged(stores, tokens))
    tree = apply(stores.trees, base, counted).tree
    return Folded(tree, counted.entries)


class _Counted:
    """Passes batches on and counts their entries."""

    def __init__(self, batches: Iterator[Changes]) -> None:
        self._batches = batches
        self.entries = 0

    def __iter__(self) -> Iterator[Changes]:
        for batch in self._batches:
            self.entries += len(batch)
            yield batch
