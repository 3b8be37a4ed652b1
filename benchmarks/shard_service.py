"""How much do many writers of one shard append, when they swap themselves and when a service swaps for them?

Each writer is a process that appends one small row at a time; on SQLite + local files, and on PostgreSQL, synced. And
what a process that holds a thousand idle shards does: its processor time, and its requests.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pyarrow as pa

import strandline
from benchmarks.harness import Result, folder, result
from strandline.shards.shard import Shard

WRITERS = (1, 8, 32)
SECONDS = 5.0
START_TIMEOUT_S = 120
IDLE_SHARDS = 1_000
IDLE_SECONDS = 40.0
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.float64())])


def run() -> list[Result]:
    found = []
    for kind in ("SQLite", "PostgreSQL"):
        for writers in WRITERS:
            found += _contention(kind, writers)
    return found + _idle()


@contextmanager
def _stores(kind: str) -> Iterator[tuple[str, str]]:
    with ExitStack() as stack:
        place = stack.enter_context(folder())
        kv = f"sqlite://{place}/metadata.db"
        if kind == "PostgreSQL":
            from tests.harness import servers

            kv = f"{stack.enter_context(servers.postgres_server()).url}?table=bench"
        stores = kv, str(place / "data")
        with strandline.open(kv=stores[0], blob=stores[1], create=True) as lake:
            lake.repository("bench", create=True).shard("it", SCHEMA, key=["id"])
        yield stores


@contextmanager
def _service(stores: tuple[str, str]) -> Iterator[str]:
    command = [sys.executable, "-m", "strandline.cli", "shard", "serve", "--port", "0"]
    env = {**os.environ, "STRANDLINE_KV": stores[0], "STRANDLINE_BLOB": stores[1]}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().split()[-1].rstrip(".")
    finally:
        process.terminate()
        process.wait()


def _write(stores: tuple[str, str], url: str, number: int, ready: Any, begin: Any, told: Any) -> None:
    """One writer: how long each of its appends took, and what it asked of the stores."""
    with strandline.open(kv=stores[0], blob=stores[1], shard_service=url) as lake:
        shard = lake.repository("bench").shard("it")
        took = []
        with shard.writer() as writer:
            writer.append_next([((number, 0.5), 0, 1)])
            ready.release()
            begin.wait()
            until = time.monotonic() + SECONDS
            while (started := time.monotonic()) < until:
                writer.append_next([((number, 0.5), 0, 1)])
                took.append(time.monotonic() - started)
        lost = shard.counts.get("consensus append lost")
    told.put((took, 0 if lost is None else lost.requests))


def _contention(kind: str, writers: int) -> list[Result]:
    rates: dict[str, float] = {}
    found = []
    context = multiprocessing.get_context("spawn")
    for way in ("direct", "service"):
        with _stores(kind) as stores, ExitStack() as stack:
            url = stack.enter_context(_service(stores)) if way == "service" else ""
            ready, begin, told = context.Semaphore(0), context.Event(), context.Queue()
            running = [
                context.Process(target=_write, args=(stores, url, number, ready, begin, told))
                for number in range(writers)
            ]
            for process in running:
                process.start()
            if not all(ready.acquire(timeout=START_TIMEOUT_S) for _ in running):
                raise RuntimeError(f"Not all writers began: {[process.exitcode for process in running]}")
            begin.set()
            answers = [told.get(timeout=START_TIMEOUT_S) for _ in running]
            for process in running:
                process.join()
        took = sorted(one for answer, _ in answers for one in answer)
        rates[way] = len(took) / SECONDS
        lost = sum(lost for _, lost in answers)
        median, worst = statistics.median(took) * 1_000, took[len(took) * 99 // 100] * 1_000
        where = f"{kind}, synced; median {median:.1f} ms, 99 % {worst:.0f} ms, swaps lost by clients {lost:,}"
        found.append(result(f"shard: {writers} writers, {kind}, {way}", [rates[way]], "appends/s", None, "more", where))
    ratio = rates["service"] / rates["direct"]
    name = f"shard: {writers} writers, {kind}, service ÷ direct"
    return [*found, result(name, [ratio], "×", None, "more", f"{kind}, synced; 2 cores for all of them")]


def _idle() -> list[Result]:
    """A process with a reader on each of many shards of which nobody hears anything."""
    with folder() as place, strandline.open(place / "lake", create=True) as lake:
        repo = lake.repository("bench", create=True)
        shards = [repo.shard(f"s{number}", SCHEMA, key=["id"]) for number in range(IDLE_SHARDS)]
        readers = []
        for shard in shards:
            with shard.writer() as writer:
                writer.append_next([((1, 0.5), 0, 1)])
            readers.append(shard.reader())
        time.sleep(1)
        before = _asked(shards)
        used = time.process_time()
        time.sleep(IDLE_SECONDS)
        used = time.process_time() - used
        asked = _asked(shards) - before
        for reader in readers:
            reader.close()
    requests = sum(asked.values())
    told = ", ".join(f"{count} {kind}" for kind, count in sorted(asked.items())) or "none"
    where = f"a leased reader on each; requests in {IDLE_SECONDS:g} s: {told}"
    return [
        result("shard: 1,000 idle shards", [100 * used / IDLE_SECONDS], "% of a core", 1, "less", where),
        result("shard: requests of 1,000 idle shards", [requests / IDLE_SECONDS], "/s", None, "less", where),
    ]


def _asked(shards: list[Shard]) -> Counter[str]:
    found: Counter[str] = Counter()
    for shard in shards:
        found.update({kind: count.requests for kind, count in shard.counts.items()})
    return found
