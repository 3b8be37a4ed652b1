"""A lock on all branches of a repository, present and future ("locked database")."""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType
from typing import Self

from msgspec.structs import replace

from strandline.arguments import checked
from strandline.branch.attempts import update
from strandline.branch.locking import Change, OnDirty, acquire
from strandline.branch.rules.lock_rules import Request, inherit, without_locks
from strandline.branch.rules.ranges import ALL
from strandline.branch.rules.record import BranchRecord, LockMode, LockRecord
from strandline.core.record import RepositoryRecord
from strandline.core.repository_core import RepositoryCore
from strandline.errors import Advice, LockLost, LockRejected, RefNotFound, StrandlineError
from strandline.ids import new_id
from strandline.operations import logged
from strandline.repository.locks.locks import check_mode, commit_before_lock
from strandline.repository.locks.owners import find_owner
from strandline.repository.names.branches import BEING_MADE, list_names, repository_record, with_rules
from strandline.repository.names.settings import swap_record


@checked()
class RepositoryLock:
    """Nobody changes any branch, but transactions that name this lock: `branch.transaction(…, locks=lock.id)`.

    Locks on ranges keep their records and rest; only a caller that names this lock can take or release any. Branches
    that are made meanwhile are under it from the beginning. Used with `with`, it is released at the end of the block.
    """

    def __init__(self, core: RepositoryCore, owner: str, mode: LockMode, timeout_s: float, on_dirty: OnDirty) -> None:
        check_mode(mode, on_dirty)
        self._core = core
        self._owner = owner
        self._mode: LockMode = mode
        self._timeout_s = timeout_s
        self._on_dirty: OnDirty = on_dirty
        self.id = new_id()

    @property
    def place(self) -> str:
        """The repository, for messages."""
        return self._core.name

    @logged("lock repository")
    def take(self) -> Self:
        """Take it: first for all branches to come, then branch by branch.

        Invariant: the repository says so before the branches are listed. A branch that is made meanwhile is locked
        until it has read what the repository says. If it read that before, it is listed here, and this lock takes the
        place of that one before it ends.

        Raises:
            LockRejected: somebody else holds one, of the repository or of a whole branch. Nothing stays locked.
        """
        owner = find_owner(self._core, self._owner)
        lock = LockRecord(
            id=self.id,
            owner=owner.name,
            description=owner.description,
            mode=self._mode,
            state="pending",
            ranges=(ALL,),
            taken_at=self._core.stores.clock.now_us(),
            of_repository=True,
        )

        def flag(record: RepositoryRecord) -> RepositoryRecord:
            held = record.lock
            if held is not None:
                raise LockRejected(
                    f"Repository {record.name!r} is locked by {held.owner!r} ({held.description}), lock {held.id}.",
                    next=Advice(
                        "Wait until it is released, or end it: repository.unlock().",
                        command="Wait until it is released, or end it: `strandline lock release-repo`.",
                    ),
                )
            return replace(record, lock=lock)

        def end(record: RepositoryRecord) -> RepositoryRecord:
            if record.lock is None or record.lock.id != self.id:
                raise LockLost(
                    f"Lock {self.id} on repository {record.name!r} was released from elsewhere before it was held.",
                    next="Look at repository.current_lock, then take it again.",
                )
            return replace(record, lock=replace(lock, state="held"))

        try:
            swap_record(self._core, flag)
        except LockRejected:
            raise  # nothing is on record
        except StrandlineError:
            with suppress(StrandlineError):
                self.release()
            raise
        try:
            while left := self._free():
                for name in left:
                    with suppress(RefNotFound):  # deleted meanwhile
                        self._take_branch(name, lock)
            find_owner(self._core, self._owner)
            swap_record(self._core, end)
        except BaseException:
            with suppress(StrandlineError):
                self.release()
                end_on_branches(self._core, self.id)  # others may have ended it on the repository alone
            raise
        return self

    def _branches(self) -> list[tuple[str, BranchRecord]]:
        listed = list_names(self._core, "branch")
        return [(name, record) for name, record in listed if isinstance(record, BranchRecord)]

    def _free(self) -> list[str]:
        """The branches that are not under the lock yet."""
        return [
            name
            for name, record in self._branches()
            if record.whole is None or record.whole.id != self.id or record.whole.state != "held"
        ]

    def _take_branch(self, name: str, lock: LockRecord) -> None:
        def take_over(record: BranchRecord) -> BranchRecord:
            is_new = record.whole is not None and record.whole.id.startswith(BEING_MADE)
            if not is_new:
                return record
            # the rules as well, read after the branch: its maker, if it lives, finds it made and leaves it alone
            return inherit(with_rules(repository_record(self._core)[1], name, record), lock)

        seen = self._core.cell(name).read().branch
        if take_over(seen) != seen:
            update(self._core.at(name, seen.branch_id), take_over)
            return
        request = Request(
            id=self.id,
            owner=self._owner,
            description=lock.description,
            mode=self._mode,
            ranges=(ALL,),
            is_whole=True,
            of_repository=True,
        )
        at = self._core.at(name, seen.branch_id)
        change = Change([request], on_dirty=self._on_dirty, commit=lambda: commit_before_lock(self._core, at))
        acquire(at, change, self._timeout_s)

    @logged("release repository")
    def release(self) -> None:
        """Release it, first for branches that are made later. Idempotent."""
        release_repository(self._core, self.id)

    def __enter__(self) -> Self:
        return self.take()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def release_repository(core: RepositoryCore, id: str | None = None) -> bool:
    """Release the repository's lock: the one with this id, or any if id is None.

    Finishes a release that was interrupted. Returns: whether there was a lock.

    Branches that are made from the first swap on are free; the lock leaves the repository's record when all are.
    """
    held = repository_record(core)[1].lock
    if held is None or (id is not None and held.id != id):
        return False

    def releasing(record: RepositoryRecord) -> RepositoryRecord:
        is_mine = record.lock is not None and record.lock.id == held.id
        return replace(record, lock=replace(held, state="releasing")) if is_mine else record

    def gone(record: RepositoryRecord) -> RepositoryRecord:
        return replace(record, lock=None) if record.lock is not None and record.lock.id == held.id else record

    swap_record(core, releasing)
    end_on_branches(core, held.id)
    swap_record(core, gone)
    return True


def end_on_branches(core: RepositoryCore, id: str) -> None:
    """Take the lock of a repository off the branches that have it.

    A branch that is being made is swapped as well: its maker, who may have read the lock before it ended, looks again.
    """
    for name, record in list_names(core, "branch"):
        if not isinstance(record, BranchRecord) or record.whole is None:
            continue
        if record.whole.id == id or record.whole.id.startswith(BEING_MADE):
            with suppress(RefNotFound):
                update(core.at(name, record.branch_id), lambda seen: without_locks(seen, [id]))
