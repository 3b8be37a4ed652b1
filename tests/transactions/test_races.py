"""The collector against one other operation, at every point at which either can be interrupted by the other.

A race between two needs one interruption to show, so these schedules are tried all, where the simulator picks some of
many with more interruptions. Each rule of the collector has its mutation here too.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from strandline.core import promises
from strandline.core.retention import Retention
from strandline.errors import CommitExpired, Conflict, Contention, ObjectMissing, ObjectNotFound, StrandlineError
from strandline.kv.memory import MemoryStore
from strandline.repository.transactions.transaction import Transaction
from strandline.repository.upkeep.garbage import Collector
from strandline.testing.clock import ManualClock
from strandline.testing.faults import Outcome
from tests.harness.clients import Client, Shared

RULE = Retention(days=0.0)
"""All commits but heads expire at once."""
MAX_POINTS = 400
DAY_S = 86_400
REFUSALS = (ObjectMissing, ObjectNotFound, CommitExpired, Conflict, Contention)


class Lake:
    """Two processes on one lake, of which the second is the collector's.

    Attributes:
        notes: what a scenario remembers between its parts.
    """

    def __init__(self, folder: Path) -> None:
        kv, clock = MemoryStore(), ManualClock()
        self.first = Client(Shared(kv, clock, folder), create=True)
        self.second = Client(Shared(kv, clock, folder))
        self.folder = folder
        self.before: int | None = None
        self.notes: dict[str, str] = {}
        self.transaction: Transaction | None = None

    def age(self) -> None:
        """All files become a day older; the grace begins here: it is longer than what is done from now on."""
        stores = self.second.repo._core.stores
        for commit, mark in promises.expired(stores).items():
            promises.put_expired(stores, [commit], replace(mark, at=mark.at - DAY_S * 10**6))
        moments = [(place, place.stat().st_mtime) for place in self.folder.rglob("*") if place.is_file()]
        for place, moment in moments:
            os.utime(place, (moment - DAY_S, moment - DAY_S))
        self.before = self.before or round((min(moment for _, moment in moments) - 0.5 * DAY_S) * 1e6)

    def collect(self) -> None:
        core = self.second.repo._core
        Collector(core, RULE, grace_days=0.0, before_us=self.before, links_before_us=self.before).run()

    def check(self) -> None:
        """What is visible can be read, pinned, and branched from."""
        repo = self.second.fresh()
        for found in list(repo.branches()):
            branch = repo.branch(found.name)
            for info in branch.list():
                branch.read(info.path)
            with branch.pin() as head:
                for info in head.list():
                    head.read(info.path)


Act = Callable[[Lake], object]


def interrupted_at(point: int, driver: Client, act: Callable[[], object], other: Callable[[], object]) -> bool:
    """Run `act`, and `other` right before its n-th call of a store; whether there was one."""
    left = point
    namespace = driver.repo._core.resolver.namespace
    delete = namespace.delete_many

    def call() -> None:
        nonlocal left
        left -= 1
        if left == -1:
            other()

    def plan(_call: str, _partition: bytes, _key: bytes) -> Outcome:
        call()
        return Outcome.DONE

    def delete_many(keys: list[str]) -> None:
        call()
        delete(keys)

    driver.next = plan
    namespace.delete_many = delete_many  # type: ignore[method-assign,assignment]
    try:
        act()
    except REFUSALS:
        pass  # what counts is what is visible afterwards
    finally:
        driver.connect()
        namespace.delete_many = delete  # type: ignore[method-assign]
    return left < 0


def quietly(act: Callable[[], object]) -> Callable[[], None]:
    """A refusal is fine: what counts is what is visible afterwards."""

    def run() -> None:
        try:
            act()
        except REFUSALS:
            return

    return run


def race(tmp_path: Path, build: Act, operation: Act, meanwhile: Act = lambda lake: None) -> None:
    """Let the operation interrupt a collection at each of its calls, and a collection the operation at each of its.

    Args:
        meanwhile: what others do right before the collection.
    """
    for who in ("the collector", "the operation"):
        for point in range(MAX_POINTS):
            lake = Lake(tmp_path / f"{who}-{point}")
            build(lake)
            lake.age()

            def collection(lake: Lake = lake) -> None:
                meanwhile(lake)
                lake.collect()

            def act(lake: Lake = lake) -> object:
                return operation(lake)

            if who == "the collector":
                more = interrupted_at(point, lake.second, collection, quietly(act))
            else:
                more = interrupted_at(point, lake.first, act, quietly(collection))
            try:
                lake.check()
                quietly(lake.collect)()
                lake.check()
            except StrandlineError as error:
                pytest.fail(f"{who} was interrupted at its call {point}: {error}")
            if not more:
                break
        else:
            pytest.fail(f"{who} made more than {MAX_POINTS} calls")


# --- bytes ------------------------------------------------------------------------------------------------------------


def staged_elsewhere(lake: Lake) -> None:
    lake.first.repo.branch("main").create_branch("work")
    lake.first.main.put("a", b"1")


def copy_across(lake: Lake) -> object:
    return lake.first.repo.branch("work").copy("a", "b", ref=lake.first.main)


def source_goes(lake: Lake) -> None:
    lake.second.main.delete("a")


def test_g1_a_copy_of_what_is_being_deleted(tmp_path: Path) -> None:
    race(
        tmp_path,
        staged_elsewhere,
        lambda lake: lake.first.repo.branch("work").copy("a", "b", ref=lake.first.main),
        source_goes,
    )


def unreferenced(lake: Lake) -> None:
    lake.notes["address"] = lake.first.main.put("a", b"1").physical_address
    lake.first.main.delete("a")


def link_again(lake: Lake) -> object:
    return lake.first.main.link("b", lake.notes["address"], size=1, checksum="1")


def test_g2_a_link_to_what_is_being_deleted(tmp_path: Path) -> None:
    race(tmp_path, unreferenced, link_again)


# --- commits ----------------------------------------------------------------------------------------------------------


def old_commit(lake: Lake) -> None:
    main = lake.first.main
    main.put("a", b"1")
    lake.notes["old"] = main.commit("old").id
    main.put("a", b"2")
    main.commit("new")


def expired_commit(lake: Lake) -> None:
    old_commit(lake)
    lake.collect()


def branch_from_it(lake: Lake) -> object:
    return lake.first.repo.create_branch("again", lake.notes["old"])


@pytest.mark.parametrize("build", [old_commit, expired_commit])
def test_g3_a_branch_from_a_commit_that_expires(build: Act, tmp_path: Path) -> None:
    race(tmp_path, build, branch_from_it)


# --- transactions -----------------------------------------------------------------------------------------------------


def begun(lake: Lake) -> None:
    lake.first.main.put("a", b"1")
    lake.first.main.commit("base")
    lake.transaction = lake.first.main.transaction("nightly").begin()
    lake.transaction.put("b", b"1")


def publish(lake: Lake) -> object:
    assert lake.transaction is not None
    return lake.transaction.commit()


def test_g4_a_transaction_that_is_published(tmp_path: Path) -> None:
    race(tmp_path, begun, publish)


def committed(lake: Lake) -> None:
    lake.first.main.put("a", b"1")
    lake.first.main.commit("base")


def copied_and_published(lake: Lake) -> None:
    with lake.first.main.transaction("nightly") as tx:
        tx.copy("a", "b")


def the_same_elsewhere(lake: Lake) -> None:
    """The same bytes at another address are no change: what was copied has only the old commit."""
    lake.second.main.delete("a")
    lake.second.main.commit("away")
    lake.second.main.put("a", b"1")
    lake.second.main.commit("again")


def test_g4_a_copy_that_a_transaction_publishes(tmp_path: Path) -> None:
    race(tmp_path, committed, copied_and_published, the_same_elsewhere)


def test_g5_what_an_open_transaction_reads_stays(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    begun(lake)
    lake.age()
    lake.second.main.put("a", b"2")
    lake.second.main.commit("the head moves")
    for _ in range(3):
        lake.collect()
        lake.age()
    assert lake.transaction is not None
    assert lake.transaction.read("a") == b"1"
    lake.transaction.commit()
    lake.check()


def test_g6_what_is_pinned_stays(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    old_commit(lake)
    lake.age()
    with lake.first.repo.ref(lake.notes["old"]).pin() as held:
        for _ in range(3):
            lake.collect()
            lake.age()
        assert held.read("a") == b"1"


# --- what is staged ---------------------------------------------------------------------------------------------------


def staged(lake: Lake) -> None:
    lake.first.main.put("a", b"1")
    lake.first.main.put("b", b"1")


def fold(lake: Lake) -> None:
    """What was staged is in a tree, and its entries are gone."""
    lake.first.main.compact(force=True)
    lake.first.repo.sweep(after_s=0, again_after_s=1e12)


def test_g7_staged_changes_that_are_folded(tmp_path: Path) -> None:
    race(tmp_path, staged, fold)
