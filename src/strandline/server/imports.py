"""Imports that run while their clients wait: records that any worker answers from, and goes on with.

Invariants:
1. An import is published by `publish_import` with its id as writer and token. So it is published once at most,
   whichever workers ran it, and never after a cancellation that was answered with success: that one dooms the
   transaction first.
2. A worker begins, and goes on, only with a record that it has swapped itself. One that was declared dead finds another
   record, or that its transaction is fenced, and ends without a word.
3. An answer "completed" is given from the record alone, which is written after the publication. If the worker died in
   between, the next one asks the token. That there was nothing new is on record before the token is used for it.
4. A record that somebody works on changes every few seconds. A worker that has seen it unchanged for long enough, by
   its own clock, takes it over; no two clocks are compared.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Literal

import msgspec
from msgspec.structs import replace

from strandline.branch.commits import Draft
from strandline.branch.rules.writers import UNNAMED
from strandline.clock import Microseconds
from strandline.envelope import decode, encode
from strandline.errors import Contention, StoreUnavailable, StrandlineError, TransactionClosed
from strandline.ids import new_id
from strandline.kv.store import ABSENT, PredicateFailed, Store
from strandline.operations import warning
from strandline.repository.branch import Branch
from strandline.repository.commits.importing import ImportResult, abort_import, publish_import
from strandline.repository.commits.listing import ImportSource
from strandline.server.refusals import Busy, Refusal

IMPORTS = b"imports"
"""The partition of imports, by repository and id."""
THREADS = 2
WAITING_MAX = 64
HEARTBEAT_US = 2 * 1_000_000
TAKEN_OVER_AFTER_US = 30 * 1_000_000
"""An import whose worker has said nothing for so long is taken over by the one that is asked for it."""
REMEMBERED_US = 86_400 * 1_000_000
ATTEMPTS = 16
SEEN_MAX = 1_024
"""Imports whose changes a worker remembers, to tell which of them nobody works on."""
REPEATS = 3
"""How often a publication is repeated whose outcome is unknown: the token finds out."""

WRITER = f"{UNNAMED}import"
"""What the writers of imports are called; an import has one of its own, which no protection can name."""

State = Literal["running", "completed", "failed", "cancelled"]


class ImportRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An import that is under way, or ended lately.

    Attributes:
        user: that began it, and the committer.
        sources: the URL, the destination, and whether it is one object.
        transaction: that the last worker has begun; 0 if none has.
        objects: found so far.
        commit: "" if there was nothing new.
        is_empty: the run that published it last, or tried to, had found nothing new.
        date_us: of the commit.
        updated_at: when a worker last said that it works on it, by its clock.
    """

    id: str
    branch: str
    branch_id: str
    user: str
    sources: tuple[tuple[str, str, bool], ...]
    message: str
    metadata: dict[str, str]
    date_us: Microseconds
    updated_at: Microseconds
    state: State = "running"
    transaction: int = 0
    is_empty: bool = False
    objects: int = 0
    commit: str = ""
    error: str = ""

    @property
    def writer(self) -> str:
        """The name that fences it."""
        return f"{WRITER} {self.id}"


class _Elsewhere(Exception):
    """The record is not this worker's any more, or the worker ends."""


class Imports:
    """The imports of a lake, and the threads of a worker that run them. Safe to share between threads."""

    def __init__(self, kv: Store) -> None:
        self._kv = kv
        self._threads = ThreadPoolExecutor(THREADS, "strandline-imports")
        self._lock = threading.Lock()
        self._mine: set[str] = set()
        self._seen: OrderedDict[str, tuple[ImportRecord, Microseconds]] = OrderedDict()
        self.is_ending = False

    def close(self) -> None:
        """End; what is under way is left to other workers, or to the next start."""
        self.is_ending = True
        self._threads.shutdown(wait=True, cancel_futures=True)

    def begin(self, branch: Branch, sources: list[ImportSource], draft: Draft) -> ImportRecord:
        """Begin an import.

        Raises:
            Busy: too many are under way.
        """
        record = ImportRecord(
            id=new_id(),
            branch=branch.name,
            branch_id=branch.branch_id,
            user=draft.committer,
            sources=tuple((one.url, one.destination, one.is_object) for one in sources),
            message=draft.message,
            metadata=draft.metadata,
            date_us=draft.date_us,
            updated_at=branch._core.stores.clock.now_us(),
        )

        def write() -> ImportRecord:
            self._kv.set_if(IMPORTS, _key(branch, record.id), encode(record), ABSENT)
            return record

        return self._submit(branch, record.id, write)

    def get(self, branch: Branch, id: str) -> ImportRecord:
        """An import as it is; one whose worker died is taken over.

        Raises:
            Refusal: the branch has no import with this id; status 404.
        """
        record = self.read(branch, id)
        if record.state == "running" and self._is_left(branch, record):

            def take_over() -> ImportRecord:
                return self.swap(branch, record, replace(record, updated_at=branch._core.stores.clock.now_us()))

            with suppress(PredicateFailed, Busy):
                return self._submit(branch, id, take_over)
        return record

    def _is_left(self, branch: Branch, record: ImportRecord) -> bool:
        """Whether nobody works on an import any more: invariant 4."""
        now_us = branch._core.stores.clock.now_us()
        with self._lock:
            if record.id in self._mine:  # it waits for a thread, or for its store
                return False
            before, since_us = self._seen.pop(record.id, (None, now_us))
            if before != record:
                since_us = now_us
            self._seen[record.id] = record, since_us
            if len(self._seen) > SEEN_MAX:
                self._seen.popitem(last=False)
        return now_us - since_us > TAKEN_OVER_AFTER_US

    def cancel(self, branch: Branch, id: str) -> None:
        """Make sure that an import changes nothing.

        Raises:
            Refusal: the branch has no import with this id, status 404; or the import has ended, 409.
        """
        aborted = 0
        for _ in range(ATTEMPTS):
            record = self.read(branch, id)
            # its run may have met my own abort, and have said so first
            is_mine = record.state == "failed" and aborted > 0 and record.transaction == aborted
            if record.state != "running" and not is_mine:
                raise Refusal(f"The import is {record.state}: there is nothing to cancel.", status=409)
            if record.transaction and not is_mine:
                try:
                    abort_import(branch._at, record.writer, record.transaction)
                    aborted = record.transaction
                except TransactionClosed:
                    raise Refusal("The import is completed: there is nothing to cancel.", status=409) from None
            with suppress(PredicateFailed):  # else it went on meanwhile, perhaps under another transaction
                now_us = branch._core.stores.clock.now_us()
                after = replace(record, state="cancelled", error="The import was cancelled.", updated_at=now_us)
                self.swap(branch, record, after)
                return
        raise Contention("The import kept changing while it was cancelled.", next="Repeat the request.")

    def sweep(self, now_us: Microseconds) -> int:
        """Forget imports that ended a day ago. Returns their number.

        One that nobody ended stays: it is by its record that its transaction can be ended.
        """
        records = ((key, decode(ImportRecord, raw, "an import")) for key, raw in self._kv.scan(IMPORTS))
        old = [key for key, one in records if one.state != "running" and now_us - one.updated_at > REMEMBERED_US]
        self._kv.delete_many(IMPORTS, old)
        return len(old)

    # --- records -----------------------------------------------------------------------------------------------------

    def read(self, branch: Branch, id: str) -> ImportRecord:
        """The record of an import; raises `Refusal` with the status 404."""
        is_id = len(id) == 20 and id.isascii() and id.isalnum()
        raw = self._kv.get(IMPORTS, _key(branch, id)) if is_id else None
        record: ImportRecord | None = None if raw is None else decode(ImportRecord, raw, f"import {id}")
        if record is None or record.branch_id != branch.branch_id:
            raise Refusal(
                f"Branch {branch.name!r} has no import {id[:80]!r}.", status=404, next="An import is known for a day."
            )
        return record

    def swap(self, branch: Branch, before: ImportRecord, after: ImportRecord) -> ImportRecord:
        """Replace a record; raises `PredicateFailed` if it is another one than `before`."""
        self._kv.set_if(IMPORTS, _key(branch, after.id), encode(after), encode(before))
        return after

    # --- running -----------------------------------------------------------------------------------------------------

    def _submit(self, branch: Branch, id: str, write: Callable[[], ImportRecord]) -> ImportRecord:
        """Take an import in hand, and its record: invariant 2.

        Raises:
            Busy: too many are under way here, or this one is, or the worker ends.
            PredicateFailed: somebody else has the record.
        """
        with self._lock:
            if len(self._mine) >= THREADS + WAITING_MAX or self.is_ending or id in self._mine:
                raise Busy("Too many imports are under way.")
            self._mine.add(id)
        try:
            record = write()
        except BaseException:
            self._leave(id)
            raise
        try:
            self._threads.submit(self._work, branch, record)
        except RuntimeError:  # the worker ends: another one takes it over
            self._leave(id)
        return record

    def _leave(self, id: str) -> None:
        with self._lock:
            self._mine.discard(id)

    def _work(self, branch: Branch, record: ImportRecord) -> None:
        try:
            _Run(self, branch, record).run()
        except (PredicateFailed, _Elsewhere):
            pass  # invariant 2
        except Exception as error:
            warning("import %s is left to be taken over: %r", record.id, error)
        finally:
            self._leave(record.id)


class _Run:
    """One worker's run of an import, and its `Fence`."""

    def __init__(self, imports: Imports, branch: Branch, record: ImportRecord) -> None:
        self._imports, self._branch = imports, branch
        self._held = record

    def run(self) -> None:
        self._write(self._held)  # invariant 2: it may have waited for a thread for long
        try:
            result = self._published()
        except StrandlineError as error:
            if getattr(error, "happened", "no") != "no":
                raise  # the next one asks the token
            # of one that was fenced the record is another one's by now, unless an operator has aborted it
            self._write(replace(self._held, state="failed", error=str(error)))
            return
        except (PredicateFailed, _Elsewhere):
            raise
        except Exception as error:
            warning("import %s failed: %r", self._held.id, error)
            self._write(replace(self._held, state="failed", error="The server failed; its log has more."))
            return
        commit = "" if result.commit is None else result.commit.id
        objects = result.objects or self._held.objects  # a repeated publication has listed nothing
        self._write(replace(self._held, state="completed", objects=objects, commit=commit))

    def _published(self) -> ImportResult:
        held, core = self._held, self._branch._core
        sources = [ImportSource(*one) for one in held.sources]
        draft = Draft(held.message, held.user, held.metadata, held.date_us)
        for attempt in range(REPEATS):
            try:
                return publish_import(core, self._branch._at, sources, draft, self._progress, self)
            except StrandlineError as error:
                if getattr(error, "happened", "no") == "no" or attempt == REPEATS - 1:
                    raise
        raise AssertionError("unreachable")

    @property
    def writer(self) -> str:
        return self._held.writer

    @property
    def token(self) -> str:
        return self._held.id

    @property
    def is_empty(self) -> bool:
        return self._held.is_empty

    def begun(self, transaction: int) -> None:
        self._write(replace(self._held, transaction=transaction, is_empty=False))

    def empty(self) -> None:
        self._write(replace(self._held, is_empty=True))

    def _progress(self, what: str, done: int, total: int | None) -> None:
        if self._imports.is_ending:
            raise _Elsewhere
        found = done if what == "listing" else self._held.objects
        if self._branch._core.stores.clock.now_us() - self._held.updated_at > HEARTBEAT_US:
            with suppress(StoreUnavailable):  # a heartbeat that was missed is no reason to end
                self._write(replace(self._held, objects=found))

    def _write(self, after: ImportRecord) -> None:
        """Write the record, if it is still this run's; raises `PredicateFailed` or `_Elsewhere` if not."""
        after = replace(after, updated_at=self._branch._core.stores.clock.now_us())
        try:
            self._imports.swap(self._branch, self._held, after)
        except StoreUnavailable as error:
            found = self._held if error.happened == "no" else self._imports.read(self._branch, after.id)
            if found not in (self._held, after):
                raise _Elsewhere from None
            if found != after:
                raise
        self._held = after


def _key(branch: Branch, id: str) -> bytes:
    return f"{branch._core.stores.repository_id}/{id}".encode()
