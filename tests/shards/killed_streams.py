"""Two streaming queries on a Connect server, which copy a shard by a Python sink and by a native one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import strandline
from strandline.spark.shards import append, register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def run(remote: str, url: str, folder: str) -> None:
    """Start both, and end when one of them does."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.remote(remote).getOrCreate()
    register(spark)

    def write(batch: DataFrame, epoch: int) -> None:
        with strandline.open(url) as lake:  # in a process of the server
            append(lake.repository("nyc").shard("native"), batch, writer="native", epoch=epoch)

    for name in ("python", "native"):
        source = spark.readStream.format("strandline.shard").options(lake=url, reader=name).load("nyc/it").drop("_time")
        sink = source.writeStream.option("checkpointLocation", str(Path(folder) / f"checkpoint-{name}"))
        if name == "python":
            sink = sink.format("strandline.shard").options(lake=url, writer=name, path="nyc/python")
        else:
            sink = sink.foreachBatch(write)
        sink.start()
    spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    run(*sys.argv[1:])
