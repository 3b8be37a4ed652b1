"""Many staged changes at one instant: written to a private token, which then becomes the newest sealed one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from strandline.branch.at import BranchAt
from strandline.branch.attempts import Attempts, read_back, update
from strandline.branch.cell import BranchCell, Moved, Seen
from strandline.branch.rules.lock_rules import refuse_locked_keys, refuse_locked_ranges
from strandline.branch.rules.ranges import Range
from strandline.branch.rules.record import (
    BranchRecord,
    LayersMoved,
    attach,
    attach_on_top,
    refuse_blocked,
    seal,
    with_etags,
)
from strandline.branch.staged import write_pairs
from strandline.branch.token_queue import QueueItem, is_condemned, put_item
from strandline.errors import ObjectMissing, OutcomeUnknown, StoreUnavailable, StrandlineError
from strandline.ids import StagingToken, new_id
from strandline.tree.rows import hold_etags

Pairs = Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Computed:
    """Staged pairs, in any order, each path once."""

    pairs: Pairs


def attach_changes(at: BranchAt, compute: Callable[[BranchRecord], Computed], ranges: Sequence[Range] = ()) -> int:
    """Stage the changes that `compute` makes from a record whose sealed layers it may read; all of them or none.

    Everything acknowledged before the call lies beneath the changes, what is staged meanwhile lies above them.

    Args:
        ranges: that the changes are about, whatever they come to: a lock that meets them refuses all.

    Returns:
        The number of changes.
    """
    attempts = Attempts(at.cell, "atomic change")
    while True:
        attempts.next()
        seen = update(at, lambda branch: _seal_if_allowed(at, branch, ranges))
        computed: Computed | StrandlineError
        try:
            computed = compute(seen.branch)
        except StrandlineError as error:
            computed = error
        # if a token that was read has left the record, somebody may have been deleting it while it was read
        now = at.read().branch
        if not set(seen.branch.sealed_tokens) <= set(now.tokens):
            continue
        if isinstance(computed, ObjectMissing) and not now.only_sealed_since(seen.branch):
            continue  # a tree that was replaced may have been collected since
        if isinstance(computed, StrandlineError):
            raise computed
        if not computed.pairs:
            return 0
        token, intent = _write_private(at.cell, seen.branch, computed.pairs)
        pairs = computed.pairs
        if _try(at, seen, intent, pairs, lambda now: attach(now, seen.branch, token), token, attempts):  # noqa: B023 - called within this turn
            return len(pairs)


def attach_pairs(at: BranchAt, pairs: Pairs) -> int:
    """Stage changes that were not computed from what the branch holds; all of them or none, whatever else moves."""
    attempts = Attempts(at.cell, "atomic change")
    keys = sorted(key for key, _ in pairs)
    while True:
        attempts.next()
        seen = at.read()
        refuse_blocked(seen.branch, "stage", at.name, forced=at.is_forced)
        refuse_locked_keys(seen.branch, at.name, keys)
        token, intent = _write_private(at.cell, seen.branch, pairs)
        if _try(
            at,
            seen,
            intent,
            pairs,
            lambda now: attach_on_top(now, token, StagingToken(new_id())),  # noqa: B023 - called within this turn
            token,
            attempts,
        ):
            return len(pairs)


def _seal_if_allowed(at: BranchAt, branch: BranchRecord, ranges: Sequence[Range]) -> BranchRecord:
    refuse_blocked(branch, "stage", at.name, forced=at.is_forced)
    refuse_locked_ranges(branch, at.name, ranges)
    return seal(branch, StagingToken(new_id()))


def _write_private(cell: BranchCell, branch: BranchRecord, pairs: Pairs) -> tuple[StagingToken, bytes]:
    """Record the intent, then fill a fresh token that nobody else knows."""
    token = StagingToken(new_id())
    item = QueueItem(branch=cell.name, branch_id=branch.branch_id, tokens=(token,), kind="private")
    intent = put_item(cell.stores, item)
    write_pairs(cell.stores, cell.stores.staging(token), pairs)
    return token, intent


def _try(
    at: BranchAt,
    seen: Seen,
    intent: bytes,
    pairs: Pairs,
    transition: Callable[[BranchRecord], BranchRecord],
    token: StagingToken,
    attempts: Attempts,
) -> bool:
    """Swap the token in; False if it was condemned, or if the layers moved that it was computed from.

    Invariant: the item of the token is read after the record that the swap demands, and a cleaner condemns the item
    before it seals the branch. So either this sees that the token is condemned, or the cleaner's seal comes after the
    swap and it finds the token on record, or the seal makes the swap fail. Locks, pending ones too, are judged on the
    record that is swapped.

    Args:
        pairs: all that the token holds.
    """
    keys = sorted(key for key, _ in pairs)
    tagged = hold_etags(value for _, value in pairs)
    now = seen
    while True:
        if is_condemned(at.stores, intent):
            return False
        try:
            refuse_blocked(now.branch, "stage", at.name, forced=at.is_forced)
            refuse_locked_keys(now.branch, at.name, keys)
            at.cell.swap(now, transition(with_etags(now.branch) if tagged else now.branch))
        except LayersMoved:
            return False
        except Moved:
            attempts.again()
            now = at.read()
            continue
        except OutcomeUnknown as unknown:
            if token not in read_back(at, unknown).branch.tokens:
                raise
        with suppress(StoreUnavailable):  # done is done; a later sweep finds the token on record and forgets the item
            at.stores.kv.delete(at.stores.records, intent)
        return True
