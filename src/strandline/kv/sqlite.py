"""The embedded default: one SQLite file, no server, several processes at once.

Writes of many threads share one transaction ("group commit"): while one of them, the leader, waits for the disk, the
others queue, and the next leader takes all of the queue. A lone writer is its own leader and waits for nobody.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from os import getpid
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from strandline.background import BackgroundThreads
from strandline.errors import InvalidSettings, StorageError, StoreUnavailable
from strandline.kv.fork_gate import FileId, Session, gate
from strandline.kv.network_fs import network_file_system
from strandline.kv.sqlite_failures import BUSY_TIMEOUT_S, about_to_fork, failed, lost
from strandline.kv.sqlite_reading import connect_reading, is_not_writable
from strandline.kv.sqlite_write import Write
from strandline.kv.store import ABSENT, PAGE_KEYS, Guard, Guarded, Page, Predicate, PredicateFailed, Store, WouldWait

GROUP_MAX_WRITES = 512
CHECKPOINT_PAGES = 1_000
"""When so many may have been written to the log, a thread copies them into the file: 4 MiB. A file system holds writes
to the log up while it syncs it, so more at a time would be felt longer (with 16 writers, one write in a thousand waited
14 ms instead of 30), and fewer more often."""
PAGE_BYTES = 4_096
WRITE_PAGES = 2
"""What a transaction of few rows writes to the log: a leaf, and often another page."""
LOG_MAX_PAGES = 16_384
"""A log of 64 MiB is shortened by the next write itself: the thread has copied most of it, but a log that is being
written to all the time does not begin anew."""
CACHE_KIB = 32_768
READ_ATTEMPTS = 10
"""How often a read is repeated that another process's write came in between of."""

_REPLACE = "ON CONFLICT(k) DO UPDATE SET v = excluded.v"
_UPSERT = f"INSERT INTO kv(k, v) VALUES (?, ?) {_REPLACE}"
_GUARDED = f"INSERT OR IGNORE INTO kv(k, v) VALUES (?, (SELECT ? FROM kv WHERE k = ? AND v = ?)) {_REPLACE}"
"""If the guard holds something else, the value is null: the table refuses it, and the statement then writes nothing."""
_HOLDS = "SELECT 1 FROM kv WHERE k = ? AND v = ?"
_INSERT = "INSERT INTO kv(k, v) VALUES (?, ?) ON CONFLICT(k) DO NOTHING"
_SWAP = "UPDATE kv SET v = ? WHERE k = ? AND v = ?"
_DELETE = "DELETE FROM kv WHERE k = ?"
_GET = "SELECT v FROM kv WHERE k = ?"
_SCAN = "SELECT k, v FROM kv WHERE k >= ? AND k < ? ORDER BY k LIMIT ?"


class _Owner:
    """Lies in the local storage of a thread: its connection is closed with the thread."""

    def __init__(self, store: SqliteStore, session: Session) -> None:
        self._store = weakref.ref(store)
        self._session = session

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        store = None if is_finalizing() else self._store()
        if store is not None and getpid() == gate.pid:
            store._end_session(self._session)


class SqliteStore(Store):
    """Durability: with `synced` (the default) a write that returned survives a power loss; without, only `kill -9`.

    Args:
        path: the database file; its folder exists.
        synced: whether a write waits until the disk has it.
        allow_network_fs: open a file on a network file system all the same. SQLite's write-ahead log needs shared
            memory between its processes; over a network, two machines corrupt each other's data.
    """

    guarded_max_pairs = 20_000

    def __init__(self, path: str | Path, *, synced: bool = True, allow_network_fs: bool = False) -> None:
        self.path = Path(path)
        self.synced = synced
        kind = network_file_system(self.path.resolve().parent)
        if kind and not allow_network_fs:
            raise InvalidSettings(
                f"{self.path} is on a network file system ({kind}), or on one that may be, where SQLite loses data.",
                next="Put the metadata on a local disk or into PostgreSQL; or, if only one machine will ever use it, "
                "open the lake with kv=sqlite:///path/metadata.db?network=allow and blob=.",
            )
        self._file: FileId | None = None
        self._reset()
        gate.register(self)
        self._leave(self._enter())  # what cannot be opened is refused here, not at the first call

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # when the interpreter ends, what is needed here may be gone, and nobody can fork any more
        if not is_finalizing() and hasattr(self, "_sessions") and getpid() == gate.pid:
            with gate.passing():
                self._close_connections()

    def _reset(self) -> None:
        self._mutex = threading.Lock()
        self._queue: deque[Write] = deque()
        self._group: list[Write] = []
        self._has_leader = False
        self._local = threading.local()
        self._sessions: set[Session] = set()
        self._writer: sqlite3.Connection | None = None
        self._writer_waits = True
        self._closed = False
        self._logged_pages = 0
        self._background = BackgroundThreads()

    # --- connections --------------------------------------------------------------------------------------------------

    def _enter(self, *, reads: bool = True) -> Session:
        """Let the calling thread in, with a connection of its own if it reads: readers never wait for writers."""
        if getpid() != gate.pid:
            gate.found_in_child()
        try:
            session: Session = self._local.session
        except AttributeError:
            session = self._local.session = Session()
            self._local.owner = _Owner(self, session)
            self._sessions.add(session)
        session.depth += 1
        if gate.is_shut or self._closed or session.connection is None:
            try:
                self._prepare(session, reads)
            except BaseException:
                self._leave(session)
                raise
        return session

    def _prepare(self, session: Session, reads: bool) -> None:
        if gate.is_shut and not gate.wait(session):
            raise about_to_fork(self.path)
        if self._closed or (reads and session.connection is None):
            session.connection = self._connect(session)

    def _leave(self, session: Session) -> None:
        session.depth -= 1
        if self._closed:
            self._close_idle()

    def _end_session(self, session: Session) -> None:
        """The session's thread has ended."""
        session.has_ended = True
        session.depth += 1
        if not gate.is_shut:  # else the fork closes it
            _close(session)
            self._sessions.discard(session)
        self._leave(session)

    def _connect(self, reader: Session | None = None) -> sqlite3.Connection:
        """A connection: for the session of a reader, if it has to be so, one that only reads."""
        if self._closed:
            raise StoreUnavailable(f"The store {self.path} is closed.", happened="no", next="Open the lake again.")
        is_first = self._file is None
        try:
            self._refuse_lost()
            connection = self._open_connection(is_first, reader)
            if is_first:
                self._file = _id_of(self.path)
            gate.connections[connection] = _id_of(self.path)
        except (sqlite3.Error, OSError) as error:
            raise failed(self.path, error, "no") from error
        return connection

    def _open_connection(self, is_first: bool, reader: Session | None) -> sqlite3.Connection:
        connection = None
        try:
            # a file that is gone is not made anew beneath its users
            connection = sqlite3.connect(
                f"file:{quote(str(self.path.absolute()))}?mode={'rwc' if is_first else 'rw'}",
                uri=True,
                timeout=BUSY_TIMEOUT_S,
                isolation_level=None,
                check_same_thread=False,
                cached_statements=32,
            )
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA synchronous = {'FULL' if self.synced else 'NORMAL'}")
            connection.execute(f"PRAGMA wal_autocheckpoint = {LOG_MAX_PAGES}")
            connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
            if is_first:
                connection.execute("CREATE TABLE IF NOT EXISTS kv (k BLOB PRIMARY KEY, v BLOB NOT NULL) WITHOUT ROWID")
        except sqlite3.Error as error:
            if connection is not None:
                connection.close()
            if reader is None or not is_not_writable(error) or not self.path.exists():
                raise
            connection, reader.unchanged = connect_reading(self.path, BUSY_TIMEOUT_S)
        return connection

    def _refuse_lost(self) -> None:
        """Raise if a fork copied open connections to the file: what SQLite believes of it in this process is not so."""
        try:
            file = _id_of(self.path)
        except FileNotFoundError:
            return
        if gate.is_lost(file):
            raise StoreUnavailable(
                f"This process was forked while {self.path} was in use, and cannot use it safely.",
                happened="no",
                next="Fork before the lake is used, or while no call is under way; or start processes with "
                'multiprocessing.get_context("spawn").',
            )

    def _close_idle(self) -> None:
        """Close the connections of a closed store that nobody uses; a call under way does it when it ends.

        A connection is never closed under a call: SQLite may crash. A call has said that it is inside before it looked
        whether the store is closed, and here it is the other way round.
        """
        sessions = list(self._sessions)
        for session in sessions:
            if not session.depth:
                _close(session)
        # a thread that has ended may still close its own connection, and never writes again
        if not any(session.depth and not session.has_ended for session in sessions):
            self._close_writer()

    # --- forks: see `fork_gate` ---------------------------------------------------------------------------------------

    def _sessions_now(self) -> list[Session]:
        return list(self._sessions)

    def _close_connections(self) -> None:
        for session in list(self._sessions):
            _close(session)
        self._close_writer()

    def _close_writer(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            _close_connection(writer)

    def _open_file(self) -> FileId | None:
        sessions = self._sessions_now()
        if self._writer is None and not any(one.depth or one.connection is not None for one in sessions):
            return None
        try:
            return self._file or _id_of(self.path)
        except OSError:
            return None

    def _forked(self) -> None:
        for session in self._sessions:
            session.is_lost = True
            session.connection = None  # first: `_reset` ends the threads' sessions, which close theirs
        waiting, is_closed = [*self._group, *self._queue], self._closed
        self._reset()
        self._closed = is_closed
        for write in waiting:  # of the parent's threads; but the thread that forked may be among them
            write.error = StoreUnavailable(f"A fork came while {self.path} was being written.", happened="unknown")
            write.done = True
            if write.wake.locked():  # else it has been woken already, to lead
                write.wake.release()

    # --- writing ------------------------------------------------------------------------------------------------------

    @property
    def writes_at_once(self) -> bool:
        return not self.synced

    @contextmanager
    def at_once(self) -> Iterator[None]:
        self._local.waits_not = True
        try:
            yield
        finally:
            self._local.waits_not = False

    def _run_at_once(self, mine: Write) -> None:
        """Do a write if nobody in this process or in another one is writing.

        Raises:
            WouldWait: somebody is.
        """
        with self._mutex:
            if self._has_leader or self._writer is None:  # the first write of all makes the connection, in its time
                raise WouldWait
            self._has_leader = mine.leads = True
            self._group = [mine]
        mine.waits = False
        self._lead_group([mine])
        if mine.was_locked:
            raise WouldWait
        if mine.error is not None:
            raise mine.error

    def _run(
        self, statement: str, arguments: Any, *, is_swap: bool = False, guard: tuple[bytes, bytes] | None = None
    ) -> None:
        """Do a statement in a transaction, perhaps with those of other threads.

        Args:
            arguments: of the statement, or a list of them for all of which it is done.
        """
        if gate.is_shut and gate.is_forking:
            raise about_to_fork(self.path)  # a leader may wait for this thread, which would then wait for the leader
        mine = Write(statement, arguments, is_swap, guard)
        if getattr(self._local, "waits_not", False):
            self._run_at_once(mine)
            return
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

    def _wait(self, mine: Write) -> None:
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
        """Do everything that is queued, wake its owners, and hand over to the first of those that came in between."""
        with self._mutex:
            group = [self._queue.popleft() for _ in range(min(len(self._queue), GROUP_MAX_WRITES))]
            self._group = group
        self._lead_group(group)

    def _lead_group(self, group: Sequence[Write]) -> None:
        try:
            self._commit(group)
        finally:
            for write in group:
                if not write.done:  # a fork may have been here
                    write.done = True
                    write.wake.release()
            with self._mutex:
                self._group = []
                self._hand_over()
                self._logged_pages += WRITE_PAGES + sum(write.size_bytes for write in group) // PAGE_BYTES
                is_long = self._logged_pages >= CHECKPOINT_PAGES
                if is_long:
                    self._logged_pages = 0
            if is_long:
                self._background.start(("checkpoint",), self._checkpoint)

    def _checkpoint(self) -> None:
        """Copy the log into the file, beside readers and writers: else a write would now and then wait for it."""
        try:
            session = self._enter()
        except StorageError:  # closed, or gone: whoever opens the file next copies the log
            return
        try:
            session.connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        except sqlite3.Error as error:
            raise failed(self.path, error, "no") from error
        finally:
            self._leave(session)

    def _commit(self, group: Sequence[Write]) -> None:  # noqa: C901 - one thought, and a signal may come between two lines
        happened = "no"
        session = connection = None
        try:
            session = self._enter(reads=False)
            if self._writer is None:
                self._writer = self._connect()
                self._writer_waits = True
            connection = self._writer
            if group[0].waits is not self._writer_waits:  # rarely: those who do not wait write all the time
                connection.execute(f"PRAGMA busy_timeout = {int(BUSY_TIMEOUT_S * 1000) if group[0].waits else 0}")
                self._writer_waits = group[0].waits
            if len(group) == 1 and isinstance(group[0].arguments, tuple):
                happened = "unknown"  # a single statement needs no transaction around it
                self._do(group[0], connection, session)
                return
            connection.execute("BEGIN IMMEDIATE")
            try:
                for write in group:
                    self._do(write, connection, session)
            except BaseException:
                # some errors, such as a full disk, have rolled it back already
                if not session.is_lost and connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
            happened = "unknown"
            try:
                if session.is_lost:
                    raise lost(self.path)
                connection.execute("COMMIT")
            except sqlite3.Error:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                    happened = "no"
                raise
        except sqlite3.Error as error:
            if "locked" in str(error) or "full" in str(error) or "readonly" in str(error):
                happened = "no"
            for write in group:
                write.error = failed(self.path, error, happened)
                write.was_locked = "locked" in str(error)
        except StorageError as error:
            for write in group:
                write.error = copy(error)
        except BaseException as error:
            # an interrupt of the leader: the others must not take their writes for done
            is_mine = session is not None and not session.is_lost
            if is_mine and connection is not None and connection.in_transaction:
                connection.execute("ROLLBACK")
                happened = "no"
            for write in group:
                write.error = StoreUnavailable(
                    f"A write to {self.path} was interrupted by {type(error).__name__}.",
                    happened="no" if happened == "no" else "unknown",
                )
            raise
        finally:
            if session is not None:
                session.depth -= 1  # `_leave`, without a call, at whose beginning a signal handler may raise
                if self._closed:
                    self._close_idle()

    def _do(self, write: Write, connection: sqlite3.Connection, session: Session) -> None:
        statement, arguments = write.statement, write.arguments
        if isinstance(arguments, list):
            if session.is_lost:
                raise lost(self.path)
            # the transaction has begun with its lock, so what holds now holds when it ends
            if write.guard and connection.execute(_HOLDS, write.guard).fetchone() is None:
                write.error = PredicateFailed()
                return
            connection.executemany(statement, arguments)
            return
        # a signal handler of this very thread may have forked; between this look and the statement none can run
        if session.is_lost:
            raise lost(self.path)
        changed = connection.execute(statement, arguments).rowcount
        if write.is_swap and changed != 1:
            write.error = PredicateFailed()

    def set(self, partition: bytes, key: bytes, value: bytes) -> None:
        self._run(_UPSERT, (partition + b"\0" + key, value))

    def set_if(self, partition: bytes, key: bytes, value: bytes, predicate: Predicate) -> None:
        full = partition + b"\0" + key
        if predicate is ABSENT:
            self._run(_INSERT, (full, value), is_swap=True)
        else:
            self._run(_SWAP, (value, full, predicate), is_swap=True)

    def delete(self, partition: bytes, key: bytes) -> None:
        self._run(_DELETE, (partition + b"\0" + key,))

    def set_many(self, partition: bytes, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        prefix = partition + b"\0"
        if rows := [(prefix + key, value) for key, value in pairs]:
            self._run(_UPSERT, rows)

    def set_many_while(self, partition: bytes, pairs: Sequence[tuple[bytes, bytes]], guard: Guard) -> Guarded:
        prefix, held = partition + b"\0", (guard.partition + b"\0" + guard.key, guard.value)
        try:
            if len(pairs) == 1:
                key, value = pairs[0]
                self._run(_GUARDED, (prefix + key, value, *held), is_swap=True)
            else:
                self._run(_UPSERT, [(prefix + key, value) for key, value in pairs], guard=held)
        except PredicateFailed:
            return Guarded.REFUSED
        return Guarded.WRITTEN

    def delete_many(self, partition: bytes, keys: Iterable[bytes]) -> None:
        prefix = partition + b"\0"
        if rows := [(prefix + key,) for key in keys]:
            self._run(_DELETE, rows)

    # --- reading ------------------------------------------------------------------------------------------------------

    def get(self, partition: bytes, key: bytes) -> bytes | None:
        session = self._enter()
        try:
            if session.unchanged is None:
                row = session.connection.execute(_GET, (partition + b"\0" + key,)).fetchone()
            else:
                row = next(iter(self._settled(session, _GET, (partition + b"\0" + key,))), None)
        except sqlite3.Error as error:
            raise failed(self.path, error, "no") from error
        finally:
            session.depth -= 1  # `_leave`, without a call, at whose beginning a signal handler may raise
            if self._closed:
                self._close_idle()
        return None if row is None else row[0]

    def scan_page(self, partition: bytes, start: bytes = b"", end: bytes | None = None, limit: int = PAGE_KEYS) -> Page:
        last = partition + b"\1" if end is None else partition + b"\0" + end
        session = self._enter()
        try:
            if session.unchanged is None:
                rows = session.connection.execute(_SCAN, (partition + b"\0" + start, last, limit)).fetchall()
            else:
                rows = self._settled(session, _SCAN, (partition + b"\0" + start, last, limit))
        except sqlite3.Error as error:
            raise failed(self.path, error, "no") from error
        finally:
            session.depth -= 1
            if self._closed:
                self._close_idle()
        cut = len(partition) + 1
        return Page([key[cut:] for key, _ in rows], [value for _, value in rows])

    def _settled(self, session: Session, statement: str, arguments: Any) -> list[Any]:
        """What is read from a file as from one that nobody changes; read anew if somebody did, whatever it looked like.

        Pages of two states of the file look damaged to SQLite.
        """
        for _ in range(READ_ATTEMPTS):
            unchanged = session.unchanged
            try:
                rows: list[Any] = session.connection.execute(statement, arguments).fetchall()
            except sqlite3.Error:
                if unchanged is None or unchanged.holds():
                    raise
                rows = []
            if unchanged is None or unchanged.holds():
                return rows
            _close(session)
            session.unchanged = None
            session.connection = self._connect(session)
        raise StoreUnavailable(
            f"{self.path} kept changing while it was read.",
            happened="no",
            next="Repeat the call; with the right to write the folder, readers and writers go on beside each other.",
        )

    def close(self) -> None:
        """Let go of the connections. A call under way ends as if nothing had happened, and lets go of its own."""
        if getpid() != gate.pid:
            gate.found_in_child()
        self._closed = True
        self._background.close()
        self._close_idle()


def _id_of(path: Path) -> FileId:
    found = os.stat(path)
    return found.st_dev, found.st_ino


def _close(session: Session) -> None:
    connection, session.connection = session.connection, None
    if connection is not None:
        _close_connection(connection)


def _close_connection(connection: sqlite3.Connection) -> None:
    connection.close()
    gate.connections.pop(connection, None)


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
