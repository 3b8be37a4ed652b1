"""The Python blocks of the documents run as they stand, one after the other; and the site can be built."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import strandline
from strandline.fs import StrandlineFileSystem

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DOCS = Path(__file__).parents[1] / "docs"


WITHOUT_JAVA = {"JAVA_HOME": "/nowhere", "PATH": "/nowhere", "SPARK_HOME": "/nowhere"}


def run_blocks(name: str, until: str = "", **known: object) -> dict[str, object]:
    found: dict[str, object] = dict(known)
    text = (DOCS / name).read_text()
    if until:
        assert until in text
    blocks = re.findall(r"```python\n(.*?)```", text.partition(until)[0] if until else text, re.S)
    assert blocks
    for block in blocks:
        exec(compile(block, name, "exec"), found)
    return found


@pytest.mark.parametrize(
    ("name", "until"),
    [("tutorial.md", "## The step after"), ("tools.md", ""), ("index.md", ""), ("../README.md", "## On Spark")],
)
def test_a_newcomer_without_java_gets_through(
    name: str, until: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for variable, value in WITHOUT_JAVA.items():
        monkeypatch.setenv(variable, value)
    StrandlineFileSystem.clear_instance_cache()
    found = run_blocks(name, until)
    assert "lake" in found


@pytest.mark.server
def test_iceberg_without_an_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All blocks; the first one sets a session of Spark up, and none starts it."""
    monkeypatch.chdir(tmp_path)
    found = run_blocks("iceberg.md")
    lake = found["lake"]
    assert lake is not None


@pytest.mark.spark
def test_the_tutorial_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run_blocks("tutorial.md")
    shown = capsys.readouterr().out
    assert "336776 rows in" in shown
    assert "departure delay of OO corrected" in shown
    assert shown.rstrip().endswith("True")
    assert len(list((tmp_path / "plain-flights").iterdir())) >= 12


@pytest.mark.spark
def test_the_page_on_spark_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> None:
    monkeypatch.chdir(tmp_path)
    StrandlineFileSystem.clear_instance_cache()
    run_blocks("spark.md")


@pytest.mark.spark
def test_the_page_on_large_jobs_runs(tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    with strandline.open(tmp_path / "lake", create=True) as lake:
        table = lake.repository("nyc", create=True).branch("main").table("tables/numbers")
        for n in range(3):
            table.write(pa.table({"id": [n]}), message="a small file")
        run_blocks("jobs.md", lake=lake, spark=spark)
    assert "3 files became 1" in capsys.readouterr().out


def test_the_page_on_transactions_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_blocks("transactions.md")


def test_the_page_on_garbage_collection_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = run_blocks("garbage-collection.md")
    assert found["done"] is not None


def test_the_page_on_locks_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A corrupt partition of the flights is repaired while everyone else keeps working."""
    monkeypatch.chdir(tmp_path)
    found = run_blocks("locks.md")
    assert found["done"] is not None
    assert (tmp_path / "plain" / "tables" / "flights" / "month=1" / "REPAIRED").exists() is False


def test_the_page_on_shards_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = run_blocks("shards.md")
    assert found["rows"]


def test_the_site_is_built(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=DOCS.parent, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    reference = (tmp_path / "site" / "api" / "index.html").read_text()
    for name in ("strandline.open", "Branch.commit", "Table.write", "MergeConflict"):
        assert name in reference
