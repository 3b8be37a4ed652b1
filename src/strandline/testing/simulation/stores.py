"""The two stores as the processes of a simulation see them: each call is a step, and may fail."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO, TypeVar

from strandline.blob.store import BlobExists, BlobInfo, BlobNotFound, BlobStore, PutMode
from strandline.errors import StoreUnavailable
from strandline.kv.memory import MemoryStore
from strandline.kv.store import PAGE_KEYS, Guard, Guarded, Page, Predicate, PredicateFailed, Store, in_part
from strandline.testing.clock import START_US
from strandline.testing.simulation.scheduler import Fate, Scheduler

Item = TypeVar("Item")
Result = TypeVar("Result")
TORN = 0.3
"""The probability that others go between two parts of a call that is not atomic: a bulk write, a scan."""


STEP_US = 50_000
"""A step takes as long as a slow store: what a process remembers gets too old within a schedule."""


def store_time(step: int) -> int:
    """The clock of the object store, which nothing is wrong with."""
    return START_US + step * STEP_US


def _unavailable(what: str, happened: str) -> StoreUnavailable:
    told = "did not happen" if happened == "no" else "may have happened"
    return StoreUnavailable(f"Simulated: {what} {told}.", happened=happened)  # type: ignore[arg-type]


Watch = Callable[[bytes, bytes, bytes | None, bytes], None]
"""Told the partition, key, old and new value of every swap that happened."""


class WatchedStore(MemoryStore):
    """What all processes share; tells of every swap."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    def set_if(self, partition: bytes, key: bytes, value: bytes, predicate: Predicate) -> None:
        super().set_if(partition, key, value, predicate)
        self._watch(partition, key, predicate if isinstance(predicate, bytes) else None, value)


@dataclass
class SimulatedStore(Store):
    """Promises what `Store` promises and nothing more: bulk writes come in parts, and in some seeds scans too, and
    guarded writes in several calls."""

    shared: MemoryStore
    scheduler: Scheduler

    def get(self, partition: bytes, key: bytes) -> bytes | None:
        self._read("get", partition, key)
        value = self.shared.get(partition, key)
        self.scheduler.reply()
        return value

    def scan_page(self, partition: bytes, start: bytes = b"", end: bytes | None = None, limit: int = PAGE_KEYS) -> Page:
        self._read("scan", partition, start, end or b"")
        page = self.shared.scan_page(partition, start, end, limit)
        if not self.scheduler.tears_scans or len(page.keys) < 2 or self.scheduler.random.random() > TORN:
            return page
        at = self.scheduler.random.randrange(1, len(page.keys))
        middle = page.keys[at]
        self._read("scan on", partition, middle, end or b"")
        rest = self.shared.scan_page(partition, middle, end, limit - at)
        return Page(page.keys[:at] + rest.keys, page.values[:at] + rest.values)

    def set(self, partition: bytes, key: bytes, value: bytes) -> None:
        self._write("set", partition, (key, value), lambda: self.shared.set(partition, key, value))

    def set_if(self, partition: bytes, key: bytes, value: bytes, predicate: Predicate) -> None:
        self._write("swap", partition, (key, value), lambda: self.shared.set_if(partition, key, value, predicate))

    def delete(self, partition: bytes, key: bytes) -> None:
        self._write("delete", partition, (key,), lambda: self.shared.delete(partition, key))

    def set_many(self, partition: bytes, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        for at, part in enumerate(self._parts(list(pairs))):
            with in_part(at > 0):
                self._write("set many", partition, part, partial(self.shared.set_many, partition, part))

    def set_many_while(self, partition: bytes, pairs: Sequence[tuple[bytes, bytes]], guard: Guard) -> Guarded:
        if not self.scheduler.guards_writes:
            return super().set_many_while(partition, pairs, guard)
        details = (*pairs, guard.partition, guard.key)
        return self._write("set while", partition, details, lambda: self.shared.set_many_while(partition, pairs, guard))

    def delete_many(self, partition: bytes, keys: Iterable[bytes]) -> None:
        for at, part in enumerate(self._parts(list(keys))):
            with in_part(at > 0):
                self._write("delete many", partition, part, partial(self.shared.delete_many, partition, part))

    def close(self) -> None:
        pass

    def _parts(self, items: list[Item]) -> list[list[Item]]:
        rnd = self.scheduler.random
        if len(items) < 2 or rnd.random() > TORN:
            return [items] if items else []
        rnd.shuffle(items)
        at = rnd.randrange(1, len(items))
        return [items[:at], items[at:]]

    def _read(self, what: str, partition: bytes, *keys: bytes) -> None:
        if self.scheduler.call(what, (partition, *keys), is_write=False) is not Fate.DONE:
            raise _unavailable(what, "no")

    def _write(self, what: str, partition: bytes, details: Sequence[object], effect: Callable[[], Result]) -> Result:
        return _write(self.scheduler, what, (partition, *details), effect)


def _write(scheduler: Scheduler, what: str, details: tuple[object, ...], effect: Callable[[], Result]) -> Result:
    """Do a write as the seed wants it; the loser of a race learns so if its reply is not lost."""
    fate = scheduler.call(what, details, is_write=True)
    if fate is Fate.NOT_DONE:
        raise _unavailable(what, "no")
    if fate is Fate.LATE:
        scheduler.later(lambda: _quietly(effect))
        scheduler.time_out()
        raise _unavailable(what, "unknown")
    try:
        result = effect()
    except (PredicateFailed, BlobExists):
        scheduler.trace[-1].what = "swap lost"
        scheduler.reply()
        if fate is Fate.LOST:
            raise _unavailable(what, "unknown") from None
        raise
    scheduler.reply()
    if fate is Fate.LOST:
        scheduler.time_out()
        raise _unavailable(what, "unknown")
    return result


def _quietly(effect: Callable[[], object]) -> None:
    try:
        effect()
    except (PredicateFailed, BlobExists):
        pass


class SharedBlobs(BlobStore):
    """The bytes that all processes share, and for each key the operation that wrote it."""

    def __init__(self) -> None:
        self.url = "simulated://blobs"
        self.blobs: dict[str, bytes] = {}
        self.writers: dict[str, object] = {}
        self.times: dict[str, int] = {}

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        if key not in self.blobs:
            raise BlobNotFound(key)
        return self.blobs[key][start:end]

    def put(self, key: str, data: bytes | BinaryIO, mode: PutMode = "overwrite") -> None:
        if mode == "create" and key in self.blobs:
            raise BlobExists(key)
        self.blobs[key] = bytes(data) if not hasattr(data, "read") else data.read()

    def head(self, key: str) -> BlobInfo:
        if key not in self.blobs:
            raise BlobNotFound(key)
        return BlobInfo(key, len(self.blobs[key]), "etag", self.times.get(key, 0))

    def delete_many(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.blobs.pop(key, None)

    def list_pages(self, prefix: str = "") -> Iterator[list[BlobInfo]]:
        yield [self.head(key) for key in sorted(self.blobs) if key.startswith(prefix)]

    def open_read(self, key: str) -> BinaryIO:
        return io.BytesIO(self.get(key))

    def spark_url(self, key: str) -> str:
        return f"{self.url}/{key}"


class SimulatedBlobs(BlobStore):
    """The shared bytes as one process sees them."""

    def __init__(self, shared: SharedBlobs, scheduler: Scheduler) -> None:
        self.shared = shared
        self.scheduler = scheduler
        self.url = shared.url

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        self._read("get blob", key)
        return self.shared.get(key, start, end)

    def put(self, key: str, data: bytes | BinaryIO, mode: PutMode = "overwrite") -> None:
        fate = self.scheduler.call("put blob", (key,), is_write=True)
        if fate is Fate.NOT_DONE:
            raise _unavailable("put", "no")
        self.shared.put(key, data, mode)
        self.shared.writers[key] = self.scheduler.current.operation
        self.shared.times[key] = store_time(self.scheduler.step)
        if fate is not Fate.DONE:
            raise _unavailable("put", "unknown")

    def head(self, key: str) -> BlobInfo:
        self._read("head blob", key)
        return self.shared.head(key)

    def delete_many(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.scheduler.call("delete blob", (key,), is_write=False)
            self.shared.delete_many([key])

    def list_pages(self, prefix: str = "") -> Iterator[list[BlobInfo]]:
        self._read("list blobs", prefix)
        yield from self.shared.list_pages(prefix)

    def open_read(self, key: str) -> BinaryIO:
        self._read("open blob", key)
        return self.shared.open_read(key)

    def spark_url(self, key: str) -> str:
        return self.shared.spark_url(key)

    def _read(self, what: str, key: str) -> None:
        if self.scheduler.call(what, (key,), is_write=False) is not Fate.DONE:
            raise _unavailable(what, "no")


REPEATED = 0.3
"""How often the client of an object store repeats a creation whose reply was lost, and is refused its own object."""


class SimulatedObjects(SimulatedBlobs):
    """Objects that are a log: a creation is a swap with all that may become of one, and a listing comes in pages."""

    def put(self, key: str, data: bytes | BinaryIO, mode: PutMode = "overwrite") -> None:
        body = data if isinstance(data, bytes) else data.read()
        try:
            _write(self.scheduler, "swap" if mode == "create" else "set", (key,), partial(self._put, key, body, mode))
        except StoreUnavailable:
            is_there = self.shared.blobs.get(key) is body
            if mode == "create" and is_there and self.scheduler.random.random() < REPEATED:
                raise BlobExists(key) from None
            raise

    def _put(self, key: str, data: bytes, mode: PutMode) -> None:
        self.shared.put(key, data, mode)
        self.shared.times[key] = store_time(self.scheduler.step)

    def list_pages(self, prefix: str = "") -> Iterator[list[BlobInfo]]:
        self._read("list blobs", prefix)
        (found,) = self.shared.list_pages(prefix)
        if len(found) > 1 and self.scheduler.random.random() < TORN:
            at = self.scheduler.random.randrange(1, len(found))
            yield found[:at]
            self._read("list blobs on", prefix)
            (again,) = self.shared.list_pages(prefix)
            found = [info for info in again if info.key >= found[at].key]
        yield found
