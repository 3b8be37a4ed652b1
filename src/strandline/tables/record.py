"""The table record: an object in the tree like any other, so it branches, merges and travels in time with its data."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from strandline.errors import Corrupted, NewerFormat, SchemaMismatch, UsageError

RECORD_NAME = "_strandline_table.json"
"""Below the table's path; readers of plain folders skip names that begin with "_"."""
FORMAT_VERSION = 1
RESERVED_COLUMNS = ("sl_branch", "sl_write")
"""Names of folders in the physical layout, which Spark sees as columns."""
WriteMode = Literal["append", "overwrite", "overwrite_partitions"]
SchemaChange = Literal["merge", "replace"]
Field = dict[str, Any]
"""A column as Spark's schema JSON has it: name, type, nullable, metadata."""


class TableRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a table is. Every read uses it, so nothing is guessed from files.

    Attributes:
        fields: the columns, partition columns among them, in order, in Spark's schema JSON.
        partition_by: names of the partition columns, outermost first.
        file_format: of the data files.
    """

    fields: tuple[Field, ...]
    partition_by: tuple[str, ...] = ()
    file_format: Literal["parquet"] = "parquet"
    format: int = FORMAT_VERSION

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(field["name"] for field in self.fields)


def encode_record(record: TableRecord) -> bytes:
    return json.dumps(msgspec.to_builtins(record), indent=2, ensure_ascii=False).encode() + b"\n"


def decode_record(data: bytes, path: str) -> TableRecord:
    try:
        version = json.loads(data)["format"]
        if version > FORMAT_VERSION:
            raise NewerFormat(
                f"The record of table {path!r} has format {version}; this strandline reads up to {FORMAT_VERSION}.",
                next="Upgrade strandline.",
            )
        return msgspec.json.decode(data, type=TableRecord)
    except (ValueError, KeyError, TypeError, msgspec.MsgspecError) as error:
        raise Corrupted(
            f"The record of table {path!r} cannot be read: {error}.",
            next=f"Take {RECORD_NAME} from an older commit: branch.copy(…, ref=…).",
        ) from error


def plan_record(
    held: TableRecord | None,
    fields: Sequence[Field],
    mode: str,
    partition_by: Sequence[str] | None,
    change: SchemaChange | None,
    path: str,
) -> TableRecord:
    """The record that a table has after a write; decided before anything is written.

    Raises:
        UsageError: the arguments do not fit together.
        SchemaMismatch: the columns are not the table's, and the change was not asked for.
    """
    if mode not in ("append", "overwrite", "overwrite_partitions"):
        raise UsageError(f"{mode!r} is not a write mode.", next="Use append, overwrite or overwrite_partitions.")
    if change not in (None, "merge", "replace") or (change == "replace" and mode != "overwrite"):
        raise UsageError(
            f"schema={change!r} does not fit mode={mode!r}.",
            next='Use schema="merge" to add columns, or schema="replace" with mode="overwrite".',
        )
    _refuse_bad_columns(fields)
    new = TableRecord(fields=tuple(_plain(field) for field in fields), partition_by=tuple(partition_by or ()))
    if held is None or change == "replace":
        kept = new if held is None or partition_by is not None else replace(new, partition_by=held.partition_by)
        _refuse_bad_partitions(kept, mode)
        return kept
    if partition_by is not None and tuple(partition_by) != held.partition_by:
        raise UsageError(
            f"Table {path!r} is partitioned by {list(held.partition_by)}, not by {list(partition_by)}.",
            next='Leave partition_by out, or rewrite the table with mode="overwrite", schema="replace".',
        )
    _refuse_bad_partitions(held, mode)
    return _evolve(held, new, change, path)


def _plain(field: Field) -> Field:
    return {"name": field["name"], "type": field["type"], "nullable": True, "metadata": field.get("metadata") or {}}


def _refuse_bad_columns(fields: Sequence[Field]) -> None:
    names = [field["name"] for field in fields]
    twice = sorted({name for name in names if [n.lower() for n in names].count(name.lower()) > 1})
    if twice:
        raise UsageError(f"Columns that differ only in case or not at all: {', '.join(twice)}.", next="Rename one.")
    reserved = [name for name in names if name.lower() in RESERVED_COLUMNS]
    if reserved or not names:
        raise UsageError(f"These columns cannot be in a table: {', '.join(reserved) or 'none at all'}.")


def _refuse_bad_partitions(record: TableRecord, mode: str) -> None:
    missing = [name for name in record.partition_by if name not in record.names]
    if missing:
        raise UsageError(f"The data has no column {missing[0]!r} to partition by.", next="Check partition_by.")
    if record.partition_by and len(record.partition_by) == len(record.names):
        raise UsageError("A table needs a column besides its partition columns.")
    if mode == "overwrite_partitions" and not record.partition_by:
        raise UsageError("The table has no partitions to overwrite.", next='Use mode="overwrite".')


def _evolve(held: TableRecord, new: TableRecord, change: SchemaChange | None, path: str) -> TableRecord:
    before = {field["name"]: field for field in held.fields}
    after = {field["name"]: field for field in new.fields}
    added = [name for name in after if name not in before]
    gone = [name for name in before if name not in after]
    other = [name for name in after if name in before and not _same_type(after[name], before[name])]
    if other:
        told = ", ".join(f"{name} is {before[name]['type']}, not {after[name]['type']}" for name in other)
        raise SchemaMismatch(f"Table {path!r} has other column types: {told}.", next="Cast the columns of the data.")
    if (added or gone) and change != "merge":
        told = "; ".join(
            part
            for part in (
                added and f"the data has more columns: {', '.join(added)}",
                gone and f"the data lacks columns: {', '.join(gone)}",
            )
            if part
        )
        raise SchemaMismatch(
            f"The columns are not those of table {path!r}: {told}.",
            next='Select the table\'s columns, or pass schema="merge" to add new ones and leave missing ones null.',
        )
    return replace(held, fields=(*held.fields, *(after[name] for name in added)))


def _same_type(left: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    return bool(_without_nullability(left["type"]) == _without_nullability(right["type"]))


def _without_nullability(kind: Any) -> Any:
    """A type of Spark's schema JSON, without what tells only whether nulls may occur in it."""
    if isinstance(kind, dict):
        skipped = ("nullable", "containsNull", "valueContainsNull", "metadata")
        return {key: _without_nullability(value) for key, value in kind.items() if key not in skipped}
    if isinstance(kind, list):
        return [_without_nullability(item) for item in kind]
    return kind
