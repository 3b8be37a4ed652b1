from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from strandline.kv.memory import MemoryStore
from strandline.testing.clock import ManualClock
from tests.transactions.drivers import Driver


@pytest.fixture
def driver(tmp_path: Path, clock: ManualClock) -> Callable[[], Driver]:
    """Makes drivers over the same stores."""
    kv = MemoryStore()
    made: list[Driver] = []

    def make() -> Driver:
        made.append(Driver(kv, tmp_path / "data", clock, create=not made))
        return made[-1]

    return make


@pytest.fixture
def first(driver: Callable[[], Driver]) -> Driver:
    return driver()


@pytest.fixture
def second(driver: Callable[[], Driver], first: Driver) -> Driver:
    return driver()
