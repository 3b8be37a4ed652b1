"""The one place where time is read and waited for, so that tests can step it and the simulator can stand in for it.

No correctness argument rests on wall clocks: they date commits, and decide when it is polite to clean up.
"""

from __future__ import annotations

import random
import threading
import time
from datetime import UTC, datetime
from typing import Protocol

Microseconds = int
"""Microseconds since 1970-01-01 UTC, as stored on disk."""

BACKOFF_FIRST_S = 0.001
BACKOFF_MAX_S = 0.1
"""100 attempts wait 4.5 seconds on average."""


class Event(Protocol):
    """Something that happens once, and that threads wait for."""

    def set(self) -> None: ...

    def wait(self, timeout: float | None = None) -> bool: ...


class Clock(Protocol):
    def now_us(self) -> Microseconds: ...

    def sleep(self, seconds: float) -> None: ...

    def event(self) -> Event: ...


class SystemClock:
    """The clock of this machine."""

    def now_us(self) -> Microseconds:
        """Microseconds since 1970, in UTC."""
        return time.time_ns() // 1000

    def sleep(self, seconds: float) -> None:
        """Wait for some seconds."""
        time.sleep(seconds)

    def event(self) -> Event:
        """An event that threads can wait for."""
        return threading.Event()


def backoff_s(attempt: int) -> float:
    """Exponential backoff with full jitter, in seconds."""
    return random.random() * min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2.0 ** min(attempt, 10))


def from_us(microseconds: Microseconds) -> datetime:
    return datetime.fromtimestamp(microseconds / 1_000_000, tz=UTC)


def to_us(moment: datetime) -> Microseconds:
    """Microseconds of an aware datetime; a naive one is taken as UTC, so that no machine's time zone matters."""
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    delta = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds
