"""One read for all callers that ask at the same time: the amortised branch read."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from strandline.clock import Clock, Event

Value = TypeVar("Value")
PATIENCE_S = 1.0
"""How long a caller counts on somebody else's read. A read of its own is always right, so nobody is ever stuck."""


class _Round(Generic[Value]):
    """A read that begins when the one before it has ended, and the callers that will share it.

    Attributes:
        turn: set when the first of them is to make it.
        done: set when it has ended; `values` is empty if it failed.
    """

    __slots__ = ("done", "turn", "values")

    def __init__(self, clock: Clock) -> None:
        self.turn: Event = clock.event()
        self.done: Event = clock.event()
        self.values: list[Value] = []


class SharedRead(Generic[Value]):
    """Lets concurrent callers share reads; a lone caller pays a microsecond.

    Invariant: a caller only gets the result of a read that *began* after it asked. A read that is under way may have
    looked before the caller's own write, so a caller that comes in between waits for the next one, which the first of
    them makes for all.
    """

    def __init__(self, read: Callable[[], Value], clock: Clock) -> None:
        self._read = read
        self._clock = clock
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._is_reading = False
        self._next: _Round[Value] | None = None

    def __call__(self) -> Value:
        if self._pid != os.getpid():
            self._reset()  # the reader was a thread of the parent
        with self._lock:
            is_free = not self._is_reading
            is_first = self._next is None
            if is_free:
                self._is_reading = True
            elif self._next is None:
                self._next = _Round(self._clock)
            joined = self._next
        if is_free or joined is None:
            try:
                return self._read()
            finally:
                self._pass_on()
        if is_first:
            if joined.turn.wait(PATIENCE_S):
                return self._make(joined)
            self._give_up(joined)
        elif joined.done.wait(PATIENCE_S) and joined.values:
            return joined.values[0]
        return self._read()

    def _make(self, mine: _Round[Value]) -> Value:
        try:
            value = self._read()
            mine.values.append(value)
            return value
        finally:
            self._pass_on()
            mine.done.set()

    def _pass_on(self) -> None:
        with self._lock:
            following, self._next = self._next, None
            if following is None:
                self._is_reading = False
            else:
                following.turn.set()

    def _give_up(self, mine: _Round[Value]) -> None:
        """The read under way takes very long, or its thread was interrupted: let the next caller begin anew."""
        with self._lock:
            was_next = self._next is mine
            if was_next:
                self._next = None
                self._is_reading = False
        if not was_next:
            self._pass_on()  # the turn came just now
        mine.done.set()
