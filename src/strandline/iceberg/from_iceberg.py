"""Iceberg tables as native tables, without copying data: both refer to the same files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow.parquet as pq

from strandline.blob import BlobNotFound
from strandline.core.iceberg_files import key_of
from strandline.errors import (
    AlreadyExists,
    ObjectMissing,
    UsageError,
)
from strandline.iceberg import names
from strandline.iceberg.conversion import NAME_MAPPING, Conversion
from strandline.iceberg.landing import Plan
from strandline.iceberg.live import EQUALITY_DELETES, Live, LiveFile, read_live, targets
from strandline.iceberg.names import Identifier
from strandline.iceberg.native_types import (
    bound_of,
    column_names,
    field_ids,
    kind_of_type,
    mapping_of,
    named_ids,
    spark_fields,
)
from strandline.iceberg.schemas import Json
from strandline.parallel import in_parallel
from strandline.repository.refs.ref import Ref
from strandline.tables.outcomes import TableConverted
from strandline.tables.record import TableRecord, encode_record
from strandline.tables.statistics import (
    Statistics,
    as_json,
    encode_statistics,
)
from strandline.tables.table import Table
from strandline.tables.writing import CONTENT_TYPES
from strandline.tree.rows import Entry


class Release(Conversion):
    """Files of an Iceberg table become those of a native one."""

    def publish(self) -> TableConverted:
        checked: set[str] = set()

        def decide(head: Ref) -> Plan:
            found = self._found(head, self._named)
            table = self._read(found.physical_address, self._named)
            live = read_live(self._core.resolver.namespace, table)
            self._refuse_deletes(live)
            schema = _plain_schema(table, self._named)
            record = TableRecord(fields=tuple(spark_fields(schema["fields"])))
            native = self._native(head)
            self._refuse_target(head, native)
            files = sorted(live.data.values(), key=lambda one: str(one.file["file_path"]))
            entries = self._entries(native, schema, files)
            # ids of schemas go up by one: if some are gone, only the files tell how columns were named
            is_whole = max(one["schema-id"] for one in table["schemas"]) + 1 == len(table["schemas"])
            if not is_whole or NAME_MAPPING in (table.get("properties") or {}):
                self._check_columns(table, schema, [one for one in files if one.file["file_path"] not in checked])
                checked.update(one.file["file_path"] for one in files)
            plan = self._plan(f"make Iceberg table {names.shown(self._named)} the table {native.path}", self._named)
            pointer = names.pointer_of(self._named)
            plan.expected |= {**dict.fromkeys([native.record_path, *entries]), pointer: found}
            record_entry = self._stored(plan, self._new_key(native.record_path), encode_record(record), None)
            plan.changes |= {native.record_path: record_entry, **entries}
            if self.in_place:
                plan.changes[pointer] = None
            self._expect_alone(plan, head)
            rows = sum(one.rows for one in files)
            plan.result = TableConverted(native.path, len(files), rows)
            return plan

        done: TableConverted = self._publish(decide)
        return done

    def _refuse_deletes(self, live: Live) -> None:
        """Raise if rows of live files are deleted: such rows would come back. Rewrites leave deletes of dead files."""
        blobs = self._core.resolver.namespace
        numbers = {name: one.entry["sequence_number"] for (name, _), one in live.data.items()}

        def holds(deletes: LiveFile) -> bool:
            number = deletes.entry["sequence_number"]
            if deletes.content == EQUALITY_DELETES:
                return any(one < number for one in numbers.values())
            return any(numbers[name] <= number for name in targets(blobs, deletes) if name in numbers)

        if count := sum(in_parallel(holds, list(live.deletes.values()))):
            raise UsageError(
                f"Rows of {names.shown(self._named)} are deleted by {count} files of deletes, which native tables do "
                "not know.",
                next="Rewrite the data files first, with Spark's procedure rewrite_data_files.",
            )

    def _refuse_target(self, head: Ref, native: Table) -> None:
        allowed = {names.pointer_of(self._named)} if self.in_place else set()
        there = [info.path for info in head.list(native.prefix, amount=2) if info.path not in allowed]
        if there or head.exists(native.path):
            raise AlreadyExists(
                f"Something lies at {native.path!r} already: {(there or [native.path])[0]!r}.",
                next="Take another path.",
            )

    def _entries(self, native: Table, schema: Json, files: Sequence[LiveFile]) -> dict[str, Entry | None]:
        """The objects of the data files, by their paths below the native table."""
        blobs = self._core.resolver.namespace

        def entry(numbered: tuple[int, LiveFile]) -> tuple[str, Entry]:
            at, one = numbered
            location = one.file["file_path"]
            key = key_of(blobs, location)
            if key is None:
                raise UsageError(
                    f"{location!r} lies outside the repository: nobody keeps it for a native table.",
                    next="Write it anew with an engine.",
                )
            if str(one.file["file_format"]).upper() != "PARQUET":
                raise UsageError(
                    f"{key!r} is {one.file['file_format']}; only Parquet files become a native table as they are.",
                    next="Rewrite the data files as Parquet first.",
                )
            try:
                blob = blobs.head(key)
            except BlobNotFound:
                raise ObjectMissing(
                    f"A file of {names.shown(self._named)} is gone: {key!r}.", next="`strandline fsck` tells which."
                ) from None
            metadata = encode_statistics(_statistics(one.file, schema))
            checksum = f"etag:{blob.etag}"
            held = Entry(key, blob.size, checksum, blob.modified_at_us, CONTENT_TYPES["parquet"], metadata)
            return f"{native.prefix}part-{at:06d}.parquet", held

        return dict(in_parallel(entry, list(enumerate(files))))

    def _check_columns(self, table: Json, schema: Json, files: Sequence[LiveFile]) -> None:
        """Raise if a file lacks a column whose values are only in the metadata, or names columns in another way."""
        wanted = named_ids(schema)
        specs = {one["spec-id"]: one["fields"] for one in table["partition-specs"]}
        by_id = {one["id"]: one["name"] for one in schema["fields"]}
        sources = {
            by_id[one["source-id"]]
            for fields in specs.values()
            for one in fields
            if one["transform"] == "identity" and one["source-id"] in by_id
        }
        blobs = self._core.resolver.namespace
        mapping = mapping_of((table.get("properties") or {}).get(NAME_MAPPING, ""))

        def check(one: LiveFile) -> None:
            key = key_of(blobs, one.file["file_path"])
            assert key is not None
            with blobs.open_read(key) as opened:
                footer = pq.read_schema(opened)
            held, ids = set(footer.names), field_ids(footer, mapping)
            if unknown := sorted((column_names(footer) & wanted.keys()) - ids.keys()):
                raise UsageError(
                    f"Column {unknown[0]!r} of {key!r} has no id, and the name mapping of {names.shown(self._named)} "
                    "does not have it, so engines read it differently.",
                    next="Write the table anew with an engine.",
                )
            for name, id in ids.items():
                if (name in wanted or id in wanted.values()) and wanted.get(name) != id:
                    raise UsageError(
                        f"Column {name!r} of {key!r} has another name in {names.shown(self._named)} now, or its name "
                        "is another column's: native tables know the columns of files by name.",
                        next="Write the table anew with an engine.",
                    )
            if missing := sorted(sources - held):
                raise UsageError(
                    f"{key!r} has no column {missing[0]!r}: its values are only in the partitions of "
                    f"{names.shown(self._named)}.",
                    next="Rewrite the data files with an engine first.",
                )

        list(in_parallel(check, files))


def _plain_schema(table: Json, named: Identifier) -> Json:
    """The schema of a table whose files are read rightly by the names of columns.

    Raises:
        UsageError: columns were renamed, or have had values by default, or others had their names before.
    """
    schema: Json = next(one for one in table["schemas"] if one["schema-id"] == table["current-schema-id"])
    ids: dict[str, int] = {}
    columns: dict[int, str] = {}
    for one in table["schemas"]:
        for name, id in named_ids(one).items():
            if ids.setdefault(name, id) != id or columns.setdefault(id, name) != name:
                raise UsageError(
                    f"Column {name!r} of {names.shown(named)} had another name, or its name was another column's: "
                    "native tables know the columns of files by name.",
                    next="Write the table anew with an engine.",
                )
            if _has_default(one["fields"]):
                raise UsageError(
                    f"{names.shown(named)} has columns with initial defaults, which native tables do not know.",
                    next="Write the table anew with an engine.",
                )
    return schema


def _has_default(fields: Sequence[Json]) -> bool:
    return any(one.get("initial-default") is not None for one in fields)


def _statistics(file: Json, schema: Json) -> Statistics:
    """What a manifest says of a file, as native tables keep it."""

    def held(name: str) -> dict[int, Any]:
        pairs = file.get(name) or ()
        return (
            {int(key): value for key, value in pairs.items()}
            if isinstance(pairs, dict)
            else {one["key"]: one["value"] for one in pairs}
        )

    lower, upper, nulls, nans = (
        held(name) for name in ("lower_bounds", "upper_bounds", "null_value_counts", "nan_value_counts")
    )
    columns = {}
    for one in schema["fields"]:
        id, kind = one["id"], kind_of_type(one["type"])
        if kind is None or (id not in nulls and id not in lower):
            continue
        low = high = None
        is_number = not nans.get(id) and (kind != "float" or id in nans)
        if id in lower and id in upper and is_number:
            least, most = bound_of(lower[id], one["type"]), bound_of(upper[id], one["type"])
            if least is not None and most is not None:
                low, high = as_json(least, kind, is_high=False), as_json(most, kind, is_high=True)
        columns[one["name"]] = (low, high, nulls.get(id))
    return Statistics(int(file["record_count"]), columns)
