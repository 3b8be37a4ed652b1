"""The newest records of a log, kept by a service to be told to its clients."""

from __future__ import annotations

import threading
from collections import deque

from strandline.forks import survives_forks
from strandline.shards.log.consensus import Versioned

KEPT_BYTES = 1 << 20
TOLD_BYTES = 256 << 10


class Recent:
    """The end of a log without gaps, up to a number of bytes. Safe to share between threads."""

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._kept_bytes = kept_bytes
        self._records: deque[Versioned] = deque()
        self._bytes = 0
        self._forked()
        survives_forks(self)

    def _forked(self) -> None:
        self._lock = threading.Lock()

    def add(self, record: Versioned) -> None:
        """Note a record that may be the next one; what is missing is never told."""
        with self._lock:
            if self._records and record.seqno <= self._records[-1].seqno:
                return
            if self._records and record.seqno > self._records[-1].seqno + 1:
                self._records.clear()
                self._bytes = 0
            self._records.append(record)
            self._bytes += len(record.data)
            while self._bytes > self._kept_bytes:
                self._bytes -= len(self._records.popleft().data)

    def after(self, known: int) -> list[Versioned]:
        """The records after a sequence number, the first of them at least; none if they do not reach back to it."""
        with self._lock:
            found = [record for record in self._records if record.seqno > known]
        if not found or found[0].seqno != known + 1:
            return []
        told: list[Versioned] = []
        size = 0
        for record in found:
            size += len(record.data)
            if told and size > TOLD_BYTES:
                break
            told.append(record)
        return told
