"""Handles that read a shard: with a lease, or durably."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from strandline.arguments import checked
from strandline.blob.store import BlobNotFound
from strandline.closing import Closing
from strandline.errors import BeforeSince, ReaderExpired, ReaderFenced, ShardTimeout, StoreUnavailable, UsageError
from strandline.forks import survives_forks
from strandline.ids import new_id
from strandline.shards.deciding.commands import Downgrade, DowngradeDurable
from strandline.shards.deciding.machine import DEFAULT_TIMEOUT_S, Machine
from strandline.shards.rows.codec import TIME, Codec, Update
from strandline.shards.rows.contents import Split, as_tuples, contents, pieces_of
from strandline.shards.rows.updates import concatenated
from strandline.shards.state.frontier import Antichain, Frontier, antichain, bound_of
from strandline.shards.state.state import ReaderId, State
from strandline.shards.state.transitions import (
    Downgraded,
    Held,
    TokenIs,
    compare_and_downgrade_since,
    downgrade_since,
    expire_durable_reader,
    expire_reader,
    register_durable_reader,
    register_reader,
)

if TYPE_CHECKING:
    from strandline.shards.shard import Shard

READER_LEASE_S = 900
SPLITS_MAX = 10_000
SNAPSHOT_ATTEMPTS = 5
"""How often contents that were compacted away while they were read are looked for anew."""
POLL_FIRST_S = 0.002
POLL_MAX_S = 1.0
POLL_SHARE = 8
"""Who waits for a change by another process looks again after an eighth of the time that nothing came: so it hears of
it at most so much later, and an idle shard costs one request a second."""


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
        return list(self)


class Release:
    """Gives back a state that a reader's snapshot or listen holds; once, also when nobody calls it."""

    def __init__(self, reader: Reader, seqno: int) -> None:
        self._reader: Reader | None = reader
        self._seqno = seqno

    def __call__(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader._released(self._seqno)

    def __del__(self) -> None:
        self()


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
        return list(as_tuples(self.updates, self._codec))


@checked()
class Listen:
    """The changes of a shard after a time, as they come. An iterator of `Changes`; for one thread.

    Attributes:
        frontier: updates before it were told.
    """

    def __init__(self, shard: Shard, as_of: int, timeout_s: float) -> None:
        self._shard = shard
        self._frontier = as_of + 1
        self._timeout_s = timeout_s

    @property
    def frontier(self) -> Antichain:
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
                shard._machine.refreshed()
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
            for piece, table in zip(pieces, shard.rows.read(pieces, shard._machine.place.blobs), strict=True)
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


def wait_for_upper(shard: Shard, beyond: int, timeout_s: float, what: str) -> State:
    """A state whose upper lies beyond a time.

    Raises:
        ShardTimeout: it did not come.
    """
    machine = shard._machine
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
    heard = "No writer is known." if last is None else f"A writer was last heard of {(now_us - last) / 1e6:.1f} s ago."
    return ShardTimeout(
        f"{what} of {state.name!r} did not come within {timeout_s:g} s: its upper is {antichain(state.upper)}. {heard}",
        next="See whether its writers run; or give a larger timeout_s.",
    )


def snapshot_of(shard: Shard, as_of: int | None, num_splits: int, timeout_s: float, reader: Reader | None) -> Snapshot:
    if isinstance(num_splits, bool) or not isinstance(num_splits, int) or not 1 <= num_splits <= SPLITS_MAX:
        raise UsageError(f"num_splits is an int from 1 to {SPLITS_MAX:,}, not {num_splits!r}.")
    machine = shard._machine
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
    release = reader._hold(machine.state.seqno) if reader is not None else None
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


@checked()
class Reader(Closing):
    """Reads a shard and holds what it has not given up, as long as its lease lasts. Safe to share between threads.

    A context manager, whose end forgets it. A thread of the process renews the lease.
    """

    def __init__(self, shard: Shard, lease_s: int = READER_LEASE_S, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        if isinstance(lease_s, bool) or not isinstance(lease_s, int) or lease_s < 1:
            raise UsageError(f"lease_s is an int of at least 1, not {lease_s!r}.")
        self._shard = shard
        self._machine = shard._machine
        self.id = ReaderId(new_id())
        self.lease_s = lease_s
        self._forked()
        survives_forks(self)
        self._held: Counter[int] = Counter()
        self._is_closed = False
        record = self._machine.apply(lambda state, now_us: register_reader(state, self.id, lease_s, now_us), timeout_s)
        self._since = record.since
        shard._heartbeats.add(self)

    def _forked(self) -> None:
        self._lock = threading.RLock()  # a snapshot may be given back by the garbage collector, at any moment

    def __repr__(self) -> str:
        return f"<Reader {self.id} of {self._shard!r}>"

    @property
    def since(self) -> Antichain:
        """The least time that this reader holds."""
        return antichain(self._since)

    def snapshot(
        self, as_of: int | None = None, *, num_splits: int = 1, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> Snapshot:
        """The contents at a time; by default at the newest that is complete. Waits until it is.

        Raises:
            BeforeSince: the shard forgot that time.
            ShardTimeout: it did not get complete.
        """
        return snapshot_of(self._shard, as_of, num_splits, timeout_s, self)

    def listen(self, as_of: int, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> Listen:
        """All changes after a time. What this reader has not given up is not compacted before it was told.

        Args:
            timeout_s: how long each step waits at most.

        Raises:
            BeforeSince: the shard forgot what came after that time.
        """
        return listen_to(self._shard, as_of, timeout_s)

    def downgrade_since(self, since: Frontier, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> Antichain:
        """Give up reading before a time; a heartbeat as well.

        Returns:
            What this reader holds now: never less than before.

        Raises:
            ReaderExpired: its lease ended; it holds nothing.
        """
        bound = bound_of(since)
        if self._machine.route is None:
            # what is handed out is looked up when it is decided: a snapshot taken since is of that state, or a newer
            held: Held = self._machine.apply(
                lambda state, now_us: downgrade_since(state, self.id, bound, self._oldest(), now_us), timeout_s
            )
        else:  # it is looked up now: a snapshot taken from now on is of the state that is known now, or of a newer
            known = self._machine.refreshed().seqno
            oldest = self._oldest()
            held = self._machine.apply(Downgrade(self.id, bound, known if oldest is None else oldest), timeout_s)
        if not held.is_known:
            raise ReaderExpired(
                f"The lease of a reader of {self._shard.name!r} ended.",
                next="Make a new one, and see what it can still read: reader.since.",
            )
        with self._lock:  # beside the heartbeats' thread
            self._since = max(self._since, held.since)
        return self.since

    def _oldest(self) -> int | None:
        """The oldest state whose parts are handed out."""
        with self._lock:
            return min((seqno for seqno, count in self._held.items() if count), default=None)

    def heartbeat(self, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> bool:
        """Renew the lease; whether it still lasted."""
        try:
            self.downgrade_since(antichain(self._since), timeout_s=timeout_s)
        except ReaderExpired:
            return False
        return True

    def close(self) -> None:
        """Let the shard forget this reader."""
        if self._is_closed:
            return
        self._is_closed = True
        self._shard._heartbeats.discard(self)
        try:
            self._machine.apply(lambda state, _: expire_reader(state, self.id))
        except StoreUnavailable:
            return  # its lease ends

    def _hold(self, seqno: int) -> Release:
        with self._lock:
            self._held[seqno] += 1
        return Release(self, seqno)

    def _released(self, seqno: int) -> None:
        with self._lock:
            self._held[seqno] -= 1
            if not self._held[seqno]:
                del self._held[seqno]


def listen_to(shard: Shard, as_of: int, timeout_s: float) -> Listen:
    bound = bound_of(as_of)
    since = shard._machine.refreshed().since
    if bound < since:
        raise before_since(shard.name, bound, since)
    return Listen(shard, bound, timeout_s)


@checked()
class DurableReader:
    """Holds what may still be read, without a lease, under a name that outlives processes.

    Whoever uses it shows the token that its last user left: a zombie learns that somebody else came. To read, take the
    shard's `snapshot` and `listen`: while the name stands, nothing from its since on is forgotten.
    """

    def __init__(self, shard: Shard, name: str, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        if not isinstance(name, str) or not name or not name.isprintable():
            raise UsageError(f"A durable reader needs a name of one line, not {name!r}.")
        self._shard = shard
        self._machine = shard._machine
        self.name = name
        self.id = ReaderId(name)
        record = self._machine.apply(lambda state, _: register_durable_reader(state, self.id), timeout_s)
        self._since = record.since
        self.token = record.token

    def __repr__(self) -> str:
        return f"<DurableReader {self.name} of {self._shard!r}>"

    @property
    def since(self) -> Antichain:
        return antichain(self._since)

    def claim(self, token: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> Antichain:
        """Become its user: from now on the token is this one, and whoever shows another is refused.

        Raises:
            ReaderFenced: others claimed it again and again until the time was up. Nothing was changed.
        """
        clock = self._machine.place.clock
        until_us = clock.now_us() + int(timeout_s * 1_000_000)
        while True:
            try:
                left_s = max(0.0, (until_us - clock.now_us()) / 1_000_000)
                return self.compare_and_downgrade_since(self.token, token, antichain(self._since), timeout_s=left_s)
            except ReaderFenced as fenced:
                self.token = fenced.token
                if clock.now_us() >= until_us:
                    raise

    def compare_and_downgrade_since(
        self, expected_token: str, token: str, since: Frontier, *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> Antichain:
        """Give up reading before a time, if the token on record is the expected one; it becomes the new one.

        Raises:
            ReaderFenced: it is another one. Nothing was changed.
            UsageError: the reader was forgotten.
        """
        bound = bound_of(since)
        if not isinstance(token, str):
            raise UsageError(f"A token is a str, not {token!r}.", next="Write str(…) around it.")
        done: Downgraded | TokenIs | None
        if token == expected_token:
            done = self._machine.apply(DowngradeDurable(self.id, token, bound), timeout_s)
        else:
            done = self._machine.apply(
                lambda state, _: compare_and_downgrade_since(state, self.id, expected_token, token, bound), timeout_s
            )
        if done is None:
            raise UsageError(f"There is no durable reader {self.name!r} any more.", next="Make it again.")
        if isinstance(done, TokenIs):
            if done.token == token and expected_token != token:
                self.token, self._since = done.token, done.since  # an attempt whose reply was lost
                return self.since
            raise ReaderFenced(
                f"The durable reader {self.name!r} of {self._shard.name!r} is used by somebody else, under the token "
                f"{done.token!r}.",
                token=done.token,
                next="Stop, or claim it if the other one is dead.",
            )
        self.token, self._since = done.token, done.since
        return self.since

    def downgrade_since(self, since: Frontier, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> Antichain:
        """Give up reading before a time, under the token that this handle last saw."""
        return self.compare_and_downgrade_since(self.token, self.token, since, timeout_s=timeout_s)

    def remove(self, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> bool:
        """Forget it for good; whether it was there. The shard's since stays where it is."""
        return self._machine.apply(lambda state, _: expire_durable_reader(state, self.id), timeout_s)
