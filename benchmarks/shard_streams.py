"""What does a streaming query pay to write into a shard, beside Spark's Parquet sink and Delta's?

Micro-batches of 1,000, 100,000 and 5,000,000 rows from a stream of Parquet files, one file a batch; the time of a batch
is Spark's own figure for it, from its trigger to its commit. Natively in `foreachBatch`, and through the Python sink.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import strandline
from benchmarks.harness import Result, folder, result
from benchmarks.tables import session
from strandline.repository.repository import Repository

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCHES = {1_000: 10, 100_000: 10, 5_000_000: 4}
ROUNDS = {1_000: 2, 100_000: 2, 5_000_000: 2}
"""How often each sink has its turn, from the first to the last and then back: Spark gets faster for minutes."""
WARM_UP = 1
SCHEMA = pa.schema([("id", pa.int64()), ("k", pa.int64()), ("v", pa.float64())])


def run() -> list[Result]:
    from strandline.spark.shards import register

    found = []
    with folder() as place, strandline.open(place / "lake", create=True) as lake:
        spark = session(place)
        register(spark)
        repo = lake.repository("bench", create=True)
        for sink in _sinks(repo, place, "warm-up").values():
            _batches(spark, _source(place, 100, 3), sink)
        for rows, batches in BATCHES.items():
            source = _source(place, rows, batches)
            rates: dict[str, list[float]] = {}
            for turn in range(ROUNDS[rows]):
                sinks = list(_sinks(repo, place, f"{rows}-{turn}").items())
                for name, sink in reversed(sinks) if turn % 2 else sinks:
                    took = _batches(spark, source, sink)
                    rates.setdefault(name, []).extend(rows / one for one in took)
            found += _results(rows, rates)
    return found


def _source(place: Path, rows: int, batches: int) -> str:
    chance = np.random.default_rng(3)
    source = place / f"source-{rows}"
    source.mkdir(exist_ok=True)
    for number in range(batches):
        table = pa.table(
            {
                "id": np.arange(rows) + number * rows,
                "k": chance.integers(0, 100, rows),
                "v": chance.random(rows),
            },
            schema=SCHEMA,
        )
        pq.write_table(table, source / f"{number:04d}.parquet", row_group_size=max(1, rows // 4))
    return str(source)


def _sinks(repo: Repository, place: Path, tag: str) -> dict[str, Callable[[Any], Any]]:
    """How each sink is put onto a stream; all are new."""
    from strandline.spark.shards import append

    repo.shard(f"python-{tag}", SCHEMA, key=["id"])
    native = repo.shard(f"native-{tag}", SCHEMA, key=["id"])

    def begun(name: str, writer: Any) -> Any:
        return writer.option("checkpointLocation", str(place / f"checkpoint-{name}-{tag}"))

    def write(batch: Any, epoch: int) -> None:
        append(native, batch, writer="q", epoch=epoch)

    return {
        "Parquet": lambda writer: begun("parquet", writer.format("parquet")).start(str(place / f"parquet-{tag}")),
        "Delta": lambda writer: begun("delta", writer.format("delta")).start(str(place / f"delta-{tag}")),
        "native": lambda writer: begun("native", writer.foreachBatch(write)).start(),
        "Python": lambda writer: (
            begun("python", writer.format("strandline.shard"))
            .option("lake", str(place / "lake"))
            .option("writer", "q")
            .start(f"bench/python-{tag}")
        ),
    }


def _batches(spark: SparkSession, source: str, sink: Callable[[Any], Any]) -> list[float]:
    """The seconds of each batch, without the first ones."""
    stream = spark.readStream.schema("id long, k long, v double").option("maxFilesPerTrigger", 1).parquet(source)
    query = sink(stream.writeStream.trigger(availableNow=True))
    query.awaitTermination()
    took = [one["durationMs"]["triggerExecution"] / 1_000 for one in query.recentProgress if one["numInputRows"]]
    return took[WARM_UP:]


def _results(rows: int, rates: dict[str, list[float]]) -> list[Result]:
    found = []
    for name, told in (("native", "shard, native in foreachBatch"), ("Python", "shard, the Python sink")):
        where = f"{ROUNDS[rows] * (BATCHES[rows] - WARM_UP)} batches; synced; Parquet's sink does not sync"
        label = f"stream of {rows:,} rows a batch: {told}"
        found.append(result(label, rates[name], "rows/s", None, "more", where))
        for other, target in (("Parquet", 0.9 if name == "native" else None), ("Delta", None)):
            ratio = [statistics.median(rates[name]) / statistics.median(rates[other])]
            beside = "Spark's file sink" if other == "Parquet" else "Delta's"
            found.append(result(f"{label} ÷ {beside}", ratio, "×", target, "more", where))
    return found
