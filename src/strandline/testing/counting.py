"""A key-value store that counts what is asked of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from strandline.kv.store import PAGE_KEYS, Guard, Guarded, Page, Predicate, Store


class CountingStore(Store):
    """Passes every call on and counts it by its name."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.calls: Counter[str] = Counter()
        self.guarded_max_pairs = store.guarded_max_pairs

    @contextmanager
    def counted(self) -> Iterator[Counter[str]]:
        """The calls of a `with` block."""
        before = Counter(self.calls)
        during: Counter[str] = Counter()
        yield during
        during.update(self.calls - before)

    def get(self, partition: bytes, key: bytes) -> bytes | None:
        self.calls["get"] += 1
        return self._store.get(partition, key)

    def set(self, partition: bytes, key: bytes, value: bytes) -> None:
        self.calls["set"] += 1
        self._store.set(partition, key, value)

    def set_if(self, partition: bytes, key: bytes, value: bytes, predicate: Predicate) -> None:
        self.calls["set_if"] += 1
        self._store.set_if(partition, key, value, predicate)

    def delete(self, partition: bytes, key: bytes) -> None:
        self.calls["delete"] += 1
        self._store.delete(partition, key)

    def scan_page(self, partition: bytes, start: bytes = b"", end: bytes | None = None, limit: int = PAGE_KEYS) -> Page:
        self.calls["scan_page"] += 1
        return self._store.scan_page(partition, start, end, limit)

    def get_many(self, partition: bytes, keys: Sequence[bytes]) -> list[bytes | None]:
        self.calls["get_many"] += 1
        return self._store.get_many(partition, keys)

    def set_many(self, partition: bytes, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        self.calls["set_many"] += 1
        self._store.set_many(partition, pairs)

    def set_many_while(self, partition: bytes, pairs: Sequence[tuple[bytes, bytes]], guard: Guard) -> Guarded:
        self.calls["set_many_while"] += 1
        return self._store.set_many_while(partition, pairs, guard)

    def delete_many(self, partition: bytes, keys: Iterable[bytes]) -> None:
        self.calls["delete_many"] += 1
        self._store.delete_many(partition, keys)

    def close(self) -> None:
        self._store.close()
