"""Several clients of one lake in one process, each with faults and interruptions of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from strandline import opening
from strandline.ids import new_id
from strandline.kv.memory import MemoryStore
from strandline.lake import open_lake
from strandline.repository.branch import Branch
from strandline.repository.repository import Repository
from strandline.settings import Settings
from strandline.testing.clock import ManualClock
from strandline.testing.faults import FaultyStore, Outcome
from strandline.tree.rows import Entry


@dataclass
class Shared:
    """What all clients share: the stores and the clock."""

    kv: MemoryStore = field(default_factory=MemoryStore)
    clock: ManualClock = field(default_factory=ManualClock)
    blob: str = field(default_factory=lambda: f"memory://{new_id()}")


class Client:
    """A process of its own, as far as caches go.

    `before(call, n, action)` runs something of another client right before the n-th call of this kind from now on;
    `meet(call, n, outcome)` decides what becomes of it.
    """

    def __init__(self, shared: Shared, create: bool = False) -> None:
        self.store = FaultyStore(shared.kv, self._plan)
        self._rules: list[tuple[str, list[int], Callable[[], Outcome]]] = []
        settings = Settings(kv="memory://unused", blob=shared.blob, committer="tester")
        opening._memory["memory://unused"] = self.store
        self.lake = open_lake(settings, create=create, clock=shared.clock)
        self.repo: Repository = self.lake.repository("nyc", create=create)
        self.main: Branch = self.repo.branch("main")

    def _plan(self, call: str, partition: bytes, key: bytes) -> Outcome:
        outcome = Outcome.DONE
        for rule in list(self._rules):
            name, left, action = rule
            if name in (call, "*"):
                left[0] -= 1
                if left[0] == 0:
                    self._rules.remove(rule)
                    outcome = action()
        return outcome

    def before(self, call: str, n: int, action: Callable[[], object]) -> None:
        def run() -> Outcome:
            action()
            return Outcome.DONE

        self._rules.append((call, [n], run))

    def meet(self, call: str, n: int, outcome: Outcome) -> None:
        self._rules.append((call, [n], lambda: outcome))


def link(branch: Branch, path: str, content: object) -> None:
    branch.stage(path, Entry(f"data/{content}", 1, f"sum:{content}", 1))


def content(branch: Branch, path: str) -> str | None:
    found = branch.find(path)
    return None if found is None else found.checksum.removeprefix("sum:")


def entry(value: object) -> Entry:
    return Entry(f"data/{value}", 1, f"sum:{value}", 1)


def paths(client: Client) -> list[str]:
    return [info.path for info in client.main.list()]
