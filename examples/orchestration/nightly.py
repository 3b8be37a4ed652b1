"""A night's work on a lake, step by step: what Airflow, Dagster and cron call. Each step can be run again."""

from __future__ import annotations

import sys
from contextlib import suppress

import strandline


def land(lake: str, source: str, day: str) -> str:
    """Commit references to what has landed, on a branch of the day; returns the branch's name."""
    with strandline.open(lake) as opened:
        branch = opened.repository("nyc").branch("main").create_branch(f"night-{day}", exist_ok=True)
        branch.import_objects(source, f"raw/{day}/", f"Land {day}", replace=True)
        return branch.name


def check(lake: str, name: str, day: str) -> int:
    """Refuse a night without files; returns how many there are."""
    with strandline.open(lake) as opened:
        found = sum(1 for _ in opened.repository("nyc").branch(name).list(f"raw/{day}/"))
    if not found:
        raise ValueError(f"Nothing has landed for {day}.")
    return found


def publish(lake: str, name: str) -> str:
    """Merge the branch of the day into main, and drop it; returns the commit."""
    with strandline.open(lake) as opened:
        repository = opened.repository("nyc")
        main = repository.branch("main")
        if name not in [branch.name for branch in repository.branches()]:
            return main.commit_id  # an earlier run has published it
        with suppress(strandline.NothingToMerge):  # that of a run that died before it dropped the branch
            main.merge(name, message=f"Publish {name}")
        repository.delete_branch(name)
        return main.commit_id


def tidy(lake: str, tables: list[str]) -> dict[str, int]:
    """Write the small files of tables together; returns what became of them."""
    with strandline.open(lake) as opened:
        main = opened.repository("nyc").branch("main")
        return {path: main.table(path).rewrite_files(writer=f"tidy {path}").after for path in tables}


if __name__ == "__main__":  # for cron: nightly.py LAKE SOURCE DAY, and tables to tidy
    at, landed, today, *to_tidy = sys.argv[1:]
    made = land(at, landed, today)
    check(at, made, today)
    print(publish(at, made))
    tidy(at, to_tidy)
