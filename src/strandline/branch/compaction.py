"""Staging compaction (seed 001): what is staged becomes a tree of its own, which readers and commits build on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from strandline import metrics
from strandline.branch.attempts import Attempts
from strandline.branch.cell import BranchCell, Moved, still_named, update
from strandline.branch.commits import CommitLog
from strandline.branch.rules.record import (
    COOL_DOWN_S,
    BranchRecord,
    CoolingDown,
    LayersMoved,
    claim_compaction,
    fold,
    refuse_read_only,
)
from strandline.branch.staged import scan_staged
from strandline.branch.token_queue import dropped, put_item
from strandline.ids import BranchId, StagingToken, new_id
from strandline.tree.apply import apply
from strandline.tree.rows import Changes

ROUNDS = 3
"""How often a compaction whose layers moved begins again. A commit that came first has done its work."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """What became of a compaction.

    Attributes:
        outcome: "done"; "superseded" by whoever took or discarded what was staged; or "cooling down".
        entries: staged entries that were folded into a tree, tombstones too.
        tokens: sealed tokens that they came from.
    """

    outcome: Literal["done", "superseded", "cooling down"]
    entries: int = 0
    tokens: int = 0
    seconds: float = 0.0


def compact(
    cell: BranchCell, commits: CommitLog, branch_id: BranchId, *, cool_down_s: float = COOL_DOWN_S
) -> Compaction:
    """Fold everything that is staged into a tree over the head, so that reads skip no tombstones and few tokens.

    Writers and committers do not wait for it. It may stop anywhere: until the swap at its end nothing changed but a
    seal. Memory is that of a commit: a batch of entries and the ranges that it touches.

    Args:
        cool_down_s: do nothing if another compaction of the branch began less than this long ago.

    Raises:
        RepositoryReadOnly, BranchGone, RefNotFound, Contention, StoreUnavailable.
    """
    started = time.perf_counter()

    def claim(branch: BranchRecord) -> BranchRecord:
        refuse_read_only(branch, cell.name)
        return claim_compaction(branch, StagingToken(new_id()), cell.stores.clock.now_us(), cool_down_s)

    try:
        seen = update(cell, branch_id, claim)
    except CoolingDown:
        return Compaction("cooling down")
    for _ in range(ROUNDS):
        applied = seen.branch.sealed_tokens
        metrics.sealed_tokens().observe(len(applied))
        counted = _Counted(scan_staged(cell.stores, applied))
        try:
            with still_named(cell, branch_id, seen.branch):
                head = commits.tree(seen.branch.head)
                base = cell.stores.trees.tree(seen.branch.compacted) if seen.branch.compacted else head
                tree = apply(cell.stores.trees, base, counted).tree
        except LayersMoved:
            seen = cell.read(branch_id)
            continue
        compacted = None if tree.id == head.id else tree.ref
        nothing = not counted.entries and compacted == seen.branch.compacted and len(applied) == 1
        if nothing or _swap(cell, branch_id, seen.branch, compacted):
            took = time.perf_counter() - started
            metrics.compactions("done").inc()
            metrics.compaction_seconds().observe(took)
            metrics.compaction_entries().inc(counted.entries)
            return Compaction("done", counted.entries, len(applied), took)
        seen = cell.read(branch_id)
        if not seen.branch.sealed_tokens:
            break
    metrics.compactions("superseded").inc()
    return Compaction("superseded", seconds=time.perf_counter() - started)


def _swap(cell: BranchCell, branch_id: BranchId, seen: BranchRecord, compacted: str | None) -> bool:
    """Swap the tree in for the tokens that it was made of; False if the layers moved.

    Invariant: the record that is swapped still has the head, the base and, as its oldest tokens, exactly those that
    were read. Tokens never return to a record, so they were there throughout, and nobody deleted from them meanwhile.
    """
    put_item(cell.stores, dropped(cell.name, seen, seen.sealed_tokens))
    attempts = Attempts(cell, "compaction")
    while True:
        attempts.next()
        now = cell.read(branch_id)
        try:
            refuse_read_only(now.branch, cell.name)
            cell.swap(now, fold(now.branch, seen, seen.sealed_tokens, compacted))
            return True
        except LayersMoved:
            return False
        except Moved:
            continue


class _Counted:
    """Passes batches on and counts their entries."""

    def __init__(self, batches: Iterator[Changes]) -> None:
        self._batches = batches
        self.entries = 0

    def __iter__(self) -> Iterator[Changes]:
        for batch in self._batches:
            self.entries += len(batch)
            yield batch
