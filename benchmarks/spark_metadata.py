"""What do entries and differences of ten million objects cost as data frames, beside Spark's own read of the files?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.harness import Result, Took, fill, one_entry, repository, result, seconds
from benchmarks.spark_sessions import builder
from benchmarks.trees import LARGE, _path
from strandline.spark import metadata

RUNS = 5
WHERE = "Spark on 2 cores, SQLite + files, not synced"


def run() -> list[Result]:
    with repository(False) as repo:
        main = repo.branch("main")
        fill(main, LARGE)
        left = main._other("main~0")
        main.stage_each([(_path(i), one_entry(i, 1)) for i in range(0, LARGE, 10)])
        main.commit("a tenth of it")
        trees = repo._core.stores.trees
        files = {
            ref: [trees.blobs.spark_url(info.address) for info in trees.ranges(ref._tree())]
            for ref in (left, main._other("main~0"))
        }
        spark = builder().config("spark.sql.shuffle.partitions", "4").getOrCreate()
        spark.sparkContext.setLogLevel("OFF")
        try:

            def read(frame: Any) -> None:
                frame.write.format("noop").mode("overwrite").save()

            before, both = files[left], [url for urls in files.values() for url in urls]
            found = _beside(
                "entries of 10,000,000 objects, to reading the files",
                lambda: read(metadata.entries(spark, left)),
                lambda: read(spark.read.parquet(*before)),
            )
            found += _beside(
                "differences of 1,000,000 in 10,000,000, to reading the files of both",
                lambda: read(metadata.diff(spark, left, main)),
                lambda: read(spark.read.parquet(*both)),
            )
            use = [seconds(lambda: metadata.storage_use(spark, repo).collect()) for _ in range(2)]
            return [*found, result("storage use of two commits of 10,000,000", use[1:], "s", None, "less", WHERE)]
        finally:
            spark.stop()


def _beside(name: str, ours: Callable[[], None], theirs: Callable[[], None]) -> list[Result]:
    """The ratio of two ways, in turn."""
    ratios: list[float] = []
    took: list[Took] = []
    for turn in range(RUNS + 1):
        pair = [seconds(action) for action in ((ours, theirs) if turn % 2 else (theirs, ours))]
        mine, other = pair if turn % 2 else pair[::-1]
        if turn:
            ratios.append(float(mine) / float(other))
            took.append(mine)
    return [
        result(name, ratios, "times", 1.2, "less", WHERE),
        result(name.partition(", to")[0], took, "s", None, "less", WHERE),
    ]
