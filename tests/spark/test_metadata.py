"""Metadata as data frames: they say what the library says, on every kind of session."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import strandline
from strandline.errors import RangeLocked, UsageError
from strandline.repository.branch import Branch
from strandline.spark import metadata, sql
from tests.tree.trees import small_ranges

pytestmark = [pytest.mark.spark, pytest.mark.everywhere]
ODD = ["a/ä ö", "a/%2F", "a/b\nc", "a/日本", "a/[x]*?{y}", "a/\\back", "a/'\"", "a/\x7f", "b"]


def told(frame: DataFrame) -> list[dict[str, Any]]:
    """The rows of a frame by path, with times as Arrow has them."""
    return sorted(frame.toArrow().to_pylist(), key=lambda row: row["path"].encode())


def filled(lake: strandline.Lake) -> Branch:
    main = lake.repository("nyc", create=True).branch("main")
    main.put_many({f"k{n:03d}": f"{n}" for n in range(200)} | dict.fromkeys(ODD, "odd"))
    main.commit("all")
    return main


def test_entries_are_those_of_the_listing(spark: SparkSession, lake_url: str) -> None:
    with small_ranges(4, 9, flat_max=3), strandline.open(lake_url, create=True, synced=False) as lake:
        main = filled(lake)
        tag = main._core.open("main~0")
        main.put("k050", "else", metadata={"a": "1"})
        main.delete("k051")
        main.put("new", "x")
        for ref in (main, tag):
            for prefix in ("", "k05", "a/", "a/b\n", "z", "new"):
                assert told(metadata.entries(spark, ref, prefix)) == ref.list(prefix).to_arrow().to_pylist()
        with main.transaction("job") as transaction:
            transaction.put("k052", "of a transaction")
            found = told(metadata.entries(spark, transaction, "k05"))
            assert found == transaction.list("k05").to_arrow().to_pylist()
        mine = spark.createDataFrame([("k003", "mine"), ("none", "yours")], "path STRING, whose STRING")
        assert [row["whose"] for row in metadata.entries(spark, main).join(mine, "path").collect()] == ["mine"]


def test_a_folder_may_have_the_characters_of_patterns(spark: SparkSession, tmp_path: Path) -> None:
    with strandline.open(tmp_path / "a[b]{c,d}*?", create=True, synced=False) as lake:
        main = filled(lake)
        assert metadata.entries(spark, main).count() == 200 + len(ODD)
        main.create_branch("dev").delete("b")
        lake.repository("nyc").branch("dev").commit("less")
        assert metadata.diff(spark, main, "dev").count() == 1
        assert metadata.storage_use(spark, lake.repository("nyc")).collect()[0]["objects"] == 200 + len(ODD)


@pytest.mark.sessions
def test_a_lake_in_memory_is_refused(spark: SparkSession) -> None:
    with strandline.open("memory://", create=True) as lake:
        main = filled(lake)
        dev = main.create_branch("dev")
        dev.delete("b")
        dev.commit("less")
        for asked in (lambda: metadata.entries(spark, main), lambda: metadata.diff(spark, main, dev)):
            with pytest.raises(UsageError):
                asked()


@pytest.mark.sessions
def test_what_is_quarantined_is_not_read(spark: SparkSession, lake_url: str) -> None:
    with strandline.open(lake_url, create=True, synced=False) as lake:
        main = filled(lake)
        main.commit("nothing", allow_empty=True)
        main._core.open("main")
        lake.repository("nyc").lock_owners.register("ops", "repairs")
        main.locks.take("k05", owner="ops", mode="quarantine")
        with pytest.raises(RangeLocked):
            metadata.entries(spark, main)
        assert metadata.entries(spark, main, "a/").count() == len(ODD) - 1


def test_differences_are_those_of_the_library(spark: SparkSession, lake_url: str) -> None:
    with small_ranges(4, 9, flat_max=3), strandline.open(lake_url, create=True, synced=False) as lake:
        main = filled(lake)
        dev = main.create_branch("dev")
        dev.put_many({f"k{n:03d}": "else" for n in range(0, 200, 7)} | {"a/new": "x"})
        dev.delete_many(["k100", "k101", "a/日本"])
        dev.commit("changed")
        for prefix in ("", "k1", "a/", "z"):
            found = told(metadata.diff(spark, main, dev, prefix))
            assert found == main.diff(dev, prefix).to_arrow().to_pylist()
            assert bool(found) == (prefix != "z")
        assert metadata.diff(spark, main, "main").count() == 0
        kinds = metadata.diff(spark, dev, main).groupBy("kind").count().collect()
        assert {row["kind"]: row["count"] for row in kinds} == {"changed": 29, "added": 3, "removed": 1}


@pytest.mark.sessions
def test_commits_and_the_history_of_an_object(spark: SparkSession, lake_url: str) -> None:
    with strandline.open(lake_url, create=True, synced=False) as lake:
        main = filled(lake)
        main.put("k001", "two")
        main.commit("changed", metadata={"by": "me"})
        main.delete("k001")
        main.commit("removed")
        log = metadata.commits(spark, main, amount=2).collect()
        assert [row["message"] for row in log] == ["removed", "changed"]
        assert log[1]["metadata"] == {"by": "me"}
        history = metadata.history(spark, main, "k001").collect()
        assert [(row["message"], row["kind"], row["size"]) for row in history] == [
            ("removed", "removed", None),
            ("changed", "changed", 3),
            ("all", "added", 1),
        ]


def test_files_of_a_table_have_their_statistics(spark: SparkSession, lake_url: str) -> None:
    with strandline.open(lake_url, create=True, synced=False) as lake:
        main = lake.repository("nyc", create=True).branch("main")
        rows = pa.table({"day": ["a", "a", "b"], "k": [1, 5, None]})
        main.table("t").write(rows, partition_by=["day"], message="rows")
        found = metadata.files(spark, main.table("t")).orderBy("path").collect()
        assert [(row["partition"], row["rows"]) for row in found] == [({"day": "a"}, 2), ({"day": "b"}, 1)]
        assert tuple(found[0]["columns"]["k"]) == ("1", "5", 0)
        assert found[1]["columns"]["k"]["nulls"] == 1
        entries = metadata.entries(spark, main, "t/")
        files = metadata.files(spark, main.table("t"))
        assert files.join(entries, "physical_address").agg(F.sum(entries["size"])).collect()[0][0] == sum(
            row["size"] for row in found
        )


def test_storage_use_is_counted_on_spark(spark: SparkSession, lake_url: str) -> None:
    with small_ranges(4, 9, flat_max=3), strandline.open(lake_url, create=True, synced=False) as lake:
        main = filled(lake)
        main.put_many({"a/[x]": "z" * 3, "a/b/c": "y", "a/b\u2028c/d": "1", "a/b\x85": "2", "a/b\n": "3", "a\n": "4"})
        main.put("l" * 500 + "/" + "m" * 500, "long")
        main.copy("a/b\nc", "e\nf")
        main.commit("second")
        main.create_branch("dev").put("only", "w" * 5)
        lake.repository("nyc").branch("dev").commit("on dev")
        repo = lake.repository("nyc")
        repo.create_tag("v1", "main~1")
        for depth in (0, 1, 2):
            on_spark = metadata.storage_use(spark, repo, depth=depth).toArrow()
            assert on_spark.to_pylist() == repo.storage_use(depth=depth).to_arrow().to_pylist()


@pytest.mark.sessions
def test_nothing_takes_nothing(spark: SparkSession, lake_url: str) -> None:
    with strandline.open(lake_url, create=True, synced=False) as lake:
        repo = lake.repository("nyc", create=True)
        assert tuple(metadata.storage_use(spark, repo).collect()[0]) == ("all", "", 0, 0)
        assert metadata.entries(spark, repo.branch("main")).count() == 0
        assert metadata.diff(spark, repo.branch("main"), "main").count() == 0


@pytest.mark.sessions
def test_locks_and_transactions(spark: SparkSession, lake_url: str) -> None:
    with strandline.open(lake_url, create=True, synced=False) as lake:
        main = filled(lake)
        lake.repository("nyc").lock_owners.register("ops", "repairs")
        main.locks.take([("a", "b"), ("k", None)], owner="ops")
        found = metadata.locks(spark, main).orderBy("start").collect()
        assert [(row["start"], row["end"], row["owner"]) for row in found] == [("a", "b", "ops"), ("k", None, "ops")]
        with main.transaction("job", message="done") as transaction:
            transaction.put("c", "x")
        (row,) = metadata.transactions(spark, main).collect()
        assert (row["writer"], row["state"], row["message"]) == ("job", "committed", "done")


@pytest.mark.sessions
@pytest.mark.parametrize(
    "wrong",
    [
        lambda spark, main: metadata.entries(main, spark),
        lambda spark, main: metadata.entries(spark, cast("Any", "nyc/main")),
        lambda spark, main: metadata.files(spark, cast("Any", "t")),
        lambda spark, main: metadata.storage_use(spark, main._core, depth=1),
        lambda spark, main: metadata.storage_use(spark, main, depth=-1),
        lambda spark, main: metadata.locks(spark, main._other("main~0")),
    ],
)
def test_wrong_arguments_are_refused(spark: SparkSession, lake_url: str, wrong: Any) -> None:
    with strandline.open(lake_url, create=True, synced=False) as lake:
        with pytest.raises(UsageError):
            wrong(spark, lake.repository("nyc", create=True).branch("main"))


@pytest.mark.sessions
def test_metadata_in_sql(spark: SparkSession, lake_url: str) -> None:
    with strandline.open(lake_url, create=True, synced=False) as lake:
        main = filled(lake)
        main.table("t").write(pa.table({"k": [1, 2]}), message="rows")
        lake.repository("nyc").lock_owners.register("ops", "repairs")
        main.locks.take([("a", "b")], owner="ops")
        sql.register(spark, lake)

        def rows(text: str) -> list[tuple[Any, ...]]:
            return [tuple(row) for row in spark.sql(text).collect()]

        assert rows("SELECT path, size FROM strandline_entries('nyc/main', 'k19') WHERE size > 2 ORDER BY path") == [
            (f"k19{n}", 3) for n in range(10)
        ]
        assert rows("SELECT kind FROM strandline_history('nyc/main', 'k001')") == [("added",)]
        assert rows("SELECT rows, columns['k'].least FROM strandline_files('nyc/main', 't')") == [(2, "1")]
        assert rows("SELECT objects > 0 FROM strandline_storage_use('nyc') WHERE part = 'all'") == [(True,)]
        assert rows("SELECT start, owner FROM strandline_locks('nyc/main')") == [("a", "ops")]
        writers = rows("SELECT writer, state FROM strandline_transactions('nyc/main')")
        assert len(writers) == 1
        assert writers[0][1] == "committed"
