"""Laws of what readers hold."""

from __future__ import annotations

from typing import Any

import pytest

from strandline.errors import (
    ReaderExpired,
    ReaderFenced,
    UsageError,
)
from strandline.shards.state.frontier import Antichain
from strandline.shards.state.state import DurableReaderRecord, LeasedReader, ReaderId, State
from strandline.shards.state.transitions import (
    expire_durable_reader,
    expire_reader,
    initial,
    register_durable_reader,
    register_reader,
    sealed,
)
from strandline.shards.upkeep.collection import collect, write_rollup
from strandline.shards.upkeep.compaction import compact_all
from strandline.testing.faults import Outcome
from tests.shards.stage import History, Stage


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
    kept = sealed(
        state, _replaced(state, {"c": LeasedReader(9, 1, 1, 1)}, {"d": DurableReaderRecord(2, "")}), 10**9, ""
    )
    assert kept.readers == {}
    assert list(kept.durable_readers) == ["d"]
    assert kept.since == 0
    ended = expire_durable_reader(kept, ReaderId("d")).state
    assert ended is not None
    assert ended.since == 0
    assert register_durable_reader(ended, ReaderId("e")).outcome.since == 0


def _replaced(state: State, readers: dict[str, LeasedReader], durable: dict[str, DurableReaderRecord]) -> State:
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
