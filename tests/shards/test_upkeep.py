"""Laws of compaction, collection and the end of a shard: anybody may drop or repeat them, at any call."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.envelope import decode
from strandline.errors import OutcomeUnknown, StoreUnavailable
from strandline.shards.state.diff import Diff
from strandline.shards.state.diff import apply as apply_diff
from strandline.shards.state.state import Batch, Part, State
from strandline.shards.state.trace import (
    MERGE_MAX_BATCHES,
    MERGE_MIN_BATCHES,
    TIER_FIRST_ROWS,
    Merge,
    Merged,
    tier,
    with_merge,
    worth_merging,
)
from strandline.shards.upkeep.collection import collect, sweep, write_rollup
from strandline.shards.upkeep.compaction import apply, compact_all, compact_once, merged
from strandline.shards.upkeep.upkeep import maintain
from strandline.testing.faults import Outcome
from tests.shards.stage import Process, Stage, held, summed, update

TIMES = 12


def batch(id: str, lower: int, upper: int, rows: int = 1, since: int = 0) -> Batch:
    return Batch(id, lower, upper, since, (Part(f"{id}/p", b"", rows, rows, 1, lower, lower, False, False, True),))


TRACE = (batch("a", 0, 2), batch("b", 2, 3), batch("c", 5, 6))


# --- P-4 --------------------------------------------------------------------------------------------------------------


def test_p04_nothing_needs_to_be_restored() -> None:
    """Stores need not be able to undelete: whatever call of upkeep fails, what a state refers to that somebody may
    hold is there.
    """

    def upkeep(process: Process) -> None:
        list(compact_all(process.machine))
        write_rollup(process.machine)
        collect(process.machine)
        process.shard.sweep(after_s=0)

    def hold(process: Process) -> None:
        compact_once(process.machine, lambda state: state.batches[:2])
        process.shard.reader()
        compact_once(process.machine, lambda state: state.batches[:2])

    _at_each_call(upkeep, hold, _assert_all_there)


def _assert_all_there(stage: Stage, process: Process) -> None:
    first = process.machine.refreshed().seqno_since
    there = set(stage.blob_keys)
    state: State | None = None
    audited = 0
    for record in stage.log.scan(stage.shard_id, 1):
        diff: Diff = decode(Diff, record.data, "diff")
        if diff.initial is not None:
            state = diff.initial
        elif state is None:
            assert diff.rollup[0] == record.seqno
            state = decode(State, stage.blobs.get(f"shards/it/{diff.rollup[1]}"), "rollup")
        else:
            state = apply_diff(state, diff)
        if record.seqno >= first:
            assert state.blob_keys() <= there, record.seqno
            audited += 1
    assert audited > 1


# --- P-44 to P-46 -----------------------------------------------------------------------------------------------------


def test_p45_a_merge_takes_the_place_of_what_it_was_made_from() -> None:
    done, found = with_merge(TRACE, Merge(("b", "c"), batch("m", 0, 9, rows=2)), 0)
    assert done is Merged.DONE
    assert found is not None
    assert [(one.id, one.lower, one.upper) for one in found] == [("a", 0, 2), ("m", 2, 6)]
    again, unchanged = with_merge(found, Merge(("b", "c"), batch("m", 0, 9, rows=2)), 0)
    assert (again, unchanged) == (Merged.EARLIER, None)


@pytest.mark.parametrize(
    ("inputs", "rows", "since", "verdict"),
    [
        (("b", "x"), 2, 0, Merged.GONE),  # replaced by another merge
        (("x", "b"), 2, 0, Merged.GONE),
        (("a", "c"), 2, 0, Merged.GONE),  # not side by side
        (("c", "b"), 2, 0, Merged.GONE),
        (("b", "c"), 3, 0, Merged.USELESS),  # more than it was made from
        (("b", "c"), 2, 7, Merged.USELESS),  # beyond what readers may still tell apart
    ],
)
def test_p45_a_merge_that_does_not_fit_changes_nothing(
    inputs: tuple[str, ...], rows: int, since: int, verdict: Merged
) -> None:
    assert with_merge(TRACE, Merge(inputs, batch("m", 0, 9, rows, since)), 6) == (verdict, None)


def test_p45_a_stale_merge_does_not_bring_back_what_was_deleted(stage: Stage) -> None:
    """Two compactors read the same; the slower one comes when the faster one's result was merged further."""
    stage.inline_max_bytes = 0
    process, slow = filled(stage), stage.process()
    state = slow.machine.refreshed()
    output = merged(slow.machine, state, state.batches[:3])
    stale = Merge(tuple(one.id for one in state.batches[:3]), output)
    list(compact_all(process.machine))
    write_rollup(process.machine)
    collect(process.machine)
    blobs = stage.blob_keys
    assert apply(slow.machine, stale) is Merged.GONE
    assert set(stage.blob_keys) == set(blobs) - {part.key for part in output.parts}  # its own output goes
    check(process)


def test_p45_an_output_whose_fate_is_unknown_is_left_alone(stage: Stage) -> None:
    stage.inline_max_bytes = 0
    process = filled(stage)
    for outcome in (Outcome.DONE_BUT_LOST, Outcome.LATE):
        process.fail("append", outcome)
        done = compact_once(process.machine, lambda state: state.batches[:2])
        assert done is not None
        assert done.outcome in (Merged.DONE, Merged.EARLIER)
        check(process)


def test_p45_an_output_that_may_have_been_on_record_is_not_deleted(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a lost reply its inputs are gone: it may be merged further, and readers of an older state need it."""
    stage.inline_max_bytes = 0
    process = filled(stage)
    state = process.machine.refreshed()
    merge = Merge(tuple(one.id for one in state.batches[:2]), merged(process.machine, state, state.batches[:2]))
    answers: list[Merged | None] = [None, Merged.GONE]

    def decide(_command: object, _timeout_s: float) -> Merged:
        answer = answers.pop(0)
        if answer is None:
            raise OutcomeUnknown("Injected.")
        return answer

    monkeypatch.setattr(process.machine, "decide", decide)
    assert apply(process.machine, merge) is Merged.GONE
    assert {part.key for part in merge.output.parts} <= set(stage.blob_keys)


def test_p46_a_merge_may_be_dropped_at_any_call() -> None:
    _at_each_call(lambda process: list(compact_all(process.machine)))


@given(st.lists(st.sampled_from([1, 10, 2_000, 5_000, 70_000, 1_000_000]), max_size=120))
def test_a_trace_stays_short_and_each_update_is_rewritten_seldom(sizes: list[int]) -> None:
    trace: tuple[Batch, ...] = ()
    rewritten = 0
    for number, rows in enumerate(sizes):
        trace = (*trace, batch(f"{number}", number, number + 1, rows))
        while chosen := worth_merging(trace):
            assert MERGE_MIN_BATCHES <= len(chosen) <= MERGE_MAX_BATCHES
            inputs = tuple(one.id for one in chosen)
            total = sum(one.rows for one in chosen)
            rewritten += total
            merge = Merge(inputs, batch(f"m{number}-{rewritten}", 0, 1, total))
            done, found = with_merge(trace, merge, 0)
            assert done is Merged.DONE
            assert found is not None
            trace = found
    levels = tier(max(sum(sizes), TIER_FIRST_ROWS)) + 1
    assert len(trace) <= levels * MERGE_MIN_BATCHES
    assert rewritten <= sum(sizes) * levels


# --- P-47 to P-50 -----------------------------------------------------------------------------------------------------


def filled(stage: Stage) -> Process:
    process = stage.process()
    writer = process.shard.writer("w")
    for time in range(TIMES):
        writer.compare_and_append(updates(time), time, time + 1)
    return process


def updates(time: int) -> list[tuple[tuple[str, int], int, int]]:
    return [update(f"k{time % 4}", 1, time), update(f"k{(time + 1) % 4}", 1, time, -1)]


def check(process: Process) -> None:
    everything = [one for time in range(TIMES) for one in updates(time)]
    for as_of in range(process.shard.state.since, TIMES):
        assert held(process.shard, as_of) == summed(everything, as_of)


def _at_each_call(
    work: Callable[[Process], object],
    prepare: Callable[[Process], object] = lambda process: None,
    audit: Callable[[Stage, Process], object] = lambda stage, process: None,
) -> None:
    """Whatever call fails, or loses its reply, all can be read; and what is begun again comes to its end."""
    for outcome in (Outcome.NOT_DONE, Outcome.DONE_BUT_LOST):
        at = 0
        while True:
            stage = Stage(inline_max_bytes=0)
            process = filled(stage)
            prepare(process)
            count = 0

            def plan(_call: str, _key: str, at: int = at, outcome: Outcome = outcome) -> Outcome:
                nonlocal count
                count += 1
                return outcome if count == at + 1 else Outcome.DONE

            process._plan(plan)
            try:
                work(process)
            except StoreUnavailable:
                pass
            is_over = count <= at
            process._plan(lambda _call, _key: Outcome.DONE)
            check(process)
            audit(stage, process)
            work(process)
            check(process)
            check(stage.process())
            audit(stage, process)
            _no_leak(stage, process)
            if is_over:
                break
            at += 1
        assert at >= 3


def _no_leak(stage: Stage, process: Process) -> None:
    """What was left behind is found by the sweeper, and nothing else."""
    write_rollup(process.machine)
    collect(process.machine)
    sweep(process.machine, after_s=0)
    check(stage.process())


def test_p47_a_collection_may_stop_at_any_call_and_be_begun_again() -> None:
    def prepare(process: Process) -> None:
        list(compact_all(process.machine))
        write_rollup(process.machine)
        process.shard.writer("w").heartbeat()

    _at_each_call(lambda process: collect(process.machine), prepare)


def test_p47_what_was_taken_away_is_gone_and_the_log_begins_with_the_rollup(stage: Stage) -> None:
    stage.inline_max_bytes = 0
    process = filled(stage)
    replaced = set(stage.blob_keys)
    list(compact_all(process.machine))
    seqno = write_rollup(process.machine)
    done = collect(process.machine)
    assert (done.target, done.blobs) == (seqno, len(replaced))
    assert not replaced & set(stage.blob_keys)
    assert stage.log.scan(stage.shard_id, 1)[0].seqno == seqno
    check(stage.process())


def test_p47_a_rollup_may_fail_at_any_call() -> None:
    _at_each_call(lambda process: write_rollup(process.machine))


def test_p48_an_older_target_is_none(stage: Stage) -> None:
    process = filled(stage)
    write_rollup(process.machine)
    collect(process.machine)
    first = stage.log.scan(stage.shard_id, 1)[0].seqno
    for until in (1, first - 1, first):
        assert collect(process.machine, until).target is None
    assert stage.log.scan(stage.shard_id, 1)[0].seqno == first


def test_p49_what_a_reader_of_an_old_state_needs_stays(stage: Stage) -> None:
    stage.inline_max_bytes = 0
    process = filled(stage)
    reader = process.shard.reader()
    snapshot = reader.snapshot(TIMES - 1, num_splits=4, timeout_s=0)
    needed = {piece.part.key for split in snapshot.splits for piece in split.pieces}
    list(compact_all(process.machine))
    for _ in range(3):
        write_rollup(process.machine)
        reader.heartbeat()
        collect(process.machine)
    assert needed <= set(stage.blob_keys)
    snapshot.close()
    reader.heartbeat()
    write_rollup(process.machine)
    collect(process.machine)
    assert not needed & set(stage.blob_keys)


@pytest.mark.parametrize("outcome", [Outcome.NOT_DONE, Outcome.DONE_BUT_LOST])
def test_p50_the_end_of_a_shard_may_stop_at_any_call(outcome: Outcome) -> None:
    at = 0
    while True:
        stage = Stage(inline_max_bytes=0)
        process = filled(stage)
        for _ in range(2):  # a log that was truncated before
            write_rollup(process.machine)
            collect(process.machine)
        list(compact_all(process.machine))
        process.shard.durable_reader("d")
        count = 0

        def plan(_call: str, _key: str, at: int = at) -> Outcome:
            nonlocal count
            count += 1
            return outcome if count == at + 1 else Outcome.DONE

        process._plan(plan)
        try:
            process.shard.retire()
        except StoreUnavailable:
            pass
        is_over = count <= at
        process._plan(lambda _call, _key: Outcome.DONE)
        process.shard.retire()
        state = process.machine.refreshed()
        assert state.is_tombstone
        assert (state.batches, state.readers, state.durable_readers, state.writers) == ((), {}, {}, {})
        assert len(stage.log.scan(stage.shard_id, 1)) <= 2
        sweep(process.machine, after_s=0)
        assert [key for key in stage.blob_keys if key not in {one.key for one in state.rollups.values()}] == []
        before = process.seqno
        for _ in range(3):
            maintain(process.machine)
        assert process.seqno == before
        if is_over:
            break
        at += 1
    assert at > 10
