from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline.blob import BlobStore, open_store
from strandline.testing.blob_conformance import BlobStoreTests


class TestLocal(BlobStoreTests):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[BlobStore]:
        yield open_store(f"file://{tmp_path}/blobs")


class TestLocalUnsynced(BlobStoreTests):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[BlobStore]:
        yield open_store(str(tmp_path / "blobs"), synced=False)


class TestMemory(BlobStoreTests):
    @pytest.fixture
    def store(self) -> Iterator[BlobStore]:
        yield open_store(f"memory://{uuid.uuid4().hex}/some/prefix")


@pytest.mark.server
class TestS3(BlobStoreTests):
    @pytest.fixture
    def store(self, s3_endpoint: str) -> Iterator[BlobStore]:
        yield open_store(f"s3://lake/{uuid.uuid4().hex}?endpoint={s3_endpoint}&region=us-east-1")
