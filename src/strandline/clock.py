"""The one place where time is read, so that tests can step it.

No correctness argument rests on wall clocks: they date commits, and decide when it is polite to clean up.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol

Microseconds = int
"""Microseconds since 1970-01-01 UTC, as stored on disk."""


class Clock(Protocol):
    def now_us(self) -> Microseconds: ...


class SystemClock:
    def now_us(self) -> Microseconds:
        return time.time_ns() // 1000


def from_us(microseconds: Microseconds) -> datetime:
    return datetime.fromtimestamp(microseconds / 1_000_000, tz=UTC)


def to_us(moment: datetime) -> Microseconds:
    """Microseconds of an aware datetime; a naive one is taken as UTC, so that no machine's time zone matters."""
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    delta = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds
