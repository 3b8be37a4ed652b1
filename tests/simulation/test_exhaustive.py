"""Every interleaving of two clients, for a part of the programs; `make explore` runs all of them."""

from __future__ import annotations

import time

import pytest

from strandline.branch.rules.record import BranchRecord
from strandline.testing.simulation.branch_programs import START, run
from strandline.testing.simulation.exhaustive import KINDS, programs
from strandline.testing.simulation.exploring import Access, Event, Fault, Program, depend, explore, faults_of, races

SECONDS = 12.0
MUST: list[Program] = [
    (("merge", "put"), ("list",)),
    (("merge", "delete"), ("status",)),
    (("put",), ("list",)),
    (("commit",), ("put", "list")),
    (("create",), ("merge",)),
    (("rename",), ("put",)),
    (("reset all",), ("sweep",)),
]
"""Programs of a branch whose orders seeds by chance never met, or which stand for a rule of their own."""


@pytest.mark.parametrize("program", MUST, ids=str)
@pytest.mark.parametrize("start", START)
def test_no_order_of_these_breaks_a_promise(program: Program, start: str) -> None:
    found = explore(run, program, start)
    assert found.broken == ""
    assert not found.is_cut
    assert found.runs > 1


SHARD_MUST: list[Program] = [
    (("append",), ("append",)),
    (("epoch",), ("epoch",)),
    (("append", "read"), ("merge all",)),
    (("rollup", "collect"), ("append",)),
    (("rollup", "collect"), ("hold", "read held")),
    (("append",), ("sweep",)),
    (("claim", "move"), ("claim",)),
]


@pytest.mark.parametrize("program", SHARD_MUST, ids=str)
@pytest.mark.parametrize("start", ["few", "few on objects"])
def test_no_order_of_these_breaks_a_promise_of_a_shard(program: Program, start: str) -> None:
    found = explore(KINDS["shard"].run, program, start, max_runs=200)
    assert found.broken == ""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", KINDS)
def test_a_part_of_all_programs_breaks_no_promise(kind: str) -> None:
    """Each hour another part: the hour decides the order of the programs, and there are as many as time allows."""
    chosen = KINDS[kind]
    tasks = [(one, start) for one in programs(chosen.operations, 1, 1) for start in chosen.starts]
    at = int(time.time() // 3_600) * 37
    until = time.monotonic() + SECONDS
    broken, count = [], 0
    for number in range(len(tasks)):
        program, start = tasks[(at + number * 61) % len(tasks)]
        found = explore(chosen.run, program, start, max_runs=400)
        count += found.runs
        if found.broken:
            broken.append((program, start, found.choices, found.broken))
        if time.monotonic() > until:
            break
    assert broken == []
    assert count > 50


def test_a_part_of_the_faults_breaks_no_promise() -> None:
    program, start = (("put",), ("commit",)), "idle"
    faults = list(faults_of(run, program, start))
    assert {fault.kind for fault in faults} == {"lost", "late", "dies before", "dies after"}
    at = int(time.time() // 3_600)
    for fault in [faults[(at * 7 + number * 5) % len(faults)] for number in range(4)]:
        found = explore(run, program, start, fault, max_runs=60)
        assert found.broken == "", found


def test_the_hole_that_seeds_never_met_is_met(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read that demands only its tokens shows a put without the merge before it: found in some dozens of runs."""
    monkeypatch.setattr(
        BranchRecord, "only_sealed_since", lambda self, earlier: set(earlier.tokens) <= set(self.tokens), raising=True
    )
    found = explore(run, (("merge", "put"), ("list",)), "idle")
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
    guarded = other._replace(partition=b"q", guard=(b"p", b"k"))
    assert depend(guarded, writes)
    assert depend(writes, guarded)
    assert not depend(guarded, reads)
    assert not depend(guarded, other)
    assert not depend(guarded, guarded._replace(keys=(b"another",)))
    both = {0: writes, 1: writes}
    assert list(races([Event(0, writes, both), Event(1, writes, both)])) == [(0, 1)]
    assert list(races([Event(0, writes, both), Event(1, other, both)])) == []
    # what the first one wrote, the second has read: nothing is left to turn round
    chain = [Event(0, writes, both), Event(1, writes, both), Event(1, writes, both)]
    assert list(races(chain)) == [(0, 1)]


def test_all_classes_of_operations_are_there() -> None:
    for kind in KINDS.values():
        assert len(list(programs(kind.operations, 1, 1))) == len(kind.operations) * (len(kind.operations) + 1) // 2
        assert len(list(programs(kind.operations, 2, 1))) == len(kind.operations) ** 3
    assert Fault(0, 1, "lost") != Fault(1, 1, "lost")
