"""The clients of one branch, as the tests of the branch machine have them; and two drivers of jobs."""

from pathlib import Path

import pytest

from strandline.kv.memory import MemoryStore
from strandline.testing.clock import ManualClock
from tests.branch.conftest import one, shared, two
from tests.transactions.drivers import Driver

__all__ = ["one", "shared", "two"]


@pytest.fixture
def drivers(tmp_path: Path, clock: ManualClock) -> tuple[Driver, Driver]:
    kv = MemoryStore()
    first = Driver(kv, tmp_path / "blobs", clock, create=True)
    first.main.put_many({"a/1": b"1", "b/1": b"1"})
    first.main.commit("content")
    for owner in ("ops", "load"):
        first.repo.lock_owners.register(owner, "a test")
    return first, Driver(kv, tmp_path / "blobs", clock)
