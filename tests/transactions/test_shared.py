"""Shared transactions: what one process was told is in, is published; what was refused, is not; whatever comes between.

The schedules are tried all: the one client acts before each call of the other, and each call loses its reply once.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from strandline.branch import shared_changes
from strandline.branch.shared_changes import BATCHES_MAX, SharedChanges, SharedRecord
from strandline.core.retention import Retention
from strandline.envelope import decode
from strandline.errors import (
    Conflict,
    Corrupted,
    Fenced,
    NotAllowed,
    PreconditionFailed,
    RefNotFound,
    RequirementFailed,
    StoreUnavailable,
    StrandlineError,
    TransactionClosed,
    UsageError,
)
from strandline.repository.transactions.transaction import Transaction
from strandline.repository.upkeep.garbage import Collector
from strandline.testing.faults import Outcome
from strandline.tree.rows import Entry
from tests.harness.clients import Client, Shared, at_each_call, begun, failing_at, shown, states

OUTCOMES = (Outcome.DONE_BUT_LOST, Outcome.NOT_DONE, Outcome.LATE)


def joint_keys(client: Client) -> list[bytes]:
    stores = client.repo._core.stores
    return [key for key, _ in stores.kv.scan(stores.records, b"joint/", b"joint0")]


def put(tx: Transaction, path: str) -> None:
    """A change without bytes of its own: two calls of the store, and no more."""
    entry = Entry(f"{tx.data_prefix}{path}", 1, f"sum:{path}", 1)
    assert tx.stage_expecting({path: entry}, {path: None})


def publishes(tx: Transaction) -> None:
    """Publish without looking for the bytes."""
    tx._write_manifest = lambda digest: 0  # type: ignore[method-assign]
    tx.commit()


def test_what_is_written_by_one_shows_to_all_and_is_published_together(first: Client, second: Client) -> None:
    tx = begun(first, shared=True)
    tx.put("mine", b"1")
    joined = second.main.join("nightly")
    assert joined.is_shared
    assert joined.read("mine") == b"1"
    joined.put("theirs", b"2")
    joined.put("gone", b"3")
    assert [info.path for info in tx.list()] == ["gone", "mine", "theirs"]
    assert tx.delete("gone")
    assert not joined.exists("gone")
    assert joined.copy("mine", "copied") == 1
    assert shown(first) == []
    result = tx.commit()
    assert result.changes == 4
    assert shown(second) == ["copied", "mine", "theirs"]
    assert second.main.read("theirs") == b"2"
    # what was joined shows what was published, and is not written any more
    joined.look()
    assert joined.result.commit == result.commit
    with pytest.raises(TransactionClosed, match="committed"):
        joined.put("late", b"4")
    assert second.main.join("nightly").phase == "committed"
    assert joint_keys(first) == []


def test_only_the_process_that_began_it_ends_it(first: Client, second: Client, tmp_path: Path) -> None:
    tx = begun(first, shared=True)
    joined = second.main.join("nightly", id=tx.id)
    for call in (joined.begin, joined.commit, joined.abort, lambda: joined.save(tmp_path / "x")):
        with pytest.raises(NotAllowed, match="process that began it"):
            call()
    with pytest.raises(NotAllowed, match="process that began it"):
        joined.position = "offset 3"
    joined.require(True, "all is well")
    with pytest.raises(RequirementFailed, match="rows are missing") as caught:
        joined.require(False, "rows are missing")
    assert "still open" in str(caught.value)
    with joined as inside:
        inside.put("a", b"1")
    with pytest.raises(ZeroDivisionError), joined:
        raise ZeroDivisionError
    assert tx.is_open()
    tx.abort()
    with pytest.raises(Fenced):
        joined.put("b", b"1")
    with pytest.raises(Fenced):
        joined.put("b", b"1")  # it stays so, with the same words
    assert joint_keys(first) == []
    assert states(first)[tx.id] == "rejected-acknowledged"


def test_a_process_that_meets_the_fence_leaves_the_driver_to_acknowledge(first: Client, second: Client) -> None:
    tx = begun(first, shared=True)
    joined = second.main.join("nightly")
    successor = begun(second)
    with pytest.raises(Fenced, match=f"replaced by {successor.id}"):
        joined.put("a", b"1")
    assert states(first)[tx.id] == "rejected-pending"  # its driver may still write
    with pytest.raises(Fenced):
        tx.commit()
    assert states(first)[tx.id] == "rejected-acknowledged"
    assert joint_keys(first) == []


def test_what_cannot_be_joined_is_said(first: Client, second: Client) -> None:
    with pytest.raises(RefNotFound, match="no transaction of 'nobody'"):
        second.main.join("nobody")
    tx = begun(first, "private")
    with pytest.raises(RefNotFound, match="not shared"):
        second.main.join("private")
    with pytest.raises(RefNotFound, match=f"no transaction {tx.id + 7}"):
        second.main.join("private", id=tx.id + 7)
    with pytest.raises(RefNotFound, match="no transaction"):
        second.main.join("other", id=tx.id)
    with pytest.raises(UsageError, match="published once"):
        first.main.transaction("x", shared=True, max_uncommitted_bytes=5)


@pytest.mark.parametrize("shares", [True, False])
def test_all_verbs_do_the_same_shared_or_not(shares: bool, first: Client) -> None:
    for path in ("t/1", "t/2", "u/1", "v/1"):
        first.main.put(path, b"x")
    first.main.commit("before")
    tx = begun(first, shared=shares)
    tx.put("a", b"1", create=True)
    with pytest.raises(PreconditionFailed):
        tx.put("a", b"2", create=True)
    assert tx.delete("t/1")
    assert not tx.delete("nothing")
    assert tx.delete_many(["t/2", "nothing"]) == 2
    assert tx.rename("u/", "w/") == 1
    assert tx.delete_prefix("v/") == 1
    assert tx.stage_expecting({"a": None}, {"a": None}) is False
    tx.commit()
    assert shown(first) == ["a", "w/1"]


def test_what_was_relied_on_is_judged_wherever_it_was_written(first: Client, second: Client) -> None:
    first.main.put("t/1", b"1")
    first.main.commit("before")
    tx = begun(first, shared=True)
    joined = second.main.join("nightly")
    joined.delete_prefix("t/")
    joined.put("u", b"1", create=True)
    third = first.fresh().branch("main")
    third.put("t/2", b"2")
    third.put("u", b"2")
    third.commit("others")
    with pytest.raises(Conflict) as caught:
        tx.commit()
    assert caught.value.paths == ("t/2", "u")
    # refused: all may go on
    joined.put("more", b"1")
    assert tx.exists("more")
    assert shared_changes.is_shared(first.main._at.stores, tx.branch_id, tx.id)


class Race:
    """One shared transaction after the other, each with a change of the driver, some of another process, and a commit.

    Attributes:
        said: the paths that the other process has changed, with whether it was told that they are in.
    """

    def __init__(self, first: Client, second: Client, changes: int) -> None:
        self._clients = first, second
        self._changes = changes
        self.begin()

    def begin(self) -> None:
        self.tx = begun(self._clients[0], shared=True)
        self._joined = self._clients[1].main.join("nightly")
        put(self.tx, f"{self.tx.id}/own")
        self.said: list[tuple[str, bool]] = []

    def change(self) -> None:
        for _ in range(self._changes):
            path = f"{self.tx.id}/{len(self.said)}"
            try:
                put(self._joined, path)
                self.said.append((path, True))
            except TransactionClosed:
                self.said.append((path, False))

    def publish(self) -> None:
        publishes(self.tx)


@pytest.mark.parametrize("changes", [1, 3])
@pytest.mark.parametrize("acts", ["driver", "other"])
def test_a_change_that_meets_the_publication_is_in_it_or_refused(
    acts: str, changes: int, first: Client, second: Client
) -> None:
    """One of them acts before each call of the other."""
    race = Race(first, second, changes)
    met: set[bool] = set()
    if acts == "other":
        rounds = at_each_call(first, lambda: race.publish(), lambda: race.change())
    else:
        rounds = at_each_call(second, lambda: race.change(), lambda: race.publish())
    for _ in rounds:
        if race.tx.phase == "open":
            race.publish()
        there = set(shown(first))
        for path, is_in in race.said:
            assert (path in there) is is_in, path
            met.add(is_in)
        race.begin()
    race.tx.abort()
    assert met == {True, False}


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_a_lost_reply_leaves_a_change_in_the_transaction_once(outcome: Outcome, first: Client, second: Client) -> None:
    tx = begun(first, shared=True)
    joined = second.main.join("nightly")
    for number in range(1, 12):
        path = f"{number}"
        second.next = failing_at(number, outcome)
        try:
            put(joined, path)
        except StoreUnavailable as error:
            second.connect()
            if error.happened == "no":
                assert not tx.exists(path)
        else:
            second.connect()
            assert tx.exists(path)
        assert tx.exists(path) is joined.exists(path)
    kept = {info.path for info in tx.list()}
    assert len(kept) >= 8
    publishes(tx)
    assert set(shown(second)) == kept


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_a_lost_reply_beside_others_is_found_again(outcome: Outcome, first: Client, second: Client) -> None:
    """The reply to a swap is lost, and another process changes, seals or folds before it is asked about."""
    tx = begun(first, shared=True)
    joined = second.main.join("nightly")
    stores = first.main._at.stores

    def one() -> None:
        put(tx, f"other-{len(list(tx.list()))}")

    def many() -> None:
        for number in range(BATCHES_MAX + 1):
            put(tx, f"many-{len(list(tx.list()))}-{number}")

    def seal_and_unseal() -> None:
        following = SharedChanges(stores, tx.branch_id, tx.id, "sealer")
        following.seal()
        following.unseal()

    for other in (one, many, seal_and_unseal):
        for further in (1, 2):
            path = f"{other.__name__}-{further}"
            second.meet("set_if", 1, outcome)
            second.before("set_if", 1 + further, other)
            try:
                put(joined, path)
                is_in = True
            except StoreUnavailable:
                is_in = tx.exists(path)
            assert tx.exists(path) is is_in
            assert joined.exists(path) is is_in
            second._rules.clear()


def test_a_swap_that_comes_late_never_names_what_was_taken_back(first: Client, second: Client) -> None:
    """Sealed and unsealed again, the record must not be the one that a swap under way demands."""
    tx = begun(first, shared=True)
    key = b"joint/" + tx.branch_id.encode() + b"/%016d" % tx.id
    stores = first.main._at.stores
    before = stores.kv.get(stores.records, key)
    following = SharedChanges(stores, tx.branch_id, tx.id, "sealer")
    following.seal()
    following.unseal()
    after = stores.kv.get(stores.records, key)
    assert before is not None
    assert after is not None
    assert before != after
    was: SharedRecord = decode(SharedRecord, before, "x")
    now: SharedRecord = decode(SharedRecord, after, "x")
    assert (was.batches, was.sealed_by) == (now.batches, now.sealed_by)


def test_many_small_changes_become_few_values_and_large_ones_several(first: Client, second: Client) -> None:
    tx = begun(first, shared=True)
    joined = second.main.join("nightly")
    for number in range(2 * BATCHES_MAX):
        put((tx, joined)[number % 2], f"{number:04}")
    assert len(joint_keys(first)) <= BATCHES_MAX + 2
    entries = [(f"large/{number:06}", Entry(tx.data_prefix + "x" * 300, 1, "sum", 1)) for number in range(8_000)]
    assert joined.stage_atomically(entries) == 8_000
    assert len(joint_keys(first)) <= BATCHES_MAX + 4
    assert len(list(tx.list())) == 2 * BATCHES_MAX + 8_000
    newcomer = second.fresh().branch("main").join("nightly")
    assert len(list(newcomer.list())) == 2 * BATCHES_MAX + 8_000
    assert newcomer._claims.exact == tx._claims.exact


def test_followed_changes_are_replaced_as_a_whole(first: Client, second: Client) -> None:
    tx = begun(first, shared=True)
    joined = second.main.join("nightly")
    put(tx, "0000")
    assert joined.exists("0000")
    before = joined._claims
    for number in range(1, 2 * BATCHES_MAX):
        put(tx, f"{number:04}")
    assert joined.exists("0001")
    assert joined._claims is not before  # a fold came; a reader of what was there before goes on with it
    assert set(before.changes) == {b"0000"}


def test_a_listing_beside_the_end_shows_the_state_before_or_after(first: Client, second: Client) -> None:
    """Another thread finds out that it is published, while this one is between what lies beneath and the changes."""
    first.main.put("a", b"1")
    first.main.commit("Before")
    tx = begun(first, shared=True)
    joined = second.main.join("nightly")
    joined.delete("a")
    joined.put("b", b"2")
    tx.commit()
    beneath = joined._beneath
    window = beneath._window

    def meanwhile(start: bytes, end: bytes | None, limit: int) -> Any:
        found = window(start, end, limit)
        joined.look()
        return found

    joined._refresh = lambda: None  # type: ignore[method-assign]
    beneath._window = meanwhile  # type: ignore[method-assign]
    assert [info.path for info in joined.list()] == ["b"]
    assert joined._beneath is not beneath
    assert [info.path for info in joined.list()] == ["b"]


def test_what_was_joined_shows_what_was_published(first: Client, second: Client) -> None:
    """Not what it was begun on with its changes over it: others have committed meanwhile."""
    first.main.put("a", b"old")
    first.main.put("b", b"old")
    first.main.commit("Before")
    tx = begun(first, shared=True)
    joined = second.main.join("nightly")
    joined.put("a", b"new")
    first.main.put("b", b"others'")
    first.main.commit("Meanwhile")
    assert joined.read("b") == b"old"
    tx.commit()
    first.main.put("a", b"after")
    first.main.commit("After")
    assert (joined.read("a"), joined.read("b")) == (b"new", b"others'")
    assert [info.path for info in joined.list()] == ["a", "b"]


def test_a_driver_that_died_is_succeeded_from_its_file(first: Client, second: Client, tmp_path: Path) -> None:
    tx = begun(first, shared=True)
    tx.put("a", b"1")
    tx.save(tmp_path / "open")
    joined = second.main.join("nightly")
    joined.put("later", b"2")  # after the file was written
    resumed = second.main.resume(tmp_path / "open")
    assert resumed.read("later") == b"2"
    joined.put("still", b"3")
    resumed.commit()
    assert shown(first) == ["a", "later", "still"]


def test_one_that_a_dead_driver_was_publishing_is_only_committed(first: Client, second: Client, tmp_path: Path) -> None:
    tx = begun(first, shared=True)
    tx.put("a", b"1")
    tx.save(tmp_path / "open")
    assert tx._shared is not None
    tx._shared.seal()  # and dies
    resumed = second.main.resume(tmp_path / "open")
    with pytest.raises(TransactionClosed, match="being published"):
        resumed.put("b", b"1")
    with pytest.raises(TransactionClosed, match="being published"):
        second.main.join("nightly").put("b", b"1")
    resumed.commit()
    assert shown(first) == ["a"]


@pytest.mark.parametrize("asked", [True, False])
def test_an_operator_publishes_only_what_was_asked_for(asked: bool, first: Client, second: Client) -> None:
    """The manifest of a refused publication that could not be taken back says less than the transaction holds."""
    tx = begun(first, shared=True)
    tx.put("a", b"1")
    with tx._sealed():
        tx._write_manifest("0" * 32)
    if not asked:
        tx._unseal()
        second.main.join("nightly").put("b", b"2")
    found = second.main.transactions.recover(tx.id)
    assert found.state == ("committed" if asked else "rejected-acknowledged")
    assert shown(second) == (["a"] if asked else [])


def test_nothing_is_let_in_while_anybody_may_be_publishing(first: Client, second: Client) -> None:
    """The driver waits for a lock when an operator takes over; then the driver is refused, and the operator is not."""
    tx = begun(first, shared=True)
    tx.put("a", b"1")
    stores = first.repo._core.stores
    driver, operator = (SharedChanges(stores, first.main.branch_id, tx.id, name) for name in ("driver", "operator"))
    driver.seal()
    operator.seal()
    driver.unseal()
    joined = second.main.join("nightly")
    with pytest.raises(TransactionClosed, match="being published"):
        joined.put("b", b"2")
    driver.unseal()  # as often as it likes
    with pytest.raises(TransactionClosed, match="being published"):
        joined.put("b", b"2")
    operator.unseal()
    joined.put("b", b"2")
    tx.commit()
    assert shown(first) == ["a", "b"]


def test_changes_that_are_gone_are_missed(first: Client, second: Client) -> None:
    tx = begun(first, shared=True)
    tx.put("a", b"1")
    stores = first.repo._core.stores
    stores.kv.delete_many(stores.records, [key for key in joint_keys(first) if key.count(b"/") > 2])
    with pytest.raises(Corrupted, match="are gone"):
        second.main.join("nightly").exists("a")


def test_a_transaction_that_could_not_be_shared_is_begun_anew(first: Client, second: Client) -> None:
    """The reply is lost, so others may find it, and what they add would be in nobody's sight."""
    tx = first.main.transaction("nightly", shared=True)
    first.next = lambda call, partition, key: Outcome.DONE_BUT_LOST if b"joint/" in key else Outcome.DONE
    with pytest.raises(StoreUnavailable):
        tx.begin()
    first.connect()
    with pytest.raises((RefNotFound, Fenced)):
        second.main.join("nightly")
    tx.begin()
    second.main.join("nightly").put("b", b"2")
    tx.commit()
    assert shown(first) == ["b"]


def test_a_publication_without_an_answer_lets_nothing_more_in(first: Client, second: Client) -> None:
    tx = begun(first, shared=True)
    tx.put("a", b"1")
    first.lose("set_if", b"/refs", outcome=Outcome.LATE)
    kept = first.next

    def plan(call: str, partition: bytes, key: bytes) -> Outcome:
        outcome = kept(call, partition, key)
        if outcome is not Outcome.DONE:
            first.next = lambda *_: Outcome.NOT_DONE
        return outcome

    first.next = plan
    with pytest.raises(StoreUnavailable):
        tx.commit()
    first.connect()
    for write in (tx.put, second.main.join("nightly").put):
        with pytest.raises((TransactionClosed, Fenced)):
            write("b", b"2")
    tx.commit()
    assert shown(second) == ["a"]


def test_a_failure_before_the_publication_lets_all_go_on(first: Client, second: Client) -> None:
    tx = begun(first, shared=True)
    tx.put("a", b"1")
    put(tx, "without-bytes")
    with pytest.raises(StrandlineError, match="are not there"):
        tx.commit()
    second.main.join("nightly").put("b", b"2")
    tx.delete("without-bytes")
    tx.commit()
    assert shown(second) == ["a", "b"]


def test_what_is_shared_goes_with_its_transaction(first: Client, second: Client) -> None:
    """Of a driver that died before it could tidy up, a collection does it; never of one that is open."""
    ended = begun(first, "ended", shared=True)
    ended.put("a", b"1")
    ended._end_shared = lambda: None  # type: ignore[method-assign]
    ended.commit()
    held = begun(first, "held", shared=True)
    held.put("b", b"1")
    stores = first.main._at.stores
    assert set(shared_changes.shared_ids(stores)) == {(ended.branch_id, ended.id), (held.branch_id, held.id)}
    Collector(second.repo._core, Retention()).run()
    assert set(shared_changes.shared_ids(stores)) == {(held.branch_id, held.id)}
    held.commit()
    assert shown(first) == ["a", "b"]
    work = first.repo.create_branch("work", first.main)
    left = work.transaction("left", shared=True).begin()
    left.put("c", b"1")
    first.repo.delete_branch("work")
    assert joint_keys(first) == []


def test_one_begun_beside_a_collection_stays(first: Client, second: Client) -> None:
    late: list[Transaction] = []

    def begin() -> None:
        late.append(begun(first, f"late-{len(late)}", shared=True))

    for _ in at_each_call(second, Collector(second.repo._core, Retention()).run, begin):
        for tx in late:
            assert shared_changes.is_shared(first.main._at.stores, tx.branch_id, tx.id)
    assert len(late) > 10


def test_a_copy_of_the_shared_stores_is_whole(tmp_path: Path) -> None:
    """What a backup brings is what a resumed driver finds."""
    shared = Shared()
    first = Client(shared, create=True)
    tx = begun(first, shared=True)
    tx.put("a", b"1")
    stores = first.main._at.stores
    pairs = shared_changes.pairs(stores, tx.branch_id)
    assert [key for key, _ in pairs] == joint_keys(first)
    assert len(pairs) == 2


def test_a_copy_beside_a_fold_is_whole(first: Client, second: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fold takes batches away right after their record was read."""
    tx = begun(first, shared=True)
    put(tx, "0000")
    stores = second.main._at.stores
    look = stores.kv.get_many

    def meanwhile(table: bytes, keys: Sequence[bytes]) -> list[bytes | None]:
        monkeypatch.undo()
        for number in range(1, 2 * BATCHES_MAX):
            put(tx, f"{number:04}")
        return look(table, keys)

    monkeypatch.setattr(stores.kv, "get_many", meanwhile)
    pairs = shared_changes.pairs(stores, tx.branch_id)
    assert sorted(key for key, _ in pairs) == joint_keys(first)
    record = decode(SharedRecord, pairs[0][1], "it")
    assert len(record.batches) == len(pairs) - 1 > 1
