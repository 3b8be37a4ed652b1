"""Imports by Spark's executors make the commit that this process makes."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import strandline
from strandline.errors import NotFound, StoreUnavailable, UsageError
from strandline.repository.branch import Branch
from strandline.repository.commits.resuming import Cut
from strandline.repository.commits.slices import Slice
from strandline.spark import importing, session
from strandline.tree.store import EMPTY

pytestmark = pytest.mark.spark


@pytest.fixture
def main(lake_url: str) -> Iterator[Branch]:
    with strandline.open(lake_url, create=True, synced=False) as lake:
        yield lake.repository("nyc", create=True).branch("main")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for n in range(300):
        path = tmp_path / "source" / f"day={n % 9}" / f"part {n:03} é#%.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * n)
    return tmp_path / "source"


def tree_of(branch: Branch) -> str:
    return branch._core.commits.tree(branch.commit_id).id


@pytest.mark.everywhere
def test_the_commit_is_that_of_this_process(spark: SparkSession, main: Branch, source: Path) -> None:
    main.put("in/held", b"")
    main.commit("held")
    other = main.create_branch("other")
    here = main.import_objects(source, "in/", replace=True)
    on_spark = other.import_objects(source, "in/", "on Spark", replace=True, spark=spark)
    assert on_spark.objects == here.objects == 300
    assert tree_of(other) == tree_of(main)
    assert other.import_objects(source, "in/", replace=True, spark=spark).commit is None


def test_how_far_it_is_is_told(spark: SparkSession, main: Branch, source: Path) -> None:
    told: list[str] = []
    main.import_objects(source, progress=lambda what, done, total: told.append(what), spark=spark)
    assert told[0] == "looking for places to cut"
    assert "listing in slices" in told


def test_an_error_of_a_task_is_what_it_would_be_here(spark: SparkSession, main: Branch, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFound, match="has no object"):
        main.import_objects(tmp_path / "empty", spark=spark)
    inside = tmp_path / "source" / "deep"
    with strandline.open(inside / "lake", create=True, synced=False) as lake:
        lake.repository("other", create=True)
    with pytest.raises(UsageError, match="belongs to a repository"):
        main.import_objects(tmp_path / "source", spark=spark)
    assert len(list(main.log())) == 1


def test_a_store_that_fails_in_a_task_is_asked_again(
    main: Branch, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is wrong with the source is answered, and Spark does not try it again; of a failing store it hears."""

    def rows(error: Exception) -> list[Any]:
        def fail(one: Slice) -> Cut:
            raise error

        monkeypatch.setattr(importing, "cut", fail)
        asked = Slice("", "", "", "", None, "", EMPTY.ref, False, True)
        columns = {"at": [3], "version": [strandline.__version__], "slice": [msgspec.msgpack.encode(asked)]}
        return [row for batch in importing._cut_all(pa.table(columns).to_batches()) for row in batch.to_pylist()]

    (row,) = rows(UsageError("Not this.", next="That."))
    refused = pickle.loads(row["refused"])
    assert (type(refused), refused.what, refused.next) == (UsageError, "Not this.", "That.")
    with pytest.raises(StoreUnavailable):
        rows(StoreUnavailable("It is away.", happened="no"))
    with pytest.raises(UsageError, match="this driver is 0.0.0"):
        list(importing._cut_all(pa.table({"at": [1], "version": ["0.0.0"], "slice": [b""]}).to_batches()))


def test_what_is_no_session_is_refused(main: Branch, source: Path) -> None:
    with pytest.raises(UsageError, match="not a Spark session"):
        main.import_objects(source, spark="local[2]")  # type: ignore[arg-type]


def test_an_error_in_progress_ends_the_work(
    spark: SparkSession, main: Branch, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(what: str, done: int, total: int | None) -> None:
        if what == "listing in slices" and total is not None:
            raise KeyError("stop")

    monkeypatch.setattr(session, "WATCH_EVERY_S", 0.001)

    with pytest.raises(KeyError, match="stop"):
        main.import_objects(source, progress=stop, spark=spark)
    assert len(list(main.log())) == 1
