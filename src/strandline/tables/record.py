"""The table record: an object in the tree like any other, so it branches, merges and travels in time with its data."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import msgspec
from msgspec.structs import replace

from strandline.core.overwrite import IfChanged
from strandline.errors import Corrupted, NewerFormat, SchemaMismatch, UsageError
from strandline.tables.columns import is_widening, same_type, type_name
from strandline.tables.formats import SAFE_OPTIONS, FileFormat, refuse_unheld

RECORD_NAME = "_strandline_table.json"
"""Below the table's path; readers of plain folders skip names that begin with "_"."""
FORMAT_VERSION = 3
"""2 brought other file formats than Parquet, their options, and statistics; 3 a default for changes of the schema, and
is written only for tables that have one."""
RESERVED_COLUMNS = ("sl_branch", "sl_write")
"""Names of folders in the physical layout, which Spark sees as columns."""
STATISTICS_COLUMNS = 32
"""Of how many columns statistics are kept unless the user says which."""
WriteMode = Literal["append", "overwrite", "overwrite_partitions"]
SchemaChange = Literal["merge", "replace", "refuse"]
SchemaDefault = Literal["merge", "refuse"]
Matched = Literal["update", "delete", "keep"]
"""What a merge does to rows whose key the source has."""
NotMatched = Literal["insert", "skip"]
"""What it does with the source's other rows."""
Field = dict[str, Any]
"""A column as Spark's schema JSON has it: name, type, nullable, metadata."""


class TableRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a table is. Every read uses it, so nothing is guessed from files.

    Attributes:
        fields: the columns, partition columns among them, in order, in Spark's schema JSON.
        partition_by: names of the partition columns, outermost first.
        file_format: of the data files.
        options: of the format, as Spark names them, for reading and writing alike.
        statistics: names of the columns whose least and greatest values are kept; None for the first 32.
        schema_default: what a write does with other columns if it does not say; None, as "refuse", refuses them.
    """

    fields: tuple[Field, ...]
    partition_by: tuple[str, ...] = ()
    file_format: FileFormat = "parquet"
    options: dict[str, str] = {}
    statistics: tuple[str, ...] | None = None
    schema_default: SchemaDefault | None = None
    format: int = 2

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns, in order."""
        return tuple(field["name"] for field in self.fields)

    @property
    def stored(self) -> tuple[Field, ...]:
        """The columns that are in the files."""
        return tuple(field for field in self.fields if field["name"] not in self.partition_by)

    @property
    def with_statistics(self) -> tuple[str, ...]:
        """The columns that are in the files and have statistics."""
        stored = [field["name"] for field in self.stored]
        if self.statistics is None:
            return tuple(stored[:STATISTICS_COLUMNS])
        return tuple(name for name in stored if name in self.statistics)


def encode_record(record: TableRecord) -> bytes:
    """The record as JSON; what came with format 3 is left out where it is not used, and so is its number."""
    held = msgspec.to_builtins(record)
    if record.schema_default is None:
        del held["schema_default"]
    return json.dumps(held, indent=2, ensure_ascii=False).encode() + b"\n"


def in_its_format(record: TableRecord) -> TableRecord:
    """The record with the least format whose readers know all that it says."""
    return replace(record, format=2 if record.schema_default is None else 3)


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


OptionValue = str | bool | int | float
"""Of an option of a format; Spark writes all of them as texts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """The arguments of `table.write(…)`, which says what each of them is for; None is what was not said."""

    mode: WriteMode = "append"
    where: Any = None
    partition_by: tuple[str, ...] | None = None
    schema: SchemaChange | None = None
    file_format: str | None = None
    options: Mapping[str, OptionValue] | None = None
    statistics: tuple[str, ...] | None = None
    target_file_bytes: int | None = None
    if_changed: IfChanged = "fail"
    fits: bool = True
    """Whether each row has to fulfil `where`; rows that are updated may leave it."""


def plan_record(
    held: TableRecord | None,
    fields: Sequence[Field],
    wanted: WriteOptions,
    path: str,
) -> TableRecord:
    """The record that a table has after a write; decided before anything is written.

    Raises:
        UsageError: the arguments do not fit together.
        SchemaMismatch: the columns are not the table's, and the change was not asked for.
    """
    mode, change = wanted.mode, wanted.schema or (held.schema_default if held is not None else None)
    if mode not in ("append", "overwrite", "overwrite_partitions"):
        raise UsageError(f"{mode!r} is not a write mode.", next="Use append, overwrite or overwrite_partitions.")
    if change not in (None, *get_args(SchemaChange)) or (change == "replace" and mode != "overwrite"):
        raise UsageError(
            f"schema={change!r} does not fit mode={mode!r}.",
            next='Use schema="merge" to add or widen columns, or schema="replace" with mode="overwrite".',
        )
    _refuse_bad_columns(fields)
    if held is None or change == "replace":
        record = _new_record(held, fields, wanted)
    else:
        _refuse_other_layout(held, wanted, path)
        statistics = held.statistics if wanted.statistics is None else wanted.statistics
        record = replace(_evolve(held, fields, change, path), statistics=statistics)
    _refuse_bad_columns(record.fields)
    _refuse_bad_places(record, mode)
    missing = [name for name in record.statistics or () if name not in record.names]
    if missing:
        raise UsageError(f"The table has no column {missing[0]!r} to keep statistics of.", next="Check statistics=.")
    return record if record == held else in_its_format(record)


def with_schema_default(held: TableRecord, wanted: object) -> TableRecord:
    """The record with another default for changes of the schema.

    Raises:
        UsageError: there is no such default.
    """
    if wanted not in get_args(SchemaDefault):
        raise UsageError(
            f"{wanted!r} is not what a table may do with other columns by default.", next="Use merge or refuse."
        )
    return in_its_format(replace(held, schema_default="merge" if wanted == "merge" else None))


def _new_record(held: TableRecord | None, fields: Sequence[Field], wanted: WriteOptions) -> TableRecord:
    before = held or TableRecord(fields=())
    file_format = wanted.file_format or before.file_format
    if file_format not in get_args(FileFormat):
        raise UsageError(
            f"{file_format!r} is not a format of tables.", next=f"Use one of {', '.join(get_args(FileFormat))}."
        )
    options = before.options if wanted.options is None and file_format == before.file_format else wanted.options
    given = {name.lower() for name in options or {}}
    safe = {name: value for name, value in SAFE_OPTIONS.get(file_format, {}).items() if name.lower() not in given}
    options = {**safe, **(options or {})}
    return TableRecord(
        fields=tuple(_plain(field) for field in fields),
        partition_by=before.partition_by if wanted.partition_by is None else wanted.partition_by,
        file_format=cast("FileFormat", file_format),
        options=_options(options or {}),
        statistics=wanted.statistics if wanted.statistics is not None or held is None else _still(held, fields),
        schema_default=before.schema_default,
    )


def _still(held: TableRecord, fields: Sequence[Field]) -> tuple[str, ...] | None:
    names = {field["name"] for field in fields}
    return None if held.statistics is None else tuple(name for name in held.statistics if name in names)


OWN_OPTIONS = (
    "path",
    "mergeschema",
    "recursivefilelookup",
    "basepath",
    "partitionoverwritemode",
    "timezone",
    "extension",
    "pathglobfilter",
    "modifiedbefore",
    "modifiedafter",
)
"""Options that decide which files are read or what their places mean, which are not the caller's to choose."""


def _options(options: Mapping[str, object]) -> dict[str, str]:
    refused = [name for name in options if name.lower() in OWN_OPTIONS]
    if refused:
        raise UsageError(f"Option {refused[0]!r} cannot be set on a table; strandline sets it.", next="Leave it out.")
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}


def _refuse_other_layout(held: TableRecord, wanted: WriteOptions, path: str) -> None:
    advice = 'Leave it out, or rewrite the table with mode="overwrite", schema="replace".'
    if wanted.partition_by is not None and wanted.partition_by != held.partition_by:
        raise UsageError(
            f"Table {path!r} is partitioned by {list(held.partition_by)}, not by {list(wanted.partition_by)}.",
            next=advice,
        )
    if wanted.file_format is not None and wanted.file_format != held.file_format:
        raise UsageError(f"Table {path!r} is {held.file_format}, not {wanted.file_format}.", next=advice)
    if wanted.options is not None and not _options(wanted.options).items() <= held.options.items():
        raise UsageError(f"Table {path!r} has the options {held.options}.", next=advice)


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


def _refuse_bad_places(record: TableRecord, mode: str) -> None:
    missing = [name for name in record.partition_by if name not in record.names]
    if missing:
        raise UsageError(f"The data has no column {missing[0]!r} to partition by.", next="Check partition_by.")
    for field in record.fields:
        refuse_unheld(field, record.file_format, is_partition=field["name"] in record.partition_by)
    if record.partition_by and len(record.partition_by) == len(record.names):
        raise UsageError("A table needs a column besides its partition columns.")
    if mode == "overwrite_partitions" and not record.partition_by:
        raise UsageError("The table has no partitions to overwrite.", next='Use mode="overwrite".')


def _differences(name: str, before: Any, after: Any) -> str:
    """Where two types differ, in the words of SQL; of a struct, only the fields that do."""
    if isinstance(before, dict) and isinstance(after, dict) and before["type"] == after["type"] == "struct":
        old, new = ({field["name"]: field["type"] for field in kind["fields"]} for kind in (before, after))
        parts = [f"{name}.{field} is missing" for field in old if field not in new]
        parts += [f"{name}.{field} is not in the table" for field in new if field not in old]
        parts += [
            _differences(f"{name}.{field}", old[field], new[field])
            for field in old
            if field in new and not same_type(old[field], new[field])
        ]
        return ", ".join(parts) or f"the fields of {name} have another order"
    return f"{name} is {type_name(before)}, not {type_name(after)}"


def _evolve(held: TableRecord, fields: Sequence[Field], change: SchemaChange | None, path: str) -> TableRecord:
    before = {field["name"]: field for field in held.fields}
    after = {field["name"]: _plain(field) for field in fields}
    added = [name for name in after if name not in before]
    gone = [name for name in before if name not in after]
    held_names = {name.lower(): name for name in before}
    cased = [(name, held_names[name.lower()]) for name in added if name.lower() in held_names]
    if cased:
        differing = ", ".join(f"{name} differs from {held_name} only in case" for name, held_name in cased)
        raise SchemaMismatch(
            f"The columns are not those of table {path!r}: {differing}.", next="Rename the columns of the data."
        )
    widened: dict[str, Field] = {}
    other: list[str] = []
    for name in after:
        if name in before and after[name]["type"] == "void":
            continue  # nothing but nulls
        if name not in before or same_type(after[name]["type"], before[name]["type"]):
            continue
        if is_widening(after[name]["type"], before[name]["type"]):
            continue  # the data is cast on its way
        kinds = before[name]["type"], after[name]["type"]
        # as text a float would read as another double than its statistics say
        rounds = kinds == ("float", "double") and held.file_format in ("csv", "json")
        if is_widening(*kinds) and name not in held.partition_by and not rounds:
            widened[name] = after[name]
        else:
            other.append(name)
    if other:
        told = "; ".join(_differences(name, before[name]["type"], after[name]["type"]) for name in other)
        raise SchemaMismatch(f"Table {path!r} has other column types: {told}.", next="Cast the columns of the data.")
    if (added or gone or widened) and change != "merge":
        wider = [
            f"{name} would be {type_name(field['type'])} instead of {type_name(before[name]['type'])}"
            for name, field in widened.items()
        ]
        told = "; ".join(
            part
            for part in (
                added and f"the data has more columns: {', '.join(added)}",
                gone and f"the data lacks columns: {', '.join(gone)}",
                wider and f"the data has wider types: {', '.join(wider)}",
            )
            if part
        )
        raise SchemaMismatch(
            f"The columns are not those of table {path!r}: {told}.",
            next='Select and cast to the table\'s columns, or pass schema="merge" to add new ones, widen types, and '
            "leave missing ones null.",
        )
    kept = (widened.get(field["name"], field) for field in held.fields)
    return replace(held, fields=(*kept, *(after[name] for name in added)))
