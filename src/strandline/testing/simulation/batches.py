"""Many seeds in several processes."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from strandline.testing.simulation.run import simulate

BATCH_SEEDS = 50
Batch = tuple[int, Counter[str], int, list[tuple[int, str]]]


def run_batch(first: int, count: int, family: str) -> Batch:
    """Run some seeds: how many, what they reached, how many steps, and the first promise that each bad one broke."""
    reached: Counter[str] = Counter()
    steps = 0
    broken = []
    for seed in range(first, first + count):
        outcome = simulate(seed, family)
        reached.update(outcome.reached)
        steps += outcome.steps
        if outcome.broken:
            broken.append((seed, str(outcome.broken[0])))
    return count, reached, steps, broken


def run_batches(first: int, seeds: int, jobs: int, family: str = "protocol") -> Iterator[Batch]:
    starts = range(first, first + seeds, BATCH_SEEDS)
    sizes = [min(BATCH_SEEDS, first + seeds - start) for start in starts]
    if jobs == 1:
        yield from map(run_batch, starts, sizes, itertools.repeat(family))
        return
    pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"))
    try:
        yield from pool.map(run_batch, starts, sizes, itertools.repeat(family))
    finally:
        pool.shutdown(cancel_futures=True)  # whoever stops at the first broken promise waits for no other seed
