"""Drivers of jobs: each a process of its own, as far as it can tell."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from strandline.kv.store import Store
from strandline.lake import Lake
from strandline.opening import find_or_make
from strandline.repository.branch import Branch
from strandline.repository.repository import Repository
from strandline.repository.transactions.transaction import Transaction
from strandline.settings import Settings
from strandline.testing.clock import ManualClock
from strandline.testing.faults import FaultyStore, Outcome

MAX_POINTS = 300


class Driver:
    """A client with caches of its own over shared stores.

    Attributes:
        calls: what it asked of the key-value store, in order.
    """

    def __init__(self, kv: Store, folder: Path, clock: ManualClock, create: bool = False) -> None:
        self.calls: list[tuple[str, bytes, bytes]] = []
        self.store = FaultyStore(kv, self._plan)
        self.next: Callable[[str, bytes, bytes], Outcome] = lambda call, partition, key: Outcome.DONE
        self._opens = (Settings(kv="memory://", blob=f"file://{folder}", synced=False, committer="t"), clock)
        find_or_make(self.store, self.store, self._opens[0], clock, create=True)
        self.lake = Lake(self._opens[0], self.store, clock)
        self.repo: Repository = self.lake.repository("nyc", create=create)
        self.main: Branch = self.repo.branch("main")

    def _plan(self, call: str, partition: bytes, key: bytes) -> Outcome:
        self.calls.append((call, partition, key))
        return self.next(call, partition, key)

    def fresh(self) -> Repository:
        """The repository, opened anew: nothing is in memory."""
        settings, clock = self._opens
        return Lake(settings, self.store, clock).repository("nyc")

    def cut_off(self) -> None:
        """The key-value store does not answer this driver any more."""

        def plan(call: str, partition: bytes, key: bytes) -> Outcome:
            return Outcome.NOT_DONE

        self.next = plan

    def connect(self) -> None:
        self.next = lambda call, partition, key: Outcome.DONE

    def lose(self, call: str, part: bytes, number: int = 1, outcome: Outcome = Outcome.DONE_BUT_LOST) -> None:
        """What becomes of the n-th call of a kind on a partition; all others go well."""
        left = number

        def plan(name: str, partition: bytes, key: bytes) -> Outcome:
            nonlocal left
            if name == call and part in partition:
                left -= 1
                if left == 0:
                    return outcome
            return Outcome.DONE

        self.next = plan


def at_each_call(driver: Driver, act: Callable[[], object], other: Callable[[], object]) -> Iterator[int]:
    """Run `act` again and again, with `other` right before its next call each time, until it makes no more."""
    for point in range(MAX_POINTS):
        left = point

        def plan(_call: str, _partition: bytes, _key: bytes) -> Outcome:
            nonlocal left
            left -= 1
            if left == -1:
                other()
            return Outcome.DONE

        driver.next = plan
        try:
            act()
        finally:
            driver.connect()
        yield point
        if left >= 0:
            return
    pytest.fail(f"it makes more than {MAX_POINTS} calls")


def begun(driver: Driver, writer: str = "nightly", **options: object) -> Transaction:
    return driver.main.transaction(writer, **options).begin()  # type: ignore[arg-type]


def states(driver: Driver) -> dict[int, str]:
    return {found.id: found.state for found in driver.main.transactions}


def shown(driver: Driver) -> list[str]:
    return [info.path for info in driver.main.list()]


def blobs(driver: Driver, prefix: str = "data/") -> set[str]:
    return {blob.key for blob in driver.repo._core.resolver.namespace.list(prefix)}
