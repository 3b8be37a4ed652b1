"""Mending records that an earlier version wrote and nobody can read: a field of a type that it does not have.

Earlier versions did not check all arguments, so that `commit(committer=5)` or `protect(5)` left a record that refuses
to be read, for ever. What was meant is nearly always plain, so each field is mended by itself: a text that is not one
becomes its text, a rule that means nothing goes, and what protects stays on the safe side. A record in which that is
not enough is named, and left as it is.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from strandline.branch.commits import KEY_PREFIX as COMMIT
from strandline.branch.commits import Commit, commit_id
from strandline.branch.reflog import Block
from strandline.branch.rules.record import BranchRecord, Deleted, RefRecord, TagRecord, WriterRecord
from strandline.branch.stores import Stores
from strandline.branch.token_queue import KEY_PREFIX as QUEUE
from strandline.branch.token_queue import QueueItem
from strandline.branch.transactions import Repeat, TransactionRecord
from strandline.core import namespace
from strandline.core.promises import CONDEMNED, EXPIRED, LINK, PIN, PIN_DAYS, Condemned, Expired, Link, Pin
from strandline.core.record import PARTITION, RepositoryRecord
from strandline.envelope import decode, encode, version_of
from strandline.errors import Corrupted, FormatError
from strandline.ids import CommitId, keys_below, new_id
from strandline.kv.store import PredicateFailed, Store
from strandline.tree.rows import Entry, check_staged, decode_staged

KINDS: dict[bytes, type[msgspec.Struct]] = {
    COMMIT: Commit,
    QUEUE: QueueItem,
    b"reflog/": Block,
    b"txn/": TransactionRecord,
    b"token/": Repeat,
    b"writer/": WriterRecord,
    LINK: Link,
    CONDEMNED: Condemned,
    PIN: Pin,
    EXPIRED: Expired,
}
"""What lies in a repository's partition of records, by the beginnings of the keys."""


class Unmendable(Exception):
    """Nothing says what a field was meant to be."""


class Mended(msgspec.Struct, frozen=True):
    """A record that could not be read.

    Attributes:
        record: what it is.
        fields: what is mended, a sentence each; empty if it cannot be.
        is_mended: whether it has been, or would be; if not, only a backup of the key-value store helps.
    """

    record: str
    fields: tuple[str, ...]
    is_mended: bool = True


# --- one record -------------------------------------------------------------------------------------------------------


def is_readable(kind: Any, raw: bytes) -> bool:
    """Whether a record decodes.

    Raises:
        NewerFormat: a newer strandline wrote it; it is not broken.
    """
    try:
        decode(kind, raw, "a record")
    except Corrupted:
        return False
    return True


def mend(kind: type[msgspec.Struct], raw: bytes) -> tuple[Any, list[str]]:
    """A record with its fields mended, and a sentence for each.

    Raises:
        Unmendable: a field that has no sound meaning is needed.
    """
    try:
        _, held = msgspec.msgpack.decode(raw)
    except (msgspec.MsgspecError, ValueError, TypeError) as error:
        raise Unmendable(str(error)) from error
    mends: list[str] = []
    return _struct(kind, held, kind.__name__.removesuffix("Record"), mends), mends


def _struct(kind: type[msgspec.Struct], held: Any, where: str, mends: list[str]) -> Any:
    names, types = kind.__struct_fields__, typing.get_type_hints(kind, include_extras=True)
    if isinstance(held, list):
        given = dict(zip(names, held, strict=False))
    elif isinstance(held, dict):
        given = {name: held[name] for name in names if name in held}
    else:
        raise Unmendable(f"{where} holds {held!r}")
    made = {name: _value(types[name], value, f"{where}.{name}", mends) for name, value in given.items()}
    try:
        return kind(**made)
    except TypeError as error:
        raise Unmendable(str(error)) from error


def _value(annotation: Any, held: Any, where: str, mends: list[str]) -> Any:
    try:
        return msgspec.convert(held, annotation)
    except msgspec.ValidationError:
        pass
    while hasattr(annotation, "__supertype__"):
        annotation = annotation.__supertype__
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return _struct(annotation, held, where, mends)
    if origin is tuple and inner[-1] is Ellipsis and isinstance(held, list):
        return tuple(_items(inner[0], held, where, mends))
    if origin is not None and issubclass(origin if isinstance(origin, type) else object, Mapping):
        if not isinstance(held, dict):
            mends.append(f"{where} is {held!r}, instead of a map: it is left out")
            return {}
        return {str(key): _value(inner[1], value, f"{where}[{key!r}]", mends) for key, value in held.items()}
    mended = _plain(annotation, inner, held, where)
    mends.append(f"{where} is {held!r}: it becomes {mended!r}")
    return mended


def _items(kind: Any, held: Iterable[Any], where: str, mends: list[str]) -> Iterator[Any]:
    for at, one in enumerate(held):
        try:
            yield _value(kind, one, f"{where}[{at}]", mends)
        except Unmendable:
            mends.append(f"{where}[{at}] is {one!r}, which means nothing: it is left out")


def _plain(annotation: Any, inner: tuple[Any, ...], held: Any, where: str) -> Any:
    kinds = inner or (annotation,)
    if bool in kinds:
        return bool(held)  # "no" and 1 switch it on: what protects stays
    if str in kinds and isinstance(held, int | float | bytes | bool) and not where.endswith("pattern"):
        return held.decode(errors="replace") if isinstance(held, bytes) else str(held)
    if type(None) in kinds:
        return None
    if where == "Pin.days":
        return PIN_DAYS
    if (int in kinds or float in kinds) and isinstance(held, str | bytes):
        try:
            return (float if float in kinds else int)(held)
        except ValueError:
            pass
    raise Unmendable(f"{where} is {held!r}")


# --- a repository -----------------------------------------------------------------------------------------------------


@dataclass
class Repair:
    """One look at everything, and what it mended, or would.

    Args:
        dry_run: only look.
    """

    kv: Store
    dry_run: bool
    found: list[Mended] = field(default_factory=list)

    def repositories(self) -> list[RepositoryRecord]:
        """Mend the records of all repositories; returns those that can be read then."""
        readable = []
        for key, raw in list(self.kv.scan(PARTITION)):
            name = f"repository {key.decode()!r}"
            record = self._readable(PARTITION, key, raw, RepositoryRecord, name)
            if record is not None and record.state == "active":
                readable.append(record)
        return readable

    def repository(self, stores: Stores, name: str) -> None:
        """Mend what lies behind the record of a repository: commits first, since refs name them."""
        renamed = self._commits(stores, name)
        for prefix, kind in KINDS.items():
            if kind is not Commit:
                for key, raw in list(self.kv.scan(stores.records, *keys_below(prefix))):
                    self._readable(stores.records, key, raw, kind, f"{key.decode()} of {name!r}")
        for key, raw in list(self.kv.scan(stores.refs)):
            self._ref(stores, key, raw, name, renamed)
        if not self.dry_run:
            self._drop(stores, renamed)

    def _drop(self, stores: Stores, renamed: Mapping[str, CommitId]) -> None:
        """Delete the unreadable commits that nothing names any more: a reflog, a transaction or a ref that could not be
        written may. Comes last: until then a run that dies leaves refs whose commits are there.
        """
        if not renamed:
            return
        free = dict.fromkeys(renamed)
        for partition in (stores.records, stores.refs):
            for key, raw in self.kv.scan(partition):
                for id in [id for id in free if id.encode() in raw and key != COMMIT + id.encode()]:
                    del free[id]
        self.kv.delete_many(stores.records, [COMMIT + id.encode() for id in free])

    def marker(self, stores: Stores, record: RepositoryRecord, lake: str) -> None:
        if namespace.is_unmarked(stores):
            if not self.dry_run:
                namespace.renew(stores, record.id, record.name, lake)
            what = f"the marker of the storage namespace of {record.name!r}"
            self.found.append(Mended(what, ("it is missing or cut: it is written anew, as this lake's alone",)))

    def _readable(self, partition: bytes, key: bytes, raw: bytes, kind: Any, what: str) -> Any:
        """The record, mended if need be; None if it cannot be."""
        if is_readable(kind, raw):
            return decode(kind, raw, what)
        try:
            record, mends = mend(kind, raw)
        except Unmendable as error:
            self.found.append(Mended(what, (str(error),), is_mended=False))
            return None
        self._write(partition, key, raw, record, what, mends)
        return record

    def _write(self, partition: bytes, key: bytes, raw: bytes, record: Any, what: str, mends: list[str]) -> None:
        is_mended = True
        if not self.dry_run:
            try:
                self.kv.set_if(partition, key, encode(record, version_of(raw)), raw)
            except PredicateFailed:
                is_mended = False  # somebody changes it: then it can be read
        self.found.append(Mended(what, tuple(mends), is_mended))

    def _commits(self, stores: Stores, name: str) -> dict[str, CommitId]:
        """Mend the commits. A commit's id is the hash of its fields, its parents' ids among them, so a mended one has
        another id, and so have the unreadable ones after it; the refs have to name these.

        Returns:
            The new ids, by the old ones.
        """
        broken: dict[str, tuple[Commit, list[str]]] = {}
        children: dict[str, list[str]] = {}
        for key, raw in list(self.kv.scan(stores.records, *keys_below(COMMIT))):
            if is_readable(Commit, raw):
                commit: Commit = decode(Commit, raw, "a commit")
                for parent in commit.parents:
                    children.setdefault(parent, []).append(commit.id)
                continue
            try:
                broken[key[len(COMMIT) :].decode()] = mend(Commit, raw)
            except Unmendable as error:
                what = f"commit {key[len(COMMIT) :].decode()[:12]} of {name!r}"
                self.found.append(Mended(what, (str(error),), is_mended=False))
        for id in [id for id in broken if id in children]:
            what = f"commit {id[:12]} of {name!r}"
            mends = (f"commit {children[id][0][:12]} can be read and names it, so it cannot get another id",)
            self.found.append(Mended(what, mends, is_mended=False))
            del broken[id]
        renamed: dict[str, CommitId] = {}
        waiting = sorted(broken, key=lambda one: broken[one][0].generation)  # parents come before their children
        for id in waiting:
            record, told_of = broken[id]
            record = msgspec.structs.replace(record, parents=tuple(renamed.get(one, one) for one in record.parents))
            made = msgspec.structs.replace(record, id=commit_id(record))
            renamed[id] = made.id
            if not self.dry_run:
                self.kv.set(stores.records, COMMIT + made.id.encode(), encode(made))
            told_of = [*told_of, f"it is commit {made.id[:12]} then"]
            self.found.append(Mended(f"commit {id[:12]} of {name!r}", tuple(told_of)))
        return renamed

    def _ref(self, stores: Stores, key: bytes, raw: bytes, name: str, renamed: Mapping[str, CommitId]) -> None:
        what = f"{key.decode()!r} of {name!r}"
        mends: list[str] = []
        try:
            record = decode(RefRecord, raw, what)
        except Corrupted:
            tag = _tag_of(raw)
            if tag is None:
                self.found.append(Mended(what, ("it says neither branch nor tag",), is_mended=False))
                return
            try:
                record, mends = mend(tag, raw)
            except Unmendable as error:
                self.found.append(Mended(what, (str(error),), is_mended=False))
                return
        if isinstance(record, BranchRecord):
            self._staged(stores, record, what)
            if record.head in renamed or any(move.after in renamed for move in record.moves):
                mends.append(f"its head is commit {renamed.get(record.head, record.head)[:12]} then")
                record = _renamed(record, renamed)
            if mends:
                ids = (new_id(), *record.write_ids)[:16]  # so that no swap against the old bytes can follow
                record = msgspec.structs.replace(record, write_ids=ids)
        elif isinstance(record, TagRecord) and record.commit in renamed:
            mends.append(f"it names commit {renamed[record.commit][:12]} then")
            record = msgspec.structs.replace(record, commit=renamed[record.commit])
        if mends:
            self._write(stores.refs, key, raw, record, what, mends)

    def _staged(self, stores: Stores, branch: BranchRecord, what: str) -> None:
        for token in branch.tokens:
            for key, raw in list(self.kv.scan(stores.staging(token))):
                try:
                    decode_staged(raw)
                    continue
                except Corrupted:
                    pass
                mends: list[str] = []
                path = f"staged object {key.decode()!r} of {what}"
                try:
                    entry = _struct(Entry, msgspec.msgpack.decode(raw), "Entry", mends)
                    (value,) = check_staged([entry])
                except (Unmendable, FormatError, msgspec.MsgspecError) as error:
                    self.found.append(Mended(path, (str(error),), is_mended=False))
                    continue
                if not self.dry_run:
                    self.kv.set_if(stores.staging(token), key, value, raw)
                self.found.append(Mended(path, tuple(mends)))


def _tag_of(raw: bytes) -> type[msgspec.Struct] | None:
    try:
        _, held = msgspec.msgpack.decode(raw)
        kinds: dict[str, type[msgspec.Struct]] = {"branch": BranchRecord, "tag": TagRecord, "deleted": Deleted}
        return kinds.get(held["type"])
    except (msgspec.MsgspecError, TypeError, KeyError, ValueError):
        return None


def _renamed(branch: BranchRecord, renamed: Mapping[str, CommitId]) -> BranchRecord:
    moves = tuple(
        msgspec.structs.replace(
            move, before=renamed.get(move.before, move.before), after=renamed.get(move.after, move.after)
        )
        for move in branch.moves
    )
    return msgspec.structs.replace(branch, head=renamed.get(branch.head, branch.head), moves=moves)


def repair(kv: Store, stores_of: Callable[[RepositoryRecord], Stores], lake: str, *, dry_run: bool) -> list[Mended]:
    """Find the records and markers of a lake that cannot be read, and mend those that can be."""
    run = Repair(kv, dry_run)
    for record in run.repositories():
        stores = stores_of(record)
        run.repository(stores, record.name)
        run.marker(stores, record, lake)
    return run.found
