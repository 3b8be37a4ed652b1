"""A lake for the tests of Iceberg's tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import strandline
from strandline.iceberg import Catalog
from strandline.lake import Lake
from strandline.repository.repository import Repository


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    with strandline.open(tmp_path / "lake", create=True, synced=False) as made:
        yield made


@pytest.fixture
def repository(lake: Lake) -> Repository:
    """A repository with a namespace `db` on its branch."""
    found = lake.repository("nyc", create=True)
    Catalog(found.branch("main")).create_namespace("db")
    return found
