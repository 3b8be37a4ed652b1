"""Rows of a table deleted, updated and merged where Spark judges and joins; see `tables.changing`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from strandline.errors import UsageError
from strandline.spark.write import write_table
from strandline.tables.changing import check_source
from strandline.tables.given import is_spark_column
from strandline.tables.outcomes import RowsChanged
from strandline.tables.record import Matched, NotMatched, WriteOptions
from strandline.tables.table import Table

_REPLACE = WriteOptions(mode="overwrite", fits=False)


def change_rows(what: str, *rest: Any) -> RowsChanged:
    """Delete, update or merge rows: what a call on a table was given, in its order."""
    changes: dict[str, Callable[..., RowsChanged]] = {"delete": _delete, "update": _update, "merge": _merge}
    return changes[what](*rest)


def _session(where: Any) -> SparkSession:
    if not is_spark_column(where):
        return where.sparkSession  # type: ignore[no-any-return]
    found = SparkSession.getActiveSession()
    if found is None:
        raise UsageError("No Spark session is active here.", next="Write the condition as a text, or start a session.")
    return found


def _delete(table: Table, where: Any) -> RowsChanged:
    spark = _session(where)
    rows = table.to_spark(spark, where)
    count = rows.count()
    if not count:
        return RowsChanged()
    nothing = spark.createDataFrame([], table.to_spark(spark).schema)
    done = write_table(table, nothing, replace(_REPLACE, where=where))
    return RowsChanged(deleted=count, files=done.files)


def _update(table: Table, where: Any, assignments: Mapping[str, Any]) -> RowsChanged:
    rows = table.to_spark(_session(where), where)
    count = rows.count()
    if not count:
        return RowsChanged()
    kinds = {field.name: field.dataType for field in rows.schema.fields}
    made = {name: _assigned(value, rows).cast(kinds[name]) for name, value in assignments.items()}
    done = write_table(table, rows.withColumns(made), replace(_REPLACE, where=where))
    return RowsChanged(updated=count, files=done.files)


def _assigned(value: Any, rows: DataFrame) -> Column:
    made = value(rows) if callable(value) and not is_spark_column(value) else value
    return made if is_spark_column(made) else F.lit(made)


def _merge(
    table: Table, source: DataFrame, on: Sequence[str], matched: Matched | Sequence[str], not_matched: NotMatched
) -> RowsChanged:
    spark, names = source.sparkSession, table.record.names
    updated = () if isinstance(matched, str) else tuple(matched)
    check_source(table, source.columns, (*on, *updated))
    kinds = {field.name: field.dataType for field in table.to_spark(spark).schema.fields}
    source = source.select(*(F.col(_escaped(name)).cast(kinds[name]).alias(name) for name in source.columns))
    has_key = F.lit(True)
    for name in on:
        has_key = has_key & F.col(_escaped(name)).isNotNull()
    keyed = source.where(has_key)
    if keyed.groupBy(*map(_escaped, on)).count().where("count > 1").limit(1).count():
        raise UsageError(
            f"Several rows of the source have the same {', '.join(on)}: it is not said which one counts.",
            next="Keep one row for each key.",
        )
    keys = keyed.select(*map(_escaped, on))
    target = table.to_spark(spark, keys)
    pairs = target.alias("t").join(keyed.alias("s"), list(on), "inner")
    hits = pairs.count()
    others = source.join(target.select(*map(_escaped, on)), list(on), "left_anti") if not_matched == "insert" else None
    inserted = 0 if others is None else others.count()
    fresh = None if others is None else _completed(others, names, kinds)
    files = 0
    if matched == "keep":
        files += write_table(table, fresh, WriteOptions()).files if fresh is not None and inserted else 0
        return RowsChanged(inserted=inserted, files=files)
    theirs = set(source.columns) if matched == "update" else set(updated)
    sides = {name: "" if name in on else "s." if name in theirs else "t." for name in names}
    changed = pairs.select(*(F.col(f"{side}{_escaped(name)}").alias(name) for name, side in sides.items()))
    if matched == "delete":
        changed = changed.limit(0)
    with_key = changed if fresh is None else changed.unionByName(fresh.where(has_key))
    if hits or inserted:
        files += write_table(table, with_key, replace(_REPLACE, where=keys, fits=True)).files
    if fresh is not None and fresh.where(~has_key).limit(1).count():
        files += write_table(table, fresh.where(~has_key), WriteOptions()).files
    if matched == "delete":
        return RowsChanged(deleted=hits, inserted=inserted, files=files)
    return RowsChanged(updated=hits, inserted=inserted, files=files)


def _completed(rows: DataFrame, names: Sequence[str], kinds: Mapping[str, Any]) -> DataFrame:
    """Rows with nulls for the columns that they lack."""
    return rows.select(
        *(
            F.col(_escaped(name)) if name in rows.columns else F.lit(None).cast(kinds[name]).alias(name)
            for name in names
        )
    )


def _escaped(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
