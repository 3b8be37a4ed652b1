"""Shards read and written by Spark itself: files that it wrote become parts as they are, and parts are files it
reads."""

from __future__ import annotations

from functools import reduce

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField

from strandline.blob import BlobStore
from strandline.errors import StorageError, UsageError
from strandline.ids import new_id
from strandline.parallel import in_parallel
from strandline.shards.rows.batches import WrittenBatch
from strandline.shards.rows.codec import DIFF, TIME
from strandline.shards.rows.contents import Split
from strandline.shards.rows.updates import update_schema
from strandline.shards.shard import Shard
from strandline.shards.state.frontier import TOP
from strandline.shards.state.state import Part
from strandline.spark.read import quoted
from strandline.spark.session import described, held_settings, reason_of
from strandline.spark.shards.sink import check_columns

READ_LEASE_S = 3_600
TIMESTAMPS = {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}
JOB_OPTIONS = {
    "partitionOverwriteMode": "static",  # the magic committer breaks in sessions that set it to dynamic
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",  # files are parts when they are appended
}


def append(
    shard: Shard, data: DataFrame, *, writer: str = "", epoch: int | None = None, token: str | None = None
) -> int | None:
    """Append a DataFrame at the next time: in `foreachBatch`, exactly once.

    Args:
        data: with the columns of the shard and perhaps `_diff`.
        writer: a name of the query, the same at each of its starts.
        epoch: the batch id that `foreachBatch` is given: an epoch of a writer is appended once.
        token: without an epoch, names this append: with the same token, and the same writer if one is given, it is done
            once, as long as that writer appends nothing else.

    Returns:
        The time of the rows, or None if the epoch was appended before.

    Raises:
        SchemaMismatch: the columns are not those of the shard. Nothing was run.
        StorageError: Spark failed. Nothing was appended.
    """
    if epoch is not None and not writer:
        raise UsageError("An epoch needs a writer.", next='Give writer="…", the same at each start of the query.')
    check_columns(shard, data.schema)
    handle = shard.writer(writer or (f"token-{token}" if token else ""))
    if epoch is not None:
        known = shard.state.writers.get(handle.id)
        if known is not None and epoch <= known.epoch:
            return None  # nothing is run again
    batch = written(shard, data)
    if epoch is None:
        return handle.append_next([batch], token=token)
    return handle.append_epoch([batch], epoch)


def read(spark: SparkSession, shard: Shard, as_of: int | None = None, *, lease_s: int = READ_LEASE_S) -> DataFrame:
    """The contents at a time as a DataFrame: the columns of the shard, then `_time` and `_diff`, consolidated.

    Spark reads the files itself, with filters and columns pushed down to them.

    Args:
        as_of: by default the newest time that is complete.
        lease_s: how long the files stay at least; the read has to end within.
    """
    reader = shard.reader(lease_s=lease_s)  # not closed: its lease keeps the files until the query is over
    split = reader.snapshot(as_of).splits[0]
    schema = from_arrow_schema(update_schema(shard.schema))
    frames: dict[tuple[bool, int | None, int | None], list[str]] = {}
    inline = []
    place = shard._machine.place
    for piece in split.pieces:
        part = piece.part
        if not part.key:
            inline.append(piece)
            continue
        end = min(piece.upper if piece.upper is not None else TOP, split.as_of + 1)
        begins_before = piece.lower is not None and part.first < piece.lower
        kind = (part.has_times, piece.lower if begins_before else None, end if part.last >= end else None)
        frames.setdefault(kind, []).append(place.blobs.spark_url(place.blob_key(part.key)))
    found: list[DataFrame] = []
    for (has_times, lower, upper), urls in frames.items():
        frame = spark.read.schema(schema).parquet(*urls)
        if has_times and lower is not None:
            frame = frame.where(F.col(TIME) >= lower)
        if has_times and upper is not None:
            frame = frame.where(F.col(TIME) < upper)
        found.append(frame)
    if inline:
        table = Split(split.rows, split.as_of, tuple(inline)).to_arrow(blobs=place.blobs)
        found.append(spark.createDataFrame(table, schema))
    if not found:
        return spark.createDataFrame([], schema)
    rows = [quoted(name) for name in shard.schema.names]
    diffs = F.coalesce(F.col(DIFF), F.lit(1)).cast("bigint").alias(DIFF)
    whole = reduce(DataFrame.unionByName, [frame.select(*rows, diffs) for frame in found])
    if not split.is_distinct:
        whole = whole.groupBy(*rows).agg(F.sum(DIFF).alias(DIFF)).where(F.col(DIFF) != 0)
    return whole.select(*rows, F.lit(split.as_of).cast("bigint").alias(TIME), DIFF)


def written(shard: Shard, data: DataFrame, time: int = 0) -> WrittenBatch:
    """Let Spark write a DataFrame as parts of a shard, at a time, that nobody refers to yet."""
    place = shard._machine.place
    owner = f"spark-{new_id()}"
    has_diffs = DIFF in data.columns
    left_out = {TIME} if has_diffs else {TIME, DIFF}
    fields = [field for field in update_schema(shard.schema) if field.name not in left_out]
    keys = written_files(shard, _fitting(data, fields), owner, "append to")

    def part(key: str) -> Part:
        with place.blobs.open_read(key) as source:
            rows = pq.read_metadata(source).num_rows
        size = place.blobs.head(key).size
        relative = key.removeprefix(place.folder + "/")
        return Part(relative, b"", rows, size, shard._open.schema_id, time, time, False, has_diffs, False)

    return WrittenBatch(shard.id, time, time + 1, tuple(part for part in in_parallel(part, keys) if part.rows))


def _fitting(data: DataFrame, fields: list[pa.Field]) -> DataFrame:
    """With the columns that are wanted: of their types, null where they are missing; a null that may not be fails the
    job.

    Each column that is built costs a micro-batch milliseconds of talk with Spark's JVM: what fits is left alone.
    """
    wanted = from_arrow_schema(pa.schema(fields)).fields
    if [(field.name, field.dataType) for field in data.schema.fields] == [(w.name, w.dataType) for w in wanted]:
        demanded = [w.name for w, found in zip(wanted, data.schema.fields, strict=True) if found.nullable > w.nullable]
        return data.withColumns({name: _demanded(quoted(name), name) for name in demanded}) if demanded else data
    return data.select(*(_column(field, data.columns) for field in wanted))


def _column(field: StructField, given: list[str]) -> Column:
    column = quoted(field.name) if field.name in given else F.lit(None)
    if not field.nullable:
        column = _demanded(column, field.name)
    return column.cast(field.dataType).alias(field.name)


def _demanded(column: Column, name: str) -> Column:
    return F.coalesce(column, F.raise_error(F.lit(f"{name} is null")))


def written_files(shard: Shard, data: DataFrame, owner: str, purpose: str) -> list[str]:
    """Let Spark write a DataFrame below a name in a shard's folder; the keys of the files, which are durable.

    Raises:
        StorageError: Spark failed. Nobody refers to what it left.
    """
    place, spark = shard._machine.place, data.sparkSession
    folder = place.blob_key(owner)
    try:
        with described(spark, f"strandline: {purpose} shard {shard.name}"), held_settings(spark, TIMESTAMPS):
            data.write.mode("error").options(**JOB_OPTIONS).parquet(place.blobs.spark_url(folder))
    except Exception as error:
        raise StorageError(
            f"Spark failed to {purpose} shard {shard.name!r}: {reason_of(error)}.",
            safe="The shard is as it was.",
            next="Mend the job, then run it again.",
        ) from error
    keys = committed_files(place.blobs, folder + "/")
    place.blobs.sync(keys)
    return keys


def committed_files(blobs: BlobStore, folder: str) -> list[str]:
    """The files of a job: only those that it committed, as a task that was given up may still write further below."""
    keys = blobs.list_keys(folder)
    return sorted(key for key in keys if key.endswith(".parquet") and "/" not in key[len(folder) :])
