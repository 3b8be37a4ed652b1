"""The driver of a job on a cluster. Arguments: settings of a lake, what to import, and a file for the outcome."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

import strandline
from strandline.spark import configure, metadata, register

NUMBERS = 4_000


def _environments(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if batch.num_rows:
            names = ",".join(sorted(name for name in os.environ if name.startswith(("STRANDLINE", "AWS", "PG"))))
            yield pa.RecordBatch.from_pydict({"process": [os.getppid()], "names": [names]})


def everything(lake: strandline.Lake, spark: SparkSession, settings: str, source: str) -> dict[str, Any]:
    main = lake.repository("nyc", create=True).branch("main")
    seen = spark.range(0, 8, 1, 8).mapInArrow(_environments, "process LONG, names STRING").collect()
    table = main.table("tables/numbers")
    rows = spark.range(NUMBERS).selectExpr("id", "id % 4 AS part")
    table.write(rows.repartition(4), partition_by=["part"], message="native")
    register(spark)
    by_format = spark.read.format("strandline").option("lake", settings).load("nyc/main/tables/numbers")
    few = by_format.where("id < 100").write.format("strandline").option("lake", settings)
    few.mode("append").save("nyc/main/tables/few")
    imported = main.import_objects(source, "in/", "import", spark=spark)
    kept = main.create_branch("kept")
    table.delete("part IN (0, 2)", message="half of them")
    plan = lake.repository("nyc").gc.plan(spark=spark)
    return {
        "executors": len({row["process"] for row in seen}),
        "environment": sorted({row["names"] for row in seen}),
        "rows": table.to_spark(spark).count(),
        "by_format": main.table("tables/few").count(),
        "imported": imported.objects,
        "entries": metadata.entries(spark, main, "in/").count(),
        "garbage": plan.files,
        "kept": kept.table("tables/numbers").to_spark(spark).count(),
    }


def main(settings: str, source: str) -> None:
    with strandline.open(settings, create=True) as lake:
        spark = configure(SparkSession.builder, lake).getOrCreate()
        spark.sparkContext.setLogLevel("OFF")
        try:
            told: dict[str, Any] = everything(lake, spark, settings, source)
        except strandline.StrandlineError as error:
            told = {"error": str(error)}
        finally:
            spark.stop()
    Path(sys.argv[3]).write_text(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
