"""Changes of a table: files and rows that came and went, in a batch and as a stream."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import strandline
from strandline.errors import TableNotFound
from strandline.spark import changes
from strandline.spark.changes import rows_of
from strandline.spark.shards import register

pytestmark = pytest.mark.spark


def rows(frame: DataFrame) -> Counter[tuple[Any, ...]]:
    found: Counter[tuple[Any, ...]] = Counter()
    for row in frame.collect():
        found[row["id"], row["m"]] += row["_diff"]
    return Counter({key: count for key, count in found.items() if count})


def some(spark: SparkSession, *ids: int) -> DataFrame:
    return spark.createDataFrame([(id, id % 2) for id in ids], "id long, m int")


def test_the_rows_that_came_and_went(spark: SparkSession, tmp_path: Path) -> None:
    with strandline.open(tmp_path / "lake", create=True, synced=False) as lake:
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


def test_a_stream_of_changes_follows_a_table_exactly_once(spark: SparkSession, tmp_path: Path) -> None:
    url = str(tmp_path / "lake")
    with strandline.open(url, create=True, synced=False) as lake:
        main = lake.repository("nyc", create=True).branch("main")
        register(spark)
        seen: Counter[tuple[Any, ...]] = Counter()

        def collect(batch: DataFrame, _id: int) -> None:
            seen.update(rows(rows_of(spark, main.table("t"), batch.toArrow())))

        def drain() -> None:
            stream = spark.readStream.format("strandline.changes").options(lake=url, reader="downstream")
            query = stream.load("nyc/main/t").writeStream.foreachBatch(collect)
            query = query.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True)
            query.start().awaitTermination()

        with main.transaction("job") as tx:
            tx.table("t").write(some(spark, 1, 2), mode="overwrite")
        drain()
        assert +seen == {(1, 1): 1, (2, 0): 1}
        with main.transaction("job") as tx:
            tx.table("t").write(some(spark, 3), mode="append")
        with main.transaction("job") as tx:
            tx.table("unrelated").write(some(spark, 9), mode="overwrite")
        for _ in range(2):
            drain()
        assert +seen == {(1, 1): 1, (2, 0): 1, (3, 1): 1}
