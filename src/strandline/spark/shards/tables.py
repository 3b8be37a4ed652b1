"""From a shard to a table of a branch, and back."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from strandline.errors import UpperMismatch, UsageError
from strandline.repository.branch import Branch
from strandline.repository.refs.ref import Ref
from strandline.repository.transactions.transaction import TransactionResult
from strandline.shards.rows.codec import DIFF
from strandline.shards.shard import Shard
from strandline.shards.state.frontier import TOP
from strandline.spark.read import quoted
from strandline.spark.shards.native import read, written

SHARD_METADATA = "strandline.shard"
TIME_METADATA = "strandline.shard.time"
_OLD, _NEW = "_before", "_after"


def materialise(
    spark: SparkSession, shard: Shard, branch: Branch, path: str, *, as_of: int | None = None, writer: str = ""
) -> TransactionResult:
    """Write the contents of a shard at a time as a table, in one transaction; its commit says which shard and time.

    Args:
        as_of: by default the newest time that is complete. A time that the writer published before is not written
            again.
        writer: of the transaction; by default named after the shard.

    Raises:
        UsageError: a row is there several times, or fewer than no times, which no table can hold.
        BeforeSince, ShardTimeout: of the time.
    """
    time = shard.snapshot(as_of).as_of
    contents = read(spark, shard, time)
    odd = contents.where(F.col(DIFF) != 1).limit(1).collect()
    if odd:
        raise UsageError(
            f"A row of {shard.name!r} is there {odd[0][DIFF]} times at {time}, which a table cannot say.",
            next="Aggregate strandline.spark.shards.read(…) and write that.",
        )
    metadata = {SHARD_METADATA: shard.name, TIME_METADATA: str(time)}
    name = writer or f"shard-{shard.name}"
    message = f"{shard.name} at {time}"
    with branch.transaction(name, message, token=f"{shard.id}:{time}:{path}", metadata=metadata) as tx:
        tx.table(path).write(contents.select(*_rows(shard)), mode="overwrite")
    return tx.result


def absorb(spark: SparkSession, shard: Shard, ref: Ref, path: str, *, writer: str = "") -> int | None:
    """Make the contents of a shard those of a table, as it is committed: what is new is appended, what is gone is
    retracted, at one time.

    What others append meanwhile is looked at before the changes are there, so that they fit what they change.

    Args:
        writer: the name of the writer that appends; see `Shard.writer`.

    Returns:
        The time, or None if the shard held exactly that.

    Raises:
        UpperMismatch: the shard is finished.
    """
    committed = ref._core.open(str(ref.commit_id))
    after = _counted(_padded(committed.table(path).to_spark(spark), shard), F.count(F.lit(1)), shard, _NEW)
    handle = shard.writer(writer)
    while True:
        upper = shard.state.upper
        if upper == TOP:
            raise handle._finished()
        if upper:
            before = _counted(read(spark, shard, upper - 1), F.sum(DIFF), shard, _OLD)
        else:
            before = after.limit(0).withColumnRenamed(_NEW, _OLD)
        changes = _difference(before, after, shard)
        if changes.isEmpty():
            return None
        try:
            handle.compare_and_append_batches([written(shard, changes, upper)], upper, upper + 1)
        except UpperMismatch:
            continue
        return upper


def _difference(before: DataFrame, after: DataFrame, shard: Shard) -> DataFrame:
    rows = _rows(shard)
    # nulls are equal here, so a join by columns would lose them
    both = after.select(*rows, F.col(_NEW).alias(DIFF)).unionByName(before.select(*rows, (-F.col(_OLD)).alias(DIFF)))
    return both.groupBy(*rows).agg(F.sum(DIFF).cast("bigint").alias(DIFF)).where(F.col(DIFF) != 0)


def _rows(shard: Shard) -> list[Column]:
    return [quoted(name) for name in shard.schema.names]


def _padded(frame: DataFrame, shard: Shard) -> DataFrame:
    """With nulls for the columns that a table lacks.

    Raises:
        UsageError: it has columns that the shard has not.
    """
    unknown = sorted(set(frame.columns) - set(shard.schema.names))
    if unknown:
        raise UsageError(f"The table has columns that {shard.name!r} has not: {', '.join(unknown)}.")
    fields = from_arrow_schema(shard.schema).fields
    return frame.select(
        *(
            (quoted(field.name) if field.name in frame.columns else F.lit(None)).cast(field.dataType).alias(field.name)
            for field in fields
        )
    )


def _counted(frame: DataFrame, count: Column, shard: Shard, name: str) -> DataFrame:
    return frame.groupBy(*_rows(shard)).agg(count.cast("bigint").alias(name))
