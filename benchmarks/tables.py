"""What do table writes and reads cost on Spark, beside plain Parquet, Delta and Iceberg?

8,000,000 rows of 4 columns; nine interleaved runs each after a warm-up, in one session.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import strandline
from benchmarks.harness import Result, folder, result, seconds
from benchmarks.spark_sessions import builder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 8_000_000
RUNS = 9
PACKAGES = "io.delta:delta-spark_4.1_2.13:4.4.0,org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"


def session(place: Path) -> SparkSession:
    extensions = (
        "io.delta.sql.DeltaSparkSessionExtension,org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
    )
    spark: SparkSession = (
        builder()
        .config("spark.jars.packages", PACKAGES)
        .config("spark.sql.extensions", extensions)
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .config("spark.sql.catalog.ice", "org.apache.iceberg.spark.SparkCatalog")
        .config("spark.sql.catalog.ice.type", "hadoop")
        .config("spark.sql.catalog.ice.warehouse", str(place / "iceberg"))
        .config("spark.sql.warehouse.dir", str(place / "warehouse"))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    return spark


def run() -> list[Result]:
    with folder() as place:
        spark = session(place)
        with strandline.open(place / "lake", create=True, synced=True) as lake:
            main = lake.repository("bench", create=True).branch("main")
            data = spark.range(ROWS).selectExpr("id", "id % 100 as k", "rand(1) as v", "cast(id % 1000 as string) as s")
            data = data.repartition(4).cache()
            data.count()
            table = main.table("t")
            own: dict[str, list[float]] = {"write": [], "read": []}

            def ours() -> None:
                done = table.write(data, mode="overwrite")
                own["write"].append(done.strandline_seconds * 1000)

            def read_ours() -> None:
                planned: list[DataFrame] = []
                own["read"].append(seconds(lambda: planned.append(table.to_spark(spark))) * 1000)
                total(planned[0])

            parquet, delta = str(place / "parquet"), str(place / "delta")

            def publish_ours() -> None:
                with main.transaction("bench", "eight million rows") as tx:
                    tx.table("published").write(data, mode="overwrite")

            writes: dict[str, Callable[[], object]] = {
                "plain Parquet": lambda: data.write.mode("overwrite").parquet(parquet),
                "strandline": ours,
                "strandline, published": publish_ours,
                "Delta": lambda: data.write.format("delta").mode("overwrite").save(delta),
                "Iceberg": lambda: data.writeTo("ice.db.t").createOrReplace(),
            }
            reads: dict[str, Callable[[], object]] = {
                "plain Parquet": lambda: total(spark.read.parquet(parquet)),
                "strandline": read_ours,
                "Delta": lambda: total(spark.read.format("delta").load(delta)),
                "Iceberg": lambda: total(spark.table("ice.db.t")),
            }
            files = os.cpu_count()
            where = f"{ROWS:,} rows, 4 files, local files; strandline synced, the others as they come; {files} cores"
            found = []
            for verb, actions in (("write", writes), ("read", reads)):
                times: dict[str, list[float]] = {name: [] for name in actions}
                for turn in range(RUNS + 1):
                    for name, action in actions.items():
                        took = seconds(action)
                        if turn:
                            times[name].append(took)
                plain = times["plain Parquet"]
                found.append(result(f"{verb}: plain Parquet", plain, "s", None, "less", where))
                targets = {"strandline": 1.1, "strandline, published": 1.05}
                for name in list(actions)[1:]:
                    ratios = [mine / theirs for mine, theirs in zip(times[name], plain, strict=True)]
                    target = targets.get(name)
                    found.append(result(f"{verb}: {name} / plain Parquet", ratios, "×", target, "less", where))
                overhead = own[verb][1:]
                found.append(result(f"{verb}: strandline's own overhead", overhead, "ms", None, "less", where))
        spark.stop()
        shutil.rmtree(place / "parquet", ignore_errors=True)
    return found


def total(frame: DataFrame) -> None:
    frame.selectExpr("sum(id)", "sum(k)", "sum(v)", "max(s)").collect()
