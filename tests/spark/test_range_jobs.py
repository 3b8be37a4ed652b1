"""Jobs on ranges with Spark: executors copy the bytes, tables are repaired under a lock, writers wait for one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from strandline.errors import RangeLocked, StorageError
from strandline.lake import Lake, open_lake
from strandline.repository.branch import Branch
from strandline.repository.repository import Repository
from strandline.settings import find_settings
from strandline.testing.clock import ManualClock
from tests.conftest import SPARK

pytestmark = pytest.mark.spark


@pytest.fixture
def far(tmp_path: Path, clock: ManualClock, request: pytest.FixtureRequest) -> Iterator[Lake]:
    """Another lake, on the same kind of store."""
    settings = find_settings(tmp_path / "far", synced=False)
    if SPARK == "s3":
        endpoint = request.getfixturevalue("s3_endpoint")
        settings = replace(settings, blob=f"s3://lake/{tmp_path.name}-far?endpoint={endpoint}&region=us-east-1")
    with open_lake(settings, create=True, clock=clock) as opened:
        opened.repository("archive", create=True).lock_owners.register("ops", "moves")
        yield opened


@pytest.fixture(autouse=True)
def _owner(repo: Repository) -> None:
    repo.lock_owners.register("ops", "repairs")


@pytest.mark.everywhere
def test_executors_copy_what_is_moved(spark: SparkSession, main: Branch, far: Lake) -> None:
    main.table("t").write(spark.range(100).selectExpr("id", "id % 4 AS k"), partition_by="k")
    main.put("t/notes.txt", b"", metadata={"k": "v"})
    main.commit("t")
    files = len(list(main.list("t/")))
    target = far.repository("archive").branch("main")
    done = main.range_jobs.move("t/", target, job="m", owner="ops", spark=spark)
    assert (done.objects, done.copied) == (files, files)
    assert target.table("t").to_spark(spark).count() == 100
    assert target.stat("t/notes.txt").metadata == {"k": "v"}
    assert list(main.list()) == []
    assert not list(main.locks)


@pytest.mark.everywhere
def test_what_spark_cannot_copy_is_named_and_nothing_is_moved(spark: SparkSession, main: Branch, far: Lake) -> None:
    gone = main.put("t/a", b"x")
    main.put("t/b", b"x")
    main.commit("t")
    main._core.resolver.namespace.delete_many([gone.physical_address])
    target = far.repository("archive").branch("main")
    with pytest.raises(StorageError, match="'t/a' are gone"):
        main.range_jobs.move("t/", target, job="m", owner="ops", spark=spark)
    assert list(target.list()) == []
    assert not list(main.locks)
    assert not list(target.locks)


@pytest.mark.everywhere
def test_a_table_is_written_under_a_lock(spark: SparkSession, main: Branch, repo: Repository) -> None:
    table = main.table("t")
    table.write(spark.range(10).selectExpr("id", "id % 2 AS k"), partition_by="k")
    main.commit("t")
    with main.lock("t/k=1/", owner="ops") as held:
        held.table("t").write(
            spark.range(100, 103).selectExpr("id", "1L AS k"), mode="overwrite_partitions", partition_by="k"
        )
        with pytest.raises(RangeLocked):
            repo.branch("main").put("t/k=1/x", b"x")
        assert table.to_spark(spark).count() == 10
    assert sorted(row.id for row in table.to_spark(spark).collect()) == [0, 2, 4, 6, 8, 100, 101, 102]


def test_a_write_waits_for_a_lock(
    spark: SparkSession, main: Branch, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Spark has computed is staged when the lock has ended, and not computed again."""
    main.table("t").write(spark.range(3))
    main.commit("t")
    lock = main.locks.take("t/", owner="ops")
    polls = threading.Semaphore(0)

    def sleep(_seconds: float) -> None:
        polls.release()
        main.locks.end([lock.id])

    monkeypatch.setattr(clock, "sleep", sleep)
    main.table("t").write(spark.range(3))
    assert polls.acquire(blocking=False)
    assert main.table("t").to_spark(spark).count() == 6
    main.commit("t")
    main.locks.take("t/", owner="ops")
    monkeypatch.setattr(clock, "sleep", clock.advance_s)
    with pytest.raises(RangeLocked, match="repairs"):
        main.table("t").write(spark.range(3))
    assert main.table("t").to_spark(spark).count() == 6
