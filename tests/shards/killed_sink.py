"""A driver of a streaming sink that dies at a call of a store: what `foreachBatch` does with one micro-batch."""

from __future__ import annotations

import os
from pathlib import Path

import strandline
from strandline.spark.shards import append
from tests.harness.killing import sent_at
from tests.transactions.killed_driver import ROWS


def run(folder: str, remote: str, number: int, at: int, when: str, what: int, token: str) -> None:
    """Append the rows of an epoch, whose number the token ends in, and say how that ended."""
    from pyspark.sql import SparkSession

    end = Path(folder) / f"end-{number}"
    spark = SparkSession.builder.remote(remote).create()
    calls = sent_at(at, when, what)
    with strandline.open(Path(folder) / "lake", synced=False, compaction=False) as lake:
        shard = lake.repository("nyc").shard("sink")
        rows = spark.range(0, ROWS, 1, 3).selectExpr("id", f"'{token}' as run")
        time = append(shard, rows, writer="query", epoch=int(token.rpartition("-")[2]))
        if number % 5 == 0:  # upkeep dies as well
            shard.compact(full=True)
            shard.collect()
    end.write_text(f"{'repeat' if time is None else 'committed'} {calls()}")
    os._exit(0)
