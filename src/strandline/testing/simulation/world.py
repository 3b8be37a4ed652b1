"""Processes with caches of their own over shared stores."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

from strandline import ids
from strandline.blob import Resolver
from strandline.branch.commits import CommitLog
from strandline.branch.rules.record import BranchRecord, RefRecord
from strandline.branch.stores import Stores
from strandline.clock import Event, Microseconds
from strandline.core.record import LockOwner, RepositoryRecord
from strandline.core.repository_core import RepositoryCore
from strandline.envelope import decode
from strandline.errors import StrandlineError
from strandline.ids import CommitId, RepositoryId
from strandline.kv.memory import MemoryStore
from strandline.kv.store import Store
from strandline.repository.handles import open_ref
from strandline.repository.names.repositories import create_repository
from strandline.repository.repository import Repository
from strandline.testing.clock import START_US, ManualClock
from strandline.testing.simulation.history import CREATED, PATHS, History, Listing, Operation, RecordChange
from strandline.testing.simulation.scheduler import Killed, Process, Scheduler, SimulatedEvent, Task
from strandline.testing.simulation.stores import STEP_US, SharedBlobs, SimulatedBlobs, SimulatedStore, WatchedStore
from strandline.tree.store import TreeStore

NAME = "simulated"
OWNER = "locker"
REPOSITORY_ID = RepositoryId("r" * 20)
CACHE_MAX_BYTES = 1 << 22
DAY_US = 86_400_000_000


class SimulatedClock:
    """A clock of one process: steps, and whatever is wrong with it.

    Attributes:
        jumps: from a step on, by how much it is wrong, in microseconds.
    """

    def __init__(self, scheduler: Scheduler, jumps: list[tuple[int, Microseconds]]) -> None:
        self._scheduler = scheduler
        self.jumps = jumps

    def now_us(self) -> Microseconds:
        wrong = 0
        for step, by in self.jumps:
            if self._scheduler.step >= step:
                wrong = by
        return START_US + self._scheduler.step * STEP_US + wrong

    def sleep(self, seconds: float) -> None:
        self._scheduler.sleep(1 + round(seconds * 200))

    def event(self) -> Event:
        return SimulatedEvent(self._scheduler)


def some_clock(rnd: random.Random) -> list[tuple[int, int]]:
    """Mostly right; some are wrong by up to three days, and jump."""
    if rnd.random() < 0.7:
        return []
    return [(0, rnd.randrange(-3 * DAY_US, 3 * DAY_US)), (rnd.randrange(2_000), rnd.randrange(-DAY_US, DAY_US))]


class SimulatedUpkeep:
    """Background work as further tasks of the process."""

    def __init__(self, scheduler: Scheduler, process: Process) -> None:
        self._scheduler = scheduler
        self._process = process
        self._running: set[tuple[str, ...]] = set()

    def start(self, key: tuple[str, ...], job: Callable[[], object]) -> None:
        if key in self._running:
            return
        self._running.add(key)

        def run() -> None:
            try:
                job()
            except Killed:
                raise
            except StrandlineError:
                pass  # as in `BackgroundThreads`: it is begun again when it is needed again
            finally:
                self._running.discard(key)

        task = self._scheduler.spawn(self._process, f"{self._process.name}/{key[0]}", run)
        task.operation = Operation(-1, self._process.name, f"background {key[0]}", key[-1], "", self._scheduler.step)

    def pause(self, seconds: float) -> bool:
        self._scheduler.sleep(20)
        return False

    def close(self) -> None: ...


@contextmanager
def seeded_ids(seed: int | str) -> Iterator[None]:
    """New identifiers, and the jitter of retries, come from a seed."""
    before, state = ids.random_bytes, random.getstate()
    ids.random_bytes = random.Random(seed).randbytes
    random.seed(seed)
    try:
        yield
    finally:
        ids.random_bytes = before
        random.setstate(state)


@cache
def _empty() -> tuple[dict[bytes, dict[bytes, bytes]], dict[str, bytes]]:
    """A new repository, as the stores hold it."""
    kv, blobs = MemoryStore(), SharedBlobs()
    record = RepositoryRecord(
        id=REPOSITORY_ID,
        name=NAME,
        namespace=NAME,
        default_branch="main",
        created_at=START_US,
        lock_owners=(LockOwner(OWNER, "for this simulation", START_US),),
    )
    clock = ManualClock()
    with seeded_ids("an empty repository"):  # no seed of a schedule, so that no id comes twice
        create_repository(
            kv,
            clock,
            record,
            lambda found: blobs.url,
            "simulator",
            lambda _: Stores(kv, TreeStore(blobs), clock, REPOSITORY_ID, "simulator"),
            "simulated lake",
        )
    return {name: dict(held.values) for name, held in kv._partitions.items()}, blobs.blobs


class World:
    """What the processes of one schedule share.

    Attributes:
        clocks_agree: no process has a clock that is wrong.
        moves_before: how often the heads of branches had moved when the history began.
        has_bytes: whether clients upload the bytes of what they write, so that somebody can collect them.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.history = History()
        self.kv = WatchedStore(self._changed)
        self.blobs = SharedBlobs()
        partitions, blobs = _empty()
        for partition, values in partitions.items():
            self.kv.set_many(partition, list(values.items()))
        self.blobs.blobs.update(blobs)
        self.cores: list[RepositoryCore] = []
        self.paths: tuple[str, ...] = PATHS
        self.has_bytes = False
        self.clocks_agree = True
        self.missing: list[str] = []
        self.moves_before: dict[str, int] = {}
        self._looking = self.outside()._core

    def process(self, name: str, jumps: list[tuple[int, Microseconds]]) -> tuple[Process, Repository]:
        """A process of its own: caches, clock, background work."""
        process = Process(name)
        self.clocks_agree &= not jumps
        kv = SimulatedStore(self.kv, self.scheduler)
        trees = TreeStore(SimulatedBlobs(self.blobs, self.scheduler), CACHE_MAX_BYTES)
        clock = SimulatedClock(self.scheduler, jumps)
        upkeep = SimulatedUpkeep(self.scheduler, process)
        stores = Stores(kv, trees, clock, REPOSITORY_ID, name)
        core = self._core(stores, upkeep)
        self.cores.append(core)
        return process, Repository(core)

    def outside(self, days: int = 0) -> Repository:
        """A process that comes when all others have ended, and which nothing happens to."""
        clock = ManualClock(START_US + self.scheduler.step * STEP_US + days * DAY_US)
        stores = Stores(self.kv, TreeStore(self.blobs, CACHE_MAX_BYTES), clock, REPOSITORY_ID, "outside")
        return Repository(self._core(stores, SimulatedUpkeep(self.scheduler, Process("outside")), compacts=False))

    def _core(self, stores: Stores, upkeep: SimulatedUpkeep, compacts: bool = True) -> RepositoryCore:
        return RepositoryCore(
            name=NAME,
            stores=stores,
            commits=CommitLog(stores),
            resolver=Resolver(stores.trees.blobs),
            reopen=(World, ()),
            open_ref=open_ref,
            upkeep=upkeep,
            compacts=compacts,
        )

    def _changed(self, partition: bytes, key: bytes, before: bytes | None, after: bytes) -> None:
        if not partition.endswith(b"/refs"):
            return
        old, new = as_branch(before), as_branch(after)
        task: Task | None = self.scheduler._current
        change = RecordChange(self.scheduler.step, key.decode(), old, new, task.operation if task else None)
        self.history.changes.append(change)
        for record in (old, new):
            if record is not None and record.head not in self.history.listings:
                self._note_head(record.head)

    def _note_head(self, head: CommitId) -> None:
        try:
            commit = self._looking.commits.get(head)
            tables = list(self._looking.stores.trees.scan(self._looking.commits.tree(head)))
        except StrandlineError as error:
            self.missing.append(f"commit {head}: {error}")
            return
        held: Listing = dict.fromkeys((*PATHS, CREATED))
        for rows in tables:
            held.update(zip(rows.column("path").to_pylist(), rows.column("checksum").to_pylist(), strict=True))
        self.history.commits[head] = commit
        self.history.listings[head] = held


def as_branch(raw: bytes | None) -> BranchRecord | None:
    record = None if raw is None else decode(RefRecord, raw, "a branch")
    return record if isinstance(record, BranchRecord) else None


def partitions_with(store: Store, part: bytes) -> dict[bytes, dict[bytes, bytes]]:
    """The partitions of a memory store whose name contains something, with what they hold."""
    assert isinstance(store, MemoryStore)
    return {name: held.values for name, held in store._partitions.items() if part in name and held.values}
