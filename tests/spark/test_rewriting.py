"""Files written anew by Spark's executors are those that this process writes."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import strandline
from strandline.errors import Corrupted
from strandline.repository.branch import Branch

pytestmark = pytest.mark.spark


@pytest.fixture
def main(lake_url: str) -> Iterator[Branch]:
    with strandline.open(lake_url, create=True, synced=False) as lake:
        main = lake.repository("nyc", create=True).branch("main")
        for n in range(4):
            rows = pa.table({"k": range(n * 100, n * 100 + 100), "part": [f"p {k % 3}" for k in range(100)]})
            main.table("t").write(rows, partition_by=["part"], message=f"write {n}")
        yield main


@pytest.mark.everywhere
def test_groups_are_written_by_executors(spark: SparkSession, main: Branch) -> None:
    other = main.create_branch("other")
    here = main.table("t").rewrite_files(z_order_by=["k"])
    there = other.table("t").rewrite_files(z_order_by=["k"], spark=spark)
    assert there == here
    assert (there.before, there.after) == (12, 3)
    order = [("k", "ascending")]
    assert other.table("t").to_arrow().sort_by(order).equals(main.table("t").to_arrow().sort_by(order))
    assert other.table("t").to_spark(spark).count() == 400


def test_a_damaged_file_is_named_by_its_task(spark: SparkSession, main: Branch) -> None:
    table = main.table("t")
    (first, *_) = table._files(table.record)
    store = main._core.resolver.namespace
    store.put(first.info.physical_address, store.get(first.info.physical_address)[:-5])
    with pytest.raises(Corrupted, match=first.relative.rpartition("/")[2]):
        table.rewrite_files(spark=spark)
