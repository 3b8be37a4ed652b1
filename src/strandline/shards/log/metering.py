"""What a shard asks of its stores: requests and bytes by kind of call, counted by wrappers around the interfaces."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from strandline.blob.store import BlobInfo, BlobStore, PutMode
from strandline.forks import survives_forks
from strandline.shards.log.consensus import SCAN_RECORDS, Consensus, Versioned


@dataclass(frozen=True, slots=True)
class Count:
    """Of one kind of call."""

    requests: int = 0
    bytes: int = 0


class Meter:
    """Counters of one shard in one process. Safe to share between threads."""

    def __init__(self) -> None:
        self._counts: dict[str, list[int]] = {}
        self._forked()
        survives_forks(self)

    def _forked(self) -> None:
        self._lock = threading.Lock()

    def add(self, kind: str, size: int = 0, requests: int = 1) -> None:
        with self._lock:
            count = self._counts.setdefault(kind, [0, 0])
            count[0] += requests
            count[1] += size

    @property
    def counts(self) -> dict[str, Count]:
        """By kind of call, such as "blob put" and "consensus append"."""
        with self._lock:
            return {kind: Count(*count) for kind, count in sorted(self._counts.items())}


class MeteredConsensus(Consensus):
    """Passes every call on and counts it."""

    def __init__(self, consensus: Consensus, meter: Meter) -> None:
        self._consensus = consensus
        self._meter = meter
        self.may_refuse_its_own = consensus.may_refuse_its_own

    def head(self, key: str) -> Versioned | None:
        found = self._consensus.head(key)
        self._meter.add("consensus head", len(found.data) if found else 0)
        return found

    def compare_and_set(self, key: str, seqno: int, data: bytes) -> bool:
        self._meter.add("consensus append", len(data))
        done = self._consensus.compare_and_set(key, seqno, data)
        if not done:
            self._meter.add("consensus append lost")
        return done

    def scan(self, key: str, start: int, limit: int = SCAN_RECORDS) -> list[Versioned]:
        found = self._consensus.scan(key, start, limit)
        self._meter.add("consensus scan", sum(len(record.data) for record in found))
        return found

    def truncate(self, key: str, seqno: int) -> int:
        self._meter.add("consensus truncate")
        return self._consensus.truncate(key, seqno)


class MeteredBlobs(BlobStore):
    """Passes every call on and counts it."""

    def __init__(self, blobs: BlobStore, meter: Meter) -> None:
        self._blobs = blobs
        self._meter = meter
        self.url = blobs.url

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        found = self._blobs.get(key, start, end)
        self._meter.add("blob get", len(found))
        return found

    def put(self, key: str, data: bytes | BinaryIO, mode: PutMode = "overwrite") -> None:
        self._meter.add("blob put", len(data) if isinstance(data, bytes) else 0)
        self._blobs.put(key, data, mode)

    def head(self, key: str) -> BlobInfo:
        self._meter.add("blob head")
        return self._blobs.head(key)

    def delete_many(self, keys: Iterable[str]) -> None:
        listed = list(keys)
        self._meter.add("blob delete", requests=len(listed))
        self._blobs.delete_many(listed)

    def list_pages(self, prefix: str = "") -> Iterator[list[BlobInfo]]:
        for page in self._blobs.list_pages(prefix):
            self._meter.add("blob list")
            yield page

    def open_read(self, key: str) -> BinaryIO:
        self._meter.add("blob get")
        return self._blobs.open_read(key)

    def sync(self, keys: Sequence[str]) -> None:
        self._blobs.sync(keys)

    def spark_url(self, key: str) -> str:
        return self._blobs.spark_url(key)

    def local_path(self, key: str) -> str | None:
        path = self._blobs.local_path(key)
        if path is not None:
            try:
                self._meter.add("blob get", os.path.getsize(path))
            except OSError:  # its reader finds out
                self._meter.add("blob get")
        return path
