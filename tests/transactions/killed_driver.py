"""A driver that dies, or is stopped, at a call of a store: a process of its own, forked from one that has imported all.

It is told what to do by its arguments, and tells in a file how it ended.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import strandline
from strandline.blob.local import LocalBlobStore
from strandline.errors import Fenced, TransactionClosed
from strandline.kv.sqlite import SqliteStore

ROWS = 60
CALLS = {
    SqliteStore: ("get", "set", "set_if", "set_many", "scan_page", "delete"),
    LocalBlobStore: ("put", "list_pages", "sync", "head"),
}


def watch(at: int, when: str, what: int) -> Callable[[], int]:
    """Send this process a signal before or after the n-th call of a store; returns how many there were."""
    count = 0

    def watched(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            mine = count
            if mine == at and when == "before":
                os.kill(os.getpid(), what)
            answer = method(*arguments, **options)
            if mine == at and when == "after":
                os.kill(os.getpid(), what)
            return answer

        return call

    for kind, names in CALLS.items():
        for name in names:
            setattr(kind, name, watched(getattr(kind, name)))
    return lambda: count


def run(folder: str, remote: str, number: int, at: int, when: str, what: int, token: str) -> None:
    """Write the rows of a run in a transaction, and say how that ended."""
    from pyspark.sql import SparkSession

    end = Path(folder) / f"end-{number}"
    (Path(folder) / f"pid-{number}").write_text(str(os.getpid()))
    spark = SparkSession.builder.remote(remote).create()  # type: ignore[attr-defined]
    calls = watch(at, when, what)
    with strandline.open(Path(folder) / "lake", synced=False, compaction=False) as lake:
        main = lake.repository("nyc").branch("main")
        try:
            with main.transaction("nightly", token=token) as tx:
                tx.table("t").write(spark.range(0, ROWS, 1, 3).selectExpr("id", f"'{token}' as run", "id % 2 as k"))
            end.write_text(f"{'repeat' if tx.is_repeat else 'committed'} {calls()}")
        except (Fenced, TransactionClosed):
            end.write_text(f"fenced {calls()}")
    os._exit(0)
