"""The Iceberg tables of a ref, as catalogs speak of them: each change is a commit of its own on the branch.

A change reads the head, decides, stores the new metadata, and publishes it in one shot if the head still holds what was
read; else it begins anew. So an error of the client's means that nothing happened, and only `OutcomeUnknown` and
`StoreUnavailable` leave it open.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from strandline.core import staged_tables
from strandline.core.iceberg_files import Reach
from strandline.core.promises import announce_links
from strandline.core.staged_tables import StagedTable
from strandline.errors import AlreadyExists, NotFound, ObjectMissing, StrandlineError
from strandline.iceberg import names, requirements, updates
from strandline.iceberg.creation import new_table
from strandline.iceberg.entities import Entities, Kind, Loaded
from strandline.iceberg.judging import referred, refuse_missing
from strandline.iceberg.landing import Plan
from strandline.iceberg.messages import message_of
from strandline.iceberg.names import Identifier
from strandline.iceberg.refusals import BadUpdate, Stale
from strandline.iceberg.schemas import Json
from strandline.iceberg.shapes import check_metadata, check_request, check_updates
from strandline.repository.refs.expressions import Target
from strandline.repository.refs.ref import Ref
from strandline.repository.transactions.transaction import Transaction
from strandline.results.rows import ObjectInfo

MESSAGE_MAX = 1_000
FORCED = {"gc.enabled": "false", "write.metadata.delete-after-commit.enabled": "false"}
"""No client may delete files of a table: those of other branches and commits may be among them."""
_PLACES = ("write.data.path", "write.metadata.path", "write.object-storage.path", "write.folder-storage.path")


class NoSuchTable(NotFound):
    """A table that does not exist; of another kind than a namespace that does not, since clients tell them apart."""


@dataclass(frozen=True, slots=True)
class TableChange:
    """What a client asks of one table."""

    identifier: Identifier
    requirements: Sequence[Any]
    updates: Sequence[Any]


Held = tuple[ObjectInfo, Json]
"""The object that is a table, and its metadata."""


class Tables(Entities):
    """The tables of a ref and their namespaces; only those of a branch, or of a transaction, can be changed."""

    kind = Kind("table", names.POINTER, check_metadata, NoSuchTable)

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
        self._landing.now()  # a client that stages a creation where nothing can be written would write files for it
        made = new_table(request, names.new_uuid(), self._location(key), self._now_ms())
        _force(made)
        if stages:
            self._refuse_taken(self._head(), table)
            staged = StagedTable(part=self.files_part, table=table, by=self._committer or "", at_us=self._now_us())
            staged_tables.note(self._core.stores, key, staged)
            return Loaded(made, "")

        def decide(head: Ref) -> Plan:
            self._refuse_taken(head, table)
            plan = self._plan(f"create table {names.shown(table)}", table)
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

        is_judged = False

        def decide(head: Ref) -> Plan:
            nonlocal is_judged
            held = [self._held(head, table) for table in tables]
            if _are_done(changes, held):
                return Plan(result=[self._loaded(*one) for one in held if one is not None])
            if not is_judged:
                self._announce_referred(tables, changes)
                is_judged = True
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
        for change in changes:
            if requirements.is_create(change.requirements):
                self._forget_staged(change.updates)
        return loaded

    def _announce_referred(self, tables: Sequence[Identifier], changes: Sequence[TableChange]) -> None:
        """Say what is about to be referred to, so that no collection deletes it between now and the swap.

        Invariant: it is said first, and looked for afterwards: what a run had deleted before it could read this is
        missed here, and no later run deletes it. What a transaction writes is kept exactly, as long as it is open, and
        it may be open for longer than anything else is kept that nothing refers to: so it adds its own files, and those
        of the commit that it was begun on, which stays as long.

        Raises:
            BadUpdate: something is not there, or lies elsewhere.
            Stale: something is being collected: it is older than the grace, and nothing referred to it.
        """
        blobs = self._core.resolver.namespace
        parts = [referred(blobs, change.updates) for change in changes]
        needed = {key for found, _ in parts for key in found}
        every = needed.union(*(statistics for _, statistics in parts))
        if isinstance(self._ref, Transaction):
            prefix = self._ref.data_prefix
            own = {key for key in every if names.part_of(key) == self.files_part or key.startswith(prefix)}
            foreign = every - own
            if foreign:
                foreign -= self._kept(tables, self._ref)
            if foreign:
                raise BadUpdate(
                    f"The file {min(foreign)[:200]!r} was not written in transaction {self._ref.id}, and no table that "
                    "it changes had it when it was begun.",
                    next="Add such files on the branch, before the transaction or after it.",
                )
            refuse_missing(blobs, needed)
            return
        if not every:
            return
        try:
            announce_links(self._core.stores, sorted(every))
        except ObjectMissing as error:
            raise Stale(
                f"The files of this commit are being collected: {error.what}", next="Write them anew."
            ) from error
        refuse_missing(blobs, needed)

    def _kept(self, tables: Sequence[Identifier], transaction: Transaction) -> set[str]:
        """The files of some tables in the commit that a transaction was begun on, snapshots that main has left too."""
        base = Ref(self._core, transaction.name, Target("commit", transaction.commit_id))
        places = [found.physical_address for table in tables if (found := base.find(names.pointer_of(table)))]
        return {key for part in Reach(self._core.resolver.namespace).from_metadata(places) for key in part}

    def _forget_staged(self, asked: Sequence[Any]) -> None:
        for one in asked:
            if one["action"] == "set-location" and (key := names.table_key_of(self.key_of(one["location"]) + "/")):
                with suppress(StrandlineError):  # a collection does it later
                    staged_tables.forget(self._core.stores, key)

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
            if head.exists(self._path(table)):
                raise AlreadyExists(f"{requirements.FAILED} table already exists: {names.shown(table)}.")
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
        key = self._staged_key(table, change.updates) if found is None else names.table_key_of(found.physical_address)
        loaded = self._put_table(plan, table, after, found, key or names.new_table_key())
        if found is None:
            self._expect_room(plan, head, table)
        return loaded

    def _staged_key(self, table: Identifier, asked: Sequence[Any]) -> str | None:
        """What a staged creation said that the table's files lie below; None if it was not one of this table here.

        Invariant: a key is drawn for one table on one branch and one client, and that is on record (`staged_tables`):
        so no client names another table's key, and gets its files with it.
        """
        for one in asked:
            if one["action"] == "set-location":
                key = names.table_key_of(self.key_of(one["location"]) + "/")
                if key is not None and one["location"] == self._location(key) and self.is_staged(key, table):
                    return key
        return None

    def is_staged(self, key: str, identifier: Sequence[str]) -> bool:
        """Whether a key was drawn for a table of this name, here and for this client, that is not made yet."""
        held = staged_tables.find(self._core.stores, key)
        wanted = (self.files_part, tuple(identifier), self._committer or "")
        return held is not None and (held.part, held.table, held.by) == wanted

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
        key, place = self._own_metadata(location)
        made: Json | None = None

        def decide(head: Ref) -> Plan:
            nonlocal made
            if made is None:  # after a repetition was looked for: its source may be gone by then
                made = self._read(place, table)
                self._refuse_places(made.get("properties") or {})
                self._announce(place)
            found = head.find(names.pointer_of(table)) if overwrite else None
            plan = self._plan(f"register table {names.shown(table)}", table)
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

    def _put_table(self, plan: Plan, table: Identifier, made: Json, found: ObjectInfo | None, key: str) -> Loaded:
        """Store metadata, and have the table's path point to it."""
        made = {**made, "location": self._location(key)}
        _force(made)
        return self._put(plan, table, made, found, key, told_of(made))

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


def told_of(metadata: Json) -> dict[str, str]:
    """What the entry of a table on a branch says of it, for those that do not read its metadata."""
    snapshot = metadata.get("current-snapshot-id", -1)
    told = {"iceberg.uuid": metadata["table-uuid"], "iceberg.format-version": str(metadata["format-version"])}
    return told if snapshot in (-1, None) else {**told, "iceberg.snapshot": str(snapshot)}


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
