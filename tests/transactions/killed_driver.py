"""A driver that dies, or is stopped, at a call of a store: a process of its own, forked from one that has imported all.

It is told what to do by its arguments, and tells in a file how it ended.
"""

from __future__ import annotations

import os
from pathlib import Path

import strandline
from strandline.errors import Fenced, TransactionClosed
from tests.harness.killing import sent_at

ROWS = 60


def run(folder: str, remote: str, number: int, at: int, when: str, what: int, token: str) -> None:
    """Write the rows of a run in a transaction, and say how that ended."""
    from pyspark.sql import SparkSession

    end = Path(folder) / f"end-{number}"
    (Path(folder) / f"pid-{number}").write_text(str(os.getpid()))
    spark = SparkSession.builder.remote(remote).create()
    calls = sent_at(at, when, what)
    with strandline.open(Path(folder) / "lake", synced=False, compaction=False) as lake:
        main = lake.repository("nyc").branch("main")
        try:
            with main.transaction("nightly", token=token) as tx:
                tx.table("t").write(spark.range(0, ROWS, 1, 3).selectExpr("id", f"'{token}' as run", "id % 2 as k"))
            end.write_text(f"{'repeat' if tx.is_repeat else 'committed'} {calls()}")
        except (Fenced, TransactionClosed):
            end.write_text(f"fenced {calls()}")
    os._exit(0)
