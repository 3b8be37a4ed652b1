"""A pool of connections that is made on first use, and made anew in the child of a fork."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Generic, TypeVar

from strandline import forks
from strandline.errors import StoreUnavailable

Pool = TypeVar("Pool")

_inherited: list[object] = []
"""Pools that a fork copied: their sockets belong to the parent, so nobody may close them here."""


class ForkSafePool(Generic[Pool]):
    """One pool a process, whichever of its threads asks first.

    Args:
        make, close: make and close the driver's own pool.
        name: of the server, for the error of a pool that was closed.
    """

    def __init__(self, make: Callable[[], Pool], close: Callable[[Pool], None], name: str) -> None:
        self._make = make
        self._close = close
        self._name = name
        self._lock = forks.lock()
        self._pool: Pool | None = None
        self._pid = os.getpid()
        self._is_closed = False

    def get(self) -> Pool:
        if self._pid != os.getpid():
            with self._lock:
                if self._pid != os.getpid():
                    _inherited.append(self._pool)
                    self._pool, self._pid = None, os.getpid()
        with self._lock:
            if self._is_closed:
                raise StoreUnavailable(
                    f"The connections to {self._name} are closed.", happened="no", next="Open the lake again."
                )
            if self._pool is None:
                self._pool = self._make()
            return self._pool

    def close(self) -> None:
        self._is_closed = True
        if self._pid == os.getpid() and self._pool is not None:
            self._close(self._pool)
            self._pool = None
