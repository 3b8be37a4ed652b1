"""Servers whose settings lose what they acknowledge, or refuse what they should wait for, are refused when opened."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest

from strandline.errors import InvalidSettings, StoreUnavailable
from strandline.kv import open_store
from strandline.kv.postgres import REPEATS, PostgresStore
from strandline.kv.store import Guard, Guarded
from strandline.redaction import SecretUrl
from tests.harness import servers

pytestmark = pytest.mark.server
STARVED_S = 10.0
"""What waits for so long beside writers of a millisecond was passed over by hundreds of them."""


@pytest.fixture
def config(redis_url: str) -> Iterator[Any]:
    import redis

    with redis.Redis.from_url(redis_url) as client:
        before = {**client.config_get("maxmemory*")}
        yield client.config_set
        for name in ("maxmemory", "maxmemory-policy"):
            client.config_set(name, before[name])


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-lfu", "allkeys-random"])
def test_a_redis_that_deletes_what_it_acknowledged_is_refused(config: Any, redis_url: str, policy: str) -> None:
    config("maxmemory", "100mb")
    config("maxmemory-policy", policy)
    with pytest.raises(InvalidSettings, match=policy) as refused:
        open_store(redis_url)
    assert "noeviction" in refused.value.next
    open_store(f"{redis_url}?sync=relaxed").close()


@pytest.mark.parametrize(
    ("memory", "policy"), [("0", "allkeys-lru"), ("100mb", "noeviction"), ("100mb", "volatile-lru")]
)
def test_a_redis_that_keeps_what_it_acknowledged_is_opened(
    config: Any, redis_url: str, memory: str, policy: str
) -> None:
    config("maxmemory", memory)
    config("maxmemory-policy", policy)
    open_store(redis_url).close()


@pytest.mark.parametrize("options", ["", "?sync=relaxed"])
def test_a_redis_cluster_is_refused(options: str) -> None:
    with servers.redis(cluster=True) as url, pytest.raises(InvalidSettings, match="Redis Cluster") as refused:
        open_store(url + options)
    assert "PostgreSQL" in refused.value.next


def test_many_guarded_writers_do_not_keep_a_guard_from_changing(postgres_url: str) -> None:
    """Share locks on a row may starve those who want to change it."""
    table, partition, key = f"t{uuid.uuid4().hex}", b"refs", b"main"
    with ExitStack() as stack:
        stores = [stack.enter_context(open_store(f"{postgres_url}?table={table}")) for _ in range(4)]
        stores[0].set(partition, key, b"0")
        stop = threading.Event()
        written: list[int] = []

        def write(number: int) -> None:
            store, mine = stores[number % 4], 0
            while not stop.is_set():
                held = store.get(partition, key)
                assert held is not None
                pairs = [(b"%d/%d" % (number, mine), b"v")]
                mine += store.set_many_while(b"staged", pairs, Guard(partition, key, held)) is Guarded.WRITTEN
            written.append(mine)

        threads = [threading.Thread(target=write, args=(number,)) for number in range(64)]
        for thread in threads:
            thread.start()
        waited = []
        try:
            with open_store(f"{postgres_url}?table={table}") as own:  # whose connections no writer uses
                for change in range(20):
                    began = time.monotonic()
                    own.set_if(partition, key, b"%d" % (change + 1), b"%d" % change)
                    waited.append(time.monotonic() - began)
                    time.sleep(0.05)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
    assert sum(written) > 0
    assert max(waited) < STARVED_S, waited


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_postgres_at_another_isolation_level_is_refused(postgres_url: str, level: str) -> None:
    role = "r" + uuid.uuid4().hex[:8]
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN SUPERUSER")
        connection.execute(f"ALTER ROLE {role} SET default_transaction_isolation = '{level}'")
    with pytest.raises(InvalidSettings, match=level) as refused:
        open_store(postgres_url.replace("test@", f"{role}@"))
    assert "ALTER ROLE" in refused.value.next


def test_statements_that_a_postgres_rolled_back_are_done_again(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connections are at a level that fails when transactions meet, whatever was looked at when it was opened."""
    with PostgresStore(postgres_url, table=f"t{uuid.uuid4().hex}") as store:
        store._conninfo = SecretUrl(f"{postgres_url}?options=-c%20default_transaction_isolation%3Dserializable")
        store.set(b"p", b"counter", b"0")
        done: list[int] = []

        def count() -> None:
            from strandline.kv.store import PredicateFailed

            for _ in range(20):
                while True:
                    held = store.get(b"p", b"counter")
                    assert held is not None
                    try:
                        store.set_if(b"p", b"counter", b"%d" % (int(held) + 1), held)
                        break
                    except PredicateFailed:
                        continue
                    except StoreUnavailable as error:  # it gave up, and says that it did nothing
                        if error.happened != "no":
                            raise
                done.append(1)

        threads = [threading.Thread(target=count) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert store.get(b"p", b"counter") == b"%d" % len(done) == b"120"


@pytest.mark.parametrize(
    ("state", "happened", "tries"),
    [
        ("40001", "no", REPEATS),
        ("40P01", "no", REPEATS),
        ("40003", "unknown", 1),
        ("08006", "unknown", 1),
        ("53100", "no", 1),
    ],
)
def test_what_the_server_says_of_a_failed_write_is_believed(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, state: str, happened: str, tries: int
) -> None:
    monkeypatch.setattr("strandline.kv.postgres.time.sleep", lambda seconds: None)
    with PostgresStore(postgres_url, table=f"t{uuid.uuid4().hex}") as store:
        asked: list[object] = []

        class Failed(psycopg.OperationalError):
            sqlstate = state

        def fail(*arguments: object, **options: object) -> None:
            asked.append(arguments)
            raise Failed("simulated")

        store.set(b"p", b"k", b"1")
        monkeypatch.setattr(psycopg.Connection, "execute", fail)
        with pytest.raises(StoreUnavailable) as failed:
            store.set(b"p", b"k", b"2")
        assert (failed.value.happened, len(asked)) == (happened, tries)
