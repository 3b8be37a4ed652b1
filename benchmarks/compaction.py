"""What does staging compaction save: listings after deletions, look-ups under many tokens, commits over its tree?"""

from __future__ import annotations

import statistics

from benchmarks.harness import Result, entries, fill, repository, result, seconds, setting
from strandline.branch.attempts import update
from strandline.branch.rules.record import seal
from strandline.ids import StagingToken, new_id
from strandline.repository.branch import Branch

COUNT = 100_000
LOOKUPS = 2_000
PAIRS = 7


def run() -> list[Result]:
    return [*_after_deletions(), *_under_tokens(), _commit_over_it()]


def _after_deletions() -> list[Result]:
    where = setting(False)
    with repository(False, compaction=False) as repo:
        main = repo.branch("main")
        fill(main, COUNT)
        main.stage_each([("zz/last", entries("z", 1)[0][1])])
        main.delete_prefix("table/")
        first = lambda: list(main.list(amount=1))  # noqa: E731
        assert [found.path for found in first()] == ["zz/last"]
        before = [seconds(first) * 1000 for _ in range(9)]
        compacted = main.compact()
        first()
        after = [seconds(first) * 1000 for _ in range(9)]
        name = "first entry after 100,000 uncommitted deletions"
        return [
            result(f"{name}, before compaction", before, "ms", 60, "less", where),
            result(f"{name}, after compaction", after, "ms", 5, "less", where),
            result("compaction of 100,000 deletions", [compacted.seconds * 1000], "ms", None, "less", where),
        ]


def _under_tokens() -> list[Result]:
    found = []
    for tokens in (1, 10, 100):
        with repository(False, compaction=False) as repo:
            main = repo.branch("main")
            fill(main, COUNT)
            for number in range(tokens):
                main.stage_each(entries(f"staged{number}", 10))
                _seal(main)
            times = []
            for _ in ("before", "after"):
                look = lambda: [main.find(f"nowhere/{number}") for number in range(LOOKUPS)]  # noqa: E731
                look()
                times.append([seconds(look) / LOOKUPS * 1e6 for _ in range(5)])
                main.compact(force=True)
            name = f"look-up of a missing path under {tokens} sealed tokens"
            found.append(result(f"{name}, before compaction", times[0], "µs", None, "less", setting(False)))
            found.append(result(f"{name}, after compaction", times[1], "µs", None, "less", setting(False)))
    return found


def _seal(main: Branch) -> None:
    update(main._at, lambda branch: seal(branch, StagingToken(new_id())))


def _commit_over_it() -> Result:
    ratios = []
    with repository(False, compaction=False) as repo:
        fill(repo.branch("main"), COUNT)
        for number in range(PAIRS + 1):
            times = {}
            for kind in ("plain", "compacted") if number % 2 else ("compacted", "plain"):
                branch = repo.create_branch(f"{kind}{number}")
                branch.stage_each(entries("before", 1_000, number))
                if kind == "compacted":
                    branch.compact()
                else:
                    branch.commit("before")
                branch.stage_each(entries("t", COUNT, number))
                times[kind] = seconds(lambda branch=branch: branch.commit("c"))
            ratios.append(times["compacted"] / times["plain"])
    assert statistics.median(ratios) > 0
    return result("commit of 100,000 over a compacted base ÷ plain", ratios[1:], "×", 1.0, "less", setting(False))
