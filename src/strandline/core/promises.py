"""What makers of references and the collector of garbage promise each other.

- Objects: a process that refers to bytes that are there already writes a *link record*, then checks that they are not
  *condemned*, then stages the reference. The collector writes what it condemns, then reads the link records, then
  deletes. So of the two, one sees the other. Link records outlive the run.
- Commits: a process that uses an old commit *pins* it, then checks that it is not *expired*. The collector writes what
  it expires, then reads refs and pins again, and deletes in a later run, a grace later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec.structs import replace

from strandline.blob import BlobNotFound
from strandline.branch.stores import Stores
from strandline.clock import Microseconds
from strandline.core.condemned import ListPart, decode_keys, decode_parts, encode_keys, encode_parts, without
from strandline.core.shapes import are_own
from strandline.core.upload_records import upload_places
from strandline.envelope import decode, encode
from strandline.errors import CommitExpired, Contention, ObjectMissing, StoreUnavailable, UsageError
from strandline.ids import CommitId, keys_below, new_id
from strandline.kv.store import ABSENT, PredicateFailed
from strandline.tree.rows import search

LINK = b"link/"
CONDEMNED = b"condemned/"
PIN = b"pin/"
EXPIRED = b"expired/"
LINKS_PER_RECORD = 5_000
RUN_IS_DEAD_S = 600
SERVED = b"lake", b"served"
"""Partition and key of a record that a server leaves: it gives out addresses that are written to a day later."""
SERVED_GRACE_DAYS = 25 / 24
FEW_ADDRESSES = 100
"""For so many it is asked whether they are there, rather than reading what has been deleted."""
PARTS_FORMAT = 9
"""The format of records of collections whose lists are in parts."""
PIN_DAYS = 7.0
"""How long a pin holds that nobody releases: its process has died."""
PIN_MAX_DAYS = 36_500.0
GC_FOLDER = "_strandline/gc"
_DAY_US = 86_400_000_000


class Link(msgspec.Struct, frozen=True):
    """Bytes that somebody is about to refer to.

    Attributes:
        seen_at: when a collector saw it first, by the clock of the object store: the clock of its maker may be
            days behind.
    """

    addresses: tuple[str, ...]
    seen_at: Microseconds | None = None


class Condemned(msgspec.Struct, frozen=True, omit_defaults=True):
    """Bytes that a collector is about to delete: a file lists them, sorted, or several files do.

    Attributes:
        run: names the run.
        count, bytes: of them.
        at: when it was last seen to work.
        done: how many of the list have been deleted.
        final: names the list of what goes, once that is decided; until then everything that is listed may go.
        in_parts: whether the list names files that list the keys.
        until: no attempt of an executor to delete goes on after this, by the clock of the object store. Until then the
            record stays.
    """

    run: str
    count: int
    bytes: int
    at: Microseconds
    done: int = 0
    final: str = ""
    in_parts: bool = False
    until: Microseconds = 0

    @property
    def format_needed(self) -> int:
        """Earlier versions would look for the keys in the list of parts."""
        return PARTS_FORMAT if self.in_parts else 0

    @property
    def folder(self) -> str:
        return f"{GC_FOLDER}/{self.run}/"

    @property
    def is_over(self) -> bool:
        """Whether all that was decided on has been deleted."""
        return bool(self.final) and self.done >= self.count

    @property
    def file(self) -> str:
        """The list that counts: that of all that is condemned, or what is left of it when the links were read."""
        name = f"final-{self.final}" if self.final else "condemned"
        return f"{self.folder}{name}.{'json' if self.in_parts else 'parquet'}"


class Pin(msgspec.Struct, frozen=True):
    """A commit that somebody uses.

    Attributes:
        days: for how long it holds if nobody releases it, from when a collector saw it first.
        seen_at: as for `Link`.
    """

    commit: CommitId
    days: float
    why: str
    seen_at: Microseconds | None = None


class Expired(msgspec.Struct, frozen=True):
    """A commit that no rule keeps.

    Attributes:
        run: that expired it; its files go in a later one.
        swept: its files have gone, or are about to: it cannot come back.
        is_only_seen: the commit was unreachable when first seen. It may be about to become a head, so it stays usable
            and expires only if it is still unreachable one grace period later.
    """

    run: str
    at: Microseconds
    swept: bool = False
    is_only_seen: bool = False


# --- objects ----------------------------------------------------------------------------------------------------------


def announce_links(stores: Stores, addresses: Sequence[str]) -> None:
    """Say which bytes are about to be referred to, and make sure that nobody is deleting them.

    Addresses of somebody else's bytes are nobody's to delete, and are left out.

    Raises:
        ObjectMissing: some are being collected.
    """
    own = sorted({address for address in addresses if "://" not in address})
    if not own:
        return
    pairs = [
        (LINK + new_id().encode(), encode(Link(tuple(own[first : first + LINKS_PER_RECORD]))))
        for first in range(0, len(own), LINKS_PER_RECORD)
    ]
    stores.kv.set_many(stores.records, pairs)
    refuse_condemned(stores, own)


def refuse_condemned(stores: Stores, addresses: Sequence[str]) -> None:
    """Raise if a run of the collector deletes some of these, or has just done so.

    Raises:
        ObjectMissing: so it is.
    """
    wanted = pa.array(addresses, pa.string())
    for record in condemned(stores):
        if record.is_over and len(addresses) <= FEW_ADDRESSES:  # all that it lists is gone
            _refuse_missing(stores, addresses)
            continue
        try:
            found = [search(keys, wanted)[1] for keys in condemned_among(stores, record, wanted)]
        except BlobNotFound:
            # the run has ended since it was listed, and may have read the links before these were announced: what it
            # deleted is told by what is there
            _refuse_missing(stores, addresses)
            continue
        for one in found:
            if one.any():
                raise _collected(addresses[int(one.argmax())])


def _refuse_missing(stores: Stores, addresses: Sequence[str]) -> None:
    """The run has deleted what it would by the time its lists are gone."""
    for address in addresses:
        if not stores.trees.blobs.exists(address):
            raise _collected(address)


def _collected(address: str) -> ObjectMissing:
    return ObjectMissing(
        f"The bytes at {address!r} are being collected as garbage: nothing referred to them any more.",
        next="Take the object from a commit that is kept.",
    )


def condemned(stores: Stores) -> list[Condemned]:
    """The runs that are deleting, or died doing so."""
    return [
        decode(Condemned, value, "a run of the collector")
        for _, value in stores.kv.scan(stores.records, *keys_below(CONDEMNED))
    ]


def refuse_running(stores: Stores, record: Condemned) -> None:
    """Two collectors would do each other's work: refuse to, unless the other one is dead."""
    if abs(stores.clock.now_us() - record.at) < RUN_IS_DEAD_S * 1_000_000:
        raise Contention(
            f"Another run is collecting garbage, and has deleted {record.done:,} of {record.count:,} files.",
            next=f"Wait for it. If it has died, {RUN_IS_DEAD_S // 60} minutes later another run goes on with its work.",
        )


def condemned_parts(stores: Stores, record: Condemned) -> list[ListPart]:
    """The files that list what a run has condemned.

    Raises:
        BlobNotFound: they are gone, and so the run has ended.
    """
    if not record.in_parts:
        return [ListPart(record.file, "", "", record.count, record.bytes)]
    return decode_parts(stores.trees.blobs.get(record.file), record.file)


def condemned_keys(stores: Stores, record: Condemned) -> pa.StringArray:
    """All keys of a run that lists them in one file."""
    return decode_keys(stores.trees.blobs.get(record.file), record.file)


def condemned_among(stores: Stores, record: Condemned, wanted: pa.StringArray) -> Iterator[pa.StringArray]:
    """The condemned keys, file by file, of those that may list some of these; of a run that has one file, its keys."""
    for part in condemned_parts(stores, record):
        if not record.in_parts or part.may_have(wanted):
            yield decode_keys(stores.trees.blobs.get(part.file), part.file)


def write_condemned(stores: Stores, record: Condemned, keys: pa.StringArray) -> bytes:
    """Condemn: the list first, then the record that makes it count; returns the record's bytes."""
    _write_keys(stores, record.file, keys)
    raw = encode(record)
    stores.kv.set_if(stores.records, CONDEMNED + record.run.encode(), raw, ABSENT)
    return raw


def write_condemned_parts(stores: Stores, record: Condemned, parts: Sequence[ListPart]) -> None:
    """Condemn what is listed in files that are there already."""
    stores.trees.blobs.put(record.file, encode_parts(parts), "create")
    stores.kv.set_if(stores.records, CONDEMNED + record.run.encode(), encode(record), ABSENT)


def _write_keys(stores: Stores, file: str, keys: pa.StringArray) -> None:
    stores.trees.blobs.put(file, encode_keys(keys), "create")


def find_condemned(stores: Stores, run: str) -> tuple[bytes, Condemned] | None:
    """The record of a run as it is now; None if the run has ended."""
    raw = stores.kv.get(stores.records, CONDEMNED + run.encode())
    return None if raw is None else (raw, decode(Condemned, raw, "a run of the collector"))


def advance_condemned(stores: Stores, raw: bytes, record: Condemned) -> tuple[bytes, Condemned] | None:
    """Swap a run's record for the one that follows it. The loser of a race goes on with what is there.

    Invariant: every write of the record is a swap against what was read, so that a late one never brings an ended run
    back, and never says that less is done than is.
    """
    after = encode(record)
    try:
        stores.kv.set_if(stores.records, CONDEMNED + record.run.encode(), after, raw)
        return after, record
    except PredicateFailed:
        return find_condemned(stores, record.run)


def settled(stores: Stores, record: Condemned) -> list[ListPart]:
    """The parts of a list without what links were announced to."""
    spared = linked(stores)
    blobs = stores.trees.blobs
    found = [without(blobs, record.folder, part, spared) for part in condemned_parts(stores, record)]
    return [part for part in found if part is not None]


def decide(
    stores: Stores, raw: bytes, record: Condemned, settle: Callable[[Stores, Condemned], list[ListPart]] = settled
) -> tuple[bytes, Condemned] | None:
    """Decide for good what a run deletes: what it has condemned, less what links were announced to.

    Invariant: the links are read after the record was there. A linker that announces later finds its bytes on the list
    and is refused; one that announced before is in what is read here. The swap makes the first such list the only one:
    a collector that goes on with the run, however late, deletes exactly that: a link that came since keeps its bytes.

    Args:
        settle: reads the links, and writes lists in parts without what they name; by default this process does.

    Raises:
        BlobNotFound: the list is gone, and so the run has ended.
    """
    while not record.final:
        found = advance_condemned(stores, raw, _decided(stores, record, settle))
        if found is None:
            return None
        raw, record = found
    return raw, record


def _decided(stores: Stores, record: Condemned, settle: Callable[[Stores, Condemned], list[ListPart]]) -> Condemned:
    """The record with a list of what goes, which is written."""
    parts = settle(stores, record) if record.in_parts else []
    final = replace(record, final=new_id(), at=stores.clock.now_us(), done=0)
    if record.in_parts:
        stores.trees.blobs.put(final.file, encode_parts(parts), "create")
        return replace(final, count=sum(part.count for part in parts), bytes=sum(part.bytes for part in parts))
    keys = condemned_keys(stores, record)
    _, is_spared = search(linked(stores), keys)
    _write_keys(stores, final.file, keys.filter(pa.array(~is_spared & _may_go(stores, keys))))
    return final


def _may_go(stores: Stores, keys: pa.StringArray) -> npt.NDArray[np.bool_]:
    """The run may be one of an earlier version, which condemned what is not strandline's as well."""
    names: list[str] = keys.to_pylist()
    away = stores.trees.blobs.own.through_links(names)
    is_here = np.array([name not in away for name in names], bool) if away else np.ones(len(names), bool)
    return is_here & are_own(keys.cast(pa.large_string()))


def end_condemned(stores: Stores, record: Condemned) -> None:
    """All of the list is gone: so may the record be, and then the lists."""
    stores.kv.delete(stores.records, CONDEMNED + record.run.encode())
    blobs = stores.trees.blobs.own
    blobs.delete_many(list(blobs.list_keys(record.folder)))


def linked(stores: Stores) -> pa.StringArray:
    """All addresses on link records, and of uploads in parts, sorted."""
    found = list(upload_places(stores))
    for _, value in stores.kv.scan(stores.records, *keys_below(LINK)):
        found += decode(Link, value, "a link record").addresses
    return pa.array(sorted(found), pa.string())


def drop_links(stores: Stores, now: Microseconds, before: Microseconds) -> int:
    """Remove the link records that were seen a grace ago: by now the reference is there, or was never made.

    Args:
        now: by the clock of the object store.
        before: a grace ago.
    """
    old = []
    for key, value in stores.kv.scan(stores.records, *keys_below(LINK)):
        link: Link = decode(Link, value, "a link record")
        if link.seen_at is None:
            _see(stores, key, value, replace(link, seen_at=now))
        elif link.seen_at < before:
            old.append(key)
    stores.kv.delete_many(stores.records, old)
    return len(old)


def _see(stores: Stores, key: bytes, held: bytes, seen: Link | Pin) -> None:
    """Note when a record was seen first, unless it is gone."""
    with suppress(PredicateFailed):
        stores.kv.set_if(stores.records, key, encode(seen), held)


# --- commits ----------------------------------------------------------------------------------------------------------


def refuse_expired(stores: Stores, commit: CommitId) -> None:
    if is_expired(stores, commit):
        raise CommitExpired(
            f"Commit {commit[:12]} has expired: its branch keeps commits for fewer days, and its files are collected.",
            next="Use a commit that is kept: a tag keeps one for ever, and gc.retention says how long branches do.",
        )


def is_expired(stores: Stores, commit: CommitId) -> bool:
    raw = stores.kv.get(stores.records, EXPIRED + commit.encode())
    return raw is not None and not decode(Expired, raw, "an expired commit").is_only_seen


def put_pin(stores: Stores, commit: CommitId, why: str, days: float = PIN_DAYS) -> bytes:
    """Pin a commit, and make sure that it can be used.

    Raises:
        CommitExpired: it is too late.
        UsageError: it would hold for no time, or for longer than records are kept.
    """
    if not 0 < days <= PIN_MAX_DAYS:
        raise UsageError(
            f"A pin cannot hold for {days:g} days.", next=f"Use more than 0 and at most {PIN_MAX_DAYS:,.0f} days."
        )
    key = PIN + commit.encode() + b"/" + new_id().encode()
    stores.kv.set(stores.records, key, encode(Pin(commit, days, why)))
    try:
        refuse_expired(stores, commit)
    except CommitExpired:
        drop_pin(stores, key)
        raise
    return key


def drop_pin(stores: Stores, key: bytes) -> None:
    with suppress(StoreUnavailable):  # it ends by itself
        stores.kv.delete(stores.records, key)


@contextmanager
def pinned(stores: Stores, commits: Sequence[CommitId], why: str) -> Iterator[None]:
    """Use commits that a rule may be about to expire."""
    keys: list[bytes] = []
    try:
        keys.extend(put_pin(stores, commit, why) for commit in dict.fromkeys(commits))
        yield
    finally:
        for key in keys:
            drop_pin(stores, key)


def pins(stores: Stores, now: Microseconds) -> list[Pin]:
    """The pins that hold; those that ended are removed.

    Args:
        now: by the clock of the object store.
    """
    held, ended = [], []
    for key, value in stores.kv.scan(stores.records, *keys_below(PIN)):
        pin: Pin = decode(Pin, value, "a pin")
        # an earlier version took any number: what is none holds as long as a pin that nobody gave one
        days = pin.days if 0 < pin.days <= PIN_MAX_DAYS else PIN_DAYS
        if pin.seen_at is None:
            _see(stores, key, value, replace(pin, seen_at=now, days=days))
        if pin.seen_at is None or pin.seen_at + round(days * _DAY_US) > now:
            held.append(pin)
        else:
            ended.append(key)
    stores.kv.delete_many(stores.records, ended)
    return held


def expired(stores: Stores) -> dict[CommitId, Expired]:
    return {
        CommitId(key[len(EXPIRED) :].decode()): decode(Expired, value, "an expired commit")
        for key, value in stores.kv.scan(stores.records, *keys_below(EXPIRED))
    }


def expired_pair(commit: CommitId, mark: Expired) -> tuple[bytes, bytes]:
    """Key and value of the record."""
    return EXPIRED + commit.encode(), encode(mark)


def put_expired(stores: Stores, commits: Sequence[CommitId], mark: Expired) -> None:
    stores.kv.set_many(stores.records, [expired_pair(commit, mark) for commit in commits])


def drop_expired(stores: Stores, commits: Sequence[CommitId]) -> None:
    stores.kv.delete_many(stores.records, [EXPIRED + commit.encode() for commit in commits])
