"""The part of the branch machine for range locks: pure functions from a record to the next one.

Everything that changes a branch asks here, on the very record that its change is swapped into. So of a lock and a
change, one comes first: a change that came first is folded into what the lock begins with, and one that comes later
finds the lock. A record that is older than the newest may show a lock that is gone, never lack one that is there
while its swap would still succeed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

import msgspec
from msgspec.structs import replace

from strandline.branch.rules.ranges import Range, around, as_ranges, overlap, told
from strandline.branch.rules.record import BranchRecord, LockMode, LockRecord, Waiting, fold, refuse_read_only, seal
from strandline.branch.rules.writers import is_last_started
from strandline.clock import Microseconds
from strandline.errors import Advice, LockLost, LockRateExceeded, LockRejected, RangeLocked, TooManyLocks
from strandline.ids import StagingToken
from strandline.tree.store import TreeRef

MAX_RANGES = 256
"""Of all locks of a branch together: with 1,024 writers the record has 76 KB and is decoded in 0.14 ms."""
MAX_WAITING = 64
CHANGES_PER_S = 10.0
BURST = 100
"""This many takes at once, then `CHANGES_PER_S`: each one seals, and every writer has to read the record again."""
WAITING_IS_SILENT_S = 60.0
"""Waiters renew their places every few seconds. A waiter that has not renewed for this long loses its place; a wrong
clock can cost a turn, nothing else."""
NOBODY: Collection[str] = ()


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A lock that somebody wants.

    Attributes:
        is_whole: on the whole branch, whatever locks there are on ranges of it.
        of_repository: part of a lock on a whole repository.
        extends: it adds to a lock that has its id, and takes everything else from that.
    """

    id: str
    owner: str
    description: str
    mode: LockMode
    ranges: tuple[Range, ...]
    writer: str = ""
    transaction: int = 0
    is_whole: bool = False
    of_repository: bool = False
    extends: bool = False


class Withdrawn(Exception):
    """A pending lock is not on record any more: somebody took its taker for dead."""


# --- who may not ------------------------------------------------------------------------------------------------------


def is_live(branch: BranchRecord, lock: LockRecord) -> bool:
    """Whether a lock counts. One that a transaction holds ends with it: when it is published, aborted or doomed."""
    return not lock.transaction or is_last_started(branch, lock.writer, lock.transaction)


def locks_of(branch: BranchRecord) -> Iterator[LockRecord]:
    """The locks that count, that of the whole branch first."""
    every = branch.locks if branch.whole is None else (branch.whole, *branch.locks)
    return (lock for lock in every if is_live(branch, lock))


def in_the_way(branch: BranchRecord, mine: Collection[str] = NOBODY) -> list[LockRecord]:
    """The locks that a holder of `mine` has to respect when changing something, pending ones too."""
    if not branch.locks and branch.whole is None:
        return []
    if branch.whole is not None and is_live(branch, branch.whole):
        # while the whole branch is locked, the locks on ranges rest
        is_mine = branch.whole.id in mine and branch.whole.mode != "shared"
        return [] if is_mine else [branch.whole]
    return [lock for lock in locks_of(branch) if lock.id not in mine or lock.mode == "shared"]


def locked_key(
    branch: BranchRecord, keys: Sequence[bytes], mine: Collection[str] = NOBODY
) -> tuple[LockRecord, str] | None:
    """A lock in the way of changing some sorted keys, with one of those that it covers."""
    for lock in in_the_way(branch, mine):
        ranges = around(lock.ranges, keys[0].decode()) if len(keys) == 1 else lock.ranges
        for range in ranges:
            key = range.first_of(keys)
            if key is not None:
                return lock, key.decode()
    return None


def refuse_locked_keys(branch: BranchRecord, name: str, keys: Sequence[bytes], mine: Collection[str] = NOBODY) -> None:
    """Raise if a lock of somebody else covers one of some sorted keys."""
    if found := locked_key(branch, keys, mine):
        lock, path = found
        raise range_locked(lock, name, repr(path))


def refuse_locked_ranges(
    branch: BranchRecord, name: str, ranges: Sequence[Range], mine: Collection[str] = NOBODY
) -> None:
    """Raise if a lock of somebody else meets one of some ranges."""
    for lock in in_the_way(branch, mine):
        if overlap(lock.ranges, ranges):
            raise range_locked(lock, name, told(lock.ranges))


def refuse_whole(branch: BranchRecord, name: str) -> None:
    """Raise if the whole branch is held: what is staged under a lock on a range is never half of a repair, so commits
    need not ask for others. A pending one lets commits pass: they are its own way to get rid of what is staged.
    """
    whole = branch.whole
    if whole is not None and whole.state == "held" and is_live(branch, whole):
        raise range_locked(whole, name, "Everything")


def refuse_quarantined(branch: BranchRecord, name: str, range: Range) -> None:
    """Raise if others may not read something in a range."""
    for lock in locks_of(branch):
        if lock.mode == "quarantine" and overlap(lock.ranges, [range]):
            raise range_locked(lock, name, told(lock.ranges), "quarantined")


def quarantined(branch: BranchRecord) -> list[LockRecord]:
    """The locks whose ranges others may not read."""
    if not branch.locks and branch.whole is None:
        return []
    return [lock for lock in locks_of(branch) if lock.mode == "quarantine"]


def range_locked(lock: LockRecord, name: str, what: str, how: str = "locked") -> RangeLocked:
    if lock.mode == "shared":
        how = "locked against all changes"
    why = f" ({lock.description})" if lock.description else ""
    return RangeLocked(
        f"{what} on branch {name!r} is {how} by {lock.owner!r}{why}, lock {lock.id}.",
        owner=lock.owner,
        description=lock.description,
        lock_id=lock.id,
        next=f"Wait until it is released. `strandline lock list REPOSITORY/{name}` shows all locks of {name!r}; if "
        f"{lock.owner!r} is dead, `strandline lock release REPOSITORY/{name} {lock.id}` ends its lock.",
    )


# --- taking -----------------------------------------------------------------------------------------------------------


def pend(
    branch: BranchRecord,
    name: str,
    requests: Sequence[Request],
    releases: Collection[str],
    fresh: StagingToken,
    now: Microseconds,
    under: Collection[str] = NOBODY,
) -> BranchRecord:
    """Put locks on record as pending, and seal: a writer from now on sees them, or writes where they are folded.

    Args:
        releases: ids of locks that the same request ends; they end when the new ones become held.
        under: ids of locks that the caller holds: of the whole branch, say.

    Raises:
        LockRejected: a lock is in the way, somebody has waited longer, or one to be released is not there.
        TooManyLocks, LockRateExceeded.
    """
    refuse_read_only(branch, name)
    kept = tuple(lock for lock in branch.locks if is_live(branch, lock))
    whole = branch.whole if branch.whole is not None and is_live(branch, branch.whole) else None
    ids = {lock.id for lock in kept} | ({whole.id} if whole else set())
    for id in releases:
        if id not in ids:
            raise _not_there(id, name)
    own = {request.id for request in requests} | set(releases)
    if whole is not None and whole.id not in own and whole.id not in under:
        raise _locked_as_a_whole(whole, name)
    requests = [_extended(request, kept, name) if request.extends else request for request in requests]
    for request in requests:
        _refuse_overlap(branch, name, request, kept, whole, own, now)
    pending = [_pending(request, branch.staging_token, now) for request in requests]
    wholes = [lock for lock, request in zip(pending, requests, strict=True) if request.is_whole]
    locks = (*kept, *(lock for lock, request in zip(pending, requests, strict=True) if not request.is_whole))
    if sum(len(lock.ranges) for lock in locks) > MAX_RANGES:
        raise TooManyLocks(
            f"Branch {name!r} would have {sum(len(lock.ranges) for lock in locks)} locked ranges; {MAX_RANGES} are the "
            "most.",
            next="Release some, or lock a larger range that covers several.",
        )
    changed = replace(
        branch,
        locks=locks,
        whole=wholes[0] if wholes else whole,
        waiting=tuple(one for one in branch.waiting if one.id not in own and not _is_silent(one, now)),
    )
    return seal(_counted(changed, name, now), fresh)


def _extended(request: Request, kept: Sequence[LockRecord], name: str) -> Request:
    """A request for more of a lock, which is there on this very record: all but the ranges is that lock's."""
    for lock in kept:
        if lock.id == request.id and lock.state == "held":
            same = (lock.owner, lock.description, lock.mode, lock.writer, lock.transaction)
            owner, description, mode, writer, transaction = same
            return msgspec.structs.replace(
                request, owner=owner, description=description, mode=mode, writer=writer, transaction=transaction
            )
    raise _not_there(request.id, name)


def _is_silent(one: Waiting, now: Microseconds) -> bool:
    return abs(now - one.seen_at) > WAITING_IS_SILENT_S * 1e6


def _pending(request: Request, sealed: StagingToken, now: Microseconds) -> LockRecord:
    return LockRecord(
        id=request.id,
        owner=request.owner,
        description=request.description,
        mode=request.mode,
        state="pending",
        ranges=request.ranges,
        taken_at=now,
        sealed=sealed,
        writer=request.writer,
        transaction=request.transaction,
        of_repository=request.of_repository,
    )


def _refuse_overlap(
    branch: BranchRecord,
    name: str,
    request: Request,
    kept: Sequence[LockRecord],
    whole: LockRecord | None,
    own: Collection[str],
    now: Microseconds,
) -> None:
    if request.is_whole:  # locks on ranges keep their records beside it
        blocking = [whole] if whole is not None and whole.id not in own else []
    else:
        blocking = [lock for lock in kept if lock.id not in own and _conflict(request, lock.mode, lock.ranges)]
    if blocking:
        lock = blocking[0]
        raise LockRejected(
            f"{told(request.ranges)} on branch {name!r} cannot be locked: {lock.owner!r} ({lock.description}) holds "
            f"{told(lock.ranges)}, lock {lock.id}.",
            next=Advice(
                "Wait for it with timeout_s. `strandline lock list REPOSITORY/BRANCH` shows all locks.",
                command="Wait for it with --wait SECONDS. `strandline lock list REPOSITORY/BRANCH` shows all locks.",
            ),
        )
    mine = [range for lock in kept if lock.id in own for range in lock.ranges]
    for one in branch.waiting:
        if one.id in own:
            return
        # a waiter for what this caller holds cannot go first
        if _conflict(request, one.mode, one.ranges) and not _is_silent(one, now) and not overlap(one.ranges, mine):
            raise LockRejected(
                f"{told(request.ranges)} on branch {name!r} cannot be locked: {one.owner!r} has waited for "
                f"{told(one.ranges)} longer.",
                next=Advice(
                    "Wait for it with timeout_s.",
                    command="Wait for it with --wait SECONDS.",
                ),
            )


def _conflict(request: Request, mode: LockMode, ranges: Sequence[Range]) -> bool:
    return not (request.mode == mode == "shared") and overlap(request.ranges, ranges)


def held(
    now: BranchRecord,
    seen: BranchRecord,
    applied: Sequence[StagingToken],
    compacted: TreeRef | None,
    ids: Collection[str],
    releases: Collection[str],
) -> BranchRecord:
    """Pending locks become held, in the swap that drops what was staged before them; others of the request end.

    The content epoch grows: a committer with an earlier scan of those tokens computes anew, else it could bring back
    a write that was refused.

    Raises:
        Withdrawn: one of them is not pending any more.
        LayersMoved.
    """
    pending = {lock.id for lock in (*now.locks, now.whole) if lock is not None and lock.state == "pending"}
    if not set(ids) <= pending:
        raise Withdrawn
    folded = fold(now, seen, applied, compacted)

    def become(lock: LockRecord) -> LockRecord:
        is_mine = lock.id in ids and lock.state == "pending"
        return replace(lock, state="held", base=now.head) if is_mine else lock

    ending = [id for id in releases if id not in ids]
    whole = now.whole if now.whole is None or now.whole.id not in ending else None
    return replace(
        folded,
        locks=tuple(become(lock) for lock in now.locks if lock.id not in ending),
        whole=None if whole is None else become(whole),
    )


def inherit(branch: BranchRecord, whole: LockRecord) -> BranchRecord:
    """A lock of the whole repository on a branch that nothing was ever staged on."""
    return replace(branch, whole=replace(whole, state="held", base=branch.head))


# --- waiting ----------------------------------------------------------------------------------------------------------


def wait_for(branch: BranchRecord, name: str, request: Request, now: Microseconds) -> BranchRecord:
    """Stand in the queue, or renew the place in it; a waiter that has been silent for long leaves it."""
    mine = Waiting(request.id, request.owner, request.mode, request.ranges, now)
    queue = [mine if one.id == mine.id else one for one in branch.waiting]
    if mine not in queue:
        queue.append(mine)
    queue = [one for one in queue if not _is_silent(one, now)]
    if len(queue) > MAX_WAITING:
        raise TooManyLocks(f"{MAX_WAITING} callers wait for locks of branch {name!r} already.", next="Try again later.")
    return replace(branch, waiting=tuple(queue))


def stop_waiting(branch: BranchRecord, id: str) -> BranchRecord:
    return replace(branch, waiting=tuple(one for one in branch.waiting if one.id != id))


def _counted(branch: BranchRecord, name: str, now: Microseconds) -> BranchRecord:
    """A leaky bucket in one number (the "virtual scheduling" form of ITU-T I.371's generic cell rate algorithm)."""
    each = round(1e6 / CHANGES_PER_S)
    limit = now + each * BURST
    used = max(branch.lock_changes_at, now)
    if used > limit + each * BURST:  # by a wrong clock: it holds nobody up for long
        used = limit
    if used + each > limit:
        wait = (used + each - limit) / 1e6
        raise LockRateExceeded(
            f"The locks of branch {name!r} are changed more than {CHANGES_PER_S:g} times a second.",
            next=f"Try again in {wait:.1f} seconds; one lock of a larger range spares many of small ones.",
        )
    return replace(branch, lock_changes_at=used + each)


# --- ending -----------------------------------------------------------------------------------------------------------


def release(branch: BranchRecord, name: str, ids: Collection[str], under: Collection[str] = NOBODY) -> BranchRecord:
    """Locks end, by their ids, however often locks are changed.

    Raises:
        LockRejected: one of them is not there, or the whole branch is locked by somebody else.
    """
    there = {lock.id for lock in locks_of(branch)}
    for id in ids:
        if id not in there:
            raise _not_there(id, name)
    whole = branch.whole
    if whole is not None and whole.of_repository and whole.id in ids:
        raise LockRejected(
            f"Lock {whole.id} on branch {name!r} is that of the whole repository.",
            next=Advice(
                "End it for all branches: repository.unlock(), or `strandline lock release-repo`.",
                command="End it for all branches: `strandline lock release-repo`.",
            ),
        )
    if whole is not None and is_live(branch, whole) and whole.id not in ids and whole.id not in under:
        raise _locked_as_a_whole(whole, name)
    return without_locks(branch, ids)


def without_locks(branch: BranchRecord, ids: Collection[str], *, pending_only: bool = False) -> BranchRecord:
    """The record without some locks, and without those that have ended with their transactions."""

    def stays(lock: LockRecord) -> bool:
        goes = lock.id in ids and (lock.state == "pending" or not pending_only)
        return not goes and is_live(branch, lock)

    whole = branch.whole if branch.whole is not None and stays(branch.whole) else None
    return replace(branch, locks=tuple(filter(stays, branch.locks)), whole=whole)


def refuse_unheld(branch: BranchRecord, name: str, ids: Iterable[str]) -> None:
    """Raise unless all of some locks are held on this very record."""
    held_ids = {lock.id for lock in locks_of(branch) if lock.state == "held"}
    missing = [id for id in ids if id not in held_ids]
    if missing:
        raise LockLost(
            f"Lock {missing[0]} is not held on branch {name!r}: it has ended, or the id is wrong.",
            safe="Nothing that was to be changed under it is visible.",
            next="Look at `strandline lock list REPOSITORY/BRANCH`, then take the lock and begin again.",
        )


def grouped(locks: Iterable[LockRecord], branch: BranchRecord) -> list[LockRecord]:
    """The locks that count, of which those that were extended are one."""
    found: dict[str, LockRecord] = {}
    for lock in locks:
        if is_live(branch, lock):
            known = found.get(lock.id)
            if known is not None:
                state = "pending" if "pending" in (known.state, lock.state) else "held"
                lock = replace(known, ranges=as_ranges([*known.ranges, *lock.ranges]), state=state)
            found[lock.id] = lock
    return list(found.values())


def find(branch: BranchRecord, ranges: Sequence[Range], owner: str | None = None) -> list[tuple[Range, LockRecord]]:
    """The parts of some ranges that are locked, with their locks."""
    return [
        (one.clipped(other), lock)
        for lock in locks_of(branch)
        if owner is None or lock.owner == owner
        for one in lock.ranges
        for other in ranges
        if one.overlaps(other)
    ]


def exact(branch: BranchRecord, name: str, ranges: tuple[Range, ...], owner: str) -> LockRecord | None:
    """The lock of an owner on exactly these ranges; None if nothing is locked there.

    Raises:
        LockRejected: something else is.
    """
    met = [lock for lock in grouped(branch.locks, branch) if overlap(lock.ranges, ranges)]
    if not met:
        return None
    if len(met) == 1 and (met[0].owner, met[0].ranges) == (owner, ranges):
        return met[0]
    lock = met[0]
    raise LockRejected(
        f"{told(ranges)} on branch {name!r} is not what {owner!r} has locked: {lock.owner!r} ({lock.description}) "
        f"holds {told(lock.ranges)}, lock {lock.id}.",
        next="Name the very range of the lock, or its id.",
    )


def _locked_as_a_whole(whole: LockRecord, name: str) -> LockRejected:
    return LockRejected(
        f"Branch {name!r} is locked as a whole by {whole.owner!r} ({whole.description}), lock {whole.id}: meanwhile "
        "nobody else takes or releases locks on it.",
        next="Wait until it is released.",
    )


def _not_there(id: str, name: str) -> LockRejected:
    return LockRejected(
        f"There is no lock {id} on branch {name!r}: it has ended, or the id is wrong.",
        next=f"`strandline lock list REPOSITORY/{name}` shows all.",
    )
