"""What happens around a write: stores that fail right after it, sweeps at the worst moment, stale rules, interrupts."""

from __future__ import annotations

import pickle
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

import strandline
from strandline.errors import (
    BranchGone,
    BranchProtected,
    Corrupted,
    NothingToMerge,
    PreconditionFailed,
    RepositoryNotFound,
    StoreUnavailable,
    UncommittedChanges,
    UsageError,
)
from strandline.ids import prefix_end
from strandline.kv.fork_gate import Session
from strandline.kv.sqlite import SqliteStore
from strandline.kv.sqlite_write import Write
from strandline.repository.branch import Branch
from strandline.repository.repository import Repository
from strandline.testing.faults import Outcome
from strandline.tree.store import TreeStore
from tests.harness.clients import Client, Shared, content, link, shown
from tests.tree.trees import entry, make


def committed_and_swept_while_it_is_read(reader: Client, committer: Client) -> None:
    """`committer` has sealed the tokens and swaps right before `reader` scans them; then their entries are deleted."""
    ready, go, done = threading.Event(), threading.Event(), threading.Event()

    def wait() -> None:
        ready.set()
        assert go.wait(10)

    def commit() -> None:
        committer.before("set_if", 2, wait)
        committer.main.commit("in between")
        committer.repo.sweep(after_s=0, again_after_s=0)
        done.set()

    threading.Thread(target=commit).start()
    assert ready.wait(10)

    def finish() -> None:
        go.set()
        assert done.wait(10)

    reader.before("scan_page", 1, finish)


def test_an_atomic_change_is_not_computed_from_tokens_that_were_swept(one: Client, two: Client) -> None:
    for path in ("src/1", "src/2", "src/3"):
        link(one.main, path, path)
    one.main.find("warm")
    committed_and_swept_while_it_is_read(one, two)
    assert one.main.delete_prefix("src/") == 3
    assert shown(two) == []


def test_a_rename_that_found_nothing_in_swept_tokens_looks_again(one: Client, two: Client) -> None:
    link(one.main, "src/1", 1)
    committed_and_swept_while_it_is_read(one, two)
    assert one.main.rename("src/", "dst/") == 1
    assert shown(two) == ["dst/1"]


def test_a_merge_does_not_refuse_for_what_a_commit_took_meanwhile(one: Client, two: Client) -> None:
    work = one.repo.create_branch("work")
    link(work, "w", 1)
    work.commit("w")
    link(one.main, "a", 1)
    one.main.put_many({"b": b"1"})  # something is sealed
    link(one.main, "c", 1)
    ready, go = threading.Event(), threading.Event()
    two.before("set_if", 2, lambda: (ready.set(), go.wait(10)))
    thread = threading.Thread(target=lambda: two.main.commit("other"))
    thread.start()
    assert ready.wait(10)
    one.before("scan_page", 2, lambda: (go.set(), thread.join(10)))
    one.main.merge("work")
    assert shown(one) == ["a", "b", "c", "w"]


# --- the store fails right after a write


def test_a_write_whose_check_fails_says_that_it_may_be_there(one: Client) -> None:
    one.store.guards = False
    link(one.main, "warm", 1)
    for write in (
        lambda: link(one.main, "a", 1),
        lambda: one.main.stage_each([("b", entry(1))]),
        lambda: one.main.delete_many(["warm"]),
    ):
        for look in (2, 3):  # at the guard after the write, and at the record
            one.meet("get", look, Outcome.NOT_DONE)
        with pytest.raises(StoreUnavailable) as failed:
            write()
        assert failed.value.happened == "unknown"
        assert "The write was made" in failed.value.safe
    assert shown(one) == ["a", "b"]
    one.meet("get", 3, Outcome.NOT_DONE)
    with pytest.raises(StoreUnavailable) as failed:
        one.main.put("c", b"1", create=True)
    assert failed.value.happened == "unknown"


def test_a_commit_whose_reply_is_lost_and_whose_store_goes_away_says_that_it_may_be_made(one: Client) -> None:
    link(one.main, "a", 1)
    one.meet("set_if", 2, Outcome.DONE_BUT_LOST)
    for n in range(3, 8):
        one.meet("set_if", n, Outcome.DONE_BUT_LOST)  # every attempt to settle it fails too
    gone: list[bool] = []
    one.before("set_if", 7, lambda: gone.append(True))
    plan = one.store.plan
    one.store.plan = lambda call, partition, key: (
        Outcome.NOT_DONE if gone and call == "get" else plan(call, partition, key)
    )
    try:
        one.main.commit("first")
    except StoreUnavailable as error:
        assert error.happened == "unknown"  # noqa: PT017
    one.store.plan = plan
    assert next(iter(one.main.log())).message == "first"


def test_a_failing_sweep_does_not_fail_a_commit(one: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    swept = threading.Event()

    def fail(stores: object) -> None:
        swept.set()
        raise StoreUnavailable("planted", happened="no")

    monkeypatch.setattr("strandline.core.repository_core.SWEEP_EVERY_COMMITS", 0)
    monkeypatch.setattr("strandline.core.repository_core.sweep", fail)
    link(one.main, "a", 1)
    one.main.commit("first")
    assert swept.wait(10)


# --- conditional puts against moves of the head


def test_a_create_does_not_win_over_a_merge_that_brought_the_path(one: Client, two: Client) -> None:
    work = two.repo.create_branch("work")
    work.put("k", b"work")
    work.commit("k")
    # the merge has looked at the empty staging token; the create swaps its entry in; then the merge swaps the head
    two.before("set_if", 1, lambda: None)
    errors: list[BaseException] = []

    def create() -> None:
        ready, go = threading.Event(), threading.Event()

        def run() -> None:
            try:
                one.main.put("k", b"create", create=True)
            except PreconditionFailed as error:
                errors.append(error)

        assert one.main.find("warm") is None
        one.before("get", 3, lambda: (ready.set(), go.wait(10)))  # after its swap, before its last read
        thread = threading.Thread(target=run)
        thread.start()
        ready.wait(10)
        threads.append((thread, go))

    threads: list[tuple[threading.Thread, threading.Event]] = []
    two.before("set_many", 1, create)
    two.main.merge("work")
    for thread, go in threads:
        go.set()
        thread.join(10)
    assert len(errors) == 1
    assert one.main.read("k") == b"work"
    assert list(one.main.uncommitted()) == []


def test_a_create_whose_entry_was_committed_meanwhile_succeeds(one: Client, two: Client) -> None:
    assert one.main.find("warm") is None  # so that call 3 is the read after the swap
    one.before("get", 3, lambda: two.main.commit("takes it"))
    one.main.put("k", b"mine", create=True)
    assert two.main.read("k") == b"mine"


# --- rules that change under a stale cache


def test_nothing_is_acknowledged_after_protection_or_read_only_returned(one: Client, two: Client) -> None:
    link(one.main, "warm", 1)
    two.repo.protect("main", ["stage"])
    with pytest.raises(BranchProtected):
        link(one.main, "a", 1)
    two.repo.unprotect("main")
    link(one.main, "b", 1)
    two.repo.set_read_only()
    for call in (lambda: link(one.main, "c", 1), lambda: one.main.discard(), lambda: one.main.discard("b")):
        with pytest.raises(strandline.RepositoryReadOnly):
            call()
    assert content(two.main, "b") == "1"


# --- pickled handles


def test_a_pickled_ref_stays_the_same_commit_and_a_branch_the_same_creation(tmp_path: Path) -> None:
    with strandline.open(tmp_path / "lake", create=True) as lake:
        repo = lake.repository("nyc", create=True)
        main = repo.branch("main")
        main.put("a", b"1")
        main.commit("1")
        before = pickle.dumps(repo.ref("main~0"))
        work = pickle.dumps(main.create_branch("work"))
        whole = pickle.dumps(repo)
        main.put("a", b"2")
        main.commit("2")
        assert pickle.loads(before).read("a") == b"1"
        repo.delete_branch("work")
        main.create_branch("work")
        with pytest.raises(BranchGone):
            pickle.loads(work).put("x", b"1")
        lake.delete_repository("nyc")
        lake.create_repository("nyc")
        with pytest.raises(RepositoryNotFound):
            pickle.loads(whole)


# --- interrupts of SQLite writers


class Interrupted(BaseException):
    pass


def waits_for(store: SqliteStore) -> threading.Event:
    """What `SELECT wait()` waits for, done as a write."""
    gate = threading.Event()
    store.set(b"p", b"warm", b"v")
    assert store._writer is not None
    store._writer.create_function("wait", 0, lambda: gate.wait(10))
    return gate


def test_an_interrupted_leader_acknowledges_nothing_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    do = SqliteStore._do

    def interrupted(store: SqliteStore, write: Write, connection: sqlite3.Connection, session: Session) -> None:
        if write.statement == "interrupt":
            raise Interrupted
        do(store, write, connection, session)

    monkeypatch.setattr(SqliteStore, "_do", interrupted)
    with SqliteStore(tmp_path / "db") as store:
        gate, outcomes = waits_for(store), dict[str, object]()

        def run(name: str, work: Callable[[], object]) -> threading.Thread:
            def target() -> None:
                try:
                    work()
                    outcomes[name] = "done"
                except BaseException as error:
                    outcomes[name] = error

            thread = threading.Thread(target=target)
            thread.start()
            return thread

        first = run("blocker", lambda: store._run("SELECT wait()", ()))
        while not store._has_leader or store._queue:
            time.sleep(0.001)
        second = run("leader", lambda: store._run("interrupt", ()))
        while len(store._queue) < 1:
            time.sleep(0.001)
        third = run("other", lambda: store.set(b"p", b"k", b"v"))
        while len(store._queue) < 2:
            time.sleep(0.001)
        gate.set()
        for thread in (first, second, third):
            thread.join(10)
        assert isinstance(outcomes["leader"], Interrupted)
        assert isinstance(outcomes["other"], StoreUnavailable)
        assert store.get(b"p", b"k") is None
        store.set(b"p", b"k", b"again")


def test_an_interrupted_waiter_leaves_the_store_usable(tmp_path: Path) -> None:
    with SqliteStore(tmp_path / "db") as store:
        gate = waits_for(store)
        blocker = threading.Thread(target=lambda: store._run("SELECT wait()", ()))
        blocker.start()
        while not store._has_leader or store._queue:
            time.sleep(0.001)

        class InterruptedLock:
            def acquire(self) -> None:
                raise Interrupted

            def release(self) -> None:
                pass

        write = Write("SELECT 1", (), False, None)
        write.wake = InterruptedLock()  # type: ignore[assignment]
        store._queue.append(write)
        with pytest.raises(Interrupted):
            store._wait(write)
        gate.set()
        blocker.join(10)
        store.set(b"p", b"k", b"v")
        assert store.get(b"p", b"k") == b"v"


def test_connections_of_threads_that_ended_are_closed(tmp_path: Path) -> None:
    with SqliteStore(tmp_path / "db") as store:
        for _ in range(20):
            thread = threading.Thread(target=lambda: store.get(b"p", b"k"))
            thread.start()
            thread.join()
        assert len([one for one in store._sessions if one.connection is not None]) <= 2


# --- prefixes, imports, merges, ranges


@pytest.mark.parametrize("prefix", ["п", "ÿ", "¿", "\x7f", "\ud7ff", "日本/", "\U0010ffff", "a\U0010ffff", "z"])
def test_every_prefix_has_its_range(main: Branch, prefix: str) -> None:
    assert prefix_end("") is None
    end = prefix_end(prefix)
    if end is not None:
        assert (prefix + "\U0010ffff").encode() < end.encode()
    main.put_many({prefix + "a": b"1", prefix + "/b": b"2", "M": b"3"})
    found = [prefix + "/b", prefix + "a"]
    assert [info.path for info in main.list(prefix)] == found
    assert [info.path for info in main.list(delimiter="/", amount=5)]
    assert [change.path for change in main.uncommitted(prefix)] == found
    main.commit("c")
    assert [change.path for change in main.diff("main~1", prefix)] == found
    assert len(list(main.log(prefixes=[prefix]))) == 1
    main.put(prefix + "a", b"9")
    main.discard(prefix=prefix)
    assert main.delete_prefix(prefix) == 2


def test_an_import_takes_a_bucket_prefix_as_a_folder_and_refuses_paths_that_could_not_be_read(main: Branch) -> None:
    from strandline.blob import open_store

    name = uuid.uuid4().hex
    bucket = open_store(f"memory://{name}")
    bucket.put("data/x", b"1")
    bucket.put("database/y", b"2")
    main.import_objects(f"memory://{name}/data", "raw/")
    assert [info.path for info in main.list()] == ["raw/x"]
    assert main.read("raw/x") == b"1"
    bucket.put("long/" + "é" * 400, b"3")
    with pytest.raises(strandline.InvalidName, match="1 objects have no valid path"):
        main.import_objects(f"memory://{name}/long", "p" * 300 + "/")
    assert [info.path for info in main.list()] == ["raw/x"]


def test_a_second_squash_of_the_same_and_a_merge_of_staged_changes_are_refused(repo: Repository, main: Branch) -> None:
    work = main.create_branch("work")
    work.put("w", b"1")
    work.commit("w")
    main.merge(work, squash=True)
    with pytest.raises(NothingToMerge):
        main.merge(work, squash=True)
    work.put("x", b"1")
    with pytest.raises(UsageError, match="only what is staged"):
        main.merge("work$")
    main.put("dirty", b"1")
    with pytest.raises(UncommittedChanges):
        main.merge(work)


def test_every_flipped_byte_of_a_range_or_metarange_is_noticed_or_harmless(tmp_path: Path) -> None:
    from strandline.blob import open_store

    store = TreeStore(open_store(str(tmp_path)))
    model = {f"k{i}é": entry(i) for i in range(5)}
    tree = make(store, model)
    for file in (tmp_path / "_strandline").rglob("*.parquet"):
        good = file.read_bytes()
        for at in range(0, len(good), 3):
            bad = bytearray(good)
            bad[at] ^= 0xFF
            file.write_bytes(bytes(bad))
            fresh = TreeStore(open_store(str(tmp_path)))
            try:
                found = fresh.find(fresh.tree(tree.ref), "k3é")
                assert found == model["k3é"]
            except (Corrupted, strandline.NewerFormat):
                continue
        file.write_bytes(good)


def test_a_cached_range_does_not_keep_what_it_was_cut_from() -> None:
    from tests.tree.trees import memory_trees, small_ranges

    with small_ranges():
        store = memory_trees()
        make(store, {f"k{i:05d}": entry(i) for i in range(5_000)})
        held = sum(
            opened.rows.get_total_buffer_size()
            for (kind, _), (opened, _) in store._opened._budget._held.items()
            if kind == "range"
        )
        assert held < 4 * store._opened.held_bytes


def test_a_deletion_whose_tidying_fails_is_done_all_the_same(one: Client) -> None:
    one.repo.create_branch("work")
    one.meet("scan_page", 1, Outcome.NOT_DONE)
    one.repo.delete_branch("work")
    assert [found.name for found in one.repo.branches()] == ["main"]


def test_a_deletion_that_cannot_look_at_the_default_says_what_is_known(one: Client, two: Client) -> None:
    one.repo.create_branch("work")
    one.meet("get", 3, Outcome.NOT_DONE)
    with pytest.raises(StoreUnavailable) as failed:
        one.repo.delete_branch("work")
    assert failed.value.happened == "unknown"
    assert "was deleted" in failed.value.safe
    assert [found.name for found in two.repo.branches()] == ["main"]


def test_items_from_a_clock_that_is_ahead_are_swept(one: Client, shared: Shared) -> None:
    link(one.main, "a", 1)
    shared.clock.advance_s(3 * 86_400)
    one.main.commit("by a process whose clock is three days ahead")
    shared.clock.advance_s(-3 * 86_400)
    for _ in range(2):
        one.repo.sweep(after_s=0, again_after_s=0)
    assert not [name for name, held in shared.kv._partitions.items() if b"/staging/" in name and held.values]
