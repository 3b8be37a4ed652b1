"""Spark columns and frames of keys as conditions of reads and writes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import polars
import pyarrow as pa
import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from strandline.errors import StorageError, UsageError
from strandline.repository.branch import Branch
from strandline.tables.table import Table

pytestmark = [pytest.mark.spark, pytest.mark.everywhere, pytest.mark.sessions]
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


ZONE = "spark.sql.session.timeZone"


def test_a_moment_without_a_zone_is_a_key_in_every_session(main: Branch, spark: SparkSession) -> None:
    """In the night in which a clock of Berlin goes from 2 to 3, and in the one in which it goes back."""
    moments = [datetime(2024, 3, 31, 2, 30), datetime(2024, 3, 31, 3, 30), datetime(2024, 10, 27, 2, 30)]
    rows = pa.table({"id": [0, 1, 2], "at": pa.array(moments, pa.timestamp("us"))})
    table = main.table("moments")
    table.write(rows)
    spark.conf.set(ZONE, "Europe/Berlin")
    try:
        for number in range(3):
            keys = rows.slice(number, 1).select(["at"])
            for given in (keys, spark.createDataFrame(keys, "at timestamp_ntz")):
                assert [row["id"] for row in table.to_spark(spark, where=given).collect()] == [number]
        table.write(table.to_spark(spark).limit(0), mode="overwrite", where=rows.slice(1, 1).select(["at"]))
        assert sorted(table.to_arrow().column("id").to_pylist()) == [0, 2]
    finally:
        spark.conf.unset(ZONE)


def test_columns_of_keys_are_looked_at_before_they_are_computed(table: Table, spark: SparkSession) -> None:
    keys = spark.range(1).select("id", F.raise_error(F.lit("computed")).alias("more"))
    with pytest.raises(UsageError, match="column 'more'"):
        table.to_arrow(where=keys)


def test_a_column_that_is_called_like_the_mark_of_a_key(main: Branch, spark: SparkSession) -> None:
    table = main.table("odd")
    table.write(spark.range(4).selectExpr("id", "id AS `IS among the keys`"))
    table.write(spark.range(1, 2).selectExpr("id", "9 AS `IS among the keys`"), mode="overwrite", where=spark.range(2))
    assert sorted(row["id"] for row in table.to_spark(spark).collect()) == [1, 2, 3]


def test_a_value_that_stands_for_null_in_csv_is_refused(main: Branch, spark: SparkSession) -> None:
    with pytest.raises(UsageError, match="the value 2 in column"):
        main.table("csv").write(spark.range(4), file_format="csv", options={"nullValue": "2"})
    main.table("csv").write(spark.range(4), file_format="csv", options={"nullValue": "-999"})
    assert main.table("csv").count() == 4


def test_what_is_no_condition_is_refused_in_plain_words(table: Table, spark: SparkSession) -> None:
    data = rows(spark)
    with pytest.raises(UsageError, match=r"functions\.col"):
        table.write(data.limit(0), mode="overwrite", where=data["id"] == 1)
    with pytest.raises(UsageError, match=r"functions\.col"):
        table.to_spark(spark, where=data["id"] == 1)
    with pytest.raises(UsageError, match="of type bigint, not true or false"):
        table.write(data.limit(0), mode="overwrite", where="id")
    with pytest.raises(UsageError, match="takes a Spark session first"):
        table.to_spark("id < 10")  # type: ignore[arg-type]
    stream = spark.readStream.format("rate").load()
    with pytest.raises(UsageError, match="foreachBatch"):
        table.write(stream)


def test_an_error_of_the_jobs_own_code_is_shown(table: Table, spark: SparkSession) -> None:
    fails = F.udf(lambda number: number // 0, "bigint")
    with pytest.raises(StorageError, match="own Python code raised ZeroDivisionError"):
        table.write(rows(spark).withColumn("id", fails("id")))


def test_a_text_that_names_no_folder_is_shown(main: Branch, spark: SparkSession) -> None:
    for text in ("", "__HIVE_DEFAULT_PARTITION__"):
        with pytest.raises(UsageError, match=f"the text '{text}' in column p"):
            main.table("p").write(spark.createDataFrame([(1, text)], "id INT, p STRING"), partition_by="p")
