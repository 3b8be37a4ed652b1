"""Redis as a key-value store: per partition a sorted set of the keys and a hash of the values, changed together by Lua.

What a failover loses: Redis replicates asynchronously, so a promoted replica may lack the newest acknowledged writes,
and compare-and-swaps that were granted may be undone. `appendfsync always` protects against a crash of the server and
not against this; see docs/stores.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast
from urllib.parse import parse_qs, urlencode, urlsplit, urlunsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from strandline.errors import InvalidSettings, StoreUnavailable
from strandline.kv.pooled import ForkSafePool
from strandline.kv.store import ABSENT, PAGE_KEYS, Guard, Guarded, Page, Predicate, PredicateFailed, Store, in_part
from strandline.redaction import SecretUrl

SOCKET_TIMEOUT_S = 10.0
BATCH_KEYS = 1_000

# KEYS: index, values
_SET = """
for i = 1, #ARGV, 2 do
  redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1])
  redis.call('ZADD', KEYS[1], 0, ARGV[i])
end
return 1"""
# ARGV: key, value, 'absent' or 'holds', expected
_SWAP = """
local held = redis.call('HGET', KEYS[2], ARGV[1])
if ARGV[3] == 'absent' then
  if held then return 0 end
elseif held ~= ARGV[4] then
  return 0
end
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
redis.call('ZADD', KEYS[1], 0, ARGV[1])
return 1"""
# KEYS: index, values, values of the guard; ARGV: the guard's key and value, then keys and values
_SET_WHILE = """
if redis.call('HGET', KEYS[3], ARGV[1]) ~= ARGV[2] then return 0 end
for i = 3, #ARGV, 2 do
  redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1])
  redis.call('ZADD', KEYS[1], 0, ARGV[i])
end
return 1"""
_DELETE = """
for i = 1, #ARGV do
  redis.call('HDEL', KEYS[2], ARGV[i])
  redis.call('ZREM', KEYS[1], ARGV[i])
end
return 1"""
# ARGV: from, to, limit; keys and values come from one moment
_SCAN = """
local keys = redis.call('ZRANGE', KEYS[1], ARGV[1], ARGV[2], 'BYLEX', 'LIMIT', 0, ARGV[3])
local out = {}
for i = 1, #keys do
  out[2 * i - 1] = keys[i]
  out[2 * i] = redis.call('HGET', KEYS[2], keys[i])
end
return out"""


class RedisStore(Store):
    """Durability: with `appendonly yes` and `appendfsync always` a write that returned survives a crash of the server.

    Args:
        url: `redis://host:port/db`.
        prefix: begins every Redis key, so that several lakes can share a server.
        allow_relaxed_sync: open a server that acknowledges writes before they are on disk.
    """

    guarded_max_pairs = BATCH_KEYS

    def __init__(self, url: str, *, prefix: str = "strandline", allow_relaxed_sync: bool = False) -> None:
        self._url = SecretUrl(url)
        self._prefix = prefix.encode()
        self._pool = ForkSafePool(self._connect, lambda client: client.close(), "Redis")
        self._refuse_cluster()
        if not allow_relaxed_sync:
            self._refuse_relaxed_sync()

    def _connect(self) -> redis.Redis:
        # no retries by the driver: a repeated `set` could land after a newer one was acknowledged
        try:
            client = redis.Redis.from_url(
                self._url.reveal(),
                socket_timeout=SOCKET_TIMEOUT_S,
                socket_connect_timeout=SOCKET_TIMEOUT_S,
                retry=Retry(NoBackoff(), 0),
            )
            client.connection_pool.make_connection()  # which looks at the options, and connects later
        except (TypeError, ValueError) as error:
            raise InvalidSettings(
                f"{str(self._url)!r} is not an address of Redis: {error}.",
                next="Write redis://user:password@host:port/number; the options of its query are those of the driver, "
                "besides prefix= and sync=always|relaxed.",
            ) from None  # the driver's errors may show the password
        return client

    def _refuse_cluster(self) -> None:
        with self._client("no") as client:
            try:
                about = client.info("cluster")
            except redis.ResponseError:  # INFO is not allowed: a write across slots will be refused, in its own words
                return
        if about.get("cluster_enabled"):
            self.close()
            raise InvalidSettings(
                "This is a Redis Cluster, where a write cannot compare a key that lies in another slot.",
                next="Take a Redis server without cluster mode, or PostgreSQL.",
            )

    def _refuse_relaxed_sync(self) -> None:
        advice = "Set both on the server, or add sync=relaxed to the URL if losing acknowledged writes is fine."
        try:
            with self._client("no") as client:
                settings = cast("dict[str, str]", client.config_get("append*"))
                settings |= cast("dict[str, str]", client.config_get("maxmemory*"))
        except StoreUnavailable as error:
            if isinstance(error.__cause__, redis.ResponseError):
                self.close()
                raise InvalidSettings(
                    "This Redis does not tell whether it keeps its data (CONFIG GET is refused).", next=advice
                ) from error
            raise
        # volatile-* evicts only keys with a time to live, and none of ours has one
        policy = settings.get("maxmemory-policy", "")
        if policy.startswith("allkeys-") and settings.get("maxmemory") != "0":
            self.close()
            raise InvalidSettings(
                f"This Redis deletes acknowledged writes when its memory is full (maxmemory-policy is {policy!r}).",
                next="Set maxmemory-policy to noeviction, so that a full memory is an error; or add sync=relaxed to "
                "the URL if losing acknowledged writes is fine.",
            )
        if (settings.get("appendonly"), settings.get("appendfsync")) != ("yes", "always"):
            self.close()
            raise InvalidSettings(
                "This Redis acknowledges writes before they are on disk: it needs 'appendonly yes' and "
                "'appendfsync always'.",
                next=advice,
            )

    @contextmanager
    def _client(self, happened: str) -> Iterator[redis.Redis]:
        try:
            yield self._pool.get()
        except redis.ResponseError as error:
            raise _unavailable(error, "no") from error
        except redis.ConnectionError as error:
            refused = "connecting to" in str(error)
            raise _unavailable(error, "no" if refused else happened) from error
        except redis.RedisError as error:
            raise _unavailable(error, happened) from error

    def _names(self, partition: bytes) -> tuple[bytes, bytes]:
        """The Redis keys of a partition's index and values; the braces keep both on one node of a cluster."""
        tag = self._prefix + b":{" + partition + b"}"
        return tag + b":keys", tag + b":values"

    def _eval(self, script: str, happened: str, partition: bytes, *arguments: bytes | int) -> Any:
        with self._client(happened) as client:
            return client.eval(script, 2, *self._names(partition), *arguments)

    def get(self, partition: bytes, key: bytes) -> bytes | None:
        with self._client("no") as client:
            return cast("bytes | None", client.hget(self._names(partition)[1], key))

    def set(self, partition: bytes, key: bytes, value: bytes) -> None:
        self._eval(_SET, "unknown", partition, key, value)

    def set_if(self, partition: bytes, key: bytes, value: bytes, predicate: Predicate) -> None:
        if predicate is ABSENT:
            done = self._eval(_SWAP, "unknown", partition, key, value, b"absent", b"")
        else:
            done = self._eval(_SWAP, "unknown", partition, key, value, b"holds", predicate)
        if not done:
            raise PredicateFailed

    def delete(self, partition: bytes, key: bytes) -> None:
        self._eval(_DELETE, "unknown", partition, key)

    def scan_page(self, partition: bytes, start: bytes = b"", end: bytes | None = None, limit: int = PAGE_KEYS) -> Page:
        first = b"[" + start if start else b"-"
        last = b"+" if end is None else b"(" + end
        flat = cast("list[bytes]", self._eval(_SCAN, "no", partition, first, last, limit))
        return Page(flat[::2], flat[1::2])

    def get_many(self, partition: bytes, keys: Sequence[bytes]) -> list[bytes | None]:
        found: list[bytes | None] = []
        with self._client("no") as client:
            for first in range(0, len(keys), BATCH_KEYS):
                batch = keys[first : first + BATCH_KEYS]
                found += cast("list[bytes | None]", client.hmget(self._names(partition)[1], batch))
        return found

    def set_many(self, partition: bytes, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        for first in range(0, len(pairs), BATCH_KEYS):
            flat = [part for pair in pairs[first : first + BATCH_KEYS] for part in pair]
            with in_part(first > 0):
                self._eval(_SET, "unknown", partition, *flat)

    def set_many_while(self, partition: bytes, pairs: Sequence[tuple[bytes, bytes]], guard: Guard) -> Guarded:
        names = (*self._names(partition), self._names(guard.partition)[1])
        flat = [part for pair in pairs for part in pair]
        with self._client("unknown") as client:
            done = client.eval(_SET_WHILE, len(names), *names, guard.key, guard.value, *flat)
        return Guarded.WRITTEN if done else Guarded.REFUSED

    def delete_many(self, partition: bytes, keys: Iterable[bytes]) -> None:
        listed = list(keys)
        for first in range(0, len(listed), BATCH_KEYS):
            with in_part(first > 0):
                self._eval(_DELETE, "unknown", partition, *listed[first : first + BATCH_KEYS])

    def close(self) -> None:
        self._pool.close()


def _unavailable(error: Exception, happened: str) -> StoreUnavailable:
    reason = " ".join(str(error).split()) or type(error).__name__
    return StoreUnavailable(
        f"Redis did not answer: {reason}.",
        happened="no" if happened == "no" else "unknown",
        next="See that the server runs and accepts this user, then repeat the call.",
    )


def open_url(url: str) -> RedisStore:
    """`redis://host:port/db?prefix=…&sync=always|relaxed`"""
    parts = urlsplit(url)
    options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    prefix, sync = options.pop("prefix", "strandline"), options.pop("sync", "always")
    bare = urlunsplit(parts._replace(query=urlencode(options)))
    return RedisStore(bare, prefix=prefix, allow_relaxed_sync=sync == "relaxed")
