"""A clock that stands still until a test moves it."""

from __future__ import annotations

from strandline.clock import Microseconds

START_US = 1_770_000_000_000_000


class ManualClock:
    def __init__(self, start_us: Microseconds = START_US) -> None:
        self._now_us = start_us

    def now_us(self) -> Microseconds:
        return self._now_us

    def advance_s(self, seconds: float) -> None:
        self._now_us += round(seconds * 1_000_000)
