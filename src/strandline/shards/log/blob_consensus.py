"""Consensus on nothing but an object store that can refuse to overwrite (`If-None-Match: *`).

Record n is an object whose name ends in n, made in mode "create": of all that try, one succeeds. That alone is unsafe
once records are deleted, since a client that slept could make a number again. So a truncation first writes a *mark*,
an object whose name is the number that the log begins with, then deletes; and the maker of a record looks for marks
afterwards. Dearer than a key-value store (a PUT and a LIST for an append), but nothing else is needed.
"""

from __future__ import annotations

import threading

from strandline.blob.store import BlobExists, BlobNotFound, BlobStore
from strandline.errors import StoreUnavailable
from strandline.forks import survives_forks
from strandline.shards.log.consensus import SCAN_RECORDS, Consensus, Versioned, beyond_end, check_seqno


class BlobConsensus(Consensus):
    """Logs as objects.

    Args:
        blobs: a store whose `create` really refuses; its conformance suite tells.
        prefix: under which nothing else is written.
    """

    may_refuse_its_own = True

    def __init__(self, blobs: BlobStore, prefix: str) -> None:
        self._blobs = blobs
        self._prefix = prefix.strip("/")
        self._known: dict[str, int] = {}
        self._forked()
        survives_forks(self)

    def _forked(self) -> None:
        self._lock = threading.Lock()

    def head(self, key: str) -> Versioned | None:
        while True:
            seqno = self._head_seqno(key)
            if seqno == 0:
                return None
            try:
                return Versioned(seqno, self._blobs.get(self._record(key, seqno)))
            except BlobNotFound:  # truncated meanwhile, so there is a newer one
                self._forget(key)

    def compare_and_set(self, key: str, seqno: int, data: bytes) -> bool:
        """One PUT that demands that the number is free.

        Invariant: a number is free if it was never given, or if a truncation removed it. Then its mark, written before
        the removal, is seen by a listing that begins after the PUT. A mark that came in between, because others
        appended and truncated, looks the same: then the outcome is unknown, and nothing at or above the mark was made.
        """
        check_seqno(seqno)
        known = self._known.get(key, 0)
        if known >= seqno or (known < seqno - 1 and self._head_seqno(key) != seqno - 1):
            return False  # it was given already, or a writer that counts on from what nobody saw would leave a gap
        try:
            self._blobs.put(self._record(key, seqno), data, "create")
        except BlobExists:
            self._forget(key)
            return False
        try:
            begin = self._begin(key)
        except StoreUnavailable as error:  # the look was in vain; the record may be in the log all the same
            self._forget(key)
            raise StoreUnavailable(f"Record {seqno} was written, and not confirmed.", happened="unknown") from error
        if begin > seqno:
            self._forget(key)
            raise StoreUnavailable(f"The log {key!r} was truncated beyond record {seqno}.", happened="unknown")
        self._learn(key, seqno)
        return True

    def scan(self, key: str, start: int, limit: int = SCAN_RECORDS) -> list[Versioned]:
        while True:
            end = self._head_seqno(key)
            first = max(start, self._begin(key), 1)
            numbers = range(first, min(end, first + limit - 1) + 1)
            try:
                return [Versioned(seqno, self._blobs.get(self._record(key, seqno))) for seqno in numbers]
            except BlobNotFound:
                self._forget(key)  # truncated meanwhile

    def truncate(self, key: str, seqno: int) -> int:
        check_seqno(seqno)
        head = self._head_seqno(key)
        if seqno > head:
            raise beyond_end(key, seqno, Versioned(head, b"") if head else None)
        begin = self._begin(key)
        if seqno > begin:
            self._blobs.put(self._mark(key, seqno), b"")
        marks = sorted(self._blobs.list_keys(f"{self._prefix}/{key}/begin/"))
        begins = int(marks[-1].rpartition("/")[2]) if marks else 1
        old = [name for name in self._blobs.list_keys(f"{self._prefix}/{key}/log/") if _number(name) < begins]
        self._blobs.delete_many([*old, *marks[:-1]])
        return max(0, seqno - begin)

    def _head_seqno(self, key: str) -> int:
        """The number of the newest record, 0 if there is none.

        From what this process knows it looks further one by one. A missing next record is the end, unless the log
        begins beyond it: then this process slept, and lists.
        """
        known = self._known.get(key)
        if known:
            at = known
            while self._exists(self._record(key, at + 1)):
                at += 1
            if self._begin(key) <= at:
                self._learn(key, at)
                return at
        newest = max((_number(name) for name in self._blobs.list_keys(f"{self._prefix}/{key}/log/")), default=0)
        if newest:
            self._learn(key, newest)
        return newest

    def _begin(self, key: str) -> int:
        return max((_number(name) for name in self._blobs.list_keys(f"{self._prefix}/{key}/begin/")), default=1)

    def _exists(self, name: str) -> bool:
        try:
            self._blobs.head(name)
        except BlobNotFound:
            return False
        return True

    def _learn(self, key: str, seqno: int) -> None:
        with self._lock:
            self._known[key] = max(seqno, self._known.get(key, 0))

    def _forget(self, key: str) -> None:
        with self._lock:
            self._known.pop(key, None)

    def _record(self, key: str, seqno: int) -> str:
        return f"{self._prefix}/{key}/log/{seqno:020d}"

    def _mark(self, key: str, seqno: int) -> str:
        return f"{self._prefix}/{key}/begin/{seqno:020d}"


def _number(name: str) -> int:
    return int(name.rpartition("/")[2])
