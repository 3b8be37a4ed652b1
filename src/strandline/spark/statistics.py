"""Statistics of files that have none in a footer: Spark reads them once more, all columns in one pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from strandline.spark.read import metadata_path, quoted, scan_files
from strandline.tables.columns import Kind
from strandline.tables.record import TableRecord
from strandline.tables.scan import TableFile
from strandline.tables.statistics import TEXT_MAX_CHARS, Statistics, as_json
from strandline.tables.table import Table
from strandline.tables.values import partition_value


def computed_statistics(
    spark: SparkSession, table: Table, record: TableRecord, files: Sequence[TableFile], columns: Mapping[str, Kind]
) -> dict[str, Statistics]:
    """Statistics by physical address."""
    if not columns or not files:
        return {}
    # without partition columns all files are read by their own paths, whose names come back in the metadata
    stored = TableRecord(fields=record.stored, file_format=record.file_format, options=record.options)
    frame = scan_files(spark, table, stored, files)
    wanted: list[Column] = [F.count("*").alias("rows")]
    for at, (name, kind) in enumerate(columns.items()):
        value = _comparable(quoted(name), kind)
        ends = [F.min(value), F.max(value)]
        if kind in ("date", "timestamp_ntz"):  # as text, since Python has no dates after the year 9999
            ends = [end.cast("string") for end in ends]
        wanted += [ends[0].alias(f"low{at}"), ends[1].alias(f"high{at}")]
        wanted.append(F.count_if(quoted(name).isNull()).alias(f"nulls{at}"))
    found = {
        row["file"]: row for row in frame.groupBy(F.col("_metadata.file_path").alias("file")).agg(*wanted).collect()
    }
    made = {}
    for file in files:
        row = found.get(metadata_path(table.ref._core, file))
        if row is None:  # an empty file, or one whose path is spelled otherwise: nothing is known
            continue
        spans = {
            name: (
                None if row[f"low{at}"] is None else _stored(row[f"low{at}"], kind, is_high=False),
                None if row[f"high{at}"] is None else _stored(row[f"high{at}"], kind, is_high=True),
                row[f"nulls{at}"],
            )
            for at, (name, kind) in enumerate(columns.items())
        }
        made[file.info.physical_address] = Statistics(row["rows"], spans)
    return made


def _comparable(column: Column, kind: Kind) -> Column:
    if kind == "string":
        return F.substring(column, 1, TEXT_MAX_CHARS + 1)
    if kind == "timestamp":
        return F.unix_micros(column)  # a number, which no time zone changes on its way to Python
    return column


def _stored(value: object, kind: Kind, *, is_high: bool) -> object:
    if kind == "timestamp":
        return value
    if kind in ("date", "timestamp_ntz"):
        known = partition_value(str(value), kind)
        return known.isoformat() if kind == "date" and known is not None else known
    return as_json(value, kind, is_high=is_high)
