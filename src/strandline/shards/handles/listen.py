"""The changes of a shard, as they come."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from strandline.arguments import checked
from strandline.blob.store import BlobNotFound
from strandline.errors import ReaderExpired
from strandline.shards.handles.open_shard import OpenShard, wait_for_upper
from strandline.shards.handles.snapshot import SNAPSHOT_ATTEMPTS, before_since
from strandline.shards.rows.codec import TIME, Codec, Update
from strandline.shards.rows.contents import as_tuples, pieces_of
from strandline.shards.rows.updates import concatenated
from strandline.shards.state.frontier import Antichain, antichain, bound_of
from strandline.shards.state.state import State


@dataclass(frozen=True, slots=True)
class Changes:
    """What a listen tells: updates, each once and at its time, and how far they are complete.

    Attributes:
        updates: the columns of the shard, `_time` and `_diff`; perhaps none.
        frontier: all updates at times before it are out.
    """

    updates: pa.Table
    frontier: Antichain
    _codec: Codec

    def to_list(self) -> list[Update]:
        """The updates, as `(row, time, diff)`."""
        return list(as_tuples(self.updates, self._codec))


@checked()
class Listen:
    """The changes of a shard after a time, as they come. An iterator of `Changes`; for one thread.

    Attributes:
        frontier: updates before it were told.
    """

    def __init__(self, shard: OpenShard, as_of: int, timeout_s: float) -> None:
        self._shard = shard
        self._frontier = as_of + 1
        self._timeout_s = timeout_s

    @property
    def frontier(self) -> Antichain:
        """The time up to which all changes were returned."""
        return antichain(self._frontier)

    @property
    def as_of(self) -> int:
        """The time that a new listen would go on from; what a reader must hold for this one to go on."""
        return self._frontier - 1

    def __iter__(self) -> Iterator[Changes]:
        return self

    def __next__(self) -> Changes:
        if self.frontier.is_empty:
            raise StopIteration
        return self.next(self._timeout_s)

    def next(self, timeout_s: float | None = None) -> Changes:
        """The next updates, or the news that there are none up to some time; at the end of a finished shard, nothing.

        Raises:
            ShardTimeout: the upper did not move within the time.
            ReaderExpired: what comes next was compacted: this listener held no lease.
        """
        shard = self._shard
        if self.frontier.is_empty:
            return Changes(concatenated([], shard.schema), self.frontier, shard.codec)
        waited = self._timeout_s if timeout_s is None else timeout_s
        for _ in range(SNAPSHOT_ATTEMPTS):
            state = wait_for_upper(shard, self._frontier, waited, "The next changes")
            try:
                return self._told(state)
            except BlobNotFound:  # merged with others and collected meanwhile: the merged batch tells the same
                shard.machine.refreshed()
        raise self._lost()

    def _told(self, state: State) -> Changes:
        """All that is complete in a state and was not told."""
        shard, frontier = self._shard, self._frontier
        upper = state.upper
        pieces = []
        for batch in state.batches:
            if batch.upper <= frontier:
                continue
            # moved to `since`, what was told at an earlier time would look like news
            if batch.since > frontier or (batch.since == frontier and batch.lower < frontier):
                raise self._lost()
            pieces += [piece for piece in pieces_of(batch) if piece.part.last >= frontier]
        tables = [
            table if piece.part.first >= frontier else table.filter(pc.greater_equal(table.column(TIME), frontier))
            for piece, table in zip(pieces, shard.rows.read(pieces, shard.machine.place.blobs), strict=True)
        ]
        updates = concatenated(tables, shard.schema)
        self._frontier = upper
        return Changes(updates, antichain(upper), shard.codec)

    def _lost(self) -> ReaderExpired:
        return ReaderExpired(
            f"The changes of {self._shard.name!r} after {self._frontier - 1} were compacted.",
            safe="What was told before is right.",
            next="Take a snapshot and listen from there; listen by a reader, whose lease keeps what it has not seen.",
        )


def listen_to(shard: OpenShard, as_of: int, timeout_s: float) -> Listen:
    bound = bound_of(as_of)
    since = shard.machine.refreshed().since
    if bound < since:
        raise before_since(shard.name, bound, since)
    return Listen(shard, bound, timeout_s)
