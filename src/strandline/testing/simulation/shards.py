"""Shards under seeded schedules: writers, sinks and their zombies, readers, listeners, compactors, collectors.

The truth is what the log's records appended, in their order, noted at the instant of each swap. Everything that anybody
read must be what the truth says, and every blob that a live state refers to must be there at every instant.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from random import Random
from typing import Any, BinaryIO
from unittest.mock import patch

import pyarrow as pa

from strandline.blob.store import PutMode
from strandline.envelope import decode
from strandline.errors import (
    BeforeSince,
    Contention,
    ReaderExpired,
    ReaderFenced,
    ShardTimeout,
    StoreUnavailable,
    StrandlineError,
    UpperMismatch,
)
from strandline.shards.deciding.machine import Machine, Place
from strandline.shards.handles.durable_reader import DurableReader
from strandline.shards.handles.listen import Listen
from strandline.shards.handles.reader import Reader
from strandline.shards.log.blob_consensus import BlobConsensus
from strandline.shards.log.consensus import Consensus
from strandline.shards.log.kv_consensus import Head, KvConsensus
from strandline.shards.log.metering import Meter
from strandline.shards.rows.codec import check_schema, serialised
from strandline.shards.rows.contents import as_tuples, pieces_of
from strandline.shards.shard import Shard
from strandline.shards.state.diff import Diff, apply
from strandline.shards.state.state import Batch, ShardId, State
from strandline.shards.state.transitions import initial
from strandline.shards.upkeep.collection import collect, sweep, write_rollup
from strandline.shards.upkeep.compaction import compact_all, compact_once, rows_of
from strandline.shards.upkeep.upkeep import Heartbeats
from strandline.testing.simulation.history import Broken
from strandline.testing.simulation.scheduler import Endless, Process, Scheduler, some_faults
from strandline.testing.simulation.stores import (
    SharedBlobs,
    SimulatedBlobs,
    SimulatedObjects,
    SimulatedStore,
    WatchedStore,
    store_time,
)
from strandline.testing.simulation.world import SimulatedClock, seeded_ids, some_clock

FAMILY = "shards"
SHARD = ShardId("simulated")
PARTITION = b"shards/logs"
SCHEMA = pa.schema([("key", pa.string()), ("value", pa.int64())])
LEASE_S = 1_000_000
"""Longer than a schedule, for clocks that are right."""
SINKS = ("sink", "other-sink")
Row = tuple[Any, Any]
Update = tuple[Row, int, int]

ROLES: dict[str, tuple[str, ...]] = {
    "writer": ("append", "append", "append next", "append nothing", "blind append"),
    "sink": ("epoch", "epoch", "append"),
    "reader": ("read", "read", "hold", "read held", "give up", "append"),
    "listener": ("listen", "next", "next", "append"),
    "durable": ("claim", "move", "read", "append"),
    "upkeep": ("merge", "merge all", "rollup", "collect", "sweep"),
    "collector": ("rollup", "collect", "merge all"),
}
SCENARIOS = (
    ("writer", "writer", "reader", "upkeep"),
    ("sink", "sink", "listener", "collector"),
    ("writer", "reader", "upkeep", "collector"),
    ("writer", "durable", "durable", "upkeep"),
    ("listener", "reader", "upkeep", "writer", "sink"),
)


@dataclass(slots=True, eq=False)
class Call:
    """A call of a client: what it asked, and what it was told.

    Attributes:
        start, end: steps; the end is infinite as long as the call may still take effect.
        status: "ok", "refused" (it says that nothing happened), or "unknown".
    """

    number: int
    client: str
    kind: str
    start: int
    end: float = math.inf
    status: str = "unknown"
    error: str = ""
    rows: tuple[Row, ...] = ()
    as_of: int = 0
    seen: dict[Row, int] | None = None

    def __str__(self) -> str:
        told = f" rows={list(self.rows)}" if self.rows else ""
        seen = "" if self.seen is None else f" saw {sorted(self.seen.items())} at {self.as_of}"
        return f"[{self.start}–{self.end}] {self.client} {self.kind}{told}: {self.error or self.status}{seen}"


@dataclass(slots=True)
class Appended:
    """Updates that a record of the log added."""

    seqno: int
    step: int
    updates: list[Update]
    lower: int
    upper: int


class WatchedBlobs(SharedBlobs):
    """Knows when each blob was written, and tells of each deletion."""

    def __init__(self, scheduler: Scheduler, deleted: Callable[[str], None]) -> None:
        super().__init__()
        self._scheduler = scheduler
        self._deleted = deleted

    def put(self, key: str, data: bytes | BinaryIO, mode: PutMode = "overwrite") -> None:
        super().put(key, data, mode)
        self.times[key] = store_time(self._scheduler.step)

    def delete_many(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._deleted(key)
            super().delete_many([key])


class WatchedLog(SharedBlobs):
    """The objects of a log; tells of each record that is made."""

    def __init__(self, made: Callable[[int, bytes], None]) -> None:
        super().__init__()
        self._made = made

    def put(self, key: str, data: bytes | BinaryIO, mode: PutMode = "overwrite") -> None:
        super().put(key, data, mode)
        if mode == "create":
            self._made(int(key.rpartition("/")[2]), self.blobs[key])


class World:
    """What the processes of one schedule share, and the truth about it.

    Attributes:
        log: the records, if consensus is on objects; otherwise they are in the key-value store.
    """

    def __init__(self, scheduler: Scheduler, inline_max_bytes: int, clocks_agree: bool, *, on_objects: bool) -> None:
        self.scheduler = scheduler
        self.inline_max_bytes = inline_max_bytes
        self.clocks_agree = clocks_agree
        self.kv = WatchedStore(self._swapped)
        self.log = WatchedLog(self._created) if on_objects else None
        self.blobs = WatchedBlobs(scheduler, self._deleted)
        self.states: dict[int, State] = {}
        self.newest: State | None = None
        self.appended: list[Appended] = []
        self.calls: list[Call] = []
        self.broken: list[Broken] = []

    def shard(self, name: str, process: Process | None, jumps: list[tuple[int, int]]) -> Shard:
        """The shard as a process sees it; without a process, as somebody sees it whom nothing happens to."""
        clock = SimulatedClock(self.scheduler, jumps)
        kv = self.kv if process is None else SimulatedStore(self.kv, self.scheduler)
        blobs = self.blobs if process is None else SimulatedBlobs(self.blobs, self.scheduler)
        consensus: Consensus = KvConsensus(kv, PARTITION)
        if self.log is not None:
            objects = self.log if process is None else SimulatedObjects(self.log, self.scheduler)
            consensus = BlobConsensus(objects, "log")
        place = Place(SHARD, consensus, blobs, "it", clock, name, self.inline_max_bytes)
        return Shard("it", Machine(place), Heartbeats(_Nobody(), name, clock), Meter(), (World, ()))

    # --- the truth ----------------------------------------------------------------------------------------------------

    def _swapped(self, partition: bytes, key: bytes, before: bytes | None, after: bytes) -> None:
        head: Head = decode(Head, after, "head")
        if self.newest is None or head.seqno != self.newest.seqno:  # else it is a truncation
            self._recorded(head.newest.data)

    def _created(self, seqno: int, data: bytes) -> None:
        newest = 0 if self.newest is None else self.newest.seqno
        if seqno == newest + 1:
            self._recorded(data)
        elif seqno > newest:
            self._break("a log has no gaps", f"record {seqno} came after {newest}")
        # else a truncation removed the number: the record is in nobody's log, and its maker has to find that out

    def _recorded(self, data: bytes) -> None:
        diff: Diff = decode(Diff, data, "diff")
        old = self.newest
        state: State = apply(old, diff)
        self.newest = self.states[state.seqno] = state
        if old is None:
            return
        if state.since < old.since or state.upper < old.upper:
            self._break("frontiers never go back", f"{old.since}, {old.upper} became {state.since}, {state.upper}")
        missing = [part_key for part_key in state.blob_keys() if f"it/{part_key}" not in self.blobs.blobs]
        if missing:
            self._break("what a state refers to is there when it is made", f"{state.seqno}: {missing}")
        held = [reader.since for reader in state.readers.values()]
        held += [reader.since for reader in state.durable_readers.values()]
        if held and state.since > min(held):
            self._break("the since is not beyond what a reader holds", f"{state.since} > {min(held)}")
        known = {batch.id for batch in old.batches}
        if state.upper > old.upper:
            new = [batch for batch in state.batches if batch.id not in known]
            updates = [update for batch in new for update in self._updates(state, batch)]
            self.appended.append(Appended(state.seqno, self.scheduler.step, updates, old.upper, state.upper))

    def _updates(self, state: State, batch: Batch) -> list[Update]:
        shard = self.shard("truth", None, [])
        rows = rows_of(shard._machine, state)
        tables = rows.read(list(pieces_of(batch)), self.blobs)
        return [update for table in tables for update in as_tuples(table, rows.make_codec())]

    def _deleted(self, key: str) -> None:
        newest = self.newest
        if newest is None or key not in self.blobs.blobs:
            return
        name = key.removeprefix("it/")
        for seqno in range(newest.seqno_since, newest.seqno + 1):
            if name in self.states[seqno].blob_keys():
                self._break("no blob goes that a held state refers to", f"{name} of state {seqno}")
                return

    def _break(self, promise: str, what: str) -> None:
        self.broken.append(Broken(promise, what))

    def contents(self, as_of: int) -> dict[Row, int]:
        found: Counter[Row] = Counter()
        for one in self.appended:
            for row, time, diff in one.updates:
                if time <= as_of:
                    found[row] += diff
        return {row: diff for row, diff in found.items() if diff}

    def changes(self, after: int, before: int) -> Counter[tuple[Row, int]]:
        found: Counter[tuple[Row, int]] = Counter()
        for one in self.appended:
            for row, time, diff in one.updates:
                if after < time < before:
                    found[row, time] += diff
        return Counter({change: diff for change, diff in found.items() if diff})


class _Nobody:
    """Leases are renewed by what clients do, not beside them."""

    def start(self, key: tuple[str, ...], job: Callable[[], object]) -> None: ...

    def pause(self, seconds: float) -> bool:
        return True


@dataclass
class Client:
    """A client of a shard: what it does is picked by the seed, among what its role does."""

    world: World
    shard: Shard
    process: Process
    name: str
    role: str
    steps: int
    rnd: Random = field(init=False)
    reader: Reader | None = None
    durable: DurableReader | None = None
    listen: Listen | None = None
    listened_from: int = 0
    told: Counter[tuple[Row, int]] = field(default_factory=Counter)
    epoch: int = 0

    def __post_init__(self) -> None:
        self.rnd = self.world.scheduler.random

    def run(self) -> None:
        for _ in range(self.steps):
            self.perform(self.rnd.choice(ROLES[self.role]))

    def perform(self, kind: str) -> None:
        """Do an operation, and note what became of it."""
        call = Call(len(self.world.calls), self.name, kind, self.world.scheduler.tick())
        self.world.calls.append(call)
        act: Callable[[Call], None] = getattr(self, "_" + kind.replace(" ", "_"))
        try:
            act(call)
            call.status = "ok"
        except (UpperMismatch, BeforeSince, ReaderExpired, ReaderFenced, ShardTimeout) as error:
            call.status, call.error = "refused", type(error).__name__
            self._judge_refusal(call, error)
        except StoreUnavailable as error:
            call.status = "refused" if error.happened == "no" else "unknown"
            call.error = type(error).__name__
        except Contention as error:
            call.status, call.error = "refused", type(error).__name__
        if call.status != "unknown":
            call.end = self.world.scheduler.tick()

    def _judge_refusal(self, call: Call, error: StrandlineError) -> None:
        if isinstance(error, UpperMismatch | ShardTimeout | ReaderFenced):
            return
        if call.kind in ("read held", "next") and self.world.clocks_agree and self.reader is not None:
            self.world._break("what a reader holds can be read", f"{call}: {error.what}")
        if call.kind == "next":
            self.listen = None

    # --- writing ------------------------------------------------------------------------------------------------------

    def _updates(self, call: Call, lower: int, upper: int) -> list[Update]:
        """Updates that no other call makes, some of which cancel earlier ones."""
        updates: list[Update] = [
            ((f"c{call.number}", number), self.rnd.randrange(lower, upper), 1)
            for number in range(self.rnd.randrange(1, 4))
        ]
        call.rows = tuple(row for row, _, _ in updates)
        updates.append((("shared", 0), lower, self.rnd.choice((-1, 1))))
        return updates

    def _append(self, call: Call) -> None:
        lower = self.shard.state.upper
        upper = lower + self.rnd.randrange(1, 4)
        self.shard.writer(self._writer_name()).compare_and_append(
            self._updates(call, lower, upper), lower, upper, timeout_s=30
        )

    def _append_next(self, call: Call) -> None:
        call.rows = ((f"c{call.number}", 0),)
        self.shard.writer(self._writer_name()).append_next([(call.rows[0], 0, 1)], timeout_s=30)

    def _writer_name(self) -> str:
        return self.rnd.choice(("", self.name))

    def _append_nothing(self, call: Call) -> None:
        lower = self.shard.state.upper
        self.shard.writer().compare_and_append([], lower, lower + self.rnd.randrange(0, 3), timeout_s=30)

    def _blind_append(self, call: Call) -> None:
        """At the upper as this process remembers it."""
        lower = self.shard._machine.state.upper
        self.shard.writer().compare_and_append(self._updates(call, lower, lower + 1), lower, lower + 1, timeout_s=30)

    def _epoch(self, call: Call) -> None:
        """What a sink's drivers do: each that comes back repeats an epoch, or goes on with the next."""
        sink = SINKS[0] if self.rnd.random() < 0.8 else SINKS[1]
        writer = self.shard.writer(sink)
        known = self.shard.state.writers.get(writer.id)
        self.epoch = max(0, (known.epoch if known else -1) + self.rnd.choice((0, 1, 1, 1)))
        writer.append_epoch([((f"{sink}-{self.epoch}", 0), 0, 1)], self.epoch, timeout_s=30)

    # --- reading ------------------------------------------------------------------------------------------------------

    def _read(self, call: Call) -> None:
        state = self.shard.state
        if state.upper <= state.since:
            return
        call.as_of = self.rnd.randrange(state.since, state.upper)
        self._note(call, self.shard.snapshot(call.as_of, timeout_s=0).to_list())

    def _hold(self, call: Call) -> None:
        if self.reader is None:
            self.reader = self.shard.reader(lease_s=LEASE_S)

    def _read_held(self, call: Call) -> None:
        reader = self.reader
        if reader is None or reader.since.is_empty:
            return
        upper = self.shard.state.upper
        if upper <= reader.since.bound:
            return
        call.as_of = self.rnd.randrange(reader.since.bound, upper)
        with reader.snapshot(call.as_of, num_splits=2, timeout_s=0) as snapshot:
            self.world.scheduler.sleep(self.rnd.randrange(1, 40))
            found = []
            for split in snapshot.splits:
                table = split.to_arrow(blobs=self.shard._machine.place.blobs)
                found += list(as_tuples(table, self.shard._open.codec))
            self._note(call, found)

    def _give_up(self, call: Call) -> None:
        if self.reader is None:
            return
        if self.rnd.random() < 0.2:
            self.reader.close()
            self.reader = None
            return
        since, upper = self.reader.since.bound, self.shard.state.upper
        self.reader.downgrade_since(self.rnd.randrange(since, max(since, upper) + 1), timeout_s=30)

    def _note(self, call: Call, found: list[Update]) -> None:
        seen: Counter[Row] = Counter()
        for row, time, diff in found:
            assert time == call.as_of
            seen[row] += diff
        call.seen = {row: diff for row, diff in seen.items() if diff}

    def _listen(self, call: Call) -> None:
        if self.listen is None:
            self.reader = self.reader or self.shard.reader(lease_s=LEASE_S)
            self.listened_from = self.reader.since.bound
            self.told.clear()
            self.listen = self.shard.listen(self.listened_from, timeout_s=0)

    def _next(self, call: Call) -> None:
        listen = self.listen
        if listen is None:
            return
        for row, time, diff in listen.next(0).to_list():
            self.told[row, time] += diff
        expected = self.world.changes(self.listened_from, listen.frontier.bound)
        told = Counter({change: diff for change, diff in self.told.items() if diff})
        if told != expected:
            self.world._break("a listen tells each change once, at its time", f"{call}: {told} instead of {expected}")
        if self.reader is not None and self.rnd.random() < 0.5:
            self.reader.downgrade_since(listen.as_of, timeout_s=30)

    def _claim(self, call: Call) -> None:
        if self.durable is None:
            self.durable = self.shard.durable_reader("query")
        self.durable.claim(f"{self.name}-{call.number}")

    def _move(self, call: Call) -> None:
        if self.durable is None:
            return
        since = self.durable.since.bound
        self.durable.downgrade_since(self.rnd.randrange(since, since + 3), timeout_s=30)

    # --- upkeep -------------------------------------------------------------------------------------------------------

    def _merge(self, call: Call) -> None:
        at, count = self.rnd.randrange(0, 4), self.rnd.randrange(1, 4)
        compact_once(self.shard._machine, lambda state: state.batches[at : at + count])

    def _merge_all(self, call: Call) -> None:
        for _ in compact_all(self.shard._machine):
            pass

    def _rollup(self, call: Call) -> None:
        write_rollup(self.shard._machine)

    def _collect(self, call: Call) -> None:
        until = None if self.rnd.random() < 0.7 else self.rnd.randrange(1, self.shard.state.seqno + 1)
        collect(self.shard._machine, until)

    def _sweep(self, call: Call) -> None:
        sweep(self.shard._machine, after_s=400)


@dataclass
class Judged:
    """What came of a seed."""

    broken: list[Broken]
    reached: Counter[str]
    scheduler: Scheduler
    world: World

    def trace(self) -> str:
        events: list[tuple[float, str]] = []
        for line in self.scheduler.trace:
            details = " ".join(str(detail)[:60] for detail in line.details[1:])
            events.append((line.step, f"{line.step:6} {line.task:14}     {line.what} {details} {line.fate.value}"))
        for call in self.world.calls:
            events.append((call.start, f"{call.start:6} {call.client:14} ▶ {call.kind}"))
            if call.end != math.inf:
                events.append((call.end, f"{call.end:6.0f} {call.client:14} ◀ {call}"))
        lines = [text for _, text in sorted(events, key=lambda event: event[0])]
        return "\n".join([*lines, "", *(f"BROKEN  {one}" for one in self.broken)])


def simulate(seed: int) -> Judged:
    """Run one schedule and judge what everybody was told."""
    rnd = Random(seed)
    scheduler = Scheduler(seed, some_faults(rnd), rnd.choice((0.0, 0.5, 0.8, 0.95)), tears_scans=False)
    jumps = [some_clock(rnd) if rnd.random() < 0.5 else [] for _ in range(6)]
    reached: Counter[str] = Counter()
    with ExitStack() as stack:
        stack.enter_context(seeded_ids(seed))
        stack.enter_context(patch("strandline.shards.rows.contents.READ_THREADS", 1))
        # a short tail, so that history is written and truncated within a short schedule
        stack.enter_context(patch("strandline.shards.log.kv_consensus.TAIL_MAX_RECORDS", rnd.choice((2, 4, 32))))
        clients = rnd.choice(SCENARIOS)
        inline_max_bytes, clocks_agree = rnd.choice((0, 4_096)), not any(jumps[: len(clients)])
        world = World(scheduler, inline_max_bytes, clocks_agree, on_objects=rnd.random() < 0.4)
        reached[f"consensus: {'objects' if world.log is not None else 'key-value store'}"] += 1
        schema = serialised(*check_schema(SCHEMA, ["key"]))
        world.shard("first", None, [])._machine.create(initial(SHARD, "it", "columns", schema))
        for number, role in enumerate(clients):
            process = Process(f"p{number}")
            shard = world.shard(process.name, process, jumps[number])
            client = Client(world, shard, process, process.name, role, rnd.randrange(4, 14))
            scheduler.spawn(process, f"{process.name} {role}", client.run)
        try:
            scheduler.run()
        except Endless as endless:
            world._break("every call ends", str(endless))
        else:
            for task, error in scheduler.errors:
                world._break("no error but those of `errors.py` gets out", f"{task.name}: {error!r}")
        if not world.broken:
            judge(world)
        if not world.broken:
            last_look(world)
    for call in world.calls:
        reached[f"operation: {call.kind}"] += 1
        if call.status != "ok":
            reached[f"refusal: {call.error or 'the client died'}"] += 1
    for line in scheduler.trace:
        if line.fate.value != "done" or line.what in ("dies", "swap lost"):
            reached[f"fault: {line.what if line.fate.value == 'done' else line.fate.value}"] += 1
    return Judged(world.broken, reached, scheduler, world)


def judge(world: World) -> None:
    """Appends are there once if they were acknowledged, not at all if refused, at most once else; reads are sums."""
    when: dict[Row, list[Appended]] = {}
    for one in world.appended:
        for row, time, _ in one.updates:
            if not one.lower <= time < one.upper:
                world._break("updates lie between the uppers of their append", f"{row} at {time} in {one}")
            if row[0] != "shared":
                when.setdefault(row, []).append(one)
    for row, found in when.items():
        if len(found) > 1:
            world._break("nothing is appended twice", f"{row} in {[one.seqno for one in found]}")
    for call in world.calls:
        found = [one for row in call.rows for one in when.get(row, [])]
        if call.status == "ok" and len(found) != len(call.rows):
            world._break("what was acknowledged is there", str(call))
        elif call.status == "refused" and found:
            world._break("what was refused is not there", str(call))
        if any(not call.start <= one.step <= call.end for one in found):
            world._break("an append takes effect while it is called", str(call))
        if call.seen is not None and call.seen != world.contents(call.as_of):
            world._break(
                "a snapshot is the sum of all changes up to its time", f"{call}, not {world.contents(call.as_of)}"
            )
    epochs: dict[str, list[int]] = {}
    for one in world.appended:
        for (name, _), _, _ in one.updates:
            sink, dash, epoch = str(name).rpartition("-")
            if dash:
                epochs.setdefault(sink, []).append(int(epoch))
    for sink, found_epochs in epochs.items():
        if found_epochs != sorted(set(found_epochs)):
            world._break("epochs are appended in order", f"{sink}: {found_epochs}")


def last_look(world: World) -> None:
    """When all is over: everything that may be read is right, and upkeep leaves what is referred to, nothing else."""
    shard = world.shard("last look", None, [(0, 10**13)])  # so late that all leases are over
    shard.writer().compare_and_append([], (upper := shard.state.upper), upper + 1)
    for _ in range(2):
        _compare_all(world, shard)
        for _ in compact_all(shard._machine):
            pass
        write_rollup(shard._machine)
        collect(shard._machine)
    sweep(shard._machine, after_s=0)
    state = shard.state
    kept = {f"it/{key}" for key in state.blob_keys()}
    left = {key for key in world.blobs.blobs if "/rollup/" not in key}
    if missing := kept - left:
        world._break("nothing that is referred to is missing", f"{missing}")
    live = {key for seqno in world.states if seqno >= min(state.rollups) for key in world.states[seqno].blob_keys()}
    if extra := {key for key in left if key.removeprefix("it/") not in live}:
        world._break("swept shards leave nothing behind", f"{extra}")
    _compare_all(world, world.shard("newcomer", None, [(0, 10**13)]))


def _compare_all(world: World, shard: Shard) -> None:
    state = shard.state
    for as_of in range(state.since, state.upper):
        found = {row: diff for row, _, diff in shard.snapshot(as_of, timeout_s=0).to_list()}
        if found != world.contents(as_of):
            world._break("the contents are the sum of all changes", f"at {as_of}: {found}, not {world.contents(as_of)}")
            return
