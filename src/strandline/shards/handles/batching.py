"""Collecting updates for a while, so that each batch is a request less: the knob between latency and cost."""

from __future__ import annotations

import threading
from typing import Any

import pyarrow as pa

from strandline.arguments import checked
from strandline.background import Background
from strandline.closing import Closing
from strandline.errors import StrandlineError, UsageError
from strandline.forks import survives_forks
from strandline.ids import new_id
from strandline.operations import warning
from strandline.shards.handles.open_shard import OpenShard
from strandline.shards.handles.writer import Writer
from strandline.shards.rows.batches import PART_TARGET_BYTES
from strandline.shards.rows.updates import as_updates, check_bounds


@checked()
class BatchingWriter(Closing):
    """Appends what is added at the next time, after `every_s` or when there is much. Safe to share between threads.

    What was added is durable when `flush` has returned, or the `with` block has ended without an error; before that a
    process that dies takes it along.
    """

    def __init__(self, shard: OpenShard, background: Background, every_s: float, name: str = "") -> None:
        if not every_s > 0:
            raise UsageError(f"A batch is collected for some time, not for {every_s!r} seconds.")
        self._shard = shard
        self._writer = Writer(shard, name)
        self._every_s = every_s
        self._is_closed = False
        self._is_copy = False
        self._empty()
        survives_forks(self)
        background.start(("batches", shard.id, self._writer.id), lambda: self._run(background))

    def _empty(self) -> None:
        self._lock = threading.Lock()
        self._held: list[pa.Table] = []
        self._held_bytes = 0
        self._due: tuple[pa.Table, str] | None = None
        self._error: StrandlineError | None = None

    def _forked(self) -> None:
        """What is held is the parent's, which appends it; nobody here would append what this copy took."""
        self._is_copy = True
        self._empty()

    def add(self, updates: Any) -> None:
        """Collect updates without times.

        Raises:
            SchemaMismatch, InvalidBounds: of the updates. What was added before stays.
            StrandlineError: an append beside the callers failed; what it was about is still held, and is tried again.
        """
        table = as_updates(updates, self._shard.codec, 0)
        check_bounds(table, 0, 1)
        with self._lock:
            if self._is_copy:
                raise UsageError(
                    "This writer collects batches for the process that was forked.",
                    next="Make another one here: shard.batches(…).",
                )
            if self._is_closed:
                raise UsageError("This writer is closed.")
            error, self._error = self._error, None
            self._held.append(table)
            self._held_bytes += table.nbytes
            is_full = self._held_bytes >= PART_TARGET_BYTES
        if error is not None:
            raise error
        if is_full:
            self.flush()

    def flush(self) -> int | None:
        """Append what is held; its time, or None if there was nothing.

        Raises:
            StrandlineError: it may or may not have been appended. It is still held, and a further call appends it once;
                except if another process has appended under the same name, or an unnamed writer's lease has ended.
        """
        with self._lock:  # one append at a time: what is added meanwhile waits for the next
            return self._append()

    def close(self) -> None:
        """Append what is held, and collect no more."""
        with self._lock:
            self._append()
            self._is_closed = True
        self._writer.close()

    def _append(self) -> int | None:
        """Append all that is held; the lock is held.

        What an append began with stays together under one token until it is known to be done: a repetition after a lost
        reply is not done twice, and takes along nothing that came since.
        """
        time = None
        while self._due is not None or self._held:
            if self._due is None:
                self._due = pa.concat_tables(self._held), new_id()
                self._held, self._held_bytes = [], 0
            table, token = self._due
            time = self._writer.append_next(table, token=token)
            self._due = None
        return time

    def _run(self, background: Background) -> None:
        while not background.pause(self._every_s) and not self._is_closed:
            try:
                self.flush()
            except StrandlineError as error:
                warning("shard %s: a batch could not be appended: %s", self._shard.name, error)
                self._error = error
