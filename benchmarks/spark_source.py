"""What does the format "strandline", in Python workers, cost beside Spark's own reader and writer of the same table?"""

from __future__ import annotations

from typing import Any

import strandline
from benchmarks.harness import Result, folder, result, seconds
from benchmarks.spark_sessions import builder
from strandline.spark import register

ROWS = 8_000_000
WRITTEN = 4_000_000
RUNS = 5
WHERE = "Spark on 2 cores, 8,000,000 rows in Parquet on files"
QUERIES = {
    "all columns": ("", ""),
    "two columns of six": ("id, v", ""),
    "a tenth of the files, all columns": ("", "part = 3"),
}


def run() -> list[Result]:
    with folder() as place, strandline.open(place / "lake", create=True, synced=False) as lake:
        spark = builder().getOrCreate()
        spark.sparkContext.setLogLevel("OFF")
        try:
            register(spark)
            table = lake.repository("bench", create=True).branch("main").table("t")
            rows = spark.range(ROWS).selectExpr(
                "id",
                "id * 0.5D AS v",
                "hash(id) AS h",
                "sha2(string(id), 224) AS s",
                "id % 1000 AS m",
                "id % 10 AS part",
            )
            table.write(rows.repartition("part"), partition_by=["part"], message="rows")

            def ours(columns: str, where: str) -> Any:
                options = {"lake": str(place / "lake"), "columns": columns, "where": where}
                return spark.read.format("strandline").options(**options).load("bench/main/t")

            def native(columns: str, where: str) -> Any:
                frame = table.to_spark(spark, where or None)
                return frame.select(*columns.split(", ")) if columns else frame

            def read(frame: Any) -> None:
                frame.write.format("noop").mode("overwrite").save()

            found = []
            for name, (columns, where) in QUERIES.items():
                ratios = []
                for turn in range(RUNS + 1):
                    sides = [ours, native] if turn % 2 else [native, ours]
                    took = {side: float(seconds(lambda: read(side(columns, where)))) for side in sides}
                    if turn:
                        ratios.append(took[ours] / took[native])
                found.append(result(f"{name}, to to_spark", ratios, "times", 1.5, "less", WHERE))
            frame = spark.range(WRITTEN).selectExpr(
                "id", "id * 0.5D AS v", "hash(id) AS h", "sha2(string(id), 224) AS s"
            )

            def by_format(turn: int) -> None:
                options = {"lake": str(place / "lake"), "path": f"bench/main/by_format_{turn}"}
                frame.write.format("strandline").mode("append").options(**options).save()

            def by_write(turn: int) -> None:
                lake.repository("bench").branch("main").table(f"by_write_{turn}").write(frame, message="rows")

            ratios = []
            for turn in range(RUNS + 1):
                ways = [by_format, by_write] if turn % 2 else [by_write, by_format]
                spent = {way: float(seconds(lambda: way(turn))) for way in ways}
                if turn:
                    ratios.append(spent[by_format] / spent[by_write])
            found.append(result("writing 4,000,000 rows, to table.write", ratios, "times", None, "less", WHERE))
            return found
        finally:
            spark.stop()
