"""Consensus and blobs whose calls meet one of four outcomes, as a plan decides."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import BinaryIO, TypeVar

from strandline.blob.store import BlobExists, BlobInfo, BlobStore, PutMode
from strandline.errors import StoreUnavailable
from strandline.shards.log.consensus import SCAN_RECORDS, Consensus, Versioned
from strandline.testing.faults import Outcome

Result = TypeVar("Result")
Plan = Callable[[str, str], Outcome]
"""From the name of a call and its key to its outcome. Reads can only be DONE or NOT_DONE."""


def always_done(_call: str, _key: str) -> Outcome:
    return Outcome.DONE


class _Faults:
    """Not thread-safe: plans are for one thread at a time."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.calls: list[tuple[str, str]] = []
        self._late: list[Callable[[], object]] = []

    def land(self) -> None:
        """Late writes land now; a late one may find that it is too late."""
        late, self._late = self._late, []
        for write in late:
            try:
                write()
            except BlobExists:
                continue

    def read(self, call: str, key: str, work: Callable[[], Result]) -> Result:
        self.calls.append((call, key))
        if self.plan(call, key) is not Outcome.DONE:
            raise StoreUnavailable(f"Injected: {call} failed.", happened="no")
        found = work()
        self.land()
        return found

    def write(self, call: str, key: str, work: Callable[[], Result]) -> Result:
        self.calls.append((call, key))
        outcome = self.plan(call, key)
        if outcome is Outcome.NOT_DONE:
            raise StoreUnavailable(f"Injected: {call} did not happen.", happened="no")
        if outcome is Outcome.LATE:
            self.land()
            self._late.append(work)
            raise StoreUnavailable(f"Injected: {call} is late.", happened="unknown")
        try:
            found = work()
        finally:
            self.land()
        if outcome is Outcome.DONE_BUT_LOST:
            raise StoreUnavailable(f"Injected: the reply to {call} is lost.", happened="unknown")
        return found


class FaultyConsensus(Consensus):
    """Calls are named "head", "append", "scan" and "truncate"."""

    def __init__(self, consensus: Consensus, plan: Plan = always_done) -> None:
        self._consensus = consensus
        self.faults = _Faults(plan)
        self.may_refuse_its_own = consensus.may_refuse_its_own

    def head(self, key: str) -> Versioned | None:
        return self.faults.read("head", key, lambda: self._consensus.head(key))

    def compare_and_set(self, key: str, seqno: int, data: bytes) -> bool:
        return self.faults.write("append", key, lambda: self._consensus.compare_and_set(key, seqno, data))

    def scan(self, key: str, start: int, limit: int = SCAN_RECORDS) -> list[Versioned]:
        return self.faults.read("scan", key, lambda: self._consensus.scan(key, start, limit))

    def truncate(self, key: str, seqno: int) -> int:
        return self.faults.write("truncate", key, lambda: self._consensus.truncate(key, seqno))


class FaultyBlobs(BlobStore):
    """Calls are named "get", "put", "delete", "list" and "blob head"."""

    def __init__(self, blobs: BlobStore, plan: Plan = always_done) -> None:
        self._blobs = blobs
        self.faults = _Faults(plan)
        self.url = blobs.url

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        return self.faults.read("get", key, lambda: self._blobs.get(key, start, end))

    def put(self, key: str, data: bytes | BinaryIO, mode: PutMode = "overwrite") -> None:
        self.faults.write("put", key, lambda: self._blobs.put(key, data, mode))

    def head(self, key: str) -> BlobInfo:
        return self.faults.read("blob head", key, lambda: self._blobs.head(key))

    def delete_many(self, keys: Iterable[str]) -> None:
        listed = list(keys)
        self.faults.write("delete", listed[0] if listed else "", lambda: self._blobs.delete_many(listed))

    def list_pages(self, prefix: str = "") -> Iterator[list[BlobInfo]]:
        yield from self.faults.read("list", prefix, lambda: list(self._blobs.list_pages(prefix)))

    def open_read(self, key: str) -> BinaryIO:
        return self.faults.read("get", key, lambda: self._blobs.open_read(key))

    def sync(self, keys: Sequence[str]) -> None:
        self._blobs.sync(keys)

    def spark_url(self, key: str) -> str:
        return self._blobs.spark_url(key)
