"""LRU caches bounded in bytes: each by itself, or many within one budget. Shared by all threads of a lake."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Generic, TypeVar, cast

from strandline import forks

Value = TypeVar("Value")


class CacheBudget:
    """What several caches may hold together: whichever was used longest ago goes first, whosever it is."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._lock = forks.lock()
        self._held: OrderedDict[tuple[str, str], tuple[Any, int]] = OrderedDict()
        self._bytes = 0

    @property
    def held_bytes(self) -> int:
        return self._bytes

    def get(self, key: tuple[str, str]) -> Any:
        with self._lock:
            found = self._held.get(key)
            if found is None:
                return None
            self._held.move_to_end(key)
            return found[0]

    def put(self, key: tuple[str, str], value: Any, size_bytes: int) -> None:
        with self._lock:
            old = self._held.pop(key, None)
            if old is not None:
                self._bytes -= old[1]
            self._held[key] = (value, size_bytes)
            self._bytes += size_bytes
            while self._bytes > self.max_bytes:
                _, (_, freed) = self._held.popitem(last=False)
                self._bytes -= freed


class ByteBoundedCache(Generic[Value]):
    """Keeps the values used last, up to a sum of bytes. A value larger than the bound is not kept.

    Args:
        budget: shared with other caches, instead of a bound of its own; keys are then unique among those of its kind.
        kind: what the keys name.

    Attributes:
        max_bytes: of one value, and of all if there is no shared budget.
    """

    def __init__(self, max_bytes: int, budget: CacheBudget | None = None, kind: str = "") -> None:
        self._budget = budget or CacheBudget(max_bytes)
        self.max_bytes = min(max_bytes, self._budget.max_bytes)
        self._kind = kind

    @property
    def held_bytes(self) -> int:
        return self._budget.held_bytes

    def get(self, key: str) -> Value | None:
        return cast("Value | None", self._budget.get((self._kind, key)))

    def put(self, key: str, value: Value, size_bytes: int) -> None:
        if size_bytes <= self.max_bytes:
            self._budget.put((self._kind, key), value, size_bytes)
