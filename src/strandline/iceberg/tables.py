"""The Iceberg tables of a ref, as catalogs speak of them: each change is a commit of its own on the branch.

A change reads the head, decides, stores the new metadata, and publishes it in one shot if the head still holds what was
read; else it begins anew. So an error of the client's means that nothing happened, and only `OutcomeUnknown` and
`StoreUnavailable` leave it open.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow.compute as pc

from strandline.blob import BlobNotFound
from strandline.errors import AlreadyExists, Corrupted, NotFound, ObjectMissing
from strandline.iceberg import names, requirements, updates
from strandline.iceberg.creation import new_table
from strandline.iceberg.landing import Plan
from strandline.iceberg.messages import message_of
from strandline.iceberg.names import Identifier
from strandline.iceberg.namespaces import Namespaces, expect_no_table, has_namespace, is_table, no_namespace
from strandline.iceberg.refusals import BadUpdate
from strandline.iceberg.schemas import Json
from strandline.iceberg.shapes import check_metadata, check_request, check_updates, encoded
from strandline.repository.commits.one_shot import entry_of
from strandline.repository.refs.ref import Ref
from strandline.results.rows import ObjectInfo
from strandline.tree.rows import column

MESSAGE_MAX = 1_000
KEY_MAX_CHARS = 400
_KEY = re.compile(r"(?:[\w.=-]+/)+[\w.=-]+(?<!/\.\.)", re.ASCII)
FORCED = {"gc.enabled": "false", "write.metadata.delete-after-commit.enabled": "false"}
"""No client may delete files of a table: those of other branches and commits may be among them."""
_PLACES = ("write.data.path", "write.metadata.path", "write.object-storage.path", "write.folder-storage.path")


class NoSuchTable(NotFound):
    """A table that does not exist; of another kind than a namespace that does not, since clients tell them apart."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A table as it is.

    Attributes:
        metadata: as it is stored, but with the location of this branch.
        location: of the file that holds it, as a URL; "" if nothing is stored yet.
    """

    metadata: Json
    location: str


@dataclass(frozen=True, slots=True)
class TableChange:
    """What a client asks of one table."""

    identifier: Identifier
    requirements: Sequence[Any]
    updates: Sequence[Any]


Held = tuple[ObjectInfo, Json]
"""The object that is a table, and its metadata."""


class Tables(Namespaces):
    """The tables of a ref and their namespaces; only those of a branch can be changed."""

    def tables(self, levels: Sequence[str]) -> list[Identifier]:
        """The tables of a namespace, in the order of their names; raises `NotFound`."""
        namespace = names.check_identifier(levels, "namespace")
        folder = names.folder_of(namespace)
        head = self._head(folder)
        if not has_namespace(head, namespace):
            raise no_namespace(namespace)
        paths = column(head.list(folder).to_arrow(), "path")
        ends = paths.filter(pc.ends_with(paths, "/" + names.POINTER)).to_pylist()
        found = [path[len(folder) : -len(names.POINTER) - 1] for path in ends]
        return [(*namespace, name) for name in found if name and "/" not in name]

    def exists(self, identifier: Sequence[str]) -> bool:
        """Whether a table exists."""
        path = names.pointer_of(names.check_identifier(identifier))
        return self._head(path).exists(path)

    def load(self, identifier: Sequence[str]) -> Loaded:
        """A table; raises `NotFound`."""
        table = names.check_identifier(identifier)
        return self._shown_at(self._head(names.folder_of(table)), table)

    def pointer(self, identifier: Sequence[str]) -> ObjectInfo:
        """The object that is a table: its physical address names the metadata for ever. Raises `NotFound`."""
        table = names.check_identifier(identifier)
        return self._found(self._head(names.folder_of(table)), table)

    def _shown_at(self, state: Ref, table: Identifier) -> Loaded:
        found = self._found(state, table)
        return self._loaded(found, self._read(found.physical_address, table))

    def create(self, identifier: Sequence[str], request: Json, *, stages: bool = False) -> Loaded:
        """Make a table.

        Args:
            request: see `creation.new_table`.
            stages: store nothing yet: a commit that asserts the creation will.

        Raises:
            AlreadyExists: the name is taken.
            NotFound: the namespace does not exist.
            BadUpdate: the request is malformed.
        """
        table = names.check_identifier(identifier)
        check_request(request)
        self._refuse_places(request.get("properties") or {})
        key = names.new_table_key()
        made = new_table(request, names.new_uuid(), self._location(key), self._now_ms())
        _force(made)
        if stages:
            self._refuse_taken(self._head(), table)
            return Loaded(made, "")

        def decide(head: Ref) -> Plan:
            self._refuse_taken(head, table)
            plan = Plan(f"create table {names.shown(table)}", {"iceberg.table": names.shown(table)})
            plan.result = self._put_table(plan, table, made, None, key)
            self._expect_room(plan, head, table)
            return plan

        loaded: Loaded = self._publish(decide, lambda state: self._shown_at(state, table))
        return loaded

    def commit(self, changes: Sequence[TableChange]) -> list[Loaded]:
        """Apply what a client asks of one table or several: all of it, in one commit, or nothing.

        Raises:
            Stale: a requirement does not hold, or others went on publishing.
            AlreadyExists: a table that is to be made is there.
            NotFound: a table, or the namespace of a new one, is not there.
            BadUpdate: a request is malformed.
        """
        tables = [names.check_identifier(one.identifier) for one in changes]
        if not tables or len(set(tables)) < len(tables):
            raise BadUpdate("Give each table that changes once.")
        for change in changes:
            check_updates(change.updates)
            requirements.is_create(change.requirements)

        def decide(head: Ref) -> Plan:
            held = [self._held(head, table) for table in tables]
            if _are_done(changes, held):
                return Plan(result=[self._loaded(*one) for one in held if one is not None])
            plan = Plan(result=[])
            messages = []
            for table, change, one in zip(tables, changes, held, strict=True):
                is_new = requirements.is_create(change.requirements)
                if one is None and not is_new:
                    self._found(head, table)
                before = None if is_new else one
                loaded = self._changed(plan, head, table, change, before)
                plan.result.append(loaded)
                if before is None or loaded.location != self._url(before[0].physical_address):
                    messages.append(message_of(names.shown(table), change.updates, is_new=is_new))
            plan.message = "; ".join(one.text for one in messages)[:MESSAGE_MAX]
            plan.metadata = messages[0].metadata if len(messages) == 1 else {}
            return plan

        loaded: list[Loaded] = self._publish(decide, lambda state: [self._shown_at(state, table) for table in tables])
        return loaded

    def _held(self, head: Ref, table: Identifier) -> Held | None:
        """Where a table is, and its metadata; None if it does not exist."""
        found = head.find(names.pointer_of(table))
        return None if found is None else (found, self._read(found.physical_address, table))

    def _changed(self, plan: Plan, head: Ref, table: Identifier, change: TableChange, held: Held | None) -> Loaded:
        """Decide one change, and put what comes of it into the plan.

        Args:
            held: the table as it is; None if it is to be made.
        """
        found, before = held or (None, None)
        if before is None:
            self._refuse_taken(head, table)
        else:
            requirements.check(change.requirements, before)
        for one in change.updates:
            if one["action"] in ("set-properties", "remove-properties"):
                self._refuse_forced(one)
        previous = "" if found is None else self._url(found.physical_address)
        after = updates.apply(before, change.updates, self._now_ms(), previous=previous)
        if found is not None and after is before:
            return self._loaded(found, after)
        key = self._staged_key(change.updates) if found is None else names.table_key_of(found.physical_address)
        loaded = self._put_table(plan, table, after, found, key or names.new_table_key())
        if found is None:
            self._expect_room(plan, head, table)
        return loaded

    def _expect_room(self, plan: Plan, head: Ref, table: Identifier) -> None:
        """Have a plan demand that the name is free and its namespace there still."""
        expect_no_table(plan, table)
        plan.expected.setdefault(names.marker_of(table), None)
        for depth in range(1, len(table)):
            expect_no_table(plan, table[:depth])
        marker = names.marker_of(table[:-1])
        plan.expected.setdefault(marker, head.find(marker))

    def _staged_key(self, asked: Sequence[Any]) -> str | None:
        """What a staged creation said that the table's files lie below; None if it was not one of this branch."""
        for one in asked:
            if one["action"] == "set-location":
                key = names.table_key_of(self._key_of(one["location"]) + "/")
                if key is not None and one["location"] == self._location(key):
                    return key
        return None

    def _key_of(self, location: str) -> str:
        """The key of a file in the storage namespace; the location itself if it lies elsewhere."""
        return location.removeprefix(self._url("x")[:-1])

    def register(self, identifier: Sequence[str], location: str, *, overwrite: bool = False) -> Loaded:
        """Make a table of metadata that lies in the lake already, such as that of a table that was dropped.

        Args:
            location: of the metadata, as `Loaded.location` has it.
            overwrite: take the place of a table of that name.

        Raises:
            AlreadyExists: the name is taken.
            NotFound: the namespace does not exist.
            ObjectMissing: the metadata does not.
            BadUpdate: the location is not one of this repository's tables.
        """
        table = names.check_identifier(identifier)
        if not isinstance(location, str):
            raise BadUpdate(f"The location is {type(location).__name__}; expected text.")
        place = self._key_of(location)
        key = names.table_key_of(place)
        is_ours = place != location and place.endswith(names.METADATA_SUFFIX) and len(place) <= KEY_MAX_CHARS
        if key is None or not is_ours or not _KEY.fullmatch(place):
            raise BadUpdate(f"{location[:200]!r} is not the metadata of a table of this repository.")
        made = self._read(place, table)

        def decide(head: Ref) -> Plan:
            found = head.find(names.pointer_of(table)) if overwrite else None
            plan = Plan(f"register table {names.shown(table)}", {"iceberg.table": names.shown(table)})
            if found is None:
                self._refuse_taken(head, table)
                self._expect_room(plan, head, table)
            elif found.physical_address == place:
                return Plan(result=self._loaded(found, made))
            plan.result = self._put_table(plan, table, made, found, key)
            stored = plan.changes[names.pointer_of(table)]
            if found is not None and stored is not None and stored.checksum == found.checksum:
                return Plan(result=self._loaded(found, made))  # it was registered before
            return plan

        loaded: Loaded = self._publish(decide, lambda state: self._shown_at(state, table))
        return loaded

    def drop(self, identifier: Sequence[str]) -> None:
        """Take a table off the branch; its files stay as long as a commit needs them. Raises `NotFound`."""
        table = names.check_identifier(identifier)

        def decide(head: Ref) -> Plan:
            path = names.pointer_of(table)
            plan = Plan(f"drop table {names.shown(table)}", {"iceberg.table": names.shown(table)})
            plan.expected[path], plan.changes[path] = self._found(head, table), None
            return plan

        self._publish(decide)

    def rename(self, identifier: Sequence[str], target: Sequence[str]) -> None:
        """Give a table another name, perhaps in another namespace.

        Raises:
            NotFound: the table, or the namespace, does not exist.
            AlreadyExists: the name is taken.
        """
        table, other = names.check_identifier(identifier), names.check_identifier(target)

        def decide(head: Ref) -> Plan:
            found = self._found(head, table)
            self._refuse_taken(head, other)
            old, new = names.pointer_of(table), names.pointer_of(other)
            plan = Plan(f"rename table {names.shown(table)} to {names.shown(other)}")
            plan.expected, plan.changes = {old: found, new: None}, {old: None, new: entry_of(found)}
            self._expect_room(plan, head, other)
            return plan

        self._publish(decide)

    def _put_table(self, plan: Plan, table: Identifier, made: Json, found: ObjectInfo | None, key: str) -> Loaded:
        """Store metadata, and have the table's path point to it."""
        made = {**made, "location": self._location(key)}
        _force(made)
        version = 0 if found is None else names.version_of(found.physical_address) + 1
        place = names.new_metadata_key(key, self.files_part, version)
        snapshot = made.get("current-snapshot-id", -1)
        metadata = {"iceberg.uuid": made["table-uuid"], "iceberg.format-version": str(made["format-version"])}
        if snapshot not in (-1, None):
            metadata["iceberg.snapshot"] = str(snapshot)
        path = names.pointer_of(table)
        plan.expected[path] = found
        plan.changes[path] = self._stored(plan, place, encoded(made), metadata)
        return Loaded(made, self._url(place))

    # --- reading --------------------------------------------------------------------------------------------------

    def _found(self, head: Ref, table: Identifier) -> ObjectInfo:
        found = head.find(names.pointer_of(table))
        if found is None:
            is_native = head.exists(names.folder_of(table) + names.NATIVE)
            hint = "It is a native table: use branch.table()." if is_native else "List the tables of its namespace."
            raise NoSuchTable(f"The Iceberg table {names.shown(table)!r} does not exist.", next=hint)
        return found

    def _read(self, key: str, table: Identifier) -> Json:
        """The metadata in a file; shared, so that nobody may change it."""
        repository_id = self._core.stores.repository_id
        kept = self._cache.get(repository_id, key)
        if kept is not None:
            return kept
        try:
            data = self._core.resolver.namespace.get(key)
            metadata: Json = msgspec.json.decode(data)
        except BlobNotFound:
            raise ObjectMissing(
                f"The metadata of table {names.shown(table)!r} is gone: {key}.", next="Restore it from a backup."
            ) from None
        except msgspec.MsgspecError as error:
            raise Corrupted(f"The metadata of table {names.shown(table)!r} cannot be read: {error}.") from None
        try:
            check_metadata(metadata)
        except BadUpdate as error:
            raise Corrupted(f"The metadata of table {names.shown(table)!r} is damaged. {error.what}") from None
        self._cache.put(repository_id, key, metadata, len(data))
        return metadata

    def _loaded(self, found: ObjectInfo, metadata: Json) -> Loaded:
        """A table as this ref shows it: a branch writes its own files, wherever the last ones lie."""
        key = names.table_key_of(found.physical_address)
        own = {"location": self._location(key)} if key is not None and self.files_part else {}
        return Loaded({**metadata, **own}, self._url(found.physical_address))

    def _refuse_taken(self, head: Ref, table: Identifier) -> None:
        if not has_namespace(head, table[:-1]):
            raise no_namespace(table[:-1])
        if is_table(head, table):
            raise AlreadyExists(f"There is a table {names.shown(table)!r} already.", next="Take another name.")
        if head.exists(names.marker_of(table)):
            raise AlreadyExists(f"There is a namespace {names.shown(table)!r} already.", next="Take another name.")

    def _refuse_forced(self, update: Json) -> None:
        given: Mapping[str, str] = update.get("updates", {})
        self._refuse_places(given)
        for name, value in FORCED.items():
            if given.get(name, value) != value or name in update.get("removals", ()):
                raise BadUpdate(
                    f"{name} is {value} for tables of a lake: other branches and commits need their files.",
                    next="Garbage is collected by `strandline gc`.",
                )

    def _refuse_places(self, properties: Mapping[str, Any]) -> None:
        for name in _PLACES:
            if name in properties:
                raise BadUpdate(f"{name} cannot be set: where a table's files lie is the lake's to decide.")

    def _location(self, table_key: str) -> str:
        return self._url(names.files_below(table_key, self.files_part))


def _force(metadata: Json) -> None:
    metadata["properties"] = {**(metadata.get("properties") or {}), **FORCED}


def _are_done(changes: Sequence[TableChange], held: Sequence[Held | None]) -> bool:
    """Whether this very request was carried out before, and its reply was lost.

    A request is carried out whole or not at all, so that its snapshots are there, or the table that it makes, says
    that all of it is done. It is asked on the very head that would refuse it.
    """
    if None in held:
        return False
    verdicts = [
        is_done(one[1], change.requirements, change.updates)
        for change, one in zip(changes, held, strict=True)
        if one is not None
    ]
    return True in verdicts and False not in verdicts


def is_done(table: Json, demands: Sequence[Any], asked: Sequence[Any]) -> bool | None:
    """Whether a table shows that a request was carried out; None if it does not tell."""
    added = [one["snapshot"] for one in asked if one["action"] == "add-snapshot"]
    if requirements.is_create(demands):
        wanted = next((str(one.get("uuid")) for one in asked if one["action"] == "assign-uuid"), "")
        if wanted.lower() != str(table["table-uuid"]).lower():
            return False
    elif not added:
        return None
    held = {(one["snapshot-id"], one.get("manifest-list")) for one in table.get("snapshots") or []}
    return all((one["snapshot-id"], one.get("manifest-list")) in held for one in added)
