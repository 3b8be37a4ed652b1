from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from tests.conftest import SPARK


@pytest.fixture
def lake_url(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """What Spark's processes open: a folder; or a file of settings, where Spark has S3A."""
    if SPARK != "s3":
        return str(tmp_path / "lake")
    blob = f"s3://lake/{uuid.uuid4().hex}?endpoint={request.getfixturevalue('s3_endpoint')}&region=us-east-1"
    settings = tmp_path / "lake.toml"
    settings.write_text(f'kv = "sqlite://{tmp_path}/lake.db"\nblob = "{blob}"\n')
    return str(settings)
