"""A pool of connections that is made on first use, and made anew in the child of a fork."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Pool = TypeVar("Pool")

_inherited: list[object] = []
"""Pools that a fork copied: their sockets belong to the parent, so nobody may close them here."""


class ForkSafePool(Generic[Pool]):
    def __init__(self, make: Callable[[], Pool], close: Callable[[Pool], None]) -> None:
        self._make = make
        self._close = close
        self._lock = threading.Lock()
        self._pool: Pool | None = None
        self._pid = os.getpid()

    def get(self) -> Pool:
        if self._pid != os.getpid():
            _inherited.append(self._pool)
            self._lock = threading.Lock()
            self._pool, self._pid = None, os.getpid()
        with self._lock:
            if self._pool is None:
                self._pool = self._make()
            return self._pool

    def close(self) -> None:
        if self._pid == os.getpid() and self._pool is not None:
            self._close(self._pool)
            self._pool = None
