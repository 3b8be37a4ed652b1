"""Who goes next, and what fails: all of it decided by one seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from greenlet import getcurrent, greenlet

MAX_CALLS = 30_000
MAX_STEPS = 1_000_000
"""Time passes faster than calls are made while everybody waits for late replies."""
"""A schedule that takes longer than this does not end by itself."""


REPLY_TAKES_TIME = 0.25
"""How often others may go between the effect of a call and the moment when its caller knows."""


WINDOWS = {"swap": 4.0, "scan": 3.0, "set": 2.0, "set many": 2.0, "set while": 2.0}
"""How much more often than others a task is held up before a call of a kind: what it knows grows old before it acts."""


SWAPS_LOSE = 4.0
"""How much more often than others the reply to a swap is lost: most of the protocol is about these."""


class Fate(Enum):
    """What becomes of a call to a store."""

    DONE = "done"
    NOT_DONE = "failed before its effect"
    LOST = "done, reply lost"
    LATE = "reply lost, effect comes later"


class Killed(BaseException):
    """The process of the current task is dead. Not an Exception, so that no client code handles it."""


class Endless(AssertionError):
    """The schedule did not end within `MAX_CALLS` or `MAX_STEPS`."""


@dataclass(frozen=True, slots=True)
class Faults:
    """How often things go wrong: probabilities for each call of a store."""

    not_done: float = 0.0
    lost: float = 0.0
    late: float = 0.0
    killed: float = 0.0
    stalled: float = 0.0


def some_faults(rnd: random.Random) -> Faults:
    """None, some, or many: most bugs need few, and too many end every operation early."""
    scale = rnd.choice((0, 1, 1, 3))
    return Faults(
        not_done=0.002 * scale,
        lost=0.006 * scale,
        late=0.004 * scale,
        killed=0.0015 * scale,
        stalled=rnd.choice((0.0, 0.03, 0.1)),
    )


@dataclass(slots=True)
class Process:
    """What dies at once and shares caches."""

    name: str
    is_dead: bool = False


@dataclass(slots=True, eq=False)
class Task:
    """A thread of a process.

    Attributes:
        wakes_at: the step before which it sleeps.
        waits_for: an event that it waits for.
        operation: what it does for its client right now.
    """

    name: str
    process: Process
    greenlet: Any = None
    wakes_at: int = 0
    waits_for: SimulatedEvent | None = None
    operation: Any = None


class SimulatedEvent:
    """Stands in for `threading.Event`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.is_set = False

    def set(self) -> None:
        self.is_set = True

    def wait(self, timeout: float | None = None) -> bool:
        if not self.is_set:
            task = self._scheduler.current
            task.waits_for = self
            self._scheduler.switch()
            task.waits_for = None
        return self.is_set


@dataclass(slots=True)
class Line:
    """One step, for the trace; made readable only when somebody looks."""

    step: int
    task: str
    what: str
    details: tuple[Any, ...]
    fate: Fate


@dataclass
class Scheduler:
    """Runs tasks one step at a time.

    Attributes:
        step: counts the steps; the time of everything in a history.
        tears_scans: whether others may go while a page of a scan is read, as stores without snapshots have it.
        guards_writes: whether a guarded write is one call, as in most stores; else it is several.
        stickiness: the probability that a task goes on after a step: some bugs need a task to be left alone for long.
    """

    seed: int
    faults: Faults = field(default_factory=Faults)
    stickiness: float = 0.5
    tears_scans: bool = False
    guards_writes: bool = True

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.step = 0
        self.tasks: list[Task] = []
        self.trace: list[Line] = []
        self.errors: list[tuple[Task, BaseException]] = []
        self._late: list[tuple[int, Callable[[], None]]] = []
        self._hub: Any = getcurrent()
        self._current: Task | None = None

    @property
    def last_landing(self) -> int:
        """The step at which the last of the effects that are under way now has come."""
        return max((step for step, _ in self._late), default=self.step - 1)

    @property
    def current(self) -> Task:
        assert self._current is not None
        return self._current

    def spawn(self, process: Process, name: str, work: Callable[[], None]) -> Task:
        task = Task(name, process)

        def run() -> None:
            try:
                work()
            except Killed:
                pass
            except Exception as error:
                self.errors.append((task, error))

        task.greenlet = greenlet(run, parent=self._hub)  # which goes on when it ends
        self.tasks.append(task)
        return task

    def run(self) -> None:
        """Run until every task has ended or died.

        Raises:
            Endless: some never end.
        """
        chosen: Task | None = None
        while True:
            self._land(self.step)
            runnable = [task for task in self.tasks if self._is_runnable(task)]
            if not runnable:
                asleep = [task for task in self.tasks if not task.greenlet.dead]
                if not asleep:
                    break
                # everybody sleeps or waits: time passes, and who waits in vain goes on alone
                sleeping = [task.wakes_at for task in asleep if task.waits_for is None]
                if sleeping:
                    self.step = max(self.step + 1, min(sleeping))
                else:
                    for task in asleep:
                        task.waits_for = None
                continue
            if chosen not in runnable or self.random.random() >= self.stickiness:
                chosen = self.random.choice(runnable)
            assert chosen is not None
            self._switch_to(chosen)
            if chosen.greenlet.dead:
                self.tasks.remove(chosen)
            if len(self.trace) > MAX_CALLS or self.step > MAX_STEPS:
                raise Endless(f"seed {self.seed}: {len(self.tasks)} tasks go on after {len(self.trace)} calls")
        self._land(None)

    def _is_runnable(self, task: Task) -> bool:
        if task.process.is_dead:
            return True  # to die
        return task.wakes_at <= self.step and (task.waits_for is None or task.waits_for.is_set)

    def _switch_to(self, task: Task) -> None:
        self._current = task
        task.greenlet.switch()
        self._current = None

    def switch(self) -> None:
        """Let others go on; called by a task, which goes on when it is chosen again.

        Raises:
            Killed: its process died.
        """
        task = self.current
        if task.process.is_dead:
            raise Killed
        self._hub.switch()
        if task.process.is_dead:
            raise Killed

    def tick(self) -> int:
        """A moment of its own, for the beginning or the end of an operation."""
        self.step += 1
        return self.step

    def sleep(self, steps: int) -> None:
        self.current.wakes_at = self.step + steps
        self.switch()

    def call(self, what: str, details: tuple[Any, ...], is_write: bool) -> Fate:
        """A step: others may go first, then the seed decides what becomes of the call.

        Raises:
            Killed: the process dies here, before the effect.
        """
        task = self.current
        rolled = self.random.random()
        if rolled < self.faults.stalled * WINDOWS.get(what, 0.5):
            task.wakes_at = self.step + self.random.randrange(5, 200)
        self.switch()
        self.step += 1
        fate = self._fate(what, is_write)
        self.trace.append(Line(self.step, task.name, what, details, fate))
        return fate

    def _fate(self, what: str, is_write: bool) -> Fate:
        faults, rolled = self.faults, self.random.random()
        if rolled < faults.killed:
            self.kill(self.current.process)
            if rolled < faults.killed / 2 and is_write:
                return Fate.DONE  # the effect, and then the end
            raise Killed
        rolled -= faults.killed
        lossy = SWAPS_LOSE if what == "swap" else 1.0
        rates = (faults.not_done, faults.lost * lossy, faults.late * lossy)
        for fate, rate in zip((Fate.NOT_DONE, Fate.LOST, Fate.LATE), rates, strict=True):
            if rolled < rate:
                return fate if is_write or fate is Fate.NOT_DONE else Fate.DONE
            rolled -= rate
        return Fate.DONE

    def reply(self) -> None:
        """The answer of a call is on its way: others may go before the caller has it."""
        rolled = self.random.random()
        if rolled < REPLY_TAKES_TIME:
            if rolled < self.faults.stalled * 3:
                self.current.wakes_at = self.step + self.random.randrange(5, 60)
            self.switch()

    def time_out(self) -> None:
        """A reply never comes: the caller waits for it in vain, and others have much time."""
        self.sleep(self.random.randrange(5, 100))

    def kill(self, process: Process) -> None:
        process.is_dead = True
        self.trace.append(Line(self.step, process.name, "dies", (), Fate.DONE))

    def later(self, effect: Callable[[], None]) -> None:
        """Let an effect come at a step that the seed decides."""
        self._late.append((self.step + self.random.randrange(1, 150), effect))

    def _land(self, until: int | None) -> None:
        due = [item for item in self._late if until is None or item[0] <= until]
        if due:
            self._late = [item for item in self._late if item not in due]
            for _, effect in due:
                effect()
