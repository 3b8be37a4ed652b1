"""What becomes of locks when others come in between, replies are lost, and processes die: at every call of a store."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from strandline.errors import LockLost, LockRejected, RangeLocked, StrandlineError
from strandline.repository.locks.locks import LockRequest
from strandline.testing.clock import ManualClock
from strandline.testing.faults import Outcome
from tests.harness.clients import Client, at_each_call


@pytest.fixture(autouse=True)
def _owners(first: Client) -> None:
    first.main.put_many({"a/1": b"1", "b/1": b"1"})
    first.main.commit("content")
    for owner in ("ops", "load"):
        first.repo.lock_owners.register(owner, "a test")


def quietly(act: Callable[[], object]) -> None:
    try:
        act()
    except StrandlineError:
        return


def test_a_branch_made_while_a_repository_is_being_locked_is_locked(first: Client, second: Client) -> None:
    made: list[str] = []

    def make() -> None:
        made.append(second.main.create_branch(f"new{len(made)}").name)

    locks = [first.repo.lock_repository(owner="ops")]
    for point in at_each_call(first, lambda: locks[-1].take(), make):
        for name in made[point:]:
            with pytest.raises(RangeLocked):
                second.repo.branch(name).put("x", b"x")
        locks[-1].release()
        for name in made[point:]:
            second.repo.delete_branch(name)
        locks.append(first.repo.lock_repository(owner="ops"))
    assert made


def test_a_repository_lock_that_is_released_while_it_is_taken_is_not_held(first: Client, second: Client) -> None:
    outcomes = set()

    def take() -> None:
        try:
            first.repo.lock_repository(owner="ops").take()
            outcomes.add("held")
        except (LockLost, LockRejected):
            outcomes.add("lost")

    for point in at_each_call(first, take, lambda: second.repo.unlock()):
        is_held = second.repo.current_lock is not None
        for name in ("main",):
            try:
                second.repo.branch(name).put("x", b"x")
                assert not is_held, point
            except RangeLocked:
                assert is_held, point
        first.repo.unlock()
        second.main.discard()
    assert outcomes == {"held", "lost"}


@pytest.mark.parametrize("outcome", [Outcome.DONE_BUT_LOST, Outcome.NOT_DONE])
def test_a_repository_lock_whose_reply_is_lost_is_held_or_gone(outcome: Outcome, first: Client, second: Client) -> None:
    for number in range(1, 5):
        first.lose("set_if", b"repositories", number, outcome)
        quietly(lambda: first.repo.lock_repository(owner="ops").take())
        first.connect()
        if second.repo.current_lock is None:
            second.main.put("x", b"x")
            second.main.discard()
        else:
            assert second.repo.unlock()
        assert not list(second.main.locks)


def test_a_release_of_a_repository_that_died_is_gone_on_with(first: Client, second: Client) -> None:
    first.main.create_branch("work")
    for number in range(1, 5):
        lock = first.repo.lock_repository(owner="ops").take()
        first.lose("set_if", b"", number, Outcome.NOT_DONE)
        quietly(lock.release)
        first.connect()
        if second.repo.current_lock is not None:
            with pytest.raises(LockRejected):
                second.repo.lock_repository(owner="load").take()
            assert second.repo.unlock()
        for name in ("main", "work"):
            assert not list(second.repo.branch(name).locks), number


def test_the_lock_of_a_repository_is_not_ended_on_one_branch(first: Client, second: Client) -> None:
    with first.repo.lock_repository(owner="ops") as lock:
        with pytest.raises(LockRejected, match="whole repository"):
            second.main.locks.release(lock.id)
        with pytest.raises(LockRejected, match="whole repository"):
            second.main.locks.release_all("ops")
        with pytest.raises(RangeLocked):
            second.main.put("x", b"x")


def test_a_branch_whose_maker_died_is_made_ready_or_deleted(first: Client, second: Client) -> None:
    for number, mend in enumerate(("again", "delete", "lock")):
        name = f"new{number}"
        first.lose("set_if", b"/refs", 2, Outcome.NOT_DONE)
        with pytest.raises(StrandlineError, match="exist_ok=True"):
            first.main.create_branch(name)
        first.connect()
        with pytest.raises(RangeLocked, match="being made"):
            second.repo.branch(name).put("x", b"x")
        if mend == "again":
            second.main.create_branch(name, exist_ok=True).put("x", b"x")
        elif mend == "delete":
            second.repo.delete_branch(name)
        else:
            with second.repo.lock_repository(owner="ops", on_dirty="commit"):
                assert [lock.owner for lock in second.repo.branch(name).locks] == ["ops"]
            second.repo.branch(name).put("x", b"x")


def test_who_waits_for_a_lock_does_not_keep_its_holder_from_changing_it(first: Client, second: Client) -> None:
    lock = first.main.locks.take("b/", owner="ops")
    waiting(second, "b/")
    longer = first.main.locks.extend(lock.id, "c/")
    [other] = first.main.locks.change([LockRequest("b/", "load")], release=[longer.id])
    assert [one.id for one in second.main.locks] == [other.id]


def waiting(driver: Client, what: str) -> None:
    """Somebody begins to wait, and dies."""
    clock = driver.repo._core.stores.clock
    before = clock.sleep

    def dies(_seconds: float) -> None:
        driver.cut_off()
        raise KeyboardInterrupt

    clock.sleep = dies  # type: ignore[method-assign,assignment]
    try:
        with pytest.raises(KeyboardInterrupt):
            driver.main.locks.take(what, owner="load", timeout_s=100)
    finally:
        clock.sleep = before  # type: ignore[method-assign]
        driver.connect()


def test_somebody_who_died_waiting_is_not_waited_for_for_ever(
    first: Client, second: Client, clock: ManualClock
) -> None:
    lock = first.main.locks.take("b/", owner="ops")
    waiting(second, "b/")
    first.main.locks.release(lock.id)
    with pytest.raises(LockRejected, match="'load' has waited"):
        first.main.locks.take("b/", owner="ops")
    clock.advance_s(61)
    assert first.main.locks.take("b/", owner="ops").owner == "ops"
    assert not first.main._cell.read(None).branch.waiting


def test_of_several_locks_that_are_taken_at_once_none_is_left_when_one_is_lost(first: Client, second: Client) -> None:
    def end_one() -> None:
        pending = [lock for lock in second.main.locks if lock.state == "pending"]
        if pending:
            second.main.locks.end([pending[0].id])

    def take() -> None:
        quietly(lambda: first.main.locks.change([LockRequest("a/", "ops"), LockRequest("c/", "ops")]))

    for point in at_each_call(first, take, end_one):
        assert len(list(second.main.locks)) in (0, 2), point
        second.main.locks.release_all("ops")


def test_an_extension_is_a_part_of_its_lock(first: Client, second: Client) -> None:
    held = first.main.lock("a/", owner="ops").begin()
    second.main.locks.extend(held.lock_id, "b/")
    with pytest.raises(RangeLocked):
        second.main.put("b/1", b"x")
    second.main.transactions.abort(held.id)
    second.main.put("b/1", b"x")
    assert not list(second.main.locks)
    lock = first.main.locks.take("c/", owner="ops")
    first.main.locks.extend(lock.id, "e/")
    assert second.main.locks.take(["e/", "c/"], owner="ops").id == lock.id
    with pytest.raises(LockRejected):
        second.main.locks.take("c/", owner="ops")

    def end() -> None:
        quietly(lambda: second.main.locks.release(lock.id))

    def extend() -> None:
        quietly(lambda: first.main.locks.extend(lock.id, f"f{len(gone)}/"))

    # ended at each call of an extension: it never comes back
    for point in at_each_call(first, extend, end):
        gone.append(point)
        assert not [one for one in second.main.locks if one.id == lock.id and len(one.ranges) == 1], point
        second.main.locks.release_all("ops")
        lock = first.main.locks.take(["c/", "e/"], owner="ops")


gone: list[int] = []


def test_a_refused_removal_of_an_owner_costs_nobody_a_lock(first: Client, second: Client) -> None:
    lock = first.main.locks.take("a/", owner="ops")

    def remove() -> None:
        quietly(lambda: second.repo.lock_owners.remove("ops"))

    for point in at_each_call(first, lambda: first.main.locks.extend(lock.id, f"x{len(seen)}/"), remove):
        seen.append(point)
        assert [one.id for one in second.main.locks] == [lock.id], point
        assert "ops" in second.repo.lock_owners, point


seen: list[int] = []


def test_all_locks_of_an_owner_end_or_it_says_why(first: Client, second: Client) -> None:
    first.main.locks.take("a/", owner="ops")
    first.main.locks.take("b/", owner="ops")
    whole = first.main.locks.take_branch(owner="ops")
    assert second.main.locks.release_all("ops") == 3
    first.main.locks.take("a/", owner="ops")
    other = second.main.locks.take_branch(owner="load")
    assert whole.id != other.id
    with pytest.raises(LockRejected, match="as a whole"):
        second.main.locks.release_all("ops")
    assert len(list(second.main.locks)) == 2
