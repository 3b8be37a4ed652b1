"""Where a change of tables lands: in a commit of its own, among what is staged, or in an open transaction."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

from strandline.branch import repeats
from strandline.branch.commits import Draft
from strandline.branch.one_shot import Unchanged
from strandline.branch.rules.lock_rules import refuse_quarantined
from strandline.branch.rules.ranges import Range
from strandline.branch.rules.record import BranchRecord
from strandline.core.physical import iceberg_part
from strandline.errors import Conflict, NotAllowed, OutcomeUnknown, StrandlineError
from strandline.iceberg.refusals import Reused
from strandline.ids import CommitId, prefix_end
from strandline.repository.branch import Branch
from strandline.repository.commits.one_shot import Asked, entry_of, publish_entries
from strandline.repository.objects.writable import Writable
from strandline.repository.refs.expressions import Target
from strandline.repository.refs.ref import Ref
from strandline.repository.transactions.joined import JoinedTransaction
from strandline.repository.transactions.transaction import Transaction
from strandline.results.rows import ObjectInfo
from strandline.tree.rows import Entry

TURN_S = 5.0


@dataclass(frozen=True, slots=True)
class Once:
    """What a repetition of a change is recognised by.

    Attributes:
        token: of the caller, the place and the change's name.
        digest: of what is asked for: the same token for something else is refused.
    """

    token: str
    digest: str


@dataclass(slots=True)
class Plan:
    """What is to land, decided on one state.

    Attributes:
        files: what is stored before, by key.
        unchanged: folders that were looked into, whose content must be the same still.
    """

    message: str = ""
    metadata: dict[str, str] = field(default_factory=dict)
    changes: dict[str, Entry | None] = field(default_factory=dict)
    expected: dict[str, ObjectInfo | None] = field(default_factory=dict)
    result: Any = None
    files: dict[str, bytes] = field(default_factory=dict)
    unchanged: Unchanged | None = None


@dataclass(frozen=True, slots=True)
class There:
    """A state that a change is decided on.

    Attributes:
        made: the state that the change made, if it was made before.
    """

    ref: Ref
    made: Ref | None = None


Landed = Literal["done", "moved"] | Ref
"""It landed; something is not as the plan expected, and nothing happened; or it had landed before, in this state."""


class Landing(ABC):
    """Where changes land.

    Attributes:
        part: what new files of a table lie below.
    """

    part = ""

    def turn(self) -> AbstractContextManager[object]:
        """Let one caller of this process decide at a time."""
        return nullcontext()

    @abstractmethod
    def shown(self, folder: str) -> Ref:
        """What a reader sees; of a branch, the folder that it looks into must not be quarantined."""

    @abstractmethod
    def now(self) -> There:
        """What a change is decided on; raises `NotAllowed` if there can be none."""

    @abstractmethod
    def land(self, plan: Plan, draft: Draft) -> Landed:
        """Make the changes, if what they expect is there."""


class Nowhere(Landing):
    """A tag, a commit, or another ref that only shows something."""

    def __init__(self, ref: Ref) -> None:
        self._ref = ref

    def shown(self, folder: str) -> Ref:
        return self._ref

    def now(self) -> There:
        raise NotAllowed(f"{self._ref.expression!r} cannot be changed.", next="Only branches can be written.")

    def land(self, plan: Plan, draft: Draft) -> Landed:
        raise NotAllowed(f"{self._ref.expression!r} cannot be changed.", next="Only branches can be written.")


class _OfBranch(Landing):
    def __init__(self, branch: Branch) -> None:
        self._branch = branch
        self.part = branch.branch_id

    @contextmanager
    def turn(self) -> Iterator[None]:
        """One that waits for long goes on, and may lose a race."""
        turn = self._branch._at.cell.turn
        is_mine = turn.acquire(timeout=TURN_S)
        try:
            yield
        finally:
            if is_mine:
                turn.release()

    def _record(self, folder: str = "") -> BranchRecord:
        branch = self._branch._at.read(shared=True).branch
        if folder:
            refuse_quarantined(branch, self._branch.name, Range(folder, prefix_end(folder)))
        return branch

    def _at_commit(self, commit: CommitId) -> Ref:
        branch = self._branch
        return Ref(branch._core, branch.name, Target("commit", commit, branch.name, branch.branch_id))


class OnHead(_OfBranch):
    """Each change is a commit of its own."""

    def __init__(self, branch: Branch, writer: str, once: Once | None) -> None:
        super().__init__(branch)
        self._writer = writer
        self._once = once

    def shown(self, folder: str) -> Ref:
        return self._at_commit(self._record(folder).head)

    def now(self) -> There:
        record, once = self._record(), self._once
        made = None
        if once is not None:
            done = repeats.find(self._branch._at.stores, record, once.token)
            if done is not None:
                if done.digest != once.digest:
                    raise Reused("The idempotency key was used for another request.", next="Draw another key.")
                made = self._at_commit(done.commit)
        return There(self._at_commit(record.head), made)

    def land(self, plan: Plan, draft: Draft) -> Landed:
        branch, once = self._branch, self._once
        asked = Asked(self._writer) if once is None else Asked(self._writer, once.token, once.digest)
        try:
            made = publish_entries(branch._core, branch._at, plan.changes, plan.expected, draft, asked, plan.unchanged)
        except Conflict as error:
            if type(error) is not Conflict:
                raise
            return "moved"
        if once is None:
            return "done"
        state = self._at_commit(made.id)
        try:
            is_own = all(entry is None or _holds(state, path, entry) for path, entry in plan.changes.items())
        except StrandlineError as error:  # it is published: whatever is said now, its files must stay
            raise OutcomeUnknown(
                f"Commit {made.id[:12]} has this change, and could not be read back: {error.what}",
                safe="It is published, by this call or by one with the same token before.",
                next="Repeat the call: it finds that out.",
            ) from error
        return "done" if is_own else state  # the addresses are this plan's own: what else stands there was before it


class AmongStaged(_OfBranch):
    """Changes are staged, and committed with whatever else is."""

    def shown(self, folder: str) -> Ref:
        self._record(folder)
        return self._branch

    def now(self) -> There:
        return There(self._branch)

    def land(self, plan: Plan, draft: Draft) -> Landed:
        return _staged(self._branch, plan)


class InTransaction(Landing):
    """Changes are the transaction's, and become visible with it. After its commit, it shows what it committed."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self.part = iceberg_part(transaction.branch_id, transaction.id)

    def shown(self, folder: str) -> Ref:
        transaction = self._transaction
        if isinstance(transaction, JoinedTransaction):
            transaction.look()
        if transaction.phase in ("committed", "repeat"):
            result = CommitId(transaction.result.commit)
            target = Target("commit", result, transaction.name, transaction.branch_id)
            return Ref(transaction._core, transaction.name, target)
        transaction._refuse_early()
        return transaction

    def now(self) -> There:
        self._transaction._refuse_early()
        return There(self._transaction)

    def land(self, plan: Plan, draft: Draft) -> Landed:
        return _staged(self._transaction, plan)


def _holds(state: Ref, path: str, entry: Entry) -> bool:
    found = state.find(path)
    return found is not None and found.physical_address == entry.physical_address


def _staged(place: Writable, plan: Plan) -> Landed:
    prefixes = plan.unchanged.prefixes if plan.unchanged is not None else ()
    expected = {path: None if info is None else entry_of(info) for path, info in plan.expected.items()}
    return "done" if place.stage_expecting(plan.changes, expected, prefixes) else "moved"


def before(state: Ref) -> Ref:
    """What was there before the commit that made a state."""
    (parent, *_) = state.get_commit().parents
    return Ref(state._core, state.expression, Target("commit", parent))


def landing_of(ref: Ref, writer: str, once: Once | None, *, stages: bool) -> Landing:
    """Where the changes of a ref land."""
    if isinstance(ref, Transaction):
        return InTransaction(ref)
    if not isinstance(ref, Branch):
        return Nowhere(ref)
    return AmongStaged(ref) if stages else OnHead(ref, writer, once)
