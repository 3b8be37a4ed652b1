"""P-22 to P-27: an append that is repeated, or whose reply was lost, is there once."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest

from strandline.errors import (
    OutcomeUnknown,
    UpperMismatch,
    UsageError,
)
from strandline.shards.shard import Shard
from strandline.shards.state.frontier import TOP, Antichain
from strandline.shards.state.state import NEVER, State, WriterId
from strandline.shards.state.transitions import (
    Append,
    Appended,
    TooMuchInline,
    UpperIs,
    compare_and_append,
    initial,
    retire,
    sealed,
)
from strandline.shards.upkeep.collection import collect, write_rollup
from strandline.testing.faults import Outcome
from tests.shards.stage import Process, Stage, held, update

HOUR_S = 3_600


@pytest.mark.parametrize("outcome", [Outcome.NOT_DONE, Outcome.DONE_BUT_LOST, Outcome.LATE])
@pytest.mark.parametrize("repeats", [1, 3])
def test_p22_p23_an_append_whose_replies_are_lost_is_done_once(outcome: Outcome, repeats: int) -> None:
    stage = Stage()
    process = stage.process()
    writer = process.shard.writer()
    writer.compare_and_append([update("a", 1, 0)], 0, 1)
    process.fail("append", *[outcome] * repeats)
    writer.compare_and_append([update("b", 1, 1)], 1, 2)
    assert process.seqno == 3
    assert held(stage.process().shard, 1) == {("a", 1): 1, ("b", 1): 1}


def test_p22_an_append_that_was_lost_on_its_way_is_sent_again(stage: Stage) -> None:
    process = stage.process()
    faults = process.consensus.faults
    faults.land = faults._late.clear  # type: ignore[method-assign] # what is late never comes
    process.fail("append", Outcome.LATE)
    process.shard.writer().compare_and_append([update("a", 1, 0)], 0, 1)
    assert held(stage.process().shard, 0) == {("a", 1): 1}


def test_p23_a_token_on_record_means_done(stage: Stage) -> None:
    one = stage.process()
    writer = one.shard.writer("sink")
    writer.compare_and_append([update("a", 1, 0)], 0, 1, token="t")
    before = one.seqno
    again = stage.process().shard.writer("sink")  # a restart, years later
    stage.clock.advance_s(1e8)
    again.compare_and_append([update("a", 1, 0)], 0, 1, token="t")
    assert one.seqno == before
    assert held(one.shard, 0) == {("a", 1): 1}


def test_p24_not_done_and_another_writer_came_is_a_mismatch(stage: Stage) -> None:
    one, other = stage.process(), stage.process()
    writer = one.shard.writer()
    writer.compare_and_append([], 0, 1)
    other.shard.writer().compare_and_append([update("x", 1, 1)], 1, 2)
    one.fail("append", Outcome.NOT_DONE)
    with pytest.raises(UpperMismatch) as refused:
        writer.compare_and_append([update("a", 1, 1)], 1, 2)
    assert refused.value.current == Antichain(2)
    assert held(one.shard, 1) == {("x", 1): 1}


def test_p25_done_and_another_writer_came_is_done(stage: Stage) -> None:
    """The reply is lost, others append, and the log is truncated, so that only the token can tell."""
    one, other = stage.process(), stage.process()
    writer = one.shard.writer()
    writer.compare_and_append([], 0, 1)
    _others_then_truncated(one, other, Outcome.DONE_BUT_LOST)
    writer.compare_and_append([update("a", 1, 1)], 1, 2)
    assert held(one.shard, 3) == {("a", 1): 1, ("x", 1): 1, ("y", 1): 1}


def _others_append(other: Process) -> None:
    upper = other.machine.state.upper
    writer = other.shard.writer()
    writer.compare_and_append([update("x", 1, upper)], upper, upper + 1)
    writer.compare_and_append([update("y", 1, upper + 1)], upper + 1, upper + 2)


def _others_then_truncated(
    one: Process, other: Process, outcome: Outcome, act: Callable[[Process], object] = _others_append
) -> None:
    """The next append of a process meets an outcome; before it looks again, another one acts and truncates the log."""
    plan_before = one.consensus.faults.plan
    met: list[str] = []

    def plan(call: str, key: str) -> Outcome:
        if call == "append" and not met:
            met.append(call)
            return outcome
        if met == ["append"]:
            met.append("others")
            other.machine.refreshed()
            act(other)
            write_rollup(other.machine)
            collect(other.machine)
        return plan_before(call, key)

    one.consensus.faults.plan = plan


def test_p26_undecidable_is_said_and_never_guessed(stage: Stage) -> None:
    """A writer's reply is lost; the same writer, elsewhere, appends something else; the log is truncated."""
    one, other = stage.process(), stage.process()
    mine, twin = one.shard.writer(), other.shard.writer()
    twin.id = mine.id
    mine.compare_and_append([], 0, 1)
    _others_then_truncated(
        one, other, Outcome.DONE_BUT_LOST, lambda _: twin.compare_and_append([update("x", 1, 2)], 2, 3)
    )
    with pytest.raises(OutcomeUnknown) as failed:
        mine.compare_and_append([update("a", 1, 1)], 1, 2)
    assert failed.value.happened == "unknown"


def test_p26_a_regressing_writer_without_a_lost_reply_is_a_mismatch(shard: Shard) -> None:
    writer = shard.writer()
    writer.compare_and_append([], 0, 5)
    with pytest.raises(UpperMismatch):
        writer.compare_and_append([update("a", 1, 1)], 0, 3)


def test_p27_a_leased_writer_is_forgotten_and_a_durable_one_is_not(stage: Stage) -> None:
    process = stage.process()
    process.shard.writer().compare_and_append([], 0, 1)
    process.shard.writer("sink").compare_and_append([], 1, 2)
    stage.clock.advance_s(2 * HOUR_S)
    process.shard.writer().compare_and_append([], 2, 3)
    writers = process.machine.refreshed().writers
    assert len(writers) == 2
    assert "w-sink" in writers
    assert writers[WriterId("w-sink")].lease_s == NEVER


def test_the_order_of_the_questions_of_an_append() -> None:
    """Tombstone, token, upper, inline: each combination gives the first that applies."""
    first = sealed(None, initial(Stage().shard_id, "it", "columns", b""), 1, "")
    for over, known, wrong in product((False, True), repeat=3):
        state = first
        append = Append(WriterId("w"), 10, "t", 0, 1)
        if known:
            state = _after(state, append)
        if over:
            retired = retire(state).state
            assert retired is not None
            state = retired
        asked = Append(WriterId("w"), 10, "t" if known else "new", 5 if wrong else state.upper, 9)
        outcome = compare_and_append(state, asked, 2).outcome
        if over:
            assert isinstance(outcome, UpperIs)
            assert outcome.current == TOP
        elif known:
            assert outcome == Appended(by_earlier=True)
        elif wrong:
            assert isinstance(outcome, UpperIs)
        else:
            assert outcome == Appended()
            assert not isinstance(outcome, TooMuchInline)


def _after(state: State, append: Append) -> State:
    after = compare_and_append(state, append, 1).state
    assert after is not None
    return after


@pytest.mark.parametrize("is_next", [False, True])
def test_p26_an_append_is_not_repeated_after_the_same_writer_appended_something_else(
    stage: Stage, is_next: bool
) -> None:
    one, other = stage.process(), stage.process()
    mine, twin = one.shard.writer("w"), other.shard.writer("w")
    mine.append_next([])
    _others_then_truncated(one, other, Outcome.DONE_BUT_LOST, lambda _: twin.append_next([(("x", 1), 0, 1)]))
    with pytest.raises(OutcomeUnknown):
        if is_next:
            mine.append_next([(("a", 1), 0, 1)])
        else:
            mine.compare_and_append([update("a", 1, 1)], 1, 2)
    assert held(other.shard, 2) == {("a", 1): 1, ("x", 1): 1}


def test_a_heartbeat_forgets_no_token(stage: Stage) -> None:
    shard = stage.process().shard
    writer = shard.writer("w")
    assert writer.append_next([(("a", 1), 0, 1)], token="T") == 0
    writer.heartbeat()
    shard.finish()
    writer.heartbeat()
    assert writer.append_next([(("a", 1), 0, 1)], token="T") == 0
    assert held(shard, 0) == {("a", 1): 1}


def test_an_epoch_of_another_query_is_no_repeat(stage: Stage) -> None:
    """Who deletes a checkpoint counts from 0 again, under the same name: said, instead of skipping what is new."""
    shard = stage.process().shard
    writer = shard.writer("sink")
    for epoch in (0, 1):
        assert writer.append_epoch([update("a", epoch, 0)], epoch, query="first") == epoch
    assert writer.append_epoch([update("a", 1, 0)], 1, query="first") is None
    with pytest.raises(UsageError, match="belongs to another query, first"):
        stage.process().shard.writer("sink").append_epoch([update("b", 0, 0)], 0, query="second")
    assert writer.append_epoch([update("a", 1, 0)], 1) is None
    assert shard.upper == Antichain(2)
