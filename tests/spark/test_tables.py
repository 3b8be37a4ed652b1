"""Tables on Spark: each finding of the design's section on tables that concerns Parquet on local files."""

from __future__ import annotations

import os
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType

from strandline.errors import (
    BranchProtected,
    Conflict,
    Corrupted,
    MergeConflict,
    SchemaMismatch,
    StorageError,
    TableNotFound,
    UsageError,
)
from strandline.repository.branch import Branch
from strandline.repository.repository import Repository
from strandline.spark.read import LISTING_PARALLELISM
from strandline.tables.record import RECORD_NAME
from tests.conftest import SPARK, names

pytestmark = pytest.mark.spark


@pytest.fixture
def numbers(spark: SparkSession) -> DataFrame:
    """100 rows: id, and the columns month and code, by which it can be partitioned."""
    return spark.range(100).select(
        "id", (F.col("id") % 3).cast("int").alias("month"), F.format_string("%03d", F.col("id") % 5).alias("code")
    )


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.collect())


@pytest.mark.everywhere
def test_a_table_is_written_and_read_back(main: Branch, spark: SparkSession, numbers: DataFrame) -> None:
    table = main.table("tables/numbers")
    done = table.write(numbers)
    assert done.files == len(table.files()) >= 1
    assert done.bytes == sum(file.info.size for file in table.files())
    assert rows(table.to_spark(spark)) == rows(numbers)
    assert [field["name"] for field in table.schema["fields"]] == ["id", "month", "code"]
    main.commit("numbers")
    assert rows(main._other("main@").table("tables/numbers").to_spark(spark)) == rows(numbers)


@pytest.mark.everywhere
def test_a_write_appears_at_one_instant_and_is_staged(main: Branch, spark: SparkSession, numbers: DataFrame) -> None:
    seen: list[list[str]] = []

    def look(*arguments: Any, **options: Any) -> int:
        seen.append(names(main))
        return stage(*arguments, **options)

    stage = main.stage_atomically
    main.stage_atomically = look  # type: ignore[method-assign]
    main.table("t").write(numbers, partition_by="month")
    assert seen == [[]]
    assert len(names(main)) == 4 or len(names(main)) > 3
    assert list(main._other("main@").list()) == []


@pytest.mark.everywhere
def test_what_spark_leaves_but_does_not_belong_to_the_table_is_not_visible(main: Branch, numbers: DataFrame) -> None:
    main.table("t").write(numbers, partition_by=["month"])
    assert all(name.endswith((".parquet", RECORD_NAME)) for name in names(main))
    assert any(info.key.endswith("/_SUCCESS") for info in main._core.resolver.namespace.list())  # it is there


def test_physical_names_keep_the_suffix_and_no_part_begins_with_what_spark_skips(
    main: Branch, numbers: DataFrame
) -> None:
    main.table("t").write(numbers, partition_by=["month"])
    for file in main.table("t").files():
        parts = file.info.physical_address.split("/")
        assert parts[-1].endswith(".parquet")
        assert not any(part.startswith(("_", ".")) or set(part) & set("[]{}*?") for part in parts)
        assert main.branch_id in file.info.physical_address


@pytest.mark.everywhere
def test_an_append_adds_and_an_overwrite_replaces(main: Branch, spark: SparkSession, numbers: DataFrame) -> None:
    table = main.table("t")
    table.write(numbers)
    table.write(numbers, mode="append")
    assert table.to_spark(spark).count() == 200
    main.commit("200")
    table.write(numbers.limit(7), mode="overwrite")
    assert table.to_spark(spark).count() == 7
    assert main._other("main@").table("t").to_spark(spark).count() == 200
    main.commit("7")
    assert main._other("main~1").table("t").to_spark(spark).count() == 200


@pytest.mark.everywhere
def test_an_overwrite_of_partitions_leaves_the_others(main: Branch, spark: SparkSession, numbers: DataFrame) -> None:
    table = main.table("t")
    table.write(numbers, partition_by=["month", "code"])
    before = {file.relative for file in table.files()}
    fresh = numbers.where("month = 1 and code = '002'").withColumn("id", F.col("id") + 1000)
    table.write(fresh, mode="overwrite_partitions")
    kept = {path for path in before if not path.startswith("month=1/code=002/")}
    assert kept == {file.relative for file in table.files()} & before
    found = table.to_spark(spark)
    assert found.count() == 100
    assert found.where("id >= 1000").count() == fresh.count() == found.where("month = 1 and code = '002'").count()


@pytest.mark.everywhere
def test_partition_columns_keep_their_types_and_place(main: Branch, spark: SparkSession) -> None:
    frame = spark.createDataFrame(
        [("010", 1, date(2026, 1, 2), 1.5, True), ("x", 2, date(2026, 1, 3), None, False)],
        "code STRING, n INT, day DATE, v DOUBLE, flag BOOLEAN",
    )
    table = main.table("t")
    table.write(frame, partition_by=["code", "day", "flag"])
    found = table.to_spark(spark)
    assert [(field.name, field.dataType) for field in found.schema] == [
        (field.name, field.dataType) for field in frame.schema
    ]
    assert {row["code"] for row in found.collect()} == {"010", "x"}
    assert found.where("day = date'2026-01-02'").collect()[0]["n"] == 1


@pytest.mark.parametrize(
    "value", ["a/b", "a=b", "50%", "two words", "ünï", "日本", "😀", "[x]{y}*?", "it's", 'say "x"', "#", "+", None]
)
def test_odd_partition_values_come_back_as_they_were(main: Branch, spark: SparkSession, value: str | None) -> None:
    schema = StructType([StructField("p", StringType()), StructField("n", LongType())])
    frame = spark.createDataFrame([(value, 1), ("plain", 2)], schema)
    table = main.table("t")
    table.write(frame, partition_by="p")
    assert {row["n"]: row["p"] for row in table.to_spark(spark).collect()} == {1: value, 2: "plain"}
    assert {file.partition["p"] for file in table.files()} == {value, "plain"}
    # the same through the literal map, as for files whose logical path is another than their physical one
    main.copy("t/", "u/")
    for file in main.table("u").files():
        main.rename("u/" + file.relative, "u/" + file.relative.replace(".parquet", ".x.parquet"))
    assert {row["n"]: row["p"] for row in main.table("u").to_spark(spark).collect()} == {1: value, 2: "plain"}


@pytest.mark.everywhere
def test_partition_values_come_from_the_logical_path(main: Branch, spark: SparkSession, numbers: DataFrame) -> None:
    table = main.table("t")
    table.write(numbers, partition_by=["month"])
    count = numbers.where("month = 1").count()
    main.rename("t/month=1/", "t/month=7/")
    found = main.table("t").to_spark(spark)
    assert found.where("month = 7").count() == count
    assert found.where("month = 1").count() == 0
    assert found.count() == 100
    assert found.schema["month"].dataType.typeName() == "integer"


@pytest.mark.everywhere
def test_a_file_that_is_linked_twice_is_read_twice(main: Branch, spark: SparkSession, numbers: DataFrame) -> None:
    table = main.table("t")
    table.write(numbers.coalesce(1), partition_by=["month"])
    count = numbers.where("month = 0").count()
    for month in (8, 9):
        main.copy("t/month=0/", f"t/month={month}/")
    found = {row["month"]: row["count"] for row in table.to_spark(spark).groupBy("month").count().collect()}
    assert (found[0], found[8], found[9]) == (count, count, count)
    plain = main.table("plain")
    plain.write(numbers.coalesce(1))
    main.copy(plain.files()[0].info.path, "plain/again.parquet")
    assert plain.to_spark(spark).count() == 200


@pytest.mark.everywhere
def test_spark_prunes_partitions_of_its_own_accord(main: Branch, spark: SparkSession, numbers: DataFrame) -> None:
    main.table("t").write(numbers, partition_by=["month", "code"])
    main.rename("t/month=2/", "t/month=5/")
    for month in (1, 5):
        found = main.table("t").to_spark(spark, where=f"month = {month}")
        read = {Path(row["f"]).parts[-3] for row in found.select(F.col("id"), F.input_file_name().alias("f")).collect()}
        assert read == {"month=1"} if month == 1 else {"month=2"}
        if month == 1 and SPARK != "connect":
            plan = found._jdf.queryExecution().executedPlan().toString()
            assert "PartitionFilters: [isnotnull(month" in plan


def test_where_takes_text_and_columns(main: Branch, spark: SparkSession, numbers: DataFrame) -> None:
    main.table("t").write(numbers, partition_by="month")
    assert main.table("t").to_spark(spark, where="month = 1 and id < 10").count() == 3
    assert main.table("t").to_spark(spark, where=F.col("code") == "001").count() == 20


@pytest.mark.everywhere
def test_a_write_that_yields_no_rows_still_makes_a_table(main: Branch, spark: SparkSession, numbers: DataFrame) -> None:
    nothing = numbers.where("id < 0")
    main.table("a").write(nothing)
    main.table("b").write(nothing, partition_by="month")
    for path in "ab":
        found = main.table(path).to_spark(spark)
        assert (found.count(), found.columns) == (0, ["id", "month", "code"])
    table = main.table("c")
    table.write(numbers)
    table.write(nothing, mode="overwrite")
    assert table.to_spark(spark).count() == 0


def test_columns_that_do_not_fit_are_refused_before_spark_writes(
    main: Branch, spark: SparkSession, numbers: DataFrame
) -> None:
    table = main.table("t")
    table.write(numbers, partition_by="month")
    before = names(main)
    blobs = main._core.resolver.namespace
    stored = {info.key for info in blobs.list()}
    for frame, words in (
        (numbers.drop("code"), "lacks columns: code"),
        (numbers.withColumn("new", F.lit(1)), "has more columns: new"),
        (numbers.withColumn("id", F.col("id").cast("string")), "id is long, not string"),
        (numbers.withColumnRenamed("code", "Code"), "Code"),
    ):
        with pytest.raises(SchemaMismatch, match=words):
            table.write(frame)
    for frame, options in (
        (numbers, {"mode": "upsert"}),
        (numbers, {"partition_by": ["code"]}),
        (numbers, {"schema": "replace"}),
        (numbers, {"schema": "guess"}),
        (numbers.select("id", F.col("id").alias("ID"), "month", "code"), {}),
        (numbers.withColumnRenamed("code", "sl_branch"), {}),
    ):
        with pytest.raises(UsageError):
            table.write(frame, **options)
    for options in (
        {"partition_by": ["nope"]},
        {"mode": "overwrite_partitions"},
        {"partition_by": ["id", "month", "code"]},
    ):
        with pytest.raises(UsageError):
            main.table("other").write(numbers, **options)
    assert names(main) == before
    assert {info.key for info in blobs.list()} == stored


def test_a_schema_changes_only_on_request(main: Branch, spark: SparkSession, numbers: DataFrame) -> None:
    table = main.table("t")
    table.write(numbers)
    table.write(numbers.withColumn("new", F.lit(1.5)), schema="merge")
    table.write(numbers.drop("code"), schema="merge")
    found = table.to_spark(spark)
    assert found.columns == ["id", "month", "code", "new"]
    assert found.where("new is null").count() == 200
    assert found.where("code is null").count() == 100
    table.write(numbers.select("id"), mode="overwrite", schema="replace")
    assert table.to_spark(spark).columns == ["id"]


def test_nested_types_and_nullability_fit(main: Branch, spark: SparkSession) -> None:
    frame = spark.sql("select 1 as id, array(1, 2) as xs, map('a', 1) as m, named_struct('x', 1, 'y', 'z') as s")
    table = main.table("t")
    table.write(frame)
    table.write(spark.createDataFrame(frame.collect(), table.to_spark(spark).schema))
    assert table.to_spark(spark).count() == 2


@pytest.mark.everywhere
def test_a_spark_job_that_fails_leaves_nothing_visible(main: Branch, spark: SparkSession, numbers: DataFrame) -> None:
    main.table("t").write(numbers)
    main.commit("t")
    broken = numbers.withColumn("code", F.raise_error(F.lit("planted")).cast("string"))
    with pytest.raises(StorageError, match="Spark failed to write table 't'.*planted"):
        main.table("t").write(broken)
    assert list(main.uncommitted()) == []


def test_two_first_writes_at_once_do_not_mix(main: Branch, repo: Repository, numbers: DataFrame) -> None:
    other = repo.branch("main").table("t")
    stage = main.stage_atomically

    def other_first(*arguments: object, **options: object) -> object:
        main.stage_atomically = stage  # type: ignore[method-assign]
        other.write(numbers.select("id"))
        return stage(*arguments, **options)  # type: ignore[arg-type]

    main.stage_atomically = other_first  # type: ignore[method-assign,assignment]
    with pytest.raises(Conflict, match="somebody else"):
        main.table("t").write(numbers)
    assert [field["name"] for field in main.table("t").schema["fields"]] == ["id"]


def test_what_is_no_table_says_so(main: Branch, repo: Repository, spark: SparkSession, numbers: DataFrame) -> None:
    main.put("file", b"x")
    with pytest.raises(TableNotFound, match="is an object"):
        main.table("file").to_spark(spark)
    with pytest.raises(TableNotFound, match="no table record"):
        main.table("nope").to_spark(spark)
    with pytest.raises(UsageError, match="is an object"):
        main.table("file").write(numbers)
    with pytest.raises(UsageError, match="cannot be written"):
        main._other("main@").table("t").write(numbers)
    with pytest.raises(UsageError):
        main.table("")
    main.put(f"bad/{RECORD_NAME}", b"{}")
    with pytest.raises(Corrupted, match="record of table 'bad'"):
        main.table("bad").to_spark(spark)
    repo.protect("main")
    with pytest.raises(BranchProtected):
        main.table("t").write(numbers)


def test_tables_branch_merge_and_travel_in_time(main: Branch, spark: SparkSession, numbers: DataFrame) -> None:
    main.table("t").write(numbers, partition_by="month")
    main.commit("one")
    work = main.create_branch("work")
    work.table("t").write(numbers.where("month = 0"), mode="overwrite_partitions")
    work.table("t").write(numbers.where("month = 1"))
    work.commit("two")
    main.table("u").write(numbers)
    main.commit("u")
    main.merge(work)
    found = main.table("t").to_spark(spark)
    assert found.count() == 100 + numbers.where("month = 1").count()
    assert {row["month"] for row in found.select("month").distinct().collect()} == {0, 1, 2}
    assert main._other("main~1").table("t").to_spark(spark).count() == 100


def test_branches_that_replaced_the_same_partition_conflict(
    main: Branch, numbers: DataFrame, spark: SparkSession
) -> None:
    main.table("t").write(numbers, partition_by="month")
    main.commit("t")
    a, b, c = (main.create_branch(name) for name in "abc")
    for branch, month in ((a, 1), (b, 1), (c, 2)):
        branch.table("t").write(numbers.where(f"month = {month}"), mode="overwrite_partitions")
        branch.commit(f"replace {month}")
    main.merge(a)
    main.merge(c)
    with pytest.raises(MergeConflict) as conflict:
        main.merge(b)
    assert conflict.value.paths == ("t/month=1",)
    assert main.table("t").to_spark(spark).count() == 100
    whole, again = main.create_branch("whole"), main.create_branch("again")
    whole.table("t").write(numbers.limit(5), mode="overwrite")
    whole.commit("whole")
    again.table("t").write(numbers.limit(6), mode="overwrite")
    again.commit("again")
    main.merge(whole)
    with pytest.raises(MergeConflict):
        main.merge(again)
    assert main.table("t").to_spark(spark).count() == 5


def test_a_table_inside_another_is_refused(main: Branch, numbers: DataFrame) -> None:
    main.table("a/b").write(numbers)
    for path in ("a/b/c", "a", "a/b/c/d"):
        with pytest.raises(UsageError, match="one in the other"):
            main.table(path).write(numbers)
    main.table("a/bc").write(numbers)


@pytest.mark.everywhere
def test_wrong_arguments_get_a_sentence(main: Branch, numbers: DataFrame, spark: SparkSession) -> None:
    main.table("t").write(numbers)
    for where in ("mnth = 1", "month = = 1"):
        with pytest.raises(UsageError, match="Its columns are id, month, code"):
            main.table("t").to_spark(spark, where=where)
    for data in (None, [1], "text"):
        with pytest.raises(UsageError, match="Spark DataFrame"):
            main.table("t").write(data)


def test_an_exported_table_is_read_without_strandline(
    main: Branch, spark: SparkSession, numbers: DataFrame, tmp_path: Path
) -> None:
    import duckdb
    import pandas

    main.table("t").write(numbers, partition_by=["month"])
    main.commit("t")
    main.export(tmp_path / "out", "t/")
    assert spark.read.parquet(f"{tmp_path}/out").count() == 100
    assert len(pandas.read_parquet(tmp_path / "out")) == 100
    query = f"select count(*), sum(month) from read_parquet('{tmp_path}/out/**/*.parquet', hive_partitioning = true)"
    assert duckdb.execute(query).fetchall() == [(100, sum(int(row[1]) for row in rows(numbers)))]


@pytest.mark.everywhere
def test_the_listing_parallelism_is_put_back(main: Branch, spark: SparkSession, numbers: DataFrame) -> None:
    main.table("t").write(numbers)
    main.table("t").to_spark(spark)
    assert spark.conf.get(LISTING_PARALLELISM, None) in (None, "10000")
    spark.conf.set(LISTING_PARALLELISM, "7")
    try:
        main.table("t").to_spark(spark)
        assert spark.conf.get(LISTING_PARALLELISM) == "7"
    finally:
        spark.conf.unset(LISTING_PARALLELISM)


@pytest.mark.everywhere
def test_dynamic_partition_overwrite_in_the_session_changes_nothing(
    main: Branch, spark: SparkSession, numbers: DataFrame
) -> None:
    spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    try:
        main.table("t").write(numbers, partition_by="month")
        main.table("t").write(numbers.where("month = 1"), mode="overwrite")
        assert {row["month"] for row in main.table("t").to_spark(spark).collect()} == {1}
    finally:
        spark.conf.unset("spark.sql.sources.partitionOverwriteMode")


def test_timestamps_and_decimals_survive(main: Branch, spark: SparkSession) -> None:
    frame = spark.sql("select timestamp'2026-01-02 03:04:05.678901' as t, cast(1.23 as decimal(10,2)) as d")
    main.table("t").write(frame)
    row = main.table("t").to_spark(spark).collect()[0]
    assert row["t"] == datetime(2026, 1, 2, 3, 4, 5, 678901)
    assert str(row["d"]) == "1.23"


@pytest.mark.timeout(240)
def test_the_flights_pipeline_runs_again_over_its_own_lake(tmp_path: Path) -> None:
    import subprocess
    import sys

    script = Path(__file__).parents[2] / "examples" / "flights" / "pipeline.py"
    environment = {**os.environ, "STRANDLINE_DEMO_OUT": str(tmp_path)}
    for _ in range(2):
        done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr[-3000:]
        assert "336,776 flights, 8,255 of them cancelled" in done.stdout
        assert "caught: 24,951 flights are there twice" in done.stdout
        assert "byte for byte what it held before: True" in done.stdout
    assert (tmp_path / "delays_by_month.png").stat().st_size > 10_000
