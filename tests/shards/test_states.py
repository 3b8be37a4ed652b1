"""Laws of states: rollups, diffs, versions and schemas."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.errors import (
    Corrupted,
    NewerFormat,
    SchemaMismatch,
    ShardNotFound,
)
from strandline.shards.rows.codec import DIFF
from strandline.shards.shard import Shard
from strandline.shards.state.diff import apply, difference
from strandline.shards.state.frontier import TOP
from strandline.shards.state.state import State
from strandline.shards.upkeep.collection import collect, write_rollup
from strandline.shards.upkeep.compaction import compact_all
from tests.shards.stage import History, Process, Stage, held, summed, update

ROWS = st.tuples(st.sampled_from("abc"), st.integers(0, 2))
CHANGES = st.lists(st.tuples(ROWS, st.integers(1, 3), st.sampled_from([-2, -1, 1, 1, 2])), max_size=6)


@settings(max_examples=100)
@given(data=st.data())
def test_p13_a_state_is_what_its_rollup_and_diffs_say(data: st.DataObject) -> None:
    """Random commands: each diff leads from the state before to the one after, and from bytes the same comes back."""
    from strandline.envelope import decode, encode
    from strandline.shards.state.diff import Diff

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
