from pathlib import Path

import pytest

from strandline.kv.memory import MemoryStore
from strandline.testing.clock import ManualClock
from tests.harness.clients import Client, Shared


@pytest.fixture
def drivers(tmp_path: Path, clock: ManualClock) -> tuple[Client, Client]:
    kv = MemoryStore()
    first = Client(Shared(kv, clock, tmp_path / "blobs"), create=True)
    first.main.put_many({"a/1": b"1", "b/1": b"1"})
    first.main.commit("content")
    for owner in ("ops", "load"):
        first.repo.lock_owners.register(owner, "a test")
    return first, Client(Shared(kv, clock, tmp_path / "blobs"))
