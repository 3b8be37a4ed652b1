"""The commands that may be decided in another process, as values that travel: see `Machine.route`.

Only those are here that do no harm when they come late, after their sender gave up on them and had them decided
elsewhere: an append expects an upper that never returns, or carries an epoch or a writer that was ended meanwhile; a
since never goes back. Registrations are not here: a late one would hold a since for nobody. Nor are claims of durable
readers: a late one would take the reader from the process that has claimed it since.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from strandline.clock import Microseconds
from strandline.errors import InvalidBounds
from strandline.shards.log.consensus import Versioned
from strandline.shards.state.state import ReaderId, ShardId, State
from strandline.shards.state.transitions import (
    Append,
    Appended,
    AppendedAt,
    AppendNext,
    Downgraded,
    Held,
    Step,
    TokenIs,
    TooMuchInline,
    UpperIs,
    WriterUnknown,
    append_next,
    compare_and_append,
    compare_and_downgrade_since,
    downgrade_since,
)


class Downgrade(msgspec.Struct, frozen=True, tag=True):
    """Let a leased reader give up what lies before `since`; see `downgrade_since`."""

    reader: ReaderId
    since: int
    oldest_lease: int | None


class DowngradeDurable(msgspec.Struct, frozen=True, tag=True):
    """Move a durable reader's since under its token, which stays; see `compare_and_downgrade_since`."""

    reader: ReaderId
    token: str
    since: int


Routed = Append | AppendNext | Downgrade | DowngradeDurable
Outcome = Appended | AppendedAt | UpperIs | TooMuchInline | WriterUnknown | Held | Downgraded | TokenIs | None


def decided(command: Routed, state: State, now_us: Microseconds, inline_total_bytes: int) -> Step[Any]:
    """Run a command on a state."""
    match command:
        case Append():
            if command.upper < command.expected:
                raise InvalidBounds(f"An upper does not go back from {command.expected} to {command.upper}.")
            return compare_and_append(state, command, now_us, inline_total_bytes)
        case AppendNext():
            return append_next(state, command, now_us, inline_total_bytes)
        case Downgrade():
            return downgrade_since(state, command.reader, command.since, command.oldest_lease, now_us)
        case DowngradeDurable():
            return compare_and_downgrade_since(state, command.reader, command.token, command.token, command.since)


class Answer(msgspec.Struct, frozen=True):
    """What was decided elsewhere.

    Attributes:
        records: some that came after the state that the sender knows, as a hint: any of them may be missing.
    """

    outcome: Outcome
    records: list[Versioned]


class Route(Protocol):
    """Where commands of a shard are decided other than in this process."""

    def decide(self, shard: ShardId, command: Routed, known: int, timeout_s: float) -> Answer | None:
        """Have a command decided; None if nobody was asked, and the caller may decide it.

        Args:
            known: the newest sequence number that the caller has.

        Raises:
            OutcomeUnknown: somebody was asked, and there was no answer.
            StrandlineError: what deciding it came to.
        """
