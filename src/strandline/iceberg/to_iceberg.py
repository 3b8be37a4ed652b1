"""Native tables as Iceberg tables, without copying data: both refer to the same files, whose footers alone are read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from strandline.blob import is_absolute
from strandline.errors import (
    AlreadyExists,
    NotAllowed,
    StorageError,
    StrandlineError,
    UsageError,
    some_paths,
)
from strandline.iceberg import names, updates
from strandline.iceberg.conversion import NAME_MAPPING, Conversion
from strandline.iceberg.creation import new_table
from strandline.iceberg.first_snapshot import NewFile, first_snapshot
from strandline.iceberg.landing import Plan
from strandline.iceberg.native_types import (
    field_ids,
    iceberg_fields,
    name_mapping,
    named_ids,
    plain_value,
    value_bytes,
)
from strandline.iceberg.schemas import Json
from strandline.parallel import in_parallel
from strandline.repository.refs.ref import Ref
from strandline.results.rows import ObjectInfo
from strandline.tables.arrow_files import file_system
from strandline.tables.columns import is_widening, kind_of, same_type, spark_type, type_name
from strandline.tables.layout import OVERWRITE_NAME
from strandline.tables.outcomes import TableConverted
from strandline.tables.record import TableRecord
from strandline.tables.scan import TableFile
from strandline.tables.statistics import (
    Statistics,
    columns_to_read,
    footer_statistics,
    spans_of,
)
from strandline.tables.table import Table
from strandline.tables.values import partition_value

_SAME_IN_ICEBERG = ("byte", "short", "integer")
"""Whole numbers that Iceberg reads as its int, however narrow they were written."""


@dataclass(frozen=True, slots=True)
class _Footer:
    """What the footer of a file says.

    Attributes:
        ids: that its writer gave the columns; none of most files.
        kinds: the types of the columns, as Spark's schema JSON has them; of one that has none, what Arrow calls it.
    """

    statistics: Statistics
    kinds: dict[str, Any]
    ids: dict[str, int]


class Adoption(Conversion):
    """Files of a native table become those of an Iceberg table."""

    def publish(self) -> TableConverted:
        key = names.new_table_key()
        footers: dict[str, _Footer] = {}

        def decide(head: Ref) -> Plan:
            native = self._native(head)
            record = self._record(native)
            self._refuse_name(head)
            files = native.files()
            unread = [file for file in files if file.info.physical_address not in footers]
            footers.update(self._footers(native, record, unread))
            table = self._metadata(record, key)
            made = [self._new_file(record, table, file, footers[file.info.physical_address]) for file in files]
            plan = self._plan(
                f"make table {self._table.path} the Iceberg table {names.shown(self._named)}", self._named
            )
            if made:
                asked, stored = first_snapshot(
                    table, made, lambda name: self._key_of(key, name), self._url, self.now_ms
                )
                table = updates.apply(table, asked, self.now_ms)
                plan.files |= stored
            self._put_table(plan, self._named, table, None, key)
            self._expect(plan, head, native, files)
            plan.result = TableConverted(names.shown(self._named), len(made), sum(one.rows for one in made))
            return plan

        done: TableConverted = self._publish(decide)
        return done

    def _key_of(self, key: str, name: str) -> str:
        return f"{names.files_below(key, self.files_part)}/metadata/{name}-{names.new_uuid()}.avro"

    def _record(self, native: Table) -> TableRecord:
        if not native.exists() and self._table.exists():
            raise UsageError(
                f"Table {native.path!r} is only staged, and an Iceberg table is made of what is committed.",
                next="Commit it first.",
            )
        record = native.record
        if record.file_format != "parquet":
            raise UsageError(
                f"Table {native.path!r} has {record.file_format} files; only Parquet becomes an Iceberg table.",
                next="Write it into an Iceberg table with an engine.",
            )
        return record

    def _refuse_name(self, head: Ref) -> None:
        if not self.in_place:
            self._refuse_taken(head, self._named)
            return
        folder = names.folder_of(self._named)
        if any(head.exists(folder + end) for end in (names.POINTER, names.VIEW)):
            raise AlreadyExists(f"There is an Iceberg table {names.shown(self._named)} already.")

    def _metadata(self, record: TableRecord, key: str) -> Json:
        """The table without snapshots. Its ids are those of `iceberg_fields`, since they count as its request does."""
        fields = iceberg_fields(record.fields)
        ids = {one["name"]: one["id"] for one in fields}
        request = {
            "schema": {"type": "struct", "schema-id": 0, "fields": fields},
            "partition-spec": {
                "spec-id": 0,
                "fields": [
                    {"name": name, "source-id": ids[name], "field-id": 1_000 + at, "transform": "identity"}
                    for at, name in enumerate(record.partition_by)
                ],
            },
            "properties": {"write.format.default": "parquet"},
        }
        made = new_table(request, names.new_uuid(), self._location(key), self.now_ms)
        (schema,) = made["schemas"]
        made["properties"] = {**made["properties"], NAME_MAPPING: json.dumps(name_mapping(schema["fields"]))}
        return made

    def _footers(self, native: Table, record: TableRecord, files: Sequence[TableFile]) -> dict[str, _Footer]:
        source, paths = file_system(self._core.resolver, files, native._describe)
        columns = columns_to_read(record)

        def read(at: int) -> tuple[str, _Footer]:
            file = files[at]
            try:
                with source.open_input_file(paths[at]) as opened:
                    found = pq.ParquetFile(opened)
                    kinds = {one.name: _spark_kind(one, found.metadata.schema) for one in found.schema_arrow}
                    return file.info.physical_address, _Footer(
                        footer_statistics(found.metadata, columns), kinds, field_ids(found.schema_arrow)
                    )
            except StrandlineError:
                raise
            except (pa.ArrowException, OSError) as error:
                raise StorageError(
                    f"{file.info.path!r} of {native._describe()} cannot be read: {error}.",
                    next="`strandline fsck` says whether it is damaged.",
                ) from error

        return dict(in_parallel(read, range(len(files))))

    def _refuse_other_ids(self, table: Json, file: TableFile, footer: _Footer) -> None:
        """Refuse a file whose columns Iceberg's readers would take for others: where a file has ids, they ignore names.

        Files that an Iceberg table left are such, if its columns were changed.
        """
        wanted = named_ids(table["schemas"][0])
        there = footer.ids.keys() | footer.kinds.keys() if footer.ids else set()
        for name in sorted(there):
            id = footer.ids.get(name)
            if (name in wanted or id in wanted.values()) and wanted.get(name) != id:
                raise UsageError(
                    f"Column {name!r} of {file.info.path!r} has the id {id} of another Iceberg table: readers would "
                    "take it for another column.",
                    next='Write the table anew first, for example with mode="overwrite".',
                )

    def _new_file(self, record: TableRecord, table: Json, file: TableFile, footer: _Footer) -> NewFile:
        fields = {field["name"]: field for field in record.fields}
        self._refuse_other_ids(table, file, footer)
        own: Json = {one["name"]: one for one in table["schemas"][0]["fields"]}
        for name, kind in footer.kinds.items():
            if name in fields and name not in record.partition_by and not _reads_as(kind, fields[name]["type"]):
                raise UsageError(
                    f"Column {name!r} of {file.info.path!r} was written as {type_name(kind)}, which Iceberg's "
                    f"readers do not read as {type_name(fields[name]['type'])}.",
                    next='Write the table anew first, for example with mode="overwrite".',
                )
        partition = {}
        for name in record.partition_by:
            text = file.partition[name]
            value = None if text is None else partition_value(text, kind_of(fields[name]))
            if text is not None and value is None:
                raise UsageError(
                    f"{file.info.path!r} has the partition value {text!r}, which an Iceberg table cannot "
                    f"hold in column {name!r}.",
                    next="Write these rows again with a value that Iceberg holds; NaN, for example, as null.",
                )
            partition[name] = plain_value(value, own[name]["type"])
        known = footer.statistics
        nulls, lower, upper = {}, {}, {}
        kinds = {name: kind_of(fields[name]) for name in known.columns}
        for name, span in spans_of(known, kinds).items():
            id, kind, null_count = own[name]["id"], own[name]["type"], known.columns[name][2]
            if null_count is not None:
                nulls[id] = null_count
            if span.low is not None and span.high is not None:
                lower[id] = value_bytes(plain_value(span.low, kind), kind)
                upper[id] = value_bytes(plain_value(span.high, kind), kind)
        address = file.info.physical_address
        location = address if is_absolute(address) else self._url(address)
        return NewFile(location, file.info.size, known.rows, partition, nulls, lower, upper)

    def _expect(self, plan: Plan, head: Ref, native: Table, files: Sequence[TableFile]) -> None:
        """Demand that the files are the table's still: only that keeps them until the new table does."""
        record = head.find(native.record_path)
        plan.expected[native.record_path] = record
        plan.expected |= {file.info.path: file.info for file in files}
        if not self.in_place:
            self._expect_room(plan, head, self._named)
            return
        gone = [native.record_path, *(file.info.path for file in files)]
        known = set(gone)
        below = (info for info in head.list(native.prefix) if isinstance(info, ObjectInfo))
        others = {info.path: info for info in below if info.path not in known}
        if strange := [path for path in others if path.rpartition("/")[2] != OVERWRITE_NAME]:
            raise NotAllowed(
                f"Below {native.prefix!r} lie {len(strange)} objects that are not the table's: {some_paths(strange)}.",
                next="Move them first, or give the Iceberg table another name.",
            )
        plan.expected |= others
        plan.changes |= dict.fromkeys([*gone, *others])
        self._expect_alone(plan, head)


def _spark_kind(field: pa.Field, schema: Any) -> Any:
    if pa.types.is_timestamp(field.type) and field.type.unit == "ns":
        physical = next(
            (schema.column(at).physical_type for at in range(len(schema)) if schema.column(at).path == field.name), ""
        )
        if physical != "INT96":
            return f"{field.type}"
        return "timestamp"  # as Spark writes moments by default
    try:
        return spark_type(field.type, field.name)
    except UsageError:
        return f"{field.type}"


def _reads_as(written: Any, wanted: Any) -> bool:
    """Whether Iceberg's readers make of a written type the one that the table has."""
    if isinstance(wanted, str) and wanted.startswith(("char(", "varchar(")):
        wanted = "string"
    if same_type(written, wanted) or written == "void":
        return True
    if not isinstance(written, str) or not isinstance(wanted, str):
        return False
    if written in _SAME_IN_ICEBERG:
        return wanted in (*_SAME_IN_ICEBERG, "long")
    if written.startswith("decimal") and wanted.startswith("decimal"):
        return is_widening(written, wanted) and written.split(",")[1].strip() == wanted.split(",")[1].strip()
    return (written, wanted) == ("float", "double")
