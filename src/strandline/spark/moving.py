"""Copying the objects of a repository to another store: Spark finds them in the ranges, and tasks copy what is missing.

Their keys do not pass through the driver. Executors need the keys of both stores.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from strandline.backup.moving import Mover, MoverHere, Sizes, copy_file
from strandline.blob import BlobNotFound, BlobStore, open_store
from strandline.core.iceberg_files import METADATA_KEY
from strandline.errors import Corrupted, ObjectMissing, StorageError
from strandline.progress import Progress
from strandline.spark.metadata import range_rows
from strandline.spark.reach import Elsewhere, is_elsewhere, marked
from strandline.spark.session import check_session, described, parallelism, reason_of, watched
from strandline.spark.versions import Task, of_this_version, refuse_other_versions
from strandline.tree.range_file import RangeInfo

TASKS_PER_CORE = 16
"""A task may have the largest objects: with many tasks for each core none waits long for it."""
METADATA = rf"^{METADATA_KEY}\z"
ROWS = "physical_address STRING, size BIGINT"
DONE = "size BIGINT, refused BINARY"
Batches = Iterable[pa.RecordBatch]


def mover(spark: SparkSession) -> Mover:
    """Copies in tasks of a Spark job.

    Raises:
        UsageError: it is no session.
    """
    check_session(spark)
    return _MoverOnSpark(spark)


class _MoverOnSpark:
    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._here = MoverHere()

    def metadata(self, source: BlobStore, ranges: Sequence[RangeInfo]) -> list[str]:
        if source.own is not source:
            return self._here.metadata(source, ranges)
        found = self._keys(source, ranges).where(F.col("key").rlike(METADATA))
        with _copying(self._spark, "find Iceberg's tables"):
            return [row["key"] for row in found.collect()]

    def objects(
        self,
        source: BlobStore,
        ranges: Sequence[RangeInfo],
        more: Sizes,
        target: BlobStore,
        prefix: str,
        progress: Progress,
    ) -> tuple[int, int]:
        if source.own is not source:  # bytes are read from two stores, and executors are given one
            return self._here.objects(source, ranges, more, target, prefix, progress)
        refuse_other_versions(self._spark)
        beside = pa.table({"key": pa.array(list(more), pa.string()), "size": pa.array(list(more.values()), pa.int64())})
        every = self._keys(source, ranges).union(self._spark.createDataFrame(beside, "key STRING, size BIGINT"))
        once = every.groupBy("key").agg(F.max("size").alias("size"))
        tasks = TASKS_PER_CORE * parallelism(self._spark)
        with marked(target) as mark, _copying(self._spark, "copy the objects"):
            task = of_this_version(_copies(source.url, target.url, prefix, mark))
            jobs = once.repartition(tasks).mapInArrow(task, DONE)
            totals = jobs.agg(F.count("*"), F.sum("size"), F.max("refused"))
            ((files, size, refused),) = watched(self._spark, totals.collect, progress, "copying")
        if refused is not None:
            raise pickle.loads(refused)
        return files, size or 0

    def _keys(self, source: BlobStore, ranges: Sequence[RangeInfo]) -> DataFrame:
        """The keys of objects in the repository's own namespace, with their sizes; some several times."""
        rows = range_rows(self._spark, source, ranges, ROWS)
        address = F.col("physical_address")
        return rows.where(address.isNotNull() & ~address.contains("://")).select(address.alias("key"), "size")


@contextmanager
def _copying(spark: SparkSession, what: str) -> Iterator[None]:
    try:
        with described(spark, f"strandline: {what}"):
            yield
    except Exception as error:
        raise StorageError(
            f"Spark could not {what}: {reason_of(error)}.",
            safe="The copy is not complete, and nothing names it.",
            next="Look at Spark's logs, then repeat the call: what is there is not copied again.",
        ) from error


def _copies(source_url: str, target_url: str, prefix: str, mark: str) -> Task:
    """Copies files in a task. What is wrong with a file is answered; all else is raised, and Spark tries again."""

    def run(batches: Batches) -> Iterator[pa.RecordBatch]:
        source, target = open_store(source_url), open_store(target_url)
        wrong = is_elsewhere(target, mark)
        schema = pa.schema([("size", pa.int64()), ("refused", pa.binary())])
        for batch in batches:
            for row in batch.to_pylist():
                size, refused = 0, None
                try:
                    if wrong is not None:
                        raise wrong
                    size = _copied(source, target, row["key"], prefix, row["size"])
                except (ObjectMissing, Corrupted, Elsewhere) as error:
                    refused = pickle.dumps(error)
                yield pa.RecordBatch.from_pydict({"size": [size], "refused": [refused]}, schema)

    return run


def _copied(source: BlobStore, target: BlobStore, key: str, prefix: str, expected: int | None) -> int:
    """The size of a file that is at the target, by now or since before."""
    try:
        there = target.head(prefix + key).size
        if expected in (None, there):
            return there
    except BlobNotFound:
        pass
    return copy_file(source, target, key, prefix + key, expected)
