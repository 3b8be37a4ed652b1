"""Writing by the name of a format: in one commit or not at all, fenced, and each job once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import strandline
from strandline.repository.branch import Branch
from strandline.spark import register

pytestmark = pytest.mark.spark
TABLE = "nyc/main/tables/rides"


@pytest.fixture
def main(spark: SparkSession, lake_url: str) -> Iterator[Branch]:
    with strandline.open(lake_url, create=True, synced=False) as lake:
        register(spark)
        yield lake.repository("nyc", create=True).branch("main")


@pytest.fixture
def rides(spark: SparkSession) -> DataFrame:
    return spark.range(30).select(
        (F.col("id") % 3).cast("int").alias("day"),
        F.col("id").alias("k"),
        F.when(F.col("id") % 7 != 0, F.concat(F.lit("ä"), "id")).alias("text"),
        F.timestamp_seconds(F.col("id") * 3600).alias("at"),
        (F.col("id") / 4).cast("decimal(9,2)").alias("price"),
        F.array(F.col("id"), F.lit(None)).alias("list"),
    )


def save(frame: DataFrame, lake_url: str, mode: str = "append", path: str = TABLE, **options: str) -> None:
    frame.write.format("strandline").mode(mode).option("lake", lake_url).options(**options).save(path)


def ks(main: Branch, path: str = "tables/rides") -> list[int]:
    return sorted(main.table(path).to_arrow(columns=["k"]).column("k").to_pylist())


@pytest.mark.everywhere
def test_rows_are_those_of_a_native_write_in_one_commit(
    spark: SparkSession, main: Branch, rides: DataFrame, lake_url: str
) -> None:
    before = main.commit_id
    save(rides.repartition(3), lake_url, partition_by="day", message="by the format", compression="zstd")
    main.table("native").write(rides, partition_by=["day"], message="natively")
    assert [one.message for one in main.log(amount=2)] == ["natively", "by the format"]
    by_format, natively = main.table("tables/rides"), main.table("native")
    assert by_format.schema == natively.schema
    assert by_format.record.partition_by == ("day",)
    assert {file.relative.split("/")[0] for file in by_format._files(by_format.record)} == {"day=0", "day=1", "day=2"}
    wanted = natively.to_spark(spark).orderBy("k").toArrow()
    assert by_format.to_spark(spark).orderBy("k").toArrow().equals(wanted)
    assert by_format.count() == 30  # from statistics
    assert list(main.log(amount=3))[2].id == before


def test_modes_append_replace_and_replace_partitions(main: Branch, rides: DataFrame, lake_url: str) -> None:
    save(rides, lake_url, partition_by="day")
    save(rides.where("k < 2"), lake_url)
    assert ks(main) == sorted([*range(30), 0, 1])
    save(rides.where("k = 1"), lake_url, "overwrite", partitionOverwriteMode="dynamic")
    assert ks(main) == sorted([0, 1, *(k for k in range(30) if k % 3 != 1)])
    save(rides.where("k = 7"), lake_url, "overwrite")
    assert ks(main) == [7]
    save(rides.where("k < 0"), lake_url, "overwrite")
    assert ks(main) == []


def test_columns_are_added_where_it_is_asked_for(main: Branch, rides: DataFrame, lake_url: str) -> None:
    save(rides.select("k"), lake_url)
    with pytest.raises(Exception, match="text"):
        save(rides.select("k", "text"), lake_url)
    assert ks(main) == [*range(30)]
    save(rides.select("k", "text").where("k = 1"), lake_url, mergeSchema="true")
    assert main.table("tables/rides").record.names == ("k", "text")
    save(rides.select("price").where("k = 1"), lake_url, "overwrite", overwriteSchema="true")
    assert main.table("tables/rides").record.names == ("price",)


@pytest.mark.everywhere
def test_a_job_with_a_token_happens_once(main: Branch, rides: DataFrame, lake_url: str) -> None:
    for _ in range(2):
        save(rides, lake_url, writer="nightly", token="2026-11-25")
    assert ks(main) == [*range(30)]
    save(rides, lake_url, writer="nightly", token="2026-11-26")
    assert len(ks(main)) == 60


def test_a_failing_task_leaves_nothing(main: Branch, rides: DataFrame, lake_url: str) -> None:
    bad = rides.select(F.when(F.col("k") == 29, F.raise_error(F.lit("no ride"))).otherwise(F.col("k")).alias("k"))
    with pytest.raises(Exception, match="no ride"):
        save(bad.repartition(3), lake_url, writer="nightly")
    assert not main.table("tables/rides").exists()
    assert not [one for one in main.transactions if one.state == "open"]
    save(rides, lake_url, writer="nightly")
    assert ks(main) == [*range(30)]


def test_wrong_options_are_refused_before_a_task_runs(main: Branch, rides: DataFrame, lake_url: str) -> None:
    with pytest.raises(Exception, match="'partitionby' is not an option"):
        save(rides, lake_url, partitionby="day")
    assert not main.table("tables/rides").exists()


def test_modes_that_look_before_they_write_are_spark_s_to_refuse(rides: DataFrame, lake_url: str) -> None:
    with pytest.raises(Exception, match="(?i)errorifexists"):
        save(rides, lake_url, "error")


@pytest.mark.everywhere
def test_sql_inserts_into_a_view_of_the_format(
    spark: SparkSession, main: Branch, rides: DataFrame, lake_url: str
) -> None:
    save(rides.select("k"), lake_url)
    options = f"OPTIONS (lake '{lake_url}', path '{TABLE}')"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW by_format USING strandline {options}")
    spark.sql("INSERT INTO by_format SELECT id AS k FROM range(100, 102)")
    assert ks(main) == [*range(30), 100, 101]
    assert spark.sql("SELECT count(*) FROM by_format").collect()[0][0] == 32
    spark.sql("INSERT OVERWRITE by_format VALUES (7L)")
    assert ks(main) == [7]


def test_a_table_of_spark_s_catalog_says_that_it_has_no_options(spark: SparkSession, main: Branch) -> None:
    spark.sql("CREATE TABLE no_options (k BIGINT) USING strandline")
    try:
        with pytest.raises(Exception, match="CREATE TEMPORARY VIEW"):
            spark.sql("SELECT * FROM no_options").collect()
    finally:
        spark.sql("DROP TABLE no_options")
