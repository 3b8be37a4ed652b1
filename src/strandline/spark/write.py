"""Writing a table with Spark, which writes natively; the plan is that of `tables.writing`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import Thread
from typing import Any

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, NullType

from strandline.errors import StorageError, StrandlineError, UsageError
from strandline.spark.guard import END, guarded, unfit_of
from strandline.spark.read import (
    TIME_ZONE,
    condition_of,
    keys_frame,
    no_filesystem,
    quoted,
    scan_files,
    struct_of,
    unfit_condition,
)
from strandline.spark.session import described, held_settings, reason_of
from strandline.spark.statistics import computed_statistics
from strandline.tables.columns import Kind
from strandline.tables.condition import Condition, NotUnderstood, refused
from strandline.tables.keys import Among, told
from strandline.tables.outcomes import WriteResult
from strandline.tables.record import Field, TableRecord, WriteOptions
from strandline.tables.scan import TableFile
from strandline.tables.statistics import Statistics
from strandline.tables.table import Table
from strandline.tables.writing import Written, outside, write_rows

TIMESTAMPS = {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}
"""Spark's default, INT96, has no statistics and is deprecated."""
ADVISORY_BYTES = "spark.sql.adaptive.advisoryPartitionSizeInBytes"
COUNT_PATIENCE_S = 5.0
AMONG = "is among the keys"
UNFULFILLED = "strandline: a row does not fulfil: "


def write_table(table: Table, data: DataFrame, options: WriteOptions) -> WriteResult:
    """Let Spark write a frame; see `Table.write`."""
    if data.isStreaming:
        raise UsageError(
            "A stream has no end at which its rows could appear.",
            next="Write its batches: data.writeStream.foreachBatch(…), with a transaction and a token for each.",
        )
    return write_rows(table, SparkRows(data), options)


class SparkRows:
    """A Spark frame as the source of a write."""

    engine = "Spark"

    def __init__(self, data: DataFrame, counted: Observation | None = None) -> None:
        self._data = data
        self._counted = counted

    @property
    def fields(self) -> Sequence[Field]:
        found: list[Field] = self._data.schema.jsonValue()["fields"]
        return found

    @property
    def zone(self) -> str:
        return self._data.sparkSession.conf.get("spark.sql.session.timeZone") or TIME_ZONE

    def fitted(self, record: TableRecord) -> SparkRows:
        data = self._data
        schema = struct_of(record)
        held = {field.name: field.dataType for field in data.schema.fields}
        if list(held) == list(record.names) and all(
            held[field.name].simpleString() == field.dataType.simpleString() for field in schema.fields
        ):
            return self
        return SparkRows(
            data.select(
                *(
                    (quoted(field.name) if field.name in held else F.lit(None)).cast(field.dataType).alias(field.name)
                    for field in schema.fields
                )
            )
        )

    def condition(self, record: TableRecord, column: Column) -> Condition:
        from strandline.tables.condition_text import refuse_changing_column  # noqa: PLC0415 - loads a SQL parser

        refuse_changing_column(str(column), record)
        found = condition_of(self._data.sparkSession, record, column)
        return NotUnderstood(str(column)) if found is None else found

    def replacing(
        self,
        table: Table,
        record: TableRecord,
        where: Any,
        condition: Condition,
        partly: Sequence[TableFile],
        *,
        fits: bool = True,
    ) -> SparkRows:
        outside = F.raise_error(F.lit(UNFULFILLED + told(where, condition) + END)).cast("boolean")
        names = [quoted(name) for name in record.names]
        try:
            counted = Observation()
            own = self._data.observe(counted, F.count(F.lit(1)).alias("rows"))
            data = own
            if fits:
                data, is_true = _judged(own, record, where, condition)
                data = data.where(F.when(is_true, F.lit(True)).otherwise(outside))
            rows = data.select(*names)
            if partly:
                held = scan_files(data.sparkSession, table, record, partly)
                held, is_true = _judged(held, record, where, condition)
                rows = rows.unionByName(held.where(~is_true).select(*names))
            rows.isStreaming  # noqa: B018 - on Spark Connect nobody has looked at the condition yet
        except StrandlineError:
            raise
        except Exception as error:
            raise unfit_condition(told(where, condition), record, error) from error
        return SparkRows(rows, counted)

    def own_rows(self) -> int | None:
        found: list[int] = []
        if (counted := self._counted) is not None:
            # Spark's listeners may have lost the event: then nobody would ever answer
            asking = Thread(target=lambda: found.append(counted.get["rows"]), daemon=True)
            asking.start()
            asking.join(COUNT_PATIENCE_S)
        return found[0] if found else None

    def write(
        self, table: Table, record: TableRecord, new_folder: Callable[[], str], target_file_bytes: int | None
    ) -> Written:
        branch = table.ref._for_writing()
        prefix = new_folder()
        core = branch._core
        url = core.resolver.namespace.spark_url(prefix)
        with described(self._data.sparkSession, f"strandline: write {table.path} on {core.name}/{branch.name}"):
            _let_spark_write(guarded(self._data, record), record, url, table, target_file_bytes)
        return Written(prefix)

    def statistics(
        self, table: Table, record: TableRecord, files: Sequence[TableFile], columns: Mapping[str, Kind]
    ) -> dict[str, Statistics]:
        return computed_statistics(self._data.sparkSession, table, record, files, columns)


def _judged(frame: DataFrame, record: TableRecord, where: Any, condition: Condition) -> tuple[DataFrame, Column]:
    """A frame, and whether its rows fulfil a condition; of keys the frame has a column more, which says it."""
    if isinstance(condition, Among):
        flag = max([AMONG, *(f"{name.lower()} " for name in frame.columns if name.lower().startswith(AMONG))])
        keys = keys_frame(frame.sparkSession, record, condition).withColumn(flag, F.lit(True))
        return frame.join(keys, condition.keys.column_names, "left"), F.coalesce(quoted(flag), F.lit(False))
    column = F.expr(where) if isinstance(where, str) else where
    if not isinstance(kind := frame.select(column).schema.fields[0].dataType, BooleanType | NullType):
        raise refused(told(where, condition), record, f"it is of type {kind.simpleString()}, not true or false")
    return frame, F.coalesce(column, F.lit(False))


def _let_spark_write(
    data: DataFrame, record: TableRecord, url: str, table: Table, target_file_bytes: int | None
) -> None:
    settings = dict(TIMESTAMPS)
    if target_file_bytes is not None:
        settings[ADVISORY_BYTES] = str(target_file_bytes)
        columns: list[Column] = [quoted(name) for name in record.partition_by]
        data = data.hint("rebalance", *columns)
    # static: a session with dynamic partition overwrite breaks the committers of object stores
    writer = data.write.format(record.file_format).mode("error").options(**record.options)
    writer = writer.option("partitionOverwriteMode", "static").option("timeZone", TIME_ZONE)
    if record.partition_by:
        writer = writer.partitionBy(*record.partition_by)
    try:
        with held_settings(data.sparkSession, settings):
            writer.save(url)
    except Exception as error:
        if "FileSystem not found" in str(error) or "No FileSystem for scheme" in str(error):
            raise no_filesystem(table.ref._core) from error
        if (unfit := unfit_of(error)) is not None:
            raise unfit from error
        if UNFULFILLED in str(error):
            raise outside(str(error).partition(UNFULFILLED)[2].partition(END)[0]) from error
        raise StorageError(
            f"Spark failed to write table {table.path!r}: {reason_of(error)}.",
            safe="Nothing of it is visible on the branch.",
            next=_advice(str(error)),
        ) from error


def _advice(text: str) -> str:
    if (
        "AVRO_NOT_LOADED_SQL_FUNCTIONS_UNUSABLE" in text
        or "spark-avro" in text
        or "Failed to find data source: avro" in text
    ):
        return "Avro is not part of PySpark: start the session with the package org.apache.spark:spark-avro_2.13."
    return "Mend the job, then write again."
