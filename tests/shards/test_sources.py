"""Definite sources: bindings, and what concurrent and restarted writers make of them."""

from __future__ import annotations

import random
import threading
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.errors import UsageError
from strandline.shards.shard import Shard
from strandline.shards.sources import Binding, Bindings, bindings_schema, drain, ingest
from strandline.testing.faults import Outcome
from tests.shards.stage import Stage, held, summed, update

LOG = [((f"k{offset % 5}", offset), 0, 1) for offset in range(200)]
"""A source: positions are offsets into it."""


def read_log(source: str, after: int | None, upto: int) -> list[Any]:
    begin = 0 if after is None else after + 1
    return [((f"{source}-{key}", value), 0, diff) for (key, value), _, diff in LOG[begin : upto + 1]]


def bound(stage: Stage) -> Bindings[int]:
    return Bindings(stage.process().shard)


@pytest.fixture
def of_bindings() -> Stage:
    return Stage(schema=bindings_schema(pa.int64()), key=["source"])


def test_a_position_has_one_time_for_everybody(of_bindings: Stage) -> None:
    one, other = bound(of_bindings), bound(of_bindings)
    assert one.get_binding("log", 10) == Binding("log", 10, 0)
    assert other.get_binding("log", 4) == Binding("log", 10, 0)
    assert other.get_binding("log", 11) == Binding("log", 11, 1)
    assert one.get_binding("log", 11) == Binding("log", 11, 1)
    assert one.get_binding("other", 3) == Binding("other", 3, 2)
    assert one.get_binding("log", 10) == Binding("log", 10, 0)
    assert [binding.time for binding in other.minted()] == [0, 1, 2]
    assert [binding.time for binding in other.minted(start=1)] == [1, 2]


def test_times_may_be_those_of_the_clock_but_never_go_back(of_bindings: Stage) -> None:
    bindings: Bindings[int] = Bindings(of_bindings.process().shard, by_clock=True)
    first = bindings.get_binding("log", 1).time
    of_bindings.clock.advance_s(-1_000)
    assert bindings.get_binding("log", 2).time == first + 1
    of_bindings.clock.advance_s(5_000)
    assert bindings.get_binding("log", 3).time > first + 1_000


def test_positions_may_be_names_of_files() -> None:
    bindings: Bindings[str] = Bindings(Stage(schema=bindings_schema(pa.string()), key=["source"]).process().shard)
    assert bindings.get_binding("files", "2024-01-02.csv").time == 0
    assert bindings.get_binding("files", "2024-01-01.csv") == Binding("files", "2024-01-02.csv", 0)
    assert bindings.get_binding("files", "2024-01-03.csv").time == 1


def test_another_shard_is_no_shard_of_bindings(stage: Stage) -> None:
    with pytest.raises(UsageError, match="not a shard of bindings"):
        Bindings(stage.process().shard)


def test_minters_at_once_agree(of_bindings: Stage) -> None:
    answers: list[Binding[int]] = []

    def ask(seed: int) -> None:
        chance = random.Random(seed)
        bindings = bound(of_bindings)
        answers.extend(bindings.get_binding("log", chance.randrange(100), timeout_s=1e6) for _ in range(12))

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    minted = bound(of_bindings).minted()
    assert set(answers) <= set(minted)
    assert [binding.position for binding in minted] == sorted({binding.position for binding in minted})
    assert [binding.time for binding in minted] == list(range(len(minted)))


@settings(max_examples=40)
@given(data=st.data())
def test_restarted_and_concurrent_writers_write_the_same(data: st.DataObject) -> None:
    """Whoever ingests, in whatever order and however often it stops: each row is there once, at its binding's time."""
    of_bindings, stage = Stage(schema=bindings_schema(pa.int64()), key=["source"]), Stage()
    bindings = bound(of_bindings)
    running: list[Any] = []
    at = {"log": -1, "other": -1}
    for _ in range(data.draw(st.integers(1, 30))):
        step = data.draw(st.sampled_from(["mint", "start", "go on", "go on", "stop"]))
        if step == "mint":
            source = data.draw(st.sampled_from(sorted(at)))
            at[source] += data.draw(st.integers(1, 6))
            bindings.get_binding(source, at[source])
        elif step == "start":
            running.append(ingest(stage.process().shard, bound(of_bindings), read_log))
        elif running:
            chosen = running.pop(data.draw(st.integers(0, len(running) - 1)))
            if step == "go on" and next(chosen, None) is not None:
                running.append(chosen)
    shard = stage.process().shard
    list(ingest(shard, bindings, read_log))
    expected = []
    for binding in bindings.minted():
        rows = read_log(binding.source, bindings.before(binding), binding.position)
        expected += [(row, binding.time, diff) for row, _, diff in rows]
    _check(shard, expected, len(bindings.minted()))


def _check(shard: Shard, expected: list[Any], upper: int) -> None:
    assert shard.state.upper == upper
    for as_of in range(upper):
        assert held(shard, as_of) == summed(expected, as_of)


def test_a_write_ahead_shard_is_drained_by_any_number_of_appliers() -> None:
    wal, target = Stage(), Stage()
    source = wal.process().shard
    updates = [update(f"k{time % 7}", time, time, 1 if time % 3 else -1) for time in range(60)]
    with source.writer() as writer:
        for time, one in enumerate(updates):
            writer.compare_and_append([one], time, time + 1)
            if time % 10 == 9:
                for _ in range(2):
                    drain(wal.process().shard, target.process().shard)
    threads = [threading.Thread(target=lambda: drain(wal.process().shard, target.process().shard)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    drain(source, target.process().shard)
    _check(target.process().shard, updates, 60)
    source.finish()
    drain(source, target.process().shard)
    assert target.process().shard.is_finished
    assert drain(source, target.process().shard) == 0


def test_draining_begins_with_what_the_write_ahead_shard_still_tells_apart() -> None:
    wal, target = Stage(), Stage()
    source = wal.process().shard
    with source.writer() as writer, source.reader() as reader:
        for time in range(10):
            writer.compare_and_append([update("k", time, time)], time, time + 1)
        reader.downgrade_since(6)
        source.compact(full=True)
    drain(source, target.process().shard)
    shard = target.process().shard
    assert held(shard, 9) == {("k", time): 1 for time in range(10)}
    assert held(shard, 7) == {("k", time): 1 for time in range(8)}


def test_appliers_that_begin_at_different_times_do_not_double_rows() -> None:
    """The first contents are not definite: what one takes at 0, another takes at 6. One of them decides."""
    wal, target = Stage(), Stage()
    source = wal.process().shard
    with source.writer() as writer, source.reader() as reader:
        for time in range(10):
            writer.compare_and_append([update("k", time, time)], time, time + 1)
        slow = target.process()
        plan_before = slow.consensus.faults.plan

        def plan(call: str, key: str) -> Outcome:
            if call == "append" and source.state.since == 0:
                drain(wal.process().shard, target.process().shard)
                reader.downgrade_since(6)
                source.compact(full=True)
            return plan_before(call, key)

        slow._plan(plan)
        drain(source, slow.shard)
    assert held(target.process().shard, 9) == {("k", time): 1 for time in range(10)}


def test_what_others_minted_is_found_whatever_was_compacted(of_bindings: Stage) -> None:
    """A process knows the bindings that it has read; it hears of others, and of those whose history is gone."""
    mine, theirs = bound(of_bindings), bound(of_bindings)
    assert mine.get_binding("log", 10) == Binding("log", 10, 0)
    assert theirs.get_binding("log", 20) == Binding("log", 20, 1)
    assert theirs.get_binding("other", 5) == Binding("other", 5, 2)
    assert mine.get_binding("log", 15) == Binding("log", 20, 1)
    for at in range(30, 60, 10):
        theirs.get_binding("log", at)
    shard = of_bindings.process().shard
    with shard.reader() as reader:
        reader.downgrade_since(5)
        shard.compact(full=True)
        assert mine.get_binding("log", 45) == Binding("log", 50, 5)
    assert mine.minted() == theirs.minted() == bound(of_bindings).minted()
    assert [mine.before(binding) for binding in mine.minted(3)] == [20, 30, 40]
    assert mine.before(Binding("other", 5, 2)) is None
