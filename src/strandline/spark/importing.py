"""Imports in slices by Spark's executors: they get the addresses of the stores, and find credentials where they run."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession

import strandline
from strandline.errors import NotFound, StorageError, UsageError
from strandline.progress import Progress
from strandline.repository.commits.resuming import Cut
from strandline.repository.commits.slices import Slice, Workers, cut
from strandline.spark.session import check_session, described, parallelism, reason_of, watched
from strandline.spark.versions import refuse_other_version, refuse_other_versions

SLICES_PER_CORE = 4
"""Nobody knows how much lies in a slice; with several of them for each core none waits long for the largest one."""


def import_workers(spark: SparkSession) -> Workers:
    """Workers that cut each slice in a task of a Spark job.

    Raises:
        UsageError: it is no session.
    """
    check_session(spark)
    return _OnSpark(spark)


class _OnSpark:
    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    @property
    def wanted(self) -> int:
        return SLICES_PER_CORE * parallelism(self._spark)

    def run(self, slices: Sequence[Slice], progress: Progress) -> Iterator[Cut]:
        refuse_other_versions(self._spark)
        rows = pa.table(
            {
                "at": range(len(slices)),
                "version": [strandline.__version__] * len(slices),
                "slice": [msgspec.msgpack.encode(one) for one in slices],
            }
        )
        frame = self._spark.createDataFrame(rows).repartitionByRange(len(slices), "at")

        def collected() -> list[dict[str, Any]]:
            try:
                with described(self._spark, f"strandline: list {len(slices)} slices of a source"):
                    made = frame.mapInArrow(_cut_all, "at LONG, made BINARY, refused BINARY").toArrow()
            except Exception as error:
                raise StorageError(
                    f"Spark could not list the source: {reason_of(error)}.",
                    safe="Nothing of the import is visible.",
                    next="Look at Spark's logs, then import again.",
                ) from error
            found: list[dict[str, Any]] = made.to_pylist()
            return sorted(found, key=lambda row: int(row["at"]))

        for row in watched(self._spark, collected, progress, "listing in slices"):
            if row["refused"]:
                raise pickle.loads(row["refused"])
            yield msgspec.msgpack.decode(row["made"], type=Cut)


def _cut_all(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Cut slices in a task. What is wrong with the source is answered; all else is raised, and Spark tries again."""
    schema = pa.schema([("at", pa.int64()), ("made", pa.binary()), ("refused", pa.binary())])
    for batch in batches:
        for row in batch.to_pylist():
            refuse_other_version(row["version"])
            told: dict[str, object] = {"at": row["at"]}
            try:
                told["made"] = msgspec.msgpack.encode(cut(msgspec.msgpack.decode(row["slice"], type=Slice)))
            except (UsageError, NotFound) as error:
                told["refused"] = pickle.dumps(error)
            yield pa.RecordBatch.from_pylist([told], schema)
