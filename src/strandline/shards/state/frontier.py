"""Times, and frontiers of times.

Times are integers, totally ordered, so a frontier holds one time or none. The empty one lies above all others: as an
`upper` it says that nothing more will come, as a `since` that nothing can be read any more.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import total_ordering
from typing import Final

from strandline.errors import UsageError

TOP: Final = 2**63 - 1
"""How the empty frontier is written in records: above every time, so that `<=`, `min` and `max` are what they should
be: the order of frontiers, their meet and their join."""
TIME_MAX: Final = TOP - 1


@total_ordering
@dataclass(frozen=True, slots=True)
class Antichain:
    """A frontier: `Antichain(7)` lies at 7, `Antichain()` is the empty one, above all.

    `a <= b` says that every time of `b` is at or beyond `a`.
    """

    time: int | None = None

    def __post_init__(self) -> None:
        if self.time is not None:
            check_time(self.time)

    def __le__(self, other: object) -> bool:
        if not isinstance(other, Antichain):
            return NotImplemented
        return self.bound <= other.bound

    @property
    def is_empty(self) -> bool:
        """Whether no time comes any more."""
        return self.time is None

    @property
    def bound(self) -> int:
        """The time, or `TOP`."""
        return TOP if self.time is None else self.time

    def meet(self, other: Antichain) -> Antichain:
        """The greatest frontier that is at or below both."""
        return min(self, other)

    def join(self, other: Antichain) -> Antichain:
        """The least frontier that is at or above both."""
        return max(self, other)

    def __str__(self) -> str:
        return "[]" if self.time is None else f"[{self.time}]"


FOREVER: Final = Antichain()
"""The empty frontier. As a new upper it finishes a shard."""
Frontier = Antichain | int
"""What calls take for a frontier."""


def check_time(time: int) -> int:
    if isinstance(time, bool) or not isinstance(time, int):
        raise UsageError(f"A time is an int, not {time!r}.", next="Give a number, or Antichain() for the end of time.")
    if not 0 <= time <= TIME_MAX:
        raise UsageError(f"{time} is not a time of a shard.", next=f"Times are 0 to {TIME_MAX}.")
    return time


def bound_of(frontier: Frontier) -> int:
    """A frontier as it is written in records."""
    return frontier.bound if isinstance(frontier, Antichain) else check_time(frontier)


def antichain(bound: int) -> Antichain:
    return Antichain() if bound == TOP else Antichain(bound)
