"""A shard, as its users hold it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from strandline.arguments import checked
from strandline.errors import SchemaMismatch
from strandline.operations import logged
from strandline.shards.deciding.machine import DEFAULT_TIMEOUT_S, Machine
from strandline.shards.handles.batching import BatchingWriter
from strandline.shards.handles.durable_reader import DurableReader
from strandline.shards.handles.listen import Listen, listen_to
from strandline.shards.handles.open_shard import OpenShard
from strandline.shards.handles.reader import READER_LEASE_S, Reader
from strandline.shards.handles.snapshot import Snapshot, snapshot_of
from strandline.shards.handles.writer import Writer
from strandline.shards.log.metering import Count, Meter
from strandline.shards.rows.codec import check_schema, refuse_no_evolution, serialised
from strandline.shards.state.frontier import Antichain, antichain
from strandline.shards.state.state import ShardId, State
from strandline.shards.state.trace import Merged
from strandline.shards.state.transitions import evolve_schema, retire
from strandline.shards.upkeep.collection import Collected, Swept, collect, sweep, write_rollup
from strandline.shards.upkeep.compaction import Compaction, compact_all, compact_once, rows_of
from strandline.shards.upkeep.upkeep import Heartbeats, is_due, maintain


@checked()
class Shard:
    """A durable collection of `((key, value), time, diff)`. Safe to share between threads; pickles without secrets.

    Its contents at a time are the sum of all diffs of a (key, value) at times up to it. Times below `upper` are
    complete; times from `since` on can be told apart.
    """

    def __init__(
        self,
        name: str,
        machine: Machine,
        heartbeats: Heartbeats,
        meter: Meter,
        reopen: tuple[Callable[..., Any], tuple[Any, ...]],
    ) -> None:
        self.name = name
        self._machine = machine
        self._heartbeats = heartbeats
        self._open = OpenShard(name, machine, heartbeats)
        self._meter = meter
        self._reopen = reopen

    def __repr__(self) -> str:
        return f"<Shard {self.name}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return self._reopen

    @property
    def place(self) -> str:
        """The shard, for messages."""
        return self.name

    @property
    def id(self) -> ShardId:
        """The id. A shard that is made again under the same name has another one."""
        return self._machine.place.shard

    # --- what it is now -----------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """What is on record, as of now."""
        return self._machine.refreshed()

    @property
    def upper(self) -> Antichain:
        """Times before it are complete; `Antichain()` if the shard is finished."""
        return antichain(self.state.upper)

    @property
    def since(self) -> Antichain:
        """The least time that the contents can be read at."""
        return antichain(self.state.since)

    @property
    def schema(self) -> pa.Schema:
        """The columns, those of the key first."""
        return self._open.schema

    @property
    def key(self) -> tuple[str, ...]:
        """The names of the columns of the key."""
        return self._open.codec.key

    @property
    def counts(self) -> dict[str, Count]:
        """What this process asked of the stores for this shard, by kind of call."""
        return self._meter.counts

    # --- handles ------------------------------------------------------------------------------------------------------

    def writer(self, name: str = "") -> Writer:
        """A handle that appends.

        Args:
            name: makes it durable: the shard remembers its last append for ever, so that it can be repeated after any
                time. Two writers of one name are one writer.
        """
        return Writer(self._open, name)

    def batching_writer(self, every_s: float, name: str = "") -> BatchingWriter:
        """A handle that collects updates and appends them together: fewer requests, and news come later by that."""
        return BatchingWriter(self._open, self._heartbeats.background, every_s, name)

    def reader(self, *, lease_s: int = READER_LEASE_S, timeout_s: float = DEFAULT_TIMEOUT_S) -> Reader:
        """A handle that reads, and holds what it has not given up."""
        return Reader(self._open, lease_s, timeout_s)

    def durable_reader(self, name: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> DurableReader:
        """What may still be read, held under a name until it is removed."""
        return DurableReader(self._open, name, timeout_s)

    def snapshot(
        self, as_of: int | None = None, *, num_splits: int = 1, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> Snapshot:
        """The contents at a time, read at once. For splits that others read later, take a `reader`.

        Raises:
            BeforeSince: the shard forgot that time.
            ShardTimeout: it did not get complete.
        """
        return snapshot_of(self._open, as_of, num_splits, timeout_s, None)

    def listen(self, as_of: int, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> Listen:
        """All changes after a time, as they come. A slow caller takes a `reader`, or a durable one, beside it."""
        return listen_to(self._open, as_of, timeout_s)

    # --- changes of the whole -----------------------------------------------------------------------------------------

    @logged("evolve shard")
    def evolve(self, schema: pa.Schema, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Add nullable columns, or widen types. What was written before is read under the new schema.

        Raises:
            SchemaMismatch: the schema does something else.
        """
        state = self._machine.refreshed()
        codec = rows_of(self._machine, state).make_codec()
        wanted, key = check_schema(schema, codec.key)
        refuse_no_evolution(codec.schema, codec.key, wanted, key)
        raw, expected = serialised(wanted, key), state.schema_id
        newest = self._machine.apply(lambda now, _: evolve_schema(now, expected, raw), timeout_s)
        if self._machine.state.schemas[newest] != raw:
            raise SchemaMismatch(
                f"Somebody else changed the schema of {self.name!r} at the same time.",
                next="Look at shard.schema, and evolve that.",
            )

    def finish(self, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Promise that nothing more will be appended, by anybody. It can still be read."""
        self.writer().finish(timeout_s=timeout_s)

    @logged("retire shard")
    def retire(self, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """End the shard: nothing can be appended or read any more, and all its bytes are deleted."""
        self._machine.apply(lambda state, _: retire(state), timeout_s)
        maintain(self._machine)

    # --- upkeep -------------------------------------------------------------------------------------------------------

    @logged("compact shard")
    def compact(self, *, full: bool = False) -> list[Compaction]:
        """Merge batches: those that are worth it, or all.

        Compaction forgets what lies before `since`, which moves with the readers; it never changes what can be read.
        """
        if full:
            return list(compact_all(self._machine))
        done = []
        while (one := compact_once(self._machine)) is not None:
            done.append(one)
            if one.outcome is not Merged.DONE:
                break  # somebody else is at it
        return done

    def _begin_upkeep(self) -> None:
        """Compact and collect beside the caller, if it is due."""
        if is_due(self.state):
            self._heartbeats.background.start(("shard", self.id), lambda: maintain(self._machine))

    @logged("collect shard")
    def collect(self) -> Collected:
        """Write a rollup, then delete what no live state refers to, and the log before it."""
        write_rollup(self._machine)
        return collect(self._machine)

    @logged("sweep shard")
    def sweep(self, *, after_s: int | None = None, dry_run: bool = False) -> Swept:
        """Delete what writers and compactors that died left behind; by default what is older than a day."""
        return sweep(self._machine, dry_run=dry_run, **({} if after_s is None else {"after_s": after_s}))

    @property
    def is_finished(self) -> bool:
        """Whether its upper is the end of time: nothing can be appended any more."""
        return self.state.is_finished
