"""The laws of what range locks are and do, R-1 to R-13: each fails under the mutation of its number."""

from __future__ import annotations

from typing import Any

import pytest

from strandline.branch.rules.ranges import Range, as_ranges
from strandline.errors import (
    LockInvalid,
    LockLost,
    LockRejected,
    LockTimeout,
    RangeLocked,
    StrandlineError,
    UncommittedChanges,
)
from strandline.testing.clock import ManualClock
from strandline.testing.faults import Outcome
from tests.harness.clients import Client
from tests.locks.acts import PATHS, WRITES, held, prepared, refused, shown

pytestmark = pytest.mark.usefixtures("content")


# --- what a lock is ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "what",
    [
        ("b", "b"),
        ("c", "b"),
        ("b\0", "b"),
        "x\0y",
        "x" * 2000,
        ("", ""),
        [],
        5,
        None,
        [("a", "b"), ("d", "c")],
        ("a", 5),
    ],
    ids=str,
)
def test_r01_a_range_that_is_none_is_refused_before_any_store_is_asked(what: Any, second: Client) -> None:
    main = second.main
    main.locks.find("a")
    second.calls.clear()
    refused(LockInvalid, lambda: main.locks.take(what, owner="ops"))
    refused(LockInvalid, lambda: main.locks.find(what))
    refused(LockInvalid, lambda: main.lock(what, owner="ops"))
    assert second.calls == []


def test_r01_ranges_are_half_open_and_joined() -> None:
    assert as_ranges(["b/", ("a", "b"), ("b", "b/"), "d"]) == (Range("a", "b0"), Range("d", "e"))
    assert as_ranges([("c", None), ("a", "b"), "x"]) == (Range("a", "b"), Range("c", None))
    assert as_ranges("") == (Range("", None),)
    assert as_ranges(chr(0x10FFFF)) == (Range(chr(0x10FFFF), None),)
    one = Range("b", "c")
    assert [one.has(path) for path in ("a", "b", "bz", "c")] == [False, True, True, False]


def test_r02_owners_are_registered_described_and_stay_as_long_as_they_hold_locks(first: Client, second: Client) -> None:
    refused(LockInvalid, lambda: first.main.locks.take("b/", owner="nobody"), "not registered")
    refused(LockInvalid, lambda: first.main.lock("b/", owner="nobody").begin(), "not registered")
    for name, description in (("", "x"), (" ", "x"), ("x" * 200, "x"), ("a\nb", "x"), ("x", ""), ("x", "  ")):
        refused(LockInvalid, lambda name=name, text=description: first.repo.lock_owners.register(name, text))
    first.repo.lock_owners.register("ops", "repairs")
    first.repo.lock_owners.register("ops", "other repairs")
    assert [(one.name, one.description) for one in second.repo.lock_owners] == [
        ("load", "backfills"),
        ("ops", "other repairs"),
    ]
    lock = first.main.locks.take("b/", owner="ops")
    refused(LockRejected, lambda: second.repo.lock_owners.remove("ops"), "holds locks")
    assert "ops" in second.repo.lock_owners
    first.main.locks.release(lock.id)
    second.repo.lock_owners.remove("ops")
    second.repo.lock_owners.remove("ops")
    assert "ops" not in first.repo.lock_owners


def test_r02_a_take_and_a_removal_at_once_do_not_orphan_a_lock(first: Client, second: Client) -> None:
    """The removal comes at each call of the take."""
    for point in range(60):
        first.repo.lock_owners.register("ops", "repairs")
        left = point

        def plan(_call: str, _partition: bytes, _key: bytes) -> Outcome:
            nonlocal left
            left -= 1
            if left == -1:
                try:
                    second.repo.lock_owners.remove("ops")
                except LockRejected:
                    pass
            return Outcome.DONE

        first.next = plan
        try:
            first.main.locks.take("b/", owner="ops")
        except LockInvalid:
            pass
        first.connect()
        if first.main.locks.find("b/"):
            assert "ops" in first.repo.lock_owners, f"the owner went at call {point}"
        first.main.locks.release_all("ops")
        if left >= 0:
            return
    pytest.fail("the take made more calls")


def test_r03_the_same_lock_again_is_the_same_and_any_other_is_rejected(first: Client, second: Client) -> None:
    lock = first.main.locks.take("b/", owner="ops")
    assert second.main.locks.take("b/", owner="ops").id == lock.id
    for what, owner in (("b/", "load"), ("b/1", "ops"), ("", "ops"), (("a", "b/0"), "ops"), (("b/1", None), "load")):
        before = first.main._cell.read(None).branch
        refused(LockRejected, lambda what=what, owner=owner: second.main.locks.take(what, owner=owner))
        assert first.main._cell.read(None).branch == before
    refused(LockRejected, lambda: second.main.lock("b/", owner="ops").begin())
    assert held(first) == [("'b/'", "ops")]


def test_r03_shared_locks_agree(first: Client, second: Client) -> None:
    one = first.main.locks.take("b/", owner="ops", mode="shared")
    two = second.main.locks.take("b/1", owner="load", mode="shared")
    refused(LockRejected, lambda: first.main.locks.take("b/2", owner="load"))
    refused(RangeLocked, lambda: first.main.put("b/1", b"x"), "locked against all changes")
    with second.main.transaction("t", locks=[one.id]) as tx:
        tx.put("b/2", b"x")
        refused(RangeLocked, tx.commit)
        tx.abort()
    first.main.locks.release(one.id)
    first.main.put("b/2", b"x")
    second.main.locks.release(two.id)


def test_r04_a_release_ends_exactly_the_lock_that_it_names(first: Client, second: Client) -> None:
    lock = first.main.locks.take(["b/", "a/"], owner="ops")
    assert not second.main.locks.release_range("c/", "ops")
    for what, owner in ((["b/", "a/"], "load"), ("b/", "ops"), ("", "ops")):
        refused(LockRejected, lambda what=what, owner=owner: second.main.locks.release_range(what, owner))
    assert [one.id for one in first.main.locks] == [lock.id]
    assert second.main.locks.release_range(["a/", "b/"], "ops")
    assert not list(first.main.locks)


def test_r04_names_and_ranges_are_compared_as_such(first: Client) -> None:
    """What looks alike when it is joined is not the same."""
    owners = ("ops", "ops/b", "op", "ops\u200a")
    for name in owners[1:3]:
        first.repo.lock_owners.register(name, "x")
    first.main.locks.take(("b/", "b/1"), owner="ops")
    refused(LockRejected, lambda: first.main.locks.release_range(("b/", "b/1"), "op"))
    first.main.locks.take(("b/1", "b/2"), owner="ops/b")
    assert held(first) == [("'b/' to 'b/1'", "ops"), ("below 'b/1'", "ops/b")]
    assert first.main.locks.release_all("ops") == 1
    assert held(first) == [("below 'b/1'", "ops/b")]


def test_r05_several_takes_and_releases_are_one_request(first: Client, second: Client) -> None:
    from strandline.repository.locks.locks import LockRequest

    one = first.main.locks.take("a/", owner="ops")
    two, three = first.main.locks.change([LockRequest("b/1", "ops"), LockRequest("c/", "load")], release=[one.id])
    assert held(second) == [("below 'b/1'", "ops"), ("'c/'", "load")]
    # all or none: one is taken already, one to be released is not there, one is dirty
    for take, release in (
        ([LockRequest("a/", "ops"), LockRequest("c/1", "ops")], ()),
        ([LockRequest("a/", "ops")], ("gone",)),
    ):
        refused(LockRejected, lambda take=take, release=release: first.main.locks.change(take, release))
    first.main.put("a/1", b"dirty")
    refused(
        UncommittedChanges,
        lambda: first.main.locks.change([LockRequest("d/", "ops"), LockRequest("a/", "ops")], [two.id]),
    )
    assert held(second) == [("below 'b/1'", "ops"), ("'c/'", "load")]
    # what is released may be taken anew: nobody gets in between
    [wider] = first.main.locks.change([LockRequest("b/", "ops")], [two.id])
    assert [lock.id for lock in first.main.locks] == [wider.id, three.id]
    refused(
        LockInvalid, lambda: first.main.locks.change([LockRequest("x", "ops"), LockRequest("x/1", "ops")]), "overlap"
    )


# --- what it does ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WRITES)
def test_r06_nothing_gets_into_a_held_range_and_nothing_of_it_is_left(name: str, first: Client, second: Client) -> None:
    prepared(first)
    lock = first.main.locks.take("b/", owner="ops")
    before = shown(second), second.main.commit_id, [change.path for change in second.main.uncommitted()]
    refused(RangeLocked, lambda: WRITES[name](second.main), "repairs")
    assert (shown(second), second.main.commit_id, [change.path for change in second.main.uncommitted()]) == before
    first.main.locks.release(lock.id)
    if name != "hard reset":
        WRITES[name](second.main)  # when it has ended, everything passes


@pytest.mark.parametrize("state", ["pending", "held"])
@pytest.mark.parametrize("name", ["atomic put", "merge", "publish", "put"])
def test_r06_a_change_that_is_under_way_when_a_lock_comes(name: str, state: str, first: Client, second: Client) -> None:
    """The lock comes at each call of the change: before its effect the change is refused whole, after it, folded."""
    for point in range(60):
        second.connect()
        branch = first.repo.branch("main")
        branch.discard()
        prepared_once(first)
        left = point
        lock: list[Any] = []

        def plan(_call: str, _partition: bytes, _key: bytes) -> Outcome:
            nonlocal left
            left -= 1
            if left == -1:
                try:
                    lock.append(first.main.locks.take("b/", owner="ops", on_dirty="commit"))  # noqa: B023
                except LockRejected:
                    pass
            return Outcome.DONE

        before = shown(first)
        second.next = plan
        try:
            WRITES[name](second.main)
            done = True
        except RangeLocked:
            done = False
        except StrandlineError:
            done = None
        second.connect()
        after = shown(first)
        assert done is not False or after == before, f"half of it is there: {point}"
        assert done is not True or after != before or name == "merge", f"it is not there: {point}"
        for one in lock:
            first.main.locks.release(one.id)
        first.main.hard_reset("base", force=True)
        if left >= 0:
            return
    assert state


def prepared_once(driver: Client) -> None:
    if not list(driver.repo.tags()):
        prepared(driver)
        driver.repo.create_tag("base", "main")


@pytest.mark.parametrize("is_guarded", [True, False])
def test_r06_a_writer_with_an_old_record_is_refused_without_a_trace(
    first: Client, second: Client, is_guarded: bool
) -> None:
    """It has chosen its token before the lock; its write lands after the fold, and before the lock is held."""
    taken: list[Any] = []
    address: list[bytes] = []
    second.store.guards = is_guarded

    def plan(call: str, partition: bytes, _key: bytes) -> Outcome:
        if call == ("set_many_while" if is_guarded else "set") and b"/staging/" in partition and not taken:
            taken.append(None)
            taken[0] = first.main.locks.take("b/", owner="ops")
            address.append(partition)
        return Outcome.DONE

    second.next = plan
    refused(RangeLocked, lambda: second.main.put("b/1", b"late"))
    assert address
    assert shown(first)["b/1"] == b"b/1"
    first.main.locks.release(taken[0].id)
    assert shown(first)["b/1"] == b"b/1"
    assert not list(first.main.uncommitted())


def test_r06_a_write_that_was_in_time_is_acknowledged(first: Client, second: Client) -> None:
    """The lock comes between the write and its check: it is folded, and its writer finds it there."""
    taken: list[Any] = []
    written: list[bool] = []
    second.store.guards = False

    def plan(call: str, partition: bytes, _key: bytes) -> Outcome:
        if call == "set" and b"/staging/" in partition:
            written.append(True)
        elif written and not taken:
            taken.append(None)
            taken[0] = first.main.locks.take("b/", owner="ops", on_dirty="commit")
        return Outcome.DONE

    second.next = plan
    second.main.put("b/1", b"in time")
    assert shown(first)["b/1"] == b"in time"
    refused(RangeLocked, lambda: second.main.put("b/1", b"too late"))


def test_r07_a_range_with_uncommitted_changes_is_not_locked_unless_they_go(first: Client, second: Client) -> None:
    first.main.put("b/1", b"dirty")
    first.main.put("a/1", b"beside it")
    with pytest.raises(UncommittedChanges) as caught:
        second.main.locks.take("b/", owner="ops")
    assert list(caught.value.paths) == ["b/1"]
    assert not list(first.main.locks)
    # what changes nothing in effect does not count
    first.main.put("c/1", b"x")
    first.main.discard("c/1")
    first.main.locks.release(second.main.locks.take("c/", owner="ops").id)
    lock = second.main.locks.take("b/", owner="ops", on_dirty="discard")
    assert shown(first) == {path: b"beside it" if path == "a/1" else path.encode() for path in PATHS}
    assert [change.path for change in first.main.uncommitted()] == ["a/1"]
    second.main.locks.release(lock.id)
    first.main.put("b/1", b"dirty")
    second.main.locks.take("b/", owner="ops", on_dirty="commit")
    assert not list(first.main.uncommitted())
    assert shown(first)["b/1"] == b"dirty"


def test_r09_readers_are_never_blocked(first: Client, second: Client) -> None:
    before = shown(second)
    with first.main.lock("b/", owner="ops") as repair:
        repair.put("b/1", b"new")
        repair.delete("b/2")
        assert shown(second) == before
        assert second.main.get_commit().id == second.main.commit_id
        assert repair.read("b/1") == b"new"
    assert shown(second) == {"a/1": b"a/1", "b/1": b"new", "c/1": b"c/1"}


def test_r09_except_in_quarantine(first: Client, second: Client) -> None:
    with first.main.lock("b/", owner="ops", mode="quarantine") as repair:
        for act in (
            lambda: second.main.read("b/1"),
            lambda: second.main.exists("b/9"),
            lambda: list(second.main.list()),
            lambda: list(second.main.list("b/")),
            lambda: second.main.copy("b/1", "d/1"),
            lambda: second.main.copy("b/", "d/"),
        ):
            refused(RangeLocked, act, "quarantined by 'ops' \\(repairs\\)")
        assert [info.path for info in second.main.list("a")] == ["a/1"]
        assert [info.path for info in second.main.list("c")] == ["c/1"]
        assert next(iter(second.main.list(amount=1))).path == "a/1"
        assert second.main.read("c/1") == b"c/1"
        assert repair.read("b/1") == b"b/1"
        repair.put("b/1", b"mended")
    assert second.main.read("b/1") == b"mended"


def test_r10_everything_else_goes_on(first: Client, second: Client) -> None:
    first.main.locks.take("b/", owner="ops")
    second.main.put("a/2", b"x")
    second.main.delete("c/1")
    second.main.rename("a/1", "d/1")
    second.main.commit("beside it")
    with second.main.transaction("t") as tx:
        tx.put("a/3", b"x")
    work = second.main.create_branch("work")
    work.put("b/1", b"other branches are others")
    work.commit("work")
    refused(RangeLocked, lambda: second.main.merge("work"))
    work.revert("work")
    work.put("a/4", b"x")
    work.commit("beside it")
    second.main.merge("work")
    second.main.compact(force=True)
    assert held(second) == [("'b/'", "ops")]  # compaction carries locks through
    assert second.main.read("a/4") == b"x"


@pytest.mark.parametrize("end", [None, chr(0x10FFFF)])
def test_r11_ranges_at_the_ends_of_the_key_space(end: str | None, first: Client, second: Client) -> None:
    last = chr(0x10FFFF) * 3
    first.main.put(last, b"x")
    first.main.put("\x01", b"x")
    first.main.commit("ends")
    first.main.locks.take(("c", end), owner="ops")
    first.main.locks.take(("", "a"), owner="ops")
    refused(RangeLocked, lambda: second.main.put("\x01", b"y"))
    refused(RangeLocked, lambda: second.main.put("c", b"y"))
    refused(RangeLocked, lambda: second.main.delete_prefix(""))
    if end is None:
        refused(RangeLocked, lambda: second.main.delete(last))
    else:
        second.main.delete(last)
    second.main.put("b/1", b"between")


def test_r12_who_holds_the_lock_is_told_by_its_id_alone(first: Client, second: Client) -> None:
    lock = first.main.locks.take("b/", owner="ops")
    for locks in ([], ["ops"], ["b/"]):
        with pytest.raises((RangeLocked, LockLost)), second.main.transaction("t", locks=locks) as tx:
            tx.put("b/1", b"x")
    with second.main.transaction("t", locks=lock.id) as tx:
        tx.put("b/1", b"of the holder")
    assert shown(first)["b/1"] == b"of the holder"
    assert held(first) == [("'b/'", "ops")]


def test_r13_a_lock_tells_who_and_why_and_may_be_waited_for(
    first: Client, second: Client, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = first.main.locks.take("b/", owner="ops")
    with pytest.raises(RangeLocked) as caught:
        second.main.put("b/1", b"x")
    assert (caught.value.owner, caught.value.description, caught.value.lock_id) == ("ops", "repairs", lock.id)
    assert caught.value.exit_code == 13
    refused(LockTimeout, lambda: second.main.locks.take("b/1", owner="load", timeout_s=3), "3 seconds")
    assert not second.main._cell.read(None).branch.waiting
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock.advance_s(seconds)
        if sum(slept) > 1:
            first.main.locks.end([lock.id])

    monkeypatch.setattr(clock, "sleep", sleep)
    assert second.main.locks.take("b/1", owner="load", timeout_s=3).owner == "load"
    assert sum(slept) < 2


def test_r13_a_job_waits_for_a_lock_and_then_fails_with_it(
    first: Client, second: Client, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = first.main.locks.take("b/", owner="ops")
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if sum(slept) > 5:
            first.main.locks.end([lock.id])

    monkeypatch.setattr(clock, "sleep", sleep)
    with pytest.raises(RangeLocked, match="repairs"), second.main.transaction("t", lock_patience_s=1) as tx:
        tx.put("b/1", b"x")
    assert 1 <= sum(slept) < 1.3
    assert max(slept) <= 0.25
    with second.main.transaction("t") as tx:
        tx.put("b/1", b"waited")
    assert shown(first)["b/1"] == b"waited"
