"""How fast are listings and look-ups?"""

from __future__ import annotations

import random

from benchmarks.harness import Result, entries, fill, repository, result, seconds, setting

COUNT = 100_000


def run() -> list[Result]:
    found = []
    with repository(False) as repo:
        main = repo.branch("main")
        where = setting(False)
        paths = fill(main, COUNT)
        ref = repo.ref("main@")

        def walk(source: object, prefix: str) -> None:
            assert sum(1 for _ in source.list(prefix)) == COUNT  # type: ignore[attr-defined]

        walk(ref, "table/")
        committed = [COUNT / seconds(lambda: walk(ref, "table/")) for _ in range(5)]
        found.append(result("list committed entries", committed, "entries/s", 500_000, "more", where))
        tables = [COUNT / seconds(lambda: ref.list("table/").to_arrow()) for _ in range(5)]
        found.append(result("list committed entries, as Arrow", tables, "entries/s", None, "more", where))
        wanted = random.Random(1).sample(paths, 20_000)
        stats = [len(wanted) / seconds(lambda: [ref.stat(path) for path in wanted]) for _ in range(5)]
        found.append(result("stat by a committed ref, warm, 1 thread", stats, "stats/s", 30_000, "more", where))
        trees, tree = main._core.stores.trees, ref._tree()
        looks = [seconds(lambda: [trees.find(tree, path) for path in wanted]) / len(wanted) * 1e6 for _ in range(5)]
        found.append(result("look-up in a warm range", looks, "µs", 15, "less", where))
        branch = [2_000 / seconds(lambda: [main.stat(path) for path in wanted[:2_000]]) for _ in range(5)]
        found.append(result("stat by a branch, warm, 1 thread", branch, "stats/s", None, "more", where))
        main.stage_each(entries("staged", COUNT))
        staged = [COUNT / seconds(lambda: walk(main, "staged/")) for _ in range(5)]
        found.append(result("list staged entries", staged, "entries/s", 500_000, "more", where))
        arrow = [COUNT / seconds(lambda: main.list("staged/").to_arrow()) for _ in range(5)]
        found.append(result("list staged entries, as Arrow", arrow, "entries/s", None, "more", where))
        folders = [seconds(lambda: list(main.list("staged/", delimiter="/"))) * 1000 for _ in range(5)]
        found.append(result("list 100,000 staged with a delimiter", folders, "ms", None, "less", where))
    return found
