"""The bytes of all that a ref reaches, compared on Spark's executors with what is known of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from strandline.blob import Resolver, open_store
from strandline.repository.refs.ref import Ref
from strandline.repository.upkeep.content import compare
from strandline.spark.metadata import entries
from strandline.spark.session import parallelism, refuse_two_stores
from strandline.spark.versions import refuse_other_versions

COMPARED = pa.schema([(name, pa.string()) for name in ("path", "physical_address", "how", "problem")])
TASKS_PER_CORE = 16
"""A task may have the largest objects: with many tasks for each core none waits long for it."""


def verify(spark: SparkSession, ref: Ref, prefix: str = "") -> DataFrame:
    """Compare the bytes of the objects below a prefix with what is known of them, each file once.

    Nothing is read before the frame is. To go on after a failure, write it out prefix by prefix.

    Returns:
        `path` and `physical_address`; `how`: "bytes" by a checksum of all of them, "pages" by the checksums in a
        Parquet file, "tag" by the size and the tag of an object that was imported, "size" by the size alone; and
        `problem`, a sentence, null where nothing is wrong.

    Raises:
        UsageError: an executor has another strandline, or workers of Spark could not read the files.
        RangeLocked: a part of it may not be read by others.
    """
    found = entries(spark, ref, prefix).select("path", "physical_address", "size", "checksum")
    refuse_two_stores(ref._core)
    refuse_other_versions(spark)
    once = found.groupBy("physical_address").agg(
        *(F.min_by(name, "path").alias(name) for name in ("path", "size", "checksum"))
    )
    spread = once.repartition(TASKS_PER_CORE * parallelism(spark))
    schema = ", ".join(f"{name} STRING" for name in COMPARED.names)
    return spread.mapInArrow(_comparing(ref._core.resolver.namespace.url), schema)


def _comparing(url: str) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        resolver = Resolver(open_store(url))
        for batch in batches:
            for row in batch.to_pylist():
                path, address = row["path"], row["physical_address"]
                how, problem = compare(resolver, path, address, row["size"], row["checksum"])
                told = {"path": path, "physical_address": address, "how": how, "problem": problem}
                yield pa.RecordBatch.from_pylist([told], COMPARED)

    return run
