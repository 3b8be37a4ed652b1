"""What does it cost to mark what a history of commits refers to, and to plan a collection of ten million objects?"""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

import strandline
from benchmarks.harness import Result, fill, folder, one_entry, repository, result, seconds
from benchmarks.spark_import import below, memory_mb
from strandline.core.shapes import are_own
from strandline.repository.repository import Repository
from strandline.repository.upkeep.judging import SurveyHere
from strandline.tree.files import TreeFiles
from strandline.tree.store import NODES_FOLDER, RANGES_FOLDER, TreeStore

OBJECTS = 1_000_000
COMMITS = 100
CHANGES = 100
LARGE = 10_000_000
ORPHANS = 100_000
LISTED_AT_ONCE = 10_000
PLAN = "import sys; from benchmarks.marking import plan; plan(sys.argv[1])"


def run() -> list[Result]:
    return [*_history(), *_plan()]


# --- a history, in this process ---------------------------------------------------------------------------------------


def _history() -> list[Result]:
    """Marks one commit, then all of them: each file once, and a row as fast as before.

    By ranges it takes longer: changes at random fall into the larger ranges, which are written again more often.
    """
    where = f"{COMMITS} commits of {OBJECTS:,} objects that differ in {CHANGES:,} each, SQLite + files, one process"
    with repository(False) as repo:
        main = repo.branch("main")
        fill(main, OBJECTS)
        one = [float(seconds(lambda: _mark(repo))) for _ in range(3)]
        first = _sizes(repo)
        rnd = random.Random(2)
        for turn in range(COMMITS):
            numbers = {rnd.randrange(OBJECTS) for _ in range(CHANGES)}
            main.stage_each([(_path(i), one_entry(i, turn + 1)) for i in numbers])
            main.commit("changes")
        every = _sizes(repo)
        by_ranges, by_rows = [], []
        for _ in range(3):
            ratio = float(seconds(lambda: _mark(repo))) / min(one)
            by_ranges.append(ratio * first[0] / every[0])
            by_rows.append(ratio * first[1] / every[1])
        reads = _reads(repo)
        most = max(reads.values())
        assert len([key for key in reads if key.startswith(RANGES_FOLDER)]) == every[0]
    return [
        result("mark of a history, to that of one commit by rows", by_rows, "times", 1.2, "less", where),
        result("mark of a history, to that of one commit by ranges", by_ranges, "times", 1.2, "less", where),
        result(
            "mean rows of its ranges, to those of one commit",
            [_mean(every) / _mean(first)],
            "times",
            None,
            "less",
            where,
        ),
        result("how often it reads a range or a node, at most", [most], "times", 1, "less", where),
        result("ranges that it reads", [every[0]], "files", None, "less", where),
    ]


def _path(i: int) -> str:
    return f"table/{i // 1000:05d}/part-{i:08d}.parquet"


def _sizes(repo: Repository) -> tuple[int, int]:
    """How many ranges all commits have, each once, and how many rows."""
    ranges = _files(repo).ranges.values()
    return len(ranges), sum(info.count for info in ranges)


def _mean(sizes: tuple[int, int]) -> float:
    return sizes[1] / sizes[0]


def _files(repo: Repository) -> TreeFiles:
    trees = TreeStore(repo._core.stores.trees.blobs)
    found = TreeFiles(trees)
    for commit in repo._core.commits.all():
        found.add(trees.tree(commit.tree_ref))
    return found


def _mark(repo: Repository) -> None:
    survey = SurveyHere(repo._core, lambda *_: None)
    survey.mark_ranges(list(_files(repo).ranges.values()))


def _reads(repo: Repository) -> Counter[str]:
    """How often each range and node is read in a mark."""
    blobs: Any = repo._core.stores.trees.blobs
    read, found = blobs.get, Counter[str]()

    def counted(key: str, *rest: Any) -> bytes:
        if key.startswith((RANGES_FOLDER, NODES_FOLDER)):
            found[key] += 1
        body: bytes = read(key, *rest)
        return body

    blobs.get = counted
    try:
        _mark(repo)
    finally:
        del blobs.get
    return found


# --- a plan on Spark --------------------------------------------------------------------------------------------------


def _plan() -> list[Result]:
    where = f"{LARGE:,} objects and {ORPHANS:,} orphans, a listing that is made up, Spark on 2 cores, a heap of 1 GiB"
    with folder() as place:
        with strandline.open(place / "lake", create=True, synced=False, compaction=False) as lake:
            fill(lake.repository("bench", create=True).branch("main"), LARGE)
        peak = [0.0]
        process = subprocess.Popen(
            [sys.executable, "-c", PLAN, str(place / "lake")], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(0.3):
                peak[0] = max(
                    peak[0], sum(memory_mb(pid) for pid, name in below() if name.startswith(("java", "python")))
                )

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        told = process.communicate()[0].decode().split()
        ended.set()
        watcher.join()
        assert process.returncode == 0, told
        assert int(told[1]) == ORPHANS
    return [
        result("plan of a collection of 10,000,000 objects on Spark", [float(told[0])], "s", None, "less", where),
        result("memory of JVM and Python for it, at its peak", peak, "MB", 2_147, "less", where),
    ]


def plan(lake_folder: str) -> None:
    """Runs in a process of its own."""
    from benchmarks.spark_sessions import builder
    from strandline.spark import garbage

    spark = builder().config("spark.driver.memory", "1g").config("spark.sql.shuffle.partitions", "64").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")

    def listed(survey: Any) -> Any:
        parts = 200
        rows = spark.range(0, parts, 1, parts)
        return rows.mapInArrow(_listing(parts), "key STRING, size LONG, time LONG, own BOOLEAN, owner STRING")

    garbage._SurveyOnSpark._listed = listed  # type: ignore[method-assign,assignment]
    with strandline.open(lake_folder) as lake:
        gc = lake.repository("bench").gc
        took = seconds(lambda: _remember(gc.plan(grace_days=0, spark=spark)))
    print(float(took), *_told)
    spark.stop()


_told: list[int] = []


def _remember(found: Any) -> None:
    _told.append(found.orphans)


def _listing(parts: int) -> Callable[[Any], Iterator[pa.RecordBatch]]:
    """The keys of the entries, and as many orphans, as a store would list them."""

    def run(batches: Any) -> Iterator[pa.RecordBatch]:
        from strandline.spark.garbage_tasks import LISTED

        for batch in batches:
            for part in batch.column(0).to_pylist():
                each = LARGE // parts
                keys = [one_entry(i).physical_address for i in range(part * each, (part + 1) * each)]
                keys += [f"data/{part:020x}/{i:020x}" for i in range(ORPHANS // parts)]
                for first in range(0, len(keys), LISTED_AT_ONCE):
                    some = pa.array(keys[first : first + LISTED_AT_ONCE])
                    own = are_own(some.cast(pa.large_string()))
                    numbers = pa.array([1] * len(some), pa.int64())
                    none = pa.nulls(len(some), pa.string())
                    yield pa.RecordBatch.from_arrays([some, numbers, numbers, pa.array(own), none], schema=LISTED)

    return run
