"""What tests of collections, and of lakes that move, look at: the files of tables, by their keys."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from strandline.core.iceberg_files import key_in
from strandline.repository.repository import Repository

ROWS = pa.table({"k": pa.array([1, 2], pa.int64()), "s": ["a", "b"]})


def files(repository: Repository) -> set[str]:
    return set(repository._core.resolver.namespace.list_keys("ice/"))


def collect(repository: Repository) -> None:
    """Collect until what nothing leads to has been seen, has expired, and has gone."""
    for _ in range(4):
        repository.gc.run(grace_days=0)


def key_of(blobs: Any, location: str) -> str:
    key = key_in(blobs, location)
    assert key is not None
    return key
