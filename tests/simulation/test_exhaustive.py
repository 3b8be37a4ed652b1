"""Every interleaving of two clients, for a part of the programs; `make explore` runs all of them."""

from __future__ import annotations

import time

import pytest

from strandline.branch.record import Branch
from strandline.testing.simulation.exhaustive import (
    OPERATIONS,
    START,
    Access,
    Event,
    Fault,
    depend,
    explore,
    faults_of,
    programs,
    races,
    run,
)

SECONDS = 20.0
MUST = [
    (("merge", "put"), ("list",)),
    (("merge", "delete"), ("status",)),
    (("put",), ("list",)),
    (("commit",), ("put", "list")),
    (("create",), ("merge",)),
    (("rename",), ("put",)),
    (("reset all",), ("sweep",)),
]
"""Programs whose orders seeds by chance never met, or which stand for a rule of their own."""


@pytest.mark.parametrize("program", MUST, ids=str)
@pytest.mark.parametrize("start", START)
def test_no_order_of_these_breaks_a_promise(program: tuple[tuple[str, ...], tuple[str, ...]], start: str) -> None:
    found = explore(program, start)
    assert found.broken == ""
    assert not found.is_cut
    assert found.runs > 1


@pytest.mark.timeout(300)
def test_a_part_of_all_programs_breaks_no_promise() -> None:
    """Each hour another part: the hour decides the order of the programs, and there are as many as time allows."""
    tasks = [(one, start) for one in programs(1, 1) for start in START]
    at = int(time.time() // 3_600) * 37
    until = time.monotonic() + SECONDS
    broken, count = [], 0
    for number in range(len(tasks)):
        program, start = tasks[(at + number * 61) % len(tasks)]
        found = explore(program, start, max_runs=400)
        count += found.runs
        if found.broken:
            broken.append((program, start, found.choices, found.broken))
        if time.monotonic() > until:
            break
    assert broken == []
    assert count > 50


def test_a_part_of_the_faults_breaks_no_promise() -> None:
    program, start = (("put",), ("commit",)), "idle"
    faults = list(faults_of(program, start))
    assert {fault.kind for fault in faults} == {"lost", "late", "dies before", "dies after"}
    at = int(time.time() // 3_600)
    for fault in [faults[(at * 7 + number * 5) % len(faults)] for number in range(4)]:
        found = explore(program, start, fault, max_runs=60)
        assert found.broken == "", found


def test_the_hole_that_seeds_never_met_is_met(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read that demands only its tokens shows a put without the merge before it: found in some dozens of runs."""
    monkeypatch.setattr(
        Branch, "only_sealed_since", lambda self, earlier: set(earlier.tokens) <= set(self.tokens), raising=True
    )
    found = explore((("merge", "put"), ("list",)), "idle")
    assert "a read shows what the branch held at an instant" in found.broken
    again = run(found.program, found.start, found.choices)
    assert again.broken
    assert "▶" in again.trace()


def test_an_order_is_run_the_other_way_round_only_if_it_matters() -> None:
    reads = Access(b"p", (b"k",), is_scan=False, is_write=False)
    writes, other = reads._replace(is_write=True), Access(b"p", (b"other",), is_scan=False, is_write=True)
    many = writes._replace(keys=(b"k", b"other"))
    scan, rest = Access(b"p", (b"", b""), is_scan=True, is_write=False), Access(b"p", (b"l", b""), True, False)
    assert not depend(reads, reads)
    assert depend(reads, writes)
    assert not depend(writes, other)
    assert depend(many, other)
    assert depend(scan, other)
    assert depend(rest, other)
    assert not depend(rest, writes)
    assert not depend(writes, scan._replace(keys=(b"a", b"k")))
    assert not depend(scan, writes._replace(partition=b"q"))
    assert not depend(writes._replace(partition=None), writes)
    both = {0: writes, 1: writes}
    assert list(races([Event(0, writes, both), Event(1, writes, both)])) == [(0, 1)]
    assert list(races([Event(0, writes, both), Event(1, other, both)])) == []
    # what the first one wrote, the second has read: nothing is left to turn round
    chain = [Event(0, writes, both), Event(1, writes, both), Event(1, writes, both)]
    assert list(races(chain)) == [(0, 1)]


def test_all_classes_of_operations_are_there() -> None:
    assert len(list(programs(1, 1))) == len(OPERATIONS) * (len(OPERATIONS) + 1) // 2
    assert len(list(programs(2, 1))) == len(OPERATIONS) ** 3
    assert Fault(0, 1, "lost") != Fault(1, 1, "lost")
