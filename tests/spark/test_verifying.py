"""Verification of bytes on Spark finds what fsck finds, and says how each object was compared."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import strandline
from strandline.errors import UsageError
from strandline.repository.branch import Branch
from strandline.spark import verify

pytestmark = pytest.mark.spark


@pytest.fixture
def main(lake_url: str, tmp_path: Path) -> Iterator[Branch]:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "kept.csv").write_bytes(b"a,b")
    with strandline.open(lake_url, create=True, synced=False) as lake:
        main = lake.repository("nyc", create=True).branch("main")
        main.put("bytes", b"some bytes")
        main.copy("bytes", "the same bytes")
        main.table("t").write(pa.table({"k": range(1000)}))
        main.commit("first")
        main.import_objects(tmp_path / "elsewhere", "in/")
        main.put("staged", b"more")
        yield main


def damaged(main: Branch, path: str, at: int) -> str:
    """Turn a bit of an object's file."""
    store = main._core.resolver.namespace
    found = main.find(path)
    assert found is not None
    body = bytearray(store.get(found.physical_address))
    body[at] ^= 1
    store.put(found.physical_address, bytes(body))
    return found.physical_address


@pytest.mark.everywhere
def test_each_file_is_compared_once(spark: SparkSession, main: Branch) -> None:
    found = {row["path"]: (row["how"], row["problem"]) for row in verify(spark, main).collect()}
    data = next(path for path in found if path.endswith(".parquet"))
    hows = {path: how for path, (how, _) in found.items()}
    assert hows[data] in ("bytes", "pages")  # a file of this machine gets a checksum of all of it
    assert {path: how for path, how in hows.items() if path.partition("/")[0] != "t"} == {
        "bytes": "bytes",
        "in/kept.csv": "tag",
        "staged": "bytes",
    }
    assert {problem for _, problem in found.values()} == {None}


def test_what_is_damaged_or_gone_is_named(spark: SparkSession, main: Branch, tmp_path: Path) -> None:
    data = next(info.path for info in main.list("t/") if info.path.endswith(".parquet"))
    damaged(main, "bytes", 3)
    damaged(main, data, 20)
    found = main.find("staged")
    assert found is not None
    main._core.resolver.namespace.delete_many([found.physical_address])
    (tmp_path / "elsewhere" / "kept.csv").write_bytes(b"changed")
    rows = verify(spark, main).where("problem IS NOT NULL").collect()
    problems = {row["path"]: row["problem"] for row in rows}
    assert "other bytes" in problems.pop("bytes")
    assert data in problems.pop(data)
    assert "cannot be read" in problems.pop("staged")
    assert "since it was imported" in problems.pop("in/kept.csv")
    assert problems == {}
    assert [row["path"] for row in verify(spark, main, "sta").collect()] == ["staged"]
    first = main._other("main~1")
    assert {row["path"] for row in verify(spark, first).where("problem IS NOT NULL").collect()} == {"bytes", data}


def test_a_lake_in_memory_is_refused(spark: SparkSession) -> None:
    with strandline.open("memory://", create=True) as lake:
        branch = lake.repository("nyc", create=True).branch("main")
        branch.put("a", b"")
        branch.commit("first")
        with pytest.raises(UsageError):
            verify(spark, branch)
