"""The shard service: what becomes of commands that are decided elsewhere, late, twice or never."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

import strandline
from strandline.envelope import decode, encode
from strandline.errors import (
    InvalidBounds,
    InvalidSettings,
    OutcomeUnknown,
    ReaderExpired,
    ShardNotFound,
    StoreUnavailable,
    UpperMismatch,
)
from strandline.shards.deciding.commands import Routed
from strandline.shards.deciding.service import (
    Decided,
    Refused,
    ShardService,
    as_error,
    refusal,
    service_urls,
)
from strandline.shards.log.consensus import Versioned
from strandline.shards.shard import Shard
from strandline.shards.state.state import ShardId, WriterId
from strandline.shards.state.transitions import Append
from strandline.testing.faults import Outcome
from strandline.testing.faulty_route import FaultyRoute
from tests.shards.stage import Process, Stage, update

SCHEMA = pa.schema([("x", pa.int64())])


def routed(stage: Stage) -> tuple[Process, FaultyRoute]:
    """A process whose commands go to another one."""
    process = stage.process()
    route = FaultyRoute(stage.process().machine)
    process.machine.route = route
    return process, route


def contents(shard: Shard) -> Counter[int]:
    """How often each value is there."""
    return Counter({value: diff for (_, value), _, diff in shard.snapshot().to_list()})


def test_what_is_decided_elsewhere_is_known_here_at_once(stage: Stage) -> None:
    process, _ = routed(stage)
    with process.shard.writer() as writer:
        assert [writer.append_next([update("a", number, 0)]) for number in range(5)] == list(range(5))
        calls = len(process.consensus.faults.calls)
        writer.compare_and_append([update("b", 7, 5)], 5, 6)
        assert process.machine.state.upper == 6  # from the answer
        assert process.consensus.faults.calls[calls:] == []
        with pytest.raises(UpperMismatch, match=r"is \[6\], not \[5\]"):
            writer.compare_and_append([update("b", 8, 5)], 5, 6)


def test_readers_hold_what_they_hand_out_wherever_it_is_decided(stage: Stage) -> None:
    process, route = routed(stage)
    with process.shard.writer() as writer, process.shard.reader() as reader:
        for number in range(4):
            writer.append_next([update("a", number, 0)])
        snapshot = reader.snapshot(1)
        seqno = process.machine.state.seqno
        for number in range(4):
            writer.append_next([update("a", number, 0)])
        reader.downgrade_since(1)
        assert route.machine.refreshed().readers[reader.id].seqno <= seqno
        snapshot.close()
        reader.downgrade_since(2)
        assert route.machine.refreshed().readers[reader.id].seqno > seqno
        assert route.machine.refreshed().since == 2
    durable = process.shard.durable_reader("it")
    assert durable.claim("me").bound == 2
    assert durable.downgrade_since(3).bound == 3


def test_a_service_that_cannot_be_reached_changes_nothing_but_the_place(stage: Stage) -> None:
    process, route = routed(stage)
    route.plan = lambda command: Outcome.NOT_DONE
    with process.shard.writer() as writer:
        assert [writer.append_next([update("a", number, 0)]) for number in range(3)] == [0, 1, 2]
        writer.compare_and_append([update("b", 7, 3)], 3, 4)
    assert contents(process.shard) == Counter({0: 1, 1: 1, 2: 1, 7: 1})


@pytest.mark.parametrize("outcome", [Outcome.LATE, Outcome.DONE_BUT_LOST])
def test_p23_an_append_without_an_answer_is_there_once(stage: Stage, outcome: Outcome) -> None:
    process, route = routed(stage)
    with process.shard.writer() as writer:
        writer.append_next([update("a", 0, 0)])
        route.plan = lambda command: outcome
        assert writer.append_next([update("a", 1, 0)]) == 1
        route.plan = lambda command: Outcome.DONE
        assert writer.append_next([update("a", 2, 0)]) == 2
        while route.late:
            route.land()
        assert contents(process.shard) == Counter({0: 1, 1: 1, 2: 1})
    assert process.machine.refreshed().upper == 3


def test_p24_a_late_append_of_a_writer_that_is_over_does_nothing(stage: Stage) -> None:
    process, route = routed(stage)
    with process.shard.writer() as writer:
        route.plan = lambda command: Outcome.LATE
        writer.append_next([update("a", 1, 0)])
    route.land()
    assert contents(process.shard) == Counter({1: 1})


def test_a_late_append_that_was_too_much_for_the_state_does_nothing() -> None:
    stage = Stage(inline_total_bytes=1)
    process, route = routed(stage)
    elsewhere = Stage(inline_total_bytes=1 << 20, kv=stage.kv, clock=stage.clock)
    elsewhere.blobs = stage.blobs
    route.machine = elsewhere.process().machine
    with process.shard.writer() as writer:
        route.plan = lambda command: Outcome.LATE
        writer.append_next([update("a", 1, 0)])  # here it is written as a blob
        route.land()
        assert contents(process.shard) == Counter({1: 1})


def test_a_forgotten_writer_is_registered_again(stage: Stage) -> None:
    process, _ = routed(stage)
    with process.shard.writer() as writer:
        writer.append_next([update("a", 0, 0)])
        stage.clock.advance_s(10_000)
        stage.process().shard.writer("other").append_next([update("b", 9, 0)])
        assert writer.append_next([update("a", 1, 0)]) == 2
    assert contents(process.shard) == Counter({0: 1, 9: 1, 1: 1})


def test_p23_no_id_of_a_session_comes_back(stage: Stage) -> None:
    """Heartbeats, other appends and other threads of the writer put no id on record under which something is late."""
    process, route = routed(stage)
    with process.shard.writer() as writer:
        writer.heartbeat()
        route.plan = lambda command: Outcome.LATE
        assert writer.append_next([update("a", 1, 0)]) == 0
        route.plan = lambda command: Outcome.DONE
        writer.heartbeat()
        writer.compare_and_append([update("a", 2, 1)], 1, 2)
        assert writer.append_next([update("a", 3, 0)]) == 2
        writer.heartbeat()
        route.land()
        assert contents(process.shard) == Counter({1: 1, 2: 1, 3: 1})


def test_p26_what_may_yet_be_decided_is_not_called_undone(stage: Stage) -> None:
    process, route = routed(stage)
    with process.shard.writer() as writer:
        writer.append_next([update("a", 0, 0)])
        route.plan = lambda command: Outcome.LATE
        process.fail("append", *[Outcome.NOT_DONE] * 10_000)
        with pytest.raises(OutcomeUnknown):
            writer.append_next([update("a", 1, 0)], timeout_s=1)
        with pytest.raises(OutcomeUnknown):
            writer.compare_and_append([update("a", 2, 1)], 1, 2, timeout_s=1)
        process.fail("append")


def test_p14_a_record_that_cannot_be_read_is_no_news(stage: Stage) -> None:
    process, route = routed(stage)
    route.hints = lambda records: [Versioned(record.seqno, b"nonsense") for record in records]
    with process.shard.writer() as writer:
        assert [writer.append_next([update("a", number, 0)]) for number in range(3)] == [0, 1, 2]
    assert contents(process.shard) == Counter({0: 1, 1: 1, 2: 1})


def test_p31_a_claim_is_not_decided_elsewhere(stage: Stage) -> None:
    """It might come late, and take the reader from whoever claimed it since."""
    process, route = routed(stage)
    route.plan = lambda command: Outcome.LATE
    one, other = process.shard.durable_reader("query"), stage.process().shard.durable_reader("query")
    one.claim("me")
    other.claim("other")
    one.claim("me again")
    assert route.late == []
    route.plan = lambda command: Outcome.DONE
    assert one.downgrade_since(3).bound == 3
    assert one.downgrade_since(4).bound == 4


def test_an_upper_does_not_go_back(stage: Stage) -> None:
    process, route = routed(stage)
    with process.shard.writer() as writer:
        writer.compare_and_append([update("a", 1, 0)], 0, 5)
    with pytest.raises(InvalidBounds, match="from 5 to 3"):
        route.machine.ask(Append(WriterId("w"), 60, "token", 5, 3))
    assert process.shard.upper.bound == 5


@pytest.mark.parametrize("seed", range(150))
def test_p23_random_failures_on_the_way_lose_and_double_nothing(seed: int) -> None:
    """What was acknowledged is there once, what failed for sure is not; of the rest nobody knows."""
    rnd = random.Random(seed)
    stage = Stage(inline_total_bytes=rnd.choice([1, 2_000, 1 << 20]))
    outcomes = [Outcome.DONE] * 4 + [Outcome.LATE, Outcome.DONE_BUT_LOST, Outcome.NOT_DONE]

    def plan(_command: Routed) -> Outcome:
        return rnd.choice(outcomes)

    def hints(records: Sequence[Versioned]) -> list[Versioned]:
        """P-14: some are lost, some come twice, and in any order."""
        told = [record for record in records for _ in range(rnd.choice([0, 1, 1, 2]))]
        rnd.shuffle(told)
        return told

    processes = [routed(stage) for _ in range(2)]
    for _, route in processes:
        route.plan, route.hints = plan, hints
        route.machine = processes[0][1].machine  # both ask one service
    writers = [process.shard.writer(name) for process, _ in processes for name in ("", "", "durable")]
    done: list[int] = []
    unknown: list[int] = []
    epoch = 0
    for number in range(60):
        writer = rnd.choice(writers)
        kind = rnd.choice(["next", "next", "compare", "epoch"])
        try:
            if kind == "next":
                writer.append_next([update("k", number, 0)])
            elif kind == "compare":
                upper = writer.upper.bound
                writer.compare_and_append([update("k", number, upper)], upper, upper + 1)
            elif writer.id.startswith("w-"):
                epoch += 1
                writer.append_epoch([update("k", number, 0)], epoch)
            else:
                continue
            done.append(number)
        except OutcomeUnknown:
            unknown.append(number)
        except UpperMismatch:
            pass
        for _, route in processes:
            if route.late and rnd.random() < 0.3:
                route.land(rnd.randrange(len(route.late)))
    for writer in writers:
        writer.close()
    for _, route in processes:
        while route.late:
            route.land(rnd.randrange(len(route.late)))
    found = contents(stage.process().shard)
    assert all(count == 1 for count in found.values()), found
    assert set(done) <= set(found)
    assert set(found) <= set(done) | set(unknown)
    assert len(done) > 30


def test_p14_what_is_heard_is_a_hint(stage: Stage) -> None:
    writer = stage.process()
    listener = stage.process()
    listener.machine.refreshed()
    with writer.shard.writer() as held:
        for number in range(6):
            held.append_next([update("a", number, 0)])
    records = stage.log.scan("shard", 1)
    upper = writer.machine.refreshed().upper
    for heard in ([], records[3:4], [records[-1]], records[::-1], records * 2, records[:2]):
        other = stage.process()
        other.machine.refreshed()
        other.machine.hear(heard)
        assert other.machine.refreshed() == writer.machine.refreshed()
    listener.machine.hear(records[1:3] + records[4:])  # one is missing: what comes after it is not believed
    assert listener.machine.state.seqno <= records[2].seqno or listener.machine.state.upper == upper
    assert listener.machine.refreshed() == writer.machine.refreshed()


def test_errors_come_through_in_the_words_of_who_met_them() -> None:
    for error in (
        OutcomeUnknown("a", safe="b", next="c"),
        StoreUnavailable("a", happened="no", safe="b", next="c"),
        ShardNotFound("a", safe="b", next="c"),
    ):
        found = as_error(decode(Decided | Refused, encode(refusal(error)), "it"))
        assert type(found) is type(error)
        assert str(found) == str(error)
    assert isinstance(as_error(refusal(ReaderExpired("a"))), strandline.StrandlineError)


def test_copies_share_the_shards_and_each_has_its_own() -> None:
    stage = Stage()
    service = ShardService(["http://a:1", "http://b:1", "http://c:1"], stage.clock)
    firsts = Counter(service.order(ShardId(f"shard {number}"))[0] for number in range(300))
    assert set(firsts) == set(service.urls)
    assert min(firsts.values()) > 60
    fewer = ShardService(["http://a:1", "http://c:1"], stage.clock)
    for number in range(300):  # without a copy, only its own shards move
        order = service.order(ShardId(f"shard {number}"))
        assert fewer.order(ShardId(f"shard {number}")) == [url for url in order if url != "http://b:1"]


@pytest.mark.parametrize(
    "text", ["127.0.0.1:8420", "http://", "ftp://a", "http://a:1,b", "http://a:port", "http://:80"]
)
def test_addresses_that_are_none_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidSettings, match="is not the address of a shard service"):
        strandline.open(tmp_path / "lake", create=True, shard_service=text)
    assert service_urls("") == ()
    assert service_urls("http://a:1/, https://b") == ("http://a:1", "https://b")
