"""The laws of fenced transactions, N-1 to N-20: each fails under the mutation of its number."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from strandline.branch import heads, transactions
from strandline.branch.commits import Commit
from strandline.branch.heads import NewHead
from strandline.branch.transactions import State
from strandline.errors import (
    Fenced,
    NotAssigned,
    ObjectMissing,
    OutcomeUnknown,
    StoreUnavailable,
    TransactionClosed,
    UsageError,
)
from strandline.kv.memory import MemoryStore
from strandline.repository.transactions.transaction import Transaction
from strandline.testing.clock import ManualClock
from tests.harness.clients import Client, Shared, begun, blobs, shown, states


def test_n01_ids_grow_and_a_begin_dooms_all_before_it(
    first: Client, second: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = begun(first)
    assert (one.id, states(second)) == (1, {1: "open"})
    two = begun(second)
    assert two.id == 2
    assert states(first) == {1: "rejected-pending", 2: "open"}
    two.put("a", b"2")
    two.commit()
    three = begun(second, "other")
    four = begun(second)
    assert (three.id, four.id) == (3, 4)
    _, record = transactions.find_record(first.repo._core.stores, first.main.branch_id, 4)
    assert record is not None
    assert (record.last_committed, record.base) == (2, second.main.commit_id)
    # ids are not used again even if all names are forgotten
    monkeypatch.setattr("strandline.branch.rules.writers.MAX_WRITERS", 1)
    assert [begun(second, name).id for name in ("third", "fourth")] == [5, 6]
    assert states(first)[4] == "rejected-pending"
    with pytest.raises(Fenced):
        four.commit()


def test_n02_a_name_that_is_assigned_is_for_its_node_only(first: Client, second: Client) -> None:
    running = begun(first, node="a")
    running.put("a", b"1")
    first.main.writers.assign("nightly", "b")
    before = first.main._cell.read(None).branch
    with pytest.raises(NotAssigned, match="'b'"):
        begun(second, node="c")
    with pytest.raises(NotAssigned, match="'b'"):
        running.commit()
    assert first.main._cell.read(None).branch == before
    assert begun(second, node="b").id == 2
    first.main.writers.assign("nightly", "")
    running.abort()
    assert begun(first, "nightly", node="c").id == 3


def test_n03_nothing_is_written_outside_an_open_transaction_or_its_own_prefix(first: Client) -> None:
    tx = first.main.transaction("nightly")
    with pytest.raises(TransactionClosed, match="not begun"):
        tx.put("a", b"1")
    tx.begin()
    tx.put("a", b"1")
    tx.put("a", b"2")
    keys = blobs(first)
    assert len(keys) == 2
    assert all(key.startswith(tx.data_prefix) and f".txn-{tx.id:016d}/" in key for key in keys)
    for address in ("data/elsewhere", tx.data_prefix + "x/../../y", "s3://bucket/x", "/etc/passwd"):
        with pytest.raises(UsageError, match="prefix"):
            tx.link("b", address, size=1, checksum="x")
    tx.delete("a")
    assert blobs(first) == keys


def test_n04_nothing_is_written_after_the_commit(first: Client) -> None:
    tx = begun(first)
    tx.put("a", b"1")
    tx.commit()
    for write in (lambda: tx.put("b", b"1"), lambda: tx.delete("a"), lambda: tx.delete_prefix("a"), tx.abort):
        with pytest.raises(TransactionClosed, match="committed"):
            write()
    assert shown(first) == ["a"]


def test_n05_the_manifest_and_the_deadlist_are_there_before_the_swap(first: Client) -> None:
    tx = begun(first)
    tx.put("a", b"1")
    tx.put("a", b"2")  # the first one is a leftover
    first.cut_off()
    with pytest.raises(StoreUnavailable):
        tx.commit()
    folder = f"_strandline/txn/{first.main.branch_id}/{tx.id:016d}/"
    names = {key.removeprefix(folder).partition("-")[0] for key in blobs(first, folder)}
    assert names == {"manifest", "deadlist"}
    first.connect()
    assert shown(first) == []
    tx.commit()
    assert shown(first) == ["a"]


def test_n06_the_last_one_begun_commits_and_a_grant_stays_granted(
    first: Client, second: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = begun(first)
    one.put("a", b"1")
    two = begun(second)
    two.put("b", b"2")
    for _ in range(2):
        with pytest.raises((Fenced, TransactionClosed)):
            one.commit()
    two.commit()
    assert two.commit() == two.result
    # a successor that begins while the commit computes: it is judged on the very record that is swapped
    three = begun(first)
    three.put("c", b"3")
    compute = three._compute

    def overtaken(head: Commit) -> NewHead:
        made = compute(head)
        if three.phase == "open":
            begun(second)
        return made

    monkeypatch.setattr(three, "_compute", overtaken)
    with pytest.raises(Fenced):
        three.commit()
    assert shown(first) == ["b"]


def test_n06_what_was_granted_stays_granted(first: Client, second: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reply of a commit is lost; by the time of its repetition a successor has published, or the name is gone."""
    publish = heads.set_head

    def published_without_an_answer(tx: Transaction, error: Exception, then: Callable[[], object]) -> None:
        def lost(*arguments: object, **options: object) -> None:
            publish(*arguments, **options)  # type: ignore[arg-type]
            then()
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(transactions, "set_head", lost)
            if isinstance(error, Fenced):
                tx.commit()
            else:
                with pytest.raises(OutcomeUnknown):
                    tx.commit()

    one = begun(first)
    one.put("a", b"1")
    published_without_an_answer(one, OutcomeUnknown("the reply was lost"), lambda: None)
    two = begun(second)
    two.put("b", b"2")
    published_without_an_answer(two, OutcomeUnknown("the reply was lost"), lambda: None)
    assert first.repo.ref(one.commit().commit).exists("a")
    with monkeypatch.context() as patch:
        patch.setattr("strandline.branch.rules.writers.MAX_WRITERS", 1)
        begun(second, "other")
    assert "nightly" not in [writer.name for writer in second.main.writers]
    assert second.repo.ref(two.commit().commit).exists("b")
    # and if a successor begins before the lost reply is noticed
    three = begun(first)
    three.put("c", b"3")
    published_without_an_answer(three, Fenced("it was replaced"), lambda: begun(second))
    assert three.result.commit
    assert [commit.metadata.get("strandline.transaction") for commit in first.main.log()].count("4") == 1
    assert {states(first)[tx.id] for tx in (one, two, three)} == {"committed"}


@example([("a", "begin"), ("b", "begin"), ("a", "commit")])
@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["begin", "commit", "abort"])), max_size=30))
def test_n07_published_ones_form_a_chain_and_rejected_ones_are_never_seen(steps: list[tuple[str, str]]) -> None:
    from pathlib import Path

    kv, clock = MemoryStore(), ManualClock()
    with tempfile.TemporaryDirectory() as folder:
        drivers = {
            "a": Client(Shared(kv, clock, Path(folder)), create=True),
            "b": Client(Shared(kv, clock, Path(folder))),
        }
        current: dict[str, Transaction] = {}
        last, published, begun_last = 0, list[int](), 0
        before: dict[int, int] = {}
        for who, what in steps:
            tx = current.get(who)
            if what == "begin":
                if tx is not None and tx.phase == "open":
                    tx._core.transactions.clear()
                tx = current[who] = begun(drivers[who])
                tx.put(f"file-{tx.id}", b"x")
                begun_last = tx.id
                before[begun_last] = last
            elif tx is not None and tx.phase == "open":
                allowed = tx.id == begun_last
                if what == "abort":
                    tx.abort()
                    begun_last = 0 if allowed else begun_last
                elif allowed:
                    tx.commit()
                    last = tx.id
                    published.append(last)
                    begun_last = 0
                else:
                    with pytest.raises(Fenced):
                        tx.commit()
        assert shown(drivers["a"]) == sorted(f"file-{id}" for id in published)
        assert [before[id] for id in published] == [0, *published[:-1]][: len(published)]


def test_n08_what_is_visible_is_what_was_published_and_nothing_that_lies_there(first: Client, second: Client) -> None:
    with first.main.transaction("before") as base:
        base.put("old", b"0")
    tx = begun(first)
    with second.main.transaction("other") as other:
        other.put("new", b"1")
    # it reads the branch as it was when it began, whatever has been published since
    assert [info.path for info in tx.list()] == ["old"]
    store = first.repo._core.resolver.namespace
    store.put(tx.data_prefix + "from-elsewhere/file", b"somebody's, whom no collection deletes anything of")
    store.put(tx.data_prefix + f"sl_write={'0' * 20}/file", b"of a write that was not published")
    tx.put("mine", b"1")
    result = tx.commit()
    assert shown(second) == ["mine", "new", "old"]
    assert result.leftovers == 1


def test_n09_a_rejected_one_stops_and_is_acknowledged(first: Client, second: Client) -> None:
    one = begun(first)
    one.put("a", b"1")
    with pytest.raises(TransactionClosed, match="open"):
        second.main.transactions.acknowledge(1)
    two = begun(second)
    with pytest.raises(Fenced):
        one.commit()
    with pytest.raises(Fenced, match="fenced"):
        one.put("b", b"1")
    assert states(second)[1] == "rejected-acknowledged"
    second.main.transactions.acknowledge(1)
    two.put("b", b"2")
    two.commit()
    with pytest.raises(TransactionClosed, match="committed"):
        second.main.transactions.acknowledge(2)


def test_n10_states_only_move_forward(first: Client) -> None:
    allowed = {
        ("open", "committed"),
        ("open", "rejected-pending"),
        ("open", "rejected-acknowledged"),
        ("rejected-pending", "rejected-acknowledged"),
        ("committed", "collected"),
        ("rejected-acknowledged", "collected"),
    }
    every: tuple[State, ...] = ("open", "committed", "rejected-pending", "rejected-acknowledged", "collected")
    assert {(a, b) for a in every for b in every if transactions.can_become(a, b)} == allowed
    with first.main.transaction("nightly") as tx:
        tx.put("a", b"1")
    _, record = transactions.find_record(first.repo._core.stores, first.main.branch_id, tx.id)
    assert record is not None
    with pytest.raises(TransactionClosed):
        transactions.advance(first.repo._core.stores, record, "rejected-pending")


def test_n14_a_doomed_one_whose_files_are_gone_is_fenced_and_not_corrupt(first: Client, second: Client) -> None:
    one = begun(first)
    one.put("a", b"1")
    first.repo._core.resolver.namespace.delete_many(blobs(first))
    with pytest.raises(ObjectMissing):
        one.read("a")
    two = begun(first, "still open")
    two.put("b", b"1")
    begun(second, "still open")
    first.repo._core.resolver.namespace.delete_many(blobs(first))
    with pytest.raises(Fenced):
        two.read("b")


def test_n15_open_is_who_was_begun_last_and_the_store_is_asked(first: Client, second: Client) -> None:
    one = begun(first)
    assert one.is_open()
    first.main.find("x")  # the record is in the cache now
    begun(second)
    assert not one.is_open()
    two = begun(second, "other")
    second.cut_off()
    assert not two.is_open()
    second.connect()
    assert two.is_open()
    two.commit()
    assert not two.is_open()
    assert not first.main.transaction("never begun").is_open()


@pytest.mark.parametrize("content", [True, False])
def test_n16_a_position_advances_only_with_the_commit_that_justifies_it(
    content: bool, first: Client, second: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    with first.main.transaction("ingest", position="10") as tx:
        tx.put("a", b"1")
    zombie = begun(first, "ingest")
    if content:
        zombie.put("b", b"1")
    successors: list[Transaction] = []
    granted = transactions.granted

    def overtaken(*arguments: object) -> object:
        answer = granted(*arguments)  # type: ignore[arg-type]
        if not successors:
            successors.append(begun(second, "ingest"))
        return answer

    with monkeypatch.context() as patch, pytest.raises(Fenced):
        patch.setattr(transactions, "granted", overtaken)
        zombie.commit(position="20")
    (successor,) = successors
    assert first.main.writers["ingest"].position == "10"
    successor.commit(position="15")
    assert first.main.writers["ingest"].position == "15"
    with first.main.transaction("ingest") as tx:
        tx.put("c", b"1")
    assert first.main.writers["ingest"].position == "15"


def test_n17_without_its_store_an_open_one_goes_on_but_does_not_commit(first: Client, tmp_path: object) -> None:
    tx = begun(first)
    tx.put("a", b"1")
    first.cut_off()
    entry_key = tx._new_key("b")
    first.repo._core.resolver.namespace.put(entry_key, b"2")
    tx.link("b", entry_key, size=1, checksum="x")  # writing needs the object store alone
    with pytest.raises(StoreUnavailable):
        tx.commit()
    with pytest.raises(StoreUnavailable):
        begun(first, "other")
    first.connect()
    tx.commit()
    assert shown(first) == ["a", "b"]


def test_n17_a_restarted_driver_goes_on_and_uses_no_key_again(client: Callable[[], Client], tmp_path: object) -> None:
    first, second = client(), client()
    tx = begun(first)
    tx.put("a", b"1")
    place = Path(str(tmp_path)) / "state"
    tx.save(place)
    again = second.main.resume(place)
    assert again.id == tx.id
    again.put("b", b"2")
    assert len(blobs(first)) == 2
    again.commit()
    assert shown(first) == ["a", "b"]
    # the first driver was not dead: it may not believe that what it has is what is visible
    with pytest.raises(TransactionClosed, match="other changes"):
        tx.commit()
    with pytest.raises(Fenced, match="fenced"):
        tx.put("c", b"3")
    assert shown(first) == ["a", "b"]


def test_n18_two_processes_of_one_node_get_different_transactions(first: Client, second: Client) -> None:
    one, two = begun(first, node="a"), begun(second, node="a")
    assert one.id != two.id
    two.put("a", b"2")
    two.commit()
    with pytest.raises(Fenced, match="replaced by 2"):
        one.commit()


def test_n19_relocation_has_no_gap(first: Client, second: Client) -> None:
    for number in range(2):
        with first.main.transaction("ingest", position=str(number)) as source:
            source.put(f"source-{number}", b"1")
    source = begun(first, "ingest")
    source.put("late", b"1")
    target = begun(second, "ingest")  # starts while the source is open
    assert second.main.writers["ingest"].position == "1"
    assert [info.path for info in source.list()] == ["late", "source-0", "source-1"]  # and it reads on
    with pytest.raises(Fenced):
        source.commit()
    target.put("target", b"1")
    target.commit(position="2")
    assert shown(first) == ["source-0", "source-1", "target"]
