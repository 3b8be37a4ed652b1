"""Streaming by the name of a format: the rows of files that come to a table, each once."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import strandline
from strandline.repository.branch import Branch
from strandline.spark import register

pytestmark = pytest.mark.spark


def numbers(*ks: int) -> pa.Table:
    return pa.table({"k": pa.array(ks, pa.int64())})


@pytest.fixture
def main(spark: SparkSession, lake_url: str) -> Iterator[Branch]:
    with strandline.open(lake_url, create=True, synced=False) as lake:
        register(spark)
        branch = lake.repository("nyc", create=True).branch("main")
        branch.table("t").write(numbers(1, 2), message="first")
        yield branch


@pytest.fixture
def batch(spark: SparkSession, lake_url: str, tmp_path: Path) -> Any:
    """Runs the query until it has read all that is there; gives the rows that it read this time."""

    seen: dict[str, Counter[int]] = defaultdict(Counter)

    def run(name: str = "query", **options: str) -> list[int]:
        stream = spark.readStream.format("strandline").option("lake", lake_url).options(**options).load("nyc/main/t")
        out = str(tmp_path / name / "out")
        query = (
            stream.writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / name / "checkpoint"))
            .trigger(availableNow=True)
            .start(out)
        )
        try:
            query.awaitTermination(120)
        finally:
            query.stop()
        found = spark.read.schema(stream.schema).parquet(out).select("k").toArrow()
        now = Counter(found.column("k").to_pylist())
        new = now - seen[name]
        seen[name] = now
        return sorted(new.elements())

    return run


@pytest.mark.everywhere
def test_files_that_come_are_read_once(main: Branch, batch: Any) -> None:
    assert batch() == [1, 2]
    assert batch() == []
    main.table("t").write(numbers(3), message="second")
    main.table("t").write(numbers(4, 5), message="third")
    main.put("elsewhere", b"no row")
    main.commit("not of the table")
    assert batch() == [3, 4, 5]
    main.put("elsewhere", b"no row either")
    main.commit("still not of the table")
    assert batch() == []


def test_a_stream_begins_where_it_is_asked_to(main: Branch, batch: Any) -> None:
    first = main.commit_id
    main.table("t").write(numbers(3), message="second")
    assert batch("at", start=first) == [3]
    assert batch("now", start="now") == []
    main.table("t").write(numbers(4), message="third")
    assert batch("now", start="now") == [4]
    assert batch("at", start=first) == [4]
