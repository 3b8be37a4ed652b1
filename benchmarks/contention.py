"""How do writers, committers and readers of one branch get on: shared reads, a commit of a million, PostgreSQL?"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import strandline
from benchmarks.harness import Result, entries, folder, one_entry, result, setting
from strandline.branch.shared_read import SharedRead
from strandline.repository.branch import Branch
from strandline.testing.counting import CountingStore

MILLION = 1_000_000
WRITER = """
import sys, time, strandline
from strandline.tree.rows import Entry
main = strandline.open(sys.argv[1]).repository("bench").branch("main")
number, until = 0, time.monotonic() + 0.05
print("ready", flush=True)
while True:
    main.stage(f"beside/{number % 50_000:06d}", Entry(f"data/{number}", 1, f"c{number}", 1))
    number += 1
    if time.monotonic() >= until:
        print(time.monotonic(), number, flush=True)
        until += 0.05
"""


def run() -> list[Result]:
    return [*_beside_a_commit(), *_on_postgres()]


def _beside_a_commit() -> list[Result]:
    """One writer in a process of its own, and a commit of a million entries in another."""
    ratios, durations = [], []
    for number in range(3):
        with folder() as place, strandline.open(place / "lake", create=True, compaction=False) as lake:
            main = lake.repository("bench", create=True).branch("main")
            for first in range(0, MILLION, 200_000):
                main.stage_each(entries(f"t{number}-{first}", 200_000))
            command = [sys.executable, "-c", WRITER, str(place / "lake")]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
                assert writer.stdout is not None
                writer.stdout.readline()
                time.sleep(3)
                began = time.monotonic()
                main.commit("a million")
                ended = time.monotonic()
                time.sleep(3)
                writer.kill()
                samples = [line.split() for line in writer.stdout.read().splitlines()[:-1]]
            points = [(float(at), int(count)) for at, count in samples]
            during = _rate(points, began, ended)
            alone = (_rate(points, began - 2.5, began - 0.1) + _rate(points, ended + 0.2, ended + 2.7)) / 2
            ratios.append(during / alone * 100)
            durations.append(ended - began)
    return [
        result("writer's rate during a commit of 1,000,000 ÷ alone", ratios, "%", 90, "more", setting(True)),
        result("that commit, beside the writer", durations, "s", None, "less", setting(True)),
    ]


def _rate(points: list[tuple[float, int]], start: float, end: float) -> float:
    inside = [(at, count) for at, count in points if start <= at <= end]
    (first, few), (last, many) = inside[0], inside[-1]
    return (many - few) / (last - first)


@contextmanager
def _postgres_branch() -> Iterator[tuple[Branch, CountingStore]]:
    from tests.harness import servers

    if "STRANDLINE_TEST_POSTGRES_BIN" not in os.environ:
        subprocess.run(["scripts/setup.sh", "servers"], cwd=Path(__file__).parents[1], check=True)
        lines = (Path(__file__).parents[1] / ".cache" / "env").read_text().splitlines()
        binary = next(line.split("=", 1)[1].strip("'") for line in lines if "STRANDLINE_TEST_POSTGRES_BIN" in line)
        os.environ["STRANDLINE_TEST_POSTGRES_BIN"] = binary
    with (
        servers.postgres() as url,
        folder() as place,
        strandline.open(kv=f"{url}?table=bench", blob=str(place), create=True, compaction=False) as lake,
    ):
        counting = CountingStore(lake._kv)
        lake._kv = counting
        yield lake.repository("bench", create=True).branch("main"), counting


def _on_postgres() -> list[Result]:
    found = []
    where = "PostgreSQL, synced, 2 cores"
    with _postgres_branch() as (main, store):
        for threads in (1, 8, 64):
            each = 2_400 // threads
            rates, reads = {True: [], False: []}, {True: [], False: []}  # type: dict[bool, list[float]], dict[bool, list[float]]
            for turn in range(5):
                for is_shared in (True, False) if turn % 2 else (False, True):
                    before = store.calls["get"]
                    with patch.object(SharedRead, "__call__", SharedRead.__call__ if is_shared else _unshared):
                        rates[is_shared].append(_stage(main, threads, each))
                    reads[is_shared].append((store.calls["get"] - before) / (threads * each))
            target = 2_000 if threads == 8 else None
            name = f"stage one by one, {threads} thread{'s' * (threads > 1)}"
            found.append(result(f"{name}, reads shared", rates[True], "writes/s", target, "more", where))
            found.append(result(f"{name}, not shared", rates[False], "writes/s", None, "more", where))
            found.append(
                result(f"branch reads a write, {threads} threads, shared", reads[True], "", None, "less", where)
            )
    return found


def _unshared(self: SharedRead[bytes | None]) -> bytes | None:
    return self._read()


def _stage(main: Branch, threads: int, each: int) -> float:
    entry = one_entry(1)

    def work(who: int) -> None:
        for i in range(each):
            main.stage(f"one/{who}/{i:06d}", entry)

    workers = [threading.Thread(target=work, args=(who,)) for who in range(threads)]
    started = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return threads * each / (time.perf_counter() - started)
