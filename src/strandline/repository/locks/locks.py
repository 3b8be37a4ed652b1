"""`branch.locks`: range locks as their owners and operators see them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import get_args

import msgspec
import pyarrow as pa

from strandline.arguments import checked
from strandline.branch.at import BranchAt
from strandline.branch.locking import Change, OnDirty, acquire, change_locks, end_locks
from strandline.branch.rules import lock_rules
from strandline.branch.rules.lock_rules import Request
from strandline.branch.rules.ranges import ALL, Range, Wanted, as_ranges, overlap, told
from strandline.branch.rules.record import BranchRecord, LockMode, LockRecord
from strandline.clock import Microseconds, from_us
from strandline.core.of_branch import OfBranch
from strandline.core.repository_core import RepositoryCore
from strandline.errors import LockInvalid, LockLost, LockRejected, OutcomeUnknown, StrandlineError
from strandline.ids import new_id
from strandline.operations import logged
from strandline.repository.commits.drafts import commit_everything
from strandline.repository.locks.owners import find_owner, waiting_for_owner
from strandline.results.rows import Results

Ranges = Wanted | Iterable[Wanted]
"""A prefix, a pair of paths (start, end), or several of these."""
MODES: tuple[str, ...] = get_args(LockMode)
DIRTY: tuple[str, ...] = get_args(OnDirty)


class LockInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A lock, or the part of one that was asked for.

    Attributes:
        ranges: half-open; an end of None lies behind all paths.
        is_whole: on the whole branch.
        transaction: that holds it, or None; it ends with that.
    """

    id: str
    owner: str
    description: str
    mode: LockMode
    state: str
    ranges: tuple[Range, ...]
    taken_at_us: Microseconds
    is_whole: bool = False
    transaction: int | None = None

    @property
    def taken_at(self) -> datetime:
        """When the lock was taken, in UTC."""
        return from_us(self.taken_at_us)


@dataclass(frozen=True, slots=True)
class LockRequest:
    """A lock to be taken in a request with others."""

    what: Ranges
    owner: str
    mode: LockMode = "exclusive"


@checked()
class Locks(OfBranch, Results[LockInfo]):
    """The locks of a branch, in the order of their paths."""

    _titles = ("id", "what", "owner", "mode", "state", "since", "description")

    def _record(self) -> BranchRecord:
        return self._at.read().branch

    def __iter__(self) -> Iterator[LockInfo]:
        record = self._record()
        locks = lock_rules.grouped(record.locks, record)
        if record.whole is not None and lock_rules.is_live(record, record.whole):
            locks.append(record.whole)
        found = [_info(lock, record, lock.ranges) for lock in locks]
        return iter(sorted(found, key=lambda one: (not one.is_whole, one.ranges[0].start, one.id)))

    def __getitem__(self, id: str) -> LockInfo:
        for found in self:
            if found.id == id:
                return found
        raise LockRejected(
            f"There is no lock {id} on branch {self._at.name!r}: it has ended, or the id is wrong.",
            next=f"`strandline lock list {self._core.name}/{self._at.name}` shows all.",
        )

    def find(self, what: Ranges, owner: str | None = None) -> list[LockInfo]:
        """The locked parts of some ranges, each with its lock.

        Raises:
            LockInvalid: a range is invalid.
        """
        ranges = as_ranges(what)
        record = self._record()
        parts = lock_rules.find(record, ranges, owner)
        return [_info(lock, record, (part,)) for part, lock in sorted(parts, key=lambda pair: pair[0].start)]

    @logged("take lock")
    def take(
        self,
        what: Ranges,
        *,
        owner: str,
        mode: LockMode = "exclusive",
        timeout_s: float = 0.0,
        on_dirty: OnDirty = "fail",
        under: Collection[str] = (),
    ) -> LockInfo:
        """Take a lock that stays until it is released by its id. The same again, by the same owner, is the same lock.

        Args:
            what: a prefix, a pair (start, end), or several of these.
            timeout_s: how long to wait for locks of others; first come, first served.
            on_dirty: what to do if uncommitted changes lie there: "fail", "commit" everything, or "discard" them.
            under: ids of locks that the caller holds, such as one on the whole branch.

        Raises:
            LockInvalid: the range or owner is invalid. Checked before any store is called.
            LockRejected, LockTimeout: somebody else holds a lock there.
            UncommittedChanges: on_dirty is "fail", and there are some.
        """
        ranges = as_ranges(what)
        check_mode(mode, on_dirty)
        record = self._record()
        for lock in lock_rules.grouped(record.locks, record):
            is_same = (lock.owner, lock.ranges, lock.mode, lock.transaction) == (owner, ranges, mode, 0)
            if is_same and lock.state == "held":
                return _info(lock, record, lock.ranges)
        return self.change([LockRequest(what, owner, mode)], timeout_s=timeout_s, on_dirty=on_dirty, under=under)[0]

    @logged("take lock on branch")
    def take_branch(
        self, *, owner: str, mode: LockMode = "exclusive", timeout_s: float = 0.0, on_dirty: OnDirty = "fail"
    ) -> LockInfo:
        """Take a lock on the whole branch. Existing range locks have no effect until it ends.

        Arguments and errors are those of `take`.
        """
        check_mode(mode, on_dirty)
        found = find_owner(self._core, owner)
        request = Request(
            id=new_id(), owner=owner, description=found.description, mode=mode, ranges=(ALL,), is_whole=True
        )
        self._acquire(Change([request], on_dirty=on_dirty, commit=self._commit), timeout_s)
        with after_taking(on_dirty):
            confirm_owners(self._core, [owner], lambda: self.end([request.id]))
        return self[request.id]

    @logged("extend lock")
    def extend(self, id: str, what: Ranges, *, timeout_s: float = 0.0, on_dirty: OnDirty = "fail") -> LockInfo:
        """Let a lock cover more; nothing of what it covers becomes free at any moment.

        Raises:
            LockRejected: it has ended, or others are in the way.
        """
        more = as_ranges(what)
        check_wait(timeout_s)
        held = self[id]
        request = Request(
            id=id, owner=held.owner, description=held.description, mode=held.mode, ranges=more, extends=True
        )
        self._acquire(Change([request], on_dirty=on_dirty, commit=self._commit), timeout_s)
        return self[id]

    @logged("change locks")
    def change(
        self,
        take: Sequence[LockRequest] = (),
        release: Collection[str] = (),
        *,
        timeout_s: float = 0.0,
        on_dirty: OnDirty = "fail",
        under: Collection[str] = (),
    ) -> list[LockInfo]:
        """Take and release several locks at one instant, all or none; returns those that were taken.

        What is released may be taken anew in the same call: nobody gets in between.
        """
        check_wait(timeout_s)
        release, under = check_ids(release), check_ids(under)
        for one in take:
            if not isinstance(one, LockRequest):
                raise LockInvalid(
                    f"{one!r} is not a LockRequest.", next="Give strandline.LockRequest(ranges, owner), with a mode."
                )
            check_mode(one.mode, on_dirty)
        wanted = [(one, as_ranges(one.what)) for one in take]
        owners = {one.owner: find_owner(self._core, one.owner) for one in take}
        requests = [
            Request(
                id=new_id(),
                owner=one.owner,
                description=owners[one.owner].description,
                mode=one.mode,
                ranges=ranges,
            )
            for one, ranges in wanted
        ]
        for at, request in enumerate(requests):
            for other in requests[:at]:
                if not (request.mode == other.mode == "shared") and overlap(request.ranges, other.ranges):
                    raise LockInvalid(
                        f"{told(request.ranges)} and {told(other.ranges)} overlap in one request.",
                        next="Take one lock on both.",
                    )
        change = Change(requests, release, on_dirty, self._commit, under)
        self._acquire(change, timeout_s)
        if not requests:
            return []
        with after_taking(on_dirty):
            confirm_owners(self._core, owners, lambda: self.end(change.ids))
            found = {one.id: one for one in self}
            if gone := [id for id in change.ids if id not in found]:
                raise LockLost(
                    f"Lock {gone[0]} on branch {self._at.name!r} was taken, and ended from elsewhere at once.",
                    next=f"Look at `strandline lock list {self._core.name}/{self._at.name}`, then take it again.",
                )
        return [found[id] for id in change.ids]

    def _acquire(self, change: Change, timeout_s: float) -> BranchRecord:
        return acquire(self._at, change, timeout_s)

    def _commit(self) -> None:
        commit_before_lock(self._core, self._at)

    def end(self, ids: Collection[str]) -> None:
        """Take locks off the record, whatever their state; those that have ended are fine."""
        end_locks(self._at, ids)

    @logged("release lock")
    def release(self, *ids: str, under: Collection[str] = ()) -> None:
        """End locks by their ids, all at one instant.

        Raises:
            LockRejected: one of them has ended, or the whole branch is locked by somebody else.
        """
        if ids:
            change = Change(releases=ids, under=check_ids(under))
            change_locks(self._at, change)

    @logged("release range")
    def release_range(self, what: Ranges, owner: str) -> bool:
        """End the lock of an owner on exactly these ranges; whether there was one. Nothing locked there is fine.

        Raises:
            LockRejected: something else is locked there.
        """
        ranges = as_ranges(what)
        found = lock_rules.exact(self._record(), self._at.name, ranges, owner)
        if found is None:
            return False
        self.release(found.id)
        return True

    @logged("release all locks")
    def release_all(self, owner: str) -> int:
        """End all locks of an owner, one after the other; returns their number. May be repeated after a failure.

        Raises:
            LockRejected: the whole branch is locked by somebody else.
        """
        mine = sorted((one for one in self if one.owner == owner), key=lambda one: not one.is_whole)
        ended = 0
        for one in mine:
            try:
                self.release(one.id)
                ended += 1
            except LockRejected:
                if any(left.id == one.id for left in self):
                    raise
        return ended

    def to_arrow(self) -> pa.Table:
        rows = [(one, part) for one in self for part in one.ranges]
        return pa.table(
            {
                "id": pa.array([one.id for one, _ in rows], pa.string()),
                "start": pa.array([part.start for _, part in rows], pa.string()),
                "end": pa.array([part.end for _, part in rows], pa.string()),
                "owner": pa.array([one.owner for one, _ in rows], pa.string()),
                "description": pa.array([one.description for one, _ in rows], pa.string()),
                "mode": pa.array([one.mode for one, _ in rows], pa.string()),
                "state": pa.array([one.state for one, _ in rows], pa.string()),
                "taken_at": pa.array([one.taken_at for one, _ in rows], pa.timestamp("us", tz="UTC")),
                "transaction": pa.array([one.transaction for one, _ in rows], pa.int64()),
            }
        )

    def _cells(self, row: LockInfo) -> tuple[object, ...]:
        what = "the whole branch" if row.is_whole else told(row.ranges)
        return row.id, what, row.owner, row.mode, row.state, row.taken_at, row.description


def commit_before_lock(core: RepositoryCore, at: BranchAt) -> None:
    """What `on_dirty="commit"` does to the uncommitted changes of a branch."""
    commit_everything(core, at, "Commit what is about to be locked")


def check_ids(some: str | Collection[str]) -> tuple[str, ...]:
    """Ids of locks; one of them may be given as it stands."""
    found = (some,) if isinstance(some, str) else tuple(some) if isinstance(some, Iterable) else (some,)
    if not all(isinstance(id, str) for id in found):
        raise LockInvalid(f"Expected lock ids (strings), got {some!r}.", next="locks.take(…).id is one.")
    return found


def check_wait(timeout_s: float) -> None:
    if not isinstance(timeout_s, int | float) or not 0 <= timeout_s < float("inf"):
        raise LockInvalid(
            f"{timeout_s!r} is not a valid time to wait.", next="Give a number of seconds, 0 for not at all."
        )


def check_mode(mode: str, on_dirty: str) -> None:
    if mode not in MODES:
        raise LockInvalid(f"{mode!r} is not a lock mode.", next=f"Use one of {', '.join(MODES)}.")
    if on_dirty not in DIRTY:
        raise LockInvalid(f"{on_dirty!r} is not a valid on_dirty.", next=f"Use one of {', '.join(DIRTY)}.")


@contextmanager
def after_taking(on_dirty: OnDirty) -> Iterator[None]:
    """What fails in the block fails after a lock was held: uncommitted changes may be gone by now."""
    try:
        yield
    except StrandlineError as error:
        if on_dirty == "fail" or isinstance(error, OutcomeUnknown):
            raise
        done = "discarded" if on_dirty == "discard" else "committed"
        raise OutcomeUnknown(
            error.what,
            safe=f"The lock was held, and uncommitted changes in its ranges were {done}; it is unknown whether the "
            "lock has ended.",
            next=error.next or "Look at `strandline lock list REPOSITORY/BRANCH`, then repeat the call.",
        ) from error


def confirm_owners(core: RepositoryCore, owners: Iterable[str], withdraw: Callable[[], None]) -> None:
    """Look again whether owners are registered, now that their locks are on record; see `LockOwners.remove`.

    If an owner is being removed, wait for the outcome: the removal is cancelled when any of its locks is found.
    """
    try:
        for name in owners:
            waiting_for_owner(core, name)
    except StrandlineError:
        withdraw()
        raise


def _info(lock: LockRecord, record: BranchRecord, ranges: tuple[Range, ...]) -> LockInfo:
    return LockInfo(
        id=lock.id,
        owner=lock.owner,
        description=lock.description,
        mode=lock.mode,
        state=lock.state,
        ranges=ranges,
        taken_at_us=lock.taken_at,
        is_whole=lock is record.whole,
        transaction=lock.transaction or None,
    )
