"""The four backends, and the wrappers, against the one suite."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline.kv import Store, open_store
from strandline.kv.memory import MemoryStore
from strandline.kv.sqlite import SqliteStore
from strandline.kv.tenant import TenantStore
from strandline.testing.counting import CountingStore
from strandline.testing.faults import FaultyStore
from strandline.testing.kv_conformance import StoreTests


class TestMemory(StoreTests):
    shares_data_with_a_fork = False

    @pytest.fixture
    def store(self) -> Iterator[Store]:
        with MemoryStore() as store:
            yield store


class TestSqlite(StoreTests):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        with SqliteStore(tmp_path / "lake.db") as store:
            yield store


class TestSqliteUnsynced(StoreTests):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        with open_store(f"sqlite://{tmp_path}/lake.db?sync=normal") as store:
            yield store


@pytest.mark.server
class TestPostgres(StoreTests):
    @pytest.fixture
    def store(self, postgres_url: str) -> Iterator[Store]:
        with open_store(f"{postgres_url}?table=t{uuid.uuid4().hex}") as store:
            yield store


@pytest.mark.server
class TestRedis(StoreTests):
    @pytest.fixture
    def store(self, redis_url: str) -> Iterator[Store]:
        with open_store(f"{redis_url}?prefix={uuid.uuid4().hex}") as store:
            yield store


class TestTenant(StoreTests):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        with TenantStore(SqliteStore(tmp_path / "lake.db", synced=False), "team") as store:
            yield store


class TestCounting(StoreTests):
    shares_data_with_a_fork = False

    @pytest.fixture
    def store(self) -> Iterator[Store]:
        yield CountingStore(MemoryStore())


class TestFaultyWithoutFaults(StoreTests):
    shares_data_with_a_fork = False

    @pytest.fixture
    def store(self) -> Iterator[Store]:
        yield FaultyStore(MemoryStore())


class TestDefaults(StoreTests):
    """What a store of somebody else's gets that has no faster paths."""

    shares_data_with_a_fork = False
    compares_and_writes_in_one_step = False

    @pytest.fixture
    def store(self) -> Iterator[Store]:
        yield FaultyStore(MemoryStore(), guards=False)
