"""Servers that are killed beneath writers: what was acknowledged is there once, what was refused is not there."""

from __future__ import annotations

import importlib
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import CommitFailedException

import strandline
from strandline.iceberg import Catalog
from tests.harness.serving import start, stop

pytestmark = pytest.mark.server
ROOT = Path(__file__).parents[2]
KILLS = 5


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Lake:
    """A served lake with a table, whose server is killed and started again at one address.

    Attributes:
        acknowledged, refused: the keys that writers were told are there, or surely not.
    """

    def __init__(self, folder: Path) -> None:
        with strandline.open(folder / "lake", create=True, synced=False) as lake:
            main = lake.create_repository("nyc").branch("main")
            Catalog(main).create_namespace("db")
            Catalog(main).create_table("db.t", pa.schema([("k", pa.int64())]))
        self._folder = folder
        self._port = free_port()
        self._served = start(folder, "lake", "--no-sync", "--port", str(self._port))
        self.uri = f"http://127.0.0.1:{self._port}/iceberg"
        self.key, self.secret = self._served.key, self._served.secret
        self.ended = threading.Event()
        self._lock = threading.Lock()
        self.acknowledged: set[int] = set()
        self.refused: set[int] = set()

    def kill(self) -> None:
        self._served.process.send_signal(signal.SIGKILL)
        self._served.process.wait()
        for pipe in (self._served.process.stdout, self._served.process.stderr):
            assert pipe is not None
            pipe.close()
        self._served = start(self._folder, "lake", "--no-sync", "--port", str(self._port))

    def stop(self) -> None:
        stop(self._served)

    def write(self, worker: int, insert: Callable[[int], None]) -> None:
        """Insert a key after the other, until all is over."""
        turn = 0
        while not self.ended.is_set():
            turn += 1
            key = worker * 1_000_000 + turn
            try:
                insert(key)
            except CommitFailedException:
                with self._lock:
                    self.refused.add(key)
            except Exception:
                time.sleep(0.05)  # nobody knows whether it happened
            else:
                with self._lock:
                    self.acknowledged.add(key)

    def by_pyiceberg(self, key: int) -> None:
        login = {"credential": f"{self.key}:{self.secret}", "oauth2-server-uri": f"{self.uri}/v1/oauth/tokens"}
        catalog: Any = load_catalog("c", type="rest", uri=self.uri, warehouse="nyc/main", **login)
        catalog.load_table("db.t").append(pa.table({"k": [key]}))

    def by_duckdb(self, key: int) -> None:
        with duckdb.connect() as session:
            for name in ("avro", "httpfs", "iceberg"):
                package = Path(str(importlib.import_module(f"duckdb_extension_{name}").__file__)).parent
                session.execute(f"LOAD '{next(package.rglob('*.duckdb_extension'))}'")
            session.execute(
                f"CREATE SECRET s (TYPE iceberg, CLIENT_ID '{self.key}', CLIENT_SECRET '{self.secret}', "
                f"OAUTH2_SERVER_URI '{self.uri}/v1/oauth/tokens')"
            )
            session.execute(f"ATTACH 'nyc/main' AS nyc (TYPE iceberg, ENDPOINT '{self.uri}', SECRET s)")
            session.execute(f"INSERT INTO nyc.db.t VALUES ({key})")

    def check(self) -> None:
        with strandline.open(self._folder / "lake", synced=False) as lake:
            repository = lake.repository("nyc")
            found = Catalog(repository.branch("main")).load_table("db.t").scan().to_arrow().column("k").to_pylist()
            assert len(found) == len(set(found))
            assert self.acknowledged <= set(found)
            assert not self.refused & set(found)
            assert repository.fsck().is_sound


def killed(lake: Lake, writers: Sequence[Callable[[int], None]], seconds: tuple[float, float]) -> None:
    """Kill the server again and again beneath writers."""
    threads = [threading.Thread(target=lake.write, args=(at, insert)) for at, insert in enumerate(writers)]
    for thread in threads:
        thread.start()
    chance = random.Random(1)
    try:
        for _ in range(KILLS):
            time.sleep(chance.uniform(*seconds))
            lake.kill()
        time.sleep(seconds[0] * 2)
    finally:
        lake.ended.set()
        for thread in threads:
            thread.join()


@pytest.mark.timeout(180)
def test_kill_9_under_writers(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    try:
        killed(lake, [*[lake.by_pyiceberg] * 3, lake.by_duckdb], (0.5, 1.5))
    finally:
        lake.stop()
    lake.check()
    assert len(lake.acknowledged) > KILLS
    assert any(key > 3_000_000 for key in lake.acknowledged)  # DuckDB's


@pytest.mark.kill
@pytest.mark.spark
@pytest.mark.timeout(300)
def test_kill_9_under_spark(tmp_path: Path) -> None:
    """A session of Spark's in a process of its own, beside PyIceberg."""
    lake = Lake(tmp_path)
    command = [sys.executable, "-m", "tests.server.spark_writer", lake.uri, f"{lake.key}:{lake.secret}", "9000000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as spark:
        assert spark.stdout is not None
        assert spark.stdout.readline() == "ready\n"
        try:
            killed(lake, [lake.by_pyiceberg], (2.0, 4.0))
        finally:
            spark.terminate()
            lake.stop()
        lake.acknowledged |= {int(line) for line in spark.stdout if line.strip().isdigit()}
    lake.check()
    assert any(key > 9_000_000 for key in lake.acknowledged)
