"""Every interleaving of two clients with an operation or two each, up to the order of calls that do not matter.

Seeds meet what is likely. This meets what is possible: all orders of the calls of the stores, except those that differ
only in the order of calls that commute, such as reads, or writes of different keys. Dynamic partial-order reduction
after Flanagan and Godefroid (POPL 2005): a run is judged for races, pairs of dependent calls of different clients that
nothing else orders, and each race is run the other way round as well. Sleep sets after Godefroid (1996): what was tried
first at a step is not tried again after others until a call that it depends on. With a fault, one call of one client is
answered wrongly or late, or is the client's last.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from random import Random
from typing import Any, Literal, NamedTuple

from strandline.branch.conditional import stage_if
from strandline.repository.repository import Repository
from strandline.testing.simulation.actors import Actor, listing
from strandline.testing.simulation.history import CREATED, Operation
from strandline.testing.simulation.oracle import Broken
from strandline.testing.simulation.run import instruments, last_look
from strandline.testing.simulation.scheduler import Endless, Fate, Killed, Line, Process, Scheduler, Task
from strandline.testing.simulation.trace import readable
from strandline.testing.simulation.world import World, seeded_ids
from strandline.tree.rows import Entry

MAX_RUNS = 20_000
"""Of one program: what has more is reported as cut off, never as covered."""


class Access(NamedTuple):
    """What a call touches.

    Attributes:
        partition: of the key-value store; None for the object store.
        keys: of a scan or a listing, its first key and the one that it ends before.
    """

    partition: bytes | None
    keys: tuple[bytes, ...]
    is_scan: bool
    is_write: bool


FaultKind = Literal["lost", "late", "dies before", "dies after"]
FAULTS: tuple[FaultKind, ...] = ("lost", "late", "dies before", "dies after")


# --- operations -------------------------------------------------------------------------------------------------------


def _stage(actor: Actor, op: Operation, path: str) -> None:
    actor.branch("main").stage(path, Entry(f"data/{op.value}", 1, op.value, 1))


def _on_main(actor: Actor, kind: str, act: Callable[[Any, Operation], object], **arguments: object) -> Operation:
    branch = actor.branch("main")
    op = actor.begin(kind, "main", branch.branch_id, **arguments)
    actor.finish(op, lambda: act(branch, op))
    return op


def put(actor: Actor) -> None:
    def act(_branch: Any, op: Operation) -> None:
        op.values = {"a": op.value}
        _stage(actor, op, "a")

    _on_main(actor, "put", act, path="a")


def put_other(actor: Actor) -> None:
    def act(_branch: Any, op: Operation) -> None:
        op.values = {"b": op.value}
        _stage(actor, op, "b")

    _on_main(actor, "put", act, path="b")


def delete(actor: Actor) -> None:
    def act(branch: Any, op: Operation) -> None:
        op.values = {"a": None}
        if not branch.delete("a"):
            op.values, op.seen = {}, {"a": None}

    _on_main(actor, "delete", act, path="a")


def atomic_put(actor: Actor) -> None:
    def act(branch: Any, op: Operation) -> None:
        op.values = {"a": op.value, "b": op.value}
        entry = Entry(f"data/{op.value}", 1, op.value, 1)
        branch.stage_atomically([("a", entry), ("b", entry)])

    _on_main(actor, "atomic put", act)


def rename(actor: Actor) -> None:
    op = _on_main(actor, "rename", lambda branch, _: branch.rename("a", "b"), source="a", target="b")
    if op.error == "ObjectNotFound":
        op.seen = {"a": None}


def create(actor: Actor) -> None:
    def act(branch: Any, op: Operation) -> None:
        op.values = {CREATED: op.value}
        entry = Entry(f"data/{op.value}", 1, op.value, 1)
        commits = branch._core.commits
        stage_if(branch._cell, commits, branch.branch_id, CREATED, entry, lambda found: found is None)

    _on_main(actor, "create", act, path=CREATED)


def find(actor: Actor) -> None:
    def act(branch: Any, op: Operation) -> None:
        found = branch.find("a")
        op.seen = {"a": None if found is None else found.checksum}

    _on_main(actor, "find", act, path="a")


def list_(actor: Actor) -> None:
    def act(branch: Any, op: Operation) -> None:
        op.seen = listing(branch)

    _on_main(actor, "list", act)


def status(actor: Actor) -> None:
    def act(branch: Any, _op: Operation) -> list[tuple[str, str | None]]:
        return [(change.path, change.after.checksum if change.after else None) for change in branch.uncommitted()]

    _on_main(actor, "status", act)


def commit(actor: Actor) -> None:
    _on_main(actor, "commit", lambda branch, op: branch.commit(op.value).id, allow_empty=False)


def merge(actor: Actor) -> None:
    _on_main(actor, "merge", lambda branch, op: branch.merge("work", op.value).id, source="work", strategy=None)


def revert(actor: Actor) -> None:
    _on_main(actor, "revert", lambda branch, op: branch.revert("main", op.value).id, commit="~0")


def reset_all(actor: Actor) -> None:
    _on_main(actor, "reset", lambda branch, _: branch.reset(), what="")


def reset_path(actor: Actor) -> None:
    _on_main(actor, "reset", lambda branch, _: branch.reset("a"), what="a")


def hard_reset(actor: Actor) -> None:
    def act(branch: Any, op: Operation) -> None:
        target = actor.repo.ref("main~1")
        op.arguments["commit"] = target.id
        branch.hard_reset(target)

    _on_main(actor, "hard reset", act, force=False)


def compact(actor: Actor) -> None:
    _on_main(actor, "compact", lambda branch, _: branch.compact(force=True).outcome, force=True)


def sweep(actor: Actor) -> None:
    op = actor.begin("sweep", "", "")
    actor.finish(op, lambda: actor.repo.sweep(after_s=0, again_after_s=1e12, private_after_s=0))


OPERATIONS: dict[str, Callable[[Actor], None]] = {
    "put": put,
    "put other": put_other,
    "delete": delete,
    "atomic put": atomic_put,
    "rename": rename,
    "create": create,
    "find": find,
    "list": list_,
    "status": status,
    "commit": commit,
    "merge": merge,
    "revert": revert,
    "reset all": reset_all,
    "reset path": reset_path,
    "hard reset": hard_reset,
    "compact": compact,
    "sweep": sweep,
}
Program = tuple[tuple[str, ...], tuple[str, ...]]
"""The operations of two clients, by name."""
START = ("idle", "staged", "compacted")
"""What is on main when they begin: only what is committed; or changes above it, in a token or folded."""


# --- one run ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong: the n-th writing call of a client (any call, for a death)."""

    client: int
    call: int
    kind: FaultKind


@dataclass(slots=True)
class Event:
    """A step of a run: whose it was, what it touched, who could have gone and to touch what, and who was asleep."""

    who: int
    access: Access
    enabled: dict[int, Access]
    asleep: dict[int, Access] = field(default_factory=dict)


class _NoChance(Random):
    """Nothing happens by chance: no scan is torn, no bulk write falls into parts."""

    def random(self) -> float:
        return 1.0


class Exploring(Scheduler):
    """Lets a list of choices decide who goes, and notes what each step touched.

    Attributes:
        choices: who goes at each step; whoever went last goes on when they are used up.
        asleep: who need not go after the last of the choices, and what its call touches.
        events: what happened.
        calls: how many calls each client has made, for faults.
        is_known: all that could go were asleep: what follows was seen in another order, and the run was given up.
    """

    def __init__(self, choices: Sequence[int], fault: Fault | None, asleep: dict[int, Access]) -> None:
        super().__init__(0)
        self.random = _NoChance(0)
        self.choices = choices
        self.asleep = asleep
        self.is_known = False
        self.fault = fault
        self.events: list[Event] = []
        self.pending: dict[int, Access] = {}
        self.number: dict[str, int] = {}
        self.calls: Counter[int] = Counter()
        self.has_struck = False

    def run(self) -> None:
        last = 0
        while self.tasks:
            enabled = tuple(sorted(self._enabled()))
            if not enabled:
                break
            at = len(self.events)
            is_told = at < len(self.choices)
            if not is_told:
                enabled = tuple(who for who in enabled if who not in self.asleep)
                if not enabled:
                    self._give_up()
                    break
            who = self.choices[at] if is_told else (last if last in enabled else enabled[0])
            last = who
            asleep = dict(self.asleep) if at >= len(self.choices) - 1 else {}
            self.events.append(Event(who, self.pending[who], dict(self.pending), asleep))
            access = self.pending.pop(who)
            if at >= len(self.choices) - 1:
                self.asleep = {other: its for other, its in self.asleep.items() if not depend(its, access)}
            if who == LATE:
                (_, effect), self._late = self._late[0], []
                self.step += 1
                effect()
                continue
            self._go(who)
            if len(self.events) > 2_000:
                raise Endless("two clients with two operations each do not end")
        self._land(None)

    def _enabled(self) -> Iterator[int]:
        yield from self.pending

    def _give_up(self) -> None:
        self.is_known = True
        for task in self.tasks:
            task.process.is_dead = True
            while not task.greenlet.dead:
                self._switch_to(task)
        self.tasks.clear()

    def _go(self, who: int) -> None:
        (task,) = [task for task in self.tasks if self.number[task.name] == who]
        self._switch_to(task)
        if task.greenlet.dead:
            self.tasks.remove(task)

    def begin(self) -> None:
        """Let each client come to its first call."""
        for task in list(self.tasks):
            self._switch_to(task)
            if task.greenlet.dead:
                self.tasks.remove(task)

    # what a task calls

    def call(self, what: str, details: tuple[Any, ...], is_write: bool) -> Fate:
        task: Task = self.current
        who = self.number[task.name]
        self.switch()
        self.pending[who] = access_of(what, details, is_write)
        self._hub.switch()
        self.switch()
        self.step += 1
        fate = self._strike(who, task, is_write)
        self.trace.append(Line(self.step, task.name, what, details, fate))
        return fate

    def _strike(self, who: int, task: Task, is_write: bool) -> Fate:
        fault = self.fault
        if fault is None or self.has_struck or fault.client != who:
            return Fate.DONE
        if not is_write and not fault.kind.startswith("dies"):
            return Fate.DONE
        self.calls[who] += 1
        if self.calls[who] != fault.call:
            return Fate.DONE
        self.has_struck = True
        if fault.kind.startswith("dies"):
            task.process.is_dead = True
            if fault.kind == "dies before" or not is_write:
                raise Killed
            return Fate.DONE  # the effect, and then the end
        return Fate.LOST if fault.kind == "lost" else Fate.LATE

    def switch(self) -> None:
        if self.current.process.is_dead:
            raise Killed

    def reply(self) -> None:
        self.switch()

    def sleep(self, steps: int) -> None:
        self.step += steps
        self.switch()

    def time_out(self) -> None:
        self.switch()

    def later(self, effect: Callable[[], None]) -> None:
        """The effect comes at any moment from now on, or when all is over."""
        self._late.append((0, effect))
        self.pending[LATE] = self.events[-1].access

    @property
    def last_landing(self) -> int:
        return self.step - 1


LATE = 2
"""A late effect goes as if it were a third client."""


def access_of(what: str, details: tuple[Any, ...], is_write: bool) -> Access:
    if isinstance(details[0], str):
        key = details[0].encode()
        if what.startswith("list"):
            return Access(None, (key, key + b"\xff"), is_scan=True, is_write=False)
        return Access(None, (key,), is_scan=False, is_write=is_write or what == "delete blob")
    partition, *rest = details
    if what.startswith("scan"):
        return Access(partition, tuple(rest), is_scan=True, is_write=False)
    if what == "set many":
        return Access(partition, tuple(key for key, _ in rest), is_scan=False, is_write=True)
    keys = rest if what == "delete many" else rest[:1]
    return Access(partition, tuple(keys), is_scan=False, is_write=is_write)


def depend(one: Access, other: Access) -> bool:
    """Whether the order of two calls matters: they touch the same, and one of them writes."""
    if not (one.is_write or other.is_write) or one.partition != other.partition:
        return False
    if one.is_scan or other.is_scan:
        scan, write = (one, other) if one.is_scan else (other, one)
        start, end = scan.keys
        return any(start <= key and (not end or key < end) for key in write.keys)
    return not set(one.keys).isdisjoint(other.keys)


class _NoUpkeep:
    def start(self, key: tuple[str, ...], job: Callable[[], object]) -> None: ...

    def pause(self, seconds: float) -> bool:
        return False

    def close(self) -> None: ...


def prepared(scheduler: Scheduler, start: str) -> World:
    """main with two commits, work with one beside the first; what happened until then is no part of the history.

    The oracle takes what the first head held for what was there: so what is staged comes as operations that are done.
    """
    world = World(scheduler)
    outside = world.outside()
    main = outside.branch("main")
    main.stage("a", Entry("data/base", 1, "base", 1))
    main.commit("base")
    work = outside.create_branch("work")
    work.stage("c/1", Entry("data/work", 1, "work", 1))
    work.commit("on work")
    main.stage("b", Entry("data/second", 1, "second", 1))
    main.commit("second")
    if start != "idle":
        op = Operation(0, "before", "put many", "main", main.branch_id, start=-1, end=-1, status="ok")
        op.values = {"b": op.value, "c/2": op.value}
        main.stage_each([(path, Entry("data/third", 1, op.value, 1)) for path in op.values])
        world.history.operations.append(op)
    if start == "compacted":
        main.compact(force=True)
    world.history.changes.clear()
    for branch in (main, work):
        world.moves_before[branch.name] = sum(1 for move in branch.reflog() if move.verb != "create")
    return world


@dataclass
class Run:
    """What came of one schedule; nothing is judged of one that was given up."""

    events: list[Event]
    calls: Counter[int]
    broken: list[Broken]
    is_known: bool
    trace: Callable[[], str] = field(repr=False)


def run(
    program: Program,
    start: str,
    choices: Sequence[int],
    fault: Fault | None = None,
    asleep: dict[int, Access] | None = None,
) -> Run:
    """Run a program with its first steps in a given order."""
    scheduler = Exploring(choices, fault, asleep or {})
    with seeded_ids("exhaustive"), instruments(Counter(), scheduler, cached_s=5):
        world = prepared(scheduler, start)
        for who, names in enumerate(program):
            process, repo = _process(world, f"p{who}")
            actor = Actor(world, process, repo, "", len(names))
            name = f"{process.name} {' '.join(names)}"
            scheduler.number[name] = who
            scheduler.spawn(process, name, _work(actor, names))
        broken: list[Broken] = []
        try:
            scheduler.begin()
            scheduler.run()
        except Endless as endless:
            broken.append(Broken("every operation ends", str(endless)))
        else:
            for task, error in scheduler.errors:
                broken.append(Broken("no error but those of `errors.py` gets out", f"{task.name}: {error!r}"))
            if not scheduler.is_known:
                broken = broken or last_look(world)
    return Run(scheduler.events, scheduler.calls, broken, scheduler.is_known, lambda: readable(world, broken))


def _process(world: World, name: str) -> tuple[Process, Repository]:
    process, repo = world.process(name, [])
    repo._core.upkeep = _NoUpkeep()
    return process, repo


def _work(actor: Actor, names: Sequence[str]) -> Callable[[], None]:
    def work() -> None:
        for name in names:
            OPERATIONS[name](actor)

    return work


# --- all runs ---------------------------------------------------------------------------------------------------------


@dataclass
class Explored:
    """What came of a program.

    Attributes:
        runs: how many schedules there were; one that was given up, since the rest of it was known, does not count.
        is_cut: there are more than `MAX_RUNS`.
        broken: the first promise that one breaks, with its choices.
    """

    program: Program
    start: str
    fault: Fault | None
    runs: int = 0
    is_cut: bool = False
    broken: str = ""
    choices: tuple[int, ...] = ()


@dataclass(slots=True)
class _Node:
    """A step of the schedule that is being varied: who went, who has gone in earlier runs, who has to go yet.

    Attributes:
        asleep: who was asleep before the step, and what its call touches.
    """

    who: int
    enabled: dict[int, Access]
    asleep: dict[int, Access]
    done: set[int]
    wanted: set[int]

    @property
    def left(self) -> set[int]:
        return self.wanted - self.done - set(self.asleep)

    @property
    def asleep_now(self) -> dict[int, Access]:
        """Who need not go after the step: those that were asleep, and those that went here before."""
        return self.asleep | {who: self.enabled[who] for who in self.done if who != self.who}


def explore(program: Program, start: str, fault: Fault | None = None, max_runs: int = MAX_RUNS) -> Explored:
    """Run a program in every order that matters."""
    found = Explored(program, start, fault)
    nodes: list[_Node] = []
    while True:
        asleep = nodes[-1].asleep_now if nodes else {}
        done = run(program, start, [node.who for node in nodes], fault, asleep)
        found.runs += not done.is_known
        if done.broken:
            found.broken, found.choices = str(done.broken[0]), tuple(event.who for event in done.events)
            return found
        fresh = done.events[len(nodes) :]
        nodes.extend(_Node(event.who, event.enabled, event.asleep, {event.who}, set()) for event in fresh)
        for at, who in races(done.events):
            node = nodes[at]
            node.wanted |= {who} if who in node.enabled else set(node.enabled)
        while nodes and not nodes[-1].left:
            nodes.pop()
        if not nodes:
            return found
        if found.runs >= max_runs:
            found.is_cut = True
            return found
        last = nodes[-1]
        last.who = min(last.left)
        last.done.add(last.who)


def races(events: Sequence[Event]) -> Iterator[tuple[int, int]]:
    """Steps before which another client could have gone first: where, and who.

    A step races with the last step of another client that it depends on, if nothing in between orders the two.
    """
    clocks: list[dict[int, int]] = []
    mine: dict[int, dict[int, int]] = {}
    for at, event in enumerate(events):
        before = mine.get(event.who, {})
        clock = dict(before)
        for earlier in range(at - 1, -1, -1):
            other = events[earlier]
            if other.who != event.who and depend(other.access, event.access):
                if before.get(other.who, -1) < earlier and clock.get(other.who, -1) < earlier:
                    yield earlier, event.who
                for who, seen in clocks[earlier].items():
                    clock[who] = max(clock.get(who, -1), seen)
        clock[event.who] = at
        clocks.append(clock)
        mine[event.who] = clock


# --- which programs ---------------------------------------------------------------------------------------------------


def programs(left: int, right: int) -> Iterator[Program]:
    """All pairs of clients with so many operations; of equal numbers each pair once."""
    ones = list(itertools.product(OPERATIONS, repeat=left))
    others = list(itertools.product(OPERATIONS, repeat=right))
    for at, one in enumerate(ones):
        yield from ((one, other) for other in (others[at:] if left == right else others))


def faults_of(program: Program, start: str) -> Iterator[Fault]:
    """Each way in which one call of one client can go wrong, as far as the schedule without turns tells."""
    quiet = run(program, start, [])
    for client in (0, 1):
        mine = [event for event in quiet.events if event.who == client]
        writes = sum(1 for event in mine if event.access.is_write)
        for kind in FAULTS:
            count = len(mine) if kind.startswith("dies") else writes
            yield from (Fault(client, call, kind) for call in range(1, count + 1))


Task_ = tuple[Program, str, bool]


def explore_all(task: Task_) -> tuple[Task_, int, int, list[str]]:
    """A program, perhaps with each fault: how many runs, how many were cut off, what is broken."""
    program, start, with_faults = task
    tried: list[Fault | None] = list(faults_of(program, start)) if with_faults else [None]
    runs = cut = 0
    broken = []
    for fault in tried:
        found = explore(program, start, fault)
        runs, cut = runs + found.runs, cut + found.is_cut
        if found.broken:
            broken.append(f"{program} from {start} with {fault}, {''.join(map(str, found.choices))}: {found.broken}")
    return task, runs, cut, broken


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m strandline.testing.simulation.exhaustive", description=__doc__)
    parser.add_argument("--operations", default="1x1", help="of the two clients: 1x1, 2x1 or 2x2")
    parser.add_argument("--faults", action="store_true", help="with each single fault, instead of none")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no program after so long")
    parser.add_argument("--first", type=int, default=0, help="leave out so many programs")
    parser.add_argument("--step", type=int, default=1, help="take each n-th program")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    chosen = parser.parse_args(arguments)
    left, _, right = chosen.operations.partition("x")
    tasks = [(one, start, chosen.faults) for one in programs(int(left), int(right)) for start in START]
    tasks = tasks[chosen.first :: chosen.step]
    started, runs, cut, done = time.monotonic(), 0, 0, 0
    failed: list[str] = []
    with ProcessPoolExecutor(chosen.jobs, mp_context=get_context("spawn")) as pool:
        waiting = iter(tasks)
        under_way = [pool.submit(explore_all, task) for task in itertools.islice(waiting, 2 * chosen.jobs)]
        while under_way:
            _, more, some_cut, broken = under_way.pop(0).result()
            runs, cut, done = runs + more, cut + some_cut, done + 1
            failed += broken
            for what in broken:
                print(f"BROKEN  {what}", flush=True)
            if time.monotonic() - started < chosen.seconds and (task := next(waiting, None)) is not None:
                under_way.append(pool.submit(explore_all, task))
    took = time.monotonic() - started
    kind = "each with each single fault" if chosen.faults else "without faults"
    print(
        f"{done:,} of {len(tasks):,} programs of {chosen.operations} operations {kind}: {runs:,} interleavings in "
        f"{took:.0f} s, {cut:,} programs cut off at {MAX_RUNS:,}; {len(failed)} break a promise"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
