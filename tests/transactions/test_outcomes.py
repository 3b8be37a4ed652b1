"""What is left of a transaction whatever becomes of its driver, its replies and its files."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from strandline.branch import transactions
from strandline.errors import (
    Conflict,
    Contention,
    Fenced,
    NotAssigned,
    ObjectMissing,
    StoreUnavailable,
    TransactionClosed,
    UsageError,
)
from strandline.testing.clock import ManualClock
from strandline.testing.faults import Outcome
from tests.harness.clients import Client, begun, failing_at, shown, states


@pytest.mark.parametrize("outcome", [Outcome.DONE_BUT_LOST, Outcome.NOT_DONE, Outcome.LATE])
@pytest.mark.parametrize("call", ["begin", "commit"])
def test_every_lost_reply_leaves_one_transaction_that_is_published_once(
    outcome: Outcome, call: str, first: Client, second: Client
) -> None:
    """The n-th call of a driver meets a fault, for each n; what it does next is to try again."""
    for number in range(1, 12):
        writer = f"{outcome.name}-{call}-{number}".lower()
        tx = first.main.transaction(writer)
        if call == "commit":
            tx.begin()
            tx.put(f"{writer}/a", b"1")
        first.next = failing_at(number, outcome)
        for _ in range(3):
            try:
                if tx.phase == "new":
                    tx.begin()
                if not tx.exists(f"{writer}/a"):
                    tx.put(f"{writer}/a", b"1")
                tx.commit()
                break
            except StoreUnavailable:
                continue
        first.connect()
        assert tx.phase == "committed"
        assert second.main.exists(f"{writer}/a")
        told = [commit.metadata.get("strandline.writer") for commit in second.main.log()]
        assert told.count(writer) == 1


@pytest.mark.parametrize("value", [17, b"x", 1.5, ["x"], "x" * 5_000])
def test_what_would_make_the_record_unreadable_is_refused(value: object, first: Client, second: Client) -> None:
    for options in ({"position": value}, {"token": value}, {"node": value}, {"committer": value}):
        with pytest.raises(UsageError):
            first.main.transaction("nightly", **options)  # type: ignore[arg-type]
    tx = begun(first)
    tx.put("a", b"1")
    with pytest.raises(UsageError, match="position"):
        tx.commit(position=value)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="position"):
        tx.position = value  # type: ignore[assignment]
    with pytest.raises(UsageError, match="node"):
        first.main.writers.assign("nightly", value)  # type: ignore[arg-type]
    tx.commit(position="17")
    assert shown(second) == ["a"]


def test_a_token_survives_a_driver_that_died_after_its_swap(
    first: Client, second: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*arguments: object) -> None:
        raise KeyboardInterrupt

    tx = begun(first, token="today")
    tx.put("a", b"1")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(transactions, "settle", dies)
        tx.commit()
    assert second.main.transactions.recover(tx.id).state == "committed"
    with second.main.transaction("nightly", token="tomorrow") as later:
        later.put("b", b"1")
    assert begun(second, token="today").is_repeat


def test_a_transaction_without_changes_is_judged_too(first: Client, second: Client) -> None:
    with first.main.transaction("setup") as tx:
        tx.put("in/a", b"1")
    job = begun(first, expect_unchanged=["in/"])
    with second.main.transaction("other") as other:
        other.delete("in/a")
    with pytest.raises(Conflict, match="in/a"):
        job.commit(position="1")
    again = begun(second, "again", expect_unchanged=["in/"])
    again.put("out", b"1")
    place = Path(tempfile.mkdtemp()) / "state"
    again.save(place)
    with first.main.transaction("other") as other:
        other.put("in/b", b"1")
    with pytest.raises(Conflict, match="in/b"):
        first.main.resume(place).commit()


def test_a_block_whose_commit_is_refused_is_aborted(first: Client, second: Client) -> None:
    with pytest.raises(Conflict), first.main.transaction("nightly", expect_unchanged=["in/"]) as tx:
        with second.main.transaction("other") as other:
            other.put("in/a", b"1")
        tx.put("out", b"1")
    assert states(first)[tx.id] == "rejected-acknowledged"


def test_files_that_are_not_there_are_not_published(first: Client) -> None:
    tx = begun(first)
    tx.link("a", f"{tx.data_prefix}nothing", size=1, checksum="x")
    with pytest.raises(ObjectMissing, match="not there"):
        tx.commit()
    assert shown(first) == []


def test_a_commit_that_was_refused_is_not_published_by_an_operator_later(first: Client, second: Client) -> None:
    tx = begun(first, expect_unchanged=["in/"])
    tx.put("out", b"1")
    with second.main.transaction("other") as other:
        other.put("in/a", b"1")
    with pytest.raises(Conflict):
        tx.commit()
    tx.put("more", b"1")  # it goes on, and dies
    assert second.main.transactions.recover(tx.id).state == "rejected-acknowledged"
    assert shown(second) == ["in/a"]


def test_a_commit_that_was_asked_for_is_finished_by_an_operator(first: Client, second: Client) -> None:
    tx = begun(first)
    tx.put("a", b"1")
    first.lose("set_if", b"/refs", 1, Outcome.NOT_DONE)
    with pytest.raises(StoreUnavailable):
        tx.commit()
    assert second.main.transactions.recover(tx.id).state == "committed"
    assert shown(second) == ["a"]
    first.connect()
    assert tx.commit().commit == second.main.commit_id


def test_what_has_ended_is_not_resumed(first: Client, second: Client, tmp_path: Path) -> None:
    tx = begun(first)
    tx.put("a", b"1")
    tx.save(tmp_path / "state")
    tx.commit()
    with pytest.raises(TransactionClosed, match="published already"):
        second.main.resume(tmp_path / "state")
    doomed = begun(first)
    doomed.save(tmp_path / "other")
    begun(second)
    with pytest.raises(Fenced):
        second.main.resume(tmp_path / "other")
    with pytest.raises(UsageError):
        doomed.save(tmp_path / "nowhere" / "state")


def test_a_retired_writer_stays_out_of_service(first: Client, second: Client) -> None:
    tx = begun(first)
    tx.put("a", b"1")
    second.main.writers.retire("nightly")
    assert states(second) == {1: "rejected-acknowledged"}
    with pytest.raises(NotAssigned, match="is retired"):
        begun(second)
    with pytest.raises((Fenced, NotAssigned)):
        tx.commit()
    second.main.writers.assign("nightly", "")
    begun(second).commit()


def test_an_acknowledgement_waits_until_nothing_new_appears(
    first: Client, second: Client, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    tx = begun(first)
    begun(second)
    namespace = first.repo._core.resolver.namespace
    began = clock.now_us()

    def sleep(seconds: float) -> None:
        clock.advance_s(seconds)
        if clock.now_us() - began == 2_000_000:  # the zombie is still at it
            namespace.put(f"{tx.data_prefix}late", b"x")

    monkeypatch.setattr(clock, "sleep", sleep)
    second.main.transactions.acknowledge(tx.id, quiet_s=3)
    assert clock.now_us() - began == 5_000_000
    assert states(second)[tx.id] == "rejected-acknowledged"


def test_a_writer_is_revoked_when_it_is_doomed_and_before_it_is_acknowledged(first: Client, second: Client) -> None:
    tx = begun(first)
    seen: list[str] = []
    second.main.writers.retire("nightly", revoke=lambda: seen.append(states(second)[tx.id]))
    assert seen == ["rejected-pending"]
    assert states(second)[tx.id] == "rejected-acknowledged"
    second.main.writers.retire("nightly", revoke=lambda: seen.append("again"))
    assert seen == ["rejected-pending", "again"]


def test_a_name_that_was_forgotten_comes_back_with_its_position(first: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strandline.branch.rules.writers.MAX_WRITERS", 1)
    tx = begun(first, position="17")
    tx.put("a", b"1")
    tx.commit()
    begun(first, "other").abort()
    assert [found.name for found in first.main.writers] == ["other"]
    assert "nightly" in first.main.writers
    assert "never" not in first.main.writers
    assert first.main.writers["nightly"].position == "17"
    again = begun(first)
    assert again.position is None  # of this one nothing is on record yet
    assert first.main.writers["nightly"].position == "17"


def test_an_object_is_copied_to_its_own_path_on_another_branch(first: Client) -> None:
    work = first.main.create_branch("work")
    first.main.put("a", b"1")
    assert work.copy("a", "a", ref=first.main) == 1
    assert work.read("a") == b"1"
    with pytest.raises(UsageError, match="onto itself"):
        work.copy("a", "a")


@pytest.mark.parametrize("vanishes", [1, 1_000])
def test_a_manifest_that_vanishes_while_an_operator_reads_it_is_looked_for_again(
    vanishes: int, first: Client, second: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its driver lives, and takes away the manifest of a commit that was refused; perhaps it asks again and again."""
    tx = begun(first)
    tx.put("a", b"1")
    first.lose("set_if", b"/refs", 1, Outcome.NOT_DONE)
    with pytest.raises(StoreUnavailable):
        tx.commit()
    first.connect()
    blobs = second.repo._core.resolver.namespace
    get, left = blobs.get, vanishes

    def taken_away(key: str) -> bytes:
        nonlocal left
        if "/manifest-" in key and left:
            left -= 1
            body = get(key)
            blobs.delete_many([key])
            if left:
                blobs.put(f"{key.rpartition('-')[0]}-{left:08x}.parquet", body)
            return get(key)
        return get(key)

    monkeypatch.setattr(blobs, "get", taken_away)
    if vanishes == 1:
        assert second.main.transactions.recover(tx.id).state == "rejected-acknowledged"
        with pytest.raises(Fenced):
            tx.commit()
    else:
        with pytest.raises(Contention, match="its own driver"):
            second.main.transactions.recover(tx.id)
        assert tx.commit().changes == 1
    assert shown(second) == ([] if vanishes == 1 else ["a"])


def test_a_refused_commit_does_not_keep_its_writer_from_the_next_transaction(first: Client) -> None:
    """Without a block nobody aborts it. It may be tried again; once another one was begun, it is fenced."""
    first.main.put("a", b"before")
    first.main.commit("made")
    refused = first.main.transaction("nightly").begin()
    with pytest.raises(UsageError, match="has an open transaction of 'nightly'"):
        first.main.transaction("nightly").begin()
    refused.put("a", b"mine", if_match=refused.stat("a").checksum)
    first.main.put("a", b"theirs")
    first.main.commit("another")
    for _ in range(2):
        with pytest.raises(Conflict):
            refused.commit()
    with first.main.transaction("nightly", "the next run") as tx:
        tx.put("a", b"next")
    assert first.main.read("a") == b"next"
    with pytest.raises(Fenced, match="was replaced by"):
        refused.commit()
    assert first.main.read("a") == b"next"
