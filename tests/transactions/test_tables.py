"""Tables in transactions, on Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType

import strandline
from strandline.errors import (
    BranchProtected,
    Conflict,
    Fenced,
    RequirementFailed,
    SchemaMismatch,
    StorageError,
    UncommittedChanges,
    UsageError,
)
from strandline.lake import Lake
from strandline.repository.branch import Branch

pytestmark = [pytest.mark.spark, pytest.mark.everywhere]


def numbers(spark: SparkSession, first: int, last: int, parts: int = 2) -> DataFrame:
    return spark.range(first, last, 1, parts).withColumn("k", F.col("id") % 3)


def ids(ref: Any, path: str, spark: SparkSession) -> list[int]:
    return sorted(row.id for row in ref.table(path).to_spark(spark).collect())


def test_several_tables_appear_at_one_instant(spark: SparkSession, main: Branch) -> None:
    moves = len(list(main.reflog()))
    with main.transaction("nightly", "two tables", token="2026-11-21") as tx:
        tx.table("tables/a").write(numbers(spark, 0, 10), partition_by="k")
        assert ids(tx, "tables/a", spark) == list(range(10))  # it sees its own writes
        tx.table("tables/a").write(numbers(spark, 10, 20), mode="append")
        tx.table("tables/b").write(tx.table("tables/a").to_spark(spark, where="k = 0"), mode="overwrite")
        assert tx.table("tables/a").to_polars(where="id >= 15").height == 5
        assert not main.table("tables/a").exists()
        tx.require(tx.table("tables/b").to_spark(spark).count() == 7, "b is not a third of a")
    assert (tx.result.rows, tx.result.files > 0, tx.result.bytes > 0) == (27, True, True)
    assert len(list(main.reflog())) == moves + 1
    assert ids(main, "tables/a", spark) == list(range(20))
    assert ids(main, "tables/b", spark) == list(range(0, 20, 3))
    assert not list(main.uncommitted())
    told = main.get_commit().metadata
    assert (told["strandline.writer"], told["strandline.token"], told["strandline.rows"]) == (
        "nightly",
        "2026-11-21",
        "27",
    )
    with main.transaction("nightly", token="2026-11-21") as again:
        again.table("tables/a").write(numbers(spark, 0, 10))
        assert ids(again, "tables/b", spark) == list(range(0, 20, 3))
    assert again.result.is_repeat
    assert again.result.commit == tx.result.commit
    assert ids(main, "tables/a", spark) == list(range(20))


def test_what_spark_left_is_never_seen_and_goes_on_the_deadlist(spark: SparkSession, main: Branch) -> None:
    namespace = main._core.resolver.namespace
    with main.transaction("nightly") as tx:
        tx.table("t").write(numbers(spark, 0, 10))
        for name in ("_temporary/0/task/part-0.parquet", "part-late.parquet", ".part.crc"):
            namespace.put(f"{tx.data_prefix}sl_write={'0' * 20}/{name}", b"x")
        mark_of_a_folder = f"{tx.data_prefix}sl_write={'1' * 20}"  # as S3A leaves them; no collection takes it
        namespace.put(mark_of_a_folder, b"")
        tx.table("t").write(numbers(spark, 10, 20), mode="overwrite")
    assert ids(main, "t", spark) == list(range(10, 20))
    assert tx.result.leftovers >= 3
    live = {file.info.physical_address for file in main.table("t").files()}
    from strandline.repository.repository import Repository

    found = Repository(main._core).gc.run(grace_days=7)
    assert found.dead == tx.result.leftovers
    left = {blob.key for blob in namespace.list(tx.data_prefix)}
    assert live <= left
    assert mark_of_a_folder in left
    assert not any("0" * 20 in key for key in left)
    assert ids(main, "t", spark) == list(range(10, 20))


def test_overwrites_meet_what_others_published(spark: SparkSession, main: Branch) -> None:
    with main.transaction("setup") as tx:
        tx.table("t").write(numbers(spark, 0, 9), partition_by="k")
    slow = main.transaction("slow").begin()
    slow.table("t").write(numbers(spark, 100, 101).where("k = 1"), mode="overwrite_partitions")
    with main.transaction("other") as other:  # another partition, an append: neither is in the way
        other.table("t").write(numbers(spark, 9, 10).where("k = 0"))
        other.put("elsewhere", b"x")
    slow.commit()
    assert ids(main, "t", spark) == [0, 2, 3, 5, 6, 8, 9, 100]
    slow = main.transaction("slow").begin()
    slow.table("t").write(numbers(spark, 200, 210), mode="overwrite")
    replacing = main.transaction("replacing").begin()
    replacing.table("t").write(numbers(spark, 300, 303), mode="overwrite", if_changed="replace")
    with main.transaction("other") as other:
        other.table("t").write(numbers(spark, 12, 13))
    with pytest.raises(Conflict, match="changed since it began") as caught:
        slow.commit()
    assert caught.value.paths
    assert all(path.startswith("t/") for path in caught.value.paths)
    slow.abort()
    replacing.commit()
    assert ids(main, "t", spark) == [300, 301, 302]


def test_a_job_that_also_reads_is_refused_if_that_changed(spark: SparkSession, main: Branch) -> None:
    with main.transaction("setup") as tx:
        tx.table("in").write(numbers(spark, 0, 9))
    job = main.transaction("job", expect_unchanged=["in/"]).begin()
    job.table("out").write(job.table("in").to_spark(spark))
    with main.transaction("other") as other:
        other.put("unrelated", b"x")
    with main.transaction("other") as other:
        other.table("in").write(numbers(spark, 9, 10))
    with pytest.raises(Conflict) as caught:
        job.commit()
    assert all(path.startswith("in/") for path in caught.value.paths)
    assert not main.table("out").exists()


@pytest.mark.parametrize("on_staged", ["fail", "keep"])
def test_publishing_while_others_stage_in_the_same_table(on_staged: Any, spark: SparkSession, main: Branch) -> None:
    with main.transaction("setup") as tx:
        tx.table("t").write(numbers(spark, 0, 3))
    main.table("t").write(numbers(spark, 50, 51))  # staged, and not committed
    with main.transaction("append") as tx:  # appends are in nobody's way
        tx.table("t").write(numbers(spark, 3, 4))
    job = main.transaction("overwrite", on_staged=on_staged).begin()
    job.table("t").write(numbers(spark, 100, 103), mode="overwrite")
    if on_staged == "fail":
        with pytest.raises(UncommittedChanges):
            job.commit()
        main.discard(prefix="t/")
        job.commit()
        assert ids(main, "t", spark) == [100, 101, 102]
    else:
        main.table("t").write(numbers(spark, 51, 52))
        job.commit()
        assert ids(main, "t", spark) == [50, 51, 100, 101, 102]
        assert ids(main._other("main@"), "t", spark) == [100, 101, 102]


def test_rivals_and_a_zombie(spark: SparkSession, main: Branch, lake: Lake) -> None:
    zombie = main.transaction("nightly").begin()
    zombie.table("t").write(numbers(spark, 0, 5))
    other = Lake(lake._settings, lake._kv, lake._clock).repository(main._core.name).branch("main")
    with other.transaction("nightly") as successor:
        successor.table("t").write(numbers(spark, 10, 15))
    with pytest.raises(Fenced, match=f"replaced by {successor.id}"):
        zombie.table("t").write(numbers(spark, 0, 5))
    with pytest.raises(Fenced):
        zombie.commit()
    assert ids(main, "t", spark) == list(range(10, 15))


def test_jobs_that_fail_publish_nothing(spark: SparkSession, main: Branch) -> None:
    broken = spark.range(10).select(F.raise_error(F.lit("broken")).cast(LongType()).alias("id"))
    with pytest.raises(StorageError, match="broken"), main.transaction("nightly") as tx:
        tx.table("good").write(numbers(spark, 0, 3))
        tx.table("bad").write(broken)
    assert (tx.phase, main.table("good").exists()) == ("aborted", False)
    with pytest.raises(RequirementFailed, match="no rows"), main.transaction("nightly") as tx:
        tx.table("good").write(numbers(spark, 0, 0))
        tx.require(tx.table("good").to_spark(spark).count() > 0, "no rows")
    with main.transaction("nightly") as tx:
        tx.table("t").write(numbers(spark, 0, 3))
    with pytest.raises(SchemaMismatch), main.transaction("nightly") as tx:
        tx.table("t").write(spark.range(3).selectExpr("id", "id as k", "id as more"))
    with main.transaction("nightly") as tx:
        tx.table("t").write(spark.range(3, 4).selectExpr("id", "id as k", "id as more"), schema="merge")
    assert ids(main, "t", spark) == [0, 1, 2, 3]
    with main.transaction("nightly") as tx:
        tx.put("file", b"x")
        with pytest.raises(UsageError, match="is an object"):
            tx.table("file").write(numbers(spark, 0, 1))


def test_for_each_batch_is_exactly_once(spark: SparkSession, main: Branch) -> None:
    def batch(frame: DataFrame, number: int) -> strandline.TransactionResult:
        with main.transaction("stream", token=f"query-1:{number}") as tx:
            tx.table("t").write(frame)
        return tx.result

    results = [batch(numbers(spark, number * 10, number * 10 + 10), number) for number in (0, 1, 1, 2, 0, 2)]
    assert [result.is_repeat for result in results] == [False, False, True, False, True, True]
    assert ids(main, "t", spark) == list(range(30))
    assert [commit.metadata.get("strandline.token") for commit in main.log()][:3] == [
        "query-1:2",
        "query-1:1",
        "query-1:0",
    ]


def test_only_writers_that_a_protection_names_publish(spark: SparkSession, main: Branch) -> None:
    from strandline.repository.repository import Repository

    repo = Repository(main._core)
    early = main.transaction("early").begin()
    early.put("a", b"x")
    repo.protect("main", writers=["nightly"])
    with pytest.raises(BranchProtected, match="'early'"):
        early.commit()
    with pytest.raises(BranchProtected):
        main.transaction("other").begin()
    with main.transaction("nightly") as tx:
        tx.table("t").write(numbers(spark, 0, 3))
    assert ids(main, "t", spark) == [0, 1, 2]
    repo.unprotect("main")
    early.commit()


def test_a_writer_that_commits_by_volume(main: Branch) -> None:
    with main.transaction("ingest", max_uncommitted_bytes=1_000) as tx:
        for number in range(10):
            tx.put(f"file-{number}", b"x" * 300)
            tx.position = str(number)
            uncommitted = 10 - number - len([info for info in main.list() if info.path.startswith("file-")])
            assert uncommitted <= 10
            assert tx._bytes <= 1_000 + 300
    assert [result.position for result in tx.results] == ["3", "7", "9"]
    assert main.writers["ingest"].position == "9"
    assert len(list(main.list())) == 10
    with pytest.raises(UsageError, match="token"):
        main.transaction("x", token="t", max_uncommitted_bytes=5)


def test_a_write_with_a_message_is_a_transaction_of_one_write(spark: SparkSession, main: Branch) -> None:
    main.table("t").write(numbers(spark, 0, 3), message="three rows")
    assert main.get_commit().message == "three rows"
    assert not list(main.uncommitted())
    assert ids(main, "t", spark) == [0, 1, 2]


def test_the_mark_of_a_collection_on_spark_finds_the_same(spark: SparkSession, main: Branch) -> None:
    from strandline.repository.repository import Repository

    repo = Repository(main._core)
    with main.transaction("nightly") as tx:
        tx.table("t").write(numbers(spark, 0, 9), partition_by="k")
    orphan = f"data/{main.branch_id}/00000000000000000000"
    main._core.resolver.namespace.put(orphan, b"x")
    plans = [repo.gc.plan(grace_days=0), repo.gc.plan(grace_days=0, spark=spark)]
    # a file of this very moment may be too young for the first and old enough for the second
    assert len({plan.files + plan.young for plan in plans}) == 1
    assert len({plan.dead for plan in plans}) == 1
    repo.gc.run(grace_days=0, spark=spark)
    assert ids(main, "t", spark) == list(range(9))


@pytest.mark.parametrize("ignore", [False, True])
def test_a_range_that_spark_cannot_read_stops_the_collection(ignore: bool, spark: SparkSession, main: Branch) -> None:
    from strandline.repository.repository import Repository

    main.put("a", b"1")
    main.commit("a")
    blobs = main._core.resolver.namespace
    [name] = blobs.list_keys("_strandline/ranges/")
    blobs.delete_many([name])
    blobs.put(name, b"no Parquet")
    before = set(blobs.list_keys())
    spark.conf.set("spark.sql.files.ignoreCorruptFiles", str(ignore).lower())
    try:
        with pytest.raises(StorageError, match="Nothing was deleted"):
            Repository(main._core).gc.run(grace_days=0, spark=spark)
    finally:
        spark.conf.unset("spark.sql.files.ignoreCorruptFiles")
    assert set(blobs.list_keys()) == before


def concurrently(*jobs: Callable[[], object]) -> list[BaseException]:
    import threading

    errors: list[BaseException] = []

    def run(job: Callable[[], object]) -> None:
        try:
            job()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=[job]) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def test_threads_write_tables_of_one_transaction(spark: SparkSession, main: Branch) -> None:
    with main.transaction("nightly") as tx:
        errors = concurrently(
            *(lambda n=n: tx.table(f"t{n}").write(numbers(spark, n * 10, n * 10 + 10)) for n in range(4))
        )
    assert errors == []
    assert [ids(main, f"t{n}", spark)[0] for n in range(4)] == [0, 10, 20, 30]
