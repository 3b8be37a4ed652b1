"""Laws of writing: bounds, expected uppers, threads, and types of values."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from strandline.errors import (
    Contention,
    InvalidBounds,
    SchemaMismatch,
    StoreUnavailable,
    UpperMismatch,
    UsageError,
)
from strandline.kv.sqlite import SqliteStore
from strandline.shards.shard import Shard
from strandline.shards.state.frontier import Antichain, Frontier
from strandline.shards.state.state import State, WriterId
from strandline.shards.state.transitions import (
    Append,
    Step,
    compare_and_append,
    initial,
)
from strandline.testing.faults import Outcome
from tests.shards.stage import Stage, Update, held, update


def test_frontiers_are_ordered_and_the_empty_one_is_the_top() -> None:
    assert Antichain(3) < Antichain(4) < Antichain()
    assert Antichain(3) <= Antichain(3)
    assert not Antichain() <= Antichain(2**63 - 2)
    assert Antichain(3).meet(Antichain()) == Antichain(3)
    assert Antichain(3).join(Antichain()) == Antichain()
    assert (str(Antichain()), str(Antichain(7))) == ("[]", "[7]")
    for time in (-1, 2**63 - 1, True, 1.0, "1"):
        with pytest.raises(UsageError):
            Antichain(time)  # type: ignore[arg-type]


def test_p11_of_two_who_make_a_shard_at_once_one_does_and_the_other_finds_it(stage: Stage) -> None:
    one, other = stage.process(create=False), stage.process(create=False)
    assert one.machine.find() is None
    schema = b"x"
    assert one.machine.create(initial(stage.shard_id, "it", "columns", schema)).schemas == {1: schema}
    assert other.machine.create(initial(stage.shard_id, "it", "columns", b"y")).schemas == {1: schema}
    assert [record.seqno for record in stage.log.scan(stage.shard_id, 1)] == [1]


def test_p11_a_creation_whose_reply_was_lost_is_found(stage: Stage) -> None:
    one = stage.process(create=False)
    one.fail("append", Outcome.DONE_BUT_LOST)
    assert one.machine.create(initial(stage.shard_id, "it", "columns", b"x")).seqno == 1


# --- P-15 to P-21 -----------------------------------------------------------------------------------------------------


def test_p15_bounds_are_judged_without_asking_a_store(stage: Stage) -> None:
    process = stage.process()
    writer = process.shard.writer()
    writer.compare_and_append([], 0, 1)
    process.consensus.faults.calls.clear()
    wrong: list[tuple[list[Update], Frontier, Frontier]] = [
        ([update("a", 1, 4)], 5, 7),
        ([update("a", 1, 7)], 5, 7),
        ([update("a", 1, 5)], 5, 5),
        ([], 7, 5),
        ([update("a", 1, 5)], Antichain(), Antichain()),
    ]
    for updates, lower, upper in wrong:
        with pytest.raises(InvalidBounds) as refused:
            writer.compare_and_append(updates, lower, upper)
        assert "Nothing was changed" in str(refused.value)
    assert process.consensus.faults.calls == []
    assert process.blobs.faults.calls == []


def test_p15_the_upper_may_be_the_end_of_time(shard: Shard) -> None:
    shard.writer().compare_and_append([update("a", 1, 5)], 0, Antichain())
    assert shard.is_finished
    assert held(shard, 9) == {("a", 1): 1}


def test_p16_a_batch_of_another_shard_is_refused(shard: Shard) -> None:
    other = Stage().process().shard
    other._machine.place.shard = type(shard.id)("other")
    with other.writer().batch(0, 9) as builder:
        builder.add([update("a", 1, 1)])
        batch = builder.finish()
    with pytest.raises(UsageError, match="not for"):
        shard.writer().compare_and_append_batches([batch], 0, 9)
    with pytest.raises(UsageError):
        shard.writer().compare_and_append_batches(["batch"], 0, 9)  # type: ignore[list-item]


def test_p16_a_written_batch_may_be_appended_by_another_process(stage: Stage) -> None:
    with stage.process().shard.writer().batch(0, 10) as builder:
        builder.add([update("a", 1, 3)])
        builder.add([update("b", 1, 8)])
        raw = pickle.dumps(builder.finish())
    other = stage.process().shard
    other.writer().compare_and_append_batches([pickle.loads(raw)], 0, 10)
    assert held(other, 9) == {("a", 1): 1, ("b", 1): 1}


def test_p16_what_lies_outside_of_an_append_is_none_of_it(shard: Shard) -> None:
    writer = shard.writer()
    with writer.batch(0, 10) as builder:
        builder.add([update("a", 1, 3), update("b", 1, 8)])
        batch = builder.finish()
    writer.compare_and_append_batches([batch], 0, 5)
    writer.compare_and_append([], 5, 10)
    assert held(shard, 9) == {("a", 1): 1}
    assert shard.listen(0, timeout_s=0).next().to_list() == [(("a", 1), 3, 1)]
    shard.compact(full=True)
    assert held(shard, 9) == {("a", 1): 1}


def test_p17_a_stale_process_is_not_told_that_its_upper_is_wrong(stage: Stage) -> None:
    one, other = stage.process(), stage.process()
    other.machine.refreshed()
    one.shard.writer().compare_and_append([update("a", 1, 0)], 0, 1)
    other.shard.writer().compare_and_append([update("b", 1, 1)], 1, 2)  # it knew upper 0
    with pytest.raises(UpperMismatch) as refused:
        one.shard.writer().compare_and_append([update("c", 1, 1)], 1, 3)
    assert (refused.value.current, refused.value.expected) == (Antichain(2), Antichain(1))
    assert held(one.shard, 1) == {("a", 1): 1, ("b", 1): 1}


def test_p18_several_batches_are_there_at_one_instant(stage: Stage) -> None:
    process = stage.process()
    writer = process.shard.writer()
    batches = []
    for number in range(3):
        with writer.batch(0, 5) as builder:
            builder.add([update("k", number, number)])
            batches.append(builder.finish())
    before = process.seqno
    writer.compare_and_append_batches(batches, 0, 5)
    assert process.seqno == before + 1
    assert held(process.shard, 4) == {("k", number): 1 for number in range(3)}


def test_p19_a_lost_append_deletes_what_nobody_needs(stage: Stage) -> None:
    stage.inline_max_bytes = 0
    process = stage.process()
    updates = [update("a", 1, 0), update("b", 1, 1)]
    assert process.shard.writer().append(updates, 0, 2)
    blobs = stage.blob_keys
    assert not process.shard.writer().append(updates, 0, 2)
    assert stage.blob_keys == blobs


def test_p21_a_batch_over_the_inline_budget_is_written_as_blobs_and_appended() -> None:
    stage = Stage(inline_total_bytes=3_000)
    process = stage.process()
    writer = process.shard.writer()
    for time in range(8):
        writer.compare_and_append([update(f"k{time}", time, time)], time, time + 1)
    state = process.machine.refreshed()
    parts = [part for batch in state.batches for part in batch.parts]
    assert 0 < sum(len(part.inline) for part in parts) < 3_000
    assert any(part.key for part in parts)
    assert not any(part.key and part.inline for part in parts)
    assert held(process.shard, 7) == {(f"k{time}", time): 1 for time in range(8)}


# --- threads, time, types ---------------------------------------------------------------------------------------------


def test_appends_of_many_threads_are_decided_together_and_each_is_there(stage: Stage) -> None:
    shard = stage.process().shard
    done: list[int] = []

    def append(number: int) -> None:
        writer = shard.writer(f"thread-{number}")
        for epoch in range(10):
            time = writer.append_epoch([update(f"{number}", epoch, 0)], epoch)
            assert time is not None
            done.append(time)

    threads = [threading.Thread(target=append, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == list(range(80))
    assert held(shard, 79) == {(f"{number}", epoch): 1 for number in range(8) for epoch in range(10)}


def test_a_call_gives_up_when_its_time_is_over(stage: Stage) -> None:
    process = stage.process()
    process.fail("append", *[Outcome.NOT_DONE] * 10_000)
    with pytest.raises(StoreUnavailable) as failed:
        process.shard.writer().compare_and_append([], 0, 1, timeout_s=2)
    assert failed.value.happened == "no"
    process.fail("append")
    process.shard.writer().compare_and_append([], 0, 1)


@pytest.mark.parametrize(
    "updates",
    [
        pa.table({"key": ["a"], "value": [1], "other": [1]}),
        pa.table({"value": pa.array(["x"])}),
        pa.table({"key": ["a"], "value": ["x"]}),
        pa.table({"key": ["a"], "value": [1], "_time": pa.array([None], pa.int64())}),
        [("a", 1), 0, 1],
        [(("a", 1), 0)],
        [((1, 1), 0, 1)],
        [(("a", "x"), 0, 1)],
        [(("a", 1), None, 1)],
        [(("a", 1), 2**70, 1)],
    ],
)
def test_updates_that_do_not_fit_are_refused(shard: Shard, updates: object) -> None:
    with pytest.raises(UsageError) as refused:
        shard.writer().compare_and_append(updates, 0, 5)
    assert "Nothing was changed" in str(refused.value)
    assert shard.upper == Antichain(0)


def test_updates_may_be_tables_batches_and_tuples(shard: Shard) -> None:
    writer = shard.writer()
    table = pa.table({"key": ["a", "b"], "value": [1, 2]})
    writer.compare_and_append(table, 0, 1)
    writer.compare_and_append(table.to_batches()[0], 1, 2)
    writer.compare_and_append(table.to_batches(), 2, 3)
    timed = table.append_column("_time", pa.array([3, 4])).append_column("_diff", pa.array([1, -3]))
    writer.compare_and_append(timed, 3, 5)
    writer.compare_and_append((one for one in [update("c", 3, 5)]), 5, 6)
    writer.compare_and_append(pa.table({"key": ["d"]}), 6, 7)  # `value` may be null
    assert held(shard, 6) == {("a", 1): 4, ("c", 3): 1, ("d", None): 1}


def test_json_holds_what_no_schema_says(stage: Stage) -> None:
    stage.schema = pa.schema([pa.field("key", pa.string(), False), pa.field("value", pa.string(), False)])
    shard = stage.process(codec="json").shard
    row = ({"id": [1, "x"], "b": None}, {"é": 1.5})
    shard.writer().compare_and_append([(row, 0, 1), (("k", 2), 0, 1)], 0, 1)
    shard.writer().compare_and_append([(row, 1, -1)], 1, 2)
    assert shard.snapshot(0, timeout_s=0).to_list() in (
        [(row, 0, 1), (("k", 2), 0, 1)],
        [(("k", 2), 0, 1), (row, 0, 1)],
    )
    assert shard.snapshot(1, timeout_s=0).to_list() == [(("k", 2), 1, 1)]
    with pytest.raises(SchemaMismatch):
        shard.writer().compare_and_append([((float("nan"), 1), 2, 1)], 2, 3)


def test_a_writer_that_is_closed_is_forgotten(stage: Stage) -> None:
    process = stage.process()
    with process.shard.writer() as writer:
        writer.compare_and_append([], 0, 1)
        assert process.machine.refreshed().writers
    assert not process.machine.refreshed().writers


def test_an_error_of_a_leader_reaches_those_that_it_leads(stage: Stage) -> None:
    process = stage.process()
    process.fail("append", *[Outcome.NOT_DONE] * 10_000)
    errors: list[str] = []

    def append(number: int) -> None:
        with pytest.raises((StoreUnavailable, Contention)) as failed:
            process.shard.writer(f"{number}").append_epoch([update("a", number, 0)], 0, timeout_s=2)
        errors.append(failed.value.safe)

    threads = [threading.Thread(target=append, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == ["Nothing was changed."] * 6
    process.fail("append")
    assert process.shard.upper == Antichain(0)


@pytest.mark.parametrize("token", [7, b"t", 1.5])
def test_a_value_of_the_wrong_type_never_reaches_the_log(stage: Stage, token: object) -> None:
    """Nobody could read the shard any more."""
    process = stage.process()
    writer = process.shard.writer("w")
    before = process.seqno
    reader = process.shard.durable_reader("d")
    calls: list[Callable[[], object]] = [
        lambda: writer.compare_and_append([], 0, 1, token=token),  # type: ignore[arg-type]
        lambda: writer.append_next([], token=token),  # type: ignore[arg-type]
        lambda: process.shard.reader(lease_s=token),  # type: ignore[arg-type]
        lambda: reader.claim(token),  # type: ignore[arg-type]
        lambda: process.shard.durable_reader(token),  # type: ignore[arg-type]
        lambda: process.shard.writer(token),  # type: ignore[arg-type]
    ]
    for call in calls if not isinstance(token, int) else [*calls[:2], *calls[3:]]:
        with pytest.raises(UsageError):
            call()
    assert stage.process().seqno == before + 1
    append = Append(WriterId("x"), 10, token, 0, 1)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="cannot hold"):  # and if one got through
        process.machine.apply(lambda state, now_us: compare_and_append(state, append, now_us))
    assert stage.process().seqno == before + 1


@pytest.mark.parametrize("is_next", [False, True])
def test_p10_an_outage_that_begins_within_an_append_is_not_called_nothing(stage: Stage, is_next: bool) -> None:
    """The first attempt is done, its reply is lost, and the store is gone: nobody may say that nothing happened."""
    process = stage.process()
    met: list[str] = []

    def plan(call: str, _key: str) -> Outcome:
        met.append(call)
        return Outcome.DONE_BUT_LOST if met.count("append") == 1 and call == "append" else Outcome.NOT_DONE

    writer = process.shard.writer()
    process._plan(plan)
    with pytest.raises(StoreUnavailable) as failed:
        if is_next:
            writer.append_next([(("a", 1), 0, 1)], timeout_s=2)
        else:
            writer.compare_and_append([update("a", 1, 0)], 0, 1, timeout_s=2)
    assert failed.value.happened == "unknown"
    assert held(stage.process().shard, 0) == {("a", 1): 1}


def test_a_batch_with_times_of_its_own_is_not_appended_at_another(shard: Shard) -> None:
    writer = shard.writer("w")
    with writer.batch(0, 10) as builder:
        builder.add([update("a", 1, 0), update("b", 1, 7)])
        batch = builder.finish()
    with pytest.raises(InvalidBounds, match="times of their own"):
        writer.append_next([batch])
    with pytest.raises(InvalidBounds, match="times of their own"):
        writer.append_epoch([batch], 0)
    assert shard.upper == Antichain(0)


def test_a_thread_that_is_interrupted_while_it_waits_holds_nobody_up(stage: Stage) -> None:
    process = stage.process()
    machine = process.machine
    entered, go_on = threading.Event(), threading.Event()

    def slow(state: State, _now_us: int) -> Step[int]:
        entered.set()
        go_on.wait(20)
        return Step(state.seqno)

    class Interrupted(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            raise KeyboardInterrupt

    leader = threading.Thread(target=lambda: machine.apply(slow))
    leader.start()
    entered.wait(20)
    make = stage.clock.event
    stage.clock.event = Interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        process.shard.writer().compare_and_append([update("a", 1, 0)], 0, 1)
    stage.clock.event = make  # type: ignore[method-assign]
    go_on.set()
    leader.join()
    process.shard.writer().compare_and_append([update("b", 1, 0)], 0, 1, timeout_s=5)
    assert held(process.shard, 0) == {("b", 1): 1}


def test_a_child_that_was_forked_while_somebody_led_leads_itself(tmp_path: Path) -> None:
    stage = Stage(kv=SqliteStore(tmp_path / "db", synced=False))
    process = stage.process()
    entered, go_on = threading.Event(), threading.Event()

    def slow(state: State, _now_us: int) -> Step[int]:
        entered.set()
        go_on.wait(20)
        return Step(state.seqno)

    leader = threading.Thread(target=lambda: process.machine.apply(slow))
    leader.start()
    entered.wait(20)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            process.shard.writer().compare_and_append([update("a", 1, 0)], 0, 1, timeout_s=5)
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    go_on.set()
    leader.join()
    assert status == 0
