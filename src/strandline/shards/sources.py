"""Definite sources: a job that reads a source, again or at the same time, writes the same updates at the same times.

A collection of *bindings* says which time each position of a source has. They are minted through
consensus, so all that ask agree. What is read then only has to be written by anybody.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import pyarrow as pa

from strandline.arguments import checked
from strandline.errors import BeforeSince, ReaderExpired, ShardTimeout, UpperMismatch, UsageError
from strandline.forks import survives_forks
from strandline.shards.deciding.machine import DEFAULT_TIMEOUT_S
from strandline.shards.rows.codec import TIME
from strandline.shards.shard import Shard

Position = TypeVar("Position", int, str)
Rows = Any
"""Updates without times, as `Writer.append_next` takes them."""


@dataclass(frozen=True, slots=True)
class Binding(Generic[Position]):
    """All positions of a source after the one before, up to `position`, have this time."""

    source: str
    position: Position
    time: int


def bindings_schema(position: pa.DataType) -> pa.Schema:
    """The schema of a shard of bindings; positions are integers (offsets) or strings (names of files)."""
    return pa.schema([("source", pa.string()), ("position", position), ("time", pa.int64())])


@checked()
class Bindings(Generic[Position]):
    """The bindings of one or more sources, in a shard of their own. Safe to share between threads and processes.

    Args:
        shard: made with `bindings_schema`.
        by_clock: times are milliseconds since 1970, or later if the clock is behind; else they count from 0.
    """

    def __init__(self, shard: Shard, *, by_clock: bool = False) -> None:
        if sorted(shard.schema.names) != ["position", "source", "time"]:
            raise UsageError(f"{shard.name!r} is not a shard of bindings.", next="Make it with bindings_schema(…).")
        self._shard = shard
        self._by_clock = by_clock
        self._upper = 0
        self._by_source: dict[str, list[Binding[Position]]] = {}
        """What was read of the shard up to `_upper`; of a source in the order of positions, which is that of times."""
        self._forked()
        survives_forks(self)

    def _forked(self) -> None:
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Bindings, by_clock=self._by_clock), (self._shard,)

    def get_binding(
        self, source: str, position: Position, *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> Binding[Position]:
        """The binding that covers a position; minted now if there is none yet.

        Every caller gets the same answer for a position, whenever and wherever it asks.
        """
        clock = self._shard._machine.place.clock
        until_us = clock.now_us() + int(timeout_s * 1_000_000)
        known = self._covering(source, position)
        if known is not None:
            return known  # later bindings of a source are of later positions
        with self._shard.writer() as writer:
            while True:
                upper = self._refreshed()
                known = self._covering(source, position)
                if known is not None:
                    return known
                time = max(upper, clock.now_us() // 1_000) if self._by_clock else upper
                minted = Binding(source, position, time)
                try:
                    # the invariant that makes it definite: nobody else minted since `upper` was read
                    row = pa.table({"source": [source], "position": [position], "time": [time], TIME: [time]})
                    writer.compare_and_append(row, upper, time + 1, timeout_s=timeout_s)
                    return minted
                except UpperMismatch:
                    if clock.now_us() >= until_us:
                        raise

    def _covering(self, source: str, position: Position) -> Binding[Position] | None:
        with self._lock:
            found = self._by_source.get(source, [])
            try:
                at = bisect_left(found, position, key=_position)
            except TypeError as error:
                raise UsageError(
                    f"The position {position!r} cannot be compared with the earlier ones, such as "
                    f"{found[0].position!r}."
                ) from error
            return found[at] if at < len(found) else None

    def minted(self, start: int = 0) -> list[Binding[Position]]:
        """All bindings with times from `start` on, in the order of their times."""
        self._refreshed()
        with self._lock:
            found = [one for same in self._by_source.values() for one in same[bisect_left(same, start, key=_time) :]]
        return sorted(found, key=_time)

    def before(self, binding: Binding[Position]) -> Position | None:
        """The position that the source's binding before this one covers up to; None if it is the first."""
        if binding.time >= self._upper:
            self._refreshed()
        with self._lock:
            same = self._by_source.get(binding.source, [])
            at = bisect_left(same, binding.time, key=_time)
            return same[at - 1].position if at else None

    def _refreshed(self) -> int:
        """Read what others minted; the upper up to which all is known."""
        upper = self._shard.state.upper
        with self._lock:
            if upper <= self._upper:
                return self._upper
            updates: pa.Table | None = None
            frontier = upper
            if self._upper:
                try:
                    updates, frontier = self._news()
                except (BeforeSince, ReaderExpired):  # compacted meanwhile: a snapshot holds all the same
                    updates = None
            if updates is None:
                updates, frontier = self._shard.snapshot(upper - 1).to_arrow(), upper
                self._by_source = {}
            columns = (updates.column(name).to_pylist() for name in ("source", "position", "time"))
            for row in zip(*columns, strict=True):
                insort(self._by_source.setdefault(row[0], []), Binding(*row), key=_time)
            self._upper = frontier
            return frontier

    def _news(self) -> tuple[pa.Table, int]:
        changes = self._shard.listen(self._upper - 1, timeout_s=0).next()
        return changes.updates, changes.frontier.bound


def _position(binding: Binding[Any]) -> Any:
    return binding.position


def _time(binding: Binding[Any]) -> int:
    return binding.time


def ingest(
    shard: Shard,
    bindings: Bindings[Position],
    read: Callable[[str, Position | None, Position], Rows],
) -> Iterator[Binding[Position]]:
    """Write what the bindings cover and the shard lacks. Any number of processes may do it at once.

    Args:
        read: the rows of a source after a position (None: from its beginning), up to another one, which is in them. It
            must give the same rows whenever it is asked.

    Yields:
        Each binding that is in the shard now, of any writer.
    """
    with shard.writer() as writer:
        for binding in bindings.minted(start=shard.state.upper):
            rows = read(binding.source, bindings.before(binding), binding.position)
            lower = min(shard.state.upper, binding.time)
            writer.append(_at(rows, binding.time), lower, binding.time + 1)
            yield binding


def _at(rows: Rows, time: int) -> Rows:
    if isinstance(rows, list | tuple):
        return [(row, time, diff) for row, _, diff in rows]
    table = rows if isinstance(rows, pa.Table) else pa.table(rows)
    return table.append_column(TIME, pa.array([time] * table.num_rows, pa.int64()))


def drain(wal: Shard, shard: Shard, *, timeout_s: float = 0.0) -> int:
    """Bring what a write-ahead shard holds into a shard, at the same times. Any number of processes may do it at once.

    Updates of the write-ahead shard are definite: all that apply them write the same. It must keep its history until
    they are in the shard: hold it with a reader, or a durable one.

    Args:
        timeout_s: go on until nothing has come for this long.

    Returns:
        How many appends this call made; others may have made the rest.
    """
    appended = 0
    with shard.writer() as writer:
        start = shard.state.upper
        if start == 0:
            if wal.state.upper == 0:
                return 0
            # not definite: another applier may begin at another since. Of all that do, one decides
            first = wal.snapshot(wal.state.since)
            try:
                writer.compare_and_append(first.to_arrow(), 0, first.as_of + 1)
                appended = 1
            except UpperMismatch:
                appended = 0
            start = shard.state.upper
        listen = wal.listen(start - 1, timeout_s=timeout_s)
        while not listen.frontier.is_empty:
            lower = listen.frontier
            try:
                changes = listen.next()
            except ShardTimeout:
                break
            appended += writer.append(changes.updates, lower, changes.frontier)
    return appended
