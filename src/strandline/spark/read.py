"""Reading a table with Spark's own Parquet reader.

Partition values come from the *logical* path of a file. Where its physical folders say the same, which they do for all
that strandline wrote and nobody renamed, Spark finds them in the physical path and prunes by them natively. All other
files get them from a literal map keyed by physical path.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any
from urllib.parse import quote

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from strandline.blob import BlobStore
from strandline.errors import UsageError
from strandline.repository.core import RepositoryCore
from strandline.tables.layout import PHYSICAL_ROOT, in_own_place
from strandline.tables.record import RESERVED_COLUMNS, TableRecord
from strandline.tables.table import Table, TableFile

LISTING_PARALLELISM = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
LISTING_TASKS = "4"
"""Spark's default makes a task for every file of an explicit list, which takes most of the planning time."""
_GLOB = re.compile(r"([\[\]{}*?\\])")


def read_table(table: Table, spark: SparkSession, where: str | Column | None) -> DataFrame:
    record = table.record
    files = list(table._files(record))
    core = table.ref._core
    frame = _scan(spark, core, record, files)
    if where is None:
        return frame
    try:
        return frame.where(where)
    except (AnalysisException, ParseException) as error:
        reason = str(error).strip().partition("\n")[0]
        raise UsageError(
            f"The condition {str(where)!r} does not fit table {table.path!r}: {reason}",
            next=f"Its columns are {', '.join(record.names)}.",
        ) from error


def _scan(spark: SparkSession, core: RepositoryCore, record: TableRecord, files: Sequence[TableFile]) -> DataFrame:
    schema = StructType.fromJson({"type": "struct", "fields": list(record.fields)})
    if not files:
        return spark.createDataFrame([], schema)
    native: dict[str, TableFile] = {}
    moved: list[TableFile] = []
    for file in files:
        address = file.info.physical_address
        if address not in native and (not record.partition_by or in_own_place(file.relative, address)):
            native[address] = file
        else:
            moved.append(file)
    with _listing_parallelism(spark):
        frames = []
        if native:
            frames.append(_read_native(spark, core, record, schema, list(native.values())))
        frames += [_read_moved(spark, core, record, schema, layer) for layer in _layers(moved)]
    return reduce(DataFrame.unionByName, frames)


def _layers(files: Sequence[TableFile]) -> list[list[TableFile]]:
    """Splits files so that no layer has a physical file twice: one that is linked twice is read twice."""
    layers: list[dict[str, TableFile]] = []
    for file in files:
        address = file.info.physical_address
        free = next((layer for layer in layers if address not in layer), None)
        if free is None:
            layers.append({address: file})
        else:
            free[address] = file
    return [list(layer.values()) for layer in layers]


def _read_native(
    spark: SparkSession, core: RepositoryCore, record: TableRecord, schema: StructType, files: Sequence[TableFile]
) -> DataFrame:
    reader = spark.read
    if record.partition_by:
        # all writes share one base; its two outer levels appear as columns, which are named so as not to be guessed at
        outer = [StructField(name, StringType()) for name in RESERVED_COLUMNS]
        reader = reader.option("basePath", core.resolver.namespace.spark_url(PHYSICAL_ROOT))
        reader = reader.schema(StructType([*schema.fields, *outer]))
    else:
        reader = reader.schema(schema)
    return reader.parquet(*[_spark_path(core, file) for file in files]).select(*map(_quoted, record.names))


def _read_moved(
    spark: SparkSession, core: RepositoryCore, record: TableRecord, schema: StructType, files: Sequence[TableFile]
) -> DataFrame:
    stored = StructType([field for field in schema.fields if field.name not in record.partition_by])
    paths = [_spark_path(core, file) for file in files]
    # a recursive look-up is the way to keep Spark from reading partitions out of the physical path
    frame = spark.read.schema(stored).option("recursiveFileLookup", "true").parquet(*paths)
    for name in record.partition_by:
        pairs = [
            (_metadata_path(core, file), file.partition[name]) for file in files if file.partition[name] is not None
        ]
        values: Any = F.lit(None)
        if pairs:
            literals = [F.lit(part) for pair in pairs for part in pair]
            values = F.try_element_at(F.create_map(*literals), F.col("_metadata.file_path"))
        frame = frame.withColumn(name, values.cast(schema[name].dataType))
    return frame.select(*map(_quoted, record.names))


def _quoted(name: str) -> Column:
    return F.col("`" + name.replace("`", "``") + "`")


def _spark_path(core: RepositoryCore, file: TableFile) -> str:
    """The path of a file for Spark, which takes some characters of an explicit path for a pattern."""
    store, key = core.resolver.resolve(file.info.physical_address)
    return _GLOB.sub(r"\\\1", store.spark_url(key))


def _metadata_path(core: RepositoryCore, file: TableFile) -> str:
    """The path of a file as `_metadata.file_path` spells it: a URI with its odd characters escaped."""
    store, key = core.resolver.resolve(file.info.physical_address)
    return _uri(store, key)


def _uri(store: BlobStore, key: str) -> str:
    scheme, _, rest = store.spark_url(key).partition("://")
    text = "".join(c if ord(c) > 127 else quote(c, safe="/:@!$&'()*+,;=~-._") for c in rest)
    return f"file:{text}" if scheme == "file" else f"{scheme}://{text}"  # a Hadoop path drops an empty host


@contextmanager
def _listing_parallelism(spark: SparkSession) -> Iterator[None]:
    """Hold Spark's listing parallelism low for the duration of a call, then put it back."""
    before = spark.conf.get(LISTING_PARALLELISM, None)
    spark.conf.set(LISTING_PARALLELISM, LISTING_TASKS)
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(LISTING_PARALLELISM)
        else:
            spark.conf.set(LISTING_PARALLELISM, before)
