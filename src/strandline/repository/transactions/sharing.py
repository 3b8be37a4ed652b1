"""A transaction that other processes work in as well: its changes lie in the key-value store, not in one process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

from strandline.arguments import checked
from strandline.branch import shared_changes, transactions
from strandline.branch.at import BranchAt
from strandline.branch.shared_changes import Batch, Closed, Moved, Sealed, SharedChanges
from strandline.core.repository_core import RepositoryCore
from strandline.errors import StrandlineError, TransactionClosed
from strandline.ids import CommitId, new_id
from strandline.repository.transactions.claims import Claims, Guard, Step
from strandline.repository.transactions.options import TransactionOptions
from strandline.repository.transactions.publishing import Publishing


@checked()
class Sharing(Publishing):
    """A transaction without its life, whose changes are perhaps shared."""

    _is_publisher = True
    """Whether this process may publish it."""

    def __init__(self, core: RepositoryCore, at: BranchAt, options: TransactionOptions, base: CommitId) -> None:
        self._shared: SharedChanges | None = None
        self._is_deciding = False
        self._was_refused = False
        self._may_land = False
        self._guards: dict[str, Guard] = {}
        super().__init__(core, at, options, base)

    @property
    def is_shared(self) -> bool:
        """Whether other processes can join it, such as a server of Iceberg's catalog."""
        return self._options.shared

    def _follow_shared(self) -> None:
        process = f"{self._who.process} {new_id()}"
        self._shared = SharedChanges(self._core.stores, self.branch_id, self.id, process)
        self._guards = {}

    def _raise_over(self) -> NoReturn:
        """Nothing shared is on record any more: say how it ended."""
        transactions.granted(self._at, self.writer, self.id)
        raise TransactionClosed(
            f"What was shared of transaction {self.id} of {self.writer!r} is not on record: it is over.",
            safe="Nothing of this call is in it.",
            next="`strandline tx show` tells what became of it.",
        )

    def _refresh(self) -> None:
        """Take in what others have added. While a change is decided, what it is decided on stays as it is."""
        if self._shared is None:
            return
        with self._lock:
            if self._is_deciding or not self._is_followed():
                return
            try:
                anew, batches = self._shared.news()
            except Closed:
                self._raise_over()
            if not anew and not batches:
                return
            # made aside: readers beside this hold no lock, and see all that was there before or all that is now
            claims = Claims(unchanged=self._claims.unchanged) if anew else self._claims
            for batch in batches:
                # of what this process overwrites it knows which objects it left alone; for others nothing may change
                guards = [self._guards.get(id, Guard(prefix)) for id, prefix in batch.guards.items()]
                claims.add(Step(batch.changes, batch.exact, guards))
            self._claims = claims
            self._sorted = None

    @contextmanager
    def _deciding(self) -> Iterator[None]:
        before, self._is_deciding = self._is_deciding, True
        try:
            yield
        finally:
            self._is_deciding = before

    def _is_followed(self) -> bool:
        """Whether others may still add something."""
        return True

    def _change_shared(self, step: Step) -> bool:
        assert self._shared is not None
        guards = {new_id(): guard for guard in step.guards}
        batch = Batch(
            changes=dict(step.changes),
            exact=tuple(step.exact),
            guards={id: guard.prefix for id, guard in guards.items()},
        )
        try:
            self._shared.append(batch, is_publisher=self._is_publisher and not self._may_land)
        except Moved:
            return False
        except Closed:
            self._raise_over()
        except Sealed:
            raise TransactionClosed(
                f"Transaction {self.id} of {self.writer!r} is being published: nothing more goes into it.",
                safe="Nothing of this call is in it.",
                next="Its own process may go on if the publication was refused." if self._is_publisher else "",
            ) from None
        self._guards |= guards
        return True

    def _keep(self, step: Step) -> bool:
        return self._shared is None or self._change_shared(step)

    @contextmanager
    def _sealed(self) -> Iterator[None]:
        """Let others add nothing more, and take in what they have added; if the block raises, they may go on.

        Invariant: what is published is what is followed up to the seal, and nothing is added behind a seal: so each
        change that others were told is in the transaction is published with it.
        """
        if self._shared is None:
            yield
            return
        try:
            with suppress(Closed):  # it is over: publishing finds out how
                self._shared.seal()
                self._refresh()
            yield
        except BaseException:
            if not self._may_land:
                self._unseal()
            raise

    @property
    def is_asked_for(self) -> bool:
        """Whether its manifest says all of it: a shared one that is not sealed may have got more since."""
        return self._shared is None or self._shared.is_sealed

    def _unseal(self) -> None:
        """Let others go on: the publication was surely refused."""
        if self._shared is not None:
            with suppress(Closed, StrandlineError):  # the next change of this process tries it again
                self._shared.unseal()

    def _end_shared(self) -> None:
        """Forget what was shared; what fails here, a collection does."""
        if self._shared is not None:
            with suppress(StrandlineError):
                shared_changes.drop(self._core.stores, self.branch_id, self.id)
