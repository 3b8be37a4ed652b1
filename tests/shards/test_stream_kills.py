"""Streaming queries from a shard into others, whose executors and drivers are killed while they run.

At calls of the stores: each of the four kinds of Python processes that a query has. At random moments: executors and
the driver, with a Python sink and a native one. `make kills KILLS=all` kills at all calls and at 200 moments.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pytest

import strandline
from strandline.shards.shard import Shard
from tests.harness import sessions
from tests.harness.killing import ALL, RANDOM_MOMENTS, some_of
from tests.shards.struck_source import ROLES, Strike, StruckSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.server, pytest.mark.kill, pytest.mark.timeout(7_200)]
ROOT = Path(__file__).parents[2]
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
SAMPLES = 2
MOMENTS = RANDOM_MOMENTS if ALL else 3
STARTS_MAX = 10
WAIT_S = 120


class Place:
    """A lake with the shard "it", which rows are appended to, and the shards that queries copy it to."""

    def __init__(self, folder: Path, *copies: str) -> None:
        self.folder = folder
        self.url = str(folder / "lake")
        self.lake = strandline.open(self.url, create=True, synced=False)
        repo = self.lake.repository("nyc", create=True)
        self.source = repo.shard("it", SCHEMA, key=["id"])
        self.source._machine.place.inline_max_bytes = 0  # tasks have something to read
        self.copies = [repo.shard(name, SCHEMA, key=["id"]) for name in copies]
        self.rows = 0

    def grow(self, rows: int = 6) -> None:
        new = range(self.rows, self.rows + rows)
        half = rows // 2
        for ids in (new[:half], new[half:]):
            self.source.writer().append_next(pa.table({"id": list(ids), "name": [f"n{id % 3}" for id in ids]}))
        self.rows += rows

    def is_copied(self, shard: Shard) -> bool:
        """Whether a copy has all rows; that it has none twice, and no others, is asserted."""
        found = held(shard)
        assert found <= self.expected, found - self.expected
        return found == self.expected

    @property
    def expected(self) -> Counter[tuple[Any, ...]]:
        return Counter({(id, f"n{id % 3}"): 1 for id in range(self.rows)})

    def clean(self) -> None:
        """Upkeep after many deaths takes nothing that is referred to."""
        for shard in self.copies:
            shard.compact(full=True)
            shard.collect()
            shard.sweep(after_s=0)
            assert self.is_copied(shard)


def held(shard: Shard) -> Counter[tuple[Any, ...]]:
    if not shard.state.upper:
        return Counter()
    table = shard.snapshot().to_arrow()
    found: Counter[tuple[Any, ...]] = Counter()
    for id, name, diff in zip(*(table[column].to_pylist() for column in ("id", "name", "_diff")), strict=True):
        found[id, name] += diff
    return found


def test_processes_of_a_query_are_killed_at_calls_of_the_stores(
    tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    place = Place(tmp_path, "copy")
    strikes = tmp_path / "strikes"
    strikes.mkdir()
    strike = Strike(strikes)
    spark.dataSource.register(StruckSource)
    options = {"lake": place.url, "strikes": str(strikes), "reader": "copy", "writer": "copy"}

    def drained() -> str:
        """One run of the query; how it ended."""
        source = spark.readStream.format("struck.shard").options(**options).load("nyc/it").drop("_time")
        sink = source.writeStream.format("struck.shard").options(**options, path="nyc/copy")
        query = sink.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        try:
            query.awaitTermination(WAIT_S)
        except Exception:
            if not strike.has_struck():
                raise
            return "stopped"
        assert not query.isActive
        return "went on"

    for _ in range(2):  # the first run makes what later ones find, and the second commits what it has read
        strike.forget()
        place.grow()
        assert drained() == "went on"
    [copy] = place.copies
    assert place.is_copied(copy)
    outcomes: Counter[tuple[str, str]] = Counter()
    for role in ROLES:
        assert strike.calls(role), role
        every = [(at, when) for at in range(1, strike.calls(role) + 1) for when in ("before", "after")]
        for at, when in some_of(every, SAMPLES):
            place.grow()
            strike.order(role, at, when)
            ended = drained()
            if strike.withdraw():
                ended = "not met"
            for _ in range(STARTS_MAX):
                if place.is_copied(copy):
                    break
                drained()
            assert place.is_copied(copy)
            outcomes[role, ended] += 1
    place.clean()
    place.lake.close()
    with capsys.disabled():
        told = ", ".join(f"{role} {ended} {count}" for (role, ended), count in sorted(outcomes.items()))
        print(f"\nprocesses of a query, killed at calls: {told}")
    met = sum(count for (_, ended), count in outcomes.items() if ended != "not met")
    assert met * 2 >= outcomes.total(), "processes make fewer calls than before, so that most strikes were none"
    for role in ("read", "write"):
        assert outcomes[role, "went on"], "executors that die are none of the query's business"
    for role in ("source", "commit"):
        assert outcomes[role, "stopped"]


def test_executors_and_drivers_of_queries_are_killed_at_random_moments(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Executors are processes of a small cluster; the driver is a Connect server, killed with all that it started."""
    place = Place(tmp_path, "python", "native")
    chance = random.Random(17)
    victims: Counter[str] = Counter()
    with Queries(place) as queries:
        queries.start()
        queries.wait_for_copies()
        for number in range(MOMENTS):
            victim = "driver" if number % 3 == 1 else "executor"
            place.grow()
            time.sleep(chance.uniform(0, 3))
            if victim == "driver":
                queries.kill()
                queries.start()
            else:
                os.kill(chance.choice(queries.executors()), signal.SIGKILL)
            victims[victim] += 1
            for shard in place.copies:
                place.is_copied(shard)
        place.grow()
        queries.wait_for_copies()
    place.clean()
    place.lake.close()
    with capsys.disabled():
        print(f"\nkilled at random moments of two queries: {dict(victims)}; {place.rows} rows, each there once")


class Queries:
    """The queries of `killed_streams`, their driver, and its executors: all are processes of their own."""

    CLUSTER: ClassVar[dict[str, str]] = {
        "spark.executor.memory": "512m",
        "spark.task.maxFailures": "100",
        "spark.stage.maxConsecutiveAttempts": "100",
        "spark.deploy.maxExecutorRetries": "-1",
    }

    def __init__(self, place: Place) -> None:
        self.place = place
        self.server = sessions.ConnectServer(place.folder, "local-cluster[2,1,768]", **self.CLUSTER)
        self.client: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Queries:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        self.server.start()
        command = [sys.executable, "-m", "tests.shards.killed_streams", self.server.url, self.place.url]
        with (self.place.folder / "client.log").open("ab") as log:
            self.client = subprocess.Popen([*command, str(self.place.folder)], stdout=log, stderr=log, cwd=ROOT)

    def executors(self) -> list[int]:
        """Those that run; waits until there is one."""
        deadline = time.monotonic() + WAIT_S
        while not (found := self.server.executors()):
            assert time.monotonic() < deadline, "no executor comes"
            time.sleep(0.1)
        return found

    def kill(self) -> None:
        if self.client is not None:
            self.client.kill()
            self.client.wait(30)
        self.server.kill()

    def wait_for_copies(self) -> None:
        deadline = time.monotonic() + WAIT_S
        while not all(self.place.is_copied(shard) for shard in self.place.copies):
            assert self.client is not None
            is_running = self.client.poll() is None and time.monotonic() < deadline
            assert is_running, (self.place.folder / "client.log").read_text()[-3_000:]
            time.sleep(0.3)
