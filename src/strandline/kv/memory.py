"""A store in the memory of one process: for tests, and for lakes that may be forgotten."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from os import getpid

from strandline.errors import StoreUnavailable
from strandline.kv.store import ABSENT, PAGE_KEYS, Guard, Guarded, Page, Predicate, PredicateFailed, Store


class _Partition:
    """A dict, with its keys sorted when somebody scans after a new key came."""

    __slots__ = ("is_sorted", "keys", "values")

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self.keys: list[bytes] = []
        self.is_sorted = True

    def put(self, key: bytes, value: bytes) -> None:
        if key not in self.values:
            self.is_sorted = self.is_sorted and (not self.keys or key > self.keys[-1])
            self.keys.append(key)
        self.values[key] = value

    def remove(self, keys: Iterable[bytes]) -> None:
        gone = {key for key in keys if self.values.pop(key, None) is not None}
        if gone:
            self.keys = [key for key in self.keys if key not in gone]

    def sorted_keys(self) -> list[bytes]:
        if not self.is_sorted:
            self.keys.sort()
            self.is_sorted = True
        return self.keys


class MemoryStore(Store):
    """Durability: none. Everything is gone with the process; the child of a fork has a copy, and may not use it: what
    it wrote would be seen by nobody."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = getpid()
        self._partitions: dict[bytes, _Partition] = {}

    @property
    def writes_at_once(self) -> bool:
        return True

    @property
    def _alone(self) -> threading.Lock:
        """The lock of this process; it may not even be waited for in a child, where nobody would ever free it."""
        if self._pid != getpid():
            raise StoreUnavailable(
                "A store in memory belongs to the process that made it, and this is the child of a fork.",
                happened="no",
                next="Keep the lake in a folder, which processes can share.",
            )
        return self._lock

    def _partition(self, partition: bytes) -> _Partition:
        return self._partitions.setdefault(partition, _Partition())

    def get(self, partition: bytes, key: bytes) -> bytes | None:
        with self._alone:
            return self._partition(partition).values.get(key)

    def set(self, partition: bytes, key: bytes, value: bytes) -> None:
        with self._alone:
            self._partition(partition).put(key, value)

    def set_if(self, partition: bytes, key: bytes, value: bytes, predicate: Predicate) -> None:
        with self._alone:
            held = self._partition(partition)
            if held.values.get(key) != (None if predicate is ABSENT else predicate):
                raise PredicateFailed
            held.put(key, value)

    def delete(self, partition: bytes, key: bytes) -> None:
        self.delete_many(partition, [key])

    def scan_page(self, partition: bytes, start: bytes = b"", end: bytes | None = None, limit: int = PAGE_KEYS) -> Page:
        with self._alone:
            held = self._partition(partition)
            keys = held.sorted_keys()
            first = bisect_left(keys, start)
            last = len(keys) if end is None else bisect_left(keys, end)
            found = keys[first : min(last, first + limit)]
            return Page(found, [held.values[key] for key in found])

    def get_many(self, partition: bytes, keys: Sequence[bytes]) -> list[bytes | None]:
        with self._alone:
            values = self._partition(partition).values
            return [values.get(key) for key in keys]

    def set_many(self, partition: bytes, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        with self._alone:
            held = self._partition(partition)
            for key, value in pairs:
                held.put(key, value)

    def set_many_while(self, partition: bytes, pairs: Sequence[tuple[bytes, bytes]], guard: Guard) -> Guarded:
        with self._alone:
            if self._partition(guard.partition).values.get(guard.key) != guard.value:
                return Guarded.REFUSED
            held = self._partition(partition)
            for key, value in pairs:
                held.put(key, value)
            return Guarded.WRITTEN

    def delete_many(self, partition: bytes, keys: Iterable[bytes]) -> None:
        with self._alone:
            self._partition(partition).remove(keys)

    def close(self) -> None:
        pass
