"""The embedded default: one SQLite file, no server, several processes at once.

Writes of many threads share one transaction ("group commit"): while one of them, the leader, waits for the disk, the
others queue, and the next leader takes all of the queue. A lone writer is its own leader and waits for nobody.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from strandline.errors import InvalidSettings, StoreUnavailable
from strandline.kv.network_fs import network_file_system
from strandline.kv.store import ABSENT, PAGE_KEYS, Page, Predicate, PredicateFailed, Store

BUSY_TIMEOUT_S = 30.0
"""How long a write waits for another process's transaction."""
GROUP_MAX_WRITES = 512
WAL_CHECKPOINT_PAGES = 4_000
CACHE_KIB = 32_768

_UPSERT = "INSERT INTO kv(k, v) VALUES (?, ?) ON CONFLICT(k) DO UPDATE SET v = excluded.v"
_INSERT = "INSERT INTO kv(k, v) VALUES (?, ?) ON CONFLICT(k) DO NOTHING"
_SWAP = "UPDATE kv SET v = ? WHERE k = ? AND v = ?"
_DELETE = "DELETE FROM kv WHERE k = ?"
_GET = "SELECT v FROM kv WHERE k = ?"
_SCAN = "SELECT k, v FROM kv WHERE k >= ? AND k < ? ORDER BY k LIMIT ?"

_Work = Callable[[sqlite3.Connection], object]

_inherited: list[object] = []
"""Connections that a fork copied into this process: closing them would hurt the parent, so they are kept for ever."""


class _Reader:
    """A thread's connection: closed with the thread, but never by the child of a fork."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self._pid = os.getpid()

    def __del__(self, getpid: Callable[[], int] = os.getpid) -> None:
        if self._pid == getpid():
            self.connection.close()
        else:
            _inherited.append(self.connection)


class _Write:
    """A write on its way: its work, its outcome, and a lock on which its thread sleeps."""

    __slots__ = ("done", "error", "is_atomic", "leads", "wake", "work")

    def __init__(self, work: _Work, is_atomic: bool) -> None:
        self.work = work
        self.is_atomic = is_atomic
        self.wake = threading.Lock()
        self.wake.acquire()
        self.done = False
        self.leads = False
        self.error: Exception | None = None


class SqliteStore(Store):
    """Durability: with `synced` (the default) a write that returned survives a power loss; without, only `kill -9`.

    Args:
        path: the database file; its folder exists.
        synced: whether a write waits until the disk has it.
        allow_network_fs: open a file on a network file system all the same. SQLite's write-ahead log needs shared
            memory between its processes; over a network, two machines corrupt each other's data.
    """

    def __init__(self, path: str | Path, *, synced: bool = True, allow_network_fs: bool = False) -> None:
        self.path = Path(path)
        self.synced = synced
        kind = network_file_system(self.path.resolve().parent)
        if kind and not allow_network_fs:
            raise InvalidSettings(
                f"{self.path} is on a network file system ({kind}), where SQLite loses data.",
                next="Put the metadata on a local disk or into PostgreSQL, or pass allow_network_fs=True if only one "
                "machine will ever use it.",
            )
        self._reset()
        self._run(lambda connection: None, is_atomic=False)
        stores.add(self)

    def _reset(self) -> None:
        self._mutex = threading.Lock()
        self._queue: deque[_Write] = deque()
        self._has_leader = False
        self._local = threading.local()
        self._readers: weakref.WeakSet[_Reader] = weakref.WeakSet()
        self._writer: sqlite3.Connection | None = None
        self._closed = False

    def _forked(self) -> None:
        _inherited.append((list(self._readers), self._writer, self._local, self._queue))
        self._reset()

    # --- connections --------------------------------------------------------------------------------------------------

    def _connect(self) -> sqlite3.Connection:
        if self._closed:
            raise StoreUnavailable(f"The store {self.path} is closed.", happened="no", next="Open the lake again.")
        try:
            connection = sqlite3.connect(
                self.path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False, cached_statements=32
            )
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA synchronous = {'FULL' if self.synced else 'NORMAL'}")
            connection.execute(f"PRAGMA wal_autocheckpoint = {WAL_CHECKPOINT_PAGES}")
            connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
            connection.execute("CREATE TABLE IF NOT EXISTS kv (k BLOB PRIMARY KEY, v BLOB NOT NULL) WITHOUT ROWID")
        except sqlite3.Error as error:
            raise self._failed(error, "no") from error
        return connection

    @property
    def _reader(self) -> sqlite3.Connection:
        """This thread's own connection; readers never wait for writers."""
        reader: _Reader | None = getattr(self._local, "reader", None)
        if reader is None:
            reader = _Reader(self._connect())
            self._local.reader = reader
            self._readers.add(reader)
        return reader.connection

    def _failed(self, error: sqlite3.Error, happened: str) -> StoreUnavailable:
        advice = "Look at the disk, then repeat the call."
        if "full" in str(error):
            advice = "Free some space on the disk, then repeat the call."
        elif "locked" in str(error):
            advice = f"Another process held the write lock for {BUSY_TIMEOUT_S:.0f} s; repeat the call."
        elif "readonly" in str(error) or "unable to open" in str(error):
            advice = "Give this user the right to write the folder and its files."
        return StoreUnavailable(
            f"SQLite could not use {self.path}: {error}.",
            happened="no" if happened == "no" else "unknown",
            next=advice,
        )

    # --- writing ------------------------------------------------------------------------------------------------------

    def _run(self, work: _Work, *, is_atomic: bool = True) -> None:
        """Do `work` in a transaction, perhaps with that of other threads.

        Args:
            is_atomic: the work is a single statement, which needs no transaction around it when it is alone.
        """
        mine = _Write(work, is_atomic)
        with self._mutex:
            self._queue.append(mine)
            mine.leads = not self._has_leader
            self._has_leader = True
        if not mine.leads:
            self._wait(mine)
        if not mine.done:
            self._lead()
        if mine.error is not None:
            raise mine.error

    def _wait(self, mine: _Write) -> None:
        """Sleep until the write is done or leads. An interrupted thread leaves the queue, and nobody waits for it."""
        try:
            mine.wake.acquire()
        except BaseException:
            with self._mutex:
                if mine in self._queue:
                    self._queue.remove(mine)
                    if mine.leads:
                        self._hand_over()
            raise

    def _hand_over(self) -> None:
        """Make the first of the queue the leader; the mutex is held."""
        if self._queue:
            self._queue[0].leads = True
            self._queue[0].wake.release()
        else:
            self._has_leader = False

    def _lead(self) -> None:
        """Do everything that is queued, wake its owners, and hand over to the first of those who came meanwhile."""
        with self._mutex:
            group = [self._queue.popleft() for _ in range(min(len(self._queue), GROUP_MAX_WRITES))]
        try:
            self._commit(group)
        finally:
            for write in group:
                write.done = True
                write.wake.release()
            with self._mutex:
                self._hand_over()

    def _commit(self, group: Sequence[_Write]) -> None:
        happened = "no"
        try:
            if self._writer is None:
                self._writer = self._connect()
            connection = self._writer
            if len(group) == 1 and group[0].is_atomic:
                happened = "unknown"
                self._do(group[0], connection)
                return
            connection.execute("BEGIN IMMEDIATE")
            try:
                for write in group:
                    self._do(write, connection)
            except BaseException:
                if connection.in_transaction:  # some errors, such as a full disk, have rolled it back already
                    connection.execute("ROLLBACK")
                raise
            happened = "unknown"
            try:
                connection.execute("COMMIT")
            except sqlite3.Error:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                    happened = "no"
                raise
        except sqlite3.Error as error:
            if "locked" in str(error) or "full" in str(error) or "readonly" in str(error):
                happened = "no"  # SQLite rolls such a statement back before it says so
            for write in group:
                write.error = self._failed(error, happened)
        except BaseException as error:
            # an interrupt of the leader: the others must not take their writes for done
            if self._writer is not None and self._writer.in_transaction:
                self._writer.execute("ROLLBACK")
                happened = "no"
            for write in group:
                write.error = StoreUnavailable(
                    f"A write to {self.path} was interrupted by {type(error).__name__}.",
                    happened="no" if happened == "no" else "unknown",
                )
            raise

    @staticmethod
    def _do(write: _Write, connection: sqlite3.Connection) -> None:
        try:
            write.work(connection)
        except PredicateFailed as failed:
            write.error = failed

    def set(self, partition: bytes, key: bytes, value: bytes) -> None:
        pair = (partition + b"\0" + key, value)
        self._run(lambda connection: connection.execute(_UPSERT, pair))

    def set_if(self, partition: bytes, key: bytes, value: bytes, predicate: Predicate) -> None:
        full = partition + b"\0" + key

        def swap(connection: sqlite3.Connection) -> None:
            if predicate is ABSENT:
                changed = connection.execute(_INSERT, (full, value)).rowcount
            else:
                changed = connection.execute(_SWAP, (value, full, predicate)).rowcount
            if changed != 1:
                raise PredicateFailed

        self._run(swap)

    def delete(self, partition: bytes, key: bytes) -> None:
        full = partition + b"\0" + key
        self._run(lambda connection: connection.execute(_DELETE, (full,)))

    def set_many(self, partition: bytes, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        prefix = partition + b"\0"
        rows = [(prefix + key, value) for key, value in pairs]
        self._run(lambda connection: connection.executemany(_UPSERT, rows), is_atomic=False)

    def delete_many(self, partition: bytes, keys: Iterable[bytes]) -> None:
        prefix = partition + b"\0"
        rows = [(prefix + key,) for key in keys]
        self._run(lambda connection: connection.executemany(_DELETE, rows), is_atomic=False)

    # --- reading ------------------------------------------------------------------------------------------------------

    def get(self, partition: bytes, key: bytes) -> bytes | None:
        try:
            row = self._reader.execute(_GET, (partition + b"\0" + key,)).fetchone()
        except sqlite3.Error as error:
            raise self._failed(error, "no") from error
        return None if row is None else row[0]

    def scan_page(self, partition: bytes, start: bytes = b"", end: bytes | None = None, limit: int = PAGE_KEYS) -> Page:
        last = partition + b"\1" if end is None else partition + b"\0" + end
        try:
            rows = self._reader.execute(_SCAN, (partition + b"\0" + start, last, limit)).fetchall()
        except sqlite3.Error as error:
            raise self._failed(error, "no") from error
        cut = len(partition) + 1
        return Page([key[cut:] for key, _ in rows], [value for _, value in rows])

    def close(self) -> None:
        self._closed = True
        with self._mutex:
            writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
        for reader in list(self._readers):
            reader.connection.close()
        self._local = threading.local()


stores: weakref.WeakSet[SqliteStore] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for store in list(stores):
        store._forked()


os.register_at_fork(after_in_child=_after_fork_in_child)


def open_url(url: str) -> SqliteStore:
    """`sqlite:///absolute/path.db?sync=full|normal&network=refuse|allow`"""
    parts = urlsplit(url)
    options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    sync, network = options.pop("sync", "full"), options.pop("network", "refuse")
    if options or sync not in ("full", "normal") or network not in ("refuse", "allow"):
        raise InvalidSettings(
            f"{url!r} has an option that SQLite does not know.",
            next="The options are sync=full|normal and network=refuse|allow.",
        )
    return SqliteStore(unquote(parts.path), synced=sync == "full", allow_network_fs=network == "allow")
