"""The writers and transactions of a branch as their operators see them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import msgspec
import pyarrow as pa

from strandline.arguments import checked
from strandline.blob import BlobNotFound
from strandline.branch import transactions
from strandline.branch.rules import writers
from strandline.branch.rules.record import BranchRecord, WriterRecord
from strandline.branch.transactions import State, TransactionRecord, Who
from strandline.clock import Microseconds, from_us
from strandline.core.of_branch import OfBranch
from strandline.core.physical import transaction_folder, transaction_prefix
from strandline.core.texts import check_text
from strandline.errors import Contention, Fenced, NotFound
from strandline.operations import logged
from strandline.repository.transactions.transaction import Transaction, resume
from strandline.results.rows import Results

QUIET_POLL_S = 1.0
RECOVER_LOOKS = 20
"""How often a manifest may vanish before it was read, until `recover` gives up."""


class WriterInfo(msgspec.Struct, frozen=True):
    """A writer of a branch.

    Attributes:
        open: its open transaction, or None.
        committed: the last transaction that was published, or None.
        commit: that published it, or "".
        position: how far the last published one said that its source is consumed: what lies before may be dropped.
        node: where alone it may run; "" is anywhere.
    """

    name: str
    open: int | None
    committed: int | None
    commit: str
    position: str | None
    node: str


class TransactionInfo(msgspec.Struct, frozen=True):
    """A transaction of a branch, in the state that its branch gives it."""

    id: int
    writer: str
    state: State
    begun_at_us: Microseconds
    node: str
    process: str
    commit: str
    message: str

    @property
    def begun_at(self) -> datetime:
        """When the transaction began, in UTC."""
        return from_us(self.begun_at_us)


@checked()
class Writers(OfBranch, Results[WriterInfo]):
    """The writers of a branch, by name."""

    _titles = ("writer", "open", "committed", "commit", "position", "node")

    def __iter__(self) -> Iterator[WriterInfo]:
        held = self._at.read().branch.writers
        return (_writer_info(name, held[name]) for name in sorted(held))

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._find(name) != WriterRecord()

    def _find(self, name: str) -> WriterRecord:
        """On the branch record, or else as it was when it was forgotten: first the one, then the other."""
        held = self._at.read().branch.writers.get(name)
        return held or transactions.remembered(self._at.stores, self._at.branch_id, name)

    def __getitem__(self, name: str) -> WriterInfo:
        """A writer, also one that was forgotten because too many others have begun since.

        Raises:
            NotFound: none of that name ever began.
        """
        held = self._find(name)
        if held == WriterRecord():
            raise NotFound(f"Branch {self._at.name!r} has no writer {name!r}.", next="`strandline tx writers`.")
        return _writer_info(name, held)

    @logged("assign writer")
    def assign(self, name: str, node: str) -> None:
        """Let only one node begin and commit under a name; "" lets anyone."""
        writers.check_writer_name(name)
        check_text(node, "A node's name")
        transactions.assign(self._at, name, node)

    @logged("retire writer")
    def retire(self, name: str, *, quiet_s: float = 0.0, revoke: Callable[[], object] | None = None) -> None:
        """Take a writer out of service: it can begin no more, its open transaction is doomed and acknowledged.

        Args:
            quiet_s: acknowledge only when nothing new has appeared below its prefix for this many seconds.
            revoke: called when it is doomed: takes its credentials away, where the store can.
        """
        found = self[writers.check_writer_name(name)]
        self.assign(name, writers.RETIRED)
        if found.open is not None:
            Transactions(self._core, self._at).abort(found.open)
            if revoke is not None:
                revoke()
            Transactions(self._core, self._at).acknowledge(found.open, quiet_s=quiet_s)
        elif revoke is not None:
            revoke()

    def to_arrow(self) -> pa.Table:
        return _arrow(list(self), WriterInfo, {"open": pa.int64(), "committed": pa.int64()})

    def _cells(self, row: WriterInfo) -> tuple[object, ...]:
        return row.name, row.open, row.committed, row.commit[:12], row.position, row.node


@checked()
class Transactions(OfBranch, Results[TransactionInfo]):
    """The transactions on record of a branch, oldest first."""

    _titles = ("id", "writer", "state", "begun", "node", "commit", "message")

    def __iter__(self) -> Iterator[TransactionInfo]:
        found = [record for _, record in transactions.records_of(self._at.stores, self._at.branch_id)]
        branch = self._at.read().branch  # read last: it may know better, and never less
        return (_transaction_info(record, branch) for record in found)

    def __getitem__(self, id: int) -> TransactionInfo:
        return _transaction_info(self._find(id), self._at.read().branch)

    def _find(self, id: int) -> TransactionRecord:
        _, record = transactions.find_record(self._at.stores, self._at.branch_id, id)
        if record is None:
            raise NotFound(
                f"Branch {self._at.name!r} has no transaction {id} on record.",
                next=f"`strandline tx list REPOSITORY/{self._at.name}` shows those that are.",
            )
        return record

    @logged("abort transaction")
    def abort(self, id: int) -> None:
        """Doom a transaction of any process: its commit will be refused.

        Raises:
            TransactionClosed: it was published.
        """
        record = self._find(id)
        who = Who(record.writer, record.node, record.process)
        transactions.abort(self._at, who, id)
        if (
            transactions.effective_state(self._at.read().branch, self._find(id)) == "rejected-pending"
            and record.state == "open"
        ):
            transactions.advance(self._core.stores, record, "rejected-pending")

    @logged("acknowledge transaction")
    def acknowledge(self, id: int, *, quiet_s: float = 0.0) -> None:
        """Note that nobody writes in a rejected transaction any more, so that what it left may be collected.

        Its own driver does so when its commit is refused. An operator does it for one that is dead, best after its
        credentials were revoked; what still comes later is found by a second sweep.

        Args:
            quiet_s: wait until nothing new has appeared below its prefix for this many seconds.
        """
        record = self._find(id)
        self._wait_until_quiet(id, quiet_s)
        transactions.acknowledge(self._at, record.writer, id)

    def _wait_until_quiet(self, id: int, quiet_s: float) -> None:
        if quiet_s <= 0:
            return
        core = self._core
        clock, blobs = core.stores.clock, core.resolver.namespace
        prefix = transaction_prefix(self._at.branch_id, id)
        before = {blob.key for blob in blobs.list(prefix)}
        waited = 0.0
        while waited < quiet_s:
            step = min(QUIET_POLL_S, quiet_s - waited)
            clock.sleep(step)
            waited += step
            now = {blob.key for blob in blobs.list(prefix)}
            if now - before:
                before, waited = now, 0.0

    @logged("recover transaction")
    def recover(self, id: int) -> TransactionInfo:
        """Find out what became of a transaction whose process died, and bring it to an end.

        One that was published is noted as such; one that was doomed is acknowledged. One that is still open had asked
        to commit if it has a manifest: then it is published from it, on the same terms. Else it is aborted.

        Raises:
            Conflict: it had asked to commit, and what it overwrote has changed since. It stays open.
            Contention: its driver lives, and goes on asking to commit and being refused.
        """
        for _ in range(RECOVER_LOOKS):
            if (found := self._recovered(id)) is not None:
                return found
        raise Contention(
            f"Transaction {id} on branch {self._at.name!r} is being committed by its own driver, again and again.",
            next="Stop the driver, or abort the transaction: `strandline tx abort`.",
        )

    def _recovered(self, id: int) -> TransactionInfo | None:
        """What became of it, or None if that has to be asked again."""
        core = self._core
        record = self._find(id)
        try:
            done = transactions.granted(self._at, record.writer, id)
        except Fenced:
            self.acknowledge(id)
            return self[id]
        if done is not None:
            held = self._at.read().branch.writers.get(record.writer)
            if held is not None and held.committed == id:
                transactions.settle(core.stores, self._at.branch_id, record.writer, held)
            return self[id]
        try:
            manifest = self._manifest(id)
        except BlobNotFound:
            return None  # its driver lives: a commit that is refused takes its manifest away
        if manifest is None:
            self.abort(id)
            self.acknowledge(id)
        else:
            manifest.commit()
            core.transactions.pop((self._at.branch_id, record.writer), None)
        return self[id]

    def _manifest(self, id: int) -> Transaction | None:
        blobs = self._core.resolver.namespace
        folder = transaction_folder(self._at.branch_id, id)
        found = sorted(
            (blob for blob in blobs.list(folder) if blob.key[len(folder) :].startswith("manifest-")),
            key=lambda blob: blob.modified_at_us,
        )
        if not found:
            return None
        resumed = resume(self._core, self._at, blobs.get(found[-1].key), found[-1].key)
        return resumed if resumed.is_asked_for else None

    def to_arrow(self) -> pa.Table:
        return _arrow(list(self), TransactionInfo, {"id": pa.int64(), "begun_at_us": pa.int64()})

    def _cells(self, row: TransactionInfo) -> tuple[object, ...]:
        return row.id, row.writer, row.state, row.begun_at, row.node, row.commit[:12], row.message


def _writer_info(name: str, held: WriterRecord) -> WriterInfo:
    return WriterInfo(
        name=name,
        open=held.started if held.is_open else None,
        committed=held.committed or None,
        commit=held.commit,
        position=held.position or None,
        node=held.node,
    )


def _transaction_info(record: TransactionRecord, branch: BranchRecord) -> TransactionInfo:
    held = branch.writers.get(record.writer)
    is_last = held is not None and held.committed == record.id
    return TransactionInfo(
        id=record.id,
        writer=record.writer,
        state=transactions.effective_state(branch, record),
        begun_at_us=record.begun_at,
        node=record.node,
        process=record.process,
        commit=held.commit if is_last and held is not None else record.commit,
        message=record.message,
    )


def _arrow(rows: list[Any], kind: type[msgspec.Struct], types: dict[str, pa.DataType]) -> pa.Table:
    return pa.table(
        {
            name: pa.array([getattr(row, name) for row in rows], types.get(name, pa.string()))
            for name in kind.__struct_fields__
        }
    )
