"""`branch.lock(…)`: a transaction that holds a lock, and ends it in the swap that publishes what was done under it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

from strandline.arguments import checked
from strandline.branch import transactions
from strandline.branch.at import BranchAt
from strandline.branch.locking import Change, OnDirty, acquire, end_locks
from strandline.branch.rules.lock_rules import Request
from strandline.branch.rules.ranges import ALL, Range, as_ranges, told
from strandline.branch.rules.record import LockMode
from strandline.branch.transactions import TransactionRecord
from strandline.core.repository_core import RepositoryCore
from strandline.errors import LockInvalid, StrandlineError, UsageError
from strandline.ids import CommitId, new_id
from strandline.operations import logged
from strandline.repository.locks.locks import (
    LockInfo,
    Locks,
    Ranges,
    after_taking,
    check_mode,
    check_wait,
    commit_before_lock,
    confirm_owners,
)
from strandline.repository.locks.owners import find_owner
from strandline.repository.refs.expressions import Target
from strandline.repository.refs.ref import Ref
from strandline.repository.transactions.claims import Step
from strandline.repository.transactions.options import TransactionOptions
from strandline.repository.transactions.transaction import Transaction
from strandline.tree.rows import Entry, check_staged


@dataclass(frozen=True, slots=True)
class LockOptions:
    """The arguments of `branch.lock(…)`, which says what each of them is for."""

    owner: str
    mode: LockMode = "exclusive"
    timeout_s: float = 0.0
    on_dirty: OnDirty = "fail"
    message: str | None = None
    writer: str | None = None
    token: str = ""
    metadata: Mapping[str, str] | None = None


@checked()
class LockedTransaction(Transaction):
    """Ranges of a branch that nobody else can change, and the one handle through which they are.

    What is done through it is private until the `with` block ends: then it lands in one swap, and in the same swap the
    lock ends. If the block raises, nothing lands, and the lock ends too. It also ends when the transaction is doomed
    from elsewhere, so nobody has to wait for a dead holder: its successor, or an operator, aborts the transaction.
    """

    def __init__(
        self, core: RepositoryCore, at: BranchAt, what: Ranges | None, options: LockOptions, base: CommitId
    ) -> None:
        check_mode(options.mode, options.on_dirty)
        check_wait(options.timeout_s)
        self._ranges = (ALL,) if what is None else as_ranges(what)
        self._is_whole = what is None
        self._lock_options = options
        self.lock_id = new_id()
        self._instead_of: tuple[str, ...] = ()
        """Ids of locks that end in the swap in which this one becomes held."""
        by = f"Change {told(self._ranges)} under a lock of {options.owner}"
        message = options.message if options.message is not None else by
        writer = options.writer or f"lock {self.lock_id}"
        mine = TransactionOptions(writer=writer, message=message, token=options.token, metadata=options.metadata)
        super().__init__(core, at, mine, base)

    @property
    def ranges(self) -> tuple[Range, ...]:
        """The ranges that are locked."""
        return self._ranges

    @property
    def metadata(self) -> Mapping[str, str]:
        """What its commit will carry."""
        return self._draft.metadata

    @property
    def mode(self) -> LockMode:
        """What the lock lets others do: `exclusive`, `shared` or `quarantine`."""
        return self._lock_options.mode

    @property
    def lock(self) -> LockInfo:
        """The lock as it is on record.

        Raises:
            LockRejected: it has ended.
        """
        return Locks(self._core, self._at)[self.lock_id]

    @logged("lock")
    def begin(self) -> Self:
        """Take the lock; what the branch holds then is what is read through this.

        Raises:
            LockInvalid, LockRejected, LockTimeout, UncommittedChanges: as for `branch.locks.take`.
        """
        find_owner(self._core, self._lock_options.owner)
        with self._lock:
            super().begin()
            if self.is_repeat:
                return self
            try:
                self._take(self._ranges, self._lock_options.timeout_s, self._lock_options.on_dirty)
                with after_taking(self._lock_options.on_dirty):
                    self._follow()
            except BaseException:
                with suppress(StrandlineError):
                    self.abort()
                raise
            self._locks = self._ends = (self.lock_id,)
            return self

    def _go_on(self, lock_id: str, id: int, base: CommitId) -> None:
        """Go on with an open transaction, and the lock that it holds, of a process that has died."""
        with self._lock:
            self.lock_id = lock_id
            self._locks = self._ends = (lock_id,)
            self._opened(id, base)

    def _adopt(self, entries: Sequence[tuple[str, Entry]]) -> None:
        """Add objects whose bytes are kept: this transaction wrote them, or a link to them was announced."""
        with self._lock:
            prefix = self.data_prefix
            values = check_staged([entry for _, entry in entries])
            self._add_kept(dict(zip([path.encode() for path, _ in entries], values, strict=True)))
            own = [entry for _, entry in entries if entry.physical_address.startswith(prefix)]
            self._wrote(len(own), None, sum(entry.size for entry in own))

    def _take(self, ranges: tuple[Range, ...], timeout_s: float, on_dirty: OnDirty, *, extends: bool = False) -> None:
        request = Request(
            id=self.lock_id,
            owner=self._lock_options.owner,
            description=find_owner(self._core, self._lock_options.owner).description,
            mode=self._lock_options.mode,
            ranges=ranges,
            writer=self.writer,
            transaction=self.id,
            is_whole=self._is_whole,
            extends=extends,
        )
        releases = () if extends else self._instead_of
        change = Change([request], releases, on_dirty, lambda: commit_before_lock(self._core, self._at))
        acquire(self._at, change, timeout_s)
        with after_taking(on_dirty):
            confirm_owners(self._core, [] if extends else [self._lock_options.owner], self._let_go)

    def _follow(self) -> None:
        """Read the head as it is now; written down first, so that nobody collects it."""
        head = self._at.read().branch.head
        known = TransactionRecord(id=self.id, writer=self.writer, branch_id=self.branch_id)
        transactions.rebase(self._core.stores, known, head)
        self._target = Target("commit", head, self.name, self.branch_id)
        self._beneath = Ref(self._core, self.name, self._target)

    @logged("extend lock")
    def extend(self, what: Ranges, *, timeout_s: float = 0.0, on_dirty: OnDirty = "fail") -> None:
        """Cover more. What was read of the new ranges before may have been changed by others since.

        Raises:
            LockRejected: others are in the way; the lock stays as it was.
        """
        self._refuse_closed()
        if self._is_whole:
            raise LockInvalid("A lock on the whole branch covers everything already.")
        more = as_ranges(what)
        check_wait(timeout_s)
        self._take(more, timeout_s, on_dirty, extends=True)
        self._ranges = as_ranges([*self._ranges, *more])
        with self._lock:
            if self._claims.is_empty:
                self._follow()

    def _let_go(self) -> None:
        """Take the lock off the record; it counts for nothing once the transaction has ended, so this only tidies."""
        with suppress(StrandlineError):
            end_locks(self._at, [self.lock_id])

    def _check(self, step: Step) -> None:
        super()._check(step)
        if self._lock_options.mode == "shared":
            raise UsageError(
                "Nobody, including its holders, can change a range under a shared lock.", next="Take an exclusive lock."
            )

    def abort(self) -> None:
        """Give up: nothing lands, and the lock ends."""
        super().abort()
        self._let_go()
