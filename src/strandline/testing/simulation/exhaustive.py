"""Every interleaving of two clients with an operation or two each, up to the order of calls that do not matter.

Seeds meet what is likely. This meets what is possible: all orders of the calls of the stores, except those that differ
only in the order of calls that commute, such as reads, or writes of different keys. With a fault, one call of one
client is answered wrongly or late, or is the client's last.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

from strandline.testing.simulation import branch_programs, shard_programs
from strandline.testing.simulation.exploring import MAX_RUNS, Fault, Program, RunOne, explore, faults_of


@dataclass(frozen=True, slots=True)
class Kind:
    """What two clients work on.

    Attributes:
        operations: one of each class.
        starts: what is there when they begin.
    """

    operations: tuple[str, ...]
    starts: tuple[str, ...]
    run: RunOne


KINDS = {
    "branch": Kind(tuple(branch_programs.OPERATIONS), branch_programs.START, branch_programs.run),
    "shard": Kind(shard_programs.OPERATIONS, shard_programs.START, shard_programs.run),
}


def programs(operations: tuple[str, ...], left: int, right: int) -> Iterator[Program]:
    """All pairs of clients with so many operations; of equal numbers each pair once."""
    ones = list(itertools.product(operations, repeat=left))
    others = list(itertools.product(operations, repeat=right))
    for at, one in enumerate(ones):
        yield from ((one, other) for other in (others[at:] if left == right else others))


Task_ = tuple[str, Program, str, bool]


def explore_all(task: Task_) -> tuple[Task_, int, int, list[str]]:
    """A program, perhaps with each fault: how many runs, how many were cut off, what is broken."""
    kind, program, start, with_faults = task
    run_one = KINDS[kind].run
    tried: list[Fault | None] = list(faults_of(run_one, program, start)) if with_faults else [None]
    runs = cut = 0
    broken = []
    for fault in tried:
        found = explore(run_one, program, start, fault)
        runs, cut = runs + found.runs, cut + found.is_cut
        if found.broken:
            broken.append(f"{program} from {start} with {fault}, {''.join(map(str, found.choices))}: {found.broken}")
    return task, runs, cut, broken


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m strandline.testing.simulation.exhaustive", description=__doc__)
    parser.add_argument("--of", choices=tuple(KINDS), default="branch", help="what they work on")
    parser.add_argument("--operations", default="1x1", help="of the two clients: 1x1, 2x1 or 2x2")
    parser.add_argument("--faults", action="store_true", help="with each single fault, instead of none")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no program after so long")
    parser.add_argument("--first", type=int, default=0, help="leave out so many programs")
    parser.add_argument("--step", type=int, default=1, help="take each n-th program")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    chosen = parser.parse_args(arguments)
    left, _, right = chosen.operations.partition("x")
    kind = KINDS[chosen.of]
    tasks = [
        (chosen.of, one, start, chosen.faults)
        for one in programs(kind.operations, int(left), int(right))
        for start in kind.starts
    ]
    tasks = tasks[chosen.first :: chosen.step]
    started, runs, cut, done = time.monotonic(), 0, 0, 0
    failed: list[str] = []
    with ProcessPoolExecutor(chosen.jobs, mp_context=get_context("spawn")) as pool:
        waiting = iter(tasks)
        under_way = [pool.submit(explore_all, task) for task in itertools.islice(waiting, 2 * chosen.jobs)]
        while under_way:
            _, more, some_cut, broken = under_way.pop(0).result()
            runs, cut, done = runs + more, cut + some_cut, done + 1
            failed += broken
            for what in broken:
                print(f"BROKEN  {what}", flush=True)
            if time.monotonic() - started < chosen.seconds and (task := next(waiting, None)) is not None:
                under_way.append(pool.submit(explore_all, task))
    took = time.monotonic() - started
    how = "each with each single fault" if chosen.faults else "without faults"
    print(
        f"{done:,} of {len(tasks):,} programs of a {chosen.of}, {chosen.operations} operations, {how}: "
        f"{runs:,} interleavings in {took:.0f} s, {cut:,} programs cut off at {MAX_RUNS:,}; "
        f"{len(failed)} break a promise"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
