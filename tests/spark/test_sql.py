"""Table functions of SQL over a lake: what they say is what the library says, on every kind of session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import strandline
from strandline.errors import UsageError
from strandline.iceberg import Catalog
from strandline.spark import sql

pytestmark = [pytest.mark.spark, pytest.mark.everywhere, pytest.mark.sessions]


def rows(spark: SparkSession, text: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in spark.sql(text).collect()]


def test_what_a_lake_knows_is_in_sql(spark: SparkSession, lake_url: str) -> None:
    with strandline.open(lake_url, create=True, synced=False) as lake:
        repo = lake.repository("nyc", create=True)
        main = repo.branch("main")
        main.put("a", b"1")
        first = main.commit("first", metadata={"by": "me"})
        repo.create_tag("v1", main)
        dev = main.create_branch("dev")
        dev.put_many({"a": b"22", "b": b"3"})
        dev.commit("second")
        dev.table("plain").write(pa.table({"k": [1]}), message="third")
        catalog = Catalog(dev)
        catalog.create_namespace("db")
        catalog.create_table("db.t", pa.schema([("k", pa.int64())]))
        assert sql.register(spark, lake)[0] == "strandline_branches"
        sql.register(spark, lake)  # again is fine
        assert rows(spark, "SELECT name, commit FROM strandline_branches('nyc') ORDER BY name") == [
            ("dev", dev.commit_id),
            ("main", main.commit_id),
        ]
        assert rows(spark, "SELECT name FROM strandline_tags('nyc')") == [("v1",)]
        log = rows(spark, "SELECT id, parents, message, metadata, committer FROM strandline_log('nyc/main', 1)")
        assert log == [(first.id, list(first.parents), "first", {"by": "me"}, first.committer)]
        assert rows(spark, "SELECT count(*) FROM strandline_log('nyc/dev')") == [(sum(1 for _ in dev.log()),)]
        assert rows(spark, "SELECT date FROM strandline_log('nyc/main', 1)")[0][0].timestamp() == first.date.timestamp()
        changed = rows(spark, "SELECT path, change, size_before, size FROM strandline_diff('nyc/main', 'nyc/dev')")
        assert ("a", "changed", 1, 2) in changed
        assert ("b", "added", None, 1) in changed
        below = rows(spark, "SELECT path FROM strandline_diff('nyc/main', 'nyc/dev', 'plain/')")
        assert below
        assert all(path.startswith("plain/") for (path,) in below)
        assert rows(spark, "SELECT * FROM strandline_tables('nyc/dev') ORDER BY path") == [
            ("plain", "native"),
            ("tables/db/t", "iceberg"),
        ]
        differing = rows(spark, "SELECT table, change, added_rows FROM strandline_table_diff('nyc/main', 'nyc/dev')")
        named = "strandline_table_diff('nyc/main', 'nyc/dev', table => 'db.t')"
        assert rows(spark, f"SELECT table, change, added_rows FROM {named}") == differing
        assert differing == [("db.t", "created", 0)]
        # they join like tables
        joined = (
            "SELECT b.name, l.message FROM strandline_branches('nyc') b JOIN strandline_log('nyc/dev') l "
            "ON b.commit = l.id WHERE b.name = 'main'"
        )
        assert rows(spark, joined) == [("main", "first")]
        for wrong, said in (
            ("strandline_log('nyc')", "not repository/ref"),
            ("strandline_log('nyc/none')", "none"),
            ("strandline_log('nyc/main/a')", "more than a ref"),
            ("strandline_branches(NULL)", "not a repository"),
            ("strandline_branches('nothing')", "nothing"),
        ):
            with pytest.raises(Exception, match=said):
                rows(spark, f"SELECT * FROM {wrong}")


def test_lakes_that_workers_cannot_open_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    with (
        strandline.open(kv="memory://", blob=f"file://{tmp_path}", create=True) as lake,
        pytest.raises(UsageError, match="memory of this process"),
    ):
        sql.register(spark, lake)
    with pytest.raises(UsageError, match="takes the lake"):
        sql.register(spark, "lake")  # type: ignore[arg-type]
