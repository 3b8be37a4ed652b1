"""What has a name in a namespace, tables and views: found, listed, dropped and renamed alike."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec
import pyarrow.compute as pc

from strandline.blob import BlobNotFound
from strandline.core.iceberg_files import Reach
from strandline.core.promises import announce_links
from strandline.errors import AlreadyExists, Corrupted, NotFound, ObjectMissing, UsageError
from strandline.iceberg import names
from strandline.iceberg.landing import Plan
from strandline.iceberg.names import Identifier
from strandline.iceberg.namespaces import Namespaces, expect_no_table, has_namespace, no_namespace
from strandline.iceberg.refusals import BadUpdate
from strandline.iceberg.relocation import moved
from strandline.iceberg.schemas import Json
from strandline.iceberg.shapes import encoded
from strandline.repository.commits.one_shot import entry_of
from strandline.repository.refs.ref import Ref
from strandline.repository.transactions.transaction import Transaction
from strandline.results.rows import ObjectInfo
from strandline.tree.rows import column

KEY_MAX_CHARS = 400
_KEY = re.compile(r"[\w.=/-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A table or a view as it is.

    Attributes:
        metadata: as it is stored, but with the location of this branch.
        location: of the file that holds it, as a URL; "" if nothing is stored yet.
    """

    metadata: Json
    location: str


@dataclass(frozen=True, slots=True)
class Kind:
    """Tables or views.

    Attributes:
        word: for people.
        end: of their paths on the branch.
        check: raises `BadUpdate` unless something is the metadata of one.
        missing: the error about one that does not exist.
    """

    word: str
    end: str
    check: Callable[[Any], None]
    missing: type[NotFound]


class Entities(Namespaces):
    """Those of one kind, at a ref.

    Attributes:
        kind: which.
    """

    kind: ClassVar[Kind]

    def all_in(self, levels: Sequence[str]) -> list[Identifier]:
        """Those of a namespace, in the order of their names; raises `NotFound`."""
        namespace = names.check_identifier(levels, "namespace")
        folder = names.folder_of(namespace)
        head = self._head(folder)
        if not has_namespace(head, namespace):
            raise no_namespace(namespace)
        paths, end = column(head.list(folder).to_arrow(), "path"), "/" + self.kind.end
        found = [path[len(folder) : -len(end)] for path in paths.filter(pc.ends_with(paths, end)).to_pylist()]
        return [(*namespace, name) for name in found if name and "/" not in name]

    def exists(self, identifier: Sequence[str]) -> bool:
        """Whether there is one of a name."""
        path = self._path(self._checked(identifier))
        return self._head(path).exists(path)

    def pointer(self, identifier: Sequence[str]) -> ObjectInfo:
        """The object that it is: its physical address names the metadata for ever. Raises `NotFound`."""
        named = self._checked(identifier)
        return self._found(self._head(names.folder_of(named)), named)

    def load(self, identifier: Sequence[str]) -> Loaded:
        """One by its name; raises `NotFound`."""
        named = self._checked(identifier)
        return self._shown_at(self._head(names.folder_of(named)), named)

    def drop(self, identifier: Sequence[str]) -> None:
        """Take one off the branch; its files stay as long as a commit needs them. Raises `NotFound`."""
        named, word = self._checked(identifier), self.kind.word

        def decide(head: Ref) -> Plan:
            path = self._path(named)
            plan = self._plan(f"drop {word} {names.shown(named)}", named)
            plan.expected[path], plan.changes[path] = self._found(head, named), None
            return plan

        self._publish(decide)

    def rename(self, identifier: Sequence[str], target: Sequence[str]) -> None:
        """Give one another name, perhaps in another namespace.

        Raises:
            NotFound: it, or the namespace, does not exist.
            AlreadyExists: the name is taken.
        """
        named, other = self._checked(identifier), self._checked(target)

        def decide(head: Ref) -> Plan:
            found = self._found(head, named)
            self._refuse_taken(head, other, f"Cannot rename {names.shown(named)} to {names.shown(other)}. ")
            old, new = self._path(named), self._path(other)
            plan = self._plan(f"rename {self.kind.word} {names.shown(named)} to {names.shown(other)}", other)
            plan.expected, plan.changes = {old: found, new: None}, {old: None, new: entry_of(found)}
            self._expect_room(plan, head, other)
            return plan

        self._publish(decide)

    def _checked(self, identifier: Sequence[str]) -> Identifier:
        return names.check_identifier(identifier, self.kind.word)

    def _path(self, named: Identifier) -> str:
        return names.folder_of(named) + self.kind.end

    def _plan(self, message: str, named: Identifier) -> Plan:
        return Plan(message, {f"iceberg.{self.kind.word}": names.shown(named)})

    def _refuse_taken(self, head: Ref, named: Identifier, doing: str = "") -> None:
        """Raise unless a name is free, and its namespace there.

        Args:
            doing: what cannot be done because of that; "" for making one.
        """
        if not has_namespace(head, named[:-1]):
            raise no_namespace(named[:-1])
        for end, word in ((names.POINTER, "table"), (names.VIEW, "view"), (names.NATIVE, "native table")):
            if head.exists(names.folder_of(named) + end):
                same = "" if word == self.kind.word or doing else " with same name"
                said = f"{word[0].upper()}{word[1:]}{same} already exists: {names.shown(named)}."
                raise AlreadyExists(f"{doing}{said}", next="Take another name.")
        if head.exists(names.marker_of(named)):
            raise AlreadyExists(f"{doing}Namespace already exists: {names.shown(named)}.", next="Take another name.")

    def _expect_room(self, plan: Plan, head: Ref, named: Identifier) -> None:
        """Have a plan demand that the name is free and its namespace there still."""
        expect_no_table(plan, named)
        plan.expected.setdefault(names.marker_of(named), None)
        for depth in range(1, len(named)):
            expect_no_table(plan, named[:depth])
        marker = names.marker_of(named[:-1])
        plan.expected.setdefault(marker, head.find(marker))

    def _put(self, plan: Plan, named: Identifier, made: Json, found: ObjectInfo | None, key: str, told: Json) -> Loaded:
        """Store metadata, and have the path point to it.

        Args:
            found: what the path points to now.
            key: that the files lie below.
            told: of the metadata, in the entry on the branch.
        """
        version = 0 if found is None else names.version_of(found.physical_address) + 1
        place = names.new_metadata_key(key, self.files_part, version)
        path = self._path(named)
        plan.expected[path] = found
        plan.changes[path] = self._stored(plan, place, encoded(made), told)
        return Loaded(made, self._url(place))

    @property
    def repository_id(self) -> str:
        """Of the repository: a place of the same name may be another one."""
        return self._core.stores.repository_id

    def location_of(self, found: ObjectInfo) -> str:
        """Where the metadata of a pointer lies, as clients know it."""
        return self._url(found.physical_address)

    def local_path(self, location: str) -> str | None:
        """Where a folder of this repository is on this machine; None if it lies in an object store, or elsewhere."""
        key = self.key_of(location)
        return None if key == location else self._core.resolver.namespace.local_path(key)

    # --- reading --------------------------------------------------------------------------------------------------

    def _shown_at(self, state: Ref, named: Identifier) -> Loaded:
        found = self._found(state, named)
        return self._loaded(found, self._read(found.physical_address, named))

    def _found(self, head: Ref, named: Identifier) -> ObjectInfo:
        found = head.find(self._path(named))
        if found is None:
            word, shown = self.kind.word, names.shown(named)
            is_native = head.exists(names.folder_of(named) + names.NATIVE)
            told = " It is a native table, which Iceberg's clients do not read." if is_native else ""
            hint = "Use branch.table()." if is_native else f"List the {word}s of its namespace."
            raise self.kind.missing(f"{word[0].upper()}{word[1:]} does not exist: {shown}.{told}", next=hint)
        return found

    def metadata_of(self, pointer: ObjectInfo, identifier: Sequence[str]) -> Json:
        """The metadata that an object on a branch names; shared, so that nobody may change it."""
        return self._read(pointer.physical_address, self._checked(identifier))

    def _read(self, key: str, named: Identifier) -> Json:
        """The metadata in a file; shared, so that nobody may change it."""
        repository_id, what = self._core.stores.repository_id, f"{self.kind.word} {names.shown(named)!r}"
        kept = self._cache.get(repository_id, key)
        if kept is not None:
            return kept
        try:
            data = self._core.resolver.namespace.get(key)
            metadata: Json = msgspec.json.decode(data)
        except BlobNotFound:
            raise ObjectMissing(
                f"The metadata of {what} is gone. Failed to open input stream for file: {self._url(key)}.",
                next="Restore it from a backup.",
            ) from None
        except msgspec.MsgspecError as error:
            raise Corrupted(f"The metadata of {what} cannot be read: {error}.") from None
        try:
            self.kind.check(metadata)
        except BadUpdate as error:
            raise Corrupted(f"The metadata of {what} is damaged. {error.what}") from None
        metadata = moved(metadata, key, self._core.resolver.namespace, self._url)
        self._cache.put(repository_id, key, metadata, len(data))
        return metadata

    def _loaded(self, found: ObjectInfo, metadata: Json) -> Loaded:
        """One as this ref shows it: a branch writes its own files, wherever the last ones lie."""
        key = names.table_key_of(found.physical_address)
        own = {"location": self._location(key)} if key is not None and self.files_part else {}
        return Loaded({**metadata, **own}, self._url(found.physical_address))

    def _own_metadata(self, location: Any) -> tuple[str, str]:
        """The key that files lie below, and the key of the metadata itself, of a location in this repository.

        Raises:
            BadUpdate: it lies elsewhere.
        """
        if not isinstance(location, str):
            raise BadUpdate(f"The location is {type(location).__name__}; expected text.")
        place = self.key_of(location)
        key = names.table_key_of(place)
        is_plain = not {"", ".", ".."} & set(place.split("/"))
        is_ours = place != location and is_plain and place.endswith(names.METADATA_SUFFIX)
        if key is None or not is_ours or len(place) > KEY_MAX_CHARS or not _KEY.fullmatch(place):
            raise BadUpdate(f"{location[:200]!r} is not the metadata of a {self.kind.word} of this repository.")
        return key, place

    def _announce(self, place: str) -> None:
        """Say that metadata which is there, and all that it refers to, is about to be referred to again.

        Raises:
            ObjectMissing: some of it is being collected.
            Corrupted: it refers to something that cannot be read.
        """
        if isinstance(self._ref, Transaction):
            raise UsageError(
                "Metadata that only lies in the lake is registered on a branch: an open transaction would not keep it.",
                next="Register it on the branch, or write the table in the transaction.",
            )
        stores = self._core.stores
        found = {key for part in Reach(stores.trees.blobs).from_metadata([place]) for key in part}
        announce_links(stores, sorted(found))

    def key_of(self, location: str) -> str:
        """The key of a file in the storage namespace; the location itself if it lies elsewhere."""
        return location.removeprefix(self._url("x")[:-1])

    def _location(self, key: str) -> str:
        return self._url(names.files_below(key, self.files_part))
