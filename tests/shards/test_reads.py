"""Laws of reading: snapshots, listens, and what readers hold."""

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
    Corrupted,
    NewerFormat,
    ReaderExpired,
    ReaderFenced,
    SchemaMismatch,
    ShardNotFound,
    ShardTimeout,
    UsageError,
)
from strandline.shards.codec import DIFF
from strandline.shards.collection import collect, write_rollup
from strandline.shards.compaction import compact_all, compact_once
from strandline.shards.contents import as_tuples, contents_by_key
from strandline.shards.diff import apply, difference
from strandline.shards.frontier import TOP, Antichain
from strandline.shards.shard import Shard
from strandline.shards.state import DurableReader, LeasedReader, ReaderId, State
from strandline.shards.transitions import (
    expire_durable_reader,
    expire_reader,
    initial,
    register_durable_reader,
    register_reader,
    sealed,
)
from strandline.testing.faults import Outcome
from tests.shards.stage import Process, Stage, Update, held, summed, update

ROWS = st.tuples(st.sampled_from("abc"), st.integers(0, 2))
CHANGES = st.lists(st.tuples(ROWS, st.integers(1, 3), st.sampled_from([-2, -1, 1, 1, 2])), max_size=6)


class History:
    """Appends of random changes, beside the list of them all."""

    def __init__(self, stage: Stage) -> None:
        self.process = stage.process()
        self.writer = self.process.shard.writer("w")
        self.updates: list[Update] = []
        self.upper = 0

    def append(self, changes: list[tuple[tuple[str, int], int, int]]) -> None:
        """Changes at up to three times, then the upper lies beyond them."""
        batch = [(row, self.upper + step - 1, diff) for row, step, diff in changes]
        self.writer.compare_and_append(batch, self.upper, self.upper + 3)
        self.updates += batch
        self.upper += 3


# --- P-35 to P-42 -----------------------------------------------------------------------------------------------------


@settings(max_examples=150)
@given(data=st.data(), batches=st.lists(CHANGES, min_size=1, max_size=8), inline=st.booleans())
def test_p37_p38_p42_reads_are_sums_whatever_upkeep_does(data: st.DataObject, batches: Any, inline: bool) -> None:
    stage = Stage(inline_max_bytes=4_096 if inline else 0)
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
    with pytest.raises(ShardTimeout, match="No writer is known"):
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


# --- P-28 to P-34: what readers hold ----------------------------------------------------------------------------------


def test_p28_a_reader_begins_where_the_shard_is(stage: Stage) -> None:
    shard = stage.process().shard
    with shard.reader() as first:
        first.downgrade_since(5)
        late = shard.reader()
        assert late.since == Antichain(5)
    assert shard.durable_reader("d").since == Antichain(5)


def test_p30_an_expired_reader_is_told(stage: Stage) -> None:
    process = stage.process()
    reader = process.shard.reader(lease_s=10)
    stage.clock.advance_s(60)
    process.shard.writer().compare_and_append([], 0, 1)  # a state that somebody makes ends the lease
    before = process.seqno
    with pytest.raises(ReaderExpired):
        reader.downgrade_since(3)
    assert not reader.heartbeat()
    assert process.seqno == before


def test_p31_whoever_comes_next_takes_a_durable_reader_over(stage: Stage) -> None:
    one, other = stage.process().shard, stage.process().shard
    first = one.durable_reader("query")
    first.claim("driver 1")
    first.downgrade_since(3)
    second = other.durable_reader("query")
    assert second.since == Antichain(3)
    second.claim("driver 2")
    with pytest.raises(ReaderFenced) as fenced:
        first.downgrade_since(9)
    assert fenced.value.token == "driver 2"
    assert "Nothing was changed" in str(fenced.value)
    assert second.downgrade_since(4) == Antichain(4)
    assert second.remove()
    with pytest.raises(UsageError, match="no durable reader"):
        second.downgrade_since(5)


@pytest.mark.parametrize("outcome", [Outcome.DONE_BUT_LOST, Outcome.LATE, Outcome.NOT_DONE])
def test_p31_a_step_whose_reply_was_lost_is_not_a_fence(stage: Stage, outcome: Outcome) -> None:
    process = stage.process()
    reader = process.shard.durable_reader("query")
    process.fail("append", outcome)
    reader.claim("me")
    process.fail("append", outcome, outcome)
    assert reader.compare_and_downgrade_since("me", "me", 7) == Antichain(7)
    assert reader.token == "me"


def test_p32_p33_the_since_is_the_least_of_all_and_an_end_does_not_move_it() -> None:
    """Two leases that end one after the other do not jump to what only the second held."""
    state = sealed(None, initial(Stage().shard_id, "it", "columns", b""), 1, "")
    for name in ("a", "b"):
        after = register_reader(state, ReaderId(name), 10, 1).state
        assert after is not None
        state = after
    state = _replaced(state, {"a": LeasedReader(3, 1, 1, 10), "b": LeasedReader(50, 1, 1, 10)}, {})
    for name in ("a", "b"):
        ended = expire_reader(state, ReaderId(name)).state
        assert ended is not None
        state = ended
        assert state.since == 0
    kept = sealed(state, _replaced(state, {"c": LeasedReader(9, 1, 1, 1)}, {"d": DurableReader(2, "")}), 10**9, "")
    assert kept.readers == {}
    assert list(kept.durable_readers) == ["d"]
    assert kept.since == 0
    ended = expire_durable_reader(kept, ReaderId("d")).state
    assert ended is not None
    assert ended.since == 0
    assert register_durable_reader(ended, ReaderId("e")).outcome.since == 0


def _replaced(state: State, readers: dict[str, LeasedReader], durable: dict[str, DurableReader]) -> State:
    from msgspec.structs import replace

    return replace(
        state,
        readers={ReaderId(name): reader for name, reader in readers.items()},
        durable_readers={ReaderId(name): reader for name, reader in durable.items()},
    )


def test_p34_handed_out_parts_pin_their_state_until_they_are_given_back(stage: Stage) -> None:
    history = History(stage)
    history.append([(("a", 1), 1, 1)])
    reader = history.process.shard.reader()
    with reader.snapshot(1, timeout_s=0):
        held_from = history.process.machine.state.seqno
        history.append([])
        reader.heartbeat()
        assert history.process.machine.refreshed().seqno_since == held_from
    history.append([])
    reader.heartbeat()
    assert history.process.machine.refreshed().seqno_since > held_from


# --- P-12 to P-14: states ---------------------------------------------------------------------------------------------


@settings(max_examples=100)
@given(data=st.data())
def test_p13_a_state_is_what_its_rollup_and_diffs_say(data: st.DataObject) -> None:
    """Random commands: each diff leads from the state before to the one after, and from bytes the same comes back."""
    from strandline.envelope import decode, encode
    from strandline.shards.diff import Diff

    stage = Stage()
    process = stage.process()
    states: dict[int, State] = {process.machine.state.seqno: process.machine.state}
    process.machine.changed = lambda state: states.__setitem__(state.seqno, state)
    _random_commands(data, stage, process)
    found: State | None = None
    for record in stage.log.scan(stage.shard_id, 1):
        diff: Diff = decode(Diff, record.data, "diff")
        if found is None and diff.initial is None:
            found = states[record.seqno]
            continue
        found = apply(found, diff)
        assert found == states[record.seqno]
        assert decode(State, encode(found), "state") == found
        before = states.get(record.seqno - 1)
        if before is not None:
            assert apply(before, difference(before, found, "x")) == found
    assert stage.process().machine.refreshed() == process.machine.refreshed()


def _random_commands(data: st.DataObject, stage: Stage, process: Process) -> None:
    shard = process.shard
    readers = []
    for number in range(data.draw(st.integers(1, 25))):
        command = data.draw(
            st.sampled_from(["append", "append", "reader", "since", "close", "durable", "rollup", "merge", "collect"])
        )
        if command == "append":
            upper = process.machine.state.upper
            name = data.draw(st.sampled_from(["x", "y"]))
            shard.writer(name).compare_and_append([update("k", number, upper)], upper, upper + 1)
        elif command == "reader":
            readers.append(shard.reader(lease_s=data.draw(st.sampled_from([1, 1_000]))))
        elif command == "since" and readers and readers[-1].heartbeat():
            readers[-1].downgrade_since(number)
        elif command == "close" and readers:
            readers.pop().close()
        elif command == "durable":
            shard.durable_reader("d").claim(f"{number}")
        elif command == "rollup":
            write_rollup(process.machine)
        elif command == "merge":
            list(compact_all(process.machine))
        elif command == "collect":
            collect(process.machine)
        stage.clock.advance_s(data.draw(st.sampled_from([0, 0, 5])))


def test_p12_a_process_that_slept_through_a_truncation_reads_a_rollup(stage: Stage) -> None:
    history = History(stage)
    asleep = stage.process()
    asleep.machine.refreshed()
    for key in "abc":
        history.append([((key, 1), 1, 1)])
        write_rollup(history.process.machine)
        collect(history.process.machine)
    assert stage.log.scan(stage.shard_id, 1)[0].seqno > asleep.machine.state.seqno + 1
    assert held(asleep.shard, 8) == summed(history.updates, 8)
    assert held(stage.process().shard, 8) == summed(history.updates, 8)


def test_p12_there_is_always_a_rollup_at_the_first_record(stage: Stage) -> None:
    history = History(stage)
    for number in range(6):
        history.append([(("k", number), 1, 1)])
        write_rollup(history.process.machine)
        first = stage.log.scan(stage.shard_id, 1)[0].seqno
        assert first == 1 or first in history.process.machine.refreshed().rollups
        if number % 2:
            collect(history.process.machine)


def test_a_rollup_that_is_missing_is_an_error_that_names_it(stage: Stage) -> None:
    history = History(stage)
    history.append([(("a", 1), 1, 1)])
    write_rollup(history.process.machine)
    collect(history.process.machine)
    for key in list(stage.blobs.blobs):
        del stage.blobs.blobs[key]
    with pytest.raises(Corrupted, match="rollup"):
        stage.process(create=False).machine.refreshed()


def test_a_state_from_a_newer_version_is_refused(stage: Stage) -> None:
    from strandline.envelope import encode

    process = stage.process()
    process.shard.writer().compare_and_append([], 0, 1)
    record = stage.log.head(stage.shard_id)
    assert record is not None
    newer = encode(process.machine.decoded(record), version=99)
    assert stage.log.compare_and_set(stage.shard_id, 3, newer)
    with pytest.raises(NewerFormat):
        process.machine.refreshed()
    with pytest.raises(NewerFormat):
        process.shard.writer().compare_and_append([update("a", 1, 1)], 1, 2)
    assert stage.log.head(stage.shard_id) == (3, newer)


def test_a_shard_that_does_not_exist(stage: Stage) -> None:
    with pytest.raises(ShardNotFound):
        stage.process(create=False).machine.refreshed()


# --- schemas ----------------------------------------------------------------------------------------------------------


def test_older_updates_are_read_under_a_newer_schema(stage: Stage) -> None:
    stage.inline_max_bytes = 0
    one, other = stage.process().shard, stage.process().shard
    one.writer().compare_and_append([update("a", 1, 0)], 0, 1)
    wider = pa.schema([("key", pa.string()), ("value", pa.int64()), ("note", pa.string())])
    one.evolve(wider)
    one.evolve(wider)
    one.writer().compare_and_append([(("b", (2, "new")), 1, 1)], 1, 2)
    assert one.snapshot(1, timeout_s=0).to_arrow().schema.names == ["key", "value", "note", "_time", DIFF]
    assert sorted(one.snapshot(1, timeout_s=0).to_list()) == [(("a", (1, None)), 1, 1), (("b", (2, "new")), 1, 1)]
    other._machine.refreshed()
    assert other.schema == wider
    list(compact_all(one._machine))
    assert sorted(other.snapshot(1, timeout_s=0).to_list()) == [(("a", (1, None)), 1, 1), (("b", (2, "new")), 1, 1)]


@pytest.mark.parametrize(
    "schema",
    [
        pa.schema([("key", pa.string())]),
        pa.schema([("key", pa.string()), ("value", pa.string())]),
        pa.schema([("key", pa.string()), ("value", pa.int32())]),
        pa.schema([("key", pa.string()), ("value", pa.int64()), pa.field("must", pa.int64(), nullable=False)]),
        pa.schema([("key", pa.string()), ("value", pa.int64()), ("_time", pa.int64())]),
        pa.schema([("key", pa.string()), ("value", pa.int64()), ("deep", pa.list_(pa.int64()))]),
    ],
)
def test_a_schema_that_older_updates_do_not_fit_is_refused(shard: Shard, schema: pa.Schema) -> None:
    with pytest.raises(SchemaMismatch):
        shard.evolve(schema)
    assert shard.state.schema_id == 1
    assert shard.upper.bound < TOP


def test_p34_a_snapshot_that_is_taken_while_a_heartbeat_is_under_way_is_kept(stage: Stage) -> None:
    stage.inline_max_bytes = 0
    history = History(stage)
    for key in "abc":
        history.append([((key, 1), 1, 1)])
    reader = history.process.shard.reader()
    taken: list[Any] = []

    def plan(call: str, _key: str) -> Outcome:
        if call == "append" and not taken:
            taken.append(reader.snapshot(8, num_splits=3, timeout_s=0))
        return Outcome.DONE

    history.process._plan(plan)
    reader.heartbeat()
    list(compact_all(history.process.machine))
    for _ in range(3):
        write_rollup(history.process.machine)
        reader.heartbeat()
        collect(history.process.machine)
    assert sum(split.to_arrow(blobs=stage.blobs).num_rows for split in taken[0].splits) == 3


def test_splits_by_key_hold_each_row_once_nulls_as_well(stage: Stage) -> None:
    stage.schema = pa.schema([("key", pa.int64()), ("value", pa.int64())])
    stage.inline_max_bytes = 0
    shard = stage.process().shard
    writer = shard.writer()
    writer.compare_and_append([((1, 1), 0, 1), ((2, 1), 0, 1), ((None, 1), 0, 1)], 0, 1)
    writer.compare_and_append([((1, 1), 1, 1), ((100, 1), 1, 1), ((None, 1), 1, -1), ((None, 2), 1, 1)], 1, 2)
    for count in (1, 2, 5):
        splits = contents_by_key(shard.state, 1, shard.rows, count)
        rows = [row for split in splits for row in as_tuples(split.to_arrow(blobs=stage.blobs), shard.codec)]
        assert sorted(rows, key=str) == sorted(
            [((1, 1), 1, 2), ((2, 1), 1, 1), ((100, 1), 1, 1), ((None, 2), 1, 1)], key=str
        )


@pytest.mark.parametrize("values", [[1.5, None, float("nan"), 2.5], [float("nan")], [None], [3.0] * 4])
def test_a_merge_by_key_ranges_loses_nothing(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, values: list[float | None]
) -> None:
    monkeypatch.setattr("strandline.shards.compaction.PASS_MAX_ROWS", 5)
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
