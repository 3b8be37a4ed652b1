"""Spark columns and frames of keys as conditions of reads and writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars
import pyarrow as pa
import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from strandline.errors import StorageError, UsageError
from strandline.repository.branch import Branch
from strandline.tables.table import Table

pytestmark = pytest.mark.spark
ROWS = 60


def rows(spark: SparkSession) -> DataFrame:
    return spark.range(ROWS).selectExpr("id", "cast(id % 4 as int) AS month", "concat('t', id % 3) AS `a.b c`")


def ids(table: Table, spark: SparkSession) -> list[int]:
    return sorted(row["id"] for row in table.to_spark(spark).collect())


@pytest.fixture
def table(main: Branch, spark: SparkSession) -> Table:
    made = main.table("t")
    made.write(rows(spark).coalesce(1), partition_by="month")
    main.commit("made")
    return made


@pytest.mark.parametrize("form", ["spark", "arrow", "polars"])
def test_spark_reads_by_a_frame_of_keys(table: Table, spark: SparkSession, form: str) -> None:
    keys = pa.table({"month": pa.array([1, 1, 2], pa.int64()), "a.b c": ["t1", "t1", "t0"]})
    forms: dict[str, Any] = {
        "spark": lambda: spark.createDataFrame(keys),
        "arrow": lambda: keys,
        "polars": lambda: polars.from_arrow(keys),
    }
    given = forms[form]()
    found = table.to_spark(spark, where=given)
    assert found.columns == ["id", "month", "a.b c"]
    expected = [n for n in range(ROWS) if (n % 4, n % 3) in ((1, 1), (2, 0))]
    assert sorted(row["id"] for row in found.collect()) == expected
    assert {path.split("month=")[1][0] for path in found.inputFiles()} == {"1", "2"}
    assert sorted(table.to_arrow(where=given).column("id").to_pylist()) == expected


def test_spark_puts_rows_in_place_of_those_with_the_same_keys(table: Table, spark: SparkSession) -> None:
    fresh = rows(spark).where("id in (3, 7)").union(spark.createDataFrame([(100, 3, "t9")], "id LONG, m INT, t STRING"))
    table.write(fresh, mode="overwrite", where=fresh.select("month", "id"))
    assert ids(table, spark) == [*range(ROWS), 100]
    table.ref.commit("upsert")  # type: ignore[attr-defined]
    change = next(iter(table.history()))
    assert (change.operation, change.inserted_rows, change.deleted_rows) == (
        "overwrite where month, id among 3 keys",
        3,
        2,
    )
    assert change.removed_files == 1  # only of the partition that has all of them


def test_keys_are_computed_once(table: Table, spark: SparkSession) -> None:
    """Keys by chance: what is replaced is what the rows were compared with."""
    chance = spark.range(ROWS).where("rand() < 0.5").select("id")
    table.write(rows(spark).limit(0), mode="overwrite", where=chance)
    left = ids(table, spark)
    assert 0 < len(left) < ROWS
    table.ref.commit("half")  # type: ignore[attr-defined]
    change = next(iter(table.history()))
    assert change.deleted_rows == ROWS - len(left)


COLUMNS: dict[str, tuple[Callable[[], Column], Any]] = {
    "one column": (lambda: F.col("id") >= 10, range(10)),
    "two columns": (
        lambda: (F.col("month") == 1) & (F.col("id") > 30),
        [n for n in range(ROWS) if not (n % 4 == 1 and n > 30)],
    ),
    # which only Spark understands
    "a function": (lambda: F.upper("`a.b c`") == "T1", [n for n in range(ROWS) if n % 3 != 1]),
}


@pytest.mark.parametrize("what", COLUMNS)
def test_rows_are_replaced_by_a_spark_column(table: Table, spark: SparkSession, what: str) -> None:
    make, kept = COLUMNS[what]
    fresh = rows(spark).where(make()).limit(1)
    table.write(fresh, mode="overwrite", where=make())
    assert ids(table, spark) == sorted([*kept, *(row["id"] for row in fresh.collect())])


def test_a_row_outside_of_a_condition_is_refused(table: Table, spark: SparkSession) -> None:
    with pytest.raises(UsageError, match="does not fulfil"):
        table.write(rows(spark), mode="overwrite", where=F.col("id") < 10)
    with pytest.raises(UsageError, match="does not fulfil 'id among 1 keys'"):
        table.write(rows(spark), mode="overwrite", where=spark.range(1))
    assert ids(table, spark) == list(range(ROWS))


def test_bad_conditions_are_refused(table: Table, spark: SparkSession) -> None:
    data = rows(spark)
    with pytest.raises(UsageError, match="another value each time"):
        table.write(data, mode="overwrite", where=F.rand() < 0.5)
    with pytest.raises(UsageError, match="does not fit the table"):
        table.write(data, mode="overwrite", where=F.col("nope") == 1)
    with pytest.raises(UsageError, match="rows of Spark"):
        table.write(data.toArrow(), mode="overwrite", where=F.col("id") < 10)
    with pytest.raises(UsageError, match="column 'nope'"):
        table.write(data, mode="overwrite", where=spark.range(1).withColumnRenamed("id", "nope"))
    with pytest.raises(UsageError, match="a text, or a frame of keys"):
        table.to_arrow(where=F.col("id") < 10)
    with pytest.raises(UsageError, match="cannot be written from"):
        table.write(F.col("id"))
    with pytest.raises(StorageError, match="compute the keys"):
        table.to_spark(spark, where=spark.range(1).select(F.raise_error(F.lit("no")).alias("id")))
    assert ids(table, spark) == list(range(ROWS))
