"""Small programs of two clients of one shard, for every order of their calls; the log in either kind of store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from random import Random
from typing import Any
from unittest.mock import patch

from strandline.shards.rows.codec import check_schema, serialised
from strandline.shards.state.transitions import initial
from strandline.shards.upkeep.collection import collect, write_rollup
from strandline.shards.upkeep.compaction import compact_all
from strandline.testing.simulation.exploring import Access, Exploring, Fault, Program, Run
from strandline.testing.simulation.history import Broken
from strandline.testing.simulation.scheduler import Endless, Process
from strandline.testing.simulation.shards import (
    SCHEMA,
    SHARD,
    Client,
    Judged,
    World,
    judge,
    last_look,
)
from strandline.testing.simulation.world import seeded_ids

OPERATIONS = (
    "append",
    "blind append",
    "append next",
    "epoch",
    "read",
    "hold",
    "read held",
    "give up",
    "listen",
    "next",
    "claim",
    "move",
    "merge all",
    "rollup",
    "collect",
    "sweep",
)
START = ("few", "truncated", "few on objects", "truncated on objects")
"""What is there when they begin: three appends; or more of them, a rollup, and a log that begins behind it."""


class _Most(Random):
    """Whatever may be picked: the last of it, and the greatest; what may or may not happen by chance does not."""

    def random(self) -> float:
        return 1.0 - 2**-53

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        return (start if stop is None else stop) - 1

    def choice(self, seq: Any) -> Any:
        return seq[-1]


class _Scripted(Client):
    """A client whose operations are given."""

    def __post_init__(self) -> None:
        self.rnd = _Most(0)


def prepared(scheduler: Exploring, start: str) -> World:
    world = World(scheduler, 0, clocks_agree=True, on_objects=start.endswith("on objects"))
    schema = serialised(*check_schema(SCHEMA, ["key"]))
    shard = world.shard("first", None, [])
    shard._machine.create(initial(SHARD, "it", "columns", schema))
    writer = shard.writer()
    for time in range(3):
        writer.compare_and_append([((f"before-{time}", 0), time, 1)], time, time + 1)
    if start.startswith("truncated"):
        for _ in compact_all(shard._machine):
            pass
        write_rollup(shard._machine)
        writer.compare_and_append([(("before-3", 0), 3, 1)], 3, 4)
        collect(shard._machine)
        writer.compare_and_append([(("before-4", 0), 4, 1)], 4, 5)
    return world


def run(
    program: Program,
    start: str,
    choices: Sequence[int],
    fault: Fault | None = None,
    asleep: dict[int, Access] | None = None,
) -> Run:
    """Run a program with its first steps in a given order."""
    scheduler = Exploring(choices, fault, asleep or {})
    with ExitStack() as stack:
        stack.enter_context(seeded_ids("exhaustive"))
        stack.enter_context(patch("strandline.shards.rows.contents.READ_THREADS", 1))
        # a short tail, so that history is written and truncated
        stack.enter_context(patch("strandline.shards.log.kv_consensus.TAIL_MAX_RECORDS", 2))
        world = prepared(scheduler, start)
        for who, names in enumerate(program):
            process = Process(f"p{who}")
            client = _Scripted(world, world.shard(process.name, process, []), process, process.name, "", len(names))
            name = f"{process.name} {' '.join(names)}"
            scheduler.number[name] = who
            scheduler.spawn(process, name, _work(client, names))
        try:
            scheduler.begin()
            scheduler.run()
        except Endless as endless:
            world.broken.append(Broken("every operation ends", str(endless)))
        else:
            for task, error in scheduler.errors:
                world.broken.append(Broken("no error but those of `errors.py` gets out", f"{task.name}: {error!r}"))
            if not scheduler.is_known:
                if not world.broken:
                    judge(world)
                if not world.broken:
                    last_look(world)
    judged = Judged(world.broken, scheduler.calls, scheduler, world)  # type: ignore[arg-type]
    return Run(scheduler.events, scheduler.calls, world.broken, scheduler.is_known, judged.trace)


def _work(client: Client, names: Sequence[str]) -> Callable[[], None]:
    def work() -> None:
        for name in names:
            client.perform(name)

    return work
