"""Writes, reads, atomic changes, resets and the token queue, with others in between."""

from __future__ import annotations

import threading

import pytest

from strandline.branch.attach import Computed, attach_changes
from strandline.branch.rules.record import BranchRecord
from strandline.branch.token_queue import KEY_PREFIX, sweep
from strandline.errors import (
    BranchGone,
    Conflict,
    StoreUnavailable,
    UncommittedChanges,
    UsageError,
)
from strandline.testing.faults import Outcome
from strandline.tree.rows import TOMBSTONE, encode_staged
from tests.harness.clients import Client, Shared, content, entry, link, shown

GUARDED = "set_many_while"
WRITES = [GUARDED, "set"]
"""How a write reaches a store that can guard it, and one that cannot."""


def queue_length(client: Client) -> int:
    stores = client.main._core.stores
    return len(stores.kv.scan_page(stores.records, KEY_PREFIX, KEY_PREFIX[:-1] + b"0").keys)


# --- writes


@pytest.mark.parametrize("call", WRITES)
def test_a_write_whose_token_is_sealed_meanwhile_is_written_again(one: Client, two: Client, call: str) -> None:
    one.store.guards = call == GUARDED
    link(one.main, "warm", 0)
    one.before(call, 1, lambda: two.main.commit("other"))  # between the cached read and the write
    link(one.main, "a", 1)
    assert content(two.main, "a") == "1"
    assert [change.path for change in two.main.uncommitted()] == ["a"]


def test_a_write_into_a_sealed_token_after_its_scan_is_not_lost(one: Client, two: Client) -> None:
    link(one.main, "warm", 0)
    assert two.main.find("the head is read, so that call 2 is the one after the scan") is None

    def write_late() -> None:
        link(one.main, "a", 1)  # `one` still has the record from before the seal of `two` in its cache

    two.before("get", 2, write_late)  # after the scan of `two`
    two.main.commit("other")
    assert content(two.main, "a") == "1"
    assert [change.path for change in two.main.uncommitted()] == ["a"]


@pytest.mark.parametrize("call", WRITES)
def test_a_write_that_may_have_happened_says_so_and_is_not_repeated(one: Client, call: str) -> None:
    one.store.guards = call == GUARDED
    link(one.main, "a", 1)
    for outcome in (Outcome.DONE_BUT_LOST, Outcome.LATE):
        one.meet(call, 1, outcome)
        with pytest.raises(StoreUnavailable) as failed:
            link(one.main, "a", outcome.name)
        assert failed.value.happened == "unknown"
    one.meet(call, 1, Outcome.NOT_DONE)
    with pytest.raises(StoreUnavailable) as failed:
        link(one.main, "a", "never")
    assert failed.value.happened == "no"
    assert content(one.main, "a") in ("DONE_BUT_LOST", "LATE")
    assert content(one.main, "a") == "LATE"  # it has landed by now


def test_a_path_twice_in_one_call_is_refused_and_nothing_is_staged(one: Client) -> None:
    for call in (
        lambda: one.main.stage_each([("a", entry(1)), ("b", entry(2)), ("a", entry(3))]),
        lambda: one.main.put_many([("a", b"1"), ("a", b"2")]),
        lambda: one.main.delete_many(["a", "a"]),
    ):
        with pytest.raises(UsageError, match="'a'"):
            call()
    assert shown(one) == []


def test_of_two_that_read_a_path_and_then_write_it_one_is_lost(one: Client, two: Client) -> None:
    """As docs/guarantees.md says of plain puts; the simulator meets it in one of thousands of seeds."""
    link(one.main, "a", "1")
    read = [content(client.main, "a") for client in (one, two)]
    for number, client in enumerate((one, two)):
        link(client.main, "a", f"{read[number]}+{number}")
    assert content(one.main, "a") == "1+1"


# --- deletes and reads


def test_a_delete_hides_what_is_committed_sealed_or_staged(one: Client) -> None:
    link(one.main, "committed", 1)
    one.main.commit("first")
    link(one.main, "sealed", 2)
    one.main.put_many({"other": b"x"})  # seals
    link(one.main, "staged", 3)
    for path in ("committed", "sealed", "staged"):
        assert one.main.delete(path) is True
        assert one.main.find(path) is None
        assert one.main.delete(path) is True  # a tombstone is a layer that knows the path
    assert one.main.delete("never") is False
    assert shown(one) == ["other"]
    one.main.commit("second")
    assert shown(one) == ["other"]


@pytest.mark.parametrize("call", WRITES)
def test_a_delete_that_races_with_a_commit_of_the_write_still_deletes(one: Client, two: Client, call: str) -> None:
    one.store.guards = call == GUARDED
    link(one.main, "a", 1)
    one.before(call, 1, lambda: two.main.commit("other"))
    one.main.delete("a")
    assert content(two.main, "a") is None
    two.main.commit("deleted")
    assert shown(two) == []


def test_a_read_whose_tokens_are_committed_and_swept_meanwhile_is_read_again(one: Client, two: Client) -> None:
    link(one.main, "a", 1)

    def commit_and_sweep() -> None:
        two.main.commit("other")
        two.repo.sweep(after_s=0, again_after_s=0)

    for call in ("get", "scan_page"):
        link(two.main, "a", call)
        one.main.find("warm the cache")
        one.before(call, 1, commit_and_sweep)
        assert (content(one.main, "a") if call == "get" else shown(one)) in (call, ["a"])


def test_a_read_from_a_stale_cache_sees_a_newer_commit(one: Client, two: Client) -> None:
    link(one.main, "a", 1)
    assert content(one.main, "a") == "1"
    link(two.main, "a", 2)
    two.main.commit("two")
    link(two.main, "a", 3)
    two.main.commit("three")
    assert content(one.main, "a") == "3"


def test_a_listing_is_right_page_by_page_while_others_commit(one: Client, two: Client) -> None:
    for i in range(50):
        link(two.main, f"k{i:02d}", i)
    for n in range(1, 6):
        one.before("scan_page", n, lambda: two.main.commit("c", allow_empty=True))
    assert shown(one) == [f"k{i:02d}" for i in range(50)]


# --- atomic changes


def test_an_atomic_put_appears_at_one_instant_and_later_writes_lie_above(one: Client, two: Client) -> None:
    link(one.main, "a", "old")
    seen: list[list[str]] = []
    one.before("set_many", 1, lambda: seen.append(shown(two)))
    one.main.find("the record is cached")
    two.before("get", 1, lambda: None)
    one.main.stage_atomically([("a", entry("new")), ("b", entry("new"))])
    assert seen == [["a"]]
    link(two.main, "b", "newer")
    assert {path: content(two.main, path) for path in "ab"} == {"a": "new", "b": "newer"}


def test_what_is_staged_during_a_rename_lies_above_it(one: Client, two: Client) -> None:
    link(one.main, "x/1", "old")
    one.before("set_if", 2, lambda: link(two.main, "y/1", "newer"))  # between the seal and the attach
    one.main.rename("x/", "y/")
    assert shown(two) == ["y/1"]
    assert content(two.main, "y/1") == "newer"


def test_a_rename_goes_on_beneath_newer_seals_and_over_commits_of_what_it_read(one: Client, two: Client) -> None:
    link(one.main, "x/1", 1)
    scans: list[str] = []
    plan = one.store.plan
    one.store.plan = lambda call, partition, key: (scans.append(call), plan(call, partition, key))[1]
    three = Client(Shared(two.store._store, two.lake._clock, two.lake._settings.blob))  # type: ignore[arg-type]

    def others() -> None:
        with pytest.raises(StoreUnavailable):  # seals, and dies before its swap
            two.meet("set_if", 2, Outcome.NOT_DONE)
            two.main.commit("never")
        link(three.main, "x/2", 2)

    one.before("set_if", 2, others)
    one.main.rename("x/", "y/")
    assert scans.count("scan_page") == 2  # its one token was read once, and what is condemned was looked at
    assert shown(two) == ["x/2", "y/1"]


def test_a_rename_is_computed_again_if_somebody_attached_meanwhile(one: Client, two: Client) -> None:
    link(one.main, "x/1", 1)
    one.before("set_if", 2, lambda: two.main.put_many({"x/2": b"2"}))
    assert one.main.rename("x/", "y/") == 2
    assert shown(two) == ["y/1", "y/2"]


def test_a_commit_does_not_undo_what_was_attached_between_its_tokens(one: Client, two: Client) -> None:
    """`two` has read t2 and t1; a rename of t1's path slips in between them, and is committed with t1 by `one`."""
    three = Client(Shared(two.store._store, two.lake._clock, two.lake._settings.blob))  # type: ignore[arg-type]
    link(one.main, "x/1", 1)

    def in_the_rename() -> None:  # the rename has sealed t1 and read it; now t2 is written and sealed by `two`
        link(three.main, "t2", 2)
        two.before("set_if", 2, after_two_has_scanned)
        two.main.commit("by two")

    def after_two_has_scanned() -> None:
        resume.append(True)

    resume: list[bool] = []
    one.before("set_if", 2, in_the_rename)
    one.main.rename("x/", "y/")
    assert resume == [True]
    three.main.commit("the rest", allow_empty=True)
    assert shown(three) == ["t2", "y/1"]


def test_an_atomic_change_is_computed_again_if_the_layers_moved(one: Client, two: Client) -> None:
    link(one.main, "x/1", 1)

    def write_and_commit() -> None:
        link(two.main, "x/2", 2)
        two.main.commit("other")

    one.before("set_if", 2, write_and_commit)
    assert one.main.rename("x/", "y/") == 2
    assert shown(two) == ["y/1", "y/2"]


def test_an_atomic_put_that_reads_nothing_is_written_once_whatever_moves(one: Client, two: Client) -> None:
    one.before("set_if", 1, lambda: two.main.commit("other", allow_empty=True))
    one.before("set_if", 2, lambda: two.main.discard())
    writes: list[bytes] = []
    plan = one.store.plan
    one.store.plan = lambda call, partition, key: (
        writes.append(partition) if call == "set_many" else None,
        plan(call, partition, key),
    )[1]
    one.main.stage_atomically([("a", entry(1))])
    assert content(two.main, "a") == "1"
    assert len([partition for partition in writes if b"/staging/" in partition]) == 1


def test_an_atomic_put_whose_swap_is_lost_is_done_once(one: Client) -> None:
    for outcome in (Outcome.DONE_BUT_LOST, Outcome.LATE):
        one.meet("set_if", 1, outcome)
        one.main.stage_atomically([("a", entry(outcome.name))])
        assert content(one.main, "a") == outcome.name


def test_a_client_that_died_before_its_attach_leaves_nothing(one: Client, two: Client, shared: Shared) -> None:
    one.meet("set_if", 1, Outcome.NOT_DONE)
    with pytest.raises(StoreUnavailable):
        one.main.stage_atomically([("a", entry(1)), ("b", entry(2))])
    assert shown(two) == []
    assert queue_length(two) == 1
    shared.clock.advance_s(100)
    assert two.repo.sweep() == 0  # its owner may still be at work
    shared.clock.advance_s(3600)
    assert two.repo.sweep() == 2
    shared.clock.advance_s(1000)
    two.repo.sweep()
    assert queue_length(two) == 0
    assert shown(two) == []


def test_a_client_that_was_taken_for_dead_writes_its_token_again(one: Client, two: Client, shared: Shared) -> None:
    def clean() -> None:
        shared.clock.advance_s(4000)
        two.repo.sweep()

    one.before("set_if", 1, clean)  # the cleaner condemns, seals and deletes right before the attach
    one.main.stage_atomically([("a", entry(1)), ("b", entry(2))])
    assert shown(two) == ["a", "b"]


def test_a_token_that_was_attached_is_not_cleaned(one: Client, two: Client, shared: Shared) -> None:
    one.meet("delete", 1, Outcome.NOT_DONE)  # its intent stays, as when the client dies right after its attach
    assert one.main.stage_atomically([("a", entry(1))]) == 1
    for _ in range(3):
        shared.clock.advance_s(4000)
        two.repo.sweep()
    assert shown(two) == ["a"]
    assert queue_length(two) == 0


def test_expectations_are_judged_at_the_instant_of_the_change(one: Client, two: Client) -> None:
    link(one.main, "record", 1)
    one.before("set_if", 2, lambda: (link(two.main, "record", 2), two.main.commit("changed")))
    with pytest.raises(Conflict, match="somebody else"):
        one.main.stage_atomically([("data", entry(1))], expect={"record": "sum:1"})
    assert shown(two) == ["record"]


# --- resets


def test_a_reset_throws_away_all_a_path_or_a_prefix(one: Client) -> None:
    link(one.main, "a", 1)
    link(one.main, "dir/x", 1)
    one.main.commit("first")
    for path in ("a", "a0", "dir/x", "dir/y", "z"):
        link(one.main, path, 2)
    one.main.delete("dir/x")
    one.main.discard("a")
    assert [change.path for change in one.main.uncommitted()] == ["a0", "dir/x", "dir/y", "z"]
    one.main.discard(prefix="dir/")
    assert [change.path for change in one.main.uncommitted()] == ["a0", "z"]
    link(one.main, "dir/w", 3)
    one.main.discard(prefix="dir/")
    one.main.discard("never staged")
    assert [change.path for change in one.main.uncommitted()] == ["a0", "z"]
    one.main.discard()
    assert list(one.main.uncommitted()) == []
    assert shown(one) == ["a", "dir/x"]
    with pytest.raises(UsageError):
        one.main.discard("a", prefix="b")


def test_a_reset_of_a_path_keeps_what_others_stage_meanwhile(one: Client, two: Client) -> None:
    link(one.main, "a", 1)
    link(one.main, "b", 1)
    one.before("set_if", 2, lambda: link(two.main, "c", 1))
    one.main.discard("a")
    assert shown(one) == ["b", "c"]


def test_a_reset_of_a_path_is_computed_again_after_a_commit(one: Client, two: Client) -> None:
    link(one.main, "a", 1)
    one.before("set_if", 2, lambda: two.main.commit("other"))
    one.main.discard("a")
    assert content(one.main, "a") == "1"  # the commit was first, and a reset takes nothing committed away


# --- moving the head


def test_a_merge_refuses_what_is_staged_in_effect_and_only_that(one: Client) -> None:
    link(one.main, "a", 1)
    one.main.commit("first")
    work = one.repo.create_branch("work")
    link(work, "w", 1)
    work.commit("work")
    link(one.main, "dirty", 1)
    with pytest.raises(UncommittedChanges) as refused:
        one.main.merge("work")
    assert refused.value.paths == ("dirty",)
    one.main.delete("dirty")  # a tombstone of what is not there
    link(one.main, "a", 1)  # a copy of what is
    one.main.merge("work")
    assert shown(one) == ["a", "w"]
    assert one.main._cell.read().branch.sealed_tokens == ()


def test_a_write_during_a_merge_lies_above_it(one: Client, two: Client) -> None:
    work = one.repo.create_branch("work")
    link(work, "w", 1)
    work.commit("work")
    one.before("set_if", 1, lambda: link(two.main, "w", "mine"))
    one.main.merge("work")
    assert content(one.main, "w") == "mine"
    assert [change.path for change in one.main.uncommitted()] == ["w"]


def test_a_merge_is_computed_again_if_the_head_moved(one: Client, two: Client) -> None:
    work = one.repo.create_branch("work")
    link(work, "w", 1)
    work.commit("work")

    def commit() -> None:
        link(two.main, "m", 1)
        two.main.commit("main moved")

    one.before("set_if", 1, commit)
    one.main.merge("work")
    assert shown(one) == ["m", "w"]
    assert [commit.message for commit in one.main.log(first_parent=True)][:2] == ["Merge work into main", "main moved"]


def test_a_merge_whose_reply_is_lost_is_done_once(one: Client) -> None:
    work = one.repo.create_branch("work")
    link(work, "w", 1)
    work.commit("work")
    one.meet("set_if", 1, Outcome.DONE_BUT_LOST)
    one.main.merge("work")
    assert [commit.message for commit in one.main.log(first_parent=True)] == [
        "Merge work into main",
        "Repository created",
    ]


# --- deleted branches


def test_an_old_handle_of_a_branch_made_again_writes_nothing(one: Client, two: Client) -> None:
    old = one.repo.create_branch("work")
    link(old, "a", 1)
    two.repo.delete_branch("work")
    new = two.repo.create_branch("work")
    for call in (
        lambda: link(old, "b", 1),
        lambda: old.commit("x"),
        lambda: old.find("a"),
        lambda: list(old.list()),
        lambda: old.merge("main"),
        lambda: old.discard(),
        lambda: old.put_many({"c": b"1"}),
        lambda: old.put("d", b"1", create=True),
        lambda: old.hard_reset("main"),
        lambda: old.commit_id,
    ):
        with pytest.raises(BranchGone, match="new handle"):
            call()
    assert list(new.list()) == []


@pytest.mark.parametrize("call", WRITES)
def test_a_branch_deleted_during_a_write_says_what_became_of_it(one: Client, two: Client, call: str) -> None:
    one.store.guards = call == GUARDED
    work = one.repo.create_branch("work")
    link(work, "a", 1)
    one.before(call, 1, lambda: two.repo.delete_branch("work"))
    with pytest.raises(BranchGone, match="Nothing was written" if call == GUARDED else "lost with it"):
        link(work, "b", 1)


def test_a_branch_deleted_during_a_commit_stays_deleted(one: Client, two: Client) -> None:
    work = one.repo.create_branch("work")
    link(work, "a", 1)
    one.before("set_if", 2, lambda: two.repo.delete_branch("work"))
    with pytest.raises(BranchGone):
        work.commit("late")
    assert [ref.name for ref in one.repo.branches()] == ["main"]


# --- the queue of dropped tokens


def test_dropped_tokens_are_swept_twice_and_then_forgotten(one: Client, shared: Shared) -> None:
    stores = one.main._core.stores
    token = one.main._cell.read().branch.staging_token
    link(one.main, "a", 1)
    one.main.commit("first")
    assert sweep(stores) == 0  # too young
    shared.clock.advance_s(61)
    assert sweep(stores) == 1
    stores.kv.set(stores.staging(token), b"late", b"\xc0")  # a writer that comes far too late
    shared.clock.advance_s(600)
    assert sweep(stores) == 1
    assert queue_length(one) == 0
    assert stores.kv.scan_page(stores.staging(token)).keys == []


def test_tokens_of_a_commit_that_failed_at_its_swap_are_not_swept(one: Client, shared: Shared) -> None:
    link(one.main, "a", 1)
    one.meet("set_if", 2, Outcome.NOT_DONE)
    with pytest.raises(StoreUnavailable):
        one.main.commit("first")
    for _ in range(3):
        shared.clock.advance_s(1000)
        assert one.repo.sweep() == 0
    assert content(one.main, "a") == "1"


def test_the_entries_of_a_deleted_branch_are_swept(one: Client, shared: Shared) -> None:
    work = one.repo.create_branch("work")
    link(work, "a", 1)
    one.repo.delete_branch("work")
    shared.clock.advance_s(100)
    assert one.repo.sweep() == 1


def test_a_listing_does_not_show_a_later_write_without_an_earlier_atomic_change(
    one: Client, two: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by the simulator at seed 35,546: an attach puts its token beneath the one that new writes go to."""
    monkeypatch.setattr("strandline.branch.cell.CACHED_MAX_AGE_S", -1)  # the listing begins with a fresh record
    link(one.main, "a", 1)
    has_record, may_scan = threading.Event(), threading.Event()
    seen: list[str] = []

    def hold() -> None:
        has_record.set()
        assert may_scan.wait(10)

    def compute(_: BranchRecord) -> Computed:
        one.before("scan_page", 1, hold)
        reader.start()
        assert has_record.wait(10)
        return Computed([(b"a", encode_staged(TOMBSTONE)), (b"b", encode_staged(entry(1)))])

    reader = threading.Thread(target=lambda: seen.extend(shown(one)))
    attach_changes(two.main._at, compute)
    link(two.main, "c", 1)
    may_scan.set()
    reader.join()
    assert seen in (["b", "c"], ["b"], ["a"])
