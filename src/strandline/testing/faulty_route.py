"""A route whose commands meet one of four outcomes; late ones are decided when the test wants it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from strandline.errors import OutcomeUnknown
from strandline.shards.deciding.commands import Answer, Routed
from strandline.shards.deciding.machine import Machine
from strandline.shards.deciding.recent import Recent
from strandline.shards.log.consensus import Versioned
from strandline.shards.state.state import ShardId
from strandline.testing.faults import Outcome


class FaultyRoute:
    """Decides commands at another process's machine.

    Args:
        plan: what becomes of a command; NOT_DONE: nobody could be asked.
        hints: what is made of the records that an answer brings.

    Attributes:
        late: commands without an answer, which `land` decides.
    """

    def __init__(
        self,
        machine: Machine,
        plan: Callable[[Routed], Outcome] = lambda command: Outcome.DONE,
        hints: Callable[[Sequence[Versioned]], Sequence[Versioned]] = lambda records: records,
    ) -> None:
        self.machine = machine
        machine.recent = machine.recent or Recent()
        self.plan = plan
        self.hints = hints
        self.late: list[Routed] = []
        self.asked = 0

    def decide(self, shard: ShardId, command: Routed, known: int, timeout_s: float) -> Answer | None:
        assert shard == self.machine.place.shard
        self.asked += 1
        outcome = self.plan(command)
        if outcome is Outcome.NOT_DONE:
            return None
        if outcome is Outcome.LATE:
            self.late.append(command)
            raise OutcomeUnknown("Injected: the command is late.")
        found = self.machine.ask(command, timeout_s)
        if outcome is Outcome.DONE_BUT_LOST:
            raise OutcomeUnknown("Injected: the answer is lost.")
        told = self.machine.recent.after(known) if self.machine.recent is not None else []
        return Answer(found, list(self.hints(told)))

    def land(self, at: int = 0) -> None:
        """Decide a late command now; its answer reaches nobody."""
        self.machine.ask(self.late.pop(at), 5)
