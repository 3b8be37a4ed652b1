"""What a shard holds as of a time: parts to read, in splits that any process may read."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from strandline.blob import open_store
from strandline.blob.store import BlobNotFound, BlobStore
from strandline.errors import ReaderExpired, UsageError
from strandline.shards.rows.codec import CODECS, TIME, Codec, Update, deserialised
from strandline.shards.rows.parts import read_part
from strandline.shards.rows.statistics import decoded
from strandline.shards.rows.updates import INT64, concatenated, consolidated, update_schema
from strandline.shards.state.state import Batch, Part, State

READ_TOGETHER_BYTES = 4 << 20
"""Pieces of fewer bytes in all are read by one thread: more threads cost more than they save."""
READ_THREADS = min(8, (os.cpu_count() or 1) + 2)


@dataclass(frozen=True, slots=True)
class Piece:
    """A part, and what counts of it: times in [lower, upper).

    Attributes:
        lower, upper: None if all of it counts.
    """

    part: Part
    lower: int | None = None
    upper: int | None = None


def pieces_of(batch: Batch) -> Iterator[Piece]:
    """The parts of a batch; of one that was never compacted, only what its description says."""
    for part in batch.parts:
        if batch.since == 0 and (part.first < batch.lower or part.last >= batch.upper):
            if part.first < batch.upper and part.last >= batch.lower:
                yield Piece(part, batch.lower, batch.upper)
        else:
            yield Piece(part)


@dataclass(frozen=True, slots=True)
class Rows:
    """How the rows of a shard are read: newest schema, codec, and where their bytes are. Pickles without secrets."""

    url: str
    folder: str
    codec: str
    schema: bytes

    @property
    def arrow_schema(self) -> pa.Schema:
        return deserialised(self.schema)[0]

    def make_codec(self) -> Codec:
        return CODECS[self.codec](*deserialised(self.schema))

    def read(
        self,
        pieces: Sequence[Piece],
        blobs: BlobStore | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: pc.Expression | None = None,
    ) -> list[pa.Table]:
        """The updates of each piece; blobs that are gone raise `BlobNotFound`."""
        store = blobs if blobs is not None else _opened(self.url)
        schema = self.arrow_schema

        is_needed = [True] * len(pieces)
        if where is not None:
            from strandline.shards.rows import pruning  # noqa: PLC0415 - loads what few processes need

            is_needed = pruning.may_match([piece.part for piece in pieces], where, schema)
        nothing = update_schema(schema if columns is None else pa.schema([schema.field(name) for name in columns]))

        def read(piece: Piece, is_needed: bool) -> pa.Table:
            if not is_needed:
                return nothing.empty_table()
            table = read_part(store, self.folder, piece.part, schema, columns, where)
            if piece.lower is None:
                return table
            times = table.column(TIME)
            return table.filter(pc.and_(pc.greater_equal(times, piece.lower), pc.less(times, piece.upper)))

        is_far = "://" in store.url and not store.url.startswith("file:")
        size = sum(piece.part.size for piece in pieces)
        if len(pieces) < 2 or READ_THREADS < 2 or (size < READ_TOGETHER_BYTES and not is_far):
            return list(map(read, pieces, is_needed))
        with ThreadPoolExecutor(READ_THREADS, "strandline-read") as pool:
            return list(pool.map(read, pieces, is_needed))


@cache
def _opened(url: str) -> BlobStore:
    return open_store(url)


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Values of the first column of the key in [low, high); None is open. The one without `high` holds the nulls."""

    low: Any = None
    high: Any = None

    def condition(self, name: str) -> pc.Expression:
        field = pc.field(name)
        within = pc.scalar(True) if self.low is None else field >= self.low
        return (within | field.is_null()) if self.high is None else within & (field < self.high)

    def meets(self, low: Any, high: Any, nulls: int) -> bool:
        """Whether a part with these statistics may hold values of the range."""
        if low is None or high is None or (nulls and self.high is None):
            return True
        return (self.high is None or low < self.high) and (self.low is None or high >= self.low)


@dataclass(frozen=True)
class Split:
    """A share of a shard's contents as of a time. Any process that reaches the object store can read it.

    The shares of one snapshot together are its contents; the same (key, value) may be in several, whose diffs add up,
    unless they are shares by key.

    Attributes:
        between: only rows of these keys.
    """

    rows: Rows
    as_of: int
    pieces: tuple[Piece, ...]
    is_distinct: bool = False
    between: KeyRange | None = None

    @property
    def row_count(self) -> int:
        """How many updates it reads; after consolidation there may be fewer."""
        return sum(piece.part.rows for piece in self.pieces)

    def to_arrow(
        self,
        columns: Sequence[str] | None = None,
        where: pc.Expression | None = None,
        *,
        blobs: BlobStore | None = None,
    ) -> pa.Table:
        """The contents: the columns of the shard, then `_time` (all `as_of`) and `_diff`, consolidated.

        Args:
            columns: which ones; rows that differ only in others are then one, with the sum of their diffs.

        Raises:
            ReaderExpired: parts of it were collected.
        """
        is_asked = where is not None
        if self.between is not None:
            within = self.between.condition(deserialised(self.rows.schema)[1][0])
            where = within if where is None else within & where
        schema = self.rows.arrow_schema
        unknown = [name for name in columns or () if name not in schema.names]
        if unknown:
            raise UsageError(f"The shard has no column {unknown[0]!r}.", next=f"It has {', '.join(schema.names)}.")
        try:
            tables = self.rows.read(self.pieces, blobs, columns=columns, where=where)
        except BlobNotFound as error:
            raise _lost(error) from None
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, TypeError) as error:  # what Arrow says of a condition
            if not is_asked:
                raise
            raise UsageError(
                f"The condition does not fit the shard: {error}.",
                next="It is a pyarrow.compute.Expression of its columns.",
            ) from error
        wanted = schema if columns is None else pa.schema([schema.field(name) for name in columns])
        kept = []
        for piece, table in zip(self.pieces, tables, strict=True):
            if piece.part.last > self.as_of:
                table = table.filter(pc.less_equal(table.column(TIME), self.as_of))
            kept.append(table)
        whole = concatenated(kept, wanted)
        if not (self.is_distinct and columns is None):
            whole = consolidated(whole, by_time=False)
        times = pa.chunked_array([pa.repeat(pa.scalar(self.as_of, INT64), whole.num_rows)])
        at = whole.schema.get_field_index(TIME)
        return whole.set_column(at, update_schema(wanted).field(at), times)


def _lost(error: BlobNotFound) -> ReaderExpired:
    return ReaderExpired(
        f"A part of these contents was collected: {error}.",
        safe="What was read before is right.",
        next="The lease of its reader has ended: take a new snapshot, from a reader that lives as long as "
        "the reading takes.",
    )


def contents(state: State, as_of: int, rows: Rows, num_splits: int) -> list[Split]:
    """The contents as of a time, in splits that have about as many updates each.

    The largest piece goes first, always to the split that has the least (longest processing time first, R. Graham
    1969).
    """
    batches = [batch for batch in state.batches if batch.lower <= as_of]
    pieces = [piece for batch in batches for piece in pieces_of(batch) if piece.part.first <= as_of]
    distinct = _are_distinct(batches, pieces, rows)
    shares: list[list[Piece]] = [[] for _ in range(num_splits)]
    loads = [0] * num_splits
    for piece in sorted(pieces, key=lambda piece: -piece.part.rows) if num_splits > 1 else pieces:
        least = loads.index(min(loads))
        shares[least].append(piece)
        loads[least] += piece.part.rows
    return [Split(rows, as_of, tuple(share), distinct) for share in shares]


def contents_by_key(state: State, as_of: int, rows: Rows, num_splits: int) -> list[Split]:
    """The contents as of a time in splits, none of which shares a (key, value) with another.

    Where nothing can be there twice these are shares of the parts; else ranges of the first column of the key.
    """
    whole = contents(state, as_of, rows, 1)[0]
    if whole.is_distinct or num_splits == 1 or not whole.pieces:
        return [split for split in contents(state, as_of, rows, num_splits) if split.pieces]
    key = deserialised(rows.schema)[1][0]
    spans = {piece: decoded(piece.part.statistics).get(key, (None, None, 1)) for piece in whole.pieces}
    ends = [end for low, high, _ in spans.values() for end in (low, high)]
    if any(end is None or isinstance(end, bool) for end in ends) or not _is_plain(rows, key):
        return [whole]
    splits = []
    for between in _ranges(ends, num_splits):
        pieces = tuple(piece for piece in whole.pieces if between.meets(*spans[piece]))
        splits.append(Split(rows, as_of, pieces, between=between))
    return [split for split in splits if split.pieces]


def _is_plain(rows: Rows, key: str) -> bool:
    """Whether a column's statistics are its values, as they compare in Arrow."""
    kind = rows.arrow_schema.field(key).type
    return bool(pa.types.is_integer(kind) or pa.types.is_string(kind))


def _ranges(ends: list[Any], count: int) -> list[KeyRange]:
    """Ranges that cover everything: of equal width between numbers, of equally many ends of parts between texts."""
    ordered = sorted(ends)
    if isinstance(ordered[0], int):
        low, width = ordered[0], ordered[-1] - ordered[0]
        bounds = sorted({low + width * at // count for at in range(1, count)} - {low})
    else:
        bounds = sorted({ordered[len(ordered) * at // count] for at in range(1, count)})
    return [KeyRange(low, high) for low, high in pairwise([None, *bounds, None])]


def _are_distinct(batches: Sequence[Batch], pieces: Sequence[Piece], rows: Rows) -> bool:
    """Whether no two updates can be of the same row, so that there is nothing to add up.

    So it is in one batch that a compaction made so, and in parts with one time each whose keys lie apart.
    """
    filled = [batch for batch in batches if batch.parts]
    if not filled or (len(filled) == 1 and filled[0].is_distinct):
        return True
    if any(piece.part.first != piece.part.last or not piece.part.is_sorted for piece in pieces):
        return False
    if len(pieces) == 1:
        return True
    key = deserialised(rows.schema)[1][0]
    spans = []
    for piece in pieces:
        low, high, nulls = decoded(piece.part.statistics).get(key, (None, None, 1))
        if low is None or high is None or nulls or isinstance(low, float):
            return False
        spans.append((low, high))
    spans.sort()
    return all(before[1] < after[0] for before, after in pairwise(spans))


def as_tuples(table: pa.Table, codec: Codec) -> Iterator[Update]:
    """Updates as `((key, value), time, diff)`."""
    times, diffs = table.column(TIME).to_pylist(), table.column("_diff").to_pylist()
    yield from zip(codec.to_rows(table), times, diffs, strict=True)
