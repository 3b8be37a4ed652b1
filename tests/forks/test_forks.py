"""Whoever forks, from idle or busy threads, whoever ends first and how: nothing acknowledged is lost, nobody hangs.

Where a store cannot work in a child, the child is refused at once, and the error says what to do.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import strandline
from strandline.errors import StoreUnavailable
from strandline.kv import fork_gate
from strandline.kv.sqlite import SqliteStore
from strandline.lake import Lake
from tests.forks import process
from tests.forks.process import Plan

FORKERS = ("os.fork", "multiprocessing")
ENDS = (
    ("parent", "close"),
    ("parent", "return"),
    ("parent", "_exit"),
    ("parent", "kill"),
    ("child", "close"),
    ("child", "return"),
    ("child", "_exit"),
    ("child", "kill"),
)
HANDLES = ("inherited", "opened")
MATRIX = [
    Plan({}, forker, busy, first, end, handle)
    for forker, busy, (first, end), handle in itertools.product(FORKERS, (False, True), ENDS, HANDLES)
]
SOME = [MATRIX[at] for at in range(0, len(MATRIX), 9)]
"""For stores whose clients are made for forks: each value of each column with each of most others."""

fresh = multiprocessing.get_context("forkserver")
fresh.set_forkserver_preload(["tests.forks.process"])


def history(plan: Plan, log: Path) -> dict[str, list[list[str]]]:
    """Run a plan to its end, the child's included; what was written down, by kind."""
    environment = {name: value for name, value in os.environ.items() if name.startswith(("STRANDLINE_", "AWS_"))}
    ended, mine = fresh.Pipe(duplex=False)
    parent = fresh.Process(target=process.run, args=(plan, str(log), environment))
    parent.start()
    mine.close()
    ended.close()
    parent.join(process.LIMIT_S)
    assert not parent.is_alive(), "the parent hangs"
    found: dict[str, list[list[str]]] = {"put": [], "commit": [], "error": [], "refused": []}
    until = time.monotonic() + process.LIMIT_S
    while time.monotonic() < until and _is_open_elsewhere(log):
        time.sleep(0.005)
    for line in log.read_text().splitlines():
        kind, *words = line.split("\t")
        found[kind].append(words)
    return found


def _is_open_elsewhere(log: Path) -> bool:
    """Whether a process that the forkserver began, or a child of it, still has the log."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and entry.name != str(os.getpid()):
            try:
                if any(os.readlink(link) == str(log) for link in (entry / "fd").iterdir()):
                    return True
            except OSError:
                continue
    return False


def check(plan: Plan, log: Path) -> None:
    with strandline.open(**plan.lake, create=True) as lake:
        lake.repository("nyc", create=True)
    found = history(plan, log)
    assert found["error"] == []
    assert found["refused"] == []
    with strandline.open(**plan.lake) as lake:
        repo = lake.repository("nyc")
        main = repo.branch("main")
        there = {info.path for info in main.list()}
        assert [path for (path,) in found["put"] if path not in there] == []
        commits = {commit.id for commit in main.log()}
        assert [id for (id,) in found["commit"] if id not in commits] == []
        assert repo.fsck(content=True).is_sound
    whole = {"before", "child", "child alone"} if plan.first == "parent" else {"before", "child", "after the child"}
    assert whole <= {path.partition("/")[0] for path in there}


@pytest.mark.parametrize("plan", MATRIX, ids=str)
def test_nothing_is_lost_on_sqlite(plan: Plan, tmp_path: Path) -> None:
    check(replace(plan, lake={"location": str(tmp_path / "lake"), "synced": False}), tmp_path / "log")


@pytest.mark.server
@pytest.mark.parametrize("kv", ["postgres", "redis"])
@pytest.mark.parametrize("plan", SOME, ids=str)
def test_nothing_is_lost_on_a_server(plan: Plan, kv: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    url = request.getfixturevalue(f"{kv}_url")
    option = "table=t" if kv == "postgres" else "prefix="
    lake = {"kv": f"{url}?{option}{uuid.uuid4().hex}", "blob": str(tmp_path / "data"), "synced": False}
    check(replace(plan, lake=lake), tmp_path / "log")


@pytest.mark.server
@pytest.mark.parametrize("handle", HANDLES)
def test_the_child_of_a_process_that_used_s3_is_refused_at_once(handle: str, tmp_path: Path, s3_endpoint: str) -> None:
    blob = f"s3://lake/{tmp_path.name}?endpoint={s3_endpoint}&region=us-east-1"
    lake: dict[str, Any] = {"kv": f"sqlite://{tmp_path}/metadata.db", "blob": blob}
    with strandline.open(**lake, create=True) as opened:
        opened.repository("nyc", create=True)
    started = time.monotonic()
    found = history(Plan(lake, "os.fork", False, "child", "close", handle), tmp_path / "log")
    ((what, advice),) = found["refused"]
    assert "before it was forked" in what
    assert "spawn" in advice
    assert found["error"] == []
    assert time.monotonic() - started < process.LIMIT_S / 2
    with strandline.open(**lake) as opened:
        main = opened.repository("nyc").branch("main")
        assert {path for (path,) in found["put"]} == {info.path for info in main.list()}


@pytest.mark.parametrize("where", ["kv and blob", "kv", "blob"])
def test_the_child_of_a_process_with_a_lake_in_memory_is_refused_at_once(where: str, tmp_path: Path) -> None:
    """Even a read: what the child sees is a copy, which nobody keeps up to date."""
    name = uuid.uuid4().hex
    lake: dict[str, Any] = {
        "kv": f"sqlite://{tmp_path}/metadata.db" if where == "blob" else f"memory://{name}",
        "blob": str(tmp_path / "data") if where == "kv" else f"memory://{name}",
    }
    with strandline.open(**lake, create=True) as opened:
        main = opened.repository("nyc", create=True).branch("main")
        main.put("a", b"1")

        def child(results: Any) -> None:
            for act in (lambda: main.put("b", b"2"), lambda: main.read("a")):
                try:
                    act()
                    results.put("done")
                except StoreUnavailable as error:
                    results.put((error.happened, error.next))

        context = multiprocessing.get_context("fork")
        results = context.SimpleQueue()
        forked = context.Process(target=child, args=(results,))
        forked.start()
        forked.join(20)
        assert forked.exitcode == 0
        for _ in range(2):
            happened, advice = results.get()
            assert happened == "no"
            assert "in a folder, which processes can share" in advice
        assert [info.path for info in main.list()] == ["a"]


# --- SQLite's gate, case by case


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    with strandline.open(tmp_path / "lake", create=True) as lake:
        lake.repository("nyc", create=True)
        yield lake


def test_no_connection_is_open_at_a_fork(tmp_path: Path) -> None:
    """The operating system shows what the child has inherited."""
    with SqliteStore(tmp_path / "db") as store:
        store.set(b"p", b"k", b"v")
        assert store.get(b"p", b"k") == b"v"
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            links = [
                os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if fd.isdigit() and _is(fd)
            ]
            os.write(write, repr([link for link in links if str(tmp_path) in link]).encode())
            os._exit(0)
        os.waitpid(pid, 0)
        assert os.read(read, 10_000) == b"[]"
        assert store.get(b"p", b"k") == b"v"


def _is(fd: str) -> bool:
    return os.path.exists(f"/proc/self/fd/{fd}")


def test_a_call_that_takes_too_long_costs_the_child_the_file_and_the_parent_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_gate, "PATIENCE_S", 0.2)
    with SqliteStore(tmp_path / "db") as store, SqliteStore(tmp_path / "other") as other:
        store.set(b"p", b"k", b"v")
        started, go = threading.Event(), threading.Event()
        session = store._enter()
        store._leave(session)

        def block() -> bool:
            started.set()
            return go.wait(20)

        def read() -> None:
            session = store._enter()
            session.connection.create_function("block", 0, block)
            session.connection.execute("SELECT block()").fetchone()
            store._leave(session)

        thread = threading.Thread(target=read)
        thread.start()
        assert started.wait(10)
        told: list[str] = []
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            for act in (
                lambda: store.get(b"p", b"k"),
                lambda: store.set(b"p", b"k", b"child"),
                lambda: SqliteStore(tmp_path / "db"),  # the file is lost, whichever handle
            ):
                try:
                    act()
                    told.append("done")
                except StoreUnavailable as error:
                    told.append(f"{error.happened} {'spawn' in error.next}")
            other.set(b"p", b"child", b"v")  # this file was idle
            os.write(write_end, "|".join(told).encode())
            os._exit(0)
        go.set()
        thread.join()
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert os.read(read_end, 1000).decode() == "|".join(["no True"] * 3)
        assert store.get(b"p", b"k") == b"v"
        store.set(b"p", b"k", b"parent")
        assert other.get(b"p", b"child") == b"v"


def test_a_thread_that_forks_from_inside_a_call_does_not_wait_for_itself(tmp_path: Path) -> None:
    with SqliteStore(tmp_path / "db") as store:
        store.set(b"p", b"k", b"v")
        children: list[int] = []

        def forks() -> int:
            pid = os.fork()
            if pid == 0:
                try:
                    store.get(b"p", b"k")
                except StoreUnavailable as error:
                    os._exit(7 if error.happened == "no" else 1)
                os._exit(1)
            children.append(pid)
            return 1

        assert store._writer is not None
        store._writer.create_function("forks", 0, forks)
        started = time.monotonic()
        store._run("INSERT INTO kv(k, v) VALUES (?, forks())", (b"p\0x",))
        assert time.monotonic() - started < fork_gate.PATIENCE_S
        assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 7
        assert store.get(b"p", b"x") is not None
        store.set(b"p", b"y", b"v")


def test_a_signal_handler_that_forks_beside_writes_loses_nothing(tmp_path: Path) -> None:
    """The handler runs wherever the main thread happens to be: inside a call, in the queue, or outside."""
    script = f"""
import os, signal, threading, sys
from strandline.kv.sqlite import SqliteStore
store = SqliteStore({str(tmp_path / "db")!r})
children, seen = [], []
def handler(*_):
    seen.append(None)
    pid = os.fork()
    if pid == 0:
        return  # and the child goes on in the middle of whatever it was
    children.append(pid)
parent = os.getpid()
signal.signal(signal.SIGUSR1, handler)
stop = threading.Event()
def others():
    i = 0
    while not stop.is_set():
        store.set(b"p", b"other/%d" % i, b"v"); i += 1
thread = threading.Thread(target=others); thread.start()
def send():
    for number in range(20):
        stop.wait(0.01); os.kill(parent, signal.SIGUSR1)
        while len(seen) <= number:  # a signal that waits already is not sent a second time
            stop.wait(0.001)
sender = threading.Thread(target=send); sender.start()
done = 0
try:
    while sender.is_alive() or done < 200:
        store.set(b"p", b"main/%d" % done, b"v"); done += 1
        if os.getpid() != parent: os._exit(0)
except Exception as error:
    if os.getpid() != parent: os._exit(0)
    raise
stop.set(); thread.join()
codes = {{os.waitpid(pid, 0)[1] for pid in children}}
assert all(store.get(b"p", b"main/%d" % i) == b"v" for i in range(done))
print(len(children), sorted(codes))
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    count, _, codes = run.stdout.partition(" ")
    assert int(count) == 20
    assert codes.strip() == "[0]"
    with SqliteStore(tmp_path / "db") as store:
        assert store.get(b"p", b"main/199") == b"v"


class Busy:
    """A store that another thread is inside of for ever: no fork may think that its file is closed."""

    def __init__(self) -> None:
        self.session = fork_gate.Session()
        self.session.depth, self.session.thread = 1, -1

    def _sessions_now(self) -> list[fork_gate.Session]:
        return [self.session]

    def _close_connections(self) -> None:
        raise AssertionError

    def _open_file(self) -> fork_gate.FileId:
        return (1, 1)

    def _forked(self) -> None: ...


def lines_of_hooks() -> list[tuple[str, int]]:
    hooks = (fork_gate.Gate._before, fork_gate.Gate._after_in_parent)
    return [
        (hook.__name__, line)
        for hook in hooks
        for line in sorted({line for _, _, line in hook.__code__.co_lines() if line} - {hook.__code__.co_firstlineno})
    ]


@pytest.mark.parametrize(("hook", "line"), lines_of_hooks())
def test_a_signal_handler_may_fork_at_any_line_of_a_fork(hook: str, line: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody hangs, a child knows that a store was in use, and the gate is open in the end."""
    monkeypatch.setattr(fork_gate, "PATIENCE_S", 0.01)
    gate, store, judged = fork_gate.Gate(), Busy(), []
    gate.register(store)

    def forked() -> None:
        gate._before()
        judged.append(gate._unsettled is None or store in gate._unsettled)
        gate._after_in_parent()

    def handler(frame: Any, event: str, _: object) -> Any:
        if frame.f_code.co_name == hook and event == "line" and frame.f_lineno == line:
            sys.settrace(None)
            forked()
        return handler

    def main() -> None:
        sys.settrace(handler)
        try:
            forked()
        finally:
            sys.settrace(None)

    thread = threading.Thread(target=main, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    assert judged in ([True], [True, True])  # a line that is not run has no handler
    assert (gate.is_shut, gate._forker, gate._depth) == (False, None, 0)
    free = threading.Thread(target=forked)
    free.start()
    free.join(10)
    assert not free.is_alive()


def test_a_fork_of_code_that_runs_no_hooks_is_noticed(tmp_path: Path) -> None:
    script = f"""
import ctypes, os
from strandline.errors import StoreUnavailable
from strandline.kv.sqlite import SqliteStore
store = SqliteStore({str(tmp_path / "db")!r})
store.set(b"p", b"k", b"v")
libc = ctypes.PyDLL(None)
from strandline.kv import sqlite
pid = libc.fork()
if pid == 0:
    told = 0
    sqlite._close_connection = lambda connection: os._exit(99)  # nothing of the parent's is closed
    calls = [lambda: store.get(b"p", b"k"), lambda: store.set(b"p", b"k", b"c"), lambda: SqliteStore(store.path)]
    for act in calls:
        try:
            act()
        except StoreUnavailable as error:
            told += error.happened == "no"
    os._exit(told)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
assert store.get(b"p", b"k") == b"v"
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr


def test_a_child_that_ends_by_itself_closes_nothing_of_its_parent(tmp_path: Path) -> None:
    """The interpreter of the child ends in the ordinary way, with its objects finalised."""
    script = f"""
import os, sys, threading, time
from strandline.kv import fork_gate
from strandline.kv.sqlite import SqliteStore
fork_gate.PATIENCE_S = 0.05
store = SqliteStore({str(tmp_path / "db")!r})
store.set(b"p", b"k", b"v")
stuck = len(sys.argv) > 1
if stuck:
    threading.Thread(target=lambda: (store._enter(), time.sleep(1)), daemon=True).start()
    time.sleep(0.1)
pid = os.fork()
if pid == 0:
    sys.exit(0)
os.waitpid(pid, 0)
for i in range(20): store.set(b"p", b"%d" % i, b"v")
os._exit(0)  # without closing: the log stays
"""
    for arguments in ([], ["stuck"]):
        run = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=60)
        assert run.returncode == 0, run.stderr
        with SqliteStore(tmp_path / "db") as store:
            assert store.get(b"p", b"19") == b"v"


def test_threads_that_fork_at_once_all_come_back(lake: Lake) -> None:
    main = lake.repository("nyc").branch("main")
    codes: list[int] = []

    def forks() -> None:
        for _ in range(5):
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    main.put(f"child/{os.getpid()}", b"1")
                    code = 0
                finally:
                    os._exit(code)
            codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    threads = [threading.Thread(target=forks) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert codes == [0] * 20
    assert len(list(main.list("child/"))) == 20


def test_a_store_is_closed_under_no_call(tmp_path: Path) -> None:
    """`close` while threads read and write: each call is done or refused, and nothing crashes."""
    for _ in range(5):
        store = SqliteStore(tmp_path / "db")
        store.set(b"p", b"k", b"v")
        errors: list[BaseException] = []

        def work(store: SqliteStore = store, errors: list[BaseException] = errors) -> None:
            try:
                while True:
                    store.set(b"p", b"k", b"v")
                    assert store.get(b"p", b"k") == b"v"
            except StoreUnavailable as error:
                if "is closed" not in error.what:
                    errors.append(error)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        time.sleep(0.02)
        store.close()
        for thread in threads:
            thread.join()  # on a slow disk a write may take its time; the test has a timeout
        assert errors == []
        assert all(session.connection is None for session in store._sessions)
        assert store._writer is None


def test_a_store_is_closed_although_a_thread_is_about_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that ends closes its connection by itself, and the store does not wait for it."""
    from strandline.kv import sqlite

    store = SqliteStore(tmp_path / "db")
    store.set(b"p", b"k", b"v")
    close, ends, goes_on = sqlite._close, threading.Event(), threading.Event()

    def slowly(session: Any) -> None:
        if session.has_ended:
            ends.set()
            assert goes_on.wait(30)
        close(session)

    monkeypatch.setattr(sqlite, "_close", slowly)
    thread = threading.Thread(target=lambda: store.get(b"p", b"k"))
    thread.start()
    assert ends.wait(30)
    store.close()
    try:
        assert store._writer is None
    finally:
        goes_on.set()
        thread.join()
    assert all(session.connection is None for session in store._sessions)


def test_a_transaction_that_both_sides_of_a_fork_have_is_published_once(lake: Lake) -> None:
    main = lake.repository("nyc").branch("main")
    tx = main.transaction("job", "both")
    tx.begin()
    tx.put("a", b"1")
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            tx.put("b", b"child")
            tx.commit()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    with pytest.raises(strandline.TransactionClosed):
        tx.commit()
    assert [info.path for info in main.list()] == ["a", "b"]


def test_what_a_child_collects_in_a_copied_writer_is_refused(lake: Lake) -> None:
    shard = lake.repository("nyc").shard("s", pa.schema([("k", pa.string())]))
    with shard.batching_writer(60.0) as writer:
        writer.add(pa.table({"k": ["parent"]}))
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                writer.add(pa.table({"k": ["child"]}))
            except strandline.UsageError:
                os.write(write, b"refused")
            os._exit(0)
        os.waitpid(pid, 0)
        assert os.read(read, 100) == b"refused"
    assert shard.snapshot().to_arrow().column("k").to_pylist() == ["parent"]


def test_a_thread_that_is_interrupted_at_the_gate_is_not_counted_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SqliteStore(tmp_path / "db") as store:
        store.set(b"p", b"k", b"v")

        def interrupted(seconds: float) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as context:
            context.setattr(fork_gate.gate, "is_shut", True)
            context.setattr("strandline.kv.fork_gate.time.sleep", interrupted)
            with pytest.raises(KeyboardInterrupt):
                store.get(b"p", b"k")
        assert [session.depth for session in store._sessions_now()] == [0]
        assert store.get(b"p", b"k") == b"v"


def test_a_thread_that_is_about_to_fork_does_not_queue_behind_a_leader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader may wait at the gate for this very thread."""
    with SqliteStore(tmp_path / "db") as store:
        store.set(b"p", b"k", b"v")
        with monkeypatch.context() as context:
            context.setattr(fork_gate.gate, "is_shut", True)
            context.setattr(fork_gate.gate, "_forker", threading.get_ident())
            context.setattr(store, "_has_leader", True)
            with pytest.raises(StoreUnavailable, match="before a fork") as refused:
                store.set(b"p", b"k", b"w")
        assert refused.value.happened == "no"
        store.set(b"p", b"k", b"x")
        assert store.get(b"p", b"k") == b"x"


def test_connections_of_a_store_that_is_being_collected_count_at_a_fork(tmp_path: Path) -> None:
    """Its weak reference is gone before its finalizer has run."""
    store = SqliteStore(tmp_path / "db")
    store.set(b"p", b"k", b"v")
    fork_gate.gate._stores.discard(store)
    pid = os.fork()
    if pid == 0:
        try:
            SqliteStore(tmp_path / "db").get(b"p", b"k")
        except StoreUnavailable as error:
            os._exit(7 if error.happened == "no" else 1)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    fork_gate.gate.register(store)
    store.close()
    assert not fork_gate.gate.connections or all(
        file != (os.stat(store.path).st_dev, os.stat(store.path).st_ino) for file in fork_gate.gate.connections.values()
    )
