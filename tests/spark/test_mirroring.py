"""A mirror by Spark's executors is that of one process, and Spark reads it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import strandline
from strandline.errors import Corrupted, StorageError, UsageError
from strandline.spark import changes, row_diff

pytestmark = [pytest.mark.spark]


def test_executors_mirror_what_spark_wrote(spark: SparkSession, tmp_path: Path) -> None:
    source = tmp_path / "rides"
    rides = spark.range(300).selectExpr("id", "cast(id % 3 AS int) AS m", "cast('x' AS char(1)) AS c")
    rides.repartition(4).write.partitionBy("m").parquet(str(source))
    with strandline.open(tmp_path / "lake", create=True, synced=False) as lake:
        repo = lake.create_repository("nyc")
        here, there = repo.branch("main"), repo.branch("main").create_branch("spark")
        for branch, session in ((here, None), (there, spark)):
            branch.mirror_table(source, "t", partition_types={"m": "integer"}, spark=session)
        assert [change.path for change in here.diff(there) if not change.path.endswith(".json")] == []
        table = there.table("t")
        found = table.to_spark(spark).select("id", "m", "c").collect()  # the values of folders among them
        assert sorted(map(tuple, found)) == sorted(map(tuple, rides.collect()))
        assert table.record == here.table("t").record
        assert table.to_spark(spark, "m = 2 AND id < 10").count() == 3
        pq.write_table(pa.table({"id": [1000], "c": ["y"]}), source / "m=1" / "late.parquet")
        done = there.mirror_table(source, "t", spark=spark)
        assert done.commit is not None
        assert [change.path for change in there.diff("spark~1")] == ["t/m=1/late.parquet"]
        assert table.to_spark(spark).where("m = 1").count() == 101
        assert there.mirror_table(source, "t", spark=spark).commit is None
        (source / "m=1" / "notes.csv").write_text("a,b")
        with pytest.raises(UsageError, match="other formats than parquet"):
            there.mirror_table(source, "t", spark=spark)
        assert table.count() == 301


def test_values_of_many_folders_are_joined(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "rides"
    days = "CASE WHEN id % 5 = 0 THEN NULL ELSE timestamp'2026-01-01 10:00:00' + make_interval(0, 0, 0, id % 5) END"
    rides = spark.range(60).selectExpr("id", f"{days} AS at", "concat('a b/', id % 3) AS name")
    rides.repartition(2).write.partitionBy("at", "name").parquet(str(source))
    with strandline.open(tmp_path / "lake", create=True, synced=False) as lake:
        main = lake.create_repository("nyc").branch("main")
        main.mirror_table(source, "t", partition_types={"at": "timestamp"})
        table = main.table("t")
        found = []
        for at_most in (1_000, 2):
            monkeypatch.setattr("strandline.spark.read.FILES_IN_A_MAP", at_most)
            frame = table.to_spark(spark)
            assert frame.schema["at"].dataType.typeName() == "timestamp"
            found.append(sorted(map(str, frame.select("id", "at", "name").collect())))
            assert table.to_spark(spark, "name = 'a b/1' AND id < 30").count() == 10
            assert changes(spark, lake.repository("nyc"), main, "t", key=["id"]).count() == 60
        assert found[0] == found[1]
        assert len(found[0]) == 60


def test_what_was_written_over_is_not_read_as_what_it_was(spark: SparkSession, tmp_path: Path) -> None:
    source = tmp_path / "rides"
    source.mkdir()
    pq.write_table(pa.table({"id": [3]}), source / "a.parquet")
    size = (source / "a.parquet").stat().st_size
    with strandline.open(tmp_path / "lake", create=True, synced=False) as lake:
        repo = lake.create_repository("nyc")
        main = repo.branch("main")
        main.mirror_table(source, "t")
        since = main.feed.changes("t/").column("_time").to_pylist()[-1]
        pq.write_table(pa.table({"id": [7]}), source / "a.parquet")
        assert (source / "a.parquet").stat().st_size == size
        with pytest.raises(Corrupted, match="written over"):
            main.table("t").to_spark(spark)
        main.mirror_table(source, "t")
        assert [row.id for row in main.table("t").to_spark(spark).collect()] == [7]
        before = repo.ref("main~1")
        for call in (
            lambda: before.table("t").to_spark(spark),
            lambda: changes(spark, repo, main, "t", since=since, rows=True),
            lambda: changes(spark, repo, main, "t", since=since, key=["id"]),
            lambda: changes(spark, repo, main, "t", key=["id"]),
            lambda: row_diff(spark, before, main, "t"),
        ):
            with pytest.raises(StorageError, match="written over"):
                call()
