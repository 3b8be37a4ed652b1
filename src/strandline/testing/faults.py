"""A key-value store whose writes meet one of four outcomes, as a plan decides."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum

from strandline.errors import StoreUnavailable
from strandline.kv.store import PAGE_KEYS, Page, Predicate, PredicateFailed, Store


class Outcome(Enum):
    """What can become of a call to a store."""

    DONE = "done"
    """It happens and says so."""
    NOT_DONE = "not done"
    """It does not happen and says so: `happened` is "no"."""
    DONE_BUT_LOST = "done, but the reply is lost"
    """It happens, and the caller learns only that it may have: `happened` is "unknown"."""
    LATE = "answered late"
    """The caller learns that it may have happened, and it happens only after the store's next call."""


Plan = Callable[[str, bytes, bytes], Outcome]
"""From the name of a call, its partition and its key to its outcome. Reads can only be DONE or NOT_DONE."""


def always_done(_call: str, _partition: bytes, _key: bytes) -> Outcome:
    return Outcome.DONE


class FaultyStore(Store):
    """Not thread-safe beyond what the store beneath is: plans are for one thread at a time."""

    def __init__(self, store: Store, plan: Plan = always_done) -> None:
        self._store = store
        self.plan = plan
        self._late: list[Callable[[], object]] = []

    def _land(self) -> None:
        """Late writes land now; a late swap may find that its predicate no longer holds."""
        late, self._late = self._late, []
        for write in late:
            try:
                write()
            except PredicateFailed:
                continue

    def _write(self, call: str, partition: bytes, key: bytes, write: Callable[[], object]) -> None:
        outcome = self.plan(call, partition, key)
        if outcome is Outcome.NOT_DONE:
            raise StoreUnavailable(f"Injected: {call} did not happen.", happened="no")
        if outcome is Outcome.LATE:
            self._land()
            self._late.append(write)
            raise StoreUnavailable(f"Injected: {call} is late.", happened="unknown")
        try:
            write()
        finally:
            self._land()
        if outcome is Outcome.DONE_BUT_LOST:
            raise StoreUnavailable(f"Injected: the reply to {call} is lost.", happened="unknown")

    def _read(self, call: str, partition: bytes, key: bytes) -> None:
        if self.plan(call, partition, key) is not Outcome.DONE:
            raise StoreUnavailable(f"Injected: {call} failed.", happened="no")

    def get(self, partition: bytes, key: bytes) -> bytes | None:
        self._read("get", partition, key)
        found = self._store.get(partition, key)
        self._land()
        return found

    def scan_page(self, partition: bytes, start: bytes = b"", end: bytes | None = None, limit: int = PAGE_KEYS) -> Page:
        self._read("scan_page", partition, start)
        found = self._store.scan_page(partition, start, end, limit)
        self._land()
        return found

    def set(self, partition: bytes, key: bytes, value: bytes) -> None:
        self._write("set", partition, key, lambda: self._store.set(partition, key, value))

    def set_if(self, partition: bytes, key: bytes, value: bytes, predicate: Predicate) -> None:
        self._write("set_if", partition, key, lambda: self._store.set_if(partition, key, value, predicate))

    def delete(self, partition: bytes, key: bytes) -> None:
        self._write("delete", partition, key, lambda: self._store.delete(partition, key))

    def set_many(self, partition: bytes, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        first = pairs[0][0] if pairs else b""
        self._write("set_many", partition, first, lambda: self._store.set_many(partition, pairs))

    def delete_many(self, partition: bytes, keys: Iterable[bytes]) -> None:
        listed = list(keys)
        first = listed[0] if listed else b""
        self._write("delete_many", partition, first, lambda: self._store.delete_many(partition, listed))

    def close(self) -> None:
        self._store.close()
