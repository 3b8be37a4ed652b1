"""Staging compaction: what is staged becomes a tree of its own, which readers and commits build on."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

from strandline import metrics
from strandline.branch.at import BranchAt
from strandline.branch.attempts import Attempts, still_named, update
from strandline.branch.cell import Moved
from strandline.branch.folding import Folder, fold_here
from strandline.branch.rules.record import (
    COOL_DOWN_S,
    BranchRecord,
    CoolingDown,
    LayersMoved,
    claim_compaction,
    fold,
    refuse_read_only,
)
from strandline.branch.token_queue import dropped, put_item
from strandline.ids import StagingToken, new_id

ROUNDS = 3
"""How often a compaction whose layers moved begins again. A commit that came first has done its work."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """What became of a compaction.

    Attributes:
        outcome: "done"; "superseded" by a process that took or discarded what was staged; or "cooling down".
        entries: staged entries that were folded into a tree, tombstones too.
        tokens: sealed tokens that they came from.
    """

    outcome: Literal["done", "superseded", "cooling down"]
    entries: int = 0
    tokens: int = 0
    seconds: float = 0.0


def compact(at: BranchAt, *, cool_down_s: float = COOL_DOWN_S, fold_staged: Folder = fold_here) -> Compaction:
    """Fold everything that is staged into a tree over the head, so that reads skip no tombstones and few tokens.

    Writers and committers do not wait for it. It may stop anywhere: until the swap at its end nothing changed but a
    seal. Memory is that of a commit: a batch of entries and the ranges that it touches.

    Args:
        cool_down_s: do nothing if another compaction of the branch began less than this long ago.
        fold_staged: lays what is staged over a tree.

    Raises:
        RepositoryReadOnly, BranchGone, RefNotFound, Contention, StoreUnavailable.
    """
    started = time.perf_counter()

    def claim(branch: BranchRecord) -> BranchRecord:
        refuse_read_only(branch, at.name)
        return claim_compaction(branch, StagingToken(new_id()), at.stores.clock.now_us(), cool_down_s)

    try:
        seen = update(at, claim)
    except CoolingDown:
        return Compaction("cooling down")
    for _ in range(ROUNDS):
        applied = seen.branch.sealed_tokens
        metrics.sealed_tokens().observe(len(applied))
        try:
            with still_named(at, seen.branch):
                head = at.commits.tree(seen.branch.head)
                base = at.stores.trees.tree(seen.branch.compacted) if seen.branch.compacted else head
                folded = fold_staged(at.stores, base, applied)
        except LayersMoved:
            seen = at.read()
            continue
        compacted = None if folded.tree.id == head.id else folded.tree.ref
        nothing = not folded.entries and compacted == seen.branch.compacted and len(applied) == 1
        if nothing or _swap(at, seen.branch, compacted):
            took = time.perf_counter() - started
            metrics.compactions("done").inc()
            metrics.compaction_seconds().observe(took)
            metrics.compaction_entries().inc(folded.entries)
            return Compaction("done", folded.entries, len(applied), took)
        seen = at.read()
        if not seen.branch.sealed_tokens:
            break
    metrics.compactions("superseded").inc()
    return Compaction("superseded", seconds=time.perf_counter() - started)


def _swap(at: BranchAt, seen: BranchRecord, compacted: str | None) -> bool:
    """Swap the tree in for the tokens that it was made of; False if the layers moved.

    Invariant: the record that is swapped still has the head, the base and, as its oldest tokens, exactly those that
    were read. Tokens never return to a record, so they were there throughout, and nobody deleted from them meanwhile.
    """
    put_item(at.stores, dropped(at.name, seen, seen.sealed_tokens))
    attempts = Attempts(at.cell, "compaction")
    while True:
        attempts.next()
        now = at.read()
        try:
            refuse_read_only(now.branch, at.name)
            at.cell.swap(now, fold(now.branch, seen, seen.sealed_tokens, compacted))
            return True
        except LayersMoved:
            return False
        except Moved:
            continue
