"""Changes of a table: files and rows that came and went, in a batch and as a stream."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import strandline
from strandline.errors import TableNotFound
from strandline.spark import changes, rows_of
from strandline.spark.shards import append, register

pytestmark = [pytest.mark.spark, pytest.mark.everywhere]


def rows(frame: DataFrame) -> Counter[tuple[Any, ...]]:
    found: Counter[tuple[Any, ...]] = Counter()
    for row in frame.collect():
        found[row["id"], row["m"]] += row["_diff"]
    return Counter({key: count for key, count in found.items() if count})


def some(spark: SparkSession, *ids: int) -> DataFrame:
    return spark.createDataFrame([(id, id % 2) for id in ids], "id long, m int")


def test_the_rows_that_came_and_went(spark: SparkSession, lake_url: str) -> None:
    with strandline.open(lake_url, create=True, synced=False) as lake:
        repo = lake.repository("nyc", create=True)
        main = repo.branch("main")
        with main.transaction("job", "first") as tx:
            tx.table("t").write(some(spark, 1, 2, 3), mode="overwrite", partition_by=["m"])
        files = changes(spark, repo, "main", "t")
        assert {row["change"] for row in files.collect()} == {"added"}
        at = max(row["_time"] for row in files.collect())
        assert rows(changes(spark, repo, "main", "t", rows=True)) == {(1, 1): 1, (2, 0): 1, (3, 1): 1}
        with main.transaction("job", "second") as tx:
            tx.table("t").write(some(spark, 1, 5), mode="overwrite_partitions")
            tx.table("other").write(some(spark, 9), mode="overwrite")
        later = changes(spark, repo, main, "t", since=at, rows=True)
        assert rows(later) == {(3, 1): -1, (5, 1): 1}
        assert {row["change"] for row in changes(spark, repo, "main", "t/", since=at).collect()} == {"added", "removed"}
        assert changes(spark, repo, "main", "t", since=at + 1, rows=True).count() == 0
        with pytest.raises(TableNotFound):
            changes(spark, repo, "main", "nothing", rows=True)


def test_rows_are_what_they_were_when_their_files_came_or_went(spark: SparkSession, lake_url: str) -> None:
    """A table that gets other columns and partitions, and then is dropped: what came and went adds up to nothing."""
    with strandline.open(lake_url, create=True, synced=False) as lake:
        repo = lake.repository("nyc", create=True)
        main = repo.branch("main")
        with main.transaction("job") as tx:
            tx.table("t").write(some(spark, 1, 2), mode="overwrite", partition_by=["m"])
        [at] = {row["_time"] for row in changes(spark, repo, main, "t").collect()}
        main.delete_prefix("t/")
        main.commit("dropped")
        assert rows(changes(spark, repo, main, "t", since=at, rows=True)) == {(1, 1): -1, (2, 0): -1}
        with main.transaction("job") as tx:
            tx.table("t").write(some(spark, 1, 2).selectExpr("m", "id", "'x' as more"), mode="overwrite")
        told = changes(spark, repo, main, "t", since=at, rows=True)
        found = {(row["id"], row["m"], row["more"], row["_diff"]) for row in told.collect()}
        assert found == {(1, 1, None, -1), (1, 1, "x", 1), (2, 0, None, -1), (2, 0, "x", 1)}


def test_a_stream_of_changes_follows_a_table_exactly_once(spark: SparkSession, lake_url: str, tmp_path: Path) -> None:
    """The rows of the changed files go into a shard: it has the rows of the table, whatever is started again."""
    with strandline.open(lake_url, create=True, synced=False) as lake:
        repo = lake.repository("nyc", create=True)
        main = repo.branch("main")
        copy = repo.shard("copy", pa.schema([("id", pa.int64()), ("m", pa.int32())]))
        register(spark)

        def follow(batch: DataFrame, epoch: int) -> None:
            with strandline.open(lake_url) as its_own:  # on Spark Connect this runs in a process of the server
                repo = its_own.repository("nyc")
                changed = rows_of(batch.sparkSession, repo.branch("main").table("t"), batch.toArrow())
                append(repo.shard("copy"), changed, writer="downstream", epoch=epoch)

        def drain() -> None:
            stream = spark.readStream.format("strandline.changes").options(lake=lake_url, reader="downstream")
            query = stream.load("nyc/main/t").writeStream.foreachBatch(follow)
            query = query.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True)
            query.start().awaitTermination()

        def copied() -> Counter[tuple[Any, ...]]:
            held = copy.snapshot().to_arrow()
            values = (held[name].to_pylist() for name in ("id", "m", "_diff"))
            return Counter({(id, m): diff for id, m, diff in zip(*values, strict=True)})

        with main.transaction("job") as tx:
            tx.table("t").write(some(spark, 1, 2), mode="overwrite")
        drain()
        assert copied() == {(1, 1): 1, (2, 0): 1}
        with main.transaction("job") as tx:
            tx.table("t").write(some(spark, 2, 3), mode="overwrite")
        with main.transaction("job") as tx:
            tx.table("unrelated").write(some(spark, 9), mode="overwrite")
        for _ in range(2):
            drain()
        assert copied() == {(2, 0): 1, (3, 1): 1}
