"""The conformance suite of `strandline.shards.log.consensus.Consensus`: one test for each sentence of the interface.

class TestMine(ConsensusTests):
    @pytest.fixture
    def make(self, tmp_path):
        yield lambda: MyConsensus(tmp_path)     # each call another client of the same logs
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from strandline.errors import StoreUnavailable, UsageError
from strandline.shards.log.consensus import SEQNO_MAX, Consensus, Versioned

K = "shard"
THREADS = 4
APPENDS = 15
LONG = 100
"""Records of a log that no implementation keeps in one piece."""


class ConsensusTests:
    """Inherit, and give a `make` fixture: a function that returns a new client of the same, at first empty, logs."""

    @pytest.fixture
    def make(self) -> Iterator[Callable[[], Consensus]]:
        pytest.fail("Give the test class a fixture `make` that yields a function making clients.")

    @pytest.fixture
    def log(self, make: Callable[[], Consensus]) -> Consensus:
        return make()

    # --- head, scan

    def test_p05_a_log_that_does_not_exist_is_empty(self, log: Consensus) -> None:
        assert log.head(K) is None
        assert log.scan(K, 1) == []

    def test_p05_a_log_that_does_not_exist_cannot_be_truncated(self, log: Consensus) -> None:
        with pytest.raises(UsageError):
            log.truncate(K, 1)

    def test_the_head_is_the_newest_record(self, log: Consensus) -> None:
        fill(log, 3)
        assert log.head(K) == Versioned(3, b"3")

    def test_p07_a_scan_ascends_from_its_start_and_ends_at_its_limit(self, log: Consensus) -> None:
        fill(log, LONG)
        assert log.scan(K, 1) == records(1, LONG)
        assert log.scan(K, 40) == records(40, LONG)
        assert log.scan(K, 2, 3) == records(2, 4)
        assert log.scan(K, LONG - 1, 50) == records(LONG - 1, LONG)
        assert log.scan(K, LONG + 1) == []

    def test_a_record_is_any_bytes(self, log: Consensus) -> None:
        for seqno, data in enumerate((b"", b"\0", bytes(range(256)), b"x" * 100_000), 1):
            assert log.compare_and_set(K, seqno, data)
            assert log.head(K) == Versioned(seqno, data)
        assert [len(record.data) for record in log.scan(K, 1)] == [0, 1, 256, 100_000]

    # --- compare and set

    def test_p06_only_the_next_number_is_appended(self, log: Consensus) -> None:
        assert not log.compare_and_set(K, 2, b"too high")
        assert log.compare_and_set(K, 1, b"1")
        assert not log.compare_and_set(K, 1, b"again")
        assert not log.compare_and_set(K, 3, b"a gap")
        assert log.compare_and_set(K, 2, b"2")
        assert log.scan(K, 1) == records(1, 2)

    @pytest.mark.parametrize("seqno", [0, -1, SEQNO_MAX + 1, True, "1", None])
    def test_p06_what_is_no_sequence_number_is_refused(self, log: Consensus, seqno: int) -> None:
        with pytest.raises(UsageError):
            log.compare_and_set(K, seqno, b"")
        assert log.head(K) is None

    def test_p06_of_clients_that_append_at_once_one_wins_each_number(self, make: Callable[[], Consensus]) -> None:
        wins: list[int] = []

        def append() -> None:
            client = make()
            for _ in range(APPENDS):
                while True:
                    head = client.head(K)
                    seqno = head.seqno + 1 if head else 1
                    if client.compare_and_set(K, seqno, str(seqno).encode()):
                        wins.append(seqno)
                        break

        threads = [threading.Thread(target=append) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(wins) == list(range(1, THREADS * APPENDS + 1))
        assert make().scan(K, 1) == records(1, THREADS * APPENDS)

    def test_what_one_client_appends_all_see(self, make: Callable[[], Consensus]) -> None:
        one, other = make(), make()
        fill(one, 2)
        assert other.head(K) == Versioned(2, b"2")
        assert other.compare_and_set(K, 3, b"3")
        assert not one.compare_and_set(K, 3, b"mine")
        assert one.scan(K, 1) == records(1, 3)

    # --- truncate

    def test_p08_a_truncation_removes_what_lies_before(self, log: Consensus) -> None:
        fill(log, LONG)
        assert log.truncate(K, 50) == 49
        assert log.scan(K, 1) == records(50, LONG)
        assert log.scan(K, 1, 2) == records(50, 51)
        assert log.head(K) == Versioned(LONG, str(LONG).encode())

    def test_p08_a_truncation_is_idempotent_and_never_goes_back(self, log: Consensus) -> None:
        fill(log, 10)
        assert log.truncate(K, 5) == 4
        assert log.truncate(K, 5) == 0
        assert log.truncate(K, 2) == 0
        assert log.scan(K, 1) == records(5, 10)

    def test_p08_the_newest_record_stays(self, log: Consensus) -> None:
        fill(log, 3)
        assert log.truncate(K, 3) == 2
        assert log.scan(K, 1) == records(3, 3)
        with pytest.raises(UsageError):
            log.truncate(K, 4)
        assert log.scan(K, 1) == records(3, 3)

    def test_a_log_goes_on_after_a_truncation(self, log: Consensus) -> None:
        fill(log, LONG)
        log.truncate(K, LONG)
        fill(log, LONG + 40, LONG + 1)
        assert log.scan(K, 1) == records(LONG, LONG + 40)

    def test_a_number_that_was_truncated_is_not_given_again(self, make: Callable[[], Consensus]) -> None:
        """A client that slept since it saw the head at 3 must not make a record 4 of its own."""
        asleep, awake = make(), make()
        fill(asleep, 3)
        fill(awake, LONG, 4)
        awake.truncate(K, LONG - 1)
        assert not _appended(asleep, 4)
        assert not _appended(make(), 4)
        assert awake.scan(K, 1) == records(LONG - 1, LONG)
        assert make().scan(K, 1) == records(LONG - 1, LONG)
        assert asleep.head(K) == Versioned(LONG, str(LONG).encode())

    def test_a_scan_beside_truncations_has_no_gap(self, make: Callable[[], Consensus]) -> None:
        fill(make(), LONG)
        done = threading.Event()

        def truncate() -> None:
            client = make()
            for seqno in range(2, LONG + 1):
                client.truncate(K, seqno)
            done.set()

        thread = threading.Thread(target=truncate)
        thread.start()
        reader = make()
        while not done.is_set():
            found = reader.scan(K, 1)
            assert found == records(found[0].seqno, LONG)
        thread.join()

    # --- keys

    def test_p09_keys_are_independent(self, log: Consensus) -> None:
        fill(log, 3)
        assert log.head("shard2") is None
        assert log.compare_and_set("shard2", 1, b"other")
        log.truncate(K, 3)
        assert log.scan("shard2", 1) == [Versioned(1, b"other")]


def fill(log: Consensus, to: int, start: int = 1) -> None:
    for seqno in range(start, to + 1):
        assert log.compare_and_set(K, seqno, str(seqno).encode())


def records(first: int, last: int) -> list[Versioned]:
    return [Versioned(seqno, str(seqno).encode()) for seqno in range(first, last + 1)]


def _appended(log: Consensus, seqno: int) -> bool:
    """Whether an append says that it happened; that it cannot tell is fine as long as nobody sees it."""
    try:
        return log.compare_and_set(K, seqno, b"mine")
    except StoreUnavailable as error:
        return error.happened != "unknown"
