"""One shard in one process, as its handles share it."""

from __future__ import annotations

import pyarrow as pa

from strandline.errors import ShardTimeout
from strandline.shards.deciding.machine import Machine
from strandline.shards.rows.codec import Codec
from strandline.shards.rows.contents import Rows
from strandline.shards.state.frontier import antichain
from strandline.shards.state.state import ShardId, State
from strandline.shards.upkeep.compaction import rows_of
from strandline.shards.upkeep.upkeep import Heartbeats

POLL_FIRST_S = 0.002
POLL_MAX_S = 1.0
POLL_SHARE = 8
"""Polling interval: one eighth of the time since the last change, so a change is seen at most that much late and an
idle shard costs one request a second."""


class OpenShard:
    """What a writer, a reader, a snapshot and a listen need of a shard. Safe to share between threads."""

    def __init__(self, name: str, machine: Machine, heartbeats: Heartbeats) -> None:
        self.name = name
        self.machine = machine
        self.heartbeats = heartbeats
        self._read_as: tuple[int, Rows, Codec] | None = None

    def __repr__(self) -> str:
        return f"<Shard {self.name}>"

    @property
    def id(self) -> ShardId:
        return self.machine.place.shard

    def read_as(self) -> tuple[int, Rows, Codec]:
        """The newest schema that this process knows, by its number, and how rows are read and written under it."""
        state = self.machine.state
        if self._read_as is None or self._read_as[0] != state.schema_id:
            rows = rows_of(self.machine, state)
            self._read_as = (state.schema_id, rows, rows.make_codec())
        return self._read_as

    @property
    def schema_id(self) -> int:
        return self.read_as()[0]

    @property
    def rows(self) -> Rows:
        return self.read_as()[1]

    @property
    def codec(self) -> Codec:
        return self.read_as()[2]

    @property
    def schema(self) -> pa.Schema:
        """The columns, those of the key first."""
        return self.codec.schema


def wait_for_upper(shard: OpenShard, beyond: int, timeout_s: float, what: str) -> State:
    """A state whose upper lies beyond a time.

    Raises:
        ShardTimeout: it did not come.
    """
    machine = shard.machine
    clock = machine.place.clock
    state = machine.state
    if state.upper > beyond:
        return state
    until_us = clock.now_us() + int(timeout_s * 1_000_000)
    state = machine.refreshed()
    while state.upper <= beyond:
        now_us = clock.now_us()
        if now_us >= until_us:
            raise _timed_out(state, what, timeout_s, now_us)
        idle_s = max(0, now_us - machine.changed_at_us) / 1_000_000
        wait_s = min(POLL_MAX_S, max(POLL_FIRST_S, idle_s / POLL_SHARE), (until_us - now_us) / 1_000_000)
        machine.wait_for_news(state.seqno, wait_s)
        state = machine.refreshed()
    return state


def _timed_out(state: State, what: str, timeout_s: float, now_us: int) -> ShardTimeout:
    last = max((writer.heartbeat_us for writer in state.writers.values()), default=None)
    heard = "No writer is open." if last is None else f"A writer was last heard of {(now_us - last) / 1e6:.1f} s ago."
    return ShardTimeout(
        f"{what} of {state.name!r} did not come within {timeout_s:g} s: its upper is {antichain(state.upper)}. {heard}",
        next="See whether its writers run; or give a larger timeout_s.",
    )
