"""The one key that holds a branch record: read, remembered, and swapped."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from strandline import forks, metrics
from strandline.branch import repeats
from strandline.branch.reflog import keep_moves
from strandline.branch.rules.record import WRITE_IDS_KEPT, BranchRecord, Deleted, RefRecord, what_changed
from strandline.branch.sensor import Sensor
from strandline.branch.shared_read import SharedRead
from strandline.branch.stores import Stores
from strandline.clock import Microseconds, backoff_s
from strandline.envelope import decode, encode
from strandline.errors import Advice, BranchGone, OutcomeUnknown, RefNotFound, StoreUnavailable
from strandline.ids import BranchId, CommitId, new_id
from strandline.kv.store import Guard, Guarded, PredicateFailed
from strandline.operations import warning

SETTLE_ATTEMPTS = 5
"""How often a swap with a lost reply is repeated before its outcome counts as unknown."""
CHANGES_KEPT = 100
"""How many changes by others are remembered, for the errors of those that they were in the way of."""
CACHED_MAX_AGE_S = 5
"""An older record is read anew rather than tried: it is probably not the current one, and trying would cost a turn.
Only speed depends on it; what was done on a cached record is checked against a fresh one."""


class Moved(Exception):
    """The record is not the one that the swap was computed from. The swap surely did not happen."""


class Seen(msgspec.Struct, frozen=True, gc=False):
    """A branch record as it was read: the bytes are the predicate of a swap."""

    raw: bytes
    branch: BranchRecord
    at_us: Microseconds = 0


class BranchCell:
    """The record of a branch name in one process; shared by all handles of the name. Safe to share between threads."""

    def __init__(self, stores: Stores, name: str, sensor: Sensor | None = None) -> None:
        self.stores = stores
        self.name = name
        self.sensor = sensor
        self.changes: deque[tuple[str, CommitId]] = deque(maxlen=CHANGES_KEPT)
        """What others did to the branch lately, and the head that they left."""
        self.change_count = 0
        self.turn = forks.lock()
        """For callers that decide anew when they lose a race: those of one process need not race each other."""
        self._key = name.encode()
        self._last: Seen | None = None
        self._shared_get = SharedRead(lambda: stores.kv.get(stores.refs, self._key), stores.clock)

    def read(self, branch_id: BranchId | None = None, *, shared: bool = False) -> Seen:
        """Read the record from the store, in a read that begins after the call.

        Args:
            branch_id: the creation of the name that the caller means; None takes any.
            shared: with concurrent callers in this process. Right for callers that check what they did; one that wants
                to swap would only be woken after the others, and lose.

        Raises:
            RefNotFound: no such branch.
            BranchGone: the name now belongs to another creation, or to nobody.
        """
        raw = self._shared_get() if shared else self.stores.kv.get(self.stores.refs, self._key)
        last = self._last
        if raw is not None and last is not None and last.raw == raw:
            seen = Seen(last.raw, last.branch, self.stores.clock.now_us())  # not decoded again
            self._last = seen
        else:
            record: RefRecord | None = None
            if raw is not None:
                record = decode(RefRecord, raw, f"branch {self.name!r}")
            if raw is None or not isinstance(record, BranchRecord):
                self._last = None
                raise self._gone() if branch_id else _not_found(self.name, record)
            seen = Seen(raw, record, self.stores.clock.now_us())
            if last is not None:
                self.changes.append((what_changed(last.branch, record), record.head))
                self.change_count += 1
            self._last = seen
            if self.sensor is not None:
                self.sensor.saw_tokens(self.name, record)
        if branch_id is not None and seen.branch.branch_id != branch_id:
            raise self._gone()
        return seen

    def cached(self, branch_id: BranchId) -> tuple[Seen, bool]:
        """The record as last read by anyone in this process, if that is not long ago, and whether it was read now."""
        last = self._last
        if last is not None and last.branch.branch_id == branch_id:
            age_us = self.stores.clock.now_us() - last.at_us
            if 0 <= age_us <= CACHED_MAX_AGE_S * 1_000_000:
                return last, False
        return self.read(branch_id), True

    def set_while(self, seen: Seen, pairs: Sequence[tuple[bytes, bytes]]) -> Guarded:
        """Stage entries under the token of the record that was `seen`, while that is the record."""
        guard = Guard(self.stores.refs, self._key, seen.raw)
        return self.stores.kv.set_many_while(self.stores.staging(seen.branch.staging_token), pairs, guard)

    @property
    def remembered(self) -> BranchRecord | None:
        """The record as last read in this process, however old: for what may neither fail nor wait."""
        last = self._last
        return None if last is None else last.branch

    def swap(self, seen: Seen, record: BranchRecord | Deleted) -> Seen:
        """Replace the record that was `seen`.

        Invariant: every swap writes an id that no other swap writes, so no record ever returns to an earlier value,
        and a predicate that still holds means that nothing at all happened since `seen`.

        Raises:
            Moved: somebody else was first; nothing was written.
            OutcomeUnknown: the reply was lost and too much happened since to tell.
            StoreUnavailable: the write did not happen.
        """
        mine = new_id()
        written = replace(record, write_ids=(mine, *seen.branch.write_ids)[:WRITE_IDS_KEPT])
        raw = encode(written, before=seen.branch)
        if isinstance(written, BranchRecord):
            try:
                keep_moves(self.stores, seen.branch, written)
                repeats.keep(self.stores, seen.branch, written)
            except StoreUnavailable as error:  # a block too many does no harm, and the swap was not tried
                raise StoreUnavailable(error.what, happened="no", next=error.next) from error
        try:
            self.stores.kv.set_if(self.stores.refs, self._key, raw, seen.raw)
        except PredicateFailed:
            metrics.swaps_lost().inc()
            raise Moved from None
        except StoreUnavailable as error:
            if error.happened == "no":
                raise
            self._settle(seen, raw, mine, error)
        if isinstance(written, Deleted):
            self._last = None
            return seen
        self._last = Seen(raw, written, self.stores.clock.now_us())
        return self._last

    def _settle(self, seen: Seen, raw: bytes, mine: str, first: StoreUnavailable) -> None:
        """Find out what became of a swap whose reply was lost; return if it happened.

        Repeating the very same swap is safe: it can only succeed while the record is still `seen`, and whichever
        copy lands first changes the record, so that no other copy can.
        """
        warning("the reply to a change of branch %s was lost: finding out what became of it", self.name)
        for attempt in range(SETTLE_ATTEMPTS):
            try:
                self.stores.kv.set_if(self.stores.refs, self._key, raw, seen.raw)
                return
            except PredicateFailed:
                pass
            except StoreUnavailable:
                self.stores.clock.sleep(backoff_s(attempt))
                continue
            try:
                now = self.stores.kv.get(self.stores.refs, self._key)
            except StoreUnavailable:
                self.stores.clock.sleep(backoff_s(attempt))
                continue
            record = None if now is None else decode(RefRecord, now, f"branch {self.name!r}")
            ids = record.write_ids if isinstance(record, BranchRecord | Deleted) else ()
            if mine in ids:
                return
            if not seen.branch.write_ids or seen.branch.write_ids[0] in ids:
                raise Moved  # the history reaches back to `seen` and mine is not in it
            break
        raise OutcomeUnknown(
            f"The reply to a change of branch {self.name!r} was lost, and it cannot be told whether it took effect.",
            next=f"Look at `strandline log REPOSITORY/{self.name}` and `strandline status REPOSITORY/{self.name}`, "
            "then repeat the call if it did not.",
        ) from first

    def _gone(self) -> BranchGone:
        return BranchGone(
            f"Branch {self.name!r} of this handle was deleted; if the name is in use again, it is another branch.",
            safe="Nothing was written to that one.",
            next=Advice(
                f"Get a new handle: repository.branch({self.name!r}).",
                command="Repeat the command: it looks the branch up anew.",
            ),
        )


def _not_found(name: str, record: RefRecord | None) -> RefNotFound:
    if isinstance(record, Deleted):
        return RefNotFound(
            f"The {record.was} {name!r} was deleted.", next="`strandline branch list REPOSITORY` shows what is left."
        )
    if record is not None:
        return RefNotFound(
            f"{name!r} is a tag, not a branch.",
            next=Advice(
                "Use repository.ref() to read it.",
                command="Commands that change something take a branch; `strandline branch list REPOSITORY` shows them.",
            ),
        )
    return RefNotFound(f"There is no branch {name!r}.", next="`strandline branch list REPOSITORY` shows the branches.")
