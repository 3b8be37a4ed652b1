"""Spark, PyIceberg, DuckDB and Polars on the same branches, in a folder and on S3 with PostgreSQL."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tests.harness.sessions import IVY

ROOT = Path(__file__).parents[2]


def through_engines(place: Path, *arguments: str, program: str = "engines") -> None:
    IVY.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "STRANDLINE_COMMITTER": "tester"}
    done = subprocess.run(
        [sys.executable, "-m", f"tests.iceberg.{program}", *arguments],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-30_000:]


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_folder_without_servers(tmp_path: Path) -> None:
    through_engines(tmp_path, "", "", "")


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_s3_and_postgresql(tmp_path: Path, postgres_url: str, s3_endpoint: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE engines")
    kv = postgres_url.rpartition("/")[0] + "/engines"
    through_engines(tmp_path, kv, f"s3://lake/engines?endpoint={s3_endpoint}&region=us-east-1", s3_endpoint)


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_each_pair_of_changes_of_rows_in_version_3(tmp_path: Path) -> None:
    """PyIceberg writes versions 1 and 2, with which test_merging.py does the same."""
    through_engines(tmp_path, "3", program="row_changes")
