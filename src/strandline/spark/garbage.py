"""The mark of a garbage collection as a Spark job: ranges are Parquet, and Spark finds the addresses in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from strandline.blob import open_store
from strandline.core.iceberg_files import MEND, Named, named_by
from strandline.core.repository_core import RepositoryCore
from strandline.errors import Corrupted, StorageError, StrandlineError
from strandline.progress import Progress
from strandline.repository.upkeep.files import Files
from strandline.repository.upkeep.garbage import Marker, MarkerHere
from strandline.spark.read import LISTING_PARALLELISM, LISTING_TASKS
from strandline.spark.session import described, held_settings, reason_of
from strandline.spark.versions import refuse_other_versions
from strandline.tree.range_file import RangeInfo

RANGES_PER_READ = 5_000
MANIFEST_TASKS = 200
WALKED = ("metadata", "list", "manifest")
"""What is read of Iceberg's files, each kind naming the next ones."""
NAMED = ("kind", "key", "source")


def marker(spark: SparkSession) -> Marker:
    """A marker that lets Spark read, and find the distinct addresses in what was read."""
    return _OnSpark(spark)


class _OnSpark:
    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def ranges(self, core: RepositoryCore, files: Files, ranges: list[RangeInfo], progress: Progress) -> None:
        blobs = core.resolver.namespace
        with described(self._spark, f"strandline: mark what {core.name} refers to"):
            for first in range(0, len(ranges), RANGES_PER_READ):
                progress("reading metadata on Spark", first, len(ranges))
                urls = [blobs.spark_url(info.address) for info in ranges[first : first + RANGES_PER_READ]]
                files.mark(_addresses(self._spark, urls))

    def iceberg(self, core: RepositoryCore, files: Files, metadata: list[str], progress: Progress) -> None:
        """Metadata, manifest lists and manifests are read in Python workers, a job for each kind; each file once."""
        blobs = core.stores.trees.blobs
        if blobs.own is not blobs:  # a lake without its bytes reads them from another one's as well
            MarkerHere().iceberg(core, files, metadata, progress)
            return
        if metadata:
            refuse_other_versions(self._spark)
        pending: dict[str, dict[str, Named]] = {kind: {} for kind in WALKED}
        pending["metadata"] = {key: Named("metadata", key, key) for key in metadata}
        with described(self._spark, f"strandline: mark what Iceberg tables of {core.name} refer to"):
            for kind, wanted in pending.items():
                progress(f"reading Iceberg's {kind} files on Spark", 0, len(wanted))
                found = _named(self._spark, blobs.url, list(wanted.values()))
                files.mark(pa.array([one.key for one in found], pa.string()))
                for one in found:
                    if one.kind in pending:
                        pending[one.kind][one.key] = one


def _named(spark: SparkSession, url: str, wanted: Sequence[Named]) -> list[Named]:
    """What some files of Iceberg's name, each once.

    Raises:
        Corrupted: one of them cannot be read.
    """
    if not wanted:
        return []
    columns = {name: pa.array([getattr(one, name) for one in wanted], pa.string()) for name in NAMED}
    rows = spark.createDataFrame(pa.table(columns)).repartition(min(len(wanted), MANIFEST_TASKS))
    try:
        read = rows.mapInArrow(_reads(url), "kind STRING, key STRING, source STRING, error STRING")
        found = read.dropDuplicates(["kind", "key", "error"]).toArrow().to_pylist()
    except Exception as error:
        raise StorageError(
            f"Spark could not read the metadata of Iceberg tables: {reason_of(error)}.",
            safe="Nothing was deleted.",
            next="Run `strandline fsck`, or collect without Spark.",
        ) from error
    for row in found:
        if row["error"]:
            raise Corrupted(row["error"], next=MEND)
    return [Named(row["kind"], row["key"], row["source"]) for row in found]


def _reads(url: str) -> Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]:
    """Reads files in a Python worker, which gets the address of the store and finds credentials where it runs."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        blobs = open_store(url)
        schema = pa.schema([(name, pa.string()) for name in (*NAMED, "error")])
        for batch in batches:
            found: list[dict[str, str | None]] = []
            for row in batch.to_pylist():
                try:
                    named = named_by(blobs, Named(row["kind"], row["key"], row["source"]))
                except StrandlineError as error:
                    found.append({"kind": "file", "key": row["key"], "source": row["source"], "error": error.what})
                else:
                    found += [{"kind": o.kind, "key": o.key, "source": o.source, "error": None} for o in named]
            yield pa.RecordBatch.from_pylist(found, schema)

    return run


def _addresses(spark: SparkSession, urls: Sequence[str]) -> pa.StringArray:
    """The distinct physical addresses in ranges that are keys of this repository."""
    with held_settings(spark, {LISTING_PARALLELISM: LISTING_TASKS}):
        # a session may be set to skip what it cannot read: here that would be taken for garbage
        reader = spark.read.schema("physical_address STRING")
        for name in ("ignoreCorruptFiles", "ignoreMissingFiles"):
            reader = reader.option(name, "false")
        column = F.col("physical_address")
        try:
            rows = reader.parquet(*urls)
            found: pa.Table = rows.where(~column.contains("://")).select(column).distinct().toArrow()
        except Exception as error:
            raise StorageError(
                f"Spark could not read the metadata: {reason_of(error)}.",
                safe="Nothing was deleted.",
                next="Run `strandline fsck`, or collect without Spark.",
            ) from error
    addresses: pa.StringArray = found.column(0).cast(pa.string()).combine_chunks()
    return addresses
