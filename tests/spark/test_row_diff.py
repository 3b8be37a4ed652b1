"""Rows in which a table differs between two refs, and changes as one row for each key."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

import strandline
from strandline import Branch, Repository
from strandline.errors import ObjectMissing, TableNotFound, UsageError
from strandline.spark import changes, row_diff

pytestmark = [pytest.mark.spark]


@pytest.fixture
def repo(lake_url: str) -> Iterator[Repository]:
    with strandline.open(lake_url, create=True) as lake:
        yield lake.create_repository("nyc")


def write(spark: SparkSession, branch: Branch, rows: list[tuple[int, int, str]], **options: Any) -> None:
    branch.table("t").write(spark.createDataFrame(rows, "id long, m int, x string"), message="rows", **options)


def counted(frame: DataFrame) -> dict[tuple[Any, ...], int]:
    return {(row["id"], row["m"], row["x"]): row["_diff"] for row in frame.collect()}


def by_key(frame: DataFrame) -> dict[int, tuple[str, Any, Any]]:
    found = {}
    for row in frame.collect():
        found[row["id"]] = (row["_change"], *(row[side] and row[side]["x"] for side in ("_before", "_after")))
    return found


@pytest.mark.everywhere
def test_only_files_that_differ_are_read(spark: SparkSession, repo: Repository) -> None:
    main = repo.branch("main")
    write(spark, main, [(n, n % 4, "old") for n in range(40)], partition_by=["m"])
    dev = main.create_branch("dev")
    first = [(n, 1, "new" if n == 5 else "old") for n in range(1, 40, 4) if n != 9]
    write(spark, dev, first, mode="overwrite_partitions")
    write(spark, dev, [(100, 2, "more")])
    differs = {(5, 1, "old"): -1, (5, 1, "new"): 1, (9, 1, "old"): -1, (100, 2, "more"): 1}
    assert counted(row_diff(spark, main, dev, "t")) == differs
    found = by_key(row_diff(spark, main, "dev", "t", key=["id"]))
    assert found == {5: ("changed", "old", "new"), 9: ("removed", "old", None), 100: ("added", None, "more")}
    back = by_key(row_diff(spark, dev, main, "t", key=["m", "id"]))
    assert back == {5: ("changed", "new", "old"), 9: ("added", None, "old"), 100: ("removed", "more", None)}
    # nothing but what differs is opened: a file that both have may be gone
    shared = next(file for file in main.table("t").files() if file.partition["m"] == "3")
    main._core.stores.trees.blobs.delete_many([shared.info.physical_address])
    assert counted(row_diff(spark, main, dev, "t")) == differs


def test_rewritten_files_differ_in_no_row(spark: SparkSession, repo: Repository) -> None:
    main = repo.branch("main")
    for n in range(3):
        write(spark, main, [(n, 0, "x"), (n, 0, "x"), (n + 10, 1, "y")])
    dev = main.create_branch("dev")
    dev.table("t").rewrite_files(spark=spark)
    assert counted(row_diff(spark, main, dev, "t")) == {}
    write(spark, dev, [(0, 0, "x")])  # a third one like it
    assert counted(row_diff(spark, main, dev, "t")) == {(0, 0, "x"): 1}
    assert by_key(row_diff(spark, main, dev, "t", key=["id"])) == {0: ("added", None, "x")}


def test_a_table_of_one_side_and_other_columns(spark: SparkSession, repo: Repository) -> None:
    main = repo.branch("main")
    dev = main.create_branch("dev")
    write(spark, dev, [(1, 1, "a")])
    assert counted(row_diff(spark, main, dev, "t")) == {(1, 1, "a"): 1}
    assert counted(row_diff(spark, dev, main, "t")) == {(1, 1, "a"): -1}
    wide = dev.create_branch("wide")
    more = spark.createDataFrame([(2, 1, "b", 0.5)], "id long, m int, x string, more double")
    wide.table("t").write(more, schema="merge", message="wider")
    (row,) = row_diff(spark, dev, wide, "t").collect()
    assert row.asDict() == {"id": 2, "m": 1, "x": "b", "more": 0.5, "_diff": 1}


def test_what_cannot_be_compared_is_refused(spark: SparkSession, repo: Repository) -> None:
    main = repo.branch("main")
    with pytest.raises(TableNotFound, match="neither of"):
        row_diff(spark, main, main, "t")
    write(spark, main, [(1, 1, "a")])
    with pytest.raises(UsageError, match="'nothing' is not a column"):
        row_diff(spark, main, main, "t", key=["nothing"])
    with pytest.raises(UsageError, match="at least one column"):
        row_diff(spark, main, main, "t", key=[])
    with pytest.raises(UsageError, match="not a ref"):
        row_diff(spark, "main", main, "t")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="not a Spark session"):
        row_diff(None, main, main, "t")  # type: ignore[arg-type]
    dev = main.create_branch("dev")
    texts = spark.createDataFrame([("1", 1)], "id string, m int")
    dev.table("t").write(texts, mode="overwrite", schema="replace", message="another type")
    with pytest.raises(UsageError, match="'id' of 't' is long on the left and string on the right"):
        row_diff(spark, main, dev, "t")


# --- one row for each key ---------------------------------------------------------------------------------------------


@pytest.mark.everywhere
def test_changes_as_one_row_for_each_key(spark: SparkSession, repo: Repository) -> None:
    main = repo.branch("main")
    write(spark, main, [(n, n % 2, "old") for n in range(6)], partition_by=["m"])
    first = main.commit_id
    since = max(row["_time"] for row in changes(spark, repo, main, "t").collect())
    whole = changes(spark, repo, main, "t", key=["id"]).collect()
    assert {(row["id"], row["x"], row["_change"], row["_commit"]) for row in whole} == {
        (n, "old", "upsert", first) for n in range(6)
    }
    write(spark, main, [(0, 0, "newer"), (2, 0, "old"), (4, 0, "old")], mode="overwrite_partitions")
    second = main.commit_id
    main.table("t").rewrite_files(spark=spark, sort_by=["id"])  # changes no row
    write(spark, main, [(1, 1, "old"), (7, 1, "added")], mode="overwrite_partitions")
    third = main.commit_id
    found = {
        row["id"]: (row["m"], row["x"], row["_change"], row["_commit"], row["_time"])
        for row in changes(spark, repo, main, "t", since=since, key=["id"]).collect()
    }
    last = found[7][-1]
    assert last > since + 1
    assert found == {
        0: (0, "newer", "upsert", second, since + 1),
        3: (None, None, "delete", third, last),
        5: (None, None, "delete", third, last),
        7: (1, "added", "upsert", third, last),
    }
    assert changes(spark, repo, main, "t", since=last, key=["id"]).count() == 0
    with pytest.raises(UsageError, match="not a column"):
        changes(spark, repo, main, "t", key=["nothing"])


def test_changes_that_were_forgotten_one_by_one(spark: SparkSession, repo: Repository) -> None:
    """What all readers of the feed have passed is told at one time: what came and went before counts as nothing."""
    main = repo.branch("main")
    main.feed.record()
    write(spark, main, [(1, 1, "old"), (2, 0, "gone")], partition_by=["m"])
    write(spark, main, [(1, 1, "new")], mode="overwrite_partitions")
    second = main.commit_id
    write(spark, main, [(3, 0, "other")], mode="overwrite_partitions")
    main.feed.record()
    shard = main.feed.shard
    reader = shard.durable_reader("downstream")
    reader.downgrade_since(shard.state.upper - 1)
    assert shard.state.since == shard.state.upper - 1
    found = {row["id"]: (row["x"], row["_change"], row["_commit"]) for row in
             changes(spark, repo, main, "t", key=["id"]).collect()}  # fmt: skip
    assert found == {1: ("new", "upsert", second), 3: ("other", "upsert", main.commit_id)}


def test_columns_that_the_result_has_are_refused(spark: SparkSession, repo: Repository) -> None:
    main = repo.branch("main")
    frame = spark.createDataFrame([(1, 2, 3)], "id long, _diff long, _commit long")
    main.table("t").write(frame, message="rows")
    with pytest.raises(UsageError, match="column '_diff'"):
        row_diff(spark, main, main, "t")
    with pytest.raises(UsageError, match="has a column '_diff'"):
        changes(spark, repo, main, "t", key=["id"])
    with pytest.raises(UsageError, match="named twice"):
        row_diff(spark, main, main, "t", key=["id", "id"])


def test_files_elsewhere_that_were_written_over_are_refused(
    spark: SparkSession, repo: Repository, tmp_path: Path
) -> None:
    (tmp_path / "rides").mkdir()
    pq.write_table(pa.table({"id": [3]}), tmp_path / "rides" / "a.parquet")
    main = repo.branch("main")
    main.mirror_table(tmp_path / "rides", "t")
    before = repo.ref(main.commit_id)
    pq.write_table(pa.table({"id": [7, 8]}), tmp_path / "rides" / "a.parquet")
    main.mirror_table(tmp_path / "rides", "t")
    with pytest.raises(ObjectMissing, match="its rows of before are gone"):
        row_diff(spark, before, main, "t", key=["id"])
    with pytest.raises(ObjectMissing, match="changed since it was imported"):
        before.read("t/a.parquet")


def test_many_changes_add_up_to_the_table(spark: SparkSession, repo: Repository) -> None:
    """Against the rows of the table: random writes, and each part of the feed laid over what was known before."""
    draw = random.Random(7)
    main = repo.branch("main")
    known: dict[int, str] = {}
    held: dict[int, str] = {}
    since = None
    for turn in range(5):
        for _ in range(draw.randint(1, 3)):
            part = draw.randrange(3)
            rows = {id: draw.choice("abc") for id in draw.sample(range(part, 30, 3), draw.randint(1, 8))}
            known = {id: x for id, x in known.items() if id % 3 != part} | rows
            made = [(id, part, x) for id, x in rows.items()]
            write(spark, main, made, mode="overwrite_partitions", partition_by=["m"])
        if turn % 2:
            main.table("t").rewrite_files(spark=spark)
        found = changes(spark, repo, main, "t", since=since, key=["id"]).collect()
        assert max(Counter(row["id"] for row in found).values(), default=1) == 1
        for row in found:
            if row["_change"] == "delete":
                held.pop(row["id"], None)  # it may have come and gone since
            else:
                held[row["id"]] = row["x"]
        assert held == known
        since = main.feed.shard.state.upper - 1
