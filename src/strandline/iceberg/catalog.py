"""A catalog of PyIceberg over a branch, without a server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyiceberg import exceptions as theirs
from pyiceberg.catalog import MetastoreCatalog, PropertiesUpdateSummary
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec, assign_fresh_partition_spec_ids
from pyiceberg.schema import assign_fresh_schema_ids
from pyiceberg.table import CommitTableResponse, StagedTable, Table
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder, assign_fresh_sort_order_ids

from strandline.errors import (
    AlreadyExists,
    Conflict,
    InvalidName,
    StoreUnavailable,
    StrandlineError,
    UsageError,
)
from strandline.iceberg.creation import VERSION, VERSION_DEFAULT
from strandline.iceberg.entities import Loaded
from strandline.iceberg.namespaces import NoSuchNamespace, NotEmpty
from strandline.iceberg.publishing import store_properties
from strandline.iceberg.refusals import BadUpdate
from strandline.iceberg.tables import NoSuchTable, TableChange, Tables
from strandline.repository.refs.ref import Ref

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.schema import Schema
    from pyiceberg.table.update import TableRequirement, TableUpdate
    from pyiceberg.typedef import IcebergBaseModel, Identifier, Properties
    from pyiceberg.view import View

_NO_PROPERTIES: Properties = {}


class Catalog(MetastoreCatalog):
    """The Iceberg tables of a ref. Those of a branch can be changed; each change is a commit of its own.

    PyIceberg's data files are written by this process, below the storage namespace of the repository.

    Args:
        ref: a branch; or a tag or a commit, to read.
        committer: of the commits; by default the lake's.
        properties: of PyIceberg, such as those of its FileIO (`s3.access-key-id`, …); the lake's endpoint is known.
    """

    def __init__(self, ref: Ref, *, committer: str | None = None, **properties: str) -> None:
        if not isinstance(ref, Ref):
            raise UsageError(f"A {type(ref).__name__} has no tables.", next="Give a branch, a tag, or another ref.")
        super().__init__(ref.place, **{**store_properties(ref._core), **properties})
        self._tables = Tables(ref, committer=committer)

    # --- namespaces -----------------------------------------------------------------------------------------------

    def create_namespace(self, namespace: str | Identifier, properties: Properties = _NO_PROPERTIES) -> None:
        levels = self.identifier_to_tuple(namespace)
        with _in_their_words(taken=theirs.NamespaceAlreadyExistsError):
            self._tables.create_namespace(levels, {name: str(value) for name, value in properties.items()})

    def drop_namespace(self, namespace: str | Identifier) -> None:
        with _in_their_words(taken=theirs.NamespaceAlreadyExistsError):
            self._tables.drop_namespace(self.identifier_to_tuple(namespace))

    def list_namespaces(self, namespace: str | Identifier = ()) -> list[Identifier]:
        with _in_their_words(taken=theirs.NamespaceAlreadyExistsError):
            return [*self._tables.namespaces(self.identifier_to_tuple(namespace) if namespace else ())]

    def load_namespace_properties(self, namespace: str | Identifier) -> Properties:
        with _in_their_words(taken=theirs.NamespaceAlreadyExistsError):
            return dict(self._tables.namespace(self.identifier_to_tuple(namespace)))

    def update_namespace_properties(
        self, namespace: str | Identifier, removals: set[str] | None = None, updates: Properties = _NO_PROPERTIES
    ) -> PropertiesUpdateSummary:
        changed = {name: str(value) for name, value in updates.items()}
        self._check_for_overlap(updates=changed, removals=removals)
        gone = sorted(removals or ())
        with _in_their_words(taken=theirs.NamespaceAlreadyExistsError):
            before = self._tables.update_namespace(self.identifier_to_tuple(namespace), gone, changed)
        return PropertiesUpdateSummary(
            removed=[name for name in gone if name in before],
            updated=sorted(changed),
            missing=[name for name in gone if name not in before],
        )

    # --- tables ---------------------------------------------------------------------------------------------------

    def list_tables(self, namespace: str | Identifier) -> list[Identifier]:
        with _in_their_words(taken=theirs.NamespaceAlreadyExistsError):
            return [*self._tables.all_in(self.identifier_to_tuple(namespace))]

    def table_exists(self, identifier: str | Identifier) -> bool:
        with _in_their_words():
            return self._tables.exists(self.identifier_to_tuple(identifier))

    def load_table(self, identifier: str | Identifier) -> Table:
        levels = self.identifier_to_tuple(identifier)
        with _in_their_words():
            return self._opened(levels, self._tables.load(levels))

    def create_table(
        self,
        identifier: str | Identifier,
        schema: Schema | pa.Schema,
        location: str | None = None,
        partition_spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
        sort_order: SortOrder = UNSORTED_SORT_ORDER,
        properties: Properties = _NO_PROPERTIES,
    ) -> Table:
        """Make a table; its location is the lake's to choose, whatever is asked for."""
        levels = self.identifier_to_tuple(identifier)
        with _in_their_words():
            request = self._request(schema, partition_spec, sort_order, properties)
            return self._opened(levels, self._tables.create(levels, request))

    def _create_staged_table(
        self,
        identifier: str | Identifier,
        schema: Schema | pa.Schema,
        location: str | None = None,
        partition_spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
        sort_order: SortOrder = UNSORTED_SORT_ORDER,
        properties: Properties = _NO_PROPERTIES,
    ) -> StagedTable:
        levels = self.identifier_to_tuple(identifier)
        with _in_their_words():
            loaded = self._tables.create(
                levels, self._request(schema, partition_spec, sort_order, properties), stages=True
            )
        metadata = _parsed(loaded)
        return StagedTable(levels, metadata, "", self._load_file_io(metadata.properties, metadata.location), self)

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        change = TableChange(table.name(), [_plain(one) for one in requirements], [_plain(one) for one in updates])
        with _in_their_words(commits=True):
            (loaded,) = self._tables.commit([change])
        return CommitTableResponse.model_validate({"metadata": _parsed(loaded), "metadata-location": loaded.location})

    def drop_table(self, identifier: str | Identifier) -> None:
        """Take a table off the branch. Its files stay as long as a commit, a tag or another branch needs them."""
        with _in_their_words():
            self._tables.drop(self.identifier_to_tuple(identifier))

    def purge_table(self, identifier: str | Identifier) -> None:
        """The same as `drop_table`: nobody but a collection of garbage deletes files that others may need."""
        self.drop_table(identifier)

    def rename_table(self, from_identifier: str | Identifier, to_identifier: str | Identifier) -> Table:
        target = self.identifier_to_tuple(to_identifier)
        with _in_their_words():
            self._tables.rename(self.identifier_to_tuple(from_identifier), target)
        return self.load_table(target)

    def register_table(self, identifier: str | Identifier, metadata_location: str, overwrite: bool = False) -> Table:
        """Make a table of metadata in this repository, such as that of a table that was dropped."""
        levels = self.identifier_to_tuple(identifier)
        with _in_their_words():
            return self._opened(levels, self._tables.register(levels, metadata_location, overwrite=overwrite))

    def _opened(self, levels: Identifier, loaded: Loaded) -> Table:
        metadata = _parsed(loaded)
        return Table(levels, metadata, loaded.location, self._load_file_io(metadata.properties, loaded.location), self)

    def _request(
        self, schema: Schema | pa.Schema, spec: PartitionSpec, order: SortOrder, properties: Properties
    ) -> dict[str, Any]:
        text = str(properties.get(VERSION, VERSION_DEFAULT))
        version = int(text) if text in ("1", "2", "3") else VERSION_DEFAULT  # another one is refused with the request
        converted = self._convert_schema_if_needed(schema, version)  # type: ignore[arg-type]
        fresh = assign_fresh_schema_ids(converted)  # one that was made of Arrow's has none
        return {
            "schema": _plain(fresh),
            "partition-spec": _plain(assign_fresh_partition_spec_ids(spec, converted, fresh)),
            "write-order": _plain(assign_fresh_sort_order_ids(order, converted, fresh)),
            "properties": {name: str(value) for name, value in properties.items()},
        }

    # --- views, which a branch does not hold ----------------------------------------------------------------------

    def list_views(self, namespace: str | Identifier) -> list[Identifier]:
        self.load_namespace_properties(namespace)
        return []

    def view_exists(self, identifier: str | Identifier) -> bool:
        return False

    def load_view(self, identifier: str | Identifier) -> View:
        raise theirs.NoSuchViewError(f"The view {identifier!r} does not exist.")

    def drop_view(self, identifier: str | Identifier) -> None:
        raise theirs.NoSuchViewError(f"The view {identifier!r} does not exist.")

    def register_view(self, identifier: str | Identifier, metadata_location: str) -> View:
        raise UsageError("A branch holds no views.", next="Create a table instead.")


def _parsed(loaded: Loaded) -> TableMetadata:
    return TableMetadataUtil.parse_raw(json.dumps(loaded.metadata))


def _plain(model: IcebergBaseModel) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(model.model_dump_json())
    return found


@contextmanager
def _in_their_words(
    *, commits: bool = False, taken: type[Exception] = theirs.TableAlreadyExistsError
) -> Iterator[None]:
    """Raise what PyIceberg's callers expect; the sentence is ours. Its other errors pass as they are.

    Args:
        commits: an unknown outcome is that of a commit.
        taken: for a name that is taken.
    """
    kinds: list[tuple[type[StrandlineError], type[Exception]]] = [
        (NoSuchTable, theirs.NoSuchTableError),
        (NoSuchNamespace, theirs.NoSuchNamespaceError),
        (NotEmpty, theirs.NamespaceNotEmptyError),
        (AlreadyExists, taken),
        (Conflict, theirs.CommitFailedException),
        (BadUpdate, theirs.ValidationError),
        (InvalidName, theirs.ValidationError),
    ]
    try:
        yield
    except StoreUnavailable as error:
        if not commits or error.happened == "no":
            raise
        raise theirs.CommitStateUnknownException(str(error)) from error
    except StrandlineError as error:
        for ours, kind in kinds:
            if isinstance(error, ours):
                raise kind(str(error)) from error
        raise
