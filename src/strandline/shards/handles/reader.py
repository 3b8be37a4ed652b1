"""A handle that reads a shard, with a lease."""

from __future__ import annotations

import threading
from collections import Counter

from strandline.arguments import checked
from strandline.closing import Closing
from strandline.errors import ReaderExpired, StoreUnavailable, UsageError
from strandline.forks import survives_forks
from strandline.ids import new_id
from strandline.shards.deciding.commands import Downgrade
from strandline.shards.deciding.machine import DEFAULT_TIMEOUT_S
from strandline.shards.handles.listen import Listen, listen_to
from strandline.shards.handles.open_shard import OpenShard
from strandline.shards.handles.snapshot import Release, Snapshot, snapshot_of
from strandline.shards.state.frontier import Antichain, Frontier, antichain, bound_of
from strandline.shards.state.state import ReaderId
from strandline.shards.state.transitions import (
    Held,
    downgrade_since,
    expire_reader,
    register_reader,
)

READER_LEASE_S = 900


@checked()
class Reader(Closing):
    """Reads a shard and holds what it has not given up, as long as its lease lasts. Safe to share between threads.

    A context manager, whose end forgets it. A thread of the process renews the lease.
    """

    def __init__(self, shard: OpenShard, lease_s: int = READER_LEASE_S, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        if isinstance(lease_s, bool) or not isinstance(lease_s, int) or lease_s < 1:
            raise UsageError(f"lease_s is an int of at least 1, not {lease_s!r}.")
        self._shard = shard
        self._machine = shard.machine
        self.id = ReaderId(new_id())
        self.lease_s = lease_s
        self._forked()
        survives_forks(self)
        self._held: Counter[int] = Counter()
        self._is_closed = False
        record = self._machine.apply(lambda state, now_us: register_reader(state, self.id, lease_s, now_us), timeout_s)
        self._since = record.since
        shard.heartbeats.add(self)

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
        return snapshot_of(self._shard, as_of, num_splits, timeout_s, self._hold)

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
        self._shard.heartbeats.discard(self)
        try:
            self._machine.apply(lambda state, _: expire_reader(state, self.id))
        except StoreUnavailable:
            return  # its lease ends

    def _hold(self, seqno: int) -> Release:
        with self._lock:
            self._held[seqno] += 1
        return Release(lambda: self._released(seqno))

    def _released(self, seqno: int) -> None:
        with self._lock:
            self._held[seqno] -= 1
            if not self._held[seqno]:
                del self._held[seqno]
