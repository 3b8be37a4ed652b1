"""Reads that several callers share: each gets one that began after it asked."""

from __future__ import annotations

import itertools
import os
import threading
import time

import pytest

from strandline.branch import shared_read
from strandline.branch.shared_read import SharedRead
from strandline.clock import SystemClock
from strandline.errors import StoreUnavailable


class Source:
    """Counts up; a read takes a while, and shows the count at its beginning."""

    def __init__(self, takes_s: float = 0.0) -> None:
        self.value = 0
        self.reads = 0
        self.takes_s = takes_s
        self.may_end = threading.Event()
        self.may_end.set()
        self.has_begun = threading.Event()

    def read(self) -> int:
        self.reads += 1
        seen = self.value
        self.has_begun.set()
        self.may_end.wait(10)
        time.sleep(self.takes_s)
        return seen


def test_a_lone_caller_reads_for_itself() -> None:
    source = Source()
    shared = SharedRead(source.read, SystemClock())
    assert [shared() for _ in range(3)] == [0, 0, 0]
    assert source.reads == 3


def test_who_comes_during_a_read_does_not_get_its_result() -> None:
    source = Source()
    shared = SharedRead(source.read, SystemClock())
    source.may_end.clear()
    found: dict[str, int] = {}
    first = threading.Thread(target=lambda: found.update(first=shared()))
    first.start()
    source.has_begun.wait(10)
    source.value = 1  # after the first read looked, before the others ask
    later = [threading.Thread(target=lambda n=n: found.update({f"later{n}": shared()})) for n in range(5)]
    for thread in later:
        thread.start()
    while shared._next is None:
        time.sleep(0.001)
    time.sleep(0.05)
    source.may_end.set()
    for thread in (first, *later):
        thread.join()
    assert found.pop("first") == 0
    assert set(found.values()) == {1}
    assert source.reads == 2  # one for the first, one for all the others


def test_many_threads_need_few_reads_and_see_their_own_writes() -> None:
    source = Source(takes_s=0.002)
    shared = SharedRead(source.read, SystemClock())
    lock, failures = threading.Lock(), list[str]()

    def work() -> None:
        for _ in range(20):
            with lock:
                source.value += 1
                mine = source.value
            if shared() < mine:
                failures.append(f"a read after {mine} showed less")

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert source.reads < 16 * 20 / 2


def test_a_failed_read_fails_its_maker_and_the_others_read_for_themselves() -> None:
    numbers = itertools.count()
    gate = threading.Event()

    def read() -> str:
        if next(numbers) == 0:
            gate.wait(10)
            raise StoreUnavailable("down", happened="no")
        return "up"

    shared = SharedRead(read, SystemClock())
    found: list[object] = []

    def ask() -> None:
        try:
            found.append(shared())
        except StoreUnavailable as error:
            found.append(error.what)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
        time.sleep(0.02)
    gate.set()
    for thread in threads:
        thread.join()
    assert sorted(map(str, found)) == ["down", "up", "up", "up"]


def test_nobody_waits_for_ever_for_somebody_elses_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_read, "PATIENCE_S", 0.05)
    source = Source()
    shared = SharedRead(source.read, SystemClock())
    shared._is_reading = True  # as if the thread that was reading had been interrupted
    assert shared() == 0
    assert shared() == 0
    assert not shared._is_reading


def test_a_child_does_not_wait_for_a_thread_of_its_parent() -> None:
    source = Source()
    shared = SharedRead(source.read, SystemClock())
    shared._is_reading = True
    child = os.fork()
    if child == 0:
        os._exit(0 if shared() == 0 and not shared._is_reading else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
