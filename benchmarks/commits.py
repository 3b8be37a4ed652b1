"""How long does a commit take, by what is staged and what is there; and how many small ones go into a second?"""

from __future__ import annotations

import itertools
import random

import pyarrow as pa

from benchmarks.harness import Result, entries, fill, folder, one_entry, repository, result, seconds, setting
from strandline.tree.rows import Entry

RUNS = 7


def run() -> list[Result]:
    found = []
    for synced in (True, False):
        for count, target in ((1_000, 5), (10_000, 20), (100_000, 150)):
            times = []
            with repository(synced) as repo:
                for run_ in range(RUNS + 1):
                    branch = repo.create_branch(f"c{run_}")  # from the empty first commit
                    branch.stage_each(entries("t", count, run_))
                    times.append(seconds(lambda branch=branch: branch.commit("c")) * 1000)
            found.append(result(f"commit {count:,} staged", times[1:], "ms", target, "less", setting(synced)))
        with repository(synced) as repo:
            main = repo.branch("main")
            paths = fill(main, 100_000)
            rnd = random.Random(1)
            tail, anywhere, scattered = [], [], []
            for run_ in range(2 * RUNS):
                main.stage_each([(f"zz/{run_:05d}", one_entry(run_))])
                tail.append(seconds(lambda: main.commit("tail")) * 1000)
                main.stage_each([(rnd.choice(paths), one_entry(run_, 100 + run_))])
                anywhere.append(seconds(lambda: main.commit("anywhere")) * 1000)
                main.stage_each([(path, one_entry(run_, 500 + run_)) for path in rnd.sample(paths, 100)])
                scattered.append(seconds(lambda: main.commit("scattered")) * 1000)
            where = setting(synced)
            found.append(result("commit 1 change at the tail of 100,000", tail[2:], "ms", 5, "less", where))
            found.append(result("commit 1 change anywhere in 100,000", anywhere[2:], "ms", 15, "less", where))
            found.append(result("commit 100 scattered changes in 100,000", scattered[2:], "ms", 40, "less", where))
        with repository(synced) as repo:
            main = repo.branch("main")
            numbers = itertools.count()

            def stage_and_commit(main: object = main, numbers: object = numbers) -> None:
                i = next(numbers)  # type: ignore[call-overload]
                main.stage(f"loop/{i:06d}", Entry(f"data/{i}", 1, f"c{i}", 1))  # type: ignore[attr-defined]
                main.commit("c")  # type: ignore[attr-defined]

            loops = [200 / seconds(lambda f=stage_and_commit: [f() for _ in range(200)]) for _ in range(5)]
            target = 150 if synced else 350
            found.append(result("stage one and commit, in a loop", loops, "commits/s", target, "more", setting(synced)))
    found.append(_delta_loop())
    return found


def _delta_loop() -> Result:
    """The same question to delta-rs: append 1,000 rows and commit; as it comes, which does not sync."""
    from deltalake import write_deltalake

    rows = pa.table({"id": list(range(1000)), "v": [float(i) for i in range(1000)]})
    with folder() as place:
        write_deltalake(str(place / "t"), rows)
        loops = [
            30 / seconds(lambda: [write_deltalake(str(place / "t"), rows, mode="append") for _ in range(30)])
            for _ in range(3)
        ]
    return result("delta-rs: append 1,000 rows and commit", loops, "commits/s", None, "more", "local files")
