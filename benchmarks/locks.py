"""What do locks cost those who do not meet them, and how long do taking and restoring take?"""

from __future__ import annotations

import time

import strandline
from benchmarks.harness import Result, entries, folder, result, seconds
from strandline import Branch, Entry
from strandline.envelope import encode

WRITES = 2_000
TURNS = 9
LOCKS = 256
OBJECTS = 10_000


def run() -> list[Result]:
    with folder() as place, strandline.open(place / "lake", create=True, synced=False) as lake:
        repo = lake.repository("bench", create=True)
        repo.lock_owners.register("bench", "a measurement")
        main = repo.branch("main")
        main.stage_each(entries("content", OBJECTS))
        main.commit("content")
        return [*_beside(main), *_taking(main), *_restoring(repo, main)]


def _beside(main: Branch) -> list[Result]:
    """Writes that meet no lock, while there are none, one, and as many as a branch can have."""
    rates: dict[int, list[float]] = {0: [], 1: [], LOCKS: []}
    for turn in range(TURNS):
        for count, found in rates.items():
            held = (
                main.locks.take([f"locked/{i:04d}/" for i in range(0, 2 * count, 2)], owner="bench") if count else None
            )
            found.append(WRITES / seconds(lambda turn=turn, count=count: _write(main, f"{turn}-{count}")))
            if held is not None:
                main.locks.release(held.id)
            main.commit("beside")
            time.sleep(0.1)
    about = f"{WRITES:,} single writes, SQLite, not synced"
    one = [mine / none for mine, none in zip(rates[1], rates[0], strict=True)]
    many = [mine / none for mine, none in zip(rates[LOCKS], rates[0], strict=True)]
    return [
        result("single writes without locks", rates[0], "/s", None, "more", about),
        result("single writes beside 1 lock ÷ without", one, "×", None, "more", about),
        result(f"single writes beside {LOCKS} locked ranges ÷ without", many, "×", None, "more", about),
    ]


def _write(main: Branch, turn: str) -> None:
    for number in range(WRITES):
        main.stage(f"beside/{number:05d}", Entry(f"data/{turn}-{number}", 1, f"c{turn}-{number}", 1))


def _taking(main: Branch) -> list[Result]:
    clean, dirty = [], []
    for turn in range(TURNS):
        clean.append(seconds(lambda: main.locks.release(main.locks.take("content/", owner="bench").id)) * 1000)
        main.stage_each(entries(f"elsewhere{turn}", OBJECTS))
        dirty.append(seconds(lambda: main.locks.release(main.locks.take("content/", owner="bench").id)) * 1000)
        main.commit("elsewhere")
    main.locks.take([f"locked/{i:04d}/" for i in range(0, 2 * LOCKS, 2)], owner="bench")
    size = len(encode(main._at.read().branch)) / 1000
    main.locks.release_all("bench")
    about = f"SQLite, not synced; {OBJECTS:,} objects below the prefix"
    return [
        result("take and release a lock", clean, "ms", None, "less", about),
        result(f"the same with {OBJECTS:,} staged elsewhere", dirty, "ms", None, "less", about),
        result(f"branch record with {LOCKS} locked ranges", [size], "KB", None, "less", "of one lock"),
    ]


def _restoring(repo: strandline.Repository, main: Branch) -> list[Result]:
    took = []
    for turn in range(3):
        repo.create_tag(f"good{turn}", "main")
        main.delete_prefix("content/")
        main.commit("gone")
        took.append(OBJECTS / seconds(lambda turn=turn: _restore(main, turn)))
    return [result("restore a range", took, "objects/s", None, "more", f"{OBJECTS:,} objects, same repository")]


def _restore(main: Branch, turn: int) -> None:
    main.range_jobs.restore("content/", f"good{turn}", job=f"restore {turn}", owner="bench")
