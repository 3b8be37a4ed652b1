"""Merging all batches of a large shard as a Spark job: Spark reads, adds up, sorts and writes, and one swap follows."""

from __future__ import annotations

from collections import defaultdict
from functools import reduce

import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from strandline.ids import new_id
from strandline.parallel import in_parallel
from strandline.shards.rows.codec import DIFF, TIME
from strandline.shards.rows.contents import Piece, pieces_of
from strandline.shards.rows.updates import concatenated, update_schema
from strandline.shards.shard import Shard
from strandline.shards.state.frontier import TOP
from strandline.shards.state.state import Batch, Part, State
from strandline.shards.state.trace import Merge
from strandline.shards.upkeep.compaction import Compaction, apply
from strandline.spark.read import quoted
from strandline.spark.shards.native import written_files

FILE_ROWS = 2_000_000
"""About how many updates a file gets."""


def compact(spark: SparkSession, shard: Shard, *, lease_s: int = 3_600) -> Compaction | None:
    """Merge everything into one batch and forget what lies before the shard's since; None if there is nothing to merge.

    Like every compaction it may be stopped at any moment, or be too late: then the shard is as it was.

    Args:
        lease_s: how long the files that it reads stay at least.

    Raises:
        StorageError: Spark failed. Nothing was changed.
    """
    with shard.reader(lease_s=lease_s) as reader:
        release = reader._hold(shard._machine.state.seqno)
        state = shard.state
        batches = state.batches
        if state.since == TOP or not batches or (len(batches) == 1 and batches[0].since == state.since):
            return None
        rows = sum(batch.rows for batch in batches)
        parts = _merged(spark, shard, state)
        one_time = len({(part.first, part.last) for part in parts}) <= 1 and all(p.first == p.last for p in parts)
        output = Batch(new_id(), batches[0].lower, batches[-1].upper, state.since, parts, is_distinct=one_time)
        outcome = apply(shard._machine, Merge(tuple(batch.id for batch in batches), output))
        release()
    return Compaction(outcome, len(batches), rows, output.rows)


def _merged(spark: SparkSession, shard: Shard, state: State) -> tuple[Part, ...]:
    names = [quoted(name) for name in shard.schema.names]
    key = [quoted(name) for name in shard.key]
    updates = _updates(spark, shard, state)
    files = max(1, sum(batch.rows for batch in state.batches) // FILE_ROWS)
    merged = updates.groupBy(*names, TIME).agg(F.sum(DIFF).alias(DIFF)).where(F.col(DIFF) != 0)
    ordered = merged.repartitionByRange(files, *key).sortWithinPartitions(*key, TIME)
    place = shard._machine.place
    keys = written_files(shard, ordered, f"spark-compaction-{new_id()}", "compact")

    def part(name: str) -> Part:
        with place.blobs.open_read(name) as source:
            metadata = pq.read_metadata(source)
        at = metadata.schema.names.index(TIME)
        times = [metadata.row_group(group).column(at).statistics for group in range(metadata.num_row_groups)]
        first, last = min((one.min for one in times), default=0), max((one.max for one in times), default=0)
        size = place.blobs.head(name).size
        relative = name.removeprefix(place.folder + "/")
        return Part(relative, b"", metadata.num_rows, size, state.schema_id, first, last, True, True, True)

    return tuple(found for found in in_parallel(part, keys) if found.rows)


def _updates(spark: SparkSession, shard: Shard, state: State) -> DataFrame:
    """All updates, their times moved up to the since."""
    place = shard._machine.place
    schema = from_arrow_schema(update_schema(shard.schema))
    names = [quoted(name) for name in shard.schema.names]
    kinds: dict[tuple[bool, int, int | None, int | None], list[str]] = defaultdict(list)
    inline: list[Piece] = []
    for batch in state.batches:
        for piece in pieces_of(batch):
            part = piece.part
            if not part.key:
                inline.append(piece)
                continue
            time = 0 if part.has_times else max(part.first, state.since)
            url = place.blobs.spark_url(place.blob_key(part.key))
            kinds[part.has_times, time, piece.lower, piece.upper].append(url)
    frames = []
    for (has_times, time, lower, upper), urls in kinds.items():
        frame = spark.read.schema(schema).parquet(*urls)
        at: Column = F.lit(time).cast("bigint")
        if has_times:
            at = F.greatest(F.col(TIME), F.lit(state.since))
            if lower is not None and upper is not None:
                frame = frame.where((F.col(TIME) >= lower) & (F.col(TIME) < upper))
        diffs = F.coalesce(F.col(DIFF), F.lit(1)).cast("bigint")
        frames.append(frame.select(*names, at.cast("bigint").alias(TIME), diffs.alias(DIFF)))
    if inline:
        table = concatenated(shard._open.rows.read(inline, place.blobs), shard.schema)
        frame = spark.createDataFrame(table, schema)
        frames.append(frame.withColumn(TIME, F.greatest(F.col(TIME), F.lit(state.since)).cast("bigint")))
    return reduce(DataFrame.unionByName, frames) if frames else spark.createDataFrame([], schema)
