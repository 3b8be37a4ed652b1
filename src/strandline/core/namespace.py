"""Whose a storage namespace is: the marker in it, and what the lake has on record of it.

A collector deletes files, so it has to know that nobody else refers to them. The marker names the lake and carries a
stamp that each collection renews, in the key-value store first and then in the namespace. A copy of the
key-value store has the stamp that it was copied with, and meets another one in the marker once one of the two has
collected.
"""

from __future__ import annotations

from contextlib import suppress

import msgspec

from strandline.blob import BlobExists, BlobNotFound, BlobStore
from strandline.branch.stores import Stores
from strandline.clock import Microseconds
from strandline.envelope import decode, encode
from strandline.errors import Advice, AlreadyExists, Contention, NotAllowed, StoreUnavailable
from strandline.ids import RepositoryId, new_id
from strandline.kv.store import ABSENT, PredicateFailed

MARKER = "_strandline/repository.json"
"""Lies in every storage namespace and says whose it is."""
READERS = "_strandline/readers/"
"""Lakes that were restored without the bytes leave a file here: they read this namespace."""
MARKER_FORMAT = 2
STAMPS_KEPT = 16
"""A run that dies, or is late, between the record and the marker leaves one more that the marker may show."""
KEY = b"namespace"
"""Of the record in the repository's partition."""
ATTEMPTS = 8
"""Other runs may renew the stamp while it is compared."""


class Marker(msgspec.Struct, frozen=True):
    """What lies in a namespace.

    Attributes:
        lake: the lake whose repository this is; "" in the first format.
        stamp: of the newest collection that has begun, or of the making.
    """

    format: int
    repository_id: RepositoryId
    repository: str
    lake: str = ""
    stamp: str = ""


class Namespace(msgspec.Struct, frozen=True, kw_only=True):
    """What a repository has on record of its namespace.

    Attributes:
        stamp: that the marker has, or is about to get.
        before: those that it may have if the process that renewed it died in between, or is late.
    """

    lake: str
    stamp: str
    before: tuple[str, ...] = ()


class Reader(msgspec.Struct, frozen=True):
    """A lake whose metadata refer to bytes in somebody else's namespace."""

    lake: str
    repository_id: RepositoryId
    since: Microseconds


# --- taking -----------------------------------------------------------------------------------------------------------


def take(stores: Stores, id: RepositoryId, name: str, lake: str) -> None:
    """Make a free namespace a repository's. The marker is also the probe that it can be written and read.

    Raises:
        AlreadyExists: somebody has it.
    """
    held = Namespace(lake=lake, stamp=new_id())
    blobs = stores.trees.blobs.own
    body = _body(id, name, held)
    try:
        blobs.put(MARKER, body, "create")
        if blobs.get(MARKER) != body:
            raise StoreUnavailable(f"{blobs.url} gives back other bytes than were written.", happened="unknown")
    except BlobExists:
        raise AlreadyExists(
            f"The storage namespace {blobs.url} belongs to a repository already.",
            next=f"Use another prefix; or, if that repository is gone, delete {MARKER} and what lies beside it.",
        ) from None
    except BlobNotFound:
        raise StoreUnavailable(f"{blobs.url} does not return what was just written.", happened="unknown") from None
    stores.kv.set(stores.records, KEY, encode(held))


def claim(stores: Stores, id: RepositoryId, name: str, lake: str, *, take_over: bool = False) -> None:
    """Take a namespace, or find that it is this repository's already, as after a crash.

    Args:
        take_over: it was the same repository's in a lake that is gone.
    """
    blobs = stores.trees.blobs.own
    try:
        marker = read_marker(blobs)
    except BlobNotFound:
        take(stores, id, name, lake)
        return
    if marker is None or marker.repository_id != id or (marker.lake != lake and not take_over):
        raise AlreadyExists(
            f"The storage namespace {blobs.url} belongs to another repository, or to another lake.",
            next="Use another prefix.",
        )
    held = Namespace(lake=lake, stamp=new_id(), before=(marker.stamp,))
    stores.kv.set(stores.records, KEY, encode(held))
    blobs.put(MARKER, _body(id, name, held))


def adopt(stores: Stores, id: RepositoryId, name: str, lake: str, *, dry_run: bool) -> bool:
    """Write into a marker of the first format, which names no lake, that it is this lake's; whether that was so.

    Raises:
        NotAllowed: it is another lake's, or nobody can tell.
    """
    blobs = stores.trees.blobs.own
    before = _on_record(stores)
    try:
        marker = read_marker(blobs)
    except BlobNotFound:
        marker = None
    if before is not None:
        is_half_done = (
            marker is not None
            and (marker.repository_id, marker.lake) == (id, "")
            and before.lake == lake
            and marker.stamp in before.before
        )
        if is_half_done and not dry_run:
            blobs.put(MARKER, _body(id, name, before))  # an upgrade died between the record and the marker
        return is_half_done
    if marker is None or marker.repository_id != id or marker.lake not in ("", lake):
        raise _not_ours(stores, name, marker)
    if not dry_run:
        held = Namespace(lake=lake, stamp=new_id(), before=(marker.stamp,))
        with suppress(PredicateFailed):  # another upgrade was first
            stores.kv.set_if(stores.records, KEY, encode(held), ABSENT)
            blobs.put(MARKER, _body(id, name, held))
    return True


def renew(stores: Stores, id: RepositoryId, name: str, lake: str) -> None:
    """Write a marker that is missing or cut, for a caller that knows that the namespace is this repository's alone."""
    held = Namespace(lake=lake, stamp=new_id())
    stores.kv.set(stores.records, KEY, encode(held))
    stores.trees.blobs.own.put(MARKER, _body(id, name, held))


def read_marker(blobs: BlobStore) -> Marker | None:
    """The marker; None if it is cut or is none.

    Raises:
        BlobNotFound: there is none.
    """
    try:
        return msgspec.json.decode(blobs.get(MARKER), type=Marker)
    except msgspec.MsgspecError:
        return None


def is_unmarked(stores: Stores) -> bool:
    """Whether the marker is missing or cut, so that nobody can tell whose the namespace is."""
    try:
        return read_marker(stores.trees.blobs.own) is None
    except BlobNotFound:
        return True


def _body(id: RepositoryId, name: str, held: Namespace) -> bytes:
    return msgspec.json.encode(Marker(MARKER_FORMAT, id, name, held.lake, held.stamp))


def _on_record(stores: Stores) -> Namespace | None:
    raw = stores.kv.get(stores.records, KEY)
    return None if raw is None else decode(Namespace, raw, "the storage namespace")


# --- collecting -------------------------------------------------------------------------------------------------------


class Ownership:
    """That a run of the collector may delete: proven when it begins, and looked at again before each batch.

    Invariant: the stamp is renewed on record by a swap, and in the namespace afterwards. A marker that has the stamp on
    record, or one before it, was written by this very key-value store; one that has none of them was written by a copy
    of it, or by another lake.
    """

    def __init__(self, stores: Stores, id: RepositoryId, name: str) -> None:
        self._stores = stores
        self._id = id
        self._name = name
        self.stamp = ""

    def check(self, *, despite_readers: bool) -> None:
        """Raise unless the namespace is this repository's, and nobody else reads it. Changes nothing.

        Raises:
            NotAllowed: it is not, or somebody does.
        """
        self._look()
        if not despite_readers and (lakes := readers(self._stores.trees.blobs.own)):
            way = f"Restore it again with the bytes; or, if it is gone, delete {READERS}<lake>.json, or collect"
            raise NotAllowed(
                f"The storage namespace {self._stores.trees.blobs.own.url} is read by another lake as well: "
                f"{', '.join(sorted(lakes))}. It was restored from a backup without the bytes of its objects.",
                safe="Nothing was deleted.",
                next=Advice(f"{way} with despite_readers=True.", command=f"{way} with --despite-readers."),
            )

    def _look(self) -> tuple[bytes, Namespace, Marker]:
        """The record's bytes, what it says, and the marker.

        Raises:
            NotAllowed: the namespace is not this repository's.
            Contention: another run renewed the stamp each time that this one looked.
        """
        stores = self._stores
        for _ in range(ATTEMPTS):
            raw = stores.kv.get(stores.records, KEY)
            held = None if raw is None else decode(Namespace, raw, "the storage namespace")
            try:
                marker = read_marker(stores.trees.blobs.own)
            except BlobNotFound:
                marker = None
            if (
                raw is not None
                and held is not None
                and marker is not None
                and (marker.repository_id, marker.lake) == (self._id, held.lake)
                and marker.stamp in (held.stamp, *held.before)
            ):
                return raw, held, marker
            if stores.kv.get(stores.records, KEY) == raw:
                raise _not_ours(stores, self._name, marker)
        raise self._overtaken()

    def begin(self) -> None:
        """Renew the stamp: from now on a copy of the key-value store is found out.

        Raises:
            NotAllowed: the namespace is not this repository's.
            Contention: another run began at the same time.
        """
        raw, held, marker = self._look()
        before = dict.fromkeys((marker.stamp, held.stamp, *held.before))
        after = Namespace(lake=held.lake, stamp=new_id(), before=tuple(before)[:STAMPS_KEPT])
        try:
            self._stores.kv.set_if(self._stores.records, KEY, encode(after), raw)
        except PredicateFailed:
            raise self._overtaken() from None
        self._stores.trees.blobs.own.put(MARKER, _body(self._id, self._name, after))
        self.stamp = after.stamp

    def refuse_foreign(self) -> None:
        """Raise unless the marker still has the stamp of this run: called before each batch of deletions."""
        try:
            marker = read_marker(self._stores.trees.blobs.own)
        except BlobNotFound:
            marker = None
        if marker is None or marker.stamp != self.stamp:
            raise self._overtaken()

    def _overtaken(self) -> Contention:
        return Contention(
            f"Another run has begun to collect in the storage namespace of {self._name!r}.",
            safe="This run has stopped; what it deleted nothing refers to.",
            next="Wait for the other run, which goes on with this one's work. If no other is known, another lake uses "
            "this namespace: look at `_strandline/repository.json` in it.",
        )


def _not_ours(stores: Stores, name: str, marker: Marker | None) -> NotAllowed:
    url = stores.trees.blobs.own.url
    if marker is None:
        what = f"The marker {MARKER} of the storage namespace {url} is missing, or cut: nobody can tell whose it is."
        advice = "If it is this lake's alone, run `strandline upgrade --repair`, which writes the marker anew."
    elif not marker.lake:
        what = f"The storage namespace {url} was made by an earlier version, and its marker names no lake."
        advice = "Run `strandline upgrade` in the lake that it belongs to."
    else:
        what = f"The storage namespace {url} is marked as repository {marker.repository!r} of lake {marker.lake}."
        advice = (
            "If the key-value store was copied, only one of the two copies may go on: restore the other one from a "
            "backup. If this lake is the only one left, restore a backup with take_over=True."
        )
    return NotAllowed(f"{what} It is not known to be {name!r}'s alone.", safe="Nothing was deleted.", next=advice)


# --- readers ----------------------------------------------------------------------------------------------------------


def readers(blobs: BlobStore) -> set[str]:
    """The lakes that read a namespace that is not theirs."""
    return {key[len(READERS) :].removesuffix(".json") for key in blobs.list_keys(READERS)}


def leave_reader(blobs: BlobStore, lake: str, id: RepositoryId, now_us: Microseconds) -> None:
    """Say in somebody else's namespace that a lake reads it."""
    blobs.put(f"{READERS}{lake}.json", msgspec.json.encode(Reader(lake, id, now_us)))


def drop_reader(blobs: BlobStore, lake: str) -> None:
    with suppress(StoreUnavailable):  # its owner finds out that no reader is there any more
        blobs.delete_many([f"{READERS}{lake}.json"])
