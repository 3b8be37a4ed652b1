"""Laws of reading: snapshots and listens."""

from __future__ import annotations

import pickle
import threading
from collections import Counter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.errors import (
    BeforeSince,
    ReaderExpired,
    ShardTimeout,
    UsageError,
)
from strandline.shards.rows.codec import DIFF
from strandline.shards.rows.contents import as_tuples, contents_by_key
from strandline.shards.shard import Shard
from strandline.shards.state.frontier import Antichain
from strandline.shards.upkeep.collection import collect, write_rollup
from strandline.shards.upkeep.compaction import compact_all, compact_once
from tests.shards.stage import History, Process, Stage, Update, held, summed, update

ROWS = st.tuples(st.sampled_from("abc"), st.integers(0, 2))
CHANGES = st.lists(st.tuples(ROWS, st.integers(1, 3), st.sampled_from([-2, -1, 1, 1, 2])), max_size=6)


# --- P-35 to P-42 -----------------------------------------------------------------------------------------------------


@settings(max_examples=150)
@given(data=st.data(), batches=st.lists(CHANGES, min_size=1, max_size=8), inline=st.booleans())
def test_p37_reads_are_sums_whatever_upkeep_does(data: st.DataObject, batches: Any, inline: bool) -> None:
    stage = Stage() if inline else Stage(inline_max_bytes=0)
    history = History(stage)
    reader = history.process.shard.reader()
    since = 0
    told: list[Update] = []
    listen = history.process.shard.listen(0, timeout_s=0)
    steps = st.sampled_from(["append", "merge", "merge all", "rollup", "collect", "since", "next", "other process"])
    left = list(batches)
    while left:
        step = data.draw(steps)
        machine = history.process.machine
        if step == "append":
            history.append(left.pop())
        elif step == "merge":
            compact_once(machine, lambda state: state.batches[1:4] if len(state.batches) > 2 else ())
        elif step == "merge all":
            list(compact_all(machine))
        elif step == "rollup":
            write_rollup(machine)
        elif step == "collect":
            reader.heartbeat()
            collect(machine)
        elif step == "since":
            since = data.draw(st.integers(since, max(since, listen.as_of)))
            reader.downgrade_since(since)
        elif step == "next" and listen.frontier.bound < history.upper:
            told += listen.next(0).to_list()
        elif step == "other process":
            history.process = stage.process()
    shard = history.process.shard
    for as_of in range(since, history.upper):
        assert held(shard, as_of) == summed(history.updates, as_of)
    if since:
        with pytest.raises(BeforeSince) as refused:
            shard.snapshot(since - 1, timeout_s=0)
        assert refused.value.since == Antichain(since)
    if listen.frontier.bound < history.upper:
        told += listen.next(0).to_list()
    expected: Counter[tuple[Any, int]] = Counter()
    for row, time, diff in history.updates:
        if time > 0:
            expected[row, time] += diff
    assert Counter({(row, time): diff for row, time, diff in _totals(told)}) == Counter(
        {change: diff for change, diff in expected.items() if diff}
    )


def test_p38_contents_are_those_of_before_and_what_came_between(stage: Stage) -> None:
    history = filled(stage)
    shard = history.process.shard
    list(compact_all(history.process.machine))
    for since in range(history.upper):
        told = told_by(shard, since, history.upper)
        written = [one for one in history.updates if one[1] > since]
        assert sorted(_totals(told)) == sorted(_totals(written))
        before = Counter(held(shard, since))
        for as_of in range(since, history.upper):
            between: Counter[Any] = Counter(before)
            for row, time, diff in told:
                if time <= as_of:
                    between[row] += diff
            assert held(shard, as_of) == {row: diff for row, diff in between.items() if diff}


@pytest.mark.parametrize("since", [0, 4, 9])
def test_p42_upkeep_changes_nothing_that_is_read(stage: Stage, since: int) -> None:
    """Once everything is merged, and what lies before the since is forgotten, all later times read the same."""
    history = filled(stage)
    shard = history.process.shard
    reader = shard.reader()
    reader.downgrade_since(since)
    before = {as_of: held(shard, as_of) for as_of in range(since, history.upper)}
    told = sorted(_totals(told_by(shard, since, history.upper)))
    list(compact_all(history.process.machine))
    assert len(shard.state.batches) == 1
    write_rollup(history.process.machine)
    reader.heartbeat()
    collect(history.process.machine)
    for one in (shard, stage.process().shard):
        assert {as_of: held(one, as_of) for as_of in range(since, history.upper)} == before
        assert sorted(_totals(told_by(one, since, history.upper))) == told


def told_by(shard: Shard, as_of: int, upper: int) -> list[Update]:
    listen = shard.listen(as_of, timeout_s=0)
    told: list[Update] = []
    while listen.frontier.bound < upper:
        told += listen.next(0).to_list()
    return told


def filled(stage: Stage) -> History:
    """Rows that come, go, and come again, over twelve times."""
    history = History(stage)
    for at in range(4):
        history.append([(("a", 1), 1, 1), (("b", at), 2, 2), (("a", 1), 3, -1 if at % 2 else 1), (("c", 0), 3, at)])
    return history


def _totals(updates: list[Update]) -> list[Update]:
    """The sum of diffs by row and time: a listen may tell what cancels in one batch as two updates of another."""
    sums: dict[tuple[Any, int], int] = {}
    for row, time, diff in updates:
        sums[row, time] = sums.get((row, time), 0) + diff
    return [(row, time, diff) for (row, time), diff in sums.items() if diff]


def test_p36_who_reads_ahead_waits_until_the_time_is_complete(stage: Stage) -> None:
    """With real clocks: a reader in another thread gets what is appended meanwhile."""
    from strandline.clock import SystemClock

    stage.clock = SystemClock()  # type: ignore[assignment]
    one, other = stage.process(), stage.process()
    found: list[Any] = []

    def read(process: Process) -> None:
        found.append(process.shard.snapshot(3, timeout_s=20).to_list())

    threads = [threading.Thread(target=read, args=(process,)) for process in (one, other)]
    for thread in threads:
        thread.start()
    writer = one.shard.writer()
    writer.compare_and_append([update("a", 1, 2)], 0, 3)
    writer.compare_and_append([update("b", 1, 3)], 3, 4)
    for thread in threads:
        thread.join()
    assert [sorted(rows) for rows in found] == [[(("a", 1), 3, 1), (("b", 1), 3, 1)]] * 2


def test_p36_a_timeout_names_the_writer_that_was_last_heard_of(stage: Stage) -> None:
    shard = stage.process().shard
    with pytest.raises(ShardTimeout, match="No writer is open"):
        shard.snapshot(0, timeout_s=1)
    shard.writer().compare_and_append([], 0, 1)
    stage.clock.advance_s(90)
    with pytest.raises(ShardTimeout, match=r"last heard of 9\d\.\d s ago"):
        shard.snapshot(5, timeout_s=1)


def test_p41_a_listen_whose_changes_were_compacted_stops(stage: Stage) -> None:
    history = History(stage)
    history.append([(("a", 1), 1, 1)])
    listen = history.process.shard.listen(0, timeout_s=0)
    with history.process.shard.reader() as reader:
        reader.downgrade_since(2)
        list(compact_all(history.process.machine))
    with pytest.raises(ReaderExpired, match="were compacted"):
        listen.next()


def test_p43_a_part_that_was_collected_is_an_error_not_nothing(stage: Stage) -> None:
    stage.inline_max_bytes = 0
    history = History(stage)
    history.append([(("a", 1), 1, 1)])
    history.append([(("b", 1), 1, 1)])
    shard = history.process.shard
    reader = shard.reader()
    snapshot = reader.snapshot(5, num_splits=2, timeout_s=0)
    split = pickle.loads(pickle.dumps(snapshot.splits[0]))
    stage.clock.advance_s(10_000)  # no heartbeat: the lease is over
    list(compact_all(history.process.machine))
    write_rollup(history.process.machine)
    collect(history.process.machine)
    with pytest.raises(ReaderExpired, match="was collected"):
        split.to_arrow(blobs=stage.blobs)
    assert snapshot.to_arrow().num_rows == 2  # whoever has the shard looks again: its since has not moved


def test_p51_what_a_reader_holds_is_there_whatever_upkeep_does(stage: Stage) -> None:
    stage.inline_max_bytes = 0
    history = History(stage)
    for key in "abc":
        history.append([((key, 1), 1, 1)])
    reader = history.process.shard.reader()
    reader.downgrade_since(4)
    snapshot = reader.snapshot(4, num_splits=3, timeout_s=0)
    expected = sum(split.to_arrow(blobs=stage.blobs).num_rows for split in snapshot.splits)
    for key in "xyz":
        history.append([((key, 1), 1, 1)])
        list(compact_all(history.process.machine))
        write_rollup(history.process.machine)
        reader.heartbeat()
        collect(history.process.machine)
        assert sum(split.to_arrow(blobs=stage.blobs).num_rows for split in snapshot.splits) == expected
    blobs = set(stage.blob_keys)
    snapshot.close()
    reader.heartbeat()
    write_rollup(history.process.machine)
    collect(history.process.machine)
    assert len([key for key in stage.blob_keys if key.startswith("compaction")]) < len(
        [key for key in blobs if not key.startswith("rollup")]
    )


def test_p40_a_listen_meets_a_batch_that_is_collected_while_it_reads(stage: Stage) -> None:
    stage.inline_max_bytes = 0
    history = History(stage)
    other = stage.process()
    for key in "abc":
        history.append([((key, 1), 1, 1)])
    listen = other.shard.listen(0, timeout_s=0)
    other.machine.refreshed()
    list(compact_all(history.process.machine))
    write_rollup(history.process.machine)
    collect(history.process.machine)  # what the other process knows of is gone
    assert sorted(listen.next().to_list()) == [(("b", 1), 3, 1), (("c", 1), 6, 1)]


# --- splits, columns, conditions --------------------------------------------------------------------------------------


def test_splits_are_as_many_as_asked_and_balanced(stage: Stage) -> None:
    stage.inline_max_bytes = 0
    shard = stage.process().shard
    writer = shard.writer()
    sizes = [7, 1, 5, 3, 3, 2, 6, 1]
    for time, size in enumerate(sizes):
        writer.compare_and_append([update(f"{time}-{row}", row, time) for row in range(size)], time, time + 1)
    for count in (1, 3, 8, 12):
        snapshot = shard.snapshot(7, num_splits=count, timeout_s=0)
        assert len(snapshot.splits) == count
        rows = [split.row_count for split in snapshot.splits]
        assert sum(rows) == sum(sizes)
        if count == 3:
            assert max(rows) - min(rows) <= 1
        found = [row for split in snapshot.splits for row in split.to_arrow(blobs=stage.blobs)["key"].to_pylist()]
        assert len(found) == sum(sizes)
    for wrong in (0, -1, True, 1.5, 1_000_000):
        with pytest.raises(UsageError):
            shard.snapshot(7, num_splits=wrong)  # type: ignore[arg-type]


def test_columns_and_conditions(stage: Stage) -> None:
    shard = stage.process().shard
    shard.writer().compare_and_append([update("a", 1, 0), update("a", 2, 0), update("b", 2, 0)], 0, 1)
    snapshot = shard.snapshot(0, timeout_s=0)
    keys = snapshot.to_arrow(columns=["key"])
    assert sorted(zip(keys["key"].to_pylist(), keys[DIFF].to_pylist(), strict=True)) == [("a", 2), ("b", 1)]
    assert snapshot.to_arrow(where=pc.field("value") == 2)["key"].to_pylist() == ["a", "b"]
    assert snapshot.to_arrow(columns=["key"], where=pc.field("value") == 1)["key"].to_pylist() == ["a"]


def test_a_snapshot_without_a_time_is_the_newest(stage: Stage) -> None:
    shard = stage.process().shard
    with pytest.raises(ShardTimeout):
        shard.snapshot(timeout_s=0)
    writer = shard.writer()
    writer.compare_and_append([update("a", 1, 3)], 0, 7)
    assert shard.snapshot().as_of == 6
    writer.finish()
    assert shard.snapshot().to_list() == [(("a", 1), 3, 1)]


def test_splits_by_key_hold_each_row_once_nulls_as_well(stage: Stage) -> None:
    stage.schema = pa.schema([("key", pa.int64()), ("value", pa.int64())])
    stage.inline_max_bytes = 0
    shard = stage.process().shard
    writer = shard.writer()
    writer.compare_and_append([((1, 1), 0, 1), ((2, 1), 0, 1), ((None, 1), 0, 1)], 0, 1)
    writer.compare_and_append([((1, 1), 1, 1), ((100, 1), 1, 1), ((None, 1), 1, -1), ((None, 2), 1, 1)], 1, 2)
    for count in (1, 2, 5):
        splits = contents_by_key(shard.state, 1, shard._open.rows, count)
        rows = [row for split in splits for row in as_tuples(split.to_arrow(blobs=stage.blobs), shard._open.codec)]
        assert sorted(rows, key=str) == sorted(
            [((1, 1), 1, 2), ((2, 1), 1, 1), ((100, 1), 1, 1), ((None, 2), 1, 1)], key=str
        )


@pytest.mark.parametrize("values", [[1.5, None, float("nan"), 2.5], [float("nan")], [None], [3.0] * 4])
def test_a_merge_by_key_ranges_loses_nothing(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, values: list[float | None]
) -> None:
    monkeypatch.setattr("strandline.shards.upkeep.compaction.PASS_MAX_ROWS", 5)
    stage.schema = pa.schema([("key", pa.float64()), ("value", pa.int64())])
    shard = stage.process().shard
    writer = shard.writer()
    for time in range(6):
        table = pa.table({"key": pa.array(values, pa.float64()), "value": [time] * len(values)})
        writer.compare_and_append(table, time, time + 1)
    before = shard.snapshot(5, timeout_s=0).to_arrow().num_rows
    assert shard.compact(full=True)[0].rows_after == before == 6 * len(set(map(str, values)))
    assert shard.snapshot(5, timeout_s=0).to_arrow().num_rows == before


def test_parts_in_which_a_condition_cannot_be_true_are_not_opened(stage: Stage) -> None:
    stage.inline_max_bytes = 0
    process = stage.process()
    writer = process.shard.writer()
    for time in range(10):
        low = time * 10
        writer.compare_and_append([update(f"k{low + row:03d}", low + row, time) for row in range(10)], time, time + 1)
    conditions = [
        ((pc.field("value") >= 35) & (pc.field("value") < 52), 3),
        (pc.field("key") == "k042", 1),
        (pc.field("value").isin([1, 99]), 2),
        (pc.field("value") > 1_000, 0),
        (pc.field("value").is_null(), 0),
        (pc.starts_with(pc.field("key"), "k"), 10),
    ]
    snapshot = process.shard.snapshot(9, timeout_s=0)
    whole = snapshot.to_arrow()
    for condition, opened in conditions:
        process.blobs.faults.calls.clear()
        found = snapshot.to_arrow(columns=["value"], where=condition)
        assert sum(call == "get" for call, _ in process.blobs.faults.calls) == opened
        assert sorted(found["value"].to_pylist()) == sorted(whole.filter(condition)["value"].to_pylist())


@settings(max_examples=60)
@given(
    rows=st.lists(st.tuples(st.one_of(st.none(), st.text("ab", max_size=3)), st.one_of(st.none(), st.integers(-3, 3)))),
    number=st.integers(-4, 4),
    text=st.text("abc", max_size=2),
)
def test_conditions_leave_out_nothing_but_what_does_not_meet_them(
    rows: list[tuple[str | None, int | None]], number: int, text: str
) -> None:
    stage = Stage(inline_max_bytes=0)
    shard = stage.process().shard
    writer = shard.writer()
    for time, row in enumerate(rows):
        writer.compare_and_append([(row, time, 1)], time, time + 1)
    if not rows:
        return
    shard.compact()
    whole = shard.snapshot(timeout_s=0).to_arrow()
    key, value = pc.field("key"), pc.field("value")
    conditions = [
        value == number,
        value != number,
        (value > number) | (key < text),
        key.is_null(),
        ~(value <= number),
        (key == text) & value.is_valid(),
        pc.starts_with(key, text),
    ]
    for condition in conditions:
        found = shard.snapshot(timeout_s=0).to_arrow(where=condition)
        assert sorted(map(str, found.to_pylist())) == sorted(map(str, whole.filter(condition).to_pylist()))
