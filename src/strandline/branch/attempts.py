"""How an operation on a branch that others change at the same time tries again, and when it gives up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from strandline import metrics
from strandline.branch.at import BranchAt
from strandline.branch.cell import BranchCell, Moved, Seen
from strandline.branch.commits import CommitLog
from strandline.branch.rules.record import BranchRecord, LayersMoved
from strandline.clock import backoff_s
from strandline.errors import Contention, ObjectMissing, OutcomeUnknown, StoreUnavailable, StrandlineError
from strandline.operations import debug

MAX_ATTEMPTS = 100
"""How often an operation meets a changed record before it gives up."""
FREE_ATTEMPTS = 2
"""How often it tries again at once: mostly the one that came first is done by then."""


class Attempts:
    """The attempts of one operation.

    Args:
        operation: its name, for metrics and the error.

    Attributes:
        safe: what is known of the operation's effect if it gives up.
    """

    def __init__(self, cell: BranchCell, operation: str) -> None:
        self.safe = "Nothing was changed."
        self._cell = cell
        self._operation = operation
        self._has_begun = False
        self._lost = 0
        self._changes_before = cell.change_count

    def next(self) -> bool:
        """Stands at the top of a loop: the first attempt is free, for each other one `again` is called."""
        has_begun, self._has_begun = self._has_begun, True
        return has_begun and self.again()

    def again(self) -> bool:
        """An attempt was lost: wait, but not the first times.

        Returns:
            Whether it waited, so that what was read before is old now.

        Raises:
            Contention: `MAX_ATTEMPTS` were lost. The error says who won instead.
        """
        self._lost += 1
        if self._lost >= MAX_ATTEMPTS:
            raise self.given_up()
        metrics.retries(self._operation).inc()
        debug("%s of %s: somebody else was first, attempt %d", self._operation, self._cell.name, self._lost + 1)
        if self._lost > FREE_ATTEMPTS:
            self._cell.stores.clock.sleep(backoff_s(self._lost - FREE_ATTEMPTS))
        return self._lost > FREE_ATTEMPTS

    def given_up(self) -> Contention:
        name = self._cell.name
        met = f"This {self._operation} met a changed branch {name!r} {MAX_ATTEMPTS} times in a row and gave up."
        return Contention(
            f"{met} {self._winners()}".rstrip(),
            safe=self.safe,
            next="Repeat the call; if it happens again, let fewer processes commit to this branch, or less often.",
        )

    def _winners(self) -> str:
        """A sentence about the changes that came first, as far as this process saw them."""
        meanwhile = self._cell.change_count - self._changes_before
        seen = list(self._cell.changes)[-meanwhile:] if meanwhile else []
        if not seen:
            return ""
        kinds = Counter(kind for kind, _ in seen)
        done = ", ".join(f"{count} × {kind}" for kind, count in kinds.most_common())
        commits = CommitLog(self._cell.stores)
        who: Counter[str] = Counter()
        for head in dict.fromkeys(head for _, head in seen[-20:]):
            try:
                who[commits.get(head).committer] += 1
            except StrandlineError:  # it is only for the message
                break
        by = f", the last commits by {', '.join(name for name, _ in who.most_common(3))}" if who else ""
        return f"Others won: of the last {len(seen)} changes seen here, {done}{by}."


def update(at: BranchAt, transition: Callable[[BranchRecord], BranchRecord]) -> Seen:
    """Apply a pure transition to whatever is on record, again and again until the swap wins.

    Raises:
        Contention: others won `MAX_ATTEMPTS` times.
    """
    attempts = Attempts(at.cell, "change")
    while True:
        attempts.next()
        seen = at.read()
        try:
            return at.cell.swap(seen, transition(seen.branch))
        except Moved:
            continue


@contextmanager
def still_named(at: BranchAt, seen: BranchRecord) -> Iterator[None]:
    """Read files that a record names. If one is missing and the record no longer names the same layers, it was replaced
    and collected meanwhile, and nothing is lost.

    Raises:
        LayersMoved: compute again, from the newest record.
        ObjectMissing: the record still names it.
    """
    try:
        yield
    except ObjectMissing:
        if at.read().branch.layers == seen.layers:
            raise
        raise LayersMoved from None


def read_back(at: BranchAt, unknown: OutcomeUnknown) -> Seen:
    """Read the record after a swap with an unknown outcome; if even that fails, the outcome stays unknown."""
    try:
        return at.read()
    except StoreUnavailable:
        raise unknown from None
