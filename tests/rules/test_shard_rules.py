"""Rules of shards that nothing noticed when a reader took them out; see `test_rules.py`."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from strandline.blob.store import BlobInfo
from strandline.errors import BeforeSince, StoreUnavailable, StrandlineError, UsageError
from strandline.shards.deciding.commands import Downgrade
from strandline.shards.deciding.machine import Machine
from strandline.shards.handles import snapshot as snapshots
from strandline.shards.handles.batching import BatchingWriter
from strandline.shards.log.blob_consensus import BlobConsensus
from strandline.shards.rows.contents import contents as split_contents
from strandline.shards.state.state import State
from strandline.shards.state.transitions import retire
from strandline.shards.upkeep import collection
from strandline.shards.upkeep.collection import collect, sweep, write_rollup
from strandline.shards.upkeep.compaction import compact_all
from strandline.testing.faults import Outcome
from strandline.testing.faulty_shards import always_done
from strandline.testing.simulation.stores import SharedBlobs
from tests.shards.stage import NoUpkeep, Process, Stage, held, update


def append(process: Process, time: int) -> None:
    process.shard.writer().compare_and_append([update(f"k{time}", time, time)], time, time + 1)


# --- logs of objects --------------------------------------------------------------------------------------------------


def test_a_client_that_slept_through_a_truncation_does_not_take_the_gap_for_the_end() -> None:
    blobs = SharedBlobs()
    sleeper, other = BlobConsensus(blobs, "log"), BlobConsensus(blobs, "log")
    assert sleeper.compare_and_set("k", 1, b"1")
    for seqno in range(2, 7):
        assert other.compare_and_set("k", seqno, b"%d" % seqno)
    other.truncate("k", 5)
    assert [record.seqno for record in sleeper.scan("k", 2)] == [5, 6]


def test_a_truncation_is_marked_before_anything_is_deleted() -> None:
    class Dies(SharedBlobs):
        def delete_many(self, keys: Iterable[str]) -> None:
            super().delete_many(keys)
            raise StoreUnavailable("The process died.", happened="unknown")

    blobs = Dies()
    slow, other = BlobConsensus(blobs, "log"), BlobConsensus(blobs, "log")
    assert slow.compare_and_set("k", 1, b"1")
    for seqno in range(2, 6):
        assert other.compare_and_set("k", seqno, b"%d" % seqno)
    with pytest.raises(StoreUnavailable):
        other.truncate("k", 5)
    with pytest.raises(StoreUnavailable) as failed:
        slow.compare_and_set("k", 2, b"a number that was given")
    assert failed.value.happened == "unknown"
    assert [record.seqno for record in other.scan("k", 1)] == [5]


# --- states and blobs -------------------------------------------------------------------------------------------------


def test_a_rollup_that_went_while_it_was_looked_for_is_no_damage() -> None:
    stage = Stage()
    first = stage.process()
    append(first, 0)
    write_rollup(first.machine)
    append(first, 1)
    collect(first.machine)
    newcomer = stage.process(create=False)
    get = newcomer.machine.place.blobs.get
    gone: list[str] = []

    def overtaken(key: str, *arguments: Any) -> bytes:
        if "/rollup/" in key and not gone:
            gone.append(key)
            append(first, 2)
            write_rollup(first.machine)
            append(first, 3)
            collect(first.machine)
            stage.blobs.delete_many([key])
        return get(key, *arguments)

    newcomer.machine.place.blobs.get = overtaken  # type: ignore[method-assign, assignment]
    assert held(newcomer.shard, 3) == held(first.shard, 3)
    assert gone


def test_the_sweeper_reads_what_is_known_after_it_has_listed() -> None:
    stage = Stage(inline_max_bytes=0)
    first, other = stage.process(), stage.process(create=False)
    append(first, 0)
    list_pages, swap = first.blobs.list_pages, other.consensus.compare_and_set

    def swept_meanwhile(key: str, seqno: int, data: bytes) -> bool:
        """Its part is uploaded, its record not yet written: that comes when the sweeper is about to list."""
        done: list[bool] = []

        def appended_first(prefix: str = "") -> Iterator[list[BlobInfo]]:
            done.append(swap(key, seqno, data))
            yield from list_pages(prefix)

        first.blobs.list_pages = appended_first  # type: ignore[method-assign]
        sweep(first.machine, after_s=0)
        return done[0]

    other.consensus.compare_and_set = swept_meanwhile  # type: ignore[method-assign]
    append(other, 1)
    assert held(stage.process(create=False).shard, 1) == {("k0", 0): 1, ("k1", 1): 1}


# --- reading ----------------------------------------------------------------------------------------------------------


def test_a_snapshot_is_held_before_its_parts_are_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage()
    process = stage.process()
    append(process, 0)
    reader = process.shard.reader()
    oldest: list[int | None] = []
    contents = split_contents

    def looked_up(*arguments: Any) -> Any:
        oldest.append(reader._oldest())
        return contents(*arguments)

    monkeypatch.setattr(snapshots, "contents", looked_up)
    with reader.snapshot(0):
        pass
    assert oldest == [process.machine.state.seqno]
    assert reader._oldest() is None


def test_the_parts_of_a_snapshot_are_of_a_state_that_still_knows_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage()
    process, other = stage.process(), stage.process(create=False)
    for time in range(6):
        append(process, time)
    reader = other.shard.reader()
    refreshed = Machine.refreshed
    calls: list[int] = []

    def let_go_before_the_last(self: Machine) -> State:
        if self is process.machine:
            calls.append(1)
            if len(calls) == 2:  # the first is for the wait, the second for the parts
                monkeypatch.setattr(Machine, "refreshed", refreshed)
                reader.downgrade_since(5)
                list(compact_all(other.machine))
        return refreshed(self)

    monkeypatch.setattr(Machine, "refreshed", let_go_before_the_last)
    try:
        found = process.shard.snapshot(2, timeout_s=0).to_list()
        assert sorted(row for row, _, _ in found) == [("k0", 0), ("k1", 1), ("k2", 2)]
    except BeforeSince:
        pass
    assert len(calls) == 2
    assert process.machine.refreshed().since == 5


def test_what_is_handed_out_is_looked_up_after_the_state_of_a_routed_downgrade(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage()
    process, other = stage.process(), stage.process(create=False)
    append(process, 0)
    reader = process.shard.reader()

    class Elsewhere:
        def decide(self, *_arguments: Any) -> None:
            return None

    process.machine.route = Elsewhere()
    refreshed = process.machine.refreshed
    handed_out: list[Any] = []
    asked: list[Downgrade] = []
    ask = process.machine.ask

    def hand_out_first() -> State:
        if not handed_out:
            handed_out.append(None)
            handed_out.append((process.machine.state.seqno, reader.snapshot(0)))
            append(other, 1)
        return refreshed()

    def noted(command: Any, *arguments: Any) -> Any:
        if isinstance(command, Downgrade):
            asked.append(command)
        return ask(command, *arguments)

    monkeypatch.setattr(process.machine, "refreshed", hand_out_first)
    monkeypatch.setattr(process.machine, "ask", noted)
    reader.downgrade_since(0)
    seqno, snapshot = handed_out[1]
    assert asked[0].oldest_lease <= seqno
    snapshot.close()


def test_old_rollups_stay_while_the_log_needs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage()
    process = stage.process()
    for time in range(3):
        append(process, time)
        write_rollup(process.machine)
        collect(process.machine)
    process.machine.apply(lambda state, _: retire(state))
    with monkeypatch.context() as stops:
        stops.setattr(collection, "collect", lambda machine: None)  # somebody else truncates, and has not come to it
        collection.bury_shard(process.machine)
    sweep(stage.process(create=False).machine, after_s=0)
    assert stage.process(create=False).machine.refreshed().is_tombstone


# --- collected batches ------------------------------------------------------------------------------------------------


def batches(process: Process) -> BatchingWriter:
    return BatchingWriter(process.shard._open, NoUpkeep(), 3_600.0)


def test_a_batch_whose_reply_was_lost_is_appended_once() -> None:
    stage = Stage()
    process = stage.process()
    writer = batches(process)
    writer.add([(("k", 1), 0, 1)])
    lost: list[str] = []

    def plan(call: str, key: str) -> Outcome:
        if call == "append" and not lost:
            lost.append(key)
            return Outcome.DONE_BUT_LOST
        return Outcome.NOT_DONE if lost else Outcome.DONE

    process.consensus.faults.plan = plan
    with pytest.raises(StrandlineError):
        writer.flush()
    process.consensus.faults.plan = always_done
    writer.add([(("later", 2), 0, 1)])
    writer.flush()
    found = {row: diff for row, _, diff in stage.process(create=False).shard.snapshot().to_list()}
    assert found == {("k", 1): 1, ("later", 2): 1}
    assert writer.flush() is None


def test_nothing_is_taken_by_a_writer_of_batches_that_is_closing() -> None:
    stage = Stage()
    process = stage.process()
    writer = batches(process)
    writer.add([(("k", 1), 0, 1)])
    outcome: list[str] = []

    class AddsWhenItIsFree:
        """Another thread gets the lock right after the first one has let go of it."""

        def __init__(self) -> None:
            self._lock = threading.Lock()

        def __enter__(self) -> None:
            self._lock.acquire()

        def __exit__(self, *_error: object) -> None:
            self._lock.release()
            if not outcome:
                outcome.append("asked")
                try:
                    writer.add([(("late", 1), 0, 1)])
                    outcome.append("taken")
                except UsageError:
                    outcome.append("refused")

    writer._lock = AddsWhenItIsFree()  # type: ignore[assignment]
    writer.close()
    rows = {row for row, _, _ in stage.process(create=False).shard.snapshot().to_list()}
    assert outcome == ["asked", "refused"]
    assert rows == {("k", 1)}
