"""`branch.join(…)`: work in a shared transaction that another process has begun, and will publish."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self

from strandline.arguments import checked
from strandline.branch import shared_changes, transactions
from strandline.branch.at import BranchAt
from strandline.branch.rules import writers
from strandline.branch.rules.record import WriterRecord
from strandline.branch.transactions import TransactionRecord
from strandline.core.repository_core import RepositoryCore
from strandline.errors import Fenced, NotAllowed, RefNotFound, RequirementFailed, TransactionClosed
from strandline.ids import CommitId
from strandline.repository.refs.expressions import Target
from strandline.repository.refs.ref import Ref
from strandline.repository.transactions.options import TransactionOptions
from strandline.repository.transactions.transaction import Transaction, TransactionResult


@checked()
class JoinedTransaction(Transaction):
    """A transaction of another process, which alone commits or aborts it.

    What is written here is in the transaction when the call returns, and shows to all who work in it. Once it is
    published, this shows what was published.
    """

    _is_publisher = False

    def __init__(self, core: RepositoryCore, at: BranchAt, record: TransactionRecord) -> None:
        options = TransactionOptions(
            writer=record.writer,
            message=record.message or f"Transaction of {record.writer}",
            node=record.node,
            token=record.token,
            shared=True,
        )
        super().__init__(core, at, options, CommitId(record.base))
        self._entered(record.id, CommitId(record.base))
        self._follow_shared()

    @property
    def position(self) -> str | None:
        """Of the job, which only its own process knows: None."""
        return None

    @position.setter
    def position(self, value: str | None) -> None:
        if value is not None:
            raise self._not_mine("given its position")

    def look(self) -> None:
        """Find out whether it is open still, or was published.

        Raises:
            Fenced: neither: nothing of it is ever published.
        """
        with self._lock:
            if self.phase == "committed" or (self.phase == "open" and self.is_open()):
                return
            try:
                done = transactions.granted(self._at, self.writer, self.id)
            except Fenced:
                self.phase = "fenced"
                raise
            if done is not None:
                self.phase = "committed"
                self._start_over(Ref(self._core, self.name, Target("commit", done, self.name, self.branch_id)))
                self.results.append(TransactionResult(id=self.id, writer=self.writer, commit=done))

    def _refresh(self) -> None:
        try:
            super()._refresh()
        except TransactionClosed:
            self.look()
            if self.phase != "committed":
                raise

    def _refuse_early(self, path: str | None = None) -> None:
        self.look()
        super()._refuse_early(path)

    def _refuse_closed(self) -> None:
        if self.phase == "fenced":
            self.look()
        super()._refuse_closed()

    def _fence(self) -> None:
        self.phase = "fenced"  # that nobody writes any more in it, its own process says

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """What was written stays in the transaction, whatever happens here."""

    def begin(self) -> NoReturn:
        raise self._not_mine("begun")

    def commit(self, *, position: str | None = None) -> NoReturn:
        raise self._not_mine("committed")

    def abort(self) -> NoReturn:
        raise self._not_mine("aborted")

    def require(self, condition: object, why: str) -> None:
        """As in its own process, but that process has to abort: this only raises.

        Raises:
            RequirementFailed: it does not hold.
        """
        if condition or self.is_repeat:
            return
        raise RequirementFailed(
            f"What transaction {self.id} of {self.writer!r} needs does not hold: {why}.",
            safe="The transaction is still open, and is published if its own process commits.",
            next="Let the process that began it abort it, or run `strandline tx abort`.",
        )

    def save(self, path: str | Path) -> NoReturn:
        raise self._not_mine("saved")

    def _not_mine(self, verb: str) -> NotAllowed:
        return NotAllowed(
            f"Transaction {self.id} of {self.writer!r} is {verb} by the process that began it, not here.",
            next="Let that process do it. If it has died, `strandline tx abort` ends the transaction.",
        )


def join(core: RepositoryCore, at: BranchAt, writer: str, id: int | None) -> JoinedTransaction:
    """Join a transaction of a writer: the one that is open, or else the last that was published; or one by its id.

    Raises:
        RefNotFound: the writer has no such transaction, or it is not shared.
        Fenced: it was replaced or aborted.
    """
    writers.check_writer_name(writer)
    name = repr(writer[:80])
    id = newest_id(at, writer) if id is None else id
    _, record = transactions.find_record(at.stores, at.branch_id, id)
    if record is None or record.writer != writer or not record.base:
        raise RefNotFound(
            f"Branch {at.name!r} has no transaction {id} of {name}.", next="`strandline tx list` shows those it has."
        )
    joined = JoinedTransaction(core, at, record)
    joined.look()
    if joined.phase == "open" and not shared_changes.is_shared(at.stores, at.branch_id, id):
        joined.look()  # it may have ended meanwhile
        if joined.phase == "open":
            raise RefNotFound(
                f"Transaction {id} of {name} is not shared: its changes are known to its own process alone.",
                next="Begin it with branch.transaction(…, shared=True).",
            )
    return joined


def newest_id(at: BranchAt, writer: str) -> int:
    """The id of a writer's open transaction, or else of the last one that was published; raises `RefNotFound`."""
    held = at.read(shared=True).branch.writers.get(writer) or transactions.remembered(at.stores, at.branch_id, writer)
    if held == WriterRecord():
        raise RefNotFound(
            f"Branch {at.name!r} has no transaction of {writer[:80]!r} that is open or published.",
            next="`strandline tx list` shows those it has.",
        )
    return held.started if held.is_open else held.committed
