"""Drivers of Spark jobs are killed before and after calls of the stores, and at random moments; rows are counted.

`make kills KILLS=all` kills at every call and at 200 random moments, `make kills` at some of them.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import pytest

import strandline
from strandline.lake import Lake
from tests.harness import sessions
from tests.harness.killing import ALL, RANDOM_MOMENTS, some_of
from tests.transactions.killed_driver import ROWS, run

pytestmark = [pytest.mark.spark, pytest.mark.server, pytest.mark.kill]

SAMPLES = 8
WAIT_S = 60.0


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with sessions.connect_server(tmp_path_factory.mktemp("connect")) as url:
        yield url


class Place:
    """A lake, and the drivers that work in it one after the other."""

    run: ClassVar[Callable[..., None]] = staticmethod(run)

    def __init__(self, folder: Path, remote: str) -> None:
        self.folder = folder
        self.remote = remote
        self.number = 0
        self.tokens: list[str] = []
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload([self.run.__module__, "pyspark.sql.connect.session"])
        with strandline.open(folder / "lake", create=True, synced=False) as lake:
            lake.repository("nyc", create=True)

    def start(self, token: str, at: int = 0, when: str = "before", what: int = signal.SIGKILL) -> Driver:
        self.number += 1
        arguments = (str(self.folder), self.remote, self.number, at, when, int(what), token)
        process = self.context.Process(target=self.run, args=arguments)
        process.start()
        return Driver(self, self.number, process)

    def token(self) -> str:
        self.tokens.append(f"run-{len(self.tokens)}")
        return self.tokens[-1]

    def check(self, lake: Lake) -> None:
        """Each run's rows are there exactly once."""
        main = lake.repository("nyc").branch("main")
        rows = main.table("t").to_arrow()
        found = Counter(zip(rows["run"].to_pylist(), rows["id"].to_pylist(), strict=True))
        assert found == Counter((token, id) for token in self.tokens for id in range(ROWS))


class Driver:
    def __init__(self, place: Place, number: int, process: multiprocessing.process.BaseProcess) -> None:
        self.process = process
        self._end = place.folder / f"end-{number}"

    def join(self) -> str:
        """How it ended: "committed", "repeat", "fenced"; or "killed"."""
        self.process.join(WAIT_S)
        assert not self.process.is_alive(), "the driver hangs"
        if self.process.exitcode == -signal.SIGKILL:
            return "killed"
        assert self.process.exitcode == 0
        return self.told()[0]

    def told(self) -> list[str]:
        return self._end.read_text().split()

    def is_stopped(self) -> bool:
        try:
            status = Path(f"/proc/{self.process.pid}/stat").read_text()
        except FileNotFoundError:
            return False
        return status.rpartition(")")[2].split()[0] == "T"


@pytest.fixture
def place(tmp_path: Path, remote: str) -> Place:
    return Place(tmp_path, remote)


def succeed(place: Place, token: str, after: str) -> str:
    """A successor runs the same job again: its rows, and no others, are there once."""
    ended = place.start(token).join()
    assert ended in ("committed", "repeat")
    return f"{after}, then {ended}"


@pytest.mark.timeout(3_600)
def test_a_driver_is_killed_at_calls_of_its_stores(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    first = place.start(place.token())
    assert first.join() == "committed"
    calls = int(first.told()[1])
    every = [(at, when) for at in range(1, calls + 2) for when in ("before", "after")]
    chosen = some_of(every, SAMPLES)
    outcomes: Counter[str] = Counter()
    with strandline.open(place.folder / "lake", synced=False) as lake:
        for at, when in chosen:
            token = place.token()
            outcomes[succeed(place, token, place.start(token, at, when).join())] += 1
            place.check(lake)
        _clean_up(place, lake)
    assert outcomes["killed, then committed"]
    with capsys.disabled():
        print(f"\n{len(chosen)} of {len(every)} calls: {dict(outcomes)}")


@pytest.mark.timeout(3_600)
def test_a_driver_is_killed_at_random_moments(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    outcomes: Counter[str] = Counter()
    rnd = random.Random(6)
    assert place.start(place.token()).join() == "committed"
    with strandline.open(place.folder / "lake", synced=False) as lake:
        for _ in range(RANDOM_MOMENTS):
            token = place.token()
            victim = place.start(token)
            time.sleep(rnd.uniform(0.1, 1.6))
            if victim.process.is_alive():
                victim.process.kill()
            outcomes[succeed(place, token, victim.join())] += 1
            place.check(lake)
        _clean_up(place, lake)
    with capsys.disabled():
        print(f"\n{RANDOM_MOMENTS} random moments: {dict(outcomes)}")


@pytest.mark.timeout(3_600)
def test_a_paused_driver_goes_on_after_its_successor_has_published(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    first = place.start(place.token())
    assert first.join() == "committed"
    calls = int(first.told()[1])
    outcomes: Counter[str] = Counter()
    chosen = range(1, calls + 1) if ALL else range(2, calls + 1, max(1, calls // 5))
    with strandline.open(place.folder / "lake", synced=False) as lake:
        for at in chosen:
            token = place.token()
            zombie = place.start(token, at, "before", signal.SIGSTOP)
            deadline = time.monotonic() + WAIT_S
            while not zombie.is_stopped() and zombie.process.is_alive() and time.monotonic() < deadline:
                time.sleep(0.02)
            ended = place.start(token).join()
            place.check(lake)
            _collect(lake)  # what it may still refer to goes as soon as it can
            if zombie.process.is_alive() and zombie.process.pid is not None:
                os.kill(zombie.process.pid, signal.SIGCONT)
            outcomes[f"successor {ended}, zombie {zombie.join()}"] += 1
            place.check(lake)
        _clean_up(place, lake)
    assert outcomes["successor committed, zombie fenced"]
    with capsys.disabled():
        print(f"\n{len(chosen)} pauses: {dict(outcomes)}")


def _collect(lake: Lake) -> None:
    lake.repository("nyc").gc.run(grace_days=7)


def _clean_up(place: Place, lake: Lake) -> None:
    """Operators end what drivers have left; then nothing that nothing refers to survives, and nothing else goes."""
    repo = lake.repository("nyc")
    main = repo.branch("main")
    for found in list(main.transactions):
        if found.state in ("open", "rejected-pending"):
            main.transactions.recover(found.id)
    for _ in range(3):  # a commit that nobody made a head is noted, then expires, then its files go
        repo.gc.run(grace_days=0)
        time.sleep(0.02)  # the clock of the file system ticks every few milliseconds
    place.check(lake)
    audit = repo.fsck()
    assert audit.is_sound
    assert audit.orphans == 0
