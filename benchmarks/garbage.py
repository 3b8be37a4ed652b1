"""How long does a collector of garbage take for a million objects, and how much memory?"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import strandline
from benchmarks.harness import Result, folder, result
from strandline.repository.branch import Branch
from strandline.tree.rows import Entry

OBJECTS = 1_000_000
ORPHANS = 10_000
PLAN = """
import resource, sys, time, strandline
repo = strandline.open(sys.argv[1]).repository("bench")
began = time.monotonic()
plan = repo.gc.plan(grace_days=0)
print(time.monotonic() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, plan.orphans, plan.young)
"""


def run() -> list[Result]:
    with folder() as place:
        with strandline.open(place / "lake", create=True, synced=False, compaction=False) as lake:
            main = lake.repository("bench", create=True).branch("main")
            _fill(main)
        times, memory = [], []
        for _ in range(3):
            told = subprocess.run(
                [sys.executable, "-c", PLAN, str(place / "lake")], capture_output=True, text=True, check=True
            ).stdout.split()
            times.append(float(told[0]))
            memory.append(float(told[1]))
            assert int(told[2]) + int(told[3]) >= ORPHANS
    where = f"{OBJECTS:,} committed objects and {ORPHANS:,} orphans, local files, one process"
    return [
        result("mark and sweep plan", times, "s", 60, "less", where),
        result("mark and sweep plan: peak memory", memory, "MiB", 1024, "less", where),
    ]


def _fill(main: Branch) -> None:
    """A thousand folders of a thousand files each, and some that nothing refers to."""
    store = main._core.resolver.namespace
    staged: list[tuple[str, Entry]] = []
    for number in range((OBJECTS + ORPHANS) // 1_000):
        folder_key = f"data/{number:020x}"  # as of a branch of its own each: only keys of that shape are ours
        place = store.local_path(folder_key)
        assert place is not None
        Path(place).mkdir(parents=True)
        for file in range(1_000):
            with open(f"{place}/{file:020x}", "wb") as made:
                made.write(b"x")
        if number < OBJECTS // 1_000:
            staged += [
                (f"t/{number:04d}/{file:04d}", Entry(f"{folder_key}/{file:020x}", 1, f"c{number}-{file}", 1))
                for file in range(1_000)
            ]
        if len(staged) >= 200_000:
            main.stage_each(staged)
            staged = []
    main.stage_each(staged)
    main.commit("a million")
