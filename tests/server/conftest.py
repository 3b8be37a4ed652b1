from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import strandline
from strandline.lake import Lake
from tests.harness.serving import Served, serving
from tests.server.inside import Inside, inside


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server on a lake in a folder, for all tests that do not stop it."""
    with serving(tmp_path_factory.mktemp("served"), "lake") as server:
        yield server


@pytest.fixture(scope="session")
def lake(served: Served) -> Iterator[Lake]:
    """The server's lake, opened by the library beside it."""
    with strandline.open(served.folder, synced=False) as opened:
        yield opened


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def server() -> Iterator[Inside]:
    """A server in this process, with branches main and dev of a repository."""
    with inside() as made:
        repository = made.lake.repository("repo", create=True)
        repository.branch("main").create_branch("dev")
        made.services.verifier.look()
        yield made
