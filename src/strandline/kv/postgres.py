"""PostgreSQL as a key-value store: one table, one row a key, every write its own transaction."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import parse_qs, urlencode

import psycopg
from psycopg_pool import ConnectionPool, PoolTimeout

from strandline.clock import backoff_s
from strandline.errors import InvalidSettings, StoreUnavailable
from strandline.kv.pooled import ForkSafePool
from strandline.kv.store import ABSENT, PAGE_KEYS, Guard, Guarded, Page, Predicate, PredicateFailed, Store, in_part
from strandline.redaction import SecretUrl

# without a handler, Python prints its warnings: what they say is in the error of the call that waited
logging.getLogger("psycopg.pool").addHandler(logging.NullHandler())

POOL_MAX_CONNECTIONS = 16
POOL_TIMEOUT_S = 10.0
REPEATS = 8
"""How often a statement that the server rolled back by itself is done again: 40001, a conflict of transactions, and
40P01, a deadlock. Both did nothing."""
UNDONE = ("40001", "40P01")
ISOLATION = "read committed"
"""Every statement is a transaction of its own and judges what it finds at that moment. At a higher level it would fail
instead of losing a swap, and a pooler between keeps no setting of a session: so the server's default has to be this."""
WRITE_BATCH_ROWS = 5_000
CREATE_LOCK = 0x57A2D11E
"""Advisory lock under which the table is made: two sessions that create it at once would meet an error."""

T = TypeVar("T")

_CREATE = """
CREATE TABLE IF NOT EXISTS {table} (
    partition bytea NOT NULL, key bytea NOT NULL, value bytea NOT NULL, PRIMARY KEY (partition, key)
)"""
_UPSERT = (
    "INSERT INTO {table} (partition, key, value) SELECT %s, k, v FROM unnest(%s::bytea[], %s::bytea[]) AS pairs(k, v) "
    "ON CONFLICT (partition, key) DO UPDATE SET value = excluded.value"
)
_SET = (
    "INSERT INTO {table} (partition, key, value) VALUES (%s, %s, %s) "
    "ON CONFLICT (partition, key) DO UPDATE SET value = excluded.value"
)
_SET_WHILE = (
    "WITH held AS MATERIALIZED ("
    "SELECT 1 FROM {table} WHERE partition = %s AND key = %s AND value = %s FOR SHARE"
    "), written AS (INSERT INTO {table} (partition, key, value) "
    "SELECT %s, k, v FROM unnest(%s::bytea[], %s::bytea[]) AS pairs(k, v) WHERE EXISTS (SELECT 1 FROM held) "
    "ON CONFLICT (partition, key) DO UPDATE SET value = excluded.value) SELECT count(*) FROM held"
)
_INSERT = "INSERT INTO {table} (partition, key, value) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING"
_SWAP = "UPDATE {table} SET value = %s WHERE partition = %s AND key = %s AND value = %s"
_DELETE = "DELETE FROM {table} WHERE partition = %s AND key = ANY(%s)"
_GET = "SELECT value FROM {table} WHERE partition = %s AND key = %s"
_GET_MANY = "SELECT key, value FROM {table} WHERE partition = %s AND key = ANY(%s)"
_SCAN = "SELECT key, value FROM {table} WHERE partition = %s AND key >= %s ORDER BY key LIMIT %s"
_SCAN_TO = "SELECT key, value FROM {table} WHERE partition = %s AND key >= %s AND key < %s ORDER BY key LIMIT %s"


class _Undone(Exception):
    """The server rolled the statement back by itself, because of what others did at the same time."""


class PostgresStore(Store):
    """Durability: what the server's `synchronous_commit` promises; it is refused when that is off.

    Args:
        conninfo: a libpq URL or connection string.
        table: the table's name, made when missing.
        allow_async_commit: open a server that acknowledges writes before they are on disk.
    """

    guarded_max_pairs = WRITE_BATCH_ROWS

    def __init__(self, conninfo: str, *, table: str = "strandline_kv", allow_async_commit: bool = False) -> None:
        if not table.isidentifier() or not table.isascii():
            raise InvalidSettings(f"{table!r} is not a table name.", next="Use letters, digits and '_'.")
        self._table = table
        self._conninfo = SecretUrl(conninfo)
        self._pool = ForkSafePool(self._open_pool, lambda pool: pool.close(), "PostgreSQL")
        try:
            connection = psycopg.connect(conninfo, autocommit=True, connect_timeout=int(POOL_TIMEOUT_S))
        except psycopg.Error as error:
            raise _unavailable(error, "no") from error
        with connection:
            row = connection.execute("SHOW synchronous_commit").fetchone()
            if row is not None and row[0] == "off" and not allow_async_commit:
                raise InvalidSettings(
                    "This PostgreSQL acknowledges writes before they are on disk (synchronous_commit is off).",
                    next="Turn it on, or add async=allow to the URL if losing acknowledged writes is fine.",
                )
            row = connection.execute("SHOW default_transaction_isolation").fetchone()
            if row is not None and row[0] != ISOLATION:
                raise InvalidSettings(
                    f"This PostgreSQL begins transactions at isolation level {row[0]!r}, where commits that meet fail.",
                    next=f"Set it for this user: ALTER ROLE … SET default_transaction_isolation = '{ISOLATION}'.",
                )
            with connection.transaction():
                connection.execute("SELECT pg_advisory_xact_lock(%s)", (CREATE_LOCK,))
                connection.execute(_CREATE.format(table=table))

    def _open_pool(self) -> ConnectionPool[psycopg.Connection[Any]]:
        return ConnectionPool(
            self._conninfo.reveal(),
            min_size=1,
            max_size=POOL_MAX_CONNECTIONS,
            timeout=POOL_TIMEOUT_S,
            kwargs={"autocommit": True, "cursor_factory": psycopg.Cursor},
            check=None,
            open=True,
        )

    @contextmanager
    def _connection(self, happened: str) -> Iterator[psycopg.Connection[Any]]:
        """A connection from the pool; driver errors leave as `StoreUnavailable`."""
        try:
            with self._pool.get().connection() as connection:
                try:
                    yield connection
                except (psycopg.OperationalError, psycopg.InterfaceError, psycopg.InternalError) as error:
                    if error.sqlstate in UNDONE:
                        raise _Undone from error
                    # a statement that the server itself refused did nothing; a broken connection tells nothing, and
                    # 40003 says just that: nobody knows whether the statement was completed
                    unknown = error.sqlstate is None or error.sqlstate.startswith(("08", "57", "40003"))
                    raise _unavailable(error, happened if unknown else "no") from error
        except PoolTimeout as error:
            raise _unavailable(error, "no") from error
        except psycopg.Error as error:
            raise _unavailable(error, happened) from error

    def _execute(self, statement: str, arguments: Sequence[object], read: Callable[[psycopg.Cursor[Any]], T]) -> T:
        happened = "no" if statement.startswith("SELECT") else "unknown"
        reason: BaseException | None = None
        for attempt in range(REPEATS):
            try:
                with self._connection(happened) as connection:
                    text = statement.format(table=self._table)
                    return read(connection.execute(text, arguments, prepare=True, binary=True))
            except _Undone as undone:
                reason = undone.__cause__
                time.sleep(backoff_s(attempt))
        assert isinstance(reason, Exception)
        raise _unavailable(reason, "no") from reason

    def get(self, partition: bytes, key: bytes) -> bytes | None:
        row = self._execute(_GET, (partition, key), lambda cursor: cursor.fetchone())
        return None if row is None else row[0]

    def set(self, partition: bytes, key: bytes, value: bytes) -> None:
        self._execute(_SET, (partition, key, value), lambda cursor: None)

    def set_if(self, partition: bytes, key: bytes, value: bytes, predicate: Predicate) -> None:
        if predicate is ABSENT:
            changed = self._execute(_INSERT, (partition, key, value), lambda cursor: cursor.rowcount)
        else:
            changed = self._execute(_SWAP, (value, partition, key, predicate), lambda cursor: cursor.rowcount)
        if changed != 1:
            raise PredicateFailed

    def delete(self, partition: bytes, key: bytes) -> None:
        self.delete_many(partition, [key])

    def scan_page(self, partition: bytes, start: bytes = b"", end: bytes | None = None, limit: int = PAGE_KEYS) -> Page:
        if end is None:
            rows = self._execute(_SCAN, (partition, start, limit), lambda cursor: cursor.fetchall())
        else:
            rows = self._execute(_SCAN_TO, (partition, start, end, limit), lambda cursor: cursor.fetchall())
        return Page([key for key, _ in rows], [value for _, value in rows])

    def get_many(self, partition: bytes, keys: Sequence[bytes]) -> list[bytes | None]:
        rows = self._execute(_GET_MANY, (partition, list(keys)), lambda cursor: cursor.fetchall())
        found: dict[bytes, bytes] = dict(rows)
        return [found.get(key) for key in keys]

    def set_many(self, partition: bytes, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        # in key order, so that two bulk writers cannot deadlock on each other's rows
        ordered = sorted(pairs)
        for first in range(0, len(ordered), WRITE_BATCH_ROWS):
            batch = ordered[first : first + WRITE_BATCH_ROWS]
            columns = [key for key, _ in batch], [value for _, value in batch]
            with in_part(first > 0):
                self._execute(_UPSERT, (partition, *columns), lambda cursor: None)

    def set_many_while(self, partition: bytes, pairs: Sequence[tuple[bytes, bytes]], guard: Guard) -> Guarded:
        ordered = sorted(pairs)
        columns = [key for key, _ in ordered], [value for _, value in ordered]
        held = self._execute(_SET_WHILE, (*guard, partition, *columns), lambda cursor: cursor.fetchone())
        return Guarded.WRITTEN if held and held[0] else Guarded.REFUSED

    def delete_many(self, partition: bytes, keys: Iterable[bytes]) -> None:
        ordered = sorted(keys)
        for first in range(0, len(ordered), WRITE_BATCH_ROWS):
            with in_part(first > 0):
                self._execute(_DELETE, (partition, ordered[first : first + WRITE_BATCH_ROWS]), lambda cursor: None)

    def close(self) -> None:
        self._pool.close()


def _unavailable(error: Exception, happened: str) -> StoreUnavailable:
    reason = " ".join(str(error).split()) or type(error).__name__
    return StoreUnavailable(
        f"PostgreSQL did not answer: {reason}.",
        happened="no" if happened == "no" else "unknown",
        next="See that the server runs and accepts this user, then repeat the call.",
    )


def open_url(url: str) -> PostgresStore:
    """A libpq URL; `table=` and `async=allow` in its query are ours."""
    base, _, query = url.partition("?")
    options = {name: values[-1] for name, values in parse_qs(query).items()}
    table, allow = options.pop("table", "strandline_kv"), options.pop("async", "refuse")
    return PostgresStore(f"{base}?{urlencode(options)}", table=table, allow_async_commit=allow == "allow")
