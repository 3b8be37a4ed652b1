"""A table of files that somebody else writes elsewhere: their listing, and the table's record, in one commit.

The listing is an import in slices that replaces what lies at the table; each worker looks at the files that are new
(`tables.mirroring`). The record is put together from the columns that they saw.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import get_args

import msgspec
import numpy as np

from strandline.blob import BlobNotFound, BlobStore, open_store
from strandline.branch.at import BranchAt
from strandline.core.physical import new_key
from strandline.core.repository_core import RepositoryCore
from strandline.core.upload import upload
from strandline.errors import NotFound, SchemaMismatch, UsageError
from strandline.ids import prefix_end
from strandline.repository.commits.listing import ImportSource, references, refuse_namespaces
from strandline.tables.columns import kind_of, type_name
from strandline.tables.formats import FileFormat
from strandline.tables.layout import is_data_file, is_hidden, partition_names
from strandline.tables.mirroring import Mirrored, fields_of, footer_of, gone
from strandline.tables.record import (
    RECORD_NAME,
    Field,
    OptionValue,
    TableRecord,
    WriteOptions,
    decode_record,
    encode_record,
    in_its_format,
    plan_record,
)
from strandline.tables.statistics import columns_to_read
from strandline.tree.apply import apply
from strandline.tree.rows import Changes, Entry, column, rows_from_entries
from strandline.tree.store import Tree


class MirroredTable:
    """A table at a path, and the folder that it mirrors.

    Args:
        file_format: None for that of the first data file.
        columns: of the files; None for those in the footers of Parquet files.
        partition_types: of columns that folders name, as Spark calls them; those that are left out are strings.

    Raises:
        NotFound: the source has no data file.
        UsageError: the columns are not known, or what the arguments say is not what the source has.
    """

    def __init__(
        self,
        core: RepositoryCore,
        at: BranchAt,
        source: ImportSource,
        *,
        file_format: FileFormat | None,
        columns: Sequence[Field] | None,
        partition_types: Mapping[str, str],
        options: Mapping[str, OptionValue] | None,
    ) -> None:
        self._core, self._at = core, at
        self.prefix = source.below
        self.record_path = self.prefix + RECORD_NAME
        self._columns, self._types, self._options = columns, partition_types, options
        root, self._under = source.split()
        store = open_store(root)
        refuse_namespaces(store, self._under)
        _refuse_logs(source, store, self._under)
        self._first, self._format = _first_file(source, store, self._under, file_format)
        self._store = store

    # --- before the listing -------------------------------------------------------------------------------------------

    def spec(self, tree: Tree) -> Mirrored:
        """What workers need to know, by the record that a tree has and the first file."""
        held = self._record(tree)
        trees, place = self._core.stores.trees, self.prefix.rstrip("/")
        is_taken = trees.holds(tree, self.prefix, prefix_end(self.prefix) or "") or trees.find(tree, place) is not None
        if held is None and is_taken:
            raise UsageError(
                f"Objects lie at {place!r} already, and no table.",
                next="Mirror to another path, or delete them first.",
            )
        self._refuse_nesting(tree)
        if held is not None:
            self._refuse_other_layout(held)
        record = self._now(held)
        fields = {field["name"]: field for field in record.fields}
        types = {name: fields[name]["type"] for name in record.partition_by}
        return Mirrored(self.prefix, self.record_path, self._format, types, columns_to_read(record))

    def _refuse_nesting(self, tree: Tree) -> None:
        """A table below another one would have its rows read as the other one's."""
        trees = self._core.stores.trees
        folders = self.prefix.split("/")[:-2]
        above = ["/".join(folders[: depth + 1]) for depth in range(len(folders))]
        other = next((one for one in above if trees.find(tree, f"{one}/{RECORD_NAME}") is not None), None)
        if other is not None:
            raise UsageError(
                f"{self.prefix.rstrip('/')!r} and the table {other!r} would lie one in the other.",
                next="Take another path.",
            )

    def _now(self, held: TableRecord | None) -> TableRecord:
        """The record with what the arguments say."""
        if held is None:
            return self._planned(None, self._first_fields())
        return self._planned(held, self._columns or held.stored)

    def _record(self, tree: Tree) -> TableRecord | None:
        found = self._core.stores.trees.find(tree, self.record_path)
        if found is None:
            return None
        store, key = self._core.resolver.resolve(found.physical_address)
        return decode_record(store.get(key), self.prefix)

    def _partition_names(self) -> tuple[str, ...]:
        return partition_names(self._first)

    def _refuse_other_layout(self, record: TableRecord) -> None:
        if record.file_format != self._format or record.partition_by != self._partition_names():
            raise UsageError(
                f"The table is {record.file_format}, partitioned by {list(record.partition_by)}; the source is "
                f"{self._format}, partitioned by {list(self._partition_names())}.",
                next="Mirror to another path; or drop this table, and mirror then.",
            )
        known = {field["name"]: type_name(field["type"]) for field in record.fields}
        for name, kind in self._types.items():
            if known.get(name) != kind:
                raise UsageError(
                    f"The column {name!r} of the table is of type {known.get(name)}, not {kind}.",
                    next="Leave it out of partition_types; or drop this table, and mirror then.",
                )

    def _first_fields(self) -> list[Field]:
        """The columns of the files, by the first one of them."""
        if self._columns is not None:
            return list(self._columns)
        if self._format != "parquet":
            raise UsageError(
                f"Files in {self._format} do not say which columns they have.",
                next="Mirror it from Python, with columns: an Arrow schema without the columns that folders name.",
            )
        try:
            first = self._store.head(self._under + self._first)
        except BlobNotFound:
            raise gone(repr(self._first)) from None
        row = references(self._store, self._under, self.prefix, [first])
        (address,) = column(row, "physical_address").to_pylist()
        return fields_of(footer_of(self._core.resolver, address))

    def _planned(self, held: TableRecord | None, fields: Sequence[Field]) -> TableRecord:
        """The record of a table with these columns in its files as well."""
        names = self._partition_names()
        given = {name.lower() for name in self._options or {}}
        if held is None and self._format == "csv" and "header" not in given:
            raise UsageError(
                "Files in csv do not say whether their first lines are names of columns.",
                next="Give options, such as {'header': True}.",
            )
        both = [field["name"] for field in fields if field["name"] in names]
        if both:
            raise UsageError(
                f"The column {both[0]!r} is in the files, and their folders name it as well.",
                next="Mirror a table whose files leave out what its folders say.",
            )
        for name, kind in self._types.items():
            if kind_of({"type": kind}) in (None, "binary"):
                raise UsageError(
                    f"{kind!r} is not a type of partition columns, for {name!r}.",
                    next="Name it as schemas of Spark do: string, integer (not int), long, date, timestamp, decimal.",
                )
        # a column of nothing but nulls gets a type with the first file that has values
        fields = [field for field in fields if field["type"] != "void"]
        unknown = set(self._types) - set(names)
        if unknown:
            raise UsageError(
                f"No folder names the column {sorted(unknown)[0]!r}.", next=f"Folders name {list(names) or 'none'}."
            )
        known = {field["name"]: field for field in held.fields} if held is not None else {}
        parted = [known.get(name) or _field(name, self._types.get(name, "string")) for name in names]
        wanted = WriteOptions(
            schema=None if held is None else "merge",
            partition_by=names,
            file_format=self._format,
            options=self._options,
        )
        return plan_record(held, [*fields, *parted], wanted, self.prefix.rstrip("/"))

    # --- after it -----------------------------------------------------------------------------------------------------

    def with_record(self, tree: Tree, seen: Mapping[str, str]) -> Tree:
        """The tree with the record of the table, once the files are in it.

        Args:
            seen: the columns of files that are new, as JSON, each with the path of one.

        Raises:
            SchemaMismatch: a file has a column of a type that the table's does not hold.
        """
        held = self._record(tree)
        record = self._now(held)
        for text, file in seen.items():
            try:
                record = self._planned(record, _fields(text))
            except SchemaMismatch as error:
                raise SchemaMismatch(
                    f"{file!r} does not fit: {error.what}",
                    next="Mirror the files that fit to one table, and the others to another one.",
                ) from error
        record = in_its_format(record)
        if record == held:
            return tree
        key = new_key(self._at.branch_id, RECORD_NAME)
        entry: Entry = upload(self._core, key, RECORD_NAME, encode_record(record), "application/json", None)
        change = Changes(rows_from_entries([self.record_path.encode()], [entry]), np.zeros(1, np.bool_))
        return apply(self._core.stores.trees, tree, [change]).tree


def _fields(text: str) -> list[Field]:
    found: list[Field] = msgspec.json.decode(text)
    return found


def _field(name: str, kind: str) -> Field:
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


def _refuse_logs(source: ImportSource, store: BlobStore, under: str) -> None:
    """A table with a log holds files that are not of it any more, and rows that are marked as deleted."""
    for folder, kind in LOGS.items():
        if any(True for page in store.list_pages(under + folder) for _ in page):
            raise UsageError(
                f"{source.shown!r} is a table of {kind}: its log says which of its files count, and a mirror takes "
                "all of them.",
                next="Read it with its own reader, and write the rows to a table.",
            )


LOGS = {"_delta_log/": "Delta Lake", ".hoodie/": "Hudi", "_spark_metadata/": "a stream of Spark"}
"""Folders of logs in a table, by what keeps them."""


def _first_file(
    source: ImportSource, store: BlobStore, under: str, file_format: FileFormat | None
) -> tuple[str, FileFormat]:
    """The path of a data file below a source, and its format."""
    known = get_args(FileFormat)
    if file_format is not None and file_format not in known:
        raise UsageError(f"{file_format!r} is not a format of tables.", next=f"Use one of {', '.join(known)}.")
    formats: tuple[FileFormat, ...] = (file_format,) if file_format else known
    for page in store.list_pages(under):
        for info in page:
            name = info.key[len(under) :]
            for one in formats:
                if not is_hidden(name) and is_data_file(name, one):
                    return name, one
    raise NotFound(
        f"{source.shown!r} has no data file{f' in {file_format}' if file_format else ''}.",
        next=f"Names of data files end in one of {', '.join('.' + one for one in formats)}.",
    )
