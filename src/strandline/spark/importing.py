"""Imports in slices by Spark's executors: they get the addresses of the stores, and find credentials where they run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession

from strandline import errors
from strandline.errors import StorageError, StrandlineError, UsageError
from strandline.progress import Progress
from strandline.repository.commits.slices import Cut, Slice, Workers, cut
from strandline.spark.session import described, parallelism, reason_of, watched
from strandline.spark.versions import refuse_other_versions

SLICES_PER_CORE = 4
"""Nobody knows how much lies in a slice; with several of them for each core none waits long for the largest one."""


def import_workers(spark: SparkSession) -> Workers:
    """Workers that cut each slice in a task of a Spark job.

    Raises:
        UsageError: it is no session.
    """
    if type(spark).__module__.partition(".")[0] != "pyspark":
        raise UsageError(f"{spark!r} is not a Spark session.", next="Give a SparkSession, or leave it out.")
    return _OnSpark(spark)


class _OnSpark:
    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    @property
    def wanted(self) -> int:
        return SLICES_PER_CORE * parallelism(self._spark)

    def run(self, slices: Sequence[Slice], progress: Progress) -> Iterator[Cut]:
        refuse_other_versions(self._spark)
        rows = pa.table({"at": range(len(slices)), "slice": [msgspec.msgpack.encode(one) for one in slices]})
        frame = self._spark.createDataFrame(rows).repartitionByRange(len(slices), "at")
        try:
            with described(self._spark, f"strandline: list {len(slices)} slices of a source"):
                done = frame.mapInArrow(_cut_all, "at LONG, made BINARY, error STRING, message STRING, next STRING")
                found = watched(self._spark, lambda: done.toArrow().to_pylist(), progress, "listing in slices")
        except Exception as error:
            raise StorageError(
                f"Spark could not list the source: {reason_of(error)}.",
                safe="Nothing of the import is visible.",
                next="Look at Spark's logs, then import again.",
            ) from error
        for row in sorted(found, key=lambda row: int(row["at"])):
            if row["error"]:
                raise _as_raised(row["error"], row["message"], row["next"])
            yield msgspec.msgpack.decode(row["made"], type=Cut)


def _cut_all(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    schema = pa.schema(
        [("at", pa.int64()), ("made", pa.binary()), *((name, pa.string()) for name in ("error", "message", "next"))]
    )
    for batch in batches:
        for row in batch.to_pylist():
            told: dict[str, object] = {"at": row["at"]}
            try:
                told["made"] = msgspec.msgpack.encode(cut(msgspec.msgpack.decode(row["slice"], type=Slice)))
            except StrandlineError as error:
                told |= {"error": type(error).__name__, "message": error.what, "next": str(error.next)}
            yield pa.RecordBatch.from_pylist([told], schema)


def _as_raised(name: str, message: str, advice: str) -> StrandlineError:
    """The error of a task, as the driver would have raised it."""
    kind = getattr(errors, name, StorageError)
    found: StrandlineError = kind(message, safe="Nothing of the import is visible.", next=advice)
    return found
