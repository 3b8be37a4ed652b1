from __future__ import annotations

import sqlite3
import threading
import time
from pathlib import Path

import pytest

from strandline.errors import StoreUnavailable
from strandline.kv.sqlite import SqliteStore
from strandline.kv.store import PredicateFailed


def test_writes_of_many_threads_share_transactions(tmp_path: Path) -> None:
    with SqliteStore(tmp_path / "db") as store:
        store.set(b"p", b"warm", b"")
        assert store._writer is not None
        begun: list[str] = []
        store._writer.set_trace_callback(lambda text: begun.append(text) if text.startswith("BEGIN") else None)
        gate = threading.Event()
        store._writer.create_function("wait", 0, lambda: gate.wait(10))
        # while one write holds the lead, the others queue, and the next leader takes them all
        blocker = threading.Thread(target=lambda: store._run("SELECT wait()", ()))
        blocker.start()
        writers = [threading.Thread(target=store.set, args=(b"p", b"%d" % i, b"v")) for i in range(20)]
        for thread in writers:
            thread.start()
        deadline = time.monotonic() + 10
        while len(store._queue) < 20 and time.monotonic() < deadline:
            time.sleep(0.001)
        gate.set()
        for thread in [blocker, *writers]:
            thread.join()
        assert len(begun) == 1
        assert len(store.scan_page(b"p").keys) == 21


def test_a_lost_swap_in_a_group_hurts_nobody_else(tmp_path: Path) -> None:
    with SqliteStore(tmp_path / "db") as store:
        store.set(b"p", b"k", b"1")
        gate = threading.Event()
        assert store._writer is not None
        store._writer.create_function("wait", 0, lambda: gate.wait(10))
        blocker = threading.Thread(target=lambda: store._run("SELECT wait()", ()))
        blocker.start()
        lost: list[bool] = []

        def swap() -> None:
            try:
                store.set_if(b"p", b"k", b"3", b"2")
            except PredicateFailed:
                lost.append(True)

        threads = [threading.Thread(target=swap), threading.Thread(target=store.set, args=(b"p", b"x", b"v"))]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + 10
        while len(store._queue) < 2 and time.monotonic() < deadline:
            time.sleep(0.001)
        gate.set()
        for thread in [blocker, *threads]:
            thread.join()
        assert (lost, store.get(b"p", b"k"), store.get(b"p", b"x")) == ([True], b"1", b"v")


def test_another_process_that_holds_the_lock_too_long_is_an_error_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.kv.sqlite.BUSY_TIMEOUT_S", 0.1)
    with SqliteStore(tmp_path / "db") as store:
        other = sqlite3.connect(tmp_path / "db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        for write in (lambda: store.set(b"p", b"k", b"v"), lambda: store.set_many(b"p", [(b"k", b"v")])):
            with pytest.raises(StoreUnavailable, match="locked") as failed:
                write()
            assert failed.value.happened == "no"
        other.execute("ROLLBACK")
        other.close()
        store.set(b"p", b"k", b"v")


def test_synced_and_unsynced_set_what_they_promise(tmp_path: Path) -> None:
    for synced, level in ((True, 2), (False, 1)):
        with SqliteStore(tmp_path / "db", synced=synced) as store:
            store.set(b"p", b"k", b"v")
            assert store._writer is not None
            assert store._writer.execute("PRAGMA synchronous").fetchone() == (level,)
            assert store._writer.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_long_log_is_copied_into_the_file_beside_the_writers(tmp_path: Path) -> None:
    with SqliteStore(tmp_path / "db") as store:
        value = b"v" * 1_000
        for part in range(3):
            store.set_many(b"p", [(b"%d/%06d" % (part, number), value) for number in range(5_000)])
            for thread in list(store._background._running.values()):
                thread.join(10)
            assert (tmp_path / "db").stat().st_size > (part + 1) * 5_000_000
        assert len(list(store.scan(b"p"))) == 15_000


def test_a_checkpoint_of_a_store_that_was_closed_does_nothing(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "db")
    store.set(b"p", b"k", b"v")
    store.close()
    store._checkpoint()
    assert not (tmp_path / "db-wal").exists()


def test_a_thread_that_ends_while_a_store_is_closed_closes_what_the_store_left(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "db")
    store.set(b"p", b"k", b"v")
    (session,) = store._sessions
    session.depth += 1  # its thread is ending
    store.close()
    assert (tmp_path / "db-wal").exists()  # the writer is open still
    session.depth -= 1
    store._end_session(session)
    assert not (tmp_path / "db-wal").exists()
