"""Range locks: how they are taken while everyone else goes on, and what a writer does that meets one.

Pending, fold, held. From the swap that puts a lock on record as *pending*, and seals, every process that reads the
record afterwards leaves its ranges alone, and a process that had read it before can only reach tokens that are sealed
now. What these hold is folded into a tree, and the lock becomes *held* in the swap that puts this tree in their place.
So a write that came too late to be folded is in a token that is gone: it leaves no trace, and its writer finds that
out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Literal, TypeVar

from strandline.branch.at import BranchAt
from strandline.branch.attempts import Attempts, read_back, still_named, update
from strandline.branch.cell import BranchCell, Moved, Seen
from strandline.branch.commits import CommitLog
from strandline.branch.rules import lock_rules
from strandline.branch.rules.lock_rules import NOBODY, Request, Withdrawn
from strandline.branch.rules.ranges import Range
from strandline.branch.rules.record import BranchRecord, LayersMoved, LockRecord
from strandline.branch.staged import scan_staged
from strandline.branch.token_queue import dropped, put_item
from strandline.clock import Clock, backoff_s
from strandline.errors import (
    Advice,
    LockRateExceeded,
    LockRejected,
    LockTimeout,
    OutcomeUnknown,
    RangeLocked,
    StrandlineError,
    UncommittedChanges,
    some_paths,
)
from strandline.ids import StagingToken, new_id
from strandline.tree.apply import apply
from strandline.tree.diff import diff
from strandline.tree.rows import Entry, decode_staged
from strandline.tree.store import Tree

OnDirty = Literal["fail", "commit", "discard"]
"""What taking a lock does if the ranges hold uncommitted changes."""
PATIENCE_S = 60.0
"""How long a lock may be pending until its taker counts as dead: longer than millions of staged entries are folded."""
SAY_SO_S = 5.0
"""How often a waiter renews its place in the queue; each renewal is one swap."""
Pairs = Sequence[tuple[bytes, bytes]]
"""Staged pairs, each path once."""
LOCK_PATIENCE_S = 10.0
"""How long jobs that have computed something wait for locks of others by default."""
Result = TypeVar("Result")
POLL_MIN_S = 0.001
POLL_MAX_S = 0.25
DIRTY_PATHS_MAX = 1_000
FOLDS = 100


@dataclass(frozen=True, slots=True)
class Change:
    """Several takes and releases as one atomic request.

    Attributes:
        requests: locks that are wanted; one with the id of a lock that is held extends it.
        releases: ids of locks that end in the same swap.
        commit: commits everything staged; needed for `on_dirty="commit"`.
        under: ids of locks that the caller holds already.
    """

    requests: Sequence[Request] = ()
    releases: Collection[str] = NOBODY
    on_dirty: OnDirty = "fail"
    commit: Callable[[], object] | None = None
    under: Collection[str] = NOBODY

    @property
    def ids(self) -> list[str]:
        return [request.id for request in self.requests]

    @property
    def ranges(self) -> list[Range]:
        return [range for request in self.requests for range in request.ranges]


def change_locks(at: BranchAt, change: Change) -> BranchRecord:
    """Take and release locks, all of them or none.

    Returns:
        A record on which the new ones are held.

    Raises:
        LockRejected: others are in the way.
        UncommittedChanges: a range holds uncommitted changes, and they are to be left alone.
        TooManyLocks, LockRateExceeded, RepositoryReadOnly, BranchGone, Contention, StoreUnavailable.
    """
    if not change.requests:
        return update(
            at,
            lambda branch: lock_rules.release(branch, at.name, change.releases, change.under),
        ).branch
    try:
        seen = _pended(at, change)
    except OutcomeUnknown:
        _withdraw_quietly(at, change)
        raise
    try:
        return _fold_and_hold(at, seen, change)
    except BaseException:
        _withdraw_quietly(at, change)
        raise


def _withdraw_quietly(at: BranchAt, change: Change) -> None:
    with suppress(StrandlineError):  # a process that finds it pending for long takes it off
        withdraw(at, change.ids)


def _pended(at: BranchAt, change: Change) -> Seen:
    return update(
        at,
        lambda branch: lock_rules.pend(
            branch,
            at.name,
            change.requests,
            change.releases,
            StagingToken(new_id()),
            at.stores.clock.now_us(),
            change.under,
        ),
    )


def _fold_and_hold(at: BranchAt, seen: Seen, change: Change) -> BranchRecord:
    """Fold what is sealed, and swap it in together with the locks.

    Invariant: the scan began after the swap that sealed and put the locks on record, and the record that is swapped
    demands the layers that were folded: so the tree is all that was acknowledged in the ranges before the lock, and
    nothing else. Whether that is uncommitted is judged on this very tree.
    """
    stores, trees = at.stores, at.stores.trees
    attempts = Attempts(at.cell, "lock")
    for _ in range(FOLDS):
        branch = seen.branch
        applied = branch.sealed_tokens
        try:
            with still_named(at, branch):
                head = at.commits.tree(branch.head)
                base = trees.tree(branch.compacted) if branch.compacted else head
                tree = apply(trees, base, scan_staged(stores, applied)).tree
        except LayersMoved:
            seen = at.read()
            continue
        now = at.read()
        dirty = _dirty(at.cell, head, tree, change.ranges)
        if dirty and change.on_dirty == "discard":
            parts = [(p.as_changes() for p in diff(trees, tree, head, r.start, r.end)) for r in change.ranges]
            tree = apply(trees, tree, chain(*parts)).tree
        elif dirty:
            if not set(applied) <= set(now.branch.tokens):
                seen = now  # somebody may have been deleting a token while it was read
                continue
            if change.on_dirty == "commit" and change.commit is not None:
                change.commit()
                seen = at.read()
                continue
            raise UncommittedChanges(
                f"What is to be locked on branch {at.name!r} has uncommitted changes: {some_paths(dirty)}.",
                paths=dirty,
                next=Advice(
                    'Commit or discard them first, or take the lock with on_dirty="commit" or "discard".',
                    command="Commit or discard them first, or add --on-dirty commit or --on-dirty discard.",
                ),
            )
        compacted = None if tree.id == head.id else tree.ref
        put_item(stores, dropped(at.name, branch, applied))
        done = _swap(at, now, branch, compacted, change, attempts)
        if done is not None:
            return done
        seen = at.read()
    raise attempts.given_up()


def _swap(
    at: BranchAt,
    now: Seen,
    seen: BranchRecord,
    compacted: str | None,
    change: Change,
    attempts: Attempts,
) -> BranchRecord | None:
    """Swap tree and locks in; None if the layers moved."""
    ids = change.ids
    while True:
        try:
            after = lock_rules.held(now.branch, seen, seen.sealed_tokens, compacted, ids, change.releases)
            return at.cell.swap(now, after).branch
        except LayersMoved:
            return None
        except Withdrawn:
            raise LockRejected(
                f"The lock on branch {at.name!r} took so long to become held that somebody took it off.",
                next="Repeat the call.",
            ) from None
        except Moved:
            attempts.again()
            now = at.read()
        except OutcomeUnknown as unknown:
            now = read_back(at, unknown)
            if set(ids) <= {lock.id for lock in lock_rules.locks_of(now.branch) if lock.state == "held"}:
                return now.branch


def _dirty(cell: BranchCell, head: Tree, tree: Tree, ranges: Sequence[Range]) -> list[str]:
    """Some of the paths in ranges that differ between two trees."""
    found: list[str] = []
    if tree.id == head.id:
        return found
    for one in ranges:
        for part in diff(cell.stores.trees, head, tree, one.start, one.end):
            found += part.paths.to_pylist()
            if len(found) > DIRTY_PATHS_MAX:
                return found
    return found


def withdraw(at: BranchAt, ids: Collection[str]) -> None:
    """Take pending locks off the record: they can never become held afterwards."""
    _without(at, ids, pending_only=True)


def end_locks(at: BranchAt, ids: Collection[str]) -> None:
    """Take locks off the record, whatever their state; those that are not there any more are fine."""
    _without(at, ids, pending_only=False)


def _without(at: BranchAt, ids: Collection[str], *, pending_only: bool) -> None:
    def transition(branch: BranchRecord) -> BranchRecord:
        return lock_rules.without_locks(branch, ids, pending_only=pending_only)

    seen = at.read().branch
    if transition(seen) != seen:
        update(at, transition)


# --- waiting for a lock -----------------------------------------------------------------------------------------------


def acquire(at: BranchAt, change: Change, timeout_s: float) -> BranchRecord:
    """Like `change_locks`, but wait up to `timeout_s` seconds for others: first come, first served.

    Raises:
        LockTimeout: it was not free in time.
    """
    if not change.requests:
        return change_locks(at, change)
    mine = change.requests[0]
    slept = 0.0
    polls = 0
    patience = _Patience(at)
    try:
        while True:
            try:
                return change_locks(at, change)
            except (LockRejected, LockRateExceeded) as error:
                if timeout_s <= 0:
                    raise
                if slept >= timeout_s:
                    raise LockTimeout(
                        f"{error.what[:-1]}, and {timeout_s:g} seconds were not enough.", next=error.next
                    ) from error
            if patience.is_time_to_say_so():
                update(
                    at,
                    lambda branch: lock_rules.wait_for(branch, at.name, mine, at.stores.clock.now_us()),
                )
            pause = min(timeout_s - slept, POLL_MAX_S, backoff_s(polls) + POLL_MIN_S)
            slept += patience.sleep(pause)
            polls += 1
    except BaseException:
        if slept:
            with suppress(StrandlineError):  # a waiter that is silent for long leaves the queue
                update(at, lambda branch: lock_rules.stop_waiting(branch, mine.id))
        raise


class _Patience:
    """Takes locks off the record that stay pending, since their takers must have died.

    Time is what this process has slept, so that no clock that jumps takes anybody for dead. If it was alive after all,
    its lock never becomes held, and it is told so.
    """

    def __init__(self, at: BranchAt) -> None:
        self._at = at
        self._slept = 0.0
        self._said = -SAY_SO_S
        self._since: dict[str, float] = {}

    def is_time_to_say_so(self) -> bool:
        """Whether it is time for a sign of life of one's own."""
        if self._slept - self._said < SAY_SO_S:
            return False
        self._said = self._slept
        return True

    def sleep(self, seconds: float) -> float:
        """Sleep, then look around; returns the seconds."""
        self._at.stores.clock.sleep(seconds)
        self._slept += seconds
        branch = self._at.read().branch
        pending = [lock.id for lock in lock_rules.locks_of(branch) if lock.state == "pending"]
        self._since = {id: self._since.get(id, self._slept) for id in pending}
        silent = [id for id, since in self._since.items() if self._slept - since > PATIENCE_S]
        if silent:
            withdraw(self._at, silent)
        return seconds


def waiting_for_locks(clock: Clock, seconds: float, act: Callable[[], Result]) -> Result:
    """Repeat what meets locks of others, with growing pauses, until the time is over; then it fails with what it met.

    For jobs that have computed something: a lock costs them time, and never a part of their data.
    """
    slept = 0.0
    polls = 0
    while True:
        try:
            return act()
        except RangeLocked:
            if slept >= seconds:
                raise
        pause = min(seconds - slept, POLL_MAX_S, backoff_s(polls) + POLL_MIN_S)
        clock.sleep(pause)
        slept += pause
        polls += 1


# --- a lock that is met after having written --------------------------------------------------------------------------


def what_is_left(at: BranchAt, pairs: Pairs, token: StagingToken) -> Pairs:
    """Find out what became of a write whose token was sealed, and some of whose paths are locked now.

    While a lock is pending nobody knows yet. Once it is held, the commit that it began with says what its ranges
    hold: a write that is not there was too late, and is in a token that is on no record any more.

    Args:
        token: that it was written to.

    Returns:
        What no lock covers: it has to be written again.

    Raises:
        RangeLocked: it was too late, and is in no commit.
        OutcomeUnknown: its token was sealed before the lock came, and others may have committed and replaced it since.
    """
    patience = _Patience(at)
    polls = 0
    while pairs:
        keys = sorted(key for key, _ in pairs)
        found = lock_rules.locked_key(at.read().branch, keys)
        if found is None:
            break
        lock, path = found
        if lock.state == "pending":
            patience.sleep(min(POLL_MAX_S, backoff_s(polls) + POLL_MIN_S))
            polls += 1
            continue
        left = [(key, value) for key, value in pairs if not any(one.has(key.decode()) for one in lock.ranges)]
        there = set(pairs) - set(left)
        if not all(_holds(at.cell, lock, key, value) for key, value in there):
            refused = lock_rules.range_locked(lock, at.name, repr(path))
            if lock.sealed == token:
                raise refused
            raise OutcomeUnknown(
                f"{refused.what} The lock came while this was being written.",
                safe=f"The write is not what branch {at.name!r} shows; it is unknown whether it was for a while.",
                next="Read it back when the lock has ended.",
            )
        pairs = left
    return pairs


def _holds(cell: BranchCell, lock: LockRecord, key: bytes, value: bytes) -> bool:
    """Whether an entry is what its path showed when a lock became held."""
    commits = CommitLog(cell.stores)
    found = cell.stores.trees.find(commits.tree(lock.base), key.decode()) if lock.base else None
    wanted = decode_staged(value)
    return found == wanted if isinstance(wanted, Entry) else found is None
