"""A mirror by Spark's executors is that of one process, and Spark reads it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import strandline
from strandline.errors import UsageError

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
