"""Real processes, killed at random and replaced; then every acknowledged write is looked for."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

import strandline
from strandline.errors import ObjectNotFound
from strandline.repository.branch import Branch
from strandline.repository.refs.ref import Ref
from tests.harness import servers

LOAD_S = float(os.environ.get("STRANDLINE_TEST_LOAD_S", "20"))
CREW = ("write",) * 4 + ("commit",) * 2 + ("compact",)
WORKER = """
import random, sys, time, strandline
from strandline.errors import Contention, NothingToCommit, StoreUnavailable
kind, folder, who, kv, blob = sys.argv[1:6]
open_it = lambda: strandline.open(kv=kv, blob=blob, synced=False) if kv else strandline.open(folder, synced=False)
rnd = random.Random(who)
number = 0
main = None
while True:
    try:
        if main is None:
            main = open_it().repository("nyc").branch("main")
        number += 1
        if kind == "commit":
            main.commit(f"{who} {number}")
            print("committed", flush=True)
            time.sleep(rnd.random() * 0.02)
        elif kind == "compact":
            main.compact(force=True)
            print("compacted", flush=True)
            time.sleep(rnd.random() * 0.05)
        else:
            path = f"{who}/{rnd.randrange(12)}"
            if rnd.random() < 0.25:
                main.delete_many([path])
                print(path, number, "deleted", flush=True)
            else:
                main.put(path, str(number))
                print(path, number, "put", flush=True)
    except NothingToCommit:
        time.sleep(0.005)
    except Contention as error:
        print("contention", error, file=sys.stderr, flush=True)
    except StoreUnavailable:
        time.sleep(0.1)  # the server is being started again: the write may be there, or not
"""


class Worker:
    def __init__(self, kind: str, folder: Path, number: int, kv: str, blob: str) -> None:
        self.kind = kind
        name = f"{kind}{number}"
        self.log, self.errors = folder / f"{name}.log", folder / f"{name}.err"
        with self.log.open("w") as out, self.errors.open("w") as err:
            command = [sys.executable, "-c", WORKER, kind, str(folder / "lake"), name, kv, blob]
            self.process = subprocess.Popen(command, stdout=out, stderr=err)

    def kill(self) -> None:
        """Kill it at any moment after its first call: how long a process takes to start says nothing about ours."""
        while not self.log.stat().st_size and self.process.poll() is None:
            time.sleep(0.01)
        assert self.process.poll() is None, self.errors.read_text()
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def acknowledged(self) -> dict[str, tuple[int, str]]:
        """The last acknowledged change of each path."""
        whole = self.log.read_text().rpartition("\n")[0]  # a killed process may leave half a line
        lines = [line.split(" ") for line in whole.splitlines() if " " in line]
        return {path: (int(number), what) for path, number, what in lines}


def check(ref: Ref, acknowledged: dict[str, tuple[int, str]]) -> None:
    """Each path holds what was acknowledged last, or what was written after that and had no reply."""
    for path, (number, what) in acknowledged.items():
        try:
            found = int(ref.read(path))
        except ObjectNotFound:
            found = None
        if found is None:
            # a later delete without a reply is possible only for the last call of a process
            assert what == "deleted" or is_last(path, number, acknowledged), (path, number, what)
        else:
            assert found >= number, (path, number, what, found)


def is_last(path: str, number: int, acknowledged: dict[str, tuple[int, str]]) -> bool:
    mine = [other for name, (other, _) in acknowledged.items() if name.partition("/")[0] == path.partition("/")[0]]
    return number < max(mine) + 2


def load(folder: Path, kv: str, blob: str, midway: Callable[[], None]) -> list[Worker]:
    """Run the crew for a while, kill one after the other, replace each, and do something midway."""
    rnd = random.Random(11)
    numbers = iter(range(10_000))
    running = [Worker(kind, folder, next(numbers), kv, blob) for kind in CREW]
    ended: list[Worker] = []
    try:
        started, is_midway = time.monotonic(), False
        time.sleep(min(3.0, LOAD_S / 4))
        while time.monotonic() - started < LOAD_S:
            time.sleep(rnd.uniform(0.3, 1.5))
            if not is_midway and time.monotonic() - started > LOAD_S / 2:
                is_midway = True
                midway()
            victim = running.pop(rnd.randrange(len(running)))
            victim.kill()
            ended.append(victim)
            running.append(Worker(victim.kind, folder, next(numbers), kv, blob))
        time.sleep(2)
    finally:
        for worker in running:
            worker.process.kill()
            worker.process.wait()
    return ended + running


@pytest.mark.server
@pytest.mark.timeout(280 + LOAD_S)
@pytest.mark.parametrize("backend", ["sqlite", "postgres"])
def test_processes_that_are_killed_and_replaced_lose_nothing(backend: str, tmp_path: Path) -> None:
    if backend == "sqlite":
        with strandline.open(tmp_path / "lake", create=True) as lake:
            lake.repository("nyc", create=True)
        workers = load(tmp_path, "", "", lambda: None)
        with strandline.open(tmp_path / "lake") as lake:
            judge(lake, workers)
        return
    with servers.postgres_server() as server:
        kv, blob = f"{server.url}?table=t{uuid.uuid4().hex}", str(tmp_path / "data")
        with strandline.open(kv=kv, blob=blob, create=True) as lake:
            lake.repository("nyc", create=True)

        def restart() -> None:
            server.crash()
            time.sleep(1)
            server.begin()

        workers = load(tmp_path, kv, blob, restart)
        with strandline.open(kv=kv, blob=blob) as lake:
            judge(lake, workers)


def judge(lake: strandline.Lake, workers: list[Worker]) -> None:
    repo = lake.repository("nyc")
    main: Branch = repo.branch("main")
    acknowledged = {path: change for worker in workers for path, change in worker.acknowledged().items()}
    assert len(acknowledged) > 50
    contention = [worker.errors.read_text() for worker in workers if "contention" in worker.errors.read_text()]
    assert contention == []
    check(main, acknowledged)
    main.commit("the end", allow_empty=True)
    check(repo.ref("main@"), acknowledged)
    commits = list(repo.ref("main@").log())
    assert len(commits) > 10
    assert [commit.generation for commit in commits] == list(range(len(commits), 0, -1))
    moves = list(main.reflog())
    assert [move.after for move in moves] == [commit.id for commit in commits][: len(moves)]
    for _ in range(2):
        repo.sweep(after_s=0, again_after_s=0, private_after_s=0)
    audit = repo.fsck()
    assert audit.problems == []
    assert audit.is_sound
    assert (audit.commits, audit.branches) == (len(commits), 1)
    assert audit.objects >= len(acknowledged) / 4
    assert audit.orphans > 0  # what was overwritten before a commit, and trees of commits that lost
