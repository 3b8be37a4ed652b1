"""Consensus on every store, and with faults, against the one suite."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from strandline.blob import open_store as open_blobs
from strandline.blob.store import BlobInfo
from strandline.errors import StoreUnavailable
from strandline.kv import open_store
from strandline.kv.memory import MemoryStore
from strandline.kv.sqlite import SqliteStore
from strandline.shards.log.blob_consensus import BlobConsensus
from strandline.shards.log.consensus import Consensus, Versioned
from strandline.shards.log.kv_consensus import TAIL_MAX_RECORDS, KvConsensus
from strandline.testing.consensus_conformance import APPENDS, THREADS, ConsensusTests, K, fill, records
from strandline.testing.faults import FaultyStore, Outcome
from strandline.testing.faulty_shards import FaultyConsensus
from strandline.testing.simulation.stores import SharedBlobs

Make = Callable[[], Consensus]


class TestMemory(ConsensusTests):
    @pytest.fixture
    def make(self) -> Iterator[Make]:
        kv = MemoryStore()
        yield lambda: KvConsensus(kv, b"shards")


class TestSqlite(ConsensusTests):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Iterator[Make]:
        with SqliteStore(tmp_path / "lake.db", synced=False) as kv:
            yield lambda: KvConsensus(kv, b"shards")


@pytest.mark.server
class TestPostgres(ConsensusTests):
    @pytest.fixture
    def make(self, postgres_url: str) -> Iterator[Make]:
        with open_store(f"{postgres_url}?table=t{uuid.uuid4().hex}") as kv:
            yield lambda: KvConsensus(kv, b"shards")


@pytest.mark.server
class TestRedis(ConsensusTests):
    @pytest.fixture
    def make(self, redis_url: str) -> Iterator[Make]:
        with open_store(f"{redis_url}?prefix={uuid.uuid4().hex}") as kv:
            yield lambda: KvConsensus(kv, b"shards")


class TestLocalFiles(ConsensusTests):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Iterator[Make]:
        yield lambda: BlobConsensus(open_blobs(str(tmp_path), synced=False), "shards")


@pytest.mark.server
class TestS3(ConsensusTests):
    @pytest.fixture
    def make(self, s3_endpoint: str) -> Iterator[Make]:
        url = f"s3://lake/{uuid.uuid4().hex}?endpoint={s3_endpoint}&region=us-east-1"
        yield lambda: BlobConsensus(open_blobs(url), "shards")


class TestFaultyWrapper(ConsensusTests):
    """Without a fault the wrapper is nothing."""

    @pytest.fixture
    def make(self) -> Iterator[Make]:
        kv = MemoryStore()
        yield lambda: FaultyConsensus(KvConsensus(kv, b"shards"))


# --- the trap after a truncation --------------------------------------------------------------------------------------


def test_history_that_lands_late_is_not_seen() -> None:
    """A client that wrote history and slept before its swap brings back records that were truncated."""
    kv = MemoryStore()
    slow = FaultyStore(kv)
    sleeper, awake = KvConsensus(slow, b"shards"), KvConsensus(kv, b"shards")
    fill(sleeper, TAIL_MAX_RECORDS)
    slow.plan = lambda call, partition, key: Outcome.LATE if call == "set_many" else Outcome.DONE
    with pytest.raises(StoreUnavailable) as failed:
        sleeper.compare_and_set(K, TAIL_MAX_RECORDS + 1, b"mine")
    assert failed.value.happened == "no"  # history is nothing before the swap
    fill(awake, 80, TAIL_MAX_RECORDS + 1)
    awake.truncate(K, 70)
    slow.plan = lambda call, partition, key: Outcome.DONE
    slow.get(b"shards", b"x")  # now the late history lands
    assert KvConsensus(kv, b"shards").scan(K, 1) == records(70, 80)
    awake.truncate(K, 71)
    assert kv.scan_page(b"shards", b"shard/log/", b"shard/log/" + b"0" * 18 + b"71").keys == []


@pytest.mark.parametrize("outcome", [Outcome.NOT_DONE, Outcome.DONE_BUT_LOST, Outcome.LATE])
def test_p10_an_append_that_fails_says_whether_it_may_have_happened(outcome: Outcome) -> None:
    kv = FaultyStore(MemoryStore())
    log = KvConsensus(kv, b"shards")
    fill(log, 1)
    kv.plan = lambda call, partition, key: outcome if call == "set_if" else Outcome.DONE
    with pytest.raises(StoreUnavailable) as failed:
        log.compare_and_set(K, 2, b"2")
    assert failed.value.happened == ("no" if outcome is Outcome.NOT_DONE else "unknown")
    kv.plan = lambda call, partition, key: Outcome.DONE
    log.head(K)
    happened = [] if outcome is Outcome.NOT_DONE else [Versioned(2, b"2")]
    assert log.scan(K, 2) == happened


def test_an_object_store_client_that_slept_is_not_told_that_it_won() -> None:
    blobs = SharedBlobs()
    sleeper, awake = BlobConsensus(blobs, "c"), BlobConsensus(blobs, "c")
    fill(sleeper, 3)
    fill(awake, 9, 4)
    put = blobs.put

    def truncated_first(key: str, data: bytes, mode: str = "overwrite") -> None:
        blobs.put = put  # type: ignore[method-assign]
        awake.truncate(K, 8)
        put(key, data, mode)  # type: ignore[arg-type]

    blobs.put = truncated_first  # type: ignore[method-assign, assignment]
    with pytest.raises(StoreUnavailable) as failed:
        sleeper.compare_and_set(K, 4, b"mine")
    assert failed.value.happened == "unknown"
    assert awake.scan(K, 1) == records(8, 9)
    assert sleeper.scan(K, 1) == records(8, 9)


def test_an_append_to_an_object_store_that_cannot_look_afterwards_may_have_happened() -> None:
    """Found by the simulator at seed 374: the failed listing said that nothing had happened."""
    blobs = SharedBlobs()
    log = BlobConsensus(blobs, "c")
    fill(log, 1)
    list_pages = blobs.list_pages

    def unavailable(prefix: str = "") -> Iterator[list[BlobInfo]]:
        if len([key for key in blobs.blobs if "/log/" in key]) < 2:
            return list_pages(prefix)
        raise StoreUnavailable("The listing failed.", happened="no")

    blobs.list_pages = unavailable  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable) as failed:
        log.compare_and_set(K, 2, b"2")
    assert failed.value.happened == "unknown"
    blobs.list_pages = list_pages  # type: ignore[method-assign]
    assert log.scan(K, 1) == [Versioned(1, b"1"), Versioned(2, b"2")]


@pytest.mark.parametrize("seed", range(30))
def test_random_histories_beside_a_model(seed: int) -> None:
    """Clients with caches of their own, faults, truncations: the log is what a list would be."""
    chance = random.Random(seed)
    kv = MemoryStore()
    faulty = [FaultyStore(kv) for _ in range(3)]
    clients = [KvConsensus(one, b"shards") for one in faulty]
    outcomes = [Outcome.DONE] * 8 + [Outcome.NOT_DONE, Outcome.DONE_BUT_LOST]
    for one in faulty:
        one.plan = lambda call, partition, key: (
            chance.choice(outcomes) if call in ("set_if", "set_many") else Outcome.DONE
        )
    model: list[bytes] = []
    begin = 1
    for step in range(300):
        client = chance.choice(clients)
        if chance.random() < 0.1 and model:
            to = chance.randrange(1, len(model) + 1)
            try:
                assert client.truncate(K, to) == max(0, to - begin)
            except StoreUnavailable:
                found = clients[0].scan(K, 1)
                assert found[0].seqno in (begin, max(begin, to))
                begin = found[0].seqno
            begin = max(begin, to if clients[0].scan(K, 1, 1)[0].seqno == to else begin)
            continue
        seqno = len(model) + chance.choice([0, 1, 1, 1, 2])
        data = f"{seed}-{step}".encode()
        if seqno < 1:
            continue
        told: bool | str
        try:
            told = client.compare_and_set(K, seqno, data)
        except StoreUnavailable as error:
            told = error.happened
        done = clients[0].scan(K, seqno, 1) == [Versioned(seqno, data)]
        assert told == "unknown" or done == (told is True)
        assert not done or seqno == len(model) + 1
        if done:
            model.append(data)
    assert clients[1].scan(K, 1) == [Versioned(at, data) for at, data in enumerate(model, 1) if at >= begin]


def test_the_suite_asks_for_what_threads_do() -> None:
    assert THREADS * APPENDS > TAIL_MAX_RECORDS  # so that history is written while others append
