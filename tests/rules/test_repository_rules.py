"""Rules of repositories that nothing noticed when a reader took them out; see `test_rules.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from strandline.branch.attach import attach_changes
from strandline.branch.rules.lock_rules import locks_of
from strandline.core import namespace, promises
from strandline.core.record import blocked_actions
from strandline.core.retention import DAY_US, Retention
from strandline.errors import BranchProtected, NotAllowed, OutcomeUnknown, StoreUnavailable, StrandlineError
from strandline.repository.names import branches
from strandline.repository.names.settings import change_settings
from strandline.repository.upkeep.garbage import Collector
from strandline.testing.clock import ManualClock
from strandline.testing.faults import Outcome
from tests.harness.clients import Client, link, shown
from tests.rules.test_branch_rules import at_each_call


def test_a_branch_made_while_a_repository_is_being_freed_is_free(drivers: tuple[Client, Client]) -> None:
    first, second = drivers
    second.repo.lock_repository(owner="ops").take()
    names = (f"new{number}" for number in range(100))
    made: list[str] = []

    def make() -> None:
        made.append(next(names))
        first.main.create_branch(made[-1])

    for _ in at_each_call(first, make, second.repo.unlock):
        second.repo.unlock()
        second.repo.branch(made[-1]).put("x", b"x")
        second.repo.lock_repository(owner="ops", on_dirty="discard").take()
    assert len(made) > 3


def test_no_lock_is_left_on_a_branch_that_is_made_while_the_lock_is_released(drivers: tuple[Client, Client]) -> None:
    first, second = drivers
    names = (f"new{number}" for number in range(100))
    made: list[str] = []

    def make() -> None:
        made.append(next(names))
        second.main.create_branch(made[-1])

    total = 0
    first.repo.lock_repository(owner="ops").take()
    for _ in at_each_call(first, first.repo.unlock, make):
        first.repo.unlock()
        for name in made:
            assert not list(second.repo.branch(name).locks), name
            second.repo.delete_branch(name)
        total += len(made)
        made.clear()
        first.repo.lock_repository(owner="ops").take()
    assert total > 3


def test_a_branch_that_was_deleted_meanwhile_does_not_stay_the_default(
    one: Client, two: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = two.main.create_branch("other")

    def deleted_then(*arguments: Any, **options: Any) -> None:
        change_settings(*arguments, **options)
        monkeypatch.undo()
        stores = other._core.stores  # a deletion that had looked at the settings before
        stores.kv.delete(stores.refs, b"other")

    monkeypatch.setattr("strandline.repository.repository.change_settings", deleted_then)
    with pytest.raises(NotAllowed):
        one.repo.set_default_branch("other")
    assert two.repo.settings.default_branch == "main"


def test_a_writer_with_an_older_record_meets_new_rules(one: Client, two: Client) -> None:
    one.store.guards = False
    one.before("set", 1, lambda: two.repo.protect("main", ["stage"]))
    with pytest.raises(OutcomeUnknown):  # it read the record before the rule came, and writes after
        link(one.main, "a", 1)
    with pytest.raises(BranchProtected):
        link(one.main, "b", 1)


def test_a_guarded_write_with_an_older_record_leaves_nothing_where_new_rules_forbid_it(
    one: Client, two: Client
) -> None:
    link(one.main, "warm", 1)
    one.before("set_many_while", 1, lambda: two.repo.protect("main", ["stage"]))
    with pytest.raises(BranchProtected):
        link(one.main, "a", 1)
    assert shown(two) == ["warm"]


def test_the_commit_that_a_lock_began_with_is_kept(drivers: tuple[Client, Client], clock: ManualClock) -> None:
    first, second = drivers
    first.main.locks.take("b/", owner="ops")
    (lock,) = locks_of(first.main._at.read().branch)
    for number in range(3):
        second.main.put("a/1", f"{number}".encode())
        second.main.commit(f"{number}")
    for _ in range(4):
        clock.advance_s(10 * DAY_US / 1_000_000)
        far = 1 << 62
        Collector(first.repo._core, Retention(days=0.0), grace_days=0.0, before_us=far, links_before_us=far).run()
    assert {info.path for info in first.fresh().ref(lock.base).list()} == {"a/1", "b/1"}


def test_a_copy_pins_what_it_copies_from(one: Client, two: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    link(two.main, "a", 1)
    source = two.main.commit("source")
    other = two.main.create_branch("other")
    seen: list[Sequence[str]] = []
    from strandline.repository.objects import staged_writes as module

    def attached(*arguments: Any) -> Any:
        seen.append([pin.commit for pin in promises.pins(two.main._core.stores, 0)])
        return attach_changes(*arguments)

    monkeypatch.setattr(module, "attach_changes", attached)
    one.repo.branch("other").copy("a", "b", ref=one.repo.ref(source.id))
    assert seen == [[source.id]]
    assert promises.pins(two.main._core.stores, 0) == []
    assert other.find("b") is not None


def test_a_run_that_died_as_it_began_is_no_copy(drivers: tuple[Client, Client]) -> None:
    first, second = drivers

    def plan(call: str, _partition: bytes, key: bytes) -> Outcome:
        return Outcome.NOT_DONE if call == "set_if" and key == namespace.KEY else Outcome.DONE

    first.next = plan
    with pytest.raises(StoreUnavailable):
        first.repo.gc.run()
    second.repo.gc.run()
    first.connect()
    first.fresh().gc.run()


# --- rules that two change at once ------------------------------------------------------------------------------------


def test_rules_that_come_while_a_branch_is_made_are_its_rules(drivers: tuple[Client, Client]) -> None:
    first, second = drivers
    names = (f"new{number}" for number in range(100))
    made: list[str] = []

    def make() -> None:
        made.append(next(names))
        first.main.create_branch(made[-1])

    for _ in at_each_call(first, make, lambda: second.repo.protect("new*", ["stage"])):
        assert second.repo.protections == () or second.repo.branch(made[-1])._cell.read().branch.blocked == ("stage",)
        second.repo.unprotect("new*")
        assert second.repo.branch(made[-1])._cell.read().branch.blocked == ()
    assert len(made) > 3


@pytest.mark.parametrize("is_read_only", [True, False])
def test_of_two_changes_of_rules_the_later_one_stays_on_the_branches(
    drivers: tuple[Client, Client], is_read_only: bool
) -> None:
    first, second = drivers
    second.repo.set_read_only(not is_read_only)
    points = 0

    def change() -> None:
        nonlocal points
        points += 1
        second.repo.set_read_only(is_read_only)

    for _ in at_each_call(first, lambda: first.repo.protect("ma*", ["commit"]), change):
        assert second.main._cell.read().branch.blocked == blocked_actions(second.repo.settings, "main")
        second.repo.set_read_only(not is_read_only)
        second.repo.unprotect("ma*")
    assert points > 3


def test_a_maker_that_dies_leaves_no_branch_under_a_lock_that_ended(drivers: tuple[Client, Client]) -> None:
    """It read the lock, the lock was released, and then it swapped."""
    first, second = drivers
    second.repo.lock_repository(owner="ops").take()
    released = False

    def plan(call: str, partition: bytes, key: bytes) -> Outcome:
        nonlocal released
        if released:
            return Outcome.NOT_DONE if call == "get" else Outcome.DONE
        if call == "set_if" and partition.endswith(b"/refs") and key == b"new" and made:
            released = True
            second.repo.unlock()
        if call == "set_if" and key == b"new":
            made.append(1)
        return Outcome.DONE

    made: list[int] = []
    first.next = plan
    with pytest.raises(StrandlineError):
        first.main.create_branch("new")
    first.connect()
    assert released
    second.repo.create_branch("new", exist_ok=True).put("x", b"x")


def test_a_new_branch_that_a_lock_takes_over_has_the_rules(
    drivers: tuple[Client, Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rules came after the maker had read them and before its branch was there; then came the lock."""
    first, second = drivers
    create_name = branches.create_name

    def overtaken(core: Any, name: str, record: Any) -> bool:
        if name != "new":
            return create_name(core, name, record)
        second.repo.protect("*", ["stage"])
        made = create_name(core, name, record)
        second.repo.lock_repository(owner="ops").take()
        return made

    monkeypatch.setattr(branches, "create_name", overtaken)
    first.main.create_branch("new")
    second.repo.unlock()
    with pytest.raises(BranchProtected):
        second.repo.branch("new").put("x", b"x")
