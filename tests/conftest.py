from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import Phase, settings

import strandline
from strandline.kv.memory import MemoryStore
from strandline.lake import Lake, open_lake
from strandline.repository.branch import Branch
from strandline.repository.repository import Repository
from strandline.settings import find_settings
from strandline.testing.clock import ManualClock
from tests.harness import servers, sessions
from tests.harness.budgets import SuiteLength
from tests.harness.clients import Client, Shared

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.register_assert_rewrite("strandline.testing.kv_conformance", "strandline.testing.blob_conformance")
settings.register_profile("suite", deadline=None, max_examples=60)
# what fails under a mutation is thrown away: nobody looks for its smallest form
settings.register_profile(
    "mutations", settings.get_profile("suite"), derandomize=True, phases=(Phase.explicit, Phase.generate)
)
settings.load_profile("suite")
# the Java of a test ends before it has repaid what a second compiler and a collector in threads cost on two cores
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
SPARK = os.environ.get("STRANDLINE_TEST_SPARK", "local")
"""Which Spark the tests of tables use: local, connect (a Connect server), s3 (S3A on versitygw), newest."""


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get("STRANDLINE_TEST_BUDGETS"):
        config.pluginmanager.register(SuiteLength(SPARK))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests that are about S3A belong to the run whose sessions have it, and those about sessions to all others."""
    other = "sessions" if SPARK == "s3" else "s3"
    elsewhere = [item for item in items if item.get_closest_marker(other)]
    config.hook.pytest_deselected(items=elsewhere)
    items[:] = [item for item in items if not item.get_closest_marker(other)]


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("STRANDLINE_") and "_TEST_" not in name]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("STRANDLINE_COMMITTER", "tester")


@pytest.fixture(autouse=True)
def _nothing_by_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that count calls, or act at one, must not meet a sweep or a compaction that began beside them."""
    monkeypatch.setattr("strandline.core.repository_core.SWEEP_EVERY_COMMITS", 1 << 60)
    monkeypatch.setattr("strandline.branch.sensor.TOMBSTONES", 1 << 60)
    monkeypatch.setattr("strandline.branch.sensor.SEALED_TOKENS", 1 << 60)


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    with servers.postgres() as url:
        yield url


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    with servers.redis() as url:
        yield url


@pytest.fixture(scope="session")
def s3_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("s3") / "requests"
    os.environ["STRANDLINE_TEST_S3_LOG"] = str(log)
    with servers.s3(log) as endpoint, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", servers.ACCESS_KEY)
        patch.setenv("AWS_SECRET_ACCESS_KEY", servers.SECRET_KEY)
        yield endpoint


@pytest.fixture(scope="session")
def s3_log(s3_endpoint: str) -> Path:
    """Where the S3 server writes down each request."""
    return Path(os.environ["STRANDLINE_TEST_S3_LOG"])


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def shared(clock: ManualClock) -> Shared:
    """What the clients `one` and `two` share: all in memory."""
    return Shared(clock=clock)


@pytest.fixture
def one(shared: Shared) -> Client:
    return Client(shared, create=True)


@pytest.fixture
def two(shared: Shared, one: Client) -> Client:
    return Client(shared)


@pytest.fixture
def client(tmp_path: Path, clock: ManualClock) -> Callable[[], Client]:
    """Makes clients that share metadata in memory and bytes in a folder."""
    shared = Shared(MemoryStore(), clock, tmp_path / "data")
    made: list[Client] = []

    def make() -> Client:
        made.append(Client(shared, create=not made))
        return made[-1]

    return make


@pytest.fixture
def first(client: Callable[[], Client]) -> Client:
    return client()


@pytest.fixture
def second(client: Callable[[], Client], first: Client) -> Client:
    return client()


@pytest.fixture
def lake(tmp_path: Path, clock: ManualClock, request: pytest.FixtureRequest) -> Iterator[Lake]:
    """A lake in a folder, not synced, with a clock that stands still; its bytes on S3 if Spark is to use that."""
    settings = find_settings(tmp_path / "lake", synced=False)
    if SPARK == "s3":
        endpoint = request.getfixturevalue("s3_endpoint")
        settings = replace(settings, blob=f"s3://lake/{tmp_path.name}?endpoint={endpoint}&region=us-east-1")
    with open_lake(settings, create=True, clock=clock) as opened:
        yield opened


@pytest.fixture
def repo(lake: Lake) -> Repository:
    return lake.repository("nyc", create=True)


@pytest.fixture
def main(repo: Repository) -> Branch:
    return repo.branch("main")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """A session of the kind that STRANDLINE_TEST_SPARK names: local, connect, or s3."""
    folder = tmp_path_factory.mktemp("spark")
    if SPARK == "newest":
        import pyspark

        assert "spark-newest" in pyspark.__file__
    if SPARK == "connect":
        with sessions.connected(folder) as session:
            yield session
        return
    url = f"s3://lake?endpoint={request.getfixturevalue('s3_endpoint')}" if SPARK == "s3" else None
    with sessions.local(folder, url) as session:
        yield session


def names(ref: strandline.Ref, prefix: str = "") -> list[str]:
    """The paths of a ref."""
    return [found.path for found in ref.list(prefix)]


@pytest.fixture
def as_somebody_else() -> Iterator[Callable[[], None]]:
    """Give up root's rights, which ignore permissions, for a part of a test."""
    if os.getuid() == 0:
        yield lambda: os.seteuid(65534)
        os.seteuid(0)
    else:
        yield lambda: None
