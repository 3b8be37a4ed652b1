"""What clients did, when, and what became of it: all that the oracle gets to see."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from strandline.branch.commits import Commit
from strandline.branch.rules.record import BranchRecord

Status = Literal["ok", "refused", "failed", "unknown"]
Value = str | None
"""The checksum of what a path holds, or None for nothing. No two writes write the same."""
Listing = dict[str, Value]
PATHS = ("a", "b", "c/1", "c/2")
CREATED = "created"
"""The path that only conditional puts and deletes touch."""


@dataclass(slots=True, eq=False)
class Operation:
    """A call of a client.

    Attributes:
        start, end: moments of the schedule; the end is infinite as long as the call may still take effect.
        status: "ok"; "refused": an error that says that nothing happened; "failed": the store did, and surely nothing
            happened; "unknown": the reply was lost, or the client died.
        creation: the branch_id of the branch that it is about.
        values: by path, what it writes there.
        seen: by path, what it observed.
        built: of a commit, how often its tree was computed.
    """

    number: int
    process: str
    kind: str
    branch: str
    creation: str
    start: int
    end: float = math.inf
    status: Status = "unknown"
    error: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    values: Listing = field(default_factory=dict)
    seen: Listing | None = None
    result: Any = None
    built: int = 0

    @property
    def value(self) -> str:
        """What no other operation writes."""
        return f"w{self.number}"

    def __str__(self) -> str:
        told = " ".join(f"{key}={value}" for key, value in self.arguments.items())
        end = "…" if self.end == math.inf else f"{self.end:.0f}"
        outcome = self.error or self.status
        shown = f" saw {self.seen}" if self.seen is not None else ""
        return f"[{self.start}–{end}] {self.process} {self.kind} {self.branch} {told}: {outcome}{shown}"


@dataclass(frozen=True, slots=True)
class RecordChange:
    """A swap of a branch record that happened."""

    step: int
    name: str
    before: BranchRecord | None
    after: BranchRecord | None
    operation: Operation | None


@dataclass
class History:
    """All that the oracle gets to see.

    Attributes:
        listings: what each commit that was ever a head held when it became one.
        commits: their records.
    """

    operations: list[Operation] = field(default_factory=list)
    changes: list[RecordChange] = field(default_factory=list)
    listings: dict[str, Listing] = field(default_factory=dict)
    commits: dict[str, Commit] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Broken:
    """A promise that the history breaks."""

    promise: str
    what: str

    def __str__(self) -> str:
        return f"{self.promise}: {self.what}"
