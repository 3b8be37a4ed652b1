"""What does a table cost on Spark by the number of its files; what does skipping save?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import strandline
from benchmarks.harness import Result, folder, result, seconds
from benchmarks.spark_sessions import builder
from strandline import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


FILES = (10, 1_000, 10_000)
S3_FILES = (10, 200)
RUNS = 5
SKIP_RUNS = 9
SKIP_ROWS = 8_000_000


def run() -> list[Result]:
    with folder() as place:
        spark = builder().config("spark.sql.warehouse.dir", str(place / "warehouse")).getOrCreate()
        spark.sparkContext.setLogLevel("OFF")
        with strandline.open(place / "lake", create=True, synced=False) as lake:
            main = lake.repository("bench", create=True).branch("main")
            found = [one for count in FILES for one in _planning(spark, main.table(f"t{count}"), count)]
            found += _skipping(spark, main.table("skipping"))
        spark.stop()
        found += _on_s3(place)
    return found


def _on_s3(place: Path) -> list[Result]:
    """The same on S3A: what planning costs there, and how much of it is ours."""
    import os

    from tests.harness import servers, sessions

    found = []
    with servers.s3() as endpoint:
        os.environ.update(AWS_ACCESS_KEY_ID=servers.ACCESS_KEY, AWS_SECRET_ACCESS_KEY=servers.SECRET_KEY)
        url = f"s3://lake/bench?endpoint={endpoint}&region=us-east-1"
        kv = f"sqlite://{place / 's3.db'}"
        with (
            sessions.local(place, url) as spark,
            strandline.open(kv=kv, blob=url, create=True, synced=False) as lake,
        ):
            main = lake.repository("bench", create=True).branch("main")
            for count in S3_FILES:
                table = main.table(f"t{count}")
                frame = spark.range(count).selectExpr("id", "id % 10 AS k")
                wrote = table.write(frame.repartition(max(1, count // 100)), options={"maxRecordsPerFile": "1"})
                main.commit(f"{count} files")
                fixed = main._other("main@").table(table.path)
                own = [seconds(fixed.files) * 1000 / count * 1000 for _ in range(RUNS + 1)]
                plan = [seconds(lambda t=fixed: t.to_spark(spark)) for _ in range(RUNS + 1)]
                where = f"{count:,} files of one row, S3A on versitygw, committed"
                per_thousand = wrote.strandline_seconds * 1000 / count * 1000
                found += [
                    result(f"S3: plan {count:,} files", plan[1:], "s", None, "less", where),
                    result(f"S3: own part of planning, per 1,000 of {count:,}", own[1:], "ms", None, "less", where),
                    result(
                        f"S3: own part of a write, per 1,000 of {count:,}", [per_thousand], "ms", None, "less", where
                    ),
                ]
    return found


def _planning(spark: SparkSession, table: Table, count: int) -> list[Result]:
    """Planning a read of so many files, beside a read of the same files as a folder, which plans them too."""
    frame = spark.range(count).selectExpr("id", "id % 10 AS k")
    table.write(frame.repartition(max(1, count // 100)), options={"maxRecordsPerFile": "1"})
    table.ref.commit(f"{count} files")  # type: ignore[attr-defined]
    table = Table(table.ref._other("main@"), table.path)
    files = table.files()
    store = table.ref._core.resolver.namespace
    directory = str(Path(store.local_path(files[0].info.physical_address) or "").parent)
    ours: list[float] = []
    theirs: list[float] = []
    own: list[float] = []

    def read_ours() -> None:
        planned: list[DataFrame] = []
        ours.append(seconds(lambda: planned.append(table.to_spark(spark))))

    for _ in range(RUNS + 1):
        read_ours()
        theirs.append(seconds(lambda: spark.read.schema("id LONG, k LONG").parquet(directory)))
        own.append(seconds(table.files))
    ratios = [mine / other for mine, other in zip(ours[1:], theirs[1:], strict=True)]
    where = f"{len(files):,} files of one row, local files, committed"
    scale = 1000 / len(files) * 1000
    made = [
        result(f"plan {count:,} files", ours[1:], "s", None, "less", where),
        result(f"plan {count:,} files: a folder of the same", theirs[1:], "s", None, "less", where),
        result(
            f"own part of planning, per 1,000 of {count:,} files",
            [s * scale for s in own[1:]],
            "ms",
            None,
            "less",
            where,
        ),
    ]
    target = 1.5 if count == max(FILES) else None
    return [*made, result(f"plan {count:,} files ÷ a folder of the same", ratios, "×", target, "less", where)]


def _skipping(spark: SparkSession, table: Table) -> list[Result]:
    """A hundredth of the rows: by statistics, by a partition, and by reading everything."""
    rows = spark.range(0, SKIP_ROWS, 1, 100).selectExpr("id", "rand(1) AS v", "cast(id % 1000 AS string) AS s")
    table.write(rows)
    low, high = SKIP_ROWS // 2, SKIP_ROWS // 2 + SKIP_ROWS // 100
    where = f"id >= {low} and id < {high}"
    times: dict[str, list[float]] = {"all": [], "some": []}
    for turn in range(SKIP_RUNS + 1):
        for name, condition in (("all", "v >= 0"), ("some", where)):
            took = seconds(lambda: table.to_spark(spark, where=condition).selectExpr("sum(v)", "max(s)").collect())
            if turn:
                times[name].append(took)
    ratios = [some / every for some, every in zip(times["some"], times["all"], strict=True)]
    about = f"{SKIP_ROWS:,} rows in 100 files, local files"
    return [
        result("read everything", times["all"], "s", None, "less", about),
        result("read 1 of 100 files by statistics ÷ everything", ratios, "×", 0.5, "less", about),
    ]
