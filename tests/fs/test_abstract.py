"""fsspec's own tests of a file system. None is left out."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator

import pytest
from fsspec.tests.abstract import AbstractFixtures
from fsspec.tests.abstract.copy import AbstractCopyTests
from fsspec.tests.abstract.get import AbstractGetTests
from fsspec.tests.abstract.open import AbstractOpenTests
from fsspec.tests.abstract.pipe import AbstractPipeTests
from fsspec.tests.abstract.put import AbstractPutTests

import strandline
from strandline.fs import StrandlineFileSystem


class _Fixtures(AbstractFixtures):  # type: ignore[misc]
    @pytest.fixture(scope="class")
    def fs(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StrandlineFileSystem]:
        place = tmp_path_factory.mktemp("lake") / "lake"
        with strandline.open(place, create=True, synced=False) as lake:
            lake.repository("nyc", create=True)
        yield StrandlineFileSystem(place, skip_instance_cache=True)

    @pytest.fixture
    def fs_path(self) -> str:
        return "nyc/main/base"

    @pytest.fixture
    def fs_join(self) -> Callable[..., str]:
        return posixpath.join

    @pytest.fixture
    def supports_empty_directories(self) -> bool:
        return False  # folders come and go with their objects

    @pytest.fixture(autouse=True)
    def _empty(self, fs: StrandlineFileSystem) -> Iterator[None]:
        yield
        fs.lake.repository("nyc").branch("main").reset()


class TestCopy(AbstractCopyTests, _Fixtures):  # type: ignore[misc]
    pass


class TestGet(AbstractGetTests, _Fixtures):  # type: ignore[misc]
    pass


class TestPut(AbstractPutTests, _Fixtures):  # type: ignore[misc]
    pass


class TestPipe(AbstractPipeTests, _Fixtures):  # type: ignore[misc]
    pass


class TestOpen(AbstractOpenTests, _Fixtures):  # type: ignore[misc]
    pass
