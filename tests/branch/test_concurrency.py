"""Threads and processes on real stores, some of them killed: no acknowledged write is lost."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import strandline
from strandline.errors import NothingToCommit
from strandline.lake import Lake
from tests.harness.clients import content, link
from tests.harness.servers import wait_until

WRITERS, WRITES, COMMITTERS = 4, 60, 2


@pytest.fixture(params=["sqlite", "memory", "postgres", "redis"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lake]:
    if request.param == "sqlite":
        lake = strandline.open(tmp_path / "lake", create=True)
    elif request.param == "memory":
        lake = strandline.open(f"memory://{uuid.uuid4().hex}", create=True)
    else:
        url = request.getfixturevalue(f"{request.param}_url")
        option = "table=t" if request.param == "postgres" else "prefix="
        lake = strandline.open(kv=f"{url}?{option}{uuid.uuid4().hex}", blob=str(tmp_path / "data"), create=True)
    with lake:
        yield lake


@pytest.mark.server
def test_no_acknowledged_write_of_many_threads_is_lost(opened: Lake) -> None:
    repo = opened.repository("nyc", create=True)
    stop, errors = threading.Event(), list[BaseException]()
    last: dict[str, str] = {}

    def guarded(work: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            try:
                work()
            except BaseException as error:
                errors.append(error)
                stop.set()

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def write(who: int) -> None:
        main, rnd = repo.branch("main"), random.Random(who)
        for i in range(WRITES):
            path, value = f"w{who}/k{rnd.randrange(8)}", f"{who}-{i}"
            link(main, path, value)
            last[path] = value
            if content(main, path) != value:  # nobody else writes here
                raise AssertionError(f"{path} is {content(main, path)}, not {value}")

    def commit(who: int) -> None:
        main = repo.branch("main")
        while not stop.is_set():
            try:
                main.commit(f"by {who}")
            except NothingToCommit:
                time.sleep(0.001)

    def rename() -> None:
        main = repo.branch("main")
        for i in range(15):
            main.put_many({f"pair/{i}/a": b"1", f"pair/{i}/b": b"1"})
            main.rename(f"pair/{i}/", f"moved/{i}/")
            found = [info.path for info in main.list(f"moved/{i}/")]
            if found != [f"moved/{i}/a", f"moved/{i}/b"]:
                raise AssertionError(found)

    writers = [guarded(lambda who=who: write(who)) for who in range(WRITERS)] + [guarded(rename)]
    committers = [guarded(lambda who=who: commit(who)) for who in range(COMMITTERS)]
    for thread in writers:
        thread.join()
    stop.set()
    for thread in committers:
        thread.join()
    assert errors == []
    main = repo.branch("main")
    assert {path: content(main, path) for path in last} == last
    main.commit("the end", allow_empty=True)
    head = repo.ref("main@")
    assert {path: head.stat(path).checksum.removeprefix("sum:") for path in last} == last
    chain = list(head.log())
    assert [commit.generation for commit in chain] == list(range(len(chain), 0, -1))


WORKER = """
import sys, random, strandline
from strandline.errors import NothingToCommit
from strandline.tree.rows import Entry
kind, folder, who, kv, blob = sys.argv[1:6]
lake = strandline.open(kv=kv, blob=blob) if kv else strandline.open(folder)
main = lake.repository("nyc").branch("main")
rnd = random.Random(who)
i = 0
while True:
    i += 1
    if kind == "commit":
        try:
            main.commit(f"{who} {i}")
        except NothingToCommit:
            pass
        print(i, flush=True)
    else:
        path = f"{who}/k{rnd.randrange(20)}"
        main.stage(path, Entry("x", 1, f"{i:09d}", 1))
        print(path, i, flush=True)
"""


class Worker:
    """A process that writes or commits, and tells of every write that was acknowledged."""

    def __init__(self, kind: str, folder: Path, who: str, kv: str, blob: str) -> None:
        self.enough = 30 if kind == "write" else 3
        self.log = folder / f"{who}.log"
        self.out = self.log.open("w")
        self.errors = (folder / f"{who}.err").open("w")
        command = [sys.executable, "-c", WORKER, kind, str(folder / "lake"), who, kv, blob]
        self.process = subprocess.Popen(command, stdout=self.out, stderr=self.errors)

    def works(self) -> None:
        """Wait until it has done something worth killing it for, however slow the machine is."""
        wait_until(lambda: len(self.log.read_text().splitlines()) > self.enough, self.process, Path(self.errors.name))

    def kill(self) -> None:
        assert self.process.poll() is None, Path(self.errors.name).read_text()
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.out.close()
        self.errors.close()

    def acknowledged(self) -> dict[str, int]:
        whole = self.log.read_text().rpartition("\n")[0]  # a killed process may leave half a line
        return {path: int(number) for path, number in (line.split(" ") for line in whole.splitlines() if " " in line)}


@pytest.mark.server
@pytest.mark.parametrize("backend", ["sqlite", "postgres"])
def test_processes_that_are_killed_at_random_lose_nothing(
    backend: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    kv = blob = ""
    if backend == "postgres":
        kv = f"{request.getfixturevalue('postgres_url')}?table=t{uuid.uuid4().hex}"
        blob = str(tmp_path / "data")
    with strandline.open(*([] if kv else [tmp_path / "lake"]), kv=kv or None, blob=blob or None, create=True) as lake:
        repo = lake.repository("nyc", create=True)
        rnd = random.Random(7)
        done: list[Worker] = []
        running = [Worker("write", tmp_path, f"w{n}", kv, blob) for n in range(2)]
        running += [Worker("commit", tmp_path, f"c{n}", kv, blob) for n in range(2)]
        for n in range(8):
            victim = running.pop(rnd.randrange(len(running)))
            kind = "commit" if "/c" in str(victim.log) else "write"
            victim.works()
            time.sleep(rnd.uniform(0, 0.5))
            victim.kill()
            done.append(victim)
            running.append(Worker(kind, tmp_path, f"{kind[0]}{n + 10}", kv, blob))
        for worker in running:
            worker.works()
            worker.kill()
        acknowledged = {path: number for worker in done + running for path, number in worker.acknowledged().items()}
        assert len(acknowledged) > 20
        main = repo.branch("main")
        # a write that was killed before it could tell may be there too
        assert all(int(main.stat(path).checksum) >= number for path, number in acknowledged.items())
        main.commit("the end", allow_empty=True)
        head = repo.ref("main@")
        assert all(int(head.stat(path).checksum) >= number for path, number in acknowledged.items())
        for commit in list(head.log(amount=50)):
            assert repo.ref(commit.id).list().to_arrow().num_rows >= 0  # every tree that is referred to is there


def test_handles_survive_a_fork(tmp_path: Path) -> None:
    with strandline.open(tmp_path / "lake", create=True) as lake:
        main = lake.repository("nyc", create=True).branch("main")
        main.put("before", b"1")
        main.commit("parent")
        list(main.list())
        child = os.fork()
        if child == 0:
            code = 1
            try:
                main.put("child", b"2")
                main.commit("child")
                code = 0 if main.read("before") == b"1" else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert main.read("child") == b"2"
        main.put("after", b"3")
        main.commit("parent again")
        assert [commit.message for commit in main.log()][:3] == ["parent again", "child", "parent"]
