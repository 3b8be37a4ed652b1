"""`branch.transaction(…)`: everything a job writes becomes visible in one swap, or nothing of it ever does."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Literal, NoReturn, Self

import msgspec

from strandline.arguments import checked
from strandline.branch import shared_changes, transactions
from strandline.branch.at import BranchAt
from strandline.branch.locking import waiting_for_locks
from strandline.branch.rules import writers
from strandline.branch.rules.lock_rules import refuse_unheld
from strandline.branch.transactions import Publication, Repeat
from strandline.core.manifest import (
    Facts,
    decode_manifest,
    digest_of,
    encode_manifest,
    sorted_changes,
)
from strandline.core.physical import (
    physical_suffix,
)
from strandline.core.repository_core import RepositoryCore
from strandline.core.texts import check_entries, check_metadata
from strandline.errors import (
    Conflict,
    Fenced,
    NotAllowed,
    ObjectMissing,
    RangeLocked,
    RequirementFailed,
    StrandlineError,
    TransactionClosed,
    UsageError,
)
from strandline.ids import CommitId, new_id
from strandline.operations import logged
from strandline.repository.objects.writable import distinct_keys
from strandline.repository.refs.exporting import check_local
from strandline.repository.refs.expressions import Target
from strandline.repository.refs.ref import Ref
from strandline.repository.transactions.claims import Guard, Step
from strandline.repository.transactions.options import TransactionOptions
from strandline.repository.transactions.publishing import NEVER
from strandline.repository.transactions.sharing import Sharing
from strandline.results.rows import ObjectInfo, as_info
from strandline.tree.rows import Entry, check_staged, decode_many

Phase = Literal["new", "open", "repeat", "committed", "aborted", "fenced"]


class TransactionResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a transaction did.

    Attributes:
        commit: that made it visible.
        files, bytes, rows: that this process wrote, not those of others that have joined; rows is None if some were not
            counted.
        changes: paths that were added, replaced or deleted.
        leftovers: files that it wrote and that nothing refers to; they are on its deadlist.
        seconds: from begin to the end of commit; `publish_seconds` of it were commit's.
        is_repeat: an earlier run with the same token had published it; this one did nothing.
    """

    id: int
    writer: str
    commit: str
    files: int = 0
    bytes: int = 0
    rows: int | None = 0
    changes: int = 0
    leftovers: int = 0
    seconds: float = 0.0
    publish_seconds: float = 0.0
    position: str | None = None
    is_repeat: bool = False


@checked()
class Transaction(Sharing):
    """What a branch was when the transaction was begun, with the transaction's own writes over it.

    Nobody else sees them before `commit`, which makes all of them visible in one swap. Safe to share between threads.
    Used with `with`, it commits at the end of the block, and aborts if the block raises.
    """

    def __init__(self, core: RepositoryCore, at: BranchAt, options: TransactionOptions, base: CommitId) -> None:
        super().__init__(core, at, options, base)
        self.phase: Phase = "new"
        self.results: list[TransactionResult] = []
        self._locks = options.locks
        self._ends: tuple[str, ...] = ()
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._claims.unchanged = self._expect_unchanged
        self._started = time.monotonic()
        self._begun_at = self._core.stores.clock.now_us()

    def __repr__(self) -> str:
        number = "" if self.id == NEVER else f" {self.id}"
        return f"<Transaction{number} of {self.writer!r} on {self.place}: {self.phase}>"

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            "A transaction is not sent to other processes: executors need only the paths they write to.",
            next="Begin it in the driver, and let Spark write through tx.table(…).write(…).",
        )

    @property
    def commit_id(self) -> CommitId:
        """The head of the branch when the transaction was begun: what it reads beneath its own writes."""
        return self._target.commit

    @property
    def result(self) -> TransactionResult:
        """What the transaction did; of one that commits by volume, what its last commit did.

        Raises:
            TransactionClosed: it has not committed.
        """
        if not self.results:
            raise TransactionClosed(f"{self!r} has no result: it has not committed.", next="Call commit() first.")
        return self.results[-1]

    @property
    def is_repeat(self) -> bool:
        """Whether an earlier run with the same token was published: this one writes nothing, and commits nothing."""
        return self.phase == "repeat"

    # --- its life -----------------------------------------------------------------------------------------------------

    @logged("begin")
    def begin(self) -> Self:
        """Begin; every earlier open transaction of this writer is doomed from now on.

        Raises:
            NotAssigned: the writer's name is assigned to another node.
            BranchProtected: the branch is protected, and its protection does not name the writer.
            UsageError: this process has an open transaction of this writer already, whose commit was not refused.
        """
        with self._lock:
            if self.phase != "new":
                raise TransactionClosed(f"{self!r} was begun before.", next="Make another with branch.transaction(…).")
            self._refuse_twice()
            if self._locks:
                refuse_unheld(self._at.read().branch, self.name, self._locks)
            begun = transactions.begin(self._at, self._who, self._options.token, self._draft.message)
            if isinstance(begun, Repeat):
                self._repeats(begun)
                return self
            self._opened(begun.id, CommitId(begun.base))
            if self._options.shared:
                try:
                    shared_changes.share(self._core.stores, self.branch_id, self.id)
                except BaseException:
                    # others may join it already, and what they add this object would not publish
                    self._forsake()
                    raise
                self._follow_shared()
            return self

    def _forsake(self) -> None:
        """Leave a transaction that is begun in part; if the store does not answer, its successor dooms it."""
        self.phase = "new"
        self._core.transactions.pop((self.branch_id, self.writer), None)
        with suppress(StrandlineError):
            transactions.abort(self._at, self._who, self.id)
            transactions.acknowledge(self._at, self.writer, self.id)

    def _opened(self, id: int, base: CommitId) -> None:
        self._entered(id, base)
        self._core.transactions[self.branch_id, self.writer] = self

    def _entered(self, id: int, base: CommitId) -> None:
        self._target = Target("commit", base, self.name, self.branch_id)
        self.id = id
        self._start_over(Ref(self._core, self.name, self._target))
        self._begin_anew()
        self.phase = "open"
        self._was_refused = False

    def _refuse_twice(self) -> None:
        other = self._core.transactions.get((self.branch_id, self.writer))
        # one whose commit was refused may be tried again, or left: beginning another dooms it, here as elsewhere
        if other is not None and other is not self and other.phase == "open" and not other._was_refused:
            raise UsageError(
                f"This process has an open transaction of {self.writer!r} already: {other.id}.",
                next="Commit or abort it first, or take another writer's name.",
            )

    def _repeats(self, done: Repeat) -> None:
        self.id = done.id
        self.phase = "repeat"
        self._target = Target("commit", done.commit, self.name, self.branch_id)
        self._beneath = Ref(self._core, self.name, self._target)
        told = self._core.commits.get(done.commit).metadata
        rows = told.get("strandline.rows", "")
        self.results.append(
            TransactionResult(
                id=done.id,
                writer=self.writer,
                commit=done.commit,
                files=int(told.get("strandline.files", 0)),
                bytes=int(told.get("strandline.bytes", 0)),
                rows=int(rows) if rows else None,
                position=told.get("strandline.position"),
                is_repeat=True,
            )
        )

    def __enter__(self) -> Self:
        return self.begin() if self.phase == "new" else self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            if self.phase in ("open", "repeat"):
                try:
                    self.commit()
                except (Conflict, NotAllowed, RangeLocked):
                    with suppress(StrandlineError):
                        self.abort()  # else nobody would say that it writes no more
                    raise
        elif self.phase == "open":
            try:
                self.abort()
            except StrandlineError as failed:
                assert error is not None
                error.add_note(f"The transaction could not be aborted ({failed}); its successor will doom it.")

    def _refuse_closed(self) -> None:
        if self.phase == "open":
            return
        if self.phase == "fenced":
            raise Fenced(
                f"Transaction {self.id} of {self.writer!r} was fenced: another one took over.",
                safe="Nothing of it was published, and nothing of it ever will be.",
                next="Stop this job; what it wrote will be collected.",
            )
        told = {
            "new": ("was not begun", "Use it with `with`, or call begin()."),
            "committed": ("is committed", "Begin another one."),
            "aborted": ("was aborted", "Begin another one."),
            "repeat": ("repeats one that was published", "There is nothing to do."),
        }[self.phase]
        raise TransactionClosed(f"Transaction {self.id} of {self.writer!r} {told[0]}.", next=told[1])

    def _is_followed(self) -> bool:
        return self.phase == "open"

    def is_open(self) -> bool:
        """Whether it may still be published, asked of the store. False is always safe to believe.

        Deletions that a job does elsewhere because of what it wrote here have to wait for `commit`, not for this.
        """
        if self.phase != "open":
            return False
        try:
            branch = self._at.read().branch
        except StrandlineError:
            return False
        return writers.is_last_started(branch, self.writer, self.id)

    @logged("abort")
    def abort(self) -> None:
        """Give up: nothing of it is ever published. What was written will be collected.

        Raises:
            TransactionClosed: it was published.
        """
        with self._lock:
            if self.phase in ("aborted", "fenced", "repeat", "new"):
                return
            self._refuse_closed()
            transactions.abort(self._at, self._who, self.id)
            self.phase = "aborted"
            self._acknowledge()
            self._end_shared()

    def _acknowledge(self) -> None:
        """Note that this process writes no more in it; if that fails, an operator or `recover` can."""
        try:
            transactions.acknowledge(self._at, self.writer, self.id)
        except StrandlineError:
            return

    def _fence(self) -> None:
        self.phase = "fenced"
        self._acknowledge()
        self._end_shared()

    @logged("publish")
    def commit(self, *, position: str | None = None) -> TransactionResult:
        """Make everything visible at one instant. Calling it again after a lost reply, or a `Conflict`, is fine.

        Args:
            position: how far the job has consumed its source; `branch.writers` shows the last committed one.

        Raises:
            Fenced: another transaction of this writer was begun. Nothing was published; stop the job.
            Conflict: what this transaction overwrites, or expects unchanged, was changed by others since it began.
            UncommittedChanges: others have staged changes in the ranges that it overwrites.
            RangeLocked: somebody else went on to hold a lock on what it changes. Call commit again later.
            StoreUnavailable: nothing was published, or it says that this is unknown; call commit again.
        """
        with self._lock:
            if self.phase in ("repeat", "committed"):
                return self.result
            self._refuse_closed()
            if position is not None:
                self.position = position
            started = time.monotonic()
            self._was_refused = False
            with self._sealed():
                digest = digest_of(self._claims.changes)
                leftovers = self._write_manifest(digest)
            publication = Publication(
                id=self.id,
                who=self._who,
                compute=self._compute,
                in_the_way=self._in_the_way,
                digest=digest,
                position=self.position,
                token=self._options.token,
                is_empty=self._claims.is_empty,
                locks=self._locks,
                ends=self._ends,
            )
            self._may_land = True
            try:
                commit = waiting_for_locks(
                    self._core.stores.clock,
                    self._options.lock_patience_s,
                    lambda: transactions.publish(self._at, publication),
                )
            except (Conflict, NotAllowed, RangeLocked):
                self._drop_manifest(digest)
                self._was_refused = True
                self._may_land = False
                self._unseal()
                raise
            except (Fenced, TransactionClosed):
                self._fence()
                raise
            now = time.monotonic()
            result = TransactionResult(
                id=self.id,
                writer=self.writer,
                commit=commit.id,
                files=self._files,
                bytes=self._bytes,
                rows=self._rows,
                changes=len(self._claims.changes),
                leftovers=leftovers,
                seconds=now - self._started,
                publish_seconds=now - started,
                position=self.position,
            )
            self.results.append(result)
            self.phase = "committed"
            self._end_shared()
            self._core.committed()
            return result

    # --- writing ------------------------------------------------------------------------------------------------------

    def _refuse_early(self, path: str | None = None) -> None:
        self._refuse_closed()
        self._commit_by_volume()
        try:
            branch = self._cell.read(self.branch_id, shared=True).branch
            writers.refuse_publisher(branch, self.writer, self.name)
            writers.refuse_fenced(branch, self.writer, self.id, self._who.node)
        except Fenced:
            self._fence()
            raise

    def _commit_by_volume(self) -> None:
        """Publish what is there and begin the next transaction, if enough has come together."""
        most = self._options.max_uncommitted_bytes
        if most is None or self._bytes < most:
            return
        with self._lock:
            if self._bytes < most or self._under_way:
                return  # another thread has, or is writing: what it writes belongs to this transaction
            self.commit()
            begun = transactions.begin(self._at, self._who, "", self._draft.message)
            assert not isinstance(begun, Repeat)
            self._opened(begun.id, CommitId(begun.base))

    def _new_key(self, path: str) -> str:
        prefix = self.data_prefix
        return f"{prefix}{new_id()}{physical_suffix(path)}"

    def _new_folder(self) -> str:
        return f"{self.data_prefix}sl_write={new_id()}"

    def link(
        self,
        path: str,
        physical_address: str,
        *,
        size: int,
        checksum: str,
        content_type: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> ObjectInfo:
        """Add an object whose bytes this transaction wrote itself, below `data_prefix`.

        Raises:
            UsageError: the address is somewhere else.
        """
        now_us = self._core.stores.clock.now_us()
        entry = Entry(physical_address, size, checksum, now_us, content_type, check_metadata(metadata))
        self.link_many([(path, entry)])
        return as_info(path, entry)

    def link_many(self, entries: Iterable[tuple[str, Entry]]) -> int:
        """Add objects whose bytes this transaction wrote itself; all or none. Returns their number.

        Raises:
            UsageError: an address is not below `data_prefix`, or a path occurs twice.
        """
        listed = list(entries)
        keys = distinct_keys([path for path, _ in listed])
        if self.is_repeat:
            return len(keys)
        self._refuse_closed()
        values = check_staged([entry for _, entry in listed])
        check_entries(listed)
        for _, entry in listed:
            self._refuse_foreign(entry.physical_address)
        self._add(dict(zip(keys, values, strict=True)))
        self._wrote(len(keys), None, sum(entry.size for _, entry in listed))
        return len(keys)

    def _refuse_foreign(self, physical_address: str) -> None:
        prefix = self.data_prefix
        if not physical_address.startswith(prefix) or any(
            part in ("", ".", "..") for part in physical_address.split("/")
        ):
            raise UsageError(
                f"{physical_address!r} is not below this transaction's own prefix, {prefix!r}.",
                next="Write the bytes there, or bring them in with put.",
            )

    def _check(self, step: Step) -> None:
        if step.is_kept:
            return
        prefix = self.data_prefix
        for entry in decode_many(list(step.changes.values())):
            if entry is not None and not entry.physical_address.startswith(prefix):
                raise TransactionClosed(
                    f"{entry.physical_address!r} was written for another transaction, which has ended.",
                    next="Write it again.",
                )

    def require(self, condition: object, why: str) -> None:
        """Demand something of what was written; if it does not hold, abort.

        Raises:
            RequirementFailed: it does not.
        """
        if condition or self.is_repeat:
            return
        self._refuse_closed()
        self.abort()
        raise RequirementFailed(
            f"Transaction {self.id} of {self.writer!r} was aborted: {why}.",
            safe="Nothing of it was published.",
            next="Mend the job, then run it again.",
        )

    def _compared(self) -> CommitId:
        if self.phase == "open":
            raise UsageError(
                f"{self!r} is not published: a diff compares commits, and would show nothing of it.",
                next="Take the diff after its commit, or read in the transaction what it holds.",
            )
        return CommitId(self.result.commit) if self.phase == "committed" else super()._compared()

    def _missing(self, info: ObjectInfo) -> ObjectMissing:
        error = super()._missing(info)
        self.refuse_doomed(error)
        return error

    def refuse_doomed(self, error: Exception) -> None:
        """A transaction that was rejected may find its files collected, which is not reported as damage."""
        if self.phase != "open" or self.is_open():
            return
        try:
            transactions.granted(self._at, self.writer, self.id)
        except Fenced as fenced:
            self._fence()
            raise fenced from error

    # --- resuming -----------------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Keep the open transaction in a local file, from which a restarted driver goes on: `branch.resume(path)`.

        Safe because no key is used twice: each write of the resumed driver goes to names of its own.
        """
        with self._lock:
            body = self._saved()
            target = check_local(path)
            partial = target.with_name(f".{target.name}.part")
            try:
                with partial.open("wb") as file:
                    file.write(body)
                    file.flush()
                    os.fsync(file.fileno())
                partial.replace(target)
            except OSError as error:
                raise UsageError(
                    f"{str(target)!r} cannot be written: {error.strerror}.", next="Check the path."
                ) from error

    def _saved(self) -> bytes:
        """What `resume` goes on from."""
        with self._lock:
            self._refuse_closed()
            return encode_manifest(self._facts(), sorted_changes(self._claims.changes))

    def _restore(self, facts: Facts, changes: dict[bytes, bytes]) -> None:
        self._opened(facts.id, facts.base)
        if facts.shared:  # what counts is on record, whatever was known when the file was written
            self._follow_shared()
            self._files, self._rows, self._bytes = facts.files, facts.rows, facts.bytes
            self._begun_at = facts.begun_at
            self._refresh()
            return
        self._claims.changes = changes
        self._claims.guards = [Guard(prefix) for prefix in facts.guarded]
        self._claims.exact = set(facts.exact)
        self._files, self._rows, self._bytes = facts.files, facts.rows, facts.bytes
        self._begun_at = facts.begun_at


def resume(core: RepositoryCore, at: BranchAt, body: bytes, name: str) -> Transaction:
    """Go on with an open transaction from what `Transaction.save` wrote, or from its manifest.

    Raises:
        Fenced: another one took over, or it was aborted.
        TransactionClosed: it was published.
        UsageError: it belongs to another branch.
    """
    facts, changes = decode_manifest(body, name)
    if facts.branch_id != at.branch_id:
        raise UsageError(f"{name} is of branch {facts.branch!r}, not of this {at.name!r}.", next="Use that branch.")
    options = TransactionOptions(
        writer=facts.writer,
        message=facts.message,
        token=facts.token,
        node=facts.node,
        expect_unchanged=facts.expect_unchanged,
        on_staged="keep" if facts.on_staged == "keep" else "fail",
        shared=facts.shared,
        position=facts.position,
        metadata=facts.metadata,
        committer=facts.committer,
    )
    transaction = Transaction(core, at, options, facts.base)
    done = transactions.granted(at, facts.writer, facts.id)
    if done is not None:
        raise writers.was_published(facts.writer, facts.id, done)
    transaction._restore(facts, changes)
    return transaction
