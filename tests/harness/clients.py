"""Several clients of one lake in one process, each with caches, faults and interruptions of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from strandline.ids import new_id
from strandline.kv.memory import MemoryStore
from strandline.lake import Lake
from strandline.opening import find_or_make
from strandline.redaction import SecretUrl
from strandline.repository.branch import Branch
from strandline.repository.repository import Repository
from strandline.repository.transactions.transaction import Transaction
from strandline.settings import Settings
from strandline.testing.clock import ManualClock
from strandline.testing.faults import FaultyStore, Outcome
from strandline.tree.rows import Entry

MAX_POINTS = 300
Plan = Callable[[str, bytes, bytes], Outcome]


@dataclass
class Shared:
    """What all clients share: the stores and the clock."""

    kv: MemoryStore = field(default_factory=MemoryStore)
    clock: ManualClock = field(default_factory=ManualClock)
    blob: str | Path = field(default_factory=lambda: f"memory://{new_id()}")


class Client:
    """A process of its own, as far as it can tell.

    `before(call, n, action)` runs something of another client right before the n-th call of this kind from now on;
    `meet(call, n, outcome)` decides what becomes of it. `lose` does so for the n-th call on a partition, and `next`
    for all calls.

    Attributes:
        calls: what it asked of the key-value store, in order.
    """

    def __init__(self, shared: Shared, create: bool = False) -> None:
        self.calls: list[tuple[str, bytes, bytes]] = []
        self.store = FaultyStore(shared.kv, self._plan)
        self.next: Plan = _done
        self._rules: list[tuple[str, list[int], Callable[[], Outcome]]] = []
        blob = f"file://{shared.blob}" if isinstance(shared.blob, Path) else shared.blob
        self._opens = (Settings(kv=SecretUrl("memory://"), blob=blob, synced=False, committer="tester"), shared.clock)
        find_or_make(self.store, self.store, *self._opens, create=create)
        self.lake = Lake(self._opens[0], self.store, shared.clock)
        self.repo: Repository = self.lake.repository("nyc", create=create)
        self.main: Branch = self.repo.branch("main")

    def _plan(self, call: str, partition: bytes, key: bytes) -> Outcome:
        self.calls.append((call, partition, key))
        outcome = Outcome.DONE
        for rule in list(self._rules):
            name, left, action = rule
            if name in (call, "*"):
                left[0] -= 1
                if left[0] == 0:
                    self._rules.remove(rule)
                    outcome = action()
        return outcome if outcome is not Outcome.DONE else self.next(call, partition, key)

    def before(self, call: str, n: int, action: Callable[[], object]) -> None:
        def run() -> Outcome:
            action()
            return Outcome.DONE

        self._rules.append((call, [n], run))

    def meet(self, call: str, n: int, outcome: Outcome) -> None:
        self._rules.append((call, [n], lambda: outcome))

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
        self.next = _done

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


def _done(call: str, partition: bytes, key: bytes) -> Outcome:
    return Outcome.DONE


def failing_at(number: int, outcome: Outcome) -> Plan:
    """The n-th call meets a fault, all others go well; reads cannot be late or lost."""
    left = number

    def plan(name: str, partition: bytes, key: bytes) -> Outcome:
        nonlocal left
        left -= 1
        fails = left == 0 and (outcome is Outcome.NOT_DONE or name in ("set", "set_if", "set_many"))
        return outcome if fails else Outcome.DONE

    return plan


def at_each_call(client: Client, act: Callable[[], object], other: Callable[[], object]) -> Iterator[int]:
    """Run `act` again and again, with `other` right before its next call each time, until it makes no more."""
    for point in range(MAX_POINTS):
        left = point

        def plan(_call: str, _partition: bytes, _key: bytes) -> Outcome:
            nonlocal left
            left -= 1
            if left == -1:
                other()
            return Outcome.DONE

        client.next = plan
        try:
            act()
        finally:
            client.connect()
        yield point
        if left >= 0:
            return
    pytest.fail(f"it makes more than {MAX_POINTS} calls")


def begun(client: Client, writer: str = "nightly", **options: object) -> Transaction:
    return client.main.transaction(writer, **options).begin()  # type: ignore[arg-type]


def states(client: Client) -> dict[int, str]:
    return {found.id: found.state for found in client.main.transactions}


def shown(client: Client) -> list[str]:
    return [info.path for info in client.main.list()]


def blobs(client: Client, prefix: str = "data/") -> set[str]:
    return {blob.key for blob in client.repo._core.resolver.namespace.list(prefix)}


def link(branch: Branch, path: str, content: object) -> None:
    branch.stage(path, Entry(f"data/{content}", 1, f"sum:{content}", 1))


def content(branch: Branch, path: str) -> str | None:
    found = branch.find(path)
    return None if found is None else found.checksum.removeprefix("sum:")


def entry(value: object) -> Entry:
    return Entry(f"data/{value}", 1, f"sum:{value}", 1)
