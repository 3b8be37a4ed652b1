"""Rules of branches, locks and transactions that nothing noticed when a reader took them out; see `test_rules.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from strandline.branch import transactions
from strandline.branch.attempts import update
from strandline.branch.rules import writers
from strandline.branch.rules.record import WriterRecord, seal
from strandline.branch.token_queue import is_condemned
from strandline.branch.transactions import Repeat, TransactionRecord, forget, settle
from strandline.core.node import one_write
from strandline.envelope import encode
from strandline.errors import (
    Fenced,
    LockLost,
    OutcomeUnknown,
    RangeLocked,
    StoreUnavailable,
    StrandlineError,
    TransactionClosed,
)
from strandline.ids import CommitId, StagingToken, new_id
from strandline.testing.faults import Outcome
from tests.harness.clients import Client, link
from tests.harness.clients import at_each_call as each_call


def at_each_call(driver: Client, act: Callable[[], object], other: Callable[[], object]) -> Iterator[int]:
    """As `each_call`; at some of the points `act` is refused."""

    def perhaps() -> None:
        with suppress(StrandlineError):
            act()

    return each_call(driver, perhaps, other)


# --- locks ------------------------------------------------------------------------------------------------------------


def test_a_commit_is_refused_once_the_whole_branch_is_held(drivers: tuple[Client, Client]) -> None:
    first, second = drivers
    heads: list[CommitId] = []
    points = 0

    def hold() -> None:
        second.main.lock_branch(owner="ops").__enter__()
        heads.append(second.main.commit_id)

    for _ in at_each_call(first, lambda: first.main.commit("c", allow_empty=True), hold):
        if heads:
            assert second.main.commit_id == heads.pop()
            points += 1
        second.main.locks.end([lock.id for lock in second.main.locks])
        for found in list(second.main.transactions):
            if found.state == "open":
                second.main.transactions.abort(found.id)
    assert points > 3


def test_an_empty_publication_demands_its_locks(drivers: tuple[Client, Client]) -> None:
    first, second = drivers
    with pytest.raises(LockLost), first.main.lock("b/", owner="ops"):
        second.main.locks.end([lock.id for lock in second.main.locks])


def test_a_dirty_range_is_not_judged_on_a_token_that_was_being_emptied(one: Client, two: Client) -> None:
    link(two.main, "b/1", "old")
    two.main.commit("old")
    two.repo.lock_owners.register("ops", "a test")
    link(two.main, "b/1", "new")
    update(two.main._at, lambda branch: seal(branch, StagingToken(new_id())))
    link(two.main, "b/1", "old")  # in effect nothing is staged, as long as both tokens are read
    upper = two.main._at.read().branch.staging_token

    def folded_and_half_swept() -> None:
        two.main.compact(force=True)
        stores = two.main._core.stores
        assert list(stores.kv.scan(stores.staging(upper)))
        stores.kv.delete_many(stores.staging(upper), [b"b/1"])

    one.before("scan_page", 1, folded_and_half_swept)
    taken = one.main.locks.take("b/", owner="ops")
    assert [lock.id for lock in two.main.locks] == [taken.id]


def test_a_late_write_that_may_have_shown_is_not_refused_for_sure(drivers: tuple[Client, Client]) -> None:
    first, second = drivers
    first.store.guards = False
    first.main.put("a/2", b"warm")
    written = False

    def plan(call: str, partition: bytes, _key: bytes) -> Outcome:
        nonlocal written
        if written:
            written = False
            first.connect()
            second.main.commit("with it")  # it showed, and was committed
            second.main.put("b/1", b"replaced")
            second.main.commit("replaced")
            second.main.locks.take("b/", owner="ops")
        if call == "set" and b"/staging/" in partition:
            written = True
        return Outcome.DONE

    first.next = plan
    with pytest.raises(OutcomeUnknown, match="whether it was for a while"):
        first.main.put("b/1", b"mine")


def test_a_late_write_beneath_the_lock_that_sealed_it_is_refused(drivers: tuple[Client, Client]) -> None:
    first, second = drivers
    first.store.guards = False
    first.main.put("a/2", b"warm")
    second.main.commit("warm")
    first.main.put("a/3", b"warm")

    def plan(call: str, partition: bytes, _key: bytes) -> Outcome:
        if call == "set" and b"/staging/" in partition:
            first.connect()
            second.main.locks.take("b/", owner="ops")
        return Outcome.DONE

    first.next = plan
    with pytest.raises(RangeLocked):
        first.main.put("b/1", b"mine")
    assert second.main.read("b/1") == b"1"


# --- the reflog -------------------------------------------------------------------------------------------------------


def test_a_block_of_the_reflog_whose_swap_never_was_is_not_read(
    one: Client, two: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.branch.rules.record.MOVES_KEPT", 4)
    monkeypatch.setattr("strandline.branch.rules.record.MOVES_KEPT_WHEN_FULL", 2)
    monkeypatch.setattr("strandline.branch.reflog.BLOCK_MOVES", 3)
    for number in range(12):
        link(one.main, "a", number)
        one.meet("set_if", 2, Outcome.NOT_DONE)
        for _ in range(2):  # the swap that follows the block is lost the first time
            try:
                one.main.commit(f"{number}")
                break
            except StoreUnavailable:
                moves = [move.after for move in two.main.reflog()]
                assert len(moves) == len(set(moves)), number
    moves = [move.after for move in two.main.reflog()]
    assert len(moves) == len(set(moves)) > 8


# --- transactions and private tokens ----------------------------------------------------------------------------------


def test_a_private_token_without_an_item_is_not_attached(one: Client) -> None:
    """Its item goes when it was swept: what was in it is gone."""
    assert is_condemned(one.main._core.stores, b"queue/ffffffffffffffffffff")


def test_the_token_of_a_publication_is_written_before_its_record_says_so(drivers: tuple[Client, Client]) -> None:
    first, _ = drivers
    stores, branch = first.main._core.stores, first.main.branch_id
    writer = WriterRecord(committed=5, commit=first.main.commit_id, token="night-1", digest="d")
    key = transactions._token_key(branch, "nightly", "night-1")
    for number in (1, 2, 3):
        first.lose("set", b"/records", number, Outcome.NOT_DONE)
        try:
            settle(stores, branch, "nightly", writer)
        except StoreUnavailable:
            pass
        first.lose("set_if", b"/records", number, Outcome.NOT_DONE)
        try:
            settle(stores, branch, "nightly", writer)
        except StoreUnavailable:
            pass
        first.connect()
        _, record = transactions.find_record(stores, branch, 5)
        if record is not None and record.state == "committed":
            assert stores.kv.get(stores.records, key) is not None
    settle(stores, branch, "nightly", writer)
    assert stores.kv.get(stores.records, key) is not None


def test_a_forgotten_transaction_takes_no_other_ones_token_along(drivers: tuple[Client, Client]) -> None:
    first, _ = drivers
    stores, branch = first.main._core.stores, first.main.branch_id
    key = transactions._token_key(branch, "nightly", "night-1")
    stores.kv.set(stores.records, key, encode(Repeat(9, first.main.commit_id)))
    forget(stores, TransactionRecord(id=7, writer="nightly", branch_id=branch, token="night-1"))
    assert stores.kv.get(stores.records, key) is not None
    forget(stores, TransactionRecord(id=9, writer="nightly", branch_id=branch, token="night-1"))
    assert stores.kv.get(stores.records, key) is None


def test_a_writer_that_was_pushed_off_comes_back_without_its_transaction(
    drivers: tuple[Client, Client], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error of its commit said that nothing of it would ever be published."""
    main = drivers[0].main
    job = main.transaction("nightly", "job").begin()
    job.put("job", b"1")
    job.save(tmp_path / "saved")
    monkeypatch.setattr(writers, "MAX_WRITERS", 2)
    others = [main.transaction(f"other-{number}", "other").begin() for number in range(2)]
    with pytest.raises(Fenced):
        job.commit()
    for other in others:
        other.abort()
    main.writers.assign("nightly", "node-1")
    main.writers.assign("nightly", "")
    with pytest.raises((Fenced, TransactionClosed)):
        main.resume(tmp_path / "saved").commit()
    assert main.find("job") is None
    with main.transaction("nightly", "next") as following:
        following.put("next", b"2")
    assert main.read("next") == b"2"


def test_names_that_were_made_up_do_not_fill_the_record(
    drivers: tuple[Client, Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They never come back, and each swap writes all names; those that jobs have, and open ones, are not touched."""
    main = drivers[0].main
    monkeypatch.setattr(writers, "MAX_UNNAMED", 3)
    with main.transaction("nightly", "job") as job:
        job.put("job", b"1")
    under_way = main.transaction(one_write(), "a long write").begin()
    for number in range(6):
        with main.transaction(one_write(), "a write") as tx:
            tx.put(f"part-{number}", b"1")
    names = main._at.read().branch.writers
    assert sum(name.startswith(writers.UNNAMED) for name in names) == 4
    assert "nightly" in names
    under_way.put("late", b"2")
    under_way.commit()
    assert main.read("late") == b"2"


def test_a_reset_under_way_meets_a_lock(one: Client, two: Client) -> None:
    two.repo.lock_owners.register("ops", "repairs")
    one.main.put("b/1", b"1")
    one.before("set_if", 2, lambda: two.main.locks.take(("b/2", "b/3"), owner="ops"))
    with pytest.raises(RangeLocked):
        one.main.discard(prefix="b/")
    assert two.main.read("b/1") == b"1"


def test_what_is_remembered_of_a_writer_is_its_published_transaction(drivers: tuple[Client, Client]) -> None:
    main = drivers[0].main
    stores, branch = main._core.stores, main.branch_id
    for committed, position in ((3, "old"), (5, "new"), (3, "old")):
        writer = WriterRecord(started=5, committed=committed, commit=main.commit_id, position=position)
        transactions._push_off(stores, branch, "nightly", writer)
    assert transactions.remembered(stores, branch, "nightly").position == "new"
