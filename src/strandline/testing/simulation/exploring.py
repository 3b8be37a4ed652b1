"""Every order of the calls of two clients, up to the order of calls that do not matter.

Dynamic partial-order reduction after Flanagan and Godefroid (POPL 2005): a run is judged for races, pairs of dependent
calls of different clients that nothing else orders, and each race is run the other way round as well. Sleep sets after
Godefroid (1996): what was tried first at a step is not tried again after others until a call that it depends on.

Operations begin and end without a call: an operation that is answered from a cache is judged at one
place among the calls of the other client, not at all of them. Seeds do that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal, NamedTuple, Protocol

from strandline.testing.simulation.history import Broken
from strandline.testing.simulation.scheduler import Endless, Fate, Killed, Line, Scheduler, Task

MAX_RUNS = 20_000
"""Of one program: what has more is reported as cut off, never as covered."""


class Access(NamedTuple):
    """What a call touches.

    Attributes:
        partition: of the key-value store; None for the object store.
        keys: of a scan or a listing, its first key and the one that it ends before.
        guard: partition and key of what a guarded write looks at.
    """

    partition: bytes | None
    keys: tuple[bytes, ...]
    is_scan: bool
    is_write: bool
    guard: tuple[bytes, bytes] | None = None


FaultKind = Literal["lost", "late", "dies before", "dies after"]
FAULTS: tuple[FaultKind, ...] = ("lost", "late", "dies before", "dies after")
Program = tuple[tuple[str, ...], tuple[str, ...]]
"""The operations of two clients, by name."""


# --- one run ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong: the n-th writing call of a client (any call, for a death)."""

    client: int
    call: int
    kind: FaultKind


@dataclass(slots=True)
class Event:
    """A step of a run.

    Attributes:
        who: the client.
        access: what its call touched.
        enabled: the clients that could have gone, and what their calls would have touched.
        asleep: those of them whose call was tried here before.
    """

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
            is_given = at < len(self.choices)
            if not is_given:
                enabled = tuple(who for who in enabled if who not in self.asleep)
                if not enabled:
                    self._give_up()
                    break
            who = self.choices[at] if is_given else (last if last in enabled else enabled[0])
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
    if what == "set while":
        *pairs, guard_partition, guard_key = rest
        written = tuple(key for key, _ in pairs)
        return Access(partition, written, is_scan=False, is_write=True, guard=(guard_partition, guard_key))
    if what == "set many":
        return Access(partition, tuple(key for key, _ in rest), is_scan=False, is_write=True)
    keys = rest if what == "delete many" else rest[:1]
    return Access(partition, tuple(keys), is_scan=False, is_write=is_write)


def depend(one: Access, other: Access) -> bool:
    """Whether the order of two calls matters: they touch the same, and one of them writes."""
    return _touch(one, other) or _guards(one, other) or _guards(other, one)


def _guards(one: Access, other: Access) -> bool:
    """Whether a call writes what another one looks at before it writes."""
    if one.guard is None or not other.is_write:
        return False
    partition, key = one.guard
    return other.partition == partition and key in other.keys


def _touch(one: Access, other: Access) -> bool:
    if not (one.is_write or other.is_write) or one.partition != other.partition:
        return False
    if one.is_scan or other.is_scan:
        scan, write = (one, other) if one.is_scan else (other, one)
        start, end = scan.keys
        return any(start <= key and (not end or key < end) for key in write.keys)
    return not set(one.keys).isdisjoint(other.keys)


@dataclass
class Run:
    """What came of one schedule; nothing is judged of one that was given up."""

    events: list[Event]
    calls: Counter[int]
    broken: list[Broken]
    is_known: bool
    trace: Callable[[], str] = field(repr=False)


class RunOne(Protocol):
    """Runs a program with its first steps in a given order."""

    def __call__(
        self,
        program: Program,
        start: str,
        choices: Sequence[int],
        fault: Fault | None = None,
        asleep: dict[int, Access] | None = None,
    ) -> Run: ...


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
        """The clients that need not go after the step: those asleep before it, and those that went here before."""
        return self.asleep | {who: self.enabled[who] for who in self.done if who != self.who}


def explore(
    run: RunOne, program: Program, start: str, fault: Fault | None = None, max_runs: int = MAX_RUNS
) -> Explored:
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


def faults_of(run: RunOne, program: Program, start: str) -> Iterator[Fault]:
    """Each way in which one call of one client can go wrong, as far as the schedule without turns tells."""
    quiet = run(program, start, [])
    for client in (0, 1):
        mine = [event for event in quiet.events if event.who == client]
        writes = sum(1 for event in mine if event.access.is_write)
        for kind in FAULTS:
            count = len(mine) if kind.startswith("dies") else writes
            yield from (Fault(client, call, kind) for call in range(1, count + 1))
