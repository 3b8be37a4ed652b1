"""One-shot publications: what was read is replaced in one swap, once, and nothing else goes along."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import strandline
from strandline import envelope
from strandline.branch import heads, one_shot, repeats
from strandline.branch.commits import Commit
from strandline.branch.rules.record import DONE_KEPT, ONE_SHOT_FORMAT
from strandline.errors import (
    BranchProtected,
    Conflict,
    InvalidName,
    NewerFormat,
    NothingToCommit,
    RangeLocked,
    RepositoryReadOnly,
    StoreUnavailable,
    StrandlineError,
    TransactionClosed,
    UncommittedChanges,
    UsageError,
)
from strandline.repository.branch import Branch
from strandline.repository.upkeep.garbage import Collector
from strandline.results.rows import ObjectInfo
from strandline.testing.faults import Outcome
from tests.harness.clients import Client, at_each_call, failing_at

OUTCOMES = [Outcome.DONE_BUT_LOST, Outcome.NOT_DONE, Outcome.LATE]


def at_head(client: Client, path: str) -> ObjectInfo | None:
    return client.repo.ref("main@").find(path)


def publish(client: Client, path: str, content: bytes | None, **options: Any) -> Commit:
    """Replace what the head holds."""
    expected = options.pop("expected", {path: at_head(client, path)})
    return client.main.publish({path: content}, options.pop("message", "published"), expected=expected, **options)


def messages(client: Client) -> list[str]:
    return [commit.message for commit in client.main.log()]


def raw(client: Client) -> bytes | None:
    stores = client.main._core.stores
    return stores.kv.get(stores.refs, b"main")


# --- what it does -------------------------------------------------------------------------------------------------


def test_it_changes_what_was_read_in_a_commit_of_its_own(one: Client) -> None:
    one.main.put_many({"a": b"1", "b": b"1"})
    one.main.commit("first")
    made = one.main.publish(
        {"a": b"2", "b": None, "c": "3"},
        "all three",
        expected={path: at_head(one, path) for path in "abc"},
        metadata={"job": "7"},
        committer="ann",
    )
    assert (made.id, made.message, made.committer, made.metadata) == (
        one.main.commit_id,
        "all three",
        "ann",
        {"job": "7"},
    )
    assert {info.path: one.main.read(info.path) for info in one.main.list()} == {"a": b"2", "c": b"3"}
    assert [move.verb for move in one.main.reflog()][:2] == ["publish", "commit"]
    assert one.main._at.read().branch.writers == {}  # nobody's name goes on record


def test_what_others_have_staged_stays_staged(one: Client) -> None:
    one.main.put("a", b"1")
    one.main.commit("first")
    one.main.put("staged", b"x")
    one.main.delete("a")
    with pytest.raises(UncommittedChanges) as caught:
        publish(one, "a", b"2")
    assert caught.value.paths == ("a",)
    publish(one, "b", b"2", expected={"b": None, "a": at_head(one, "a")})  # a path that it only relies on
    assert [(change.kind, change.path) for change in one.main.uncommitted()] == [("removed", "a"), ("added", "staged")]
    assert [info.path for info in one.repo.ref("main@").list()] == ["a", "b"]
    assert [info.path for info in one.main.list()] == ["b", "staged"]


@pytest.mark.parametrize("content", [b"2", None])
def test_another_content_than_was_read_is_a_conflict(one: Client, content: bytes | None) -> None:
    one.main.put_many({"a": b"1", "b": b"1"})
    one.main.commit("first")
    old = {path: at_head(one, path) for path in "ab"}
    publish(one, "a", b"other")
    before = raw(one)
    for expected in (old, {**old, "a": None}, {"a": at_head(one, "b"), "b": at_head(one, "b")}):
        with pytest.raises(Conflict, match="'a'") as caught:
            publish(one, "b", content, expected=expected)
        assert caught.value.paths == ("a",)
    with pytest.raises(Conflict):
        publish(one, "new", b"x", expected={"new": old["a"]})
    assert raw(one) == before
    # the same bytes again are another version: whoever read the first one has not seen what was between
    publish(one, "a", b"1")
    with pytest.raises(Conflict):
        publish(one, "b", content, expected=old)


def test_what_changes_nothing_makes_no_commit(one: Client) -> None:
    one.main.put("a", b"1")
    one.main.commit("first")
    with pytest.raises(NothingToCommit):
        publish(one, "a", b"1")
    with pytest.raises(NothingToCommit):
        publish(one, "nothing", None)
    assert messages(one)[0] == "first"


@pytest.mark.parametrize(
    "call",
    [
        lambda main: main.publish({}, "x", expected={}),
        lambda main: main.publish({"a": b"1"}, "x", expected={}),
        lambda main: main.publish({"a": b"1"}, "", expected={"a": None}),
        lambda main: main.publish({"": b"1"}, "x", expected={"": None}),
        lambda main: main.publish({"a": b"1"}, "x", expected={"a": None, "b\0": None}),
        lambda main: main.publish({"a": 1}, "x", expected={"a": None}),
        lambda main: main.publish({"a": b"1"}, "x", expected={"a": "blake3:00"}),
        lambda main: main.publish({"a": b"1"}, "x", expected={"a": None}, writer=""),
        lambda main: main.publish({"a": b"1"}, "x", expected={"a": None}, token=b"t"),
        lambda main: main.publish({"a": b"1"}, "x", expected={"a": None}, token="t" * 10_000),
        lambda main: main.publish({"a": b"1"}, "x", expected={"a": None}, metadata={"k": 1}),
    ],
)
def test_bad_arguments_change_nothing(one: Client, call: Callable[[Branch], object]) -> None:
    before = raw(one)
    with pytest.raises((UsageError, InvalidName)):
        call(one.main)
    assert raw(one) == before
    assert list(one.repo._core.resolver.namespace.list("data/")) == []


# --- what forbids it ----------------------------------------------------------------------------------------------


def test_locks_and_protections_hold(one: Client) -> None:
    one.repo.lock_owners.register("repair", "repairs")
    held = one.main.locks.take("raw/", owner="repair")
    with pytest.raises(RangeLocked):
        publish(one, "raw/a", b"1")
    publish(one, "other", b"1")
    one.main.locks.release(held.id)
    publish(one, "raw/a", b"1")
    one.repo.protect("main", ["commit"], writers=["catalog"])
    with pytest.raises(BranchProtected, match="no writer that a protection could name"):
        publish(one, "raw/a", b"2")
    with pytest.raises(BranchProtected, match="'somebody'"):
        publish(one, "raw/a", b"2", writer="somebody")
    publish(one, "raw/a", b"2", writer="catalog")
    one.repo.set_read_only(True)
    with pytest.raises(RepositoryReadOnly):
        publish(one, "raw/a", b"3", writer="catalog")


# --- tokens -------------------------------------------------------------------------------------------------------


def test_a_token_is_published_once(one: Client, two: Client) -> None:
    made = publish(one, "a", b"1", token="job 1", expected={"a": None})
    for number in range(3 * DONE_KEPT):
        publish(one, "b", b"%d" % number, token=f"other {number}")
    assert len(one.main._at.read().branch.done or ()) <= DONE_KEPT
    for client in (one, two):  # on a record of its own by now
        assert publish(client, "a", b"1", token="job 1", expected={"a": None}).id == made.id
    one.main.hard_reset(f"{made.id}~1", force=True)  # it stays done, wherever the head went
    one.repo.protect("main")
    assert publish(two, "a", b"1", token="job 1", expected={"a": None}).id == made.id
    assert one.main.find("a") is None
    for other in ({"content": b"2"}, {"content": None}, {"path": "c"}):
        with pytest.raises(TransactionClosed, match="other changes"):
            publish(two, **{"path": "a", "content": b"1", **other}, token="job 1", expected={"a": None, "c": None})  # type: ignore[arg-type]


def test_a_job_that_runs_again_reads_its_own_output(one: Client, two: Client) -> None:
    """It died after it had published; what it reads now is another object than it read then."""
    publish(one, "a", b"1")
    made = publish(one, "a", b"2", token="job")
    again = publish(two, "a", b"2", token="job", expected={"a": at_head(two, "a")})
    assert again.id == made.id == one.main.commit_id


def test_a_token_needs_a_format_that_older_versions_refuse(
    one: Client, two: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(one, "a", b"1")
    before = raw(one)
    assert before is not None
    assert envelope.version_of(before) == envelope.FORMAT_VERSION
    one.main._core.max_format = ONE_SHOT_FORMAT - 1
    with pytest.raises(UsageError, match="format 8"):
        publish(one, "a", b"2", token="t")
    assert raw(one) == before
    publish(two, "a", b"2", token="t")
    after = raw(one)
    assert after is not None
    assert envelope.version_of(after) == ONE_SHOT_FORMAT
    monkeypatch.setattr(envelope, "NEWEST_FORMAT", 7)
    monkeypatch.setattr(envelope, "_NEWEST", b"\x07")
    with pytest.raises(NewerFormat):
        two.fresh().branch("main")


@pytest.mark.parametrize("token", ["", "the job"])
@pytest.mark.parametrize("outcome", OUTCOMES)
def test_every_lost_reply_leaves_one_commit_and_the_truth(
    outcome: Outcome, token: str, one: Client, two: Client
) -> None:
    """The n-th call meets a fault, for each n: what is refused did not happen, and a token makes a repetition safe."""
    for number in range(DONE_KEPT + 3):  # so that a publication takes others off the record
        publish(two, "warm", b"%d" % number, token=f"warm {number}")
    for number in range(1, 20):
        two.main.put("staged", b"%d" % number)  # something to fold
        path = f"{outcome.name}-{number}"

        one.next = failing_at(number, outcome)
        known = ""
        try:
            publish(one, path, b"1", token=token and f"{token} {number}", message=path, expected={path: None})
            known = "done"
        except StoreUnavailable as error:
            known = error.happened
        one.connect()
        count = messages(two).count(path)
        assert count == {"done": 1, "no": 0}.get(known, count), (number, known)
        assert count <= 1
        if token:
            publish(one, path, b"1", token=f"{token} {number}", message=path, expected={path: None})
            assert messages(two).count(path) == 1


def test_a_rival_at_each_call_of_a_publication(one: Client, two: Client) -> None:
    """Another process publishes, stages, or takes the same token, right before each call of the store."""
    numbers, conflicts = itertools.count(), set[tuple[str, ...]]()
    turn = [0]

    def act() -> None:
        turn[0] = number = next(numbers)
        before = at_head(one, "shared")
        publish(one, f"x{number}", b"1", token=f"both {number}", message=f"x{number}", expected={f"x{number}": None})
        try:
            publish(one, "mine", b"%d" % number, expected={"mine": at_head(one, "mine"), "shared": before})
        except Conflict as error:
            conflicts.add(error.paths)

    def rival() -> None:
        number = turn[0]
        two.main.put(f"staged {number}", b"x")
        publish(two, "shared", b"%d" % number, token=f"rival {number}")
        publish(two, f"x{number}", b"1", token=f"both {number}", message=f"x{number}", expected={f"x{number}": None})

    for _ in at_each_call(one, act, rival):
        assert messages(two).count(f"x{turn[0]}") == 1
    assert conflicts == {("shared",)}


def test_racing_counters_lose_nothing(tmp_path: Path) -> None:
    """Each thread reads a number and publishes the next one; of those that are acknowledged all are counted."""
    with strandline.open(tmp_path, create=True, synced=False) as lake:
        main = lake.create_repository("repo").branch("main")
        main.put("n", b"0")
        main.commit("first")
        acknowledged, lock = [0], threading.Lock()

        def count(worker: int) -> None:
            for turn in range(12):
                while True:
                    head = lake.repository("repo").ref("main@")
                    found = head.stat("n")
                    value = int(head.read("n")) + 1
                    try:
                        main.publish({"n": b"%d" % value}, "+1", expected={"n": found}, token=f"{worker} {turn}")
                    except Conflict:
                        continue
                    with lock:
                        acknowledged[0] += 1
                    break

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(count, range(4)))
        assert int(main.read("n")) == acknowledged[0] == 48
        assert len(list(main.log())) == 50


# --- what becomes of tokens ---------------------------------------------------------------------------------------


def test_a_backup_keeps_tokens(one: Client, tmp_path: Path) -> None:
    with strandline.open(tmp_path / "lake", create=True, synced=False) as lake:
        main = lake.create_repository("repo").branch("main")
        for number in range(2 * DONE_KEPT):
            main.publish({f"{number}": b"x"}, f"{number}", expected={f"{number}": None}, token=f"t{number}")
        lake.backup(tmp_path / "backup")
    with strandline.open(tmp_path / "again", create=True, synced=False) as lake:
        (restored,) = lake.restore(tmp_path / "backup")
        main = restored.branch("main")
        head = main.commit_id
        for number in range(2 * DONE_KEPT):
            path = f"{number}"
            assert main.publish({path: b"x"}, "again", expected={path: None}, token=f"t{number}").message == path
        assert main.commit_id == head


def test_a_collection_forgets_old_tokens_and_a_deletion_all(one: Client) -> None:
    stores = one.main._core.stores

    def kept() -> int:
        return sum(1 for key, _ in stores.kv.scan(stores.records) if key.startswith(b"done/"))

    for number in range(3 * DONE_KEPT):
        publish(one, "a", b"%d" % number, token=f"t{number}")
    assert kept() > DONE_KEPT
    repeats.sweep(stores, stores.clock.now_us() + repeats.KEPT_US - 60_000_000)
    assert kept() > DONE_KEPT
    repeats.sweep(stores, stores.clock.now_us() + repeats.KEPT_US + 60_000_000)
    assert kept() == 0
    work = one.repo.create_branch("work")
    for number in range(3 * DONE_KEPT):
        work.publish({"w": b"%d" % number}, "x", expected={"w": one.repo.ref("work@").find("w")}, token=f"w{number}")
    assert kept() > 0
    one.repo.delete_branch("work")
    assert kept() == 0


def test_the_collector_sweeps_tokens(one: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    swept: list[int] = []
    monkeypatch.setattr(repeats, "sweep", lambda _stores, now_us: swept.append(now_us))
    publish(one, "a", b"1", token="t")
    core = one.repo._core
    Collector(core, one.repo.gc.retention).run()
    assert len(swept) == 1


def test_a_token_that_is_only_looked_for_reads_no_other_record(one: Client) -> None:
    """A branch without tokens costs no look-up of one."""
    publish(one, "a", b"1")
    one.calls.clear()
    publish(one, "a", b"2", token="t")
    assert not [key for call, _, key in one.calls if call == "get" and key.startswith(b"done/")]


def test_errors_say_what_happened_and_what_to_do(one: Client) -> None:
    publish(one, "a", b"1", token="t", expected={"a": None})
    for call in (
        lambda: publish(one, "a", b"2", expected={"a": None}),
        lambda: publish(one, "a", b"2", token="t", expected={"a": None}),
    ):
        with pytest.raises(StrandlineError) as caught:
            call()
        assert caught.value.safe == "Nothing was changed."
        assert caught.value.next


def test_the_note_of_a_token_is_in_the_swap_that_publishes(one: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    real = heads.set_head
    seen: list[bool] = []

    def watched(*arguments: Any, **options: Any) -> Commit:
        made = real(*arguments, **options)
        branch = one.main._at.read().branch
        seen.append(bool(branch.done) and branch.done[0].commit == branch.head == made.id)  # type: ignore[index]
        return made

    monkeypatch.setattr(one_shot, "set_head", watched)
    publish(one, "a", b"1", token="t")
    assert seen == [True]
