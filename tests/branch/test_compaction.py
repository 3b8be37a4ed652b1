"""Staging compaction: what it does, what it leaves alone, who begins it, and what may go wrong on the way."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import strandline
from strandline.branch.compaction import Compaction
from strandline.branch.rules.record import COOL_DOWN_S, BranchRecord, CoolingDown, claim_compaction, is_cooling_down
from strandline.branch.sensor import Sensor
from strandline.errors import BranchGone, NothingToCommit, OutcomeUnknown, RepositoryReadOnly, StoreUnavailable
from strandline.ids import BranchId, CommitId, StagingToken
from strandline.repository.branch import Branch as BranchHandle
from strandline.testing.clock import ManualClock
from strandline.testing.faults import Outcome
from tests.harness.clients import Client, Shared, content, entry, link, shown


def record(client: Client) -> BranchRecord:
    return client.main._core.cell("main").read().branch


def contents(client: Client) -> dict[str, str | None]:
    return {path: content(client.main, path) for path in ("a", "b", "c", "d")}


def committed(client: Client, **contents: int) -> None:
    for path, value in contents.items():
        link(client.main, path, value)
    client.main.commit("base")


# --- what it does


def test_a_compaction_changes_nothing_that_anybody_sees(one: Client, two: Client) -> None:
    committed(one, a=1, b=1)
    link(one.main, "b", 2)
    link(one.main, "c", 1)
    one.main.delete("a")
    before, changes = contents(two), [(it.kind, it.path) for it in two.main.uncommitted()]
    done = one.main.compact()
    assert (done.outcome, done.entries, done.tokens) == ("done", 3, 1)
    assert record(one).sealed_tokens == ()
    assert record(one).compacted is not None
    for client in (one, two):
        assert contents(client) == before == {"a": None, "b": "2", "c": "1", "d": None}
        assert [(it.kind, it.path) for it in client.main.uncommitted()] == changes
        assert shown(client) == ["b", "c"]


def test_a_commit_builds_on_what_was_compacted_and_clears_it(one: Client) -> None:
    committed(one, a=1)
    link(one.main, "b", 1)
    one.main.compact()
    link(one.main, "c", 1)
    one.main.commit("all of it")
    assert record(one).compacted is None
    head = one.repo.ref("main@")
    assert [info.path for info in head.list()] == ["a", "b", "c"]
    assert list(one.main.uncommitted()) == []


def test_a_second_compaction_builds_on_the_first(one: Client) -> None:
    committed(one, a=1)
    link(one.main, "b", 1)
    one.main.compact()
    one.main.delete("a")
    assert one.main.compact(force=True).outcome == "done"
    assert shown(one) == ["b"]
    one.main.commit("both")
    assert [info.path for info in one.repo.ref("main@").list()] == ["b"]


def test_what_comes_to_nothing_leaves_no_tree(one: Client) -> None:
    committed(one, a=1)
    link(one.main, "x", 1)
    one.main.delete("x")
    link(one.main, "a", 1)
    assert one.main.compact().outcome == "done"
    assert record(one).compacted is None
    with pytest.raises(NothingToCommit):
        one.main.commit("nothing")


def test_uncommitted_changes_over_a_compacted_tree_are_those_in_effect(one: Client) -> None:
    committed(one, a=1, b=1)
    link(one.main, "a", 2)
    one.main.compact()
    link(one.main, "a", 1)  # back to what is committed
    one.main.delete("b")
    assert [(it.kind, it.path) for it in one.main.uncommitted()] == [("removed", "b")]
    assert [(it.kind, it.path) for it in one.main.uncommitted("b")] == [("removed", "b")]


def test_the_difference_of_what_is_compacted_is_computed_once(one: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    from strandline.tree import diff

    committed(one, a=1)
    link(one.main, "b", 1)
    one.main.compact()
    calls = []
    real = diff.compare_rows
    monkeypatch.setattr(diff, "compare_rows", lambda *sides: calls.append(1) or real(*sides))
    for _ in range(3):
        assert [(it.kind, it.path) for it in one.main.uncommitted()] == [("added", "b")]
    assert len(calls) == 1


def test_dropped_tokens_are_swept_and_leave_nothing(one: Client, shared: Shared) -> None:
    for i in range(20):
        link(one.main, f"k{i}", 1)
    one.main.compact()
    for _ in range(3):
        shared.clock.advance_s(4_000)
        one.repo.sweep()
    staged = [name for name, held in shared.kv._partitions.items() if b"/staging/" in name and held.values]
    assert staged == []
    assert len(shown(one)) == 20


# --- beside others


def test_writers_and_committers_go_on_while_a_compaction_runs(one: Client, two: Client) -> None:
    committed(one, a=1)
    link(one.main, "b", 1)
    # while the compactor is about to swap, another client writes: only a newer token, so the swap still holds
    one.before("set_if", 2, lambda: (link(two.main, "c", 1), link(two.main, "b", 2)))
    assert one.main.compact().outcome == "done"
    assert contents(two) == {"a": "1", "b": "2", "c": "1", "d": None}


def test_a_commit_that_comes_first_has_done_the_work(one: Client, two: Client) -> None:
    committed(one, a=1)
    link(one.main, "b", 1)
    one.before("set_if", 2, lambda: two.main.commit("first"))
    assert one.main.compact().outcome == "superseded"
    assert record(two).compacted is None
    assert [info.path for info in two.repo.ref("main@").list()] == ["a", "b"]


def test_a_commit_whose_tokens_were_compacted_commits_them_all_the_same(one: Client, two: Client) -> None:
    committed(one, a=1)
    link(one.main, "b", 1)
    one.before("set_if", 2, lambda: two.main.compact())
    made = one.main.commit("mine")
    assert [info.path for info in one.repo.ref(made.id).list()] == ["a", "b"]


def test_two_compactors_do_not_harm_each_other(one: Client, two: Client) -> None:
    committed(one, a=1)
    link(one.main, "b", 1)
    one.before("set_if", 2, lambda: two.main.compact(force=True))
    outcomes = {one.main.compact(force=True).outcome}
    assert outcomes <= {"done", "superseded"}
    assert contents(one) == {"a": "1", "b": "1", "c": None, "d": None}
    assert two.main.compact().outcome == "cooling down"


@pytest.mark.parametrize("call", ["set_many_while", "set"])
def test_a_late_writer_into_a_compacted_token_writes_again(one: Client, two: Client, call: str) -> None:
    one.store.guards = call != "set"
    committed(one, a=1)
    one.before(call, 1, lambda: two.main.compact())  # right before the entry gets into the old token
    link(one.main, "b", 1)
    assert contents(two)["b"] == "1"
    two.main.commit("c")
    assert content(two.repo.ref("main@"), "b") == "1"  # type: ignore[arg-type]


def test_a_compaction_of_a_branch_that_is_being_deleted(one: Client, two: Client) -> None:
    work = one.repo.create_branch("work")
    link(work, "a", 1)
    one.before("set_if", 2, lambda: two.repo.delete_branch("work"))
    with pytest.raises(BranchGone):
        work.compact()
    with pytest.raises(BranchGone):
        work.compact()
    again = one.repo.create_branch("work")
    assert again.find("a") is None


def test_a_read_only_repository_is_not_compacted(one: Client) -> None:
    link(one.main, "a", 1)
    one.repo.set_read_only()
    with pytest.raises(RepositoryReadOnly):
        one.main.compact()


# --- what may go wrong on the way


@pytest.mark.parametrize("call", range(1, 9))
def test_a_compaction_that_fails_anywhere_loses_nothing(one: Client, two: Client, shared: Shared, call: int) -> None:
    committed(one, a=1, b=1)
    link(one.main, "c", 1)
    one.main.delete("a")
    one.meet("*", call, Outcome.NOT_DONE)
    try:
        one.main.compact()
    except StoreUnavailable as error:
        assert error.happened == "no"  # noqa: PT017
    assert contents(two) == {"a": None, "b": "1", "c": "1", "d": None}
    # whoever comes next finishes the work, when the branch has cooled down
    shared.clock.advance_s(COOL_DOWN_S + 1)
    assert two.main.compact().outcome == "done"
    two.main.commit("c")
    assert [info.path for info in two.repo.ref("main@").list()] == ["b", "c"]


@pytest.mark.parametrize("outcome", [Outcome.DONE_BUT_LOST, Outcome.LATE])
@pytest.mark.parametrize("swap", [1, 2])
def test_a_swap_with_a_lost_reply_is_read_back(one: Client, two: Client, outcome: Outcome, swap: int) -> None:
    committed(one, a=1)
    link(one.main, "b", 1)
    one.meet("set_if", swap, outcome)
    assert one.main.compact().outcome == "done"
    assert record(two).sealed_tokens == ()
    assert contents(two) == {"a": "1", "b": "1", "c": None, "d": None}


def test_a_swap_whose_outcome_cannot_be_told_says_so(one: Client, two: Client) -> None:
    committed(one, a=1)
    link(one.main, "b", 1)

    def busy() -> None:
        for i in range(20):  # more swaps than the record remembers
            link(two.main, "c", i)
            two.main.commit(f"{i}")

    one.before("set_if", 3, busy)
    one.meet("set_if", 2, Outcome.LATE)
    with pytest.raises(OutcomeUnknown):
        one.main.compact()
    assert contents(two) == {"a": "1", "b": "1", "c": "19", "d": None}


# --- the claim


def branch_record(started: int | None = None) -> BranchRecord:
    return BranchRecord(
        branch_id=BranchId("b"),
        head=CommitId("h"),
        staging_token=StagingToken("t"),
        created_at=0,
        compaction_started=started,
    )


def test_a_claim_seals_and_cools_down() -> None:
    claimed = claim_compaction(branch_record(), StagingToken("n"), 1_000_000, COOL_DOWN_S)
    assert (claimed.staging_token, claimed.sealed_tokens, claimed.compaction_started) == ("n", ("t",), 1_000_000)
    with pytest.raises(CoolingDown):
        claim_compaction(claimed, StagingToken("m"), 1_000_000 + COOL_DOWN_S * 1_000_000 - 1, COOL_DOWN_S)
    later = claim_compaction(claimed, StagingToken("m"), 1_000_000 + COOL_DOWN_S * 1_000_000, COOL_DOWN_S)
    assert later.compaction_started == 1_000_000 + COOL_DOWN_S * 1_000_000


def test_a_clock_that_jumped_holds_nobody_up() -> None:
    days = 3 * 86_400 * 1_000_000
    assert not is_cooling_down(branch_record(started=days), 0)
    assert not is_cooling_down(branch_record(started=0), days)
    assert is_cooling_down(branch_record(started=1_000_000), 0)  # a second ahead is no jump


def test_two_processes_that_see_the_need_compact_once(one: Client, two: Client, shared: Shared) -> None:
    link(one.main, "a", 1)
    assert one.main.compact().outcome == "done"
    link(two.main, "b", 1)
    assert two.main.compact() == Compaction("cooling down")
    shared.clock.advance_s(COOL_DOWN_S + 1)
    assert two.main.compact().outcome == "done"


# --- the sensor


def sensor(fired: list[str], clock: ManualClock | None = None) -> Sensor:
    return Sensor(lambda name, branch_id: fired.append(name), clock or ManualClock())


@pytest.fixture
def _real_thresholds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strandline.branch.sensor.TOMBSTONES", 10_000)
    monkeypatch.setattr("strandline.branch.sensor.SEALED_TOKENS", 16)


@pytest.mark.usefixtures("_real_thresholds")
def test_a_thousand_short_processes_that_see_a_little_each_fire_as_one_that_sees_it_all() -> None:
    random.seed(5)
    fired: list[str] = []
    for _ in range(1_000):  # each is a new process with nothing in its memory
        sensor(fired).saw_tombstones("main", branch_record(), 50)
    assert 1 <= len(fired) <= 15  # 5 expected of 50,000 tombstones
    fired.clear()
    for _ in range(1_000):
        sensor(fired).saw_tombstones("main", branch_record(), 0)
    assert fired == []


@pytest.mark.usefixtures("_real_thresholds")
def test_a_single_listing_that_passes_many_tombstones_fires() -> None:
    fired: list[str] = []
    sensor(fired).saw_tombstones("main", branch_record(), 10_000)
    assert fired == ["main"]


@pytest.mark.usefixtures("_real_thresholds")
def test_many_sealed_tokens_fire() -> None:
    from msgspec.structs import replace

    fired: list[str] = []
    few = replace(branch_record(), sealed_tokens=tuple(StagingToken(f"{i}") for i in range(15)))
    sensor(fired).saw_tokens("main", few)
    assert fired == []
    sensor(fired).saw_tokens("main", replace(few, sealed_tokens=(*few.sealed_tokens, StagingToken("x"))))
    assert fired == ["main"]


@pytest.mark.usefixtures("_real_thresholds")
def test_nobody_fires_while_the_branch_cools_down() -> None:
    fired: list[str] = []
    clock = ManualClock()
    sensor(fired, clock).saw_tombstones("main", branch_record(started=clock.now_us() - 1), 1_000_000)
    assert fired == []
    clock.advance_s(COOL_DOWN_S)
    sensor(fired, clock).saw_tombstones("main", branch_record(started=clock.now_us() - COOL_DOWN_S * 1_000_000), 10_000)
    assert fired == ["main"]


def wait_for_compaction(main: BranchHandle) -> None:
    until = time.monotonic() + 30
    while main._core.cell("main").read().branch.compacted is None:
        assert time.monotonic() < until, "no compaction came"
        time.sleep(0.01)


def test_a_listing_that_skips_deletions_begins_a_compaction_in_the_background(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.branch.sensor.TOMBSTONES", 100)
    monkeypatch.setattr("strandline.core.repository_core.COMPACT_AFTER_S", 0.01)
    with strandline.open(tmp_path / "lake", create=True, synced=False) as lake:
        main = lake.repository("nyc", create=True).branch("main")
        main.stage_each([(f"k{i:03d}", entry(i)) for i in range(300)])
        main.commit("base")
        main.delete_many([f"k{i:03d}" for i in range(299)])
        assert [found.path for found in main.list(amount=1)] == ["k299"]
        wait_for_compaction(main)
        assert [info.path for info in main.list()] == ["k299"]
        assert len(list(main.uncommitted())) == 299
        main.commit("gone")
        assert [info.path for info in lake.repository("nyc").ref("main@").list()] == ["k299"]


def test_compaction_can_be_switched_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strandline.branch.sensor.TOMBSTONES", 1)
    monkeypatch.setattr("strandline.core.repository_core.COMPACT_AFTER_S", 0)
    with strandline.open(tmp_path / "lake", create=True, synced=False, compaction=False) as lake:
        main = lake.repository("nyc", create=True).branch("main")
        main.delete_many([f"k{i}" for i in range(50)])
        assert list(main.list()) == []
        assert threading.active_count() == 1 or not any("compaction" in it.name for it in threading.enumerate())
        assert main._core.cell("main").read().branch.compaction_started is None
        main.compact()  # by hand it still works
        assert main._core.cell("main").read().branch.compaction_started is not None


def test_the_end_of_a_short_process_waits_for_its_compaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strandline.branch.sensor.TOMBSTONES", 1)
    with strandline.open(tmp_path / "lake", create=True, synced=False) as lake:
        main = lake.repository("nyc", create=True).branch("main")
        main.stage_each([(f"k{i}", entry(i)) for i in range(50)])
        main.commit("base")
        main.delete_many([f"k{i}" for i in range(40)])
    with strandline.open(tmp_path / "lake", compaction=False) as lake:
        assert lake.repository("nyc").branch("main")._core.cell("main").read().branch.compacted is not None


def test_a_commit_that_follows_at_once_makes_the_compaction_needless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.branch.sensor.TOMBSTONES", 1)
    with strandline.open(tmp_path / "lake", create=True, synced=False) as lake:
        main = lake.repository("nyc", create=True).branch("main")
        main.stage_each([(f"k{i}", entry(i)) for i in range(50)])
        main.commit("base")
        main.delete_many([f"k{i}" for i in range(40)])
        main.commit("gone")
    with strandline.open(tmp_path / "lake", compaction=False) as lake:
        assert lake.repository("nyc").branch("main")._core.cell("main").read().branch.compaction_started is None


def test_the_sensor_neither_fails_nor_reads(one: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strandline.branch.sensor.TOMBSTONES", 1 << 60)
    monkeypatch.setattr("strandline.branch.cell.CACHED_MAX_AGE_S", -1)  # nothing that is remembered is young enough
    committed(one, a=1, b=1)
    calls: list[str] = []
    plan = one.store.plan
    one.store.plan = lambda call, partition, key: calls.append(call) or plan(call, partition, key)
    one.main.delete_prefix("a")
    assert calls[-1] == "delete"  # of the intent: nothing comes after it


def test_a_large_compaction_is_finished_when_the_process_ends(tmp_path: Path) -> None:
    """At exit no thread pool takes work any more; the ranges are written without one."""
    script = """
import sys, strandline
from strandline.branch import sensor
from strandline import Entry
sensor.TOMBSTONES = 1
lake = strandline.open(sys.argv[1], create=True, synced=False)
main = lake.repository("nyc", create=True).branch("main")
paths = [f"k{i:06d}" for i in range(40_000)]
main.stage_each([(path, Entry(f"data/{path}", 1, path, 1)) for path in paths])
main.commit("base")
main.delete_many(paths[::2])
"""  # and no close()
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "lake")], check=True)
    with strandline.open(tmp_path / "lake", compaction=False) as lake:
        main = lake.repository("nyc").branch("main")
        assert main._core.cell("main").read().branch.compacted is not None
        assert len(list(main.list())) == 20_000
