"""What Spark marks of Iceberg's tables is what this process marks."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import strandline
from strandline.errors import Corrupted
from strandline.iceberg import Catalog

pytestmark = [pytest.mark.spark]
ROWS = pa.table({"k": pa.array([1, 2, 3], pa.int64())})


def test_spark_follows_the_tables_that_are_kept(spark: SparkSession, tmp_path: Path) -> None:
    with strandline.open(tmp_path / "lake", create=True, synced=False) as lake:
        repo = lake.create_repository("nyc")
        main = repo.branch("main")
        catalog = Catalog(main)
        catalog.create_namespace("db")
        for name in ("db.a", "db.b"):
            table = catalog.create_table(name, ROWS.schema)
            for _ in range(3):
                table.append(ROWS)
        main.table("plain").write(ROWS, message="native")
        main.table("plain").to_iceberg("db.taken")
        main.delete_prefix("plain/")
        main.commit("only Iceberg's now")
        dev = main.create_branch("dev")
        Catalog(dev).load_table("db.a").append(ROWS)
        repo.delete_branch("dev")  # its files are garbage, those that it shares are not
        plans = [repo.gc.plan(grace_days=0), repo.gc.plan(grace_days=0, spark=spark)]
        assert plans[0] == plans[1]
        assert plans[0].files > 0
        repo.gc.run(grace_days=0, spark=spark)
        assert repo.fsck().is_sound
        for name, count in (("db.a", 9), ("db.b", 9), ("db.taken", 3)):
            assert catalog.load_table(name).scan().to_arrow().num_rows == count
        place = Path(catalog.load_table("db.b").inspect.manifests()["path"].to_pylist()[0].removeprefix("file://"))
        held = place.read_bytes()
        place.write_bytes(b"broken")
        there = set((tmp_path / "lake").rglob("*.parquet"))
        with pytest.raises(Corrupted, match=place.name) as caught:
            repo.gc.run(grace_days=0, spark=spark)
        assert "Nothing was deleted" in str(caught.value)
        assert "backup" in str(caught.value)
        assert set((tmp_path / "lake").rglob("*.parquet")) == there
        place.write_bytes(held)
        repo.gc.run(grace_days=0, spark=spark)
