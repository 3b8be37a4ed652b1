"""Shards over stores in memory, as several processes see them, with faults and a clock that tests move."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import pyarrow as pa

from strandline.blob.store import PutMode
from strandline.clock import Event
from strandline.kv.memory import MemoryStore
from strandline.kv.store import Store
from strandline.shards.deciding.machine import Machine, Place
from strandline.shards.log.kv_consensus import KvConsensus
from strandline.shards.log.metering import Meter
from strandline.shards.rows.codec import check_schema, serialised
from strandline.shards.shard import Shard
from strandline.shards.state.state import ShardId
from strandline.shards.state.transitions import INLINE_MAX_BYTES, initial
from strandline.shards.upkeep.upkeep import Heartbeats
from strandline.testing.clock import ManualClock
from strandline.testing.faults import Outcome
from strandline.testing.faulty_shards import FaultyBlobs, FaultyConsensus, Plan
from strandline.testing.simulation.stores import SharedBlobs

SCHEMA = pa.schema([("key", pa.string()), ("value", pa.int64())])
TICK_US = 1_000
LONG_S = 1.5
"""Longer waits are for threads: those take as long as they take."""
SHARD = ShardId("shard")
Update = tuple[tuple[Any, Any], int, int]


class _Waited(threading.Event):
    """An event that is waited for with a limit in no time but the clock's."""

    def __init__(self, clock: TickingClock) -> None:
        super().__init__()
        self._clock = clock

    def wait(self, timeout: float | None = None) -> bool:
        if timeout is not None and timeout < LONG_S and not self.is_set():
            self._clock.advance_s(timeout)
            return self.is_set()
        return super().wait(timeout)


class TickingClock(ManualClock):
    """Moves a little whenever it is read, and by as much as is slept."""

    def now_us(self) -> int:
        self._now_us += TICK_US
        return self._now_us

    def sleep(self, seconds: float) -> None:
        self.advance_s(seconds)

    def event(self) -> Event:
        return _Waited(self)


class DatedBlobs(SharedBlobs):
    """Blobs that know when they were written."""

    def __init__(self, clock: TickingClock) -> None:
        super().__init__()
        self._clock = clock

    def put(self, key: str, data: bytes | BinaryIO, mode: PutMode = "overwrite") -> None:
        super().put(key, data, mode)
        self.times[key] = self._clock.now_us()


class NoUpkeep:
    """Nothing happens beside the callers."""

    def start(self, key: tuple[str, ...], job: Callable[[], object]) -> None: ...

    def pause(self, seconds: float) -> bool:
        return True


@dataclass
class Stage:
    """One shard and the stores that all processes share.

    Attributes:
        inline_max_bytes, inline_total_bytes: of all its processes.
    """

    inline_max_bytes: int = INLINE_MAX_BYTES
    inline_total_bytes: int = 1 << 20
    schema: pa.Schema = field(default_factory=lambda: SCHEMA)
    key: list[str] = field(default_factory=lambda: ["key"])
    kv: Store = field(default_factory=MemoryStore)
    clock: TickingClock = field(default_factory=TickingClock)
    blobs: SharedBlobs = field(init=False)
    shard_id: ShardId = SHARD

    def __post_init__(self) -> None:
        self.blobs = DatedBlobs(self.clock)

    def process(self, *, create: bool = True, codec: str = "columns") -> Process:
        """A process of its own: what it knows of the shard is its own."""
        consensus = FaultyConsensus(KvConsensus(self.kv, b"logs"))
        blobs = FaultyBlobs(self.blobs)
        place = Place(
            self.shard_id,
            consensus,
            blobs,
            "shards/it",
            self.clock,
            "host",
            self.inline_max_bytes,
            self.inline_total_bytes,
        )
        machine = Machine(place)
        if create:
            machine.create(initial(self.shard_id, "it", codec, serialised(*check_schema(self.schema, self.key))))
        shard = Shard("it", machine, Heartbeats(NoUpkeep(), "it", self.clock), Meter(), (Stage, ()))
        return Process(shard, machine, consensus, blobs)

    @property
    def log(self) -> KvConsensus:
        """The log, as somebody without a fault sees it."""
        return KvConsensus(self.kv, b"logs")

    @property
    def blob_keys(self) -> list[str]:
        return sorted(key.removeprefix("shards/it/") for key in self.blobs.blobs)


@dataclass
class Process:
    shard: Shard
    machine: Machine
    consensus: FaultyConsensus
    blobs: FaultyBlobs

    @property
    def seqno(self) -> int:
        return self.machine.refreshed().seqno

    def fail(self, call: str, *outcomes: Outcome) -> None:
        """The next calls of a name have these outcomes, then all are done."""
        left = list(outcomes)

        def plan(name: str, _key: str) -> Outcome:
            return left.pop(0) if left and name == call else Outcome.DONE

        self._plan(plan)

    def _plan(self, plan: Plan) -> None:
        self.consensus.faults.plan = plan
        self.blobs.faults.plan = plan


def update(key: str, value: int, time: int, diff: int = 1) -> Update:
    return (key, value), time, diff


class History:
    """Appends of random changes, beside the list of them all."""

    def __init__(self, stage: Stage) -> None:
        self.process = stage.process()
        self.writer = self.process.shard.writer("w")
        self.updates: list[Update] = []
        self.upper = 0

    def append(self, changes: list[tuple[tuple[str, int], int, int]]) -> None:
        """Changes at up to three times, then the upper lies beyond them."""
        batch = [(row, self.upper + step - 1, diff) for row, step, diff in changes]
        self.writer.compare_and_append(batch, self.upper, self.upper + 3)
        self.updates += batch
        self.upper += 3


def summed(updates: Sequence[Update], as_of: int) -> dict[tuple[Any, Any], int]:
    """The contents at a time, from updates; what an oracle says."""
    found: dict[tuple[Any, Any], int] = {}
    for row, time, diff in updates:
        if time <= as_of:
            found[row] = found.get(row, 0) + diff
    return {row: diff for row, diff in found.items() if diff}


def held(shard: Shard, as_of: int) -> dict[tuple[Any, Any], int]:
    """The contents at a time, as a snapshot tells."""
    found = shard.snapshot(as_of, timeout_s=0).to_list()
    assert all(time == as_of for _, time, _ in found)
    assert len({row for row, _, _ in found}) == len(found)
    return {row: diff for row, _, diff in found}
