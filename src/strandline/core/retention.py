"""Which commits are kept: rules per repository and branch, and the commits that they retain."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import msgspec

from strandline.branch.commits import Commit, CommitLog
from strandline.clock import Microseconds
from strandline.errors import NotFound, UsageError
from strandline.ids import CommitId

if TYPE_CHECKING:
    from strandline.branch.rules.record import BranchRecord

DAY_US = 86_400_000_000
GRACE_DAYS = 7.0
"""How young a file must be to be left alone although nothing refers to it: it may have been written by a job that has
not told anybody of it yet. So it has to be longer than the longest job, and a week is longer than jobs that people
have; a table write that takes longer needs a longer one."""
MIN_DAYS = 1.0
MAX_DAYS = 36_500.0
MAX_RULES = 100


class Retention(msgspec.Struct, frozen=True):
    """How long commits are kept that no branch has as its head any more.

    The days count from the commit's date, or from when it ceased to be the head, whichever is later.

    Attributes:
        days: None keeps all.
        branches: days for branches whose name matches a glob pattern; the longest of those that match counts.
    """

    days: float | None = None
    branches: Mapping[str, float | None] = {}

    def days_of(self, branch: str) -> float | None:
        """How many days the history of a branch is kept."""
        matching = [days for pattern, days in self.branches.items() if fnmatchcase(branch, pattern)]
        if not matching:
            return self.days
        return None if None in matching else max(days for days in matching if days is not None)


def check_retention(days: float | None, branches: Mapping[str, float | None]) -> Retention:
    for wanted in (days, *branches.values()):
        if wanted is not None and not isinstance(wanted, int | float):
            raise UsageError(
                f"{wanted!r} is not a number of days.", next="Use a number, or None to keep them for ever."
            )
        if wanted is not None and not MIN_DAYS <= wanted <= MAX_DAYS:
            raise UsageError(
                f"Commits cannot be kept for {wanted:g} days: readers, and commits under way, use the last ones.",
                next=f"Use {MIN_DAYS:g} to {MAX_DAYS:,.0f} days, or None to keep them for ever.",
            )
    if len(branches) > MAX_RULES or any(not isinstance(pattern, str) or not pattern for pattern in branches):
        raise UsageError(f"There are at most {MAX_RULES} rules, each with a pattern.", next="Use wider patterns.")
    return Retention(days, dict(branches))


@dataclass
class Retained:
    """What rules keep, found by walking from every root.

    Attributes:
        keep: the commits that are kept.
        reached: those that a root leads to, kept or not.
    """

    keep: set[CommitId] = field(default_factory=set)
    reached: set[CommitId] = field(default_factory=set)


def retained(
    commits: CommitLog,
    branches: Mapping[str, tuple[BranchRecord, Iterable[CommitId]]],
    pinned: Iterable[CommitId],
    rules: Retention,
    now_us: Microseconds,
) -> Retained:
    """The commits that rules, heads, tags and pins keep.

    A branch keeps its head; what its reflog still leads to and what its head leads to while that is young enough, by
    the later of its own date and the dates of the commits that were made on it. A tag or pin keeps its one commit.

    Args:
        branches: by name, their records, and the commits that their reflogs name within the rule's days.
    """
    found = Retained()
    found.keep.update(pinned)
    found.reached.update(found.keep)
    for name, (branch, moved) in branches.items():
        days = rules.days_of(name)
        cutoff = None if days is None else now_us - round(days * DAY_US)
        found.keep.add(branch.head)
        found.keep.update(moved)
        _walk(commits, [branch.head, *moved], cutoff, found)
    return found


def _walk(commits: CommitLog, roots: list[CommitId], cutoff: Microseconds | None, found: Retained) -> None:
    waiting = list(roots)
    seen: set[CommitId] = set()
    while waiting:
        id = waiting.pop()
        if id in seen:
            continue
        seen.add(id)
        try:
            commit: Commit = commits.get(id)
        except NotFound:
            continue
        found.reached.add(id)
        if cutoff is None or commit.date_us >= cutoff:
            found.keep.add(id)
        waiting.extend(commit.parents)
