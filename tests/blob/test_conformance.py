from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline.blob import BlobStore, open_store
from strandline.blob.local import LocalBlobStore
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


def test_a_store_may_begin_at_the_root_of_all_files(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("here")
    key = str(tmp_path / "x").lstrip("/")
    store = LocalBlobStore("/")
    assert store.get(key) == b"here"
    assert store.spark_url(key) == f"file:///{key}"  # as Spark spells it in `_metadata.file_path`
    assert store.local_path(key) == f"/{key}"
