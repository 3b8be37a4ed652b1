"""The contents of a shard at one time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from strandline.arguments import checked
from strandline.closing import Closing
from strandline.errors import BeforeSince, ReaderExpired, UsageError
from strandline.shards.deciding.machine import Machine
from strandline.shards.handles.open_shard import OpenShard, wait_for_upper
from strandline.shards.rows.codec import Codec, Update
from strandline.shards.rows.contents import Split, as_tuples, contents
from strandline.shards.state.frontier import antichain, bound_of

SPLITS_MAX = 10_000
SNAPSHOT_ATTEMPTS = 5
"""How often contents that were compacted away while they were read are looked for anew."""


class Release:
    """Gives back what a snapshot or a listen holds; once, also when nobody calls it."""

    def __init__(self, give_back: Callable[[], None]) -> None:
        self._give_back: Callable[[], None] | None = give_back

    def __call__(self) -> None:
        give_back, self._give_back = self._give_back, None
        if give_back is not None:
            give_back()

    def __del__(self) -> None:
        self()


@checked()
class Snapshot(Closing):
    """The contents of a shard at one time. A context manager, whose end lets its parts be collected.

    Attributes:
        as_of: the time.
        splits: exactly as many as were asked for.
    """

    def __init__(
        self, machine: Machine, codec: Codec, make: Callable[[], list[Split]], release: Release | None
    ) -> None:
        self._machine = machine
        self._codec = codec
        self._make = make
        self._release = release
        self.splits = make()
        self.as_of = self.splits[0].as_of

    def __repr__(self) -> str:
        return f"<Snapshot of {self._machine.place.shard} at {self.as_of}, {len(self.splits)} splits>"

    def close(self) -> None:
        """Give the parts back to the reader; its next `downgrade_since` or heartbeat lets them be collected."""
        if self._release is not None:
            self._release()

    def to_arrow(self, columns: Sequence[str] | None = None, where: pc.Expression | None = None) -> pa.Table:
        """All of it: the columns of the shard, then `_time` and `_diff`, consolidated.

        Args:
            columns: which ones; by default all. Rows that are the same in these are one, with the sum of the diffs.
            where: which rows.
        """
        for attempt in range(SNAPSHOT_ATTEMPTS):
            first = self.splits[0]
            pieces = tuple(piece for split in self.splits for piece in split.pieces)
            whole = Split(first.rows, first.as_of, pieces, first.is_distinct)
            try:
                return whole.to_arrow(columns, where, blobs=self._machine.place.blobs)
            except ReaderExpired:
                if attempt == SNAPSHOT_ATTEMPTS - 1:
                    raise
                self.splits = self._make()  # merged meanwhile: other parts hold the same
        raise AssertionError

    def __iter__(self) -> Iterator[Update]:
        """The contents as `((key, value), time, diff)`."""
        return as_tuples(self.to_arrow(), self._codec)

    def to_list(self) -> list[Update]:
        """The rows, as `(row, time, count)`."""
        return list(self)


def snapshot_of(
    shard: OpenShard, as_of: int | None, num_splits: int, timeout_s: float, hold: Callable[[int], Release] | None
) -> Snapshot:
    if isinstance(num_splits, bool) or not isinstance(num_splits, int) or not 1 <= num_splits <= SPLITS_MAX:
        raise UsageError(f"num_splits is an int from 1 to {SPLITS_MAX:,}, not {num_splits!r}.")
    machine = shard.machine
    if as_of is None:
        state = wait_for_upper(shard, 0, timeout_s, "The first complete time")
        state = machine.refreshed()
        last = max((part.last for batch in state.batches for part in batch.parts), default=0)
        as_of = max(state.since, last) if state.is_finished else state.upper - 1
    else:
        as_of = bound_of(as_of)
        state = machine.refreshed()
        if as_of >= state.since:
            state = wait_for_upper(shard, as_of, timeout_s, f"Time {as_of}")
    if as_of < state.since or antichain(state.since).is_empty:
        raise before_since(shard.name, as_of, state.since)
    rows = shard.rows

    def make() -> list[Split]:
        newest = machine.refreshed()
        if as_of < newest.since:
            raise before_since(shard.name, as_of, newest.since)
        return contents(newest, as_of, rows, num_splits)

    # held before the state is read: until then a heartbeat may let go of what it refers to
    release = hold(machine.state.seqno) if hold is not None else None
    return Snapshot(machine, shard.codec, make, release)


def before_since(name: str, as_of: int, since: int) -> BeforeSince:
    over = antichain(since).is_empty
    return BeforeSince(
        f"{name!r} is over: nobody can read it any more."
        if over
        else f"{name!r} cannot be read as of {as_of}: it forgot what was before {antichain(since)}.",
        since=antichain(since),
        next="" if over else f"Read as of {since} or later; a reader holds what it must not forget.",
    )
