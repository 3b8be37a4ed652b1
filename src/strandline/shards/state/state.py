"""The state of a shard: one immutable value for each sequence number.

`transitions` says how it changes, `diff` how changes are written, `machine` how they are decided. Frontiers are bounds
as in `frontier`; keys of blobs are relative to the shard's folder.
"""

from __future__ import annotations

from typing import NewType

import msgspec

from strandline.clock import Microseconds
from strandline.shards.state.frontier import TOP

ShardId = NewType("ShardId", str)
WriterId = NewType("WriterId", str)
ReaderId = NewType("ReaderId", str)

NEVER = 0
"""As a lease in seconds: it does not end."""


class Part(msgspec.Struct, frozen=True, array_like=True):
    """Some updates of a batch, as one Parquet file: a blob, or, if it is small, inline in the state.

    Attributes:
        key: of the blob; "" if the bytes are `inline`.
        schema: the id of the schema that it was written with.
        first, last: the least and the greatest time in it. Without a column of times all have the time `first`.
        has_diffs: whether it has a column of diffs; without, all are 1.
        is_sorted: it is in the order of its rows and holds no two updates of one (key, value, time).
        statistics: of columns, by name: least, greatest, how many nulls; msgpack.
    """

    key: str
    inline: bytes
    rows: int
    size: int
    schema: int
    first: int
    last: int
    has_times: bool
    has_diffs: bool
    is_sorted: bool
    statistics: bytes = b""


class Batch(msgspec.Struct, frozen=True, array_like=True):
    """The updates with times in [lower, upper), correct to read as of any time at or beyond `since`.

    While `since` is 0 its parts may hold updates outside of the description, which are none of it. A compaction leaves
    them out, and moves times up to its `since`, which may lie beyond `upper`.

    Attributes:
        id: unique; a compaction names what it read by it.
        is_distinct: no two of its updates have the same (key, value).
    """

    id: str
    lower: int
    upper: int
    since: int
    parts: tuple[Part, ...]
    is_distinct: bool = False

    @property
    def rows(self) -> int:
        """How many updates it has."""
        return sum(part.rows for part in self.parts)

    @property
    def size(self) -> int:
        """How many bytes its parts take."""
        return sum(part.size for part in self.parts)


class LeasedReader(msgspec.Struct, frozen=True, array_like=True):
    """A reader that is forgotten when it is not heard of for `lease_s`.

    Attributes:
        since: what it may still read from.
        seqno: the oldest state whose blobs it may still fetch.
    """

    since: int
    seqno: int
    heartbeat_us: Microseconds
    lease_s: int


class DurableReaderRecord(msgspec.Struct, frozen=True, array_like=True):
    """A reader that is never forgotten; its user shows the token that the last one left."""

    since: int
    token: str


class WriterRecord(msgspec.Struct, frozen=True, array_like=True):
    """A writer, known since its first append.

    Attributes:
        lease_s: `NEVER` for a durable one, which remembers what it did for ever.
        token: of its last append.
        upper: that its last append led to.
        epoch: of a durable one, the greatest that it appended; -1 before.
    """

    heartbeat_us: Microseconds
    lease_s: int
    token: str
    upper: int
    epoch: int = -1


class Rollup(msgspec.Struct, frozen=True, array_like=True):
    """A whole state as a blob."""

    key: str
    size: int


class State(msgspec.Struct, frozen=True):
    """A shard at one sequence number.

    Attributes:
        walltime_us: when it was made; strictly increasing, whatever the clocks say.
        host: the machine that made it.
        codec: name of the codec of its rows.
        schemas: serialised Arrow schemas by id; ids count from 1, the greatest is the newest.
        batches: in the order of their descriptions, which do not overlap; where none is, below `upper`, there are no
            updates.
        rollups: by the sequence number whose state they hold.
    """

    shard: ShardId
    name: str
    seqno: int
    walltime_us: Microseconds
    host: str
    codec: str
    schemas: dict[int, bytes]
    since: int = 0
    upper: int = 0
    batches: tuple[Batch, ...] = ()
    readers: dict[ReaderId, LeasedReader] = {}
    durable_readers: dict[ReaderId, DurableReaderRecord] = {}
    writers: dict[WriterId, WriterRecord] = {}
    rollups: dict[int, Rollup] = {}

    @property
    def is_finished(self) -> bool:
        """Nothing can be written any more."""
        return self.upper == TOP

    @property
    def is_tombstone(self) -> bool:
        """Nothing can be written or read any more; the shard is over."""
        return self.upper == TOP and self.since == TOP

    @property
    def schema_id(self) -> int:
        """A digest of the schema and the key."""
        return max(self.schemas)

    @property
    def seqno_since(self) -> int:
        """The oldest state that somebody may still read from."""
        return min((reader.seqno for reader in self.readers.values()), default=self.seqno)

    @property
    def inline_bytes(self) -> int:
        """How many bytes of batches lie in the state itself."""
        return sum(len(part.inline) for batch in self.batches for part in batch.parts)

    def blob_keys(self) -> set[str]:
        """The keys of all blobs that the state refers to."""
        return {part.key for batch in self.batches for part in batch.parts if part.key}
