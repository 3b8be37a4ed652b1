"""`python -m strandline.testing.simulation`: run seeds, in several processes; or one, with its trace."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter

from strandline.testing.simulation.batches import run_batches
from strandline.testing.simulation.families import FAMILIES
from strandline.testing.simulation.run import simulate
from strandline.testing.simulation.shards import FAMILY


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m strandline.testing.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1_000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--until-broken", action="store_true", help="stop at the first broken promise")
    parser.add_argument("--seed", type=int, help="run this one seed and show its interleaving")
    parser.add_argument("--family", choices=("protocol", *FAMILIES, FAMILY), default="protocol", help="which scenarios")
    chosen = parser.parse_args(arguments)
    if chosen.seeds < 1 or chosen.jobs < 1 or chosen.first < 0:
        parser.error("--seeds and --jobs are at least 1, --first at least 0")
    if chosen.seed is not None:
        outcome = simulate(chosen.seed, chosen.family)
        print(outcome.trace())
        return 1 if outcome.broken else 0
    started, done, steps = time.monotonic(), 0, 0
    reached: Counter[str] = Counter()
    failed: list[tuple[int, str]] = []
    for count, more, taken, broken in run_batches(chosen.first, chosen.seeds, chosen.jobs, chosen.family):
        done, steps = done + count, steps + taken
        reached.update(more)
        failed += broken
        for seed, what in broken:
            print(f"seed {seed} breaks: {what}", flush=True)
        if broken and chosen.until_broken:
            print(f"caught after {broken[0][0] - chosen.first + 1} seeds in {time.monotonic() - started:.1f} s")
            return 1
    took = time.monotonic() - started
    print(f"{done:,} seeds from {chosen.first:,}, {steps:,} steps, {took:.0f} s; {len(failed)} break a promise")
    for what, count in sorted(reached.items()):
        print(f"{count:12,}  {what}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
