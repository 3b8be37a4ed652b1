"""The changes of a transaction that several processes work in: batches, which one record puts in order.

A batch is written under a key of its own and counts from the swap that names it on the record. The process that
publishes seals the record first: what is named by then is published, and nothing is named afterwards. The record goes
when the transaction is over, so that a late swap finds nothing to be made against.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

import msgspec
from msgspec.structs import replace

from strandline.branch.stores import Stores
from strandline.clock import backoff_s
from strandline.envelope import decode, encode
from strandline.errors import Corrupted, OutcomeUnknown, StoreUnavailable, StrandlineError
from strandline.ids import BranchId, keys_below, new_id
from strandline.kv.store import ABSENT, PredicateFailed

BATCH_MAX_BYTES = 1 << 20
"""What one value holds; more is several batches, which one swap names together."""
BATCHES_MAX = 128
"""When so many are named, the last small ones become one: what a newcomer reads follows the changes, not their number.
"""
IDS_KEPT = 512
"""How many ids of folded batches a fold remembers, by which a caller whose reply was lost finds its own."""
SETTLE_ATTEMPTS = 5
PREFIX = b"joint/"


class Closed(Exception):
    """The record is gone: the transaction has ended, or was never shared. Nothing was written."""


class Moved(Exception):
    """Others were first. The changes are not in; decide anew."""


class Sealed(Exception):
    """A process is publishing the transaction. The changes are not in."""


class Named(msgspec.Struct, frozen=True, array_like=True):
    """A batch as the record names it, with its size in bytes."""

    id: str
    size: int


class SharedRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What counts of a shared transaction.

    Attributes:
        batches: in their order.
        sealed_by: the processes that may be publishing it.
        revision: how often it was changed.
    """

    batches: tuple[Named, ...] = ()
    sealed_by: tuple[str, ...] = ()
    revision: int = 0


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Changes that were made together.

    Attributes:
        changes: staged values by path.
        exact: paths that nobody else may change until they are published.
        guards: prefixes that nobody else may add to until then, by ids under which the process that set them knows
            more about them.
        folds: ids of batches that it stands for.
    """

    changes: dict[bytes, bytes] = {}
    exact: tuple[str, ...] = ()
    guards: dict[str, str] = {}
    folds: tuple[str, ...] = ()


def share(stores: Stores, branch_id: BranchId, id: int) -> None:
    """Let other processes join a transaction that was just begun: ids are never used again."""
    with suppress(PredicateFailed):  # a reply was lost
        stores.kv.set_if(stores.records, _key(branch_id, id), encode(SharedRecord()), ABSENT)


def is_shared(stores: Stores, branch_id: BranchId, id: int) -> bool:
    """Whether a transaction can be joined."""
    return stores.kv.get(stores.records, _key(branch_id, id)) is not None


def drop(stores: Stores, branch_id: BranchId, id: int) -> None:
    """Forget what was shared of a transaction that is over; the record first, against which late swaps are made."""
    stores.kv.delete(stores.records, _key(branch_id, id))
    for page in stores.kv.scan_pages(stores.records, *keys_below(_key(branch_id, id) + b"/")):
        stores.kv.delete_many(stores.records, page.keys)


def shared_ids(stores: Stores, of: BranchId | None = None) -> Iterator[tuple[BranchId, int]]:
    """The transactions of which something shared is on record, of one branch or of all that ever were."""
    known = None
    below = PREFIX if of is None else PREFIX + of.encode() + b"/"
    for page in stores.kv.scan_pages(stores.records, *keys_below(below)):
        for key in page.keys:
            branch_id, number = key.decode().split("/")[1:3]
            if (branch_id, number) != known:
                known = branch_id, number
                yield BranchId(branch_id), int(number)


def forget(stores: Stores, branch_id: BranchId) -> None:
    """Clean up after a deleted branch."""
    for page in stores.kv.scan_pages(stores.records, *keys_below(PREFIX + branch_id.encode() + b"/")):
        stores.kv.delete_many(stores.records, page.keys)


def pairs(stores: Stores, branch_id: BranchId) -> list[tuple[bytes, bytes]]:
    """What counts of a branch's shared transactions, for a backup: each record with all batches that it names."""
    found: list[tuple[bytes, bytes]] = []
    for owner, id in shared_ids(stores, branch_id):
        found += _record_with_batches(stores, _key(owner, id))
    return found


def _record_with_batches(stores: Stores, key: bytes) -> list[tuple[bytes, bytes]]:
    raw, before = stores.kv.get(stores.records, key), None
    while raw is not None:
        named = [_batch_key(key, one.id) for one in decode(SharedRecord, raw, "a shared transaction").batches]
        values = stores.kv.get_many(stores.records, named) if named else []
        batches = [(name, value) for name, value in zip(named, values, strict=True) if value is not None]
        if len(batches) == len(named) or raw == before:  # all are there, or those that are not were lost
            return [(key, raw), *batches]
        before, raw = raw, stores.kv.get(stores.records, key)  # a fold has perhaps taken some away since
    return []


class SharedChanges:
    """The shared changes of one transaction, as one process has followed them. Not safe between threads.

    Args:
        process: by which this process knows its own seal.
    """

    def __init__(self, stores: Stores, branch_id: BranchId, id: int, process: str) -> None:
        self._stores = stores
        self._key = _key(branch_id, id)
        self._process = process
        self._raw = b""
        self._record = SharedRecord()
        self._followed: list[str] = []

    @property
    def is_sealed(self) -> bool:
        """Whether it was sealed when it was last read, by whomever."""
        return bool(self._record.sealed_by)

    def news(self) -> tuple[bool, list[Batch]]:
        """What was added since the last call.

        Returns:
            Whether it replaces all that was followed before; and the batches in their order.

        Raises:
            Closed, StoreUnavailable.
            Corrupted: a part of them is gone.
        """
        while True:
            self._read()
            ids = [one.id for one in self._record.batches]
            known = len(self._followed)
            anew = ids[:known] != self._followed
            batches = self._load(ids if anew else ids[known:])
            if batches is not None:
                self._followed = ids
                return anew, batches

    def append(self, batch: Batch, *, is_publisher: bool = False) -> None:
        """Add changes to what `news` has returned last.

        Invariant: the record is the one up to which this process has followed, so the changes were decided on all that
        counts before them; and it is not sealed, so that whoever publishes seals, and reads, after this swap.

        Args:
            is_publisher: takes a seal of this process off: its publication was surely refused.

        Raises:
            Closed, Moved, Sealed: they are not in.
            OutcomeUnknown: the store answered neither this nor what was asked to find out.
        """
        sealed_by = self._record.sealed_by
        if sealed_by and not (is_publisher and sealed_by == (self._process,)):
            raise Sealed
        added = {new_id(): part for part in _parts(batch)}
        gone: Sequence[Named] = ()
        if len(self._record.batches) + len(added) > BATCHES_MAX:
            gone, added = self._folded(added)
        values = {id: encode(part) for id, part in added.items()}
        kv, records = self._stores.kv, self._stores.records
        kv.set_many(records, [(_batch_key(self._key, id), value) for id, value in values.items()])
        kept = self._record.batches[: len(self._record.batches) - len(gone)]
        named = tuple(Named(id, len(value)) for id, value in values.items())
        try:
            self._swap(SharedRecord(batches=kept + named), next(iter(values)))
        except (Closed, Moved):
            with suppress(StrandlineError):  # what stays goes with the transaction
                kv.delete_many(records, [_batch_key(self._key, id) for id in values])
            raise
        self._followed = [one.id for one in kept + named]
        with suppress(StrandlineError):
            kv.delete_many(records, [_batch_key(self._key, one.id) for one in gone])

    def seal(self) -> None:
        """Let nothing more in, whoever else has sealed it. Raises `Closed`."""
        while True:
            self._read()
            if self._process in self._record.sealed_by:
                return
            with suppress(Moved):
                self._swap(replace(self._record, sealed_by=(*self._record.sealed_by, self._process)))
                return

    def unseal(self) -> None:
        """Take this process's seal off, after a publication that surely did not happen.

        Invariant: nothing is let in while another process may be publishing what it has read behind its own seal.
        """
        while True:
            self._read()
            if self._process not in self._record.sealed_by:
                return
            left = tuple(one for one in self._record.sealed_by if one != self._process)
            with suppress(Moved):
                self._swap(replace(self._record, sealed_by=left))
                return

    def _read(self) -> None:
        raw = self._stores.kv.get(self._stores.records, self._key)
        if raw is None:
            raise Closed
        if raw != self._raw:
            self._record, self._raw = decode(SharedRecord, raw, "a shared transaction"), raw

    def _load(self, ids: Sequence[str]) -> list[Batch] | None:
        """Batches that the record names; None if others have folded some since it was read.

        Raises:
            Closed.
            Corrupted: some are gone, and the record still names them: a fold takes them away after its swap only.
        """
        keys = [_batch_key(self._key, id) for id in ids]
        found = self._stores.kv.get_many(self._stores.records, keys) if keys else []
        raws = [raw for raw in found if raw is not None]
        if len(raws) < len(keys):
            held = self._raw
            self._read()
            if self._raw == held:
                raise Corrupted(
                    "Changes of a shared transaction are gone, though its record names them.",
                    next="Abort it with `strandline tx abort`, and run its job again.",
                )
            return None
        return [decode(Batch, raw, "changes of a shared transaction") for raw in raws]

    def _folded(self, added: dict[str, Batch]) -> tuple[Sequence[Named], dict[str, Batch]]:
        """The last small batches and the new one as one; which of them go."""
        gone: list[Named] = []
        size = 0
        for one in reversed(self._record.batches):
            size += one.size
            if size > BATCH_MAX_BYTES:
                break
            gone.insert(0, one)
        before = self._load([one.id for one in gone])
        if before is None:
            raise Moved
        changes: dict[bytes, bytes] = {}
        guards: dict[str, str] = {}
        exact: dict[str, None] = {}
        folds: list[str] = []
        for id, part in [*zip([one.id for one in gone], before, strict=True), *added.items()]:
            changes |= part.changes
            guards |= part.guards
            exact |= dict.fromkeys(part.exact)
            folds += [*part.folds, id]
        whole = Batch(changes=changes, exact=tuple(exact), guards=guards)
        parts = {new_id(): part for part in _parts(whole)}
        first = next(iter(parts))
        parts[first] = replace(parts[first], folds=tuple(folds[-IDS_KEPT:]))
        return gone, parts

    def _swap(self, wanted: SharedRecord, mine: str = "") -> None:
        """Replace the record that was read.

        Invariant: revisions only grow, so a record never comes back. A swap whose reply was lost is repeated until the
        store answers; once it answers that the record is another one, no attempt can land any more. Whether one has
        landed before, the record says.

        Args:
            mine: the batch that it names, by which it is found.
        """
        kv, records = self._stores.kv, self._stores.records
        record = replace(wanted, revision=self._record.revision + 1)
        value = encode(record)
        lost: StoreUnavailable | None = None
        for attempt in range(SETTLE_ATTEMPTS):
            try:
                kv.set_if(records, self._key, value, self._raw)
            except StoreUnavailable as error:
                if error.happened == "no" and lost is None:
                    raise
                lost = error
                self._stores.clock.sleep(backoff_s(attempt))
            except PredicateFailed:
                if lost is not None and self._has_landed(value, mine, lost):
                    return
                raise Moved from None
            else:
                self._raw, self._record = value, record
                return
        assert lost is not None
        raise _unknown(lost)

    def _has_landed(self, value: bytes, mine: str, lost: StoreUnavailable) -> bool:
        """Whether a swap did that got no answer, now that the record is another one than it demands."""
        try:
            while True:
                self._read()
                if self._raw == value:
                    return True
                if not mine:
                    return False
                batches = self._load([one.id for one in self._record.batches])
                if batches is not None:
                    return any(one.id == mine for one in self._record.batches) or any(
                        mine in one.folds for one in batches
                    )
        except (Closed, StoreUnavailable):  # it may have been published, and its record be gone
            raise _unknown(lost) from lost


def _unknown(lost: StoreUnavailable) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"The reply to a change of a shared transaction was lost: {lost.what}",
        safe="It is in the transaction, or it is not.",
        next="Look at what the transaction shows, then repeat the call if it is not there.",
    )


def _batch_key(key: bytes, id: str) -> bytes:
    return key + b"/" + id.encode()


def _key(branch_id: BranchId, id: int) -> bytes:
    return PREFIX + branch_id.encode() + b"/%016d" % id


def _parts(batch: Batch) -> list[Batch]:
    """A batch as several, if it is too large for one value."""
    parts: list[dict[bytes, bytes]] = [{}]
    size = 0
    for key, value in batch.changes.items():
        if size > BATCH_MAX_BYTES:
            parts.append({})
            size = 0
        parts[-1][key] = value
        size += len(key) + len(value)
    first, *rest = parts
    return [replace(batch, changes=first), *(Batch(changes=part) for part in rest)]
