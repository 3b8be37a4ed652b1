"""The conformance suite of `strandline.kv.Store`: one test for each sentence of the interface.

class TestMine(StoreTests):
    @pytest.fixture
    def store(self, tmp_path):
        with MyStore(tmp_path) as store:
            yield store
"""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest

from strandline.errors import StoreUnavailable
from strandline.kv.store import (
    ABSENT,
    GUARDED_MAX_BYTES,
    KEY_MAX_BYTES,
    PARTITION_MAX_BYTES,
    Guard,
    Guarded,
    PredicateFailed,
    Store,
)

P = b"partition"
ODD_KEYS = [
    b"\x01",
    b"/",
    b"0",
    b"A",
    b"a",
    b"a/",
    b"a/b",
    b"a0",
    b"b",
    b"\x7f",
    "é".encode(),
    "日本".encode(),
    b"\xff",
]
THREADS = 8
INCREMENTS = 25
GUARD_CHANGES = 20
FORKS = 5


class StoreTests:
    """Inherit, and give a `store` fixture that yields an empty store."""

    @pytest.fixture
    def store(self) -> Iterator[Store]:
        # which store is tested is what each inheriting class says; without an answer its tests must not pass
        pytest.fail("Give the test class a fixture `store` that yields an empty store.")

    # --- get and set

    def test_a_key_that_does_not_exist_is_none(self, store: Store) -> None:
        assert store.get(P, b"k") is None

    def test_a_read_after_a_write_returns_it(self, store: Store) -> None:
        store.set(P, b"k", b"v")
        assert store.get(P, b"k") == b"v"

    def test_a_set_overwrites_whatever_was_there(self, store: Store) -> None:
        store.set(P, b"k", b"1")
        store.set(P, b"k", b"2")
        assert store.get(P, b"k") == b"2"

    def test_values_are_any_bytes(self, store: Store) -> None:
        for value in (b"", b"\x00", bytes(range(256)), b"x" * 200_000):
            store.set(P, b"k", value)
            assert store.get(P, b"k") == value

    def test_keys_and_partitions_may_be_as_long_as_promised(self, store: Store) -> None:
        partition, key = b"p" * PARTITION_MAX_BYTES, b"k" * KEY_MAX_BYTES
        store.set(partition, key, b"v")
        assert store.get(partition, key) == b"v"
        assert store.scan_page(partition).keys == [key]

    def test_a_key_in_one_partition_is_not_in_another(self, store: Store) -> None:
        store.set(P, b"k", b"v")
        assert store.get(b"partition2", b"k") is None
        assert store.get(b"partitio", b"nk") is None

    def test_a_partition_whose_name_begins_another_keeps_to_itself(self, store: Store) -> None:
        store.set(b"a", b"k", b"1")
        store.set(b"a/b", b"k", b"2")
        store.set(b"ab", b"k", b"3")
        assert store.scan_page(b"a").values == [b"1"]
        assert store.scan_page(b"a/b").values == [b"2"]

    # --- set_if

    def test_set_if_absent_makes_a_key(self, store: Store) -> None:
        store.set_if(P, b"k", b"v", ABSENT)
        assert store.get(P, b"k") == b"v"

    def test_set_if_absent_refuses_a_key_that_exists_and_writes_nothing(self, store: Store) -> None:
        store.set(P, b"k", b"1")
        with pytest.raises(PredicateFailed):
            store.set_if(P, b"k", b"2", ABSENT)
        assert store.get(P, b"k") == b"1"

    def test_set_if_replaces_the_value_that_get_returned(self, store: Store) -> None:
        store.set(P, b"k", b"1")
        seen = store.get(P, b"k")
        assert seen is not None
        store.set_if(P, b"k", b"2", seen)
        assert store.get(P, b"k") == b"2"

    def test_set_if_refuses_another_value_and_writes_nothing(self, store: Store) -> None:
        store.set(P, b"k", b"1")
        with pytest.raises(PredicateFailed):
            store.set_if(P, b"k", b"3", b"2")
        assert store.get(P, b"k") == b"1"

    def test_set_if_with_a_value_refuses_a_key_that_does_not_exist(self, store: Store) -> None:
        with pytest.raises(PredicateFailed):
            store.set_if(P, b"k", b"2", b"1")
        assert store.get(P, b"k") is None

    def test_set_if_tells_the_empty_value_from_absence(self, store: Store) -> None:
        with pytest.raises(PredicateFailed):
            store.set_if(P, b"k", b"1", b"")
        store.set(P, b"k", b"")
        with pytest.raises(PredicateFailed):
            store.set_if(P, b"k", b"1", ABSENT)
        store.set_if(P, b"k", b"1", b"")
        assert store.get(P, b"k") == b"1"

    def test_set_if_may_write_the_value_that_is_there(self, store: Store) -> None:
        store.set(P, b"k", b"1")
        store.set_if(P, b"k", b"1", b"1")
        assert store.get(P, b"k") == b"1"

    def test_set_if_compares_long_values_to_their_last_byte(self, store: Store) -> None:
        value = b"x" * 80_000
        store.set(P, b"k", value)
        with pytest.raises(PredicateFailed):
            store.set_if(P, b"k", b"new", value[:-1] + b"y")
        store.set_if(P, b"k", b"new", value)
        assert store.get(P, b"k") == b"new"

    def test_set_if_absent_works_after_a_delete(self, store: Store) -> None:
        store.set(P, b"k", b"1")
        store.delete(P, b"k")
        store.set_if(P, b"k", b"2", ABSENT)
        assert store.get(P, b"k") == b"2"

    def test_of_many_that_swap_a_counter_at_once_no_increment_is_lost(self, store: Store) -> None:
        store.set(P, b"n", b"0")

        def increment() -> None:
            for _ in range(INCREMENTS):
                while True:
                    seen = store.get(P, b"n")
                    assert seen is not None
                    try:
                        store.set_if(P, b"n", str(int(seen) + 1).encode(), seen)
                        break
                    except PredicateFailed:
                        continue

        in_threads(increment)
        assert store.get(P, b"n") == str(THREADS * INCREMENTS).encode()

    def test_of_many_that_make_a_key_at_once_one_wins(self, store: Store) -> None:
        won: list[bytes | None] = []

        def make() -> None:
            mine = uuid4().hex.encode()
            try:
                store.set_if(P, b"k", mine, ABSENT)
                won.append(mine)
            except PredicateFailed:
                pass

        in_threads(make)
        assert won == [store.get(P, b"k")]

    # --- guarded writes

    def test_a_guarded_write_happens_while_its_guard_holds(self, store: Store) -> None:
        store.set(b"refs", b"main", b"1")
        store.set(P, b"a", b"old")
        guard = Guard(b"refs", b"main", b"1")
        assert store.set_many_while(P, [(b"a", b"new")], guard) is Guarded.WRITTEN
        assert store.set_many_while(P, [(b"b", b""), (b"a", b"newer")], guard) is Guarded.WRITTEN
        assert list(store.scan(P)) == [(b"a", b"newer"), (b"b", b"")]
        assert store.get(b"refs", b"main") == b"1"

    def test_a_guarded_write_of_nothing_says_whether_its_guard_holds(self, store: Store) -> None:
        store.set(P, b"guard", b"1")
        assert store.set_many_while(P, [], Guard(P, b"guard", b"1")) is Guarded.WRITTEN
        assert store.set_many_while(P, [], Guard(P, b"guard", b"2")) is Guarded.REFUSED

    def test_a_guarded_write_is_refused_whole_when_its_guard_holds_something_else(self, store: Store) -> None:
        long = b"x" * 80_000
        store.set(b"refs", b"main", long)
        store.set(b"refs", b"empty", b"")
        for key, value in (
            (b"main", b"2"),
            (b"main", long[:-1] + b"y"),
            (b"main", b""),
            (b"gone", b""),
            (b"gone", b"1"),
        ):
            for pairs in ([(b"a", b"1")], [(b"a", b"1"), (b"b", b"1")]):
                assert store.set_many_while(P, pairs, Guard(b"refs", key, value)) is Guarded.REFUSED
        assert store.scan_page(P).keys == []
        assert store.set_many_while(P, [(b"a", b"1")], Guard(b"refs", b"empty", b"")) is Guarded.WRITTEN
        assert store.set_many_while(P, [(b"a", b"2")], Guard(b"refs", b"main", long)) is Guarded.WRITTEN

    def test_a_guarded_write_holds_as_much_as_promised(self, store: Store) -> None:
        store.set(b"refs", b"main", b"1")
        most = store.guarded_max_pairs
        value = b"v" * (GUARDED_MAX_BYTES // most - 6)
        pairs = [(b"%06d" % i, value) for i in range(most)]
        assert store.set_many_while(P, pairs, Guard(b"refs", b"main", b"1")) is Guarded.WRITTEN
        assert list(store.scan(P)) == pairs
        large = b"v" * (GUARDED_MAX_BYTES + 1)
        assert store.set_many_while(P, [(b"large", large)], Guard(b"refs", b"main", b"1")) is Guarded.WRITTEN
        assert store.get(P, b"large") == large

    def test_what_was_guarded_is_seen_by_a_scan_begun_after_the_guard_changed(self, store: Store) -> None:
        """The law that staging leans on: after a swap of the guard nothing more comes under its old value."""
        store.set(b"refs", b"main", b"0")
        stop, errors = threading.Event(), list[BaseException]()
        acked: dict[bytes, list[bytes]] = {}

        def write(number: int, batch: int) -> None:
            try:
                for i in itertools.count():
                    if stop.is_set():
                        return
                    held = store.get(b"refs", b"main")
                    assert held is not None
                    pairs = [(b"%02d/%06d/%d" % (number, i, n), b"v") for n in range(batch)]
                    if store.set_many_while(b"under " + held, pairs, Guard(b"refs", b"main", held)) is Guarded.WRITTEN:
                        acked.setdefault(held, []).extend(key for key, _ in pairs)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=write, args=(number, 1 + number % 3)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        seen: dict[bytes, list[bytes]] = {}
        try:
            for turn in range(GUARD_CHANGES):
                time.sleep(0.02)
                before = b"%d" % turn
                store.set_if(b"refs", b"main", b"%d" % (turn + 1), before)
                seen[before] = [key for key, _ in store.scan(b"under " + before)]
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert errors == []
        assert sum(map(len, acked.values())) > 0
        for held, keys in seen.items():
            assert set(acked.get(held, [])) <= set(keys)
            if self.compares_and_writes_in_one_step:
                assert [key for key, _ in store.scan(b"under " + held)] == keys

    # --- delete

    def test_a_deleted_key_is_gone(self, store: Store) -> None:
        store.set(P, b"k", b"v")
        store.delete(P, b"k")
        assert store.get(P, b"k") is None
        assert store.scan_page(P).keys == []

    def test_deleting_what_is_not_there_is_fine(self, store: Store) -> None:
        store.delete(P, b"k")
        store.delete_many(P, [b"k", b"l"])

    # --- scans

    def test_a_scan_is_in_byte_order(self, store: Store) -> None:
        for key in reversed(ODD_KEYS):
            store.set(P, key, key)
        assert list(store.scan(P)) == [(key, key) for key in sorted(ODD_KEYS)]

    def test_a_scan_of_an_unknown_partition_is_empty(self, store: Store) -> None:
        assert list(store.scan(b"nothing")) == []

    def test_a_page_begins_at_its_start_and_ends_before_its_end(self, store: Store) -> None:
        store.set_many(P, [(b"%02d" % i, b"v") for i in range(10)])
        assert store.scan_page(P, b"03", b"06").keys == [b"03", b"04", b"05"]
        assert store.scan_page(P, b"035").keys[0] == b"04"
        assert store.scan_page(P, b"06", b"03").keys == []

    def test_a_page_holds_its_limit_and_fewer_only_at_the_end(self, store: Store) -> None:
        store.set_many(P, [(b"%02d" % i, b"v") for i in range(10)])
        assert len(store.scan_page(P, limit=4).keys) == 4
        assert len(store.scan_page(P, b"08", limit=4).keys) == 2

    def test_keys_and_values_of_a_page_belong_together(self, store: Store) -> None:
        store.set_many(P, [(b"%03d" % i, b"v%d" % i) for i in range(100)])
        page = store.scan_page(P)
        assert page.values == [b"v%d" % i for i in range(100)]

    def test_pages_go_on_where_the_last_one_ended(self, store: Store) -> None:
        keys = [b"%04d" % i for i in range(25)]
        store.set_many(P, [(key, b"v") for key in keys])
        pages = list(store.scan_pages(P, page_keys=10))
        assert [len(page.keys) for page in pages] == [10, 10, 5]
        assert [key for page in pages for key in page.keys] == keys

    def test_a_scan_that_begins_small_returns_all(self, store: Store) -> None:
        pairs = [(b"%04d" % i, b"v%d" % i) for i in range(30)]
        store.set_many(P, pairs)
        for page_keys in (1, 3, 30, 31):
            assert list(store.scan(P, page_keys=page_keys)) == pairs
        assert list(store.scan(P, b"0005", b"0025", page_keys=2)) == pairs[5:25]

    def test_a_scan_begun_after_a_set_returned_sees_it(self, store: Store) -> None:
        for i in range(20):
            store.set(P, b"%02d" % i, b"v")
            assert len(store.scan_page(P).keys) == i + 1

    def test_a_scan_returns_every_key_that_is_present_throughout(self, store: Store) -> None:
        stays = [b"%05d" % i for i in range(0, 2000, 2)]
        store.set_many(P, [(key, b"v") for key in stays])
        stop = threading.Event()

        def disturb() -> None:
            i = 1
            while not stop.is_set():
                store.set(P, b"%05d" % i, b"v")
                store.delete(P, b"%05d" % i)
                i = (i + 2) % 2000

        thread = threading.Thread(target=disturb)
        thread.start()
        try:
            for _ in range(5):
                found = [key for page in store.scan_pages(P, page_keys=100) for key in page.keys]
                assert len(set(found)) == len(found)
                assert set(stays) <= set(found)
        finally:
            stop.set()
            thread.join()

    # --- bulk paths

    def test_set_many_means_the_same_as_a_loop(self, store: Store) -> None:
        pairs = [(b"%06d" % i, b"v%d" % i) for i in range(6_000)]
        store.set(P, b"000003", b"old")
        store.set_many(P, pairs)
        assert list(store.scan(P)) == pairs

    def test_get_many_keeps_the_order_of_its_keys(self, store: Store) -> None:
        store.set_many(P, [(b"a", b"1"), (b"b", b"2")])
        assert store.get_many(P, [b"b", b"x", b"a", b"b"]) == [b"2", None, b"1", b"2"]

    def test_delete_many_means_the_same_as_a_loop(self, store: Store) -> None:
        store.set_many(P, [(b"%04d" % i, b"v") for i in range(3_000)])
        store.delete_many(P, (b"%04d" % i for i in range(3_000) if i % 3))
        assert len(list(store.scan(P))) == 1_000

    def test_bulk_calls_with_nothing_to_do_are_fine(self, store: Store) -> None:
        store.set_many(P, [])
        store.delete_many(P, [])
        assert store.get_many(P, []) == []

    # --- threads, forks, closing

    def test_it_is_safe_to_share_between_threads(self, store: Store) -> None:
        def work() -> None:
            name = uuid4().bytes.hex().encode()
            for i in range(30):
                store.set(P, name + b"/%02d" % i, b"v")
                assert store.get(P, name + b"/%02d" % i) == b"v"

        in_threads(work)
        assert len(store.scan_page(P).keys) == THREADS * 30

    def test_it_is_usable_after_a_fork(self, store: Store) -> None:
        """Or refused at once, by a store whose data is in the memory of the process."""
        store.set(P, b"before", b"1")

        def use() -> None:
            if self.shares_data_with_a_fork:
                store.set(P, b"from the child", b"2")
                assert store.get(P, b"before") == b"1"
            else:
                with pytest.raises(StoreUnavailable) as refused:
                    store.set(P, b"from the child", b"2")
                assert refused.value.happened == "no"
                with pytest.raises(StoreUnavailable):
                    store.get(P, b"before")

        assert in_a_fork(use) == 0
        store.set(P, b"after", b"3")
        expected = b"2" if self.shares_data_with_a_fork else None
        assert store.get(P, b"from the child") == expected

    def test_a_fork_beside_busy_threads_loses_nothing(self, store: Store) -> None:
        if not self.shares_data_with_a_fork:
            return
        stop, acked, errors = threading.Event(), list[bytes](), list[BaseException]()

        def work() -> None:
            name = uuid4().bytes.hex().encode()
            try:
                for i in itertools.count():
                    if stop.is_set():
                        return
                    key = name + b"/%05d" % i
                    store.set(P, key, b"v")
                    acked.append(key)
                    assert store.get(P, key) == b"v"
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work) for _ in range(THREADS)]
        for thread in threads:
            thread.start()

        def use(number: int) -> None:
            for i in range(5):
                store.set(P, b"child %d/%d" % (number, i), b"v")

        try:
            codes = [in_a_fork(lambda: use(number)) for number in range(FORKS)]  # noqa: B023 - called within its turn
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert codes == [0] * FORKS
        assert errors == []
        acked += [b"child %d/%d" % (number, i) for number in range(FORKS) for i in range(5)]
        assert [key for key, value in zip(acked, store.get_many(P, acked), strict=True) if value is None] == []

    def test_the_end_of_a_child_ends_nothing_of_the_parent(self, store: Store) -> None:
        store.set(P, b"k", b"1")
        for close in (False, True):

            def end(closes: bool = close) -> None:
                if self.shares_data_with_a_fork:
                    store.set(P, b"child", b"1")
                if closes:
                    store.close()

            assert in_a_fork(end) == 0
            store.set(P, b"k", b"2")
            assert store.get(P, b"k") == b"2"

    def test_a_closed_store_refuses(self, store: Store) -> None:
        """Except one in memory, which has nothing to let go of."""
        store.set(P, b"k", b"1")
        store.close()
        if not self.shares_data_with_a_fork:
            return
        for call in (lambda: store.get(P, b"k"), lambda: store.set(P, b"k", b"2"), lambda: store.scan_page(P)):
            with pytest.raises(StoreUnavailable) as refused:
                call()
            assert refused.value.happened == "no"

    def test_closing_twice_is_fine(self, store: Store) -> None:
        store.close()
        store.close()

    compares_and_writes_in_one_step = True
    """False for a store that leaves `set_many_while` to the default of the interface."""

    shares_data_with_a_fork = True
    """False for a store whose data is in the memory of the process."""


def in_a_fork(work: Callable[[], object], seconds: float = 20.0) -> int:
    """Run `work` in the child of a fork; its exit code, 1 if it raised.

    Raises:
        AssertionError: it did not end in time.
    """
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError(f"the child of a fork did not end within {seconds:g} s")


def in_threads(work: Callable[[], object]) -> None:
    """Run `work` in several threads at once, and raise what any of them raised."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
