"""Lanes: what waits is staged together, each write gets its own answer, and none is acknowledged that is not there."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

import strandline
from strandline.errors import BranchProtected, RangeLocked, StoreUnavailable
from strandline.kv.sqlite_failures import BUSY_TIMEOUT_S
from strandline.kv.store import WouldWait
from strandline.lake import Lake
from strandline.repository.branch import Branch
from strandline.results.rows import ObjectInfo
from strandline.server.lanes import LANE_MAX_WRITES, Lanes, Write
from strandline.server.pool import Pool
from strandline.server.refusals import Busy
from strandline.tree.rows import Entry


@pytest.fixture(params=["folder", "memory"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    with strandline.open(tmp_path if request.param == "folder" else "memory://", create=True, synced=False) as made:
        made.repository("repo", create=True)
        yield made


@pytest.fixture
def branch(lake: Lake) -> Branch:
    branch = lake.repository("repo").branch("main")
    branch.put("first", b"x")  # SQLite's writer is there from now on
    return branch


def entry(n: int = 0) -> Entry:
    return Entry(f"data/{n}", n, f"blake3:{n:064x}", 1)


class Sent:
    """Writes that were given to lanes, and their outcomes."""

    def __init__(self, lanes: Lanes, branch: Branch) -> None:
        self.lanes, self.branch = lanes, branch
        self.outcomes: dict[int, BaseException | None] = {}
        self.again: list[int] = []

    def send(self, n: int, path: str, holds: Callable[[], bool] = lambda: True) -> None:
        def done(outcome: BaseException | None) -> None:
            assert n not in self.outcomes
            self.outcomes[n] = outcome

        self.lanes.stage(self.branch, Write(path, entry(n), holds, lambda: self.again.append(n), done))

    async def settled(self, count: int) -> None:
        for _ in range(2000):
            if len(self.outcomes) + len(self.again) >= count and self.lanes.is_empty:
                return
            await asyncio.sleep(0.005)
        raise AssertionError(f"only {len(self.outcomes)} of {count} were answered")


def run(test: Callable[[Sent], Coroutine[Any, Any, None]], branch: Branch, *, inline: bool = True) -> Sent:
    pool = Pool("test", 4, 64)
    kv = branch._core.stores.kv
    lanes = Lanes(pool, kv.at_once if inline else None)
    sent = Sent(lanes, branch)

    async def main() -> None:
        await test(sent)

    try:
        asyncio.run(main())
    finally:
        pool.close()
    return sent


@pytest.mark.parametrize("inline", [True, False])
def test_what_waits_is_staged_together(branch: Branch, inline: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    plain = Branch.stage_each
    monkeypatch.setattr(Branch, "stage_each", lambda self, rows: calls.append(len(rows)) or plain(self, rows))

    async def test(sent: Sent) -> None:
        for n in range(100):
            sent.send(n, f"p{n % 90:03d}")
        await sent.settled(100)

    sent = run(test, branch, inline=inline)
    assert calls == [90]
    assert set(sent.outcomes.values()) == {None}
    shown = {one.path: one.size for one in branch.list("p") if isinstance(one, ObjectInfo)}
    assert shown == {f"p{n % 90:03d}": n for n in range(100)}  # of equal paths the last one


def test_each_write_gets_its_own_answer(lake: Lake, branch: Branch) -> None:
    repository = lake.repository("repo")
    repository.lock_owners.register("night", "a test")
    branch.locks.take([("locked/", "locked0")], owner="night")

    async def test(sent: Sent) -> None:
        for n, path in enumerate(("free/a", "locked/a", "free/b", "locked/b")):
            sent.send(n, path)
        await sent.settled(4)

    sent = run(test, branch)
    assert [type(sent.outcomes[n]) for n in range(4)] == [type(None), RangeLocked, type(None), RangeLocked]
    assert sent.outcomes[1] is not sent.outcomes[3]
    assert [one.path for one in branch.list("free/")] == ["free/a", "free/b"]
    repository.protect("main", block=["stage"])

    async def refused(sent: Sent) -> None:
        sent.send(0, "free/c")
        sent.send(1, "free/d")
        await sent.settled(2)

    assert {type(one) for one in run(refused, branch).outcomes.values()} == {BranchProtected}


def test_an_unknown_outcome_goes_to_all(branch: Branch, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> int:
        raise StoreUnavailable("The store failed.", happened="unknown")

    monkeypatch.setattr(Branch, "stage_each", fail)

    async def test(sent: Sent) -> None:
        for n in range(3):
            sent.send(n, f"p{n}")
        await sent.settled(3)

    outcomes = run(test, branch).outcomes.values()
    assert [getattr(one, "happened", "") for one in outcomes] == ["unknown"] * 3
    assert len(set(map(id, outcomes))) == 3


def test_writers_whose_permission_is_not_sure_are_handed_back(branch: Branch) -> None:
    async def test(sent: Sent) -> None:
        for n in range(4):
            sent.send(n, f"p{n}", lambda n=n: n % 2 == 0)
        await sent.settled(4)

    sent = run(test, branch)
    assert sent.again == [1, 3]
    assert [one.path for one in branch.list("p")] == ["p0", "p2"]


def test_a_full_lane_refuses(branch: Branch) -> None:
    async def test(sent: Sent) -> None:
        for n in range(LANE_MAX_WRITES):
            sent.send(n, f"p{n}")
        with pytest.raises(Busy):
            sent.send(LANE_MAX_WRITES, "one too many")
        await sent.settled(LANE_MAX_WRITES)

    assert set(run(test, branch).outcomes.values()) == {None}


def test_the_loop_waits_for_nobody(tmp_path: Path) -> None:
    """While another connection writes to the file, the batch waits in a thread, and the loop goes on."""
    import sqlite3

    with strandline.open(tmp_path, create=True, synced=False) as lake:
        branch = lake.repository("repo", create=True).branch("main")
        branch.put("first", b"x")
        other = sqlite3.connect(tmp_path / "metadata.db", isolation_level=None, check_same_thread=False)
        other.execute("BEGIN IMMEDIATE")

        async def test(sent: Sent) -> None:
            began = time.monotonic()
            sent.send(0, "p0")
            for _ in range(20):
                await asyncio.sleep(0.005)
            assert time.monotonic() - began < BUSY_TIMEOUT_S / 2  # a loop that waits does so for all of it
            assert not sent.outcomes
            other.execute("COMMIT")
            await sent.settled(1)

        assert run(test, branch).outcomes == {0: None}
        other.execute("BEGIN IMMEDIATE")
        kv = branch._core.stores.kv
        with kv.at_once(), pytest.raises(WouldWait):
            kv.set(b"test", b"key", b"value")
        other.execute("COMMIT")
        assert kv.get(b"test", b"key") is None
        kv.set(b"test", b"key", b"value")
        # and a write that waits does wait, on the same connection
        other.execute("BEGIN IMMEDIATE")
        timer = threading.Timer(0.2, lambda: other.execute("COMMIT"))
        held = threading.Thread(target=kv.set, args=(b"test", b"key", b"other"))
        held.start()
        timer.start()
        held.join(10)
        assert kv.get(b"test", b"key") == b"other"
        other.close()


def test_no_acknowledged_write_is_lost_to_commits_locks_and_seals(lake: Lake, branch: Branch) -> None:
    """Writes in lanes, while others commit, attach, compact and lock: what was acknowledged is there."""
    repository = lake.repository("repo")
    repository.lock_owners.register("night", "a test")
    over = threading.Event()

    def disturb() -> None:
        other = repository.branch("main")
        n = 0
        while not over.is_set():
            n += 1
            other.commit(f"c{n}", allow_empty=True)
            other.copy("first", f"copies/{n}")
            held = other.locks.take([("locked/", "locked0")], owner="night", on_dirty="commit")
            other.locks.release(held.id)
            if n % 5 == 0:
                other.compact(force=True)

    thread = threading.Thread(target=disturb)

    async def test(sent: Sent) -> None:
        thread.start()
        try:
            for n in range(3000):
                sent.send(n, f"{'locked' if n % 7 == 0 else 'free'}/{n:05d}")
                if n % 10 == 9:
                    await asyncio.sleep(0)
            await sent.settled(3000)
        finally:
            over.set()
            thread.join()

    sent = run(test, branch)
    acknowledged = {n for n, outcome in sent.outcomes.items() if outcome is None}
    assert {type(one) for one in sent.outcomes.values()} <= {type(None), RangeLocked}
    assert len(acknowledged) > 2000
    there = {int(one.path[-5:]) for prefix in ("free/", "locked/") for one in branch.list(prefix)}
    assert acknowledged == there
