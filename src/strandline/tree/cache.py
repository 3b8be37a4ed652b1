"""An LRU cache bounded in bytes, shared by all threads of a lake."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

from strandline import forks

Value = TypeVar("Value")


class ByteBoundedCache(Generic[Value]):
    """Keeps the values used last, up to a sum of bytes. A value larger than the bound is not kept."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._lock = forks.lock()
        self._held: OrderedDict[str, tuple[Value, int]] = OrderedDict()
        self._bytes = 0

    @property
    def held_bytes(self) -> int:
        return self._bytes

    def get(self, key: str) -> Value | None:
        with self._lock:
            found = self._held.get(key)
            if found is None:
                return None
            self._held.move_to_end(key)
            return found[0]

    def put(self, key: str, value: Value, size_bytes: int) -> None:
        if size_bytes > self.max_bytes:
            return
        with self._lock:
            old = self._held.pop(key, None)
            if old is not None:
                self._bytes -= old[1]
            self._held[key] = (value, size_bytes)
            self._bytes += size_bytes
            while self._bytes > self.max_bytes:
                _, (_, freed) = self._held.popitem(last=False)
                self._bytes -= freed
