"""The laws of how range locks are kept, R-14 to R-19: each fails under the mutation of its number."""

from __future__ import annotations

import pytest

from strandline.branch.rules import lock_rules
from strandline.errors import (
    Fenced,
    LockLost,
    LockRateExceeded,
    LockRejected,
    RangeLocked,
    StrandlineError,
    TooManyLocks,
    UncommittedChanges,
)
from strandline.testing.clock import ManualClock
from strandline.testing.faults import Outcome
from tests.harness.clients import Client
from tests.locks.acts import WRITES, held, prepared, refused, shown

pytestmark = pytest.mark.usefixtures("content")


# --- how it is kept -------------------------------------------------------------------------------------


def test_r14_a_cached_record_refuses_wrongly_only_until_it_has_read_again(first: Client, second: Client) -> None:
    lock = first.main.locks.take("b/", owner="ops", mode="quarantine")
    second.main._cell.read(None)
    first.main.locks.release(lock.id)
    assert second.main.read("b/1") == b"b/1"
    second.main._cell.read(None)
    first.main.locks.take("b/", owner="ops", mode="quarantine")
    refused(RangeLocked, lambda: second.main.read("b/1"))
    refused(RangeLocked, lambda: second.main.put("b/1", b"x"))
    first.main.locks.release_all("ops")
    second.main.put("b/1", b"x")


def test_r15_find_clips_and_release_all_ends_exactly_those_of_an_owner(first: Client, second: Client) -> None:
    first.main.locks.take([("a", "b/2"), "d"], owner="ops")
    second.main.locks.take("b/2", owner="load")
    found = [(str(lock.ranges[0]), lock.owner) for lock in first.main.locks.find(("b", None))]
    assert found == [("'b' to 'b/2'", "ops"), ("below 'b/2'", "load"), ("below 'd'", "ops")]
    assert [lock.owner for lock in first.main.locks.find("b/", owner="load")] == ["load"]
    assert first.main.locks.find("c/") == []
    assert second.main.locks.release_all("ops") == 1
    assert held(first) == [("below 'b/2'", "load")]
    assert second.main.locks.release_all("ops") == 0


def test_r16_a_lock_ends_in_the_swap_that_publishes_its_work(first: Client, second: Client) -> None:
    with first.main.lock("b/", owner="ops", message="mended") as repair:
        repair.put("b/1", b"new")
        lock_id = repair.lock_id
    changes = [move.verb for move in second.main.reflog()][:1]
    assert changes == ["publish"]
    assert second.main.get_commit().message == "mended"
    assert not list(second.main.locks)
    refused(LockRejected, lambda: second.main.locks.release(lock_id))
    # an error, a failed requirement, an abort from elsewhere: nothing lands, and the lock is gone
    with pytest.raises(ZeroDivisionError), first.main.lock("b/", owner="ops") as repair:
        repair.put("b/1", b"half")
        1 / 0
    assert not list(second.main.locks)
    repair = first.main.lock("b/", owner="ops").begin()
    repair.put("b/1", b"half")
    second.main.transactions.abort(repair.id)
    assert not list(second.main.locks)
    second.main.put("b/1", b"goes on")
    refused(Fenced, repair.commit)
    assert shown(first)["b/1"] == b"goes on"


def test_r16_a_successor_takes_the_lock_over_from_a_dead_job(first: Client, second: Client) -> None:
    dead = first.main.lock("b/", owner="ops", writer="repair b").begin()
    dead.put("b/1", b"half")
    with second.main.lock(["b/", "c/"], owner="ops", writer="repair b") as repair:
        repair.put("b/1", b"whole")
    refused(Fenced, dead.commit)
    assert shown(second)["b/1"] == b"whole"
    assert not list(second.main.locks)


def test_r16_a_lock_that_was_taken_off_while_it_was_pending_is_never_held(first: Client, second: Client) -> None:
    """Somebody took its taker for dead: at each call of the take."""
    lost = 0
    for point in range(60):
        left = point

        def plan(_call: str, _partition: bytes, _key: bytes) -> Outcome:
            nonlocal left
            left -= 1
            if left == -1:
                second.main.locks.end([lock.id for lock in second.main.locks if lock.state == "pending"])
            return Outcome.DONE

        first.next = plan
        try:
            first.main.locks.take("b/", owner="ops")
        except LockRejected as error:
            assert "took it off" in error.what  # noqa: PT017 - at some points there is none
            assert not list(second.main.locks)
            lost += 1
        first.connect()
        second.main.locks.release_all("ops")
        if left >= 0:
            break
    assert lost


@pytest.mark.parametrize("outcome", [Outcome.DONE_BUT_LOST, Outcome.LATE, Outcome.NOT_DONE])
@pytest.mark.parametrize("number", range(1, 6))
def test_r16_lost_replies_leave_a_lock_that_is_known_or_none(
    outcome: Outcome, number: int, first: Client, second: Client
) -> None:
    first.lose("set_if", b"/refs", number, outcome)
    try:
        with first.main.lock("b/", owner="ops") as repair:
            repair.put("b/1", b"new")
    except StrandlineError:
        first.connect()
        assert shown(second)["b/1"] in (b"b/1", b"new")
        for one in second.main.locks:
            assert one.transaction is not None
            second.main.transactions.abort(one.transaction)
    else:
        assert shown(second)["b/1"] == b"new"
    assert not list(second.main.locks)
    second.main.put("b/1", b"goes on")


def test_r17_while_the_whole_branch_is_locked_other_locks_rest(first: Client, second: Client) -> None:
    prepared(first)
    inner = first.main.locks.take("b/", owner="ops")
    whole = second.main.locks.take_branch(owner="load")
    for name in WRITES:
        refused(RangeLocked, lambda name=name: WRITES[name](first.main))
    refused(RangeLocked, lambda: first.main.commit("x", allow_empty=True))
    refused(LockRejected, lambda: first.main.locks.release(inner.id), "as a whole")
    refused(LockRejected, lambda: first.main.locks.take("c/", owner="ops"), "as a whole")
    refused(LockRejected, lambda: first.main.locks.take_branch(owner="ops"))
    with second.main.transaction("t", locks=whole.id) as tx:  # its holder passes locks that rest
        tx.put("b/1", b"of the holder")
    added = second.main.locks.take("c/", owner="load", under=[whole.id])
    second.main.locks.release(added.id, under=[whole.id])
    assert [lock.is_whole for lock in first.main.locks] == [True, False]
    second.main.locks.release(whole.id)
    refused(RangeLocked, lambda: second.main.put("b/1", b"x"))
    assert shown(first)["b/1"] == b"of the holder"
    with first.main.lock_branch(owner="ops") as held_all:
        held_all.put("b/1", b"under all")
        held_all.put("z", b"under all")
    assert shown(second)["z"] == b"under all"


def test_r17_a_lock_on_the_repository_covers_branches_to_come(first: Client, second: Client) -> None:
    work = first.main.create_branch("work")
    with first.repo.lock_repository(owner="ops") as lock:
        made = second.main.create_branch("made")
        for branch in (second.main, work, made):
            refused(RangeLocked, lambda branch=branch: branch.put("x", b"x"))
        refused(LockRejected, lambda: second.repo.lock_repository(owner="load").take(), "repairs")
        refused(RangeLocked, lambda: second.repo.delete_branch("made"))
        with work.transaction("t", locks=lock.id) as tx:
            tx.put("x", b"of the holder")
        assert [one.state for one in (second.repo.current_lock,) if one is not None] == ["held"]
    assert second.repo.settings.lock is None
    for branch in (second.main, work, made):
        branch.put("x", b"x")
        branch.commit("x")
    # all or none
    first.main.put("x", b"dirty")
    work.locks.take_branch(owner="load")
    refused(StrandlineError, lambda: first.repo.lock_repository(owner="ops", on_dirty="commit").take())
    assert first.repo.current_lock is None
    assert not list(first.main.locks)


def test_r17_a_branch_that_is_made_while_the_repository_is_locked(first: Client, second: Client) -> None:
    """The lock comes at each call of the creation: nobody ever writes to the new branch while it is held."""
    for point in range(40):
        left = point
        lock = first.repo.lock_repository(owner="ops")

        def plan(_call: str, _partition: bytes, _key: bytes) -> Outcome:
            nonlocal left
            left -= 1
            if left == -1:
                lock.take()  # noqa: B023 - called within this turn
            if left <= -1 and f"new{point}" in [found.name for found in first.repo.branches()]:  # noqa: B023
                refused(RangeLocked, lambda: first.repo.branch(f"new{point}").put("x", b"x"))  # noqa: B023
            return Outcome.DONE

        second.next = plan
        made = second.main.create_branch(f"new{point}")
        second.connect()
        if left >= 0:
            return
        refused(RangeLocked, lambda: made.put("x", b"x"))  # noqa: B023
        lock.release()
        made.put("x", b"x")
        made.commit("x")
    pytest.fail("the creation made more calls")


def test_r18_locks_are_bounded_in_number_and_in_rate(
    first: Client, second: Client, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = [f"r{i:03d}/" for i in range(0, 2 * lock_rules.MAX_RANGES, 2)]
    lock = first.main.locks.take(many, owner="ops")
    refused(TooManyLocks, lambda: second.main.locks.take("x", owner="load"), "256")
    first.main.locks.release(lock.id)
    joined = first.main.locks.take([f"r{i:03d}/" for i in range(10)] + [("r", "s")], owner="ops")
    assert len(joined.ranges) == 1  # adjacent and nested ones are joined
    first.main.locks.release(joined.id)
    with pytest.raises(LockRateExceeded, match="Try again in"):
        for _ in range(2 * lock_rules.BURST):
            first.main.locks.release(first.main.locks.take("b/", owner="ops").id)
    assert not list(first.main.locks)
    refused(LockRateExceeded, lambda: second.main.locks.take("c/", owner="load"))
    clock.advance_s(1)
    second.main.locks.take("c/", owner="load")
    monkeypatch.setattr(lock_rules, "MAX_WAITING", 0)
    refused(TooManyLocks, lambda: first.main.locks.take("c/", owner="ops", timeout_s=1), "wait")


def test_r19_an_id_of_an_earlier_lock_is_good_for_nothing(first: Client, second: Client) -> None:
    old = first.main.locks.take("b/", owner="ops")
    first.main.locks.release(old.id)
    new = second.main.locks.take("b/", owner="ops")
    refused(LockRejected, lambda: first.main.locks.release(old.id), "has ended")
    refused(LockRejected, lambda: first.main.locks.extend(old.id, "c/"), "has ended")
    with pytest.raises(LockLost), first.main.transaction("t", locks=old.id) as tx:
        tx.put("b/1", b"x")
    assert [lock.id for lock in first.main.locks] == [new.id]
    beside = second.main.locks.take("d/", owner="load")
    tx = first.main.transaction("t", locks=beside.id).begin()
    tx.put("d/1", b"x")
    second.main.locks.release(beside.id)
    refused(LockLost, tx.commit)  # it was held when this was begun
    longer = second.main.locks.extend(new.id, "c/")
    assert len(longer.ranges) == 2 or str(longer.ranges[0]) == "'b/' to 'c0'"
    refused(RangeLocked, lambda: first.main.put("c/1", b"x"))
    first.main.put("a/1", b"dirty")
    refused(UncommittedChanges, lambda: second.main.locks.extend(new.id, "a/"))
    assert [lock.id for lock in first.main.locks] == [new.id]  # it stays as it was
    second.main.locks.release(new.id)
    first.main.put("c/1", b"x")


def test_a_pending_lock_of_a_dead_process_holds_nobody_up_for_ever(
    first: Client, second: Client, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It died between the two swaps; who waits takes it off, and it can never become held afterwards."""
    first.lose("set_if", b"/refs", 2, Outcome.NOT_DONE)
    pend = first.next

    def dies(call: str, partition: bytes, key: bytes) -> Outcome:
        outcome = pend(call, partition, key)
        if outcome is Outcome.NOT_DONE:
            first.cut_off()
        return outcome

    first.next = dies
    with pytest.raises(StrandlineError):
        first.main.locks.take("b/", owner="ops")
    first.connect()
    assert [lock.state for lock in second.main.locks] == ["pending"]
    monkeypatch.setattr(clock, "sleep", clock.advance_s)
    refused(RangeLocked, lambda: second.main.put("b/1", b"x"))
    assert second.main.locks.take("b/", owner="load", timeout_s=100).state == "held"
    assert held(first) == [("'b/'", "load")]
