"""Decides when a branch is worth compacting, from what reads and writes see anyway."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from strandline.branch.rules.record import READ_ONLY, BranchRecord, is_cooling_down
from strandline.clock import Clock

TOMBSTONES = 10_000
"""So many staged deletions cost a listing that passes them about 5 ms before its first entry."""
SEALED_TOKENS = 16
"""Each sealed token costs every look-up of a path that is staged nowhere one more read."""


@dataclass(frozen=True, slots=True)
class Sensor:
    """Counts by chance: a call that sees n tombstones fires with the probability n / `TOMBSTONES`.

    So a thousand short processes that see a little each fire as often as a long one that sees it all, and nothing is
    kept anywhere. A listing window that skips more than the threshold surely fires. Nobody fires while the branch cools
    down from the last compaction.

    Args:
        fire: gets the branch that is worth compacting, as it was when that was seen; returns soon.
    """

    fire: Callable[[str, BranchRecord], None]
    clock: Clock

    def saw_tombstones(self, name: str, branch: BranchRecord, count: int) -> None:
        """Count the deletions that a call staged, or passed while it looked for entries."""
        if count and random.random() * TOMBSTONES < count and self._may_compact(branch):
            self.fire(name, branch)

    def saw_tokens(self, name: str, branch: BranchRecord) -> None:
        """A record came by that nobody in this process had seen."""
        if len(branch.sealed_tokens) >= SEALED_TOKENS and self._may_compact(branch):
            self.fire(name, branch)

    def _may_compact(self, branch: BranchRecord) -> bool:
        return READ_ONLY not in branch.blocked and not is_cooling_down(branch, self.clock.now_us())
