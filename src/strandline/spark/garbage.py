"""The mark of a garbage collection as a Spark job: ranges are Parquet, and Spark finds the addresses in them."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from strandline.core.repository_core import RepositoryCore
from strandline.errors import StorageError
from strandline.progress import Progress
from strandline.repository.upkeep.files import Files
from strandline.repository.upkeep.garbage import Marker
from strandline.spark.read import LISTING_PARALLELISM, LISTING_TASKS
from strandline.spark.session import described, held_settings, reason_of
from strandline.tree.range_file import RangeInfo

RANGES_PER_READ = 5_000


def marker(spark: SparkSession) -> Marker:
    """A marker that lets Spark read the ranges and find the distinct addresses in them."""

    def mark(core: RepositoryCore, files: Files, ranges: list[RangeInfo], progress: Progress) -> None:
        blobs = core.resolver.namespace
        with described(spark, f"strandline: mark what {core.name} refers to"):
            for first in range(0, len(ranges), RANGES_PER_READ):
                progress("reading metadata on Spark", first, len(ranges))
                urls = [blobs.spark_url(info.address) for info in ranges[first : first + RANGES_PER_READ]]
                files.mark(_addresses(spark, urls))

    return mark


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
