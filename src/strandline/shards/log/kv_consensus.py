"""Consensus on a key-value store.

A log is one head key, never deleted, and history records. The head holds the newest few records itself (its *tail*),
so appending is mostly one swap, and catching up one read. When the tail is full its older records become history
first. The head also holds the number that the log begins with: an insert that demanded only that its own key is absent
could succeed on a number that was truncated long ago.
"""

from __future__ import annotations

import threading

import msgspec

from strandline.envelope import decode, encode
from strandline.errors import StoreUnavailable
from strandline.forks import survives_forks
from strandline.kv.store import ABSENT, PredicateFailed, Store
from strandline.shards.log.consensus import SCAN_RECORDS, Consensus, Versioned, beyond_end, check_seqno

TAIL_MAX_RECORDS = 32
TAIL_MAX_BYTES = 16_384
"""The tail is written anew with each record: longer ones cost more than what they save."""
SWAP_ATTEMPTS = 100


class Head(msgspec.Struct, frozen=True, array_like=True):
    """The head key of a log.

    Attributes:
        seqno: of the newest record.
        begin: the first number that counts; history below it is rubbish.
        tail: the newest records, oldest first; the last one is the record `seqno`.
    """

    seqno: int
    begin: int
    tail: tuple[bytes, ...]

    @property
    def newest(self) -> Versioned:
        return Versioned(self.seqno, self.tail[-1])

    @property
    def tail_begin(self) -> int:
        return self.seqno - len(self.tail) + 1

    def tail_from(self, start: int) -> list[Versioned]:
        first = max(start, self.tail_begin, self.begin)
        return [Versioned(at, self.tail[at - self.tail_begin]) for at in range(first, self.seqno + 1)]


class KvConsensus(Consensus):
    """Logs in one partition of a key-value store.

    Args:
        partition: which nothing else is written to.
    """

    def __init__(self, kv: Store, partition: bytes) -> None:
        self._kv = kv
        self._partition = partition
        self._seen: dict[str, tuple[bytes, Head]] = {}
        self._forked()
        survives_forks(self)

    def _forked(self) -> None:
        self._lock = threading.Lock()

    def head(self, key: str) -> Versioned | None:
        seen = self._read(key)
        return None if seen is None else seen[1].newest

    def compare_and_set(self, key: str, seqno: int, data: bytes) -> bool:
        """One swap of the head.

        Invariant: heads only move forward in (seqno, begin), so no head ever holds earlier bytes again, and a head that
        is still what was read has seen nothing since. What is written as history before the swap was decided by the
        swap that made it part of the tail: a process that writes it, however late, writes the same bytes, or writes
        below `begin`, where nobody reads.
        """
        check_seqno(seqno)
        seen = self._seen.get(key)
        if seen is None or seen[1].seqno != seqno - 1:
            seen = self._read(key)
        for _ in range(SWAP_ATTEMPTS):  # a truncation moves the head, too
            if (0 if seen is None else seen[1].seqno) != seqno - 1:
                return False
            head = Head(1, 1, (data,)) if seen is None else self._appended(key, seen[1], data)
            if self._swap(key, seen, head):
                return True
            seen = self._read(key)
        raise StoreUnavailable(f"The log {key!r} was truncated {SWAP_ATTEMPTS} times in a row.", happened="no")

    def _appended(self, key: str, head: Head, data: bytes) -> Head:
        if len(head.tail) < TAIL_MAX_RECORDS and sum(map(len, head.tail)) + len(data) <= TAIL_MAX_BYTES:
            return Head(head.seqno + 1, head.begin, (*head.tail, data))
        history = [(_record_key(key, record.seqno), record.data) for record in head.tail_from(head.begin)]
        try:
            self._kv.set_many(self._partition, history)
        except StoreUnavailable as error:  # history is nothing before the swap
            raise StoreUnavailable(error.what, happened="no", next=error.next) from error
        return Head(head.seqno + 1, head.begin, (data,))

    def scan(self, key: str, start: int, limit: int = SCAN_RECORDS) -> list[Versioned]:
        while True:
            seen = self._read(key)
            if seen is None:
                return []
            head = seen[1]
            first = max(start, head.begin)
            found: list[Versioned] = []
            if first < head.tail_begin:
                wanted = min(limit, head.tail_begin - first)
                page = self._kv.scan_page(
                    self._partition, _record_key(key, first), _record_key(key, head.tail_begin), wanted
                )
                found = [Versioned(first + at, data) for at, data in enumerate(page.values)]
                if page.keys != [_record_key(key, first + at) for at in range(wanted)]:
                    continue  # truncated meanwhile: the head that says so was written before anything was deleted
            found += head.tail_from(start)
            return found[:limit]

    def truncate(self, key: str, seqno: int) -> int:
        """Move `begin`, then delete what lies below it: late history of earlier truncations as well."""
        check_seqno(seqno)
        for _ in range(SWAP_ATTEMPTS):
            seen = self._read(key)
            if seen is None or seqno > seen[1].seqno:
                raise beyond_end(key, seqno, None if seen is None else seen[1].newest)
            head = seen[1]
            removed = max(0, seqno - head.begin)
            if removed:
                tail = tuple(record.data for record in head.tail_from(seqno))
                if not self._swap(key, seen, Head(head.seqno, seqno, tail)):
                    continue
            end = _record_key(key, max(seqno, head.begin))
            for page in self._kv.scan_pages(self._partition, _record_key(key, 0), end):
                self._kv.delete_many(self._partition, page.keys)
            return removed
        raise StoreUnavailable(f"The log {key!r} was appended to {SWAP_ATTEMPTS} times in a row.", happened="no")

    def _read(self, key: str) -> tuple[bytes, Head] | None:
        raw = self._kv.get(self._partition, _head_key(key))
        if raw is None:
            return None
        seen = self._seen.get(key)
        if seen is None or seen[0] != raw:
            seen = (raw, decode(Head, raw, f"log {key!r}"))
            self._remember(key, seen)
        return seen

    def _swap(self, key: str, seen: tuple[bytes, Head] | None, head: Head) -> bool:
        raw = encode(head)
        try:
            self._kv.set_if(self._partition, _head_key(key), raw, ABSENT if seen is None else seen[0])
        except PredicateFailed:
            self._forget(key)
            return False
        except StoreUnavailable:
            self._forget(key)
            raise
        self._remember(key, (raw, head))
        return True

    def _remember(self, key: str, seen: tuple[bytes, Head]) -> None:
        with self._lock:
            known = self._seen.get(key)
            if known is None or (known[1].seqno, known[1].begin) < (seen[1].seqno, seen[1].begin):
                self._seen[key] = seen

    def _forget(self, key: str) -> None:
        with self._lock:
            self._seen.pop(key, None)


def _head_key(key: str) -> bytes:
    return f"{key}/head".encode()


def _record_key(key: str, seqno: int) -> bytes:
    return f"{key}/log/{seqno:020d}".encode()
