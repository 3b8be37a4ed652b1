"""Servers that are killed beneath writers: what was acknowledged is there once, what was refused is not there."""

from __future__ import annotations

import random
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import CommitFailedException

import strandline
from strandline.iceberg import Catalog
from tests.harness.serving import start, stop

pytestmark = pytest.mark.server
WRITERS = 4
KILLS = 5


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.mark.timeout(180)
def test_kill_9_under_writers(tmp_path: Path) -> None:
    with strandline.open(tmp_path / "lake", create=True, synced=False) as lake:
        main = lake.create_repository("nyc").branch("main")
        Catalog(main).create_namespace("db")
        Catalog(main).create_table("db.t", pa.schema([("k", pa.int64())]))
    port = free_port()
    served = start(tmp_path, "lake", "--no-sync", "--port", str(port))
    lock, ended = threading.Lock(), threading.Event()
    acknowledged: set[int] = set()
    refused: set[int] = set()
    uri = f"http://127.0.0.1:{port}/iceberg"
    login = {"credential": f"{served.key}:{served.secret}", "oauth2-server-uri": f"{uri}/v1/oauth/tokens"}

    def write(worker: int) -> None:
        turn = 0
        while not ended.is_set():
            turn += 1
            key = worker * 1_000_000 + turn
            try:
                catalog: Any = load_catalog("c", type="rest", uri=uri, warehouse="nyc/main", **login)
                table = catalog.load_table("db.t")
                table.append(pa.table({"k": [key]}))
            except CommitFailedException:
                with lock:
                    refused.add(key)
            except Exception:
                time.sleep(0.05)  # nobody knows whether it happened
            else:
                with lock:
                    acknowledged.add(key)

    threads = [threading.Thread(target=write, args=(worker,)) for worker in range(WRITERS)]
    for thread in threads:
        thread.start()
    chance = random.Random(1)
    try:
        for _ in range(KILLS):
            time.sleep(chance.uniform(0.5, 1.5))
            served.process.send_signal(signal.SIGKILL)
            served.process.wait()
            for pipe in (served.process.stdout, served.process.stderr):
                assert pipe is not None
                pipe.close()
            served = start(tmp_path, "lake", "--no-sync", "--port", str(port))
        time.sleep(1.0)
    finally:
        ended.set()
        for thread in threads:
            thread.join()
        stop(served)
    with strandline.open(tmp_path / "lake", synced=False) as lake:
        repository = lake.repository("nyc")
        found = Catalog(repository.branch("main")).load_table("db.t").scan().to_arrow().column("k").to_pylist()
        assert len(found) == len(set(found))
        assert acknowledged <= set(found)
        assert not refused & set(found)
        assert len(acknowledged) > KILLS
        assert repository.fsck().is_sound
