"""A key-value store whose writes meet one of four outcomes, as a plan decides."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import TypeVar

from strandline.errors import StoreUnavailable
from strandline.kv.store import PAGE_KEYS, Guard, Guarded, Page, Predicate, PredicateFailed, Store


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


Result = TypeVar("Result")
Plan = Callable[[str, bytes, bytes], Outcome]
"""From the name of a call, its partition and its key to its outcome. Reads can only be DONE or NOT_DONE."""


def always_done(_call: str, _partition: bytes, _key: bytes) -> Outcome:
    return Outcome.DONE


class FaultyStore(Store):
    """Not thread-safe beyond what the store beneath is: plans are for one thread at a time.

    Attributes:
        guards: whether a guarded write is one call, as in a store that can do so; else it is several.
    """

    def __init__(self, store: Store, plan: Plan = always_done, *, guards: bool = True) -> None:
        self._store = store
        self.plan = plan
        self.guards = guards
        self.guarded_max_pairs = store.guarded_max_pairs
        self._late: list[Callable[[], object]] = []

    def _land(self) -> None:
        """Late writes land now; a late swap may find that its predicate no longer holds."""
        late, self._late = self._late, []
        for write in late:
            try:
                write()
            except PredicateFailed:
                continue

    def _write(self, call: str, partition: bytes, key: bytes, write: Callable[[], Result]) -> Result:
        outcome = self.plan(call, partition, key)
        if outcome is Outcome.NOT_DONE:
            raise StoreUnavailable(f"Injected: {call} did not happen.", happened="no")
        if outcome is Outcome.LATE:
            self._land()
            self._late.append(write)
            raise StoreUnavailable(f"Injected: {call} is late.", happened="unknown")
        try:
            result = write()
        finally:
            self._land()
        if outcome is Outcome.DONE_BUT_LOST:
            raise StoreUnavailable(f"Injected: the reply to {call} is lost.", happened="unknown")
        return result

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

    def set_many_while(self, partition: bytes, pairs: Sequence[tuple[bytes, bytes]], guard: Guard) -> Guarded:
        if not self.guards:
            return super().set_many_while(partition, pairs, guard)
        first = pairs[0][0] if pairs else b""
        return self._write(
            "set_many_while", partition, first, lambda: self._store.set_many_while(partition, pairs, guard)
        )

    def delete_many(self, partition: bytes, keys: Iterable[bytes]) -> None:
        listed = list(keys)
        first = listed[0] if listed else b""
        self._write("delete_many", partition, first, lambda: self._store.delete_many(partition, listed))

    def close(self) -> None:
        self._store.close()
