"""How fast are entries staged: one by one, from many threads, in bulk; and deleted?"""

from __future__ import annotations

import threading

from benchmarks.harness import Result, entries, one_entry, repository, result, seconds, setting


def run() -> list[Result]:
    found = []
    for synced in (True, False):
        with repository(synced) as repo:
            main = repo.branch("main")
            bulk = []
            for run_ in range(5):
                staged = entries(f"bulk{run_}", 100_000)
                bulk.append(100_000 / seconds(lambda staged=staged: main.stage_each(staged)))
            found.append(result("stage in bulk", bulk, "entries/s", 100_000, "more", setting(synced)))
            deleted = []
            for run_ in range(3):
                paths = [path for path, _ in entries(f"bulk{run_}", 100_000)]
                deleted.append(100_000 / seconds(lambda paths=paths: main.delete_many(paths)))
            found.append(result("delete in bulk", deleted, "entries/s", 100_000, "more", setting(synced)))
            main.discard()
            repo.sweep(after_s=0, again_after_s=0)
            single = [_singles(main, 1, 3_000, run_) for run_ in range(5)]
            target = 3_000 if synced else 15_000
            found.append(result("stage one by one, 1 thread", single, "writes/s", target, "more", setting(synced)))
            many = [_singles(main, 16, 800, run_ + 10) for run_ in range(5)]
            found.append(
                result(
                    "stage one by one, 16 threads", many, "writes/s", 8_000 if synced else None, "more", setting(synced)
                )
            )
            created = []
            for run_ in range(5):
                took = seconds(lambda run_=run_: [main.create_branch(f"b{run_}-{n}") for n in range(100)])
                created.append(took * 10)
            found.append(result("create a branch", created, "ms", None if synced else 0.6, "less", setting(synced)))
    return found


def _singles(main: object, threads: int, each: int, run_: int) -> float:
    def work(who: int) -> None:
        for i in range(each):
            entry = one_entry(i)
            main.stage(f"one/{run_}/{who}/{i:06d}", entry)  # type: ignore[attr-defined]

    def all_of_them() -> None:
        workers = [threading.Thread(target=work, args=(who,)) for who in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    return threads * each / seconds(all_of_them)
