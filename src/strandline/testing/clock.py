"""A clock that stands still until a test moves it."""

from __future__ import annotations

import threading
import time

from strandline.clock import Event, Microseconds

START_US = 1_770_000_000_000_000


class ManualClock:
    def __init__(self, start_us: Microseconds = START_US) -> None:
        self._now_us = start_us

    def now_us(self) -> Microseconds:
        return self._now_us

    def sleep(self, seconds: float) -> None:
        """Let other threads run; the time does not move."""
        time.sleep(0)

    def event(self) -> Event:
        return threading.Event()

    def advance_s(self, seconds: float) -> None:
        self._now_us += round(seconds * 1_000_000)
