"""Writing to a shard by Spark's Python writers: executors write parts, the driver appends all of them at one
instant."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from strandline.blob import open_store
from strandline.errors import SchemaMismatch
from strandline.ids import new_id
from strandline.shards.rows.batches import PART_TARGET_BYTES, BatchBuilder, WrittenBatch
from strandline.shards.rows.codec import DIFF, TIME, described, fits
from strandline.shards.rows.contents import Rows
from strandline.shards.rows.parts import PartWriter
from strandline.shards.shard import Shard
from strandline.shards.state.state import ShardId
from strandline.spark.shards.options import open_shard, query_of


@dataclass
class Written(WriterCommitMessage):
    """What a task wrote: nobody knows of it until the driver appends it."""

    batch: WrittenBatch


@dataclass(frozen=True)
class Target:
    """Where tasks write; pickles without secrets."""

    shard: ShardId
    rows: Rows
    schema_id: int

    @classmethod
    def of(cls, shard: Shard) -> Target:
        return cls(shard.id, shard._open.rows, shard._open.schema_id)

    def write(self, batches: Iterator[pa.RecordBatch]) -> Written:
        """Write what a task has. Attempts that fail or are too many leave files that nobody refers to."""
        codec = self.rows.make_codec()
        parts = PartWriter(open_store(self.rows.url), self.rows.folder, f"spark-{new_id()}", self.schema_id, 0)
        with BatchBuilder(self.shard, parts, codec, 0, 1, PART_TARGET_BYTES) as builder:
            for batch in batches:
                builder.add(batch)
            return Written(builder.finish())


def check_columns(shard: Shard, schema: StructType) -> None:
    """Demand that a DataFrame has the columns of a shard, and perhaps diffs, before anything runs.

    Raises:
        SchemaMismatch: it has not.
    """
    unknown = [name for name in schema.names if name not in (*shard.schema.names, DIFF)]
    missing = [field.name for field in shard.schema if field.name not in schema.names and not field.nullable]
    if not unknown and not set(schema.names) & set(shard.schema.names):
        raise SchemaMismatch(
            f"The data has no column of the shard {shard.name!r}.", next=f"Its schema is {described(shard.schema)}."
        )
    if len(set(schema.names)) < len(schema.names):
        twice = next(name for name in schema.names if schema.names.count(name) > 1)
        raise SchemaMismatch(f"The data has the column {twice!r} twice.", next="Rename one of them, or leave it away.")
    if unknown or missing:
        what = f"{unknown[0]!r} is not one of its columns" if unknown else f"the column {missing[0]!r} is missing"
        hint = " Times are given by the shard." if TIME in unknown else ""
        raise SchemaMismatch(
            f"The data does not fit the shard {shard.name!r}: {what}.{hint}",
            next=f"Its schema is {described(shard.schema)}.",
        )
    for given in to_arrow_schema(schema):
        wanted = pa.int64() if given.name == DIFF else shard.schema.field(given.name).type
        if not fits(given.type, wanted):
            raise SchemaMismatch(
                f"Column {given.name!r} is {given.type}, which does not fit the {wanted} of shard {shard.name!r}.",
                next="Cast it.",
            )


class ShardBatchWriter(DataSourceArrowWriter):
    """Appends a DataFrame at the next time. With the option "token", a repeated job does nothing."""

    def __init__(self, options: dict[str, str], target: Target) -> None:
        self._options = options
        self._target = target

    @classmethod
    def planned(cls, options: dict[str, str], schema: StructType) -> Self:
        lake, shard = open_shard(options)
        with lake:
            check_columns(shard, schema)
            return cls(options, Target.of(shard))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return self._target.write(iterator)

    def commit(self, messages: list[Any]) -> None:
        token = self._options.get("token")
        lake, shard = open_shard(self._options)
        with lake:
            writer = shard.writer(self._options.get("writer", "") or (f"token-{token}" if token else ""))
            writer.append_next(_batches(messages), token=token)

    def abort(self, messages: list[Any]) -> None:
        """Nothing: whether an append happened is not known here, and the sweeper finds what nobody refers to."""


class ShardStreamWriter(DataSourceStreamArrowWriter):
    """Appends each epoch of a streaming query once, whichever driver commits it, and how often."""

    def __init__(self, options: dict[str, str], target: Target, name: str) -> None:
        self._options = options
        self._target = target
        self._name = name

    @classmethod
    def planned(cls, options: dict[str, str], schema: StructType, name: str) -> Self:
        lake, shard = open_shard(options)
        with lake:
            check_columns(shard, schema)
            return cls(options, Target.of(shard), name)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return self._target.write(iterator)

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803 - Spark's name
        lake, shard = open_shard(self._options)
        with lake:
            query = query_of(self._options)
            shard.writer(self._name).append_epoch(_batches(messages), batchId, query=query)

    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Nothing, as in a batch: an attempt to append may have happened."""


def _batches(messages: list[Any]) -> list[WrittenBatch]:
    return [message.batch for message in messages if isinstance(message, Written)]
