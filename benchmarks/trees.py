"""How long do diffs and merges take; does the cost follow the change when the tree is a hundred times larger?"""

from __future__ import annotations

import random

from benchmarks.harness import Result, fill, one_entry, repository, result, seconds, setting

COUNT = 100_000
LARGE = 10_000_000


def run() -> list[Result]:
    found = _differences(True) + _differences(False)
    where = setting(False)
    with repository(False) as repo:
        main = repo.branch("main")
        took = seconds(lambda: fill(main, LARGE))
        found.append(result("stage and commit 10,000,000, in all", [took], "s", None, "less", where))
        rnd = random.Random(1)
        numbers = [rnd.randrange(LARGE) for _ in range(100)]
        one, hundred, diff = [], [], []
        for run_ in range(6):
            i = rnd.randrange(LARGE)
            main.stage_each([(_path(i), one_entry(i, run_ + 1))])
            one.append(seconds(lambda: main.commit("one")) * 1000)
            main.stage_each([(_path(i), one_entry(i, run_ + 1)) for i in set(numbers)])
            hundred.append(seconds(lambda: main.commit("hundred")) * 1000)
            diff.append(seconds(lambda: main._other("main~1").diff(main).to_arrow()) * 1000)
        found.append(result("commit 1 change in 10,000,000", one[1:], "ms", None, "less", where))
        found.append(result("commit 100 scattered in 10,000,000", hundred[1:], "ms", None, "less", where))
        found.append(result("diff of 100 in 10,000,000", diff[1:], "ms", None, "less", where))
    return found


def _differences(synced: bool) -> list[Result]:
    with repository(synced) as repo:
        main = repo.branch("main")
        chosen = random.Random(1).sample(fill(main, COUNT), 200)
        base = main.commit_id
        diffs, merges = [], []
        for run_ in range(8):
            left, right = repo.create_branch(f"l{run_}", base), repo.create_branch(f"r{run_}", base)
            left.stage_each([(path, one_entry(i, run_ + 1)) for i, path in enumerate(chosen[:100])])
            left.commit("left")
            right.stage_each([(path, one_entry(i, run_ + 1)) for i, path in enumerate(chosen[100:])])
            right.commit("right")
            diffs.append(seconds(lambda: repo.ref(base).diff(left).to_arrow()) * 1000)
            merges.append(seconds(lambda: right.merge(left)) * 1000)
    where = setting(synced)
    return [
        result("diff of 100 in 100,000", diffs[1:], "ms", 30, "less", where),
        result("three-way merge of 100 + 100 in 100,000", merges[1:], "ms", 60, "less", where),
    ]


def _path(i: int) -> str:
    return f"table/{i // 1000:05d}/part-{i:08d}.parquet"
