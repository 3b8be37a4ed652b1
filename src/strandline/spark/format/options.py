"""What the options of the format name: a place, columns, and how to write."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql.types import StructType

import strandline
from strandline.errors import UsageError
from strandline.lake import Lake
from strandline.places import Place, place_on_a_ref
from strandline.spark.read import struct_of
from strandline.tables.record import SchemaChange, TableRecord, WriteMode, WriteOptions
from strandline.tables.table import Table

ADVICE = 'Write .load("repository/ref/path/of/table").'
PLACES = ("lake", "path", "repo", "ref")
READING = (*PLACES, "where", "columns")
FOLLOWING = (*PLACES, "start", "removals")
WRITING = (
    *PLACES,
    *("message", "writer", "token", "partition_by", "compression", "statistics", "target_file_bytes"),
    *("mergeSchema", "overwriteSchema", "partitionOverwriteMode"),
)
YES = {"true": True, "false": False, "": False}


def refuse_unknown(options: Mapping[str, str], known: Sequence[str]) -> None:
    """Refuse an option that nothing reads: it may be a misspelled one.

    Raises:
        UsageError: there is one.
    """
    names = {name.lower() for name in known}
    unknown = [name for name in options if name.lower() not in names]
    if unknown:
        raise UsageError(
            f"{unknown[0]!r} is not an option here.", safe="Nothing was done.", next=f"Options are {', '.join(known)}."
        )


def place_of(options: Mapping[str, str]) -> Place:
    """The place of a table.

    Raises:
        UsageError: the options name none.
    """
    if not options:
        raise UsageError(
            "No table is named. Spark gives a table of its own catalog none of the options that it was created with "
            "(seen in 4.1 to 4.3).",
            next=f"{ADVICE} In SQL make a view: CREATE TEMPORARY VIEW … USING strandline OPTIONS (path '…'); INSERT "
            "INTO writes to it.",
        )
    path = options.get("path") or ""
    if options.get("repo") or options.get("ref"):
        path = f"{options.get('repo') or ''}/{options.get('ref') or ''}/{path}"
    place = place_on_a_ref(path, ADVICE)
    if not place.path:
        raise UsageError(f"{path!r} names no table.", next=ADVICE)
    return place


def opened(options: Mapping[str, str]) -> tuple[Lake, Table]:
    """The lake, which the caller closes, and the table that the options name."""
    place = place_of(options)
    lake = strandline.open(options.get("lake"))
    try:
        return lake, lake.repository(place.repository).ref(place.ref).table(place.path)
    except BaseException:
        lake.close()
        raise


def listed(options: Mapping[str, str], name: str) -> Sequence[str] | None:
    """Names with commas between them, or a JSON list; None if the option is not there."""
    text = (options.get(name) or "").strip()
    if not text:
        return None
    try:
        names = json.loads(text) if text.startswith("[") else [one.strip() for one in text.split(",")]
    except ValueError:
        names = None
    if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
        raise UsageError(f"{text!r} is not a list of columns.", next='Write "a, b", or ["a", "b"].')
    return names


def chosen(schema: StructType, names: Sequence[str] | None, table: Table) -> StructType:
    """The columns of a schema that names ask for; all for None."""
    if names is None:
        return schema
    unknown = [name for name in names if name not in schema.names]
    if unknown or not names:
        raise UsageError(
            f"Table {table.path!r} has no column {unknown[0]!r}." if unknown else "No column is asked for.",
            next=f"It has {', '.join(schema.names)}.",
        )
    return StructType([schema[name] for name in names])


def refuse_other_types(record: TableRecord, schema: StructType, table: Table) -> None:
    """Refuse to read columns as other types than the table has.

    Raises:
        UsageError: a column is not there, or of another type.
    """
    for field in chosen(struct_of(record), schema.names, table).fields:
        if field.dataType != schema[field.name].dataType:
            raise UsageError(
                f"Column {field.name!r} of table {table.path!r} is {field.dataType.simpleString()}, not "
                f"{schema[field.name].dataType.simpleString()}.",
                next="Leave the schema out, or give the table's own types; cast after reading.",
            )


@dataclass(frozen=True)
class Job:
    """What the options say of a write."""

    writer: str | None
    message: str
    token: str
    write: WriteOptions


def job_of(options: Mapping[str, str], *, overwrite: bool) -> Job:
    """The write that options ask for.

    Args:
        overwrite: whether Spark's mode is "overwrite"; else it is "append".

    Raises:
        UsageError: an option is unknown, or has a value that it cannot have.
    """
    refuse_unknown(options, WRITING)
    mode: WriteMode = "overwrite" if overwrite else "append"
    partitions = (options.get("partitionOverwriteMode") or "static").lower()
    if partitions not in ("static", "dynamic"):
        raise UsageError(f"partitionOverwriteMode {partitions!r} is unknown.", next="Use static or dynamic.")
    if overwrite and partitions == "dynamic":
        mode = "overwrite_partitions"
    change: SchemaChange | None = None
    if _is_set(options, "overwriteSchema"):
        change = "replace"
    elif _is_set(options, "mergeSchema"):
        change = "merge"
    size = options.get("target_file_bytes")
    if size and not size.isdecimal():
        raise UsageError(f"target_file_bytes {size!r} is not a number of bytes.", next="For example 134217728.")
    if options.get("token") and not options.get("writer"):
        raise UsageError(
            "A token is recognised under the name of its writer, and no writer is given.",
            next='Give .option("writer", "…"), the same each time the job runs.',
        )
    compression = options.get("compression")
    columns, statistics = listed(options, "partition_by"), listed(options, "statistics")
    return Job(
        writer=options.get("writer") or None,
        message=options.get("message") or f"Write {place_of(options).path} by Spark",
        token=options.get("token") or "",
        write=WriteOptions(
            mode=mode,
            schema=change,
            partition_by=None if columns is None else tuple(columns),
            statistics=None if statistics is None else tuple(statistics),
            options={"compression": compression} if compression else None,
            target_file_bytes=int(size) if size else None,
        ),
    )


def _is_set(options: Mapping[str, str], name: str) -> bool:
    text = (options.get(name) or "").lower()
    if text not in YES:
        raise UsageError(f"{name} {text!r} is neither true nor false.", next="Write true or false.")
    return YES[text]
