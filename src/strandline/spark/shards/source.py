"""The data source "strandline.shard": contents at a time, streams of changes, and sinks.

Spark makes readers and writers in processes of their own beside the driver, and pickles them for the executors. So they
hold names only, and open the lake where they need it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from strandline.errors import UsageError
from strandline.ids import new_id
from strandline.lake import Lake
from strandline.repository.feed import SCHEMA as FEED_SCHEMA
from strandline.repository.feed import Feed
from strandline.shards.handles.durable_reader import DurableReader
from strandline.shards.handles.reader import Reader
from strandline.shards.handles.snapshot import Release, before_since
from strandline.shards.rows.codec import TIME
from strandline.shards.rows.contents import Piece, Rows, Split, contents_by_key, pieces_of
from strandline.shards.rows.updates import update_schema
from strandline.shards.shard import Shard
from strandline.shards.state.frontier import TOP
from strandline.shards.state.state import State
from strandline.spark.shards.options import check_reader, check_writer, open_place, open_shard
from strandline.spark.shards.sink import ShardBatchWriter, ShardStreamWriter

READ_LEASE_S = 3_600
"""How long the files of a batch query stay: longer than most run. Option "lease_s"."""
SPLITS = 8


def register(spark: SparkSession) -> None:
    """Make the formats "strandline.shard" and "strandline.changes" known to a session."""
    spark.dataSource.register(ShardSource)
    spark.dataSource.register(ChangesSource)


class ShardSource(DataSource):
    """Options: lake (a folder or TOML file; by default the environment's), as_of, num_splits, lease_s for reads; reader
    for streams from a shard; writer for streams into one.
    """

    @classmethod
    def name(cls) -> str:
        return "strandline.shard"

    def schema(self) -> StructType:
        lake, shard = open_shard(self.options)
        with lake:
            return from_arrow_schema(update_schema(shard.schema))

    def reader(self, schema: StructType) -> ShardReader:
        return ShardReader(dict(self.options))

    def streamReader(self, schema: StructType) -> ShardStreamReader:  # noqa: N802 - Spark's name
        return ShardStreamReader(dict(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> ShardBatchWriter:
        if overwrite:
            raise UsageError("A shard cannot be overwritten.", next='Use mode("append"); retract rows with _diff = -1.')
        return ShardBatchWriter.planned(dict(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> ShardStreamWriter:  # noqa: N802 - Spark's name
        options = dict(self.options)
        return ShardStreamWriter.planned(options, schema, check_writer(options))


@dataclass
class ContentsPartition(InputPartition):
    """A share of the contents at a time."""

    split: Split
    where: pc.Expression | None = None


@dataclass
class ChangesPartition(InputPartition):
    """Some updates with times in [start, end)."""

    rows: Rows
    pieces: tuple[Piece, ...]
    start: int
    end: int
    where: pc.Expression | None = None


def read_partition(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """What an executor does: it needs the object store only."""
    if isinstance(partition, ContentsPartition):
        yield from partition.split.to_arrow(where=partition.where).to_batches()
        return
    assert isinstance(partition, ChangesPartition)
    for table in partition.rows.read(partition.pieces, where=partition.where):
        times = table.column(TIME)
        wanted = pc.and_(pc.greater_equal(times, partition.start), pc.less(times, partition.end))
        yield from table.filter(wanted).to_batches()


class ShardReader(DataSourceReader):
    """Contents at one time: option "as_of", by default the newest that is complete when the query is planned.

    It takes no filters: Spark 4.1.4 applies those of one query to the next one of the same DataFrame, which then lacks
    rows. `strandline.spark.shards.read` reads natively, with filters and columns pushed down.
    """

    def __init__(self, options: dict[str, str]) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        as_of = self._options.get("as_of")
        count = int(self._options.get("num_splits", SPLITS))
        lake, shard = open_shard(self._options)
        with lake:
            # not closed: its lease keeps the files until the query is over
            reader = shard.reader(lease_s=int(self._options.get("lease_s", READ_LEASE_S)))
            time = reader.snapshot(None if as_of is None else int(as_of)).as_of
            return [ContentsPartition(split) for split in contents_by_key(shard.state, time, shard._open.rows, count)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition)


class ShardStreamReader(DataSourceStreamReader):
    """The contents, then each change once at its time. An offset is a frontier: what lies before it was read.

    A durable reader, named by the option "reader", holds what Spark has not committed, so that a query that is started
    again after a week finds it; a start of the query takes the name over, and a driver that was declared dead and
    goes on is refused when it commits. A leased reader pins the files of the batch under way.
    """

    def __init__(self, options: dict[str, str]) -> None:
        self._options = options
        self._name = check_reader(options)
        self._driver: _Driver | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_driver": None}  # executors get no lake

    def _opened(self) -> _Driver:
        if self._driver is None:
            self._driver = self._make(self._options, self._name)
        return self._driver

    def _make(self, options: dict[str, str], name: str) -> _Driver:
        return _Driver(options, name)

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {"frontier": 0}

    def latestOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {"frontier": self._opened().frontier()}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return self._opened().partitions(start["frontier"], end["frontier"])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition)

    def commit(self, end: dict[str, int]) -> None:
        self._opened().commit(end["frontier"])

    def stop(self) -> None:
        if self._driver is not None:
            self._driver.close()


class _Driver:
    """What the driver's process of a streaming query holds."""

    def __init__(self, options: dict[str, str], name: str) -> None:
        self.lake: Lake
        self.where: pc.Expression | None = None
        self.lake, self.shard = self._open(options)
        self._durable: DurableReader = self.shard.durable_reader(name)
        self._durable.claim(new_id())
        self._leased: Reader = self.shard.reader()
        self._pins: dict[int, Release] = {}
        self._lock = threading.Lock()

    def _open(self, options: dict[str, str]) -> tuple[Lake, Shard]:
        return open_shard(options)

    def frontier(self) -> int:
        """How far can be read; 0 as long as nothing can, since the shard forgot more than it holds."""
        state = self.shard.state
        return state.upper if state.upper > state.since else 0

    def partitions(self, start: int, end: int) -> Sequence[InputPartition]:
        """The updates between two frontiers; before the first one, the contents at what the reader holds.

        Until Spark commits, what the durable reader holds does not move: so a batch that is planned again is the same.

        Raises:
            BeforeSince: what comes after the start was compacted: the checkpoint is older than what the reader holds.
        """
        with self._lock:
            self._pins[end] = self._leased._hold(self.shard._machine.state.seqno)
        if start >= end:
            return []
        state = self.shard.state
        rows = self.shard._open.rows
        found: list[InputPartition] = []
        if start == 0:
            as_of = min(max(self._durable.since.bound, state.since), _last(state, end))
            splits = contents_by_key(state, as_of, rows, SPLITS)
            found += [ContentsPartition(split, self.where) for split in splits]
            start = as_of + 1
        for batch in state.batches:
            is_told = batch.upper <= start or batch.lower >= end
            if not is_told and (batch.since > start or (batch.since == start and batch.lower < start)):
                raise before_since(self.shard.name, start - 1, batch.since)
        shares: list[list[Piece]] = [[] for _ in range(SPLITS)]
        pieces = [
            piece
            for batch in state.batches
            if batch.upper > start
            for piece in pieces_of(batch)
            if piece.part.last >= start and piece.part.first < end
        ]
        for number, piece in enumerate(sorted(pieces, key=lambda piece: -piece.part.rows)):
            shares[number % SPLITS].append(piece)
        return found + [ChangesPartition(rows, tuple(share), start, end, self.where) for share in shares if share]

    def commit(self, end: int) -> None:
        with self._lock:
            for pinned in [pinned for pinned in self._pins if pinned <= end]:
                self._pins.pop(pinned)()
        # at the end of a finished shard its last contents are held: giving up all would end the shard
        since = _last(self.shard.state, end)
        self._durable.downgrade_since(max(since, self._durable.since.bound))
        self._leased.downgrade_since(max(since, self._leased.since.bound))

    def close(self) -> None:
        self._leased.close()
        self.lake.close()


class ChangesSource(DataSource):
    """A stream of the files below a path that came and went.

    `load("repository/branch/path")`; options: lake, reader.
    """

    @classmethod
    def name(cls) -> str:
        return "strandline.changes"

    def schema(self) -> StructType:
        return from_arrow_schema(update_schema(FEED_SCHEMA))

    def streamReader(self, schema: StructType) -> ChangesStreamReader:  # noqa: N802 - Spark's name
        return ChangesStreamReader(dict(self.options))


class ChangesStreamReader(ShardStreamReader):
    """Like that of a shard, of the feed of a branch, which each step records first."""

    def _make(self, options: dict[str, str], name: str) -> _Driver:
        return _FeedDriver(options, name)


class _FeedDriver(_Driver):
    feed: Feed

    def _open(self, options: dict[str, str]) -> tuple[Lake, Shard]:
        lake, repository, branch, path = open_place(options)
        self.feed = lake.repository(repository).branch(branch).feed
        self.feed.record()
        if path:
            self.where = pc.starts_with(pc.field("path"), path if path.endswith("/") else path + "/")
        return lake, self.feed.shard

    def frontier(self) -> int:
        self.feed.record()
        return super().frontier()


def _last(state: State, end: int) -> int:
    """The last time before a frontier; of the end of all times, that of the last update."""
    if end < TOP:
        return max(0, end - 1)
    return max(state.since, *(part.last for batch in state.batches for part in batch.parts), 0)
