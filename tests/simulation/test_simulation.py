"""Thousands of schedules of the real protocol."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter

import pytest

from strandline.testing.simulation import simulate
from strandline.testing.simulation.batches import run_batches
from strandline.testing.simulation.non_promises import EXAMPLES

RARE = (
    "linearizability over several paths",
    "protection of read-modify-write",  # tests/branch/test_staging.py
    "an unacknowledged write stays where it was seen",
)
"""Examples that take more seeds than these."""
SEEDS = 1_000
"""Mutations get more; `make simulate` takes as many as one likes."""


@pytest.mark.timeout(600)
def test_no_schedule_breaks_a_promise() -> None:
    broken: list[tuple[int, str]] = []
    reached: set[str] = set()
    for _, more, _, found in run_batches(0, SEEDS, jobs=os.cpu_count() or 1):
        broken += found
        reached |= set(more)
    assert broken == []
    wanted = {
        *(f"transition: {name}" for name in ("seal", "commit", "attach", "attach on top", "compaction", "merge")),
        *(f"transition: {name}" for name in ("revert", "cherry-pick", "hard reset", "reset of all", "deleted")),
        *(f"transition: {name}" for name in ("reset of a range", "claim of a compaction", "protection", "created")),
        *(f"verdict: {name}" for name in ("swap", "reparent", "look for mine", "recompute")),
        *(f"layers moved: {name}" for name in ("attach.attach", "compaction.fold", "heads.move_head", "reset.fold")),
        *(f"fault: {name}" for name in ("dies", "done, reply lost", "reply lost, effect comes later", "swap lost")),
        *(f"refusal: {name}" for name in ("BranchGone", "NothingToCommit", "UncommittedChanges", "OutcomeUnknown")),
    }
    # what docs/guarantees.md does not promise does happen
    wanted |= {f"not promised: {name}" for name in EXAMPLES if name not in RARE}
    assert wanted - reached == set()


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("family", "first", "seeds"),
    [
        ("jobs", 0, 400),
        ("garbage", 0, 250),
        ("ranges", 0, 120),
        ("levels", 0, 120),
        ("locks", 0, 600),
        ("queues", 0, 200),
        ("shards", 0, 150),
        ("encounters", 0, 200),
        ("one-shots", 0, 200),
        ("tables", 0, 150),
        ("links", 200, 200),  # one in some hundreds links what was just collected
    ],
)
def test_no_schedule_of_jobs_or_of_the_collector_breaks_a_promise(family: str, first: int, seeds: int) -> None:
    broken: list[tuple[int, str]] = []
    reached: Counter[str] = Counter()
    for _, more, _, found in run_batches(first, seeds, jobs=os.cpu_count() or 1, family=family):
        broken += found
        reached.update(more)
    assert broken == []
    wanted = {
        "jobs": (
            "transition: begin",
            "transition: publish",
            "transition: abort",
            "refusal: Fenced",
            "refusal: Conflict",
        ),
        "locks": (
            "transition: lock pending",
            "transition: lock held",
            "transition: lock ended",
            "transition: publish",
            "refusal: RangeLocked",
            "refusal: LockRejected",
            "refusal: LockTimeout",
            "refusal: LockLost",
        ),
        "queues": ("transition: waiting for a lock", "transition: lock held"),
        "shards": (
            "consensus: objects",
            *(
                f"operation: {kind}"
                for kind in ("append", "epoch", "read held", "next", "merge all", "collect", "move")
            ),
            *(f"refusal: {name}" for name in ("UpperMismatch", "ReaderFenced", "ShardTimeout", "the client died")),
            *(f"fault: {name}" for name in ("dies", "done, reply lost", "reply lost, effect comes later", "swap lost")),
        ),
        "ranges": ("operation: collect", "transition: commit"),
        "levels": ("operation: collect garbage", "transition: merge", "transition: compaction", "written: nodes"),
        "encounters": ("operation: merge", "operation: sweep", "transition: attach", "refusal: PreconditionFailed"),
        "one-shots": (
            "operation: one shot",
            "transition: publish",
            *(
                f"refusal: {name}"
                for name in ("Conflict", "UncommittedChanges", "TransactionClosed", "NothingToCommit")
            ),
            *(f"fault: {name}" for name in ("dies", "done, reply lost", "reply lost, effect comes later", "swap lost")),
        ),
        "tables": (
            "operation: one shot",
            "operation: load table",
            *(f"refusal: {name}" for name in ("Stale", "NoSuchTable", "AlreadyExists")),
            *(f"fault: {name}" for name in ("dies", "done, reply lost", "reply lost, effect comes later", "swap lost")),
        ),
        "links": ("operation: link", "operation: collect garbage", "refusal: ObjectMissing"),
        "garbage": ("operation: collect garbage", "operation: copy across", "refusal: CommitExpired", "fault: dies"),
    }[family]
    assert [name for name in wanted if not reached[name]] == []


def test_a_seed_replays_exactly() -> None:
    for seed in (3, 77, 1010):
        first, again = simulate(seed), simulate(seed)
        assert first.trace() == again.trace()
        assert first.steps == again.steps


def test_a_seed_replays_in_another_process_with_another_hash_seed() -> None:
    command = [sys.executable, "-m", "strandline.testing.simulation", "--seed", "77"]
    traces = {
        subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True).stdout
        for seed in ("1", "2")
    }
    assert len(traces) == 1


def test_the_trace_is_for_people() -> None:
    trace = simulate(3).trace()
    assert re.search(r"▶ w\d+: commit main", trace)
    assert re.search(r"swap refs: main = \{head #\d+", trace)
    assert not re.search(r"[0-9a-f]{20}", trace)
