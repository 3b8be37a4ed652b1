"""What is promised about sinces, leases and times, law by law, at the transitions and at a listen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from strandline.errors import BeforeSince, UpperMismatch
from strandline.shards.state.frontier import TOP, Antichain
from strandline.shards.state.state import DurableReaderRecord, LeasedReader, ReaderId, State, WriterId
from strandline.shards.state.transitions import (
    Append,
    AppendNext,
    UpperIs,
    append_next,
    compare_and_append,
    downgrade_since,
    finish,
    initial,
    register_reader,
    sealed,
)
from tests.shards.stage import SHARD, Stage, summed, update

ID = ReaderId("r")


def first() -> State:
    return sealed(None, initial(SHARD, "it", "columns", b""), 1, "")


def held(since: int, seqno: int, heartbeat_us: int, state: State | None = None) -> State:
    """A state with one reader."""
    found = register_reader(state or first(), ID, 10, 1).state
    assert found is not None
    found.readers[ID] = LeasedReader(since, seqno, heartbeat_us, 10)
    return found


def test_p20_nothing_is_appended_to_a_finished_shard(stage: Stage) -> None:
    finished = finish(first()).state
    assert finished is not None
    for expected in (0, 1, TOP):
        step = compare_and_append(finished, Append(WriterId("w"), 60, "t", expected, TOP), 5)
        assert (step.outcome, step.state) == (UpperIs(TOP, 0), None)
    next_step = append_next(finished, AppendNext(WriterId("w"), 60, "t", (), "b"), 5)
    assert (next_step.outcome, next_step.state) == (UpperIs(TOP, 0), None)
    shard = stage.process().shard
    with shard.writer() as writer:
        writer.compare_and_append([update("a", 1, 0)], 0, 1)
        writer.finish()
        seqno = shard.state.seqno
        for attempt in (lambda: writer.compare_and_append([], 1, 2), lambda: writer.append_next([update("b", 1, 0)])):
            with pytest.raises(UpperMismatch) as refused:
                attempt()
            assert refused.value.current == Antichain()
        assert shard.state.seqno == seqno


@given(
    st.integers(0, 20),
    st.integers(0, 20),
    st.one_of(st.none(), st.integers(1, 30)),
    st.integers(1, 30),
    st.integers(1, 30),
    st.integers(1, 9),
)
def test_p29_what_a_reader_gives_up_it_never_has_again(
    since: int, wanted: int, oldest: int | None, seqno: int, noted: int, now_us: int
) -> None:
    """Nothing of a reader goes back: neither its since, nor its hold, nor when it was heard of."""
    before = replace(held(since, noted, 5), seqno=max(seqno, noted))
    step = downgrade_since(before, ID, wanted, oldest, now_us)
    assert step.state is not None
    after = step.state.readers[ID]
    assert step.outcome.since == after.since == max(since, wanted)
    assert after.heartbeat_us == max(5, now_us)
    assert after.seqno >= before.readers[ID].seqno
    assert after.seqno <= max(before.readers[ID].seqno, before.seqno if oldest is None else min(oldest, before.seqno))
    assert step.state.since >= before.since


def test_p33_a_lease_ends_in_whatever_state_comes_next_and_only_there() -> None:
    state = held(3, 1, 1_000_000)
    state.durable_readers[ReaderId("d")] = DurableReaderRecord(0, "")
    end_us = 1_000_000 + 10 * 1_000_000
    assert ID in sealed(state, state, end_us, "").readers  # to the last microsecond
    over = sealed(state, state, end_us + 1, "")
    assert over.readers == {}
    assert list(over.durable_readers) == ["d"]
    assert ID in state.readers  # nobody is forgotten by looking at a clock


def test_p35_what_was_forgotten_is_refused_with_the_since(stage: Stage) -> None:
    process = stage.process()
    with process.shard.writer() as writer:
        for time in range(6):
            writer.compare_and_append([update("a", time, time)], time, time + 1)
    with process.shard.reader() as reader:
        reader.downgrade_since(4)
        for ask in (lambda: process.shard.snapshot(3), lambda: reader.snapshot(3), lambda: process.shard.listen(3)):
            with pytest.raises(BeforeSince) as refused:
                ask()
            assert refused.value.since == Antichain(4)
        assert len(reader.snapshot(4).to_list()) == 5
    process.shard.retire()
    with pytest.raises(BeforeSince, match="is over"):
        process.shard.snapshot(9)


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([1, 1, -1])), min_size=1, max_size=25), st.data())
def test_p39_a_listen_tells_each_later_update_once_at_its_time(
    changes: list[tuple[int, int]], data: st.DataObject
) -> None:
    stage = Stage()
    writer, listener = stage.process().shard, stage.process().shard
    as_of = data.draw(st.integers(0, len(changes) + 2))
    updates = [update(f"k{key}", key, time, diff) for time, (key, diff) in enumerate(changes)]
    told = []
    with listener.reader(lease_s=100_000) as reader:
        listen = None
        with writer.writer() as handle:
            for time, one in enumerate(updates):
                if time == min(as_of, len(updates) // 2):
                    listen = reader.listen(as_of, timeout_s=0)  # also of a time that is yet to come
                handle.compare_and_append([one], time, time + 1)
                if data.draw(st.booleans()):
                    writer.compact(full=True)
            assert listen is not None
            handle.compare_and_append([], len(updates), len(updates) + 5)
        assert listen.frontier == Antichain(as_of + 1)
        while listen.frontier != Antichain(len(updates) + 5):
            step = listen.next()
            told += step.to_list()
    assert sorted(told) == sorted(one for one in updates if one[1] > as_of)


def test_p44_a_merge_covers_its_inputs_and_keeps_their_sums(stage: Stage) -> None:
    process = stage.process()
    updates = [update(f"k{time % 3}", time % 2, time, 1 if time % 5 else -1) for time in range(12)]
    with process.shard.writer() as writer, process.shard.reader() as reader:
        for one in updates:
            writer.compare_and_append([one], one[1], one[1] + 1)
        reader.downgrade_since(7)
        before = process.shard.state.batches
        process.shard.compact(full=True)
        (after,) = process.shard.state.batches
        assert (after.lower, after.upper) == (before[0].lower, before[-1].upper)
        assert max(batch.since for batch in before) <= after.since <= 7
        found = process.shard._open.rows.read(_pieces(process.shard.state), process.machine.place.blobs)
        sums: dict[tuple[str, int], int] = {}
        for table in found:
            for row in table.to_pylist():
                sums[row["key"], row["value"]] = sums.get((row["key"], row["value"]), 0) + row["_diff"]
        assert {row: diff for row, diff in sums.items() if diff} == summed(updates, 12)


def _pieces(state: State) -> list:  # type: ignore[type-arg]
    from strandline.shards.rows.contents import pieces_of

    return [piece for batch in state.batches for piece in pieces_of(batch)]
