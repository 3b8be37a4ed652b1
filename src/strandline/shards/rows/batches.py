"""Batches before they are appended: updates written as parts, of which nobody knows yet."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
from msgspec.structs import replace

from strandline.errors import InvalidBounds, UsageError
from strandline.ids import new_id
from strandline.shards.rows.codec import Codec
from strandline.shards.rows.parts import PartWriter
from strandline.shards.rows.updates import as_updates, check_bounds, tidy
from strandline.shards.state.frontier import Frontier, antichain, bound_of
from strandline.shards.state.state import Batch, Part, ShardId

PART_TARGET_BYTES = 64 << 20
"""About how many bytes of Arrow data a part holds."""
PARTS_IN_FLIGHT = 2
"""How many parts are written at a time; a caller that adds more waits."""


@dataclass(frozen=True, slots=True)
class WrittenBatch:
    """A batch whose parts are durable and which no state knows of. It pickles, so another process may append it.

    Attributes:
        lower, upper: bounds that all its times lie between; TOP for the empty frontier.
    """

    shard: ShardId
    lower: int
    upper: int
    parts: tuple[Part, ...]

    @property
    def rows(self) -> int:
        """How many updates it has."""
        return sum(part.rows for part in self.parts)

    def __repr__(self) -> str:
        return f"<WrittenBatch [{antichain(self.lower)}, {antichain(self.upper)}) {self.rows:,} rows>"


class BatchBuilder:
    """Collects updates and writes them as parts, a bounded number at a time, so that memory stays bounded.

    Use it with `with`, then `finish`. For one thread.
    """

    def __init__(
        self, shard: ShardId, writer: PartWriter, codec: Codec, lower: int, upper: int, part_bytes: int
    ) -> None:
        if lower > upper:
            raise InvalidBounds(
                f"The upper {antichain(upper)} lies below the lower {antichain(lower)}.",
                next="Uppers only move forward.",
            )
        self._shard = shard
        self._writer = writer
        self._codec = codec
        self._lower = lower
        self._upper = upper
        self._part_bytes = part_bytes
        self._held: list[pa.Table] = []
        self._held_bytes = 0
        self._written: list[Future[Part | None]] = []
        self._free = threading.Semaphore(PARTS_IN_FLIGHT)
        self._pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=kind is not None)

    def add(self, updates: Any) -> None:
        """Add updates, in any form that `Writer.append` takes.

        Raises:
            InvalidBounds: a time is outside of the batch's bounds. What was added before stays.
        """
        table = as_updates(updates, self._codec, self._lower)
        check_bounds(table, self._lower, self._upper)
        for piece in _pieces(table, self._part_bytes):
            self._held.append(piece)
            self._held_bytes += piece.nbytes
            if self._held_bytes >= self._part_bytes:
                self._write_in_background()

    def finish(self) -> WrittenBatch:
        """Wait until all is written."""
        table = self._taken()
        last = None if table is None else self._tidied_and_written(table)
        parts = [future.result() for future in self._written] + [last]
        return WrittenBatch(self._shard, self._lower, self._upper, tuple(part for part in parts if part is not None))

    def _taken(self) -> pa.Table | None:
        held, self._held, self._held_bytes = self._held, [], 0
        return pa.concat_tables(held) if held else None

    def _write_in_background(self) -> None:
        table = self._taken()
        assert table is not None
        if self._pool is None:
            self._pool = ThreadPoolExecutor(PARTS_IN_FLIGHT, "strandline-parts")
        self._free.acquire()
        future = self._pool.submit(self._tidied_and_written, table)
        future.add_done_callback(lambda _: self._free.release())
        self._written.append(future)

    def _tidied_and_written(self, table: pa.Table) -> Part | None:
        tidied = tidy(table, self._codec.key)
        return self._writer.write(tidied, is_sorted=True) if tidied.num_rows else None


def _pieces(table: pa.Table, max_bytes: int) -> Iterator[pa.Table]:
    """A table in slices that are as large as a part."""
    if not table.num_rows:
        return
    rows = max(1, min(table.num_rows, table.num_rows * max_bytes // max(1, table.nbytes)))
    for start in range(0, table.num_rows, rows):
        yield table.slice(start, rows)


def joined(shard: ShardId, batches: Sequence[WrittenBatch], lower: int, upper: int) -> Batch | None:
    """Written batches as one that is appended between two bounds.

    Raises:
        UsageError: a batch is of another shard.
        InvalidBounds: a batch does not cover [lower, upper), so that updates could be missing.
    """
    parts: list[Part] = []
    for batch in batches:
        if not isinstance(batch, WrittenBatch):
            raise UsageError(f"{batch!r} is not a batch.", next="Make one with writer.batch(…).")
        if batch.shard != shard:
            raise UsageError(f"{batch!r} was written for shard {batch.shard!r}, not for {shard!r}.")
        if batch.lower > lower or batch.upper < upper:
            raise InvalidBounds(
                f"{batch!r} does not cover the append, from {antichain(lower)} to {antichain(upper)}.",
                next="Append it between bounds that it covers.",
            )
        parts += batch.parts
    if lower == upper and parts:
        raise InvalidBounds(f"Between {antichain(lower)} and {antichain(upper)} there is no time for updates.")
    parts = [part for part in parts if lower <= part.last and part.first < upper]
    return Batch(new_id(), lower, upper, 0, tuple(parts)) if parts else None


def as_bounds(expected: Frontier, upper: Frontier) -> tuple[int, int]:
    """The bounds of an append.

    Raises:
        InvalidBounds: the upper lies below the expected one.
    """
    lower, end = bound_of(expected), bound_of(upper)
    if lower > end:
        raise InvalidBounds(
            f"The new upper {antichain(end)} lies below the expected one, {antichain(lower)}.",
            next="Uppers only move forward.",
        )
    return lower, end


def with_blobs(batch: Batch, writer: PartWriter) -> Batch:
    """A batch without inline parts."""
    return replace(batch, parts=tuple(writer.flushed(part) for part in batch.parts))
