"""fsspec's own tests of a file system. None is left out."""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from pathlib import Path

import pytest
from fsspec.tests.abstract import AbstractFixtures
from fsspec.tests.abstract.copy import AbstractCopyTests
from fsspec.tests.abstract.get import AbstractGetTests
from fsspec.tests.abstract.open import AbstractOpenTests
from fsspec.tests.abstract.pipe import AbstractPipeTests
from fsspec.tests.abstract.put import AbstractPutTests

import strandline
from strandline.fs import StrandlineFileSystem


class _Fixtures(AbstractFixtures):
    @pytest.fixture
    def fs(self, tmp_path: Path) -> StrandlineFileSystem:
        with strandline.open(tmp_path / "lake", create=True, synced=False) as lake:
            lake.repository("nyc", create=True)
        return StrandlineFileSystem(tmp_path / "lake", skip_instance_cache=True)

    @pytest.fixture
    def fs_path(self) -> str:
        return "nyc/main/base"

    @pytest.fixture
    def fs_join(self) -> Callable[..., str]:
        return posixpath.join

    @pytest.fixture
    def supports_empty_directories(self) -> bool:
        return False  # folders come and go with their objects


class TestCopy(AbstractCopyTests, _Fixtures):
    pass


class TestGet(AbstractGetTests, _Fixtures):
    pass


class TestPut(AbstractPutTests, _Fixtures):
    pass


class TestPipe(AbstractPipeTests, _Fixtures):
    pass


class TestOpen(AbstractOpenTests, _Fixtures):
    pass
