"""Spark's Python workers, which are forks of its daemon, write beside a busy driver, and fork once more."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import strandline
from strandline.lake import Lake

pytestmark = pytest.mark.spark
ROWS = 48


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    with strandline.open(tmp_path / "lake", create=True, synced=False) as lake:
        lake.repository("nyc", create=True).branch("main").put("warm", b"")
        yield lake


@pytest.mark.parametrize("handle", ["inherited", "opened"])
@pytest.mark.parametrize("forks_again", [False, True])
def test_workers_write_beside_a_busy_driver(
    lake: Lake, tmp_path: Path, spark: SparkSession, handle: str, forks_again: bool
) -> None:
    main = lake.repository("nyc").branch("main")
    place, sent = str(tmp_path / "lake"), pickle.dumps(main)

    def write(batches: Any) -> Any:
        if handle == "inherited":
            branch = pickle.loads(sent)
        else:
            branch = strandline.open(place, synced=False).repository("nyc").branch("main")
        for batch in batches:
            for row in batch["id"]:
                branch.put(f"worker/{row:03}", b"%d" % row)
                if forks_again:
                    child = os.fork()
                    if child == 0:
                        try:
                            branch.put(f"child/{row:03}", b"%d" % row)
                        finally:
                            os._exit(0)
                    _, status = os.waitpid(child, 0)
                    assert status == 0
            yield batch

    stop = threading.Event()
    written: list[int] = []

    def keep_busy() -> None:
        while not stop.is_set():
            main.put(f"driver/{len(written):04}", b"x")
            written.append(len(written))

    busy = threading.Thread(target=keep_busy)
    busy.start()
    try:
        frame = spark.range(0, ROWS, 1, 4)
        assert frame.mapInPandas(write, frame.schema).count() == ROWS
    finally:
        stop.set()
        busy.join(30)
    expected = {"warm", *(f"worker/{row:03}" for row in range(ROWS)), *(f"driver/{n:04}" for n in written)}
    if forks_again:
        expected |= {f"child/{row:03}" for row in range(ROWS)}
    with strandline.open(place, synced=False) as again:
        shown = again.repository("nyc").branch("main")
        assert {info.path for info in shown.list()} == expected
        shown.commit("all of it")
        assert {info.path for info in again.repository("nyc").ref("main@").list()} == expected
        assert again.repository("nyc").fsck().problems == []
