"""What does the compaction sensor cost? The work of the other benchmarks with it and without it, in turns."""

from __future__ import annotations

import random
from collections.abc import Callable

from benchmarks.harness import Result, entries, fill, one_entry, repository, result, seconds, setting
from strandline.repository.branch import Branch
from strandline.repository.repository import Repository

TURNS = 9
COUNT = 100_000


def run() -> list[Result]:
    times: dict[str, dict[bool, list[float]]] = {name: {True: [], False: []} for name in WORK}
    with repository(False) as on, repository(False, compaction=False) as off:
        repos = {True: on, False: off}
        for repo in repos.values():
            fill(repo.branch("main"), COUNT)
        for turn in range(TURNS + 1):
            for has_sensor in (True, False) if turn % 2 else (False, True):
                repo = repos[has_sensor]
                for name, (prepare, work) in WORK.items():
                    branch = repo.create_branch(f"{name.replace(' ', '-').replace(',', '')}-{turn}")
                    prepare(branch, turn)
                    took = seconds(lambda work=work, branch=branch, turn=turn: work(branch, turn))
                    if turn:  # the first turn warms up
                        times[name][has_sensor].append(took)
                    _delete(repo, branch)
    found = []
    for name, taken in times.items():
        ratios = [one / other for one, other in zip(sorted(taken[True]), sorted(taken[False]), strict=True)]
        found.append(result(f"with the sensor ÷ without: {name}", ratios, "×", 1.03, "less", setting(False)))
    return found


def _delete(repo: Repository, branch: Branch) -> None:
    branch.discard()
    repo.delete_branch(branch.name)


def _nothing(branch: Branch, turn: int) -> None: ...


def _stage(branch: Branch, turn: int) -> None:
    branch.stage_each(entries("new", 30_000, turn))


def _delete_all(branch: Branch, turn: int) -> None:
    branch.delete_many([path for path, _ in entries("table", COUNT)])


def _singles(branch: Branch, turn: int) -> None:
    entry = one_entry(turn)
    for i in range(6_000):
        branch.stage(f"one/{i:05d}", entry)


def _stage_100(branch: Branch, turn: int) -> None:
    paths = random.Random(turn).sample(range(COUNT), 100)
    branch.stage_each(sorted((f"table/{i // 1000:05d}/part-{i:08d}.parquet", one_entry(i, turn + 9)) for i in paths))


def _commit(branch: Branch, turn: int) -> None:
    branch.commit("c")


def _list(branch: Branch, turn: int) -> None:
    assert sum(1 for _ in branch.list("new/")) == 30_000


def _look_up(branch: Branch, turn: int) -> None:
    for i in range(3_000):
        branch.find(f"table/{i // 1000:05d}/part-{i:08d}.parquet")


Step = Callable[[Branch, int], None]
WORK: dict[str, tuple[Step, Step]] = {
    "stage 30,000 in bulk": (_nothing, _stage),
    "delete 100,000 in bulk": (_nothing, _delete_all),
    "stage 6,000 one by one": (_nothing, _singles),
    "commit 30,000": (_stage, _commit),
    "commit 100 scattered in 100,000": (_stage_100, _commit),
    "commit 100,000 deletions": (_delete_all, _commit),
    "list 30,000 staged": (_stage, _list),
    "look up 3,000 committed paths": (_nothing, _look_up),
}
