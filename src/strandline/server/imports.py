"""Imports that run while their clients wait: records that any worker answers from, and goes on with.

Invariants:
1. An import is published by `publish_import` with its id as writer and token. So it is published once at most,
   whichever workers ran it, and never after a cancellation that was answered with success: that one dooms the
   transaction first.
2. A worker begins, and goes on, only with a record that it has swapped itself. One that was declared dead finds another
   record, or that its transaction is fenced, and ends without a word.
3. An answer "completed" is given from the record alone, which is written after the publication. If the worker died in
   between, the next one asks the token.
"""

from __future__ import annotations

import threading
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
from strandline.errors import Contention, StrandlineError, TransactionClosed
from strandline.ids import new_id
from strandline.kv.store import ABSENT, PredicateFailed, Store
from strandline.operations import warning
from strandline.repository.branch import Branch
from strandline.repository.commits.importing import ImportResult, ImportSource, abort_import, publish_import
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
        updated_at: when a worker last said that it works on it.
    """

    id: str
    branch: str
    branch_id: str
    user: str
    sources: tuple[tuple[str, str, bool], ...]
    message: str
    metadata: dict[str, str]
    begun_at: Microseconds
    updated_at: Microseconds
    state: State = "running"
    transaction: int = 0
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
        self._is_ending = False

    def close(self) -> None:
        """End; what is under way is left to other workers, or to the next start."""
        self._is_ending = True
        self._threads.shutdown(wait=True, cancel_futures=True)

    def begin(
        self, branch: Branch, sources: list[ImportSource], user: str, message: str, metadata: dict[str, str]
    ) -> ImportRecord:
        """Begin an import.

        Raises:
            Busy: too many are under way.
        """
        now_us = branch._core.stores.clock.now_us()
        record = ImportRecord(
            id=new_id(),
            branch=branch.name,
            branch_id=branch.branch_id,
            user=user,
            sources=tuple((one.url, one.destination, one.is_object) for one in sources),
            message=message,
            metadata=metadata,
            begun_at=now_us,
            updated_at=now_us,
        )
        self._reserve(record.id)
        try:
            self._kv.set_if(IMPORTS, _key(branch, record.id), encode(record), ABSENT)
        except BaseException:
            self._leave(record.id)
            raise
        self._submit(branch, record)
        return record

    def get(self, branch: Branch, id: str) -> ImportRecord:
        """An import as it is; one whose worker died is taken over.

        Raises:
            Refusal: there is none; status 404.
        """
        record = self._read(branch, id)
        age_us = branch._core.stores.clock.now_us() - record.updated_at
        if record.state == "running" and age_us > TAKEN_OVER_AFTER_US:
            with suppress(PredicateFailed, Busy):
                return self._take_over(branch, record)
        return record

    def cancel(self, branch: Branch, id: str) -> None:
        """Make sure that an import changes nothing.

        Raises:
            Refusal: there is none, status 404; or it has ended, 409.
        """
        for _ in range(ATTEMPTS):
            record = self._read(branch, id)
            if record.state != "running":
                raise Refusal(f"The import is {record.state}: there is nothing to cancel.", status=409)
            if record.transaction:
                try:
                    abort_import(branch._at, record.writer, record.transaction)
                except TransactionClosed:
                    raise Refusal("The import is completed: there is nothing to cancel.", status=409) from None
            with suppress(PredicateFailed):  # else it went on meanwhile, perhaps under another transaction
                now_us = branch._core.stores.clock.now_us()
                after = replace(record, state="cancelled", error="The import was cancelled.", updated_at=now_us)
                self.swap(branch, record, after)
                return
        raise Contention("The import kept changing while it was cancelled.", next="Repeat the request.")

    def sweep(self, now_us: Microseconds) -> int:
        """Forget imports that nobody worked on for a day. Returns their number."""
        old = [
            key
            for key, raw in self._kv.scan(IMPORTS)
            if now_us - decode(ImportRecord, raw, "an import").updated_at > REMEMBERED_US
        ]
        self._kv.delete_many(IMPORTS, old)
        return len(old)

    # --- records -----------------------------------------------------------------------------------------------------

    def _read(self, branch: Branch, id: str) -> ImportRecord:
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

    def _reserve(self, id: str) -> None:
        with self._lock:
            if len(self._mine) >= THREADS + WAITING_MAX or self._is_ending:
                raise Busy("Too many imports are under way.")
            self._mine.add(id)

    def _leave(self, id: str) -> None:
        with self._lock:
            self._mine.discard(id)

    def _take_over(self, branch: Branch, record: ImportRecord) -> ImportRecord:
        with self._lock:
            if record.id in self._mine:
                return record  # it waits for a thread, or for its store
        self._reserve(record.id)
        try:
            mine = self.swap(branch, record, replace(record, updated_at=branch._core.stores.clock.now_us()))
        except BaseException:
            self._leave(record.id)
            raise
        self._submit(branch, mine)
        return mine

    def _submit(self, branch: Branch, record: ImportRecord) -> None:
        try:
            self._threads.submit(self._work, branch, record)
        except RuntimeError:  # the worker ends: another one takes it over
            self._leave(record.id)

    def _work(self, branch: Branch, record: ImportRecord) -> None:
        try:
            _Run(self, branch, record, lambda: self._is_ending).run()
        except (PredicateFailed, _Elsewhere):
            pass  # invariant 2
        except Exception as error:
            warning("import %s is left to be taken over: %r", record.id, error)
        finally:
            self._leave(record.id)


class _Run:
    """One worker's run of an import."""

    def __init__(self, imports: Imports, branch: Branch, record: ImportRecord, is_ending: Callable[[], bool]) -> None:
        self._imports, self._branch, self._is_ending = imports, branch, is_ending
        self._held = record
        self._listed = 0

    def run(self) -> None:
        self._now(self._held)  # invariant 2: it may have waited for a thread for long
        try:
            result = self._published()
        except StrandlineError as error:
            if getattr(error, "happened", "no") != "no":
                raise  # the next one asks the token
            # of one that was fenced the record is another one's by now, unless an operator has aborted it
            self._now(replace(self._held, state="failed", error=str(error)))
            return
        except (PredicateFailed, _Elsewhere):
            raise
        except Exception as error:
            warning("import %s failed: %r", self._held.id, error)
            self._now(replace(self._held, state="failed", error="The server failed; its log has more."))
            return
        commit = "" if result.commit is None else result.commit.id
        objects = result.objects or self._held.objects  # a repeated publication has listed nothing
        self._now(replace(self._held, state="completed", objects=objects, commit=commit))

    def _published(self) -> ImportResult:
        held, core = self._held, self._branch._core
        sources = [ImportSource(*one) for one in held.sources]
        draft = Draft(held.message, held.user, held.metadata, held.begun_at)
        for attempt in range(REPEATS):
            try:
                return publish_import(
                    core, self._branch._at, sources, draft, self._progress, held.writer, held.id, self._begun
                )
            except StrandlineError as error:
                if getattr(error, "happened", "no") == "no" or attempt == REPEATS - 1:
                    raise
        raise AssertionError("unreachable")

    def _begun(self, transaction: int) -> None:
        self._now(replace(self._held, transaction=transaction))

    def _progress(self, what: str, done: int, total: int | None) -> None:
        if self._is_ending():
            raise _Elsewhere
        if what == "listing":
            self._listed = done
        if self._branch._core.stores.clock.now_us() - self._held.updated_at > HEARTBEAT_US:
            self._now(replace(self._held, objects=self._listed))

    def _now(self, after: ImportRecord) -> None:
        """Write the record, if it is still this run's."""
        now_us = self._branch._core.stores.clock.now_us()
        self._held = self._imports.swap(self._branch, self._held, replace(after, updated_at=now_us))


def _key(branch: Branch, id: str) -> bytes:
    return f"{branch._core.stores.repository_id}/{id}".encode()
