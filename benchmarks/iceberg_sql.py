"""What does Spark SQL on an Iceberg table of a branch cost, beside the same on Iceberg's own catalog in a folder?"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import strandline
from benchmarks.harness import Result, folder, result, seconds
from benchmarks.spark_sessions import builder
from strandline.iceberg import Catalog
from strandline.lake import Lake
from strandline.spark import configure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 8_000_000
MERGED = 1_000_000
LARGE_RUNS = 3
SMALL_RUNS = 15
MERGE = (
    "MERGE INTO {0} t USING (SELECT id * {1} AS id, 1.0D AS v FROM range({2})) s ON t.id = s.id "
    "WHEN MATCHED THEN UPDATE SET v = s.v WHEN NOT MATCHED THEN INSERT (id, v) VALUES (s.id, s.v)"
)


def session(place: Path, lake: Lake) -> SparkSession:
    """Spark with the catalog of a branch, and Iceberg's own on the same disk."""
    made = (
        builder()
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.catalog.own", "org.apache.iceberg.spark.SparkCatalog")
        .config("spark.sql.catalog.own.type", "hadoop")
        .config("spark.sql.catalog.own.warehouse", str(place / "iceberg"))
    )
    spark: SparkSession = configure(made, lake, catalogs={"branch": "bench/main"}).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def run() -> list[Result]:
    with folder() as place, strandline.open(place / "lake", create=True, synced=True) as lake:
        Catalog(lake.repository("bench", create=True).branch("main")).create_namespace("db")
        spark = session(place, lake)
        try:
            return [*_large(spark), *_small(spark)]
        finally:
            spark.stop()


def _large(spark: SparkSession) -> list[Result]:
    tables = {"branch": "branch.db.t", "own": "own.db.t"}

    def append(table: str) -> None:
        spark.sql(f"CREATE OR REPLACE TABLE {table} (id BIGINT, v DOUBLE, s STRING) USING iceberg")
        spark.sql(f"INSERT INTO {table} SELECT id, rand(1), sha2(string(id), 256) FROM range({ROWS})")

    def merge(table: str) -> None:
        spark.sql(MERGE.format(table, 5, MERGED))

    appends, merges = _in_turns(tables, (append, merge), LARGE_RUNS)
    where = f"{ROWS:,} rows, {MERGED:,} of them merged; local files, synced"
    return [
        result(f"{verb}: branch / Iceberg's own catalog", ratios, "×", 1.05, "less", where)
        for verb, ratios in (("append", _ratios(appends)), ("MERGE", _ratios(merges)))
    ]


def _small(spark: SparkSession) -> list[Result]:
    tables = {"branch": "branch.db.small", "own": "own.db.small"}
    for table in tables.values():
        spark.sql(f"CREATE TABLE {table} (id BIGINT, v DOUBLE) USING iceberg")

    def append(table: str) -> None:
        spark.sql(f"INSERT INTO {table} VALUES (1, 2.0D), (2, 3.0D)")

    def merge(table: str) -> None:
        spark.sql(MERGE.format(table, 1, 3))

    appends, merges = _in_turns(tables, (append, merge), SMALL_RUNS)
    return [
        result(f"small {verb}: more than Iceberg's own catalog", more, "ms", 100.0, "less", "2 or 3 rows; synced")
        for verb, more in (("append", _more(appends)), ("MERGE", _more(merges)))
    ]


def _in_turns(
    tables: dict[str, str], actions: Sequence[Callable[[str], None]], runs: int
) -> list[dict[str, list[float]]]:
    """The seconds of each action on each table, after one run that warms up, the tables in changing order."""
    found: list[dict[str, list[float]]] = [{name: [] for name in tables} for _ in actions]
    for turn in range(runs + 1):
        for times, action in zip(found, actions, strict=True):
            for name, table in sorted(tables.items(), reverse=bool(turn % 2)):
                took = seconds(functools.partial(action, table))
                if turn:
                    times[name].append(took)
    return found


def _ratios(times: dict[str, list[float]]) -> list[float]:
    return [mine / theirs for mine, theirs in zip(times["branch"], times["own"], strict=True)]


def _more(times: dict[str, list[float]]) -> list[float]:
    return [(mine - theirs) * 1_000 for mine, theirs in zip(times["branch"], times["own"], strict=True)]
