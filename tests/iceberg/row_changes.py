"""Pairs of changes of rows on two branches, made by Spark's SQL, as a program: it needs a session of its own.

Deletes are files of their own: positions in version 2, deletion vectors in version 3. What a merge makes is compared
with the same statements one after the other. Argument: the version of the format.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import strandline
from strandline.errors import MergeConflict, NothingToMerge
from strandline.repository.branch import Branch
from strandline.repository.repository import Repository
from strandline.spark import configure
from tests.harness import sessions

T = "db.t"
LOW = {"delete-low", "update-low", "merge-low"}
"""Changes of rows of the first file."""
HIGH = {"delete-high", "merge-high"}
CHANGES = {
    "nothing": "SELECT 1",
    "append": "INSERT INTO {0} (k, s) VALUES (10{1}, 'new')",
    "delete-low": "DELETE FROM {0} WHERE k = 1",
    "update-low": "UPDATE {0} SET s = 'up{1}' WHERE k = 2",
    "merge-low": (
        "MERGE INTO {0} t USING (SELECT * FROM VALUES (3, 'low'), (20{1}, 'put') AS v(k, s)) u ON t.k = u.k "
        "WHEN MATCHED THEN UPDATE SET s = u.s WHEN NOT MATCHED THEN INSERT (k, s) VALUES (u.k, u.s)"
    ),
    "delete-high": "DELETE FROM {0} WHERE k = 11",
    "merge-high": "MERGE INTO {0} t USING (SELECT 12 AS k) u ON t.k = u.k WHEN MATCHED THEN DELETE",
    "compact": "CALL {2}.system.rewrite_data_files(table => 'db.t', options => map('rewrite-all', 'true'))",
    "delete-and-compact": (
        "DELETE FROM {0} WHERE k = 1; "
        "CALL {2}.system.rewrite_data_files(table => 'db.t', options => map('rewrite-all', 'true'))"
    ),
    "add-column": "ALTER TABLE {0} ADD COLUMN n{1} INT",
}


def excludes(ours: str, theirs: str) -> bool:
    """Whether both changed rows of one file or its columns, or the branch has rewritten what the source changed."""
    both = {ours, theirs}
    if "delete-and-compact" in both:  # such a compaction is never left out: it has taken in the delete
        other = theirs if ours == "delete-and-compact" else ours
        return other in LOW | HIGH | {"delete-and-compact"} or (ours, theirs) == ("compact", "delete-and-compact")
    return both == {"add-column"} or both <= LOW or both <= HIGH or (ours == "compact" and theirs in LOW | HIGH)


def sql(spark: SparkSession, text: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in spark.sql(text).collect()]


def change(spark: SparkSession, catalog: str, name: str, side: int) -> None:
    for text in CHANGES[name].format(f"{catalog}.{T}", side, catalog).split("; "):
        sql(spark, text)


def rows(spark: SparkSession, catalog: str) -> list[str]:
    return sorted(str(row) for row in sql(spark, f"SELECT * FROM {catalog}.{T}"))


def main(version: int) -> None:
    with strandline.open("lake", create=True, synced=False) as lake:
        repository = lake.repository("nyc", create=True)
        main = repository.branch("main")
        names = ["left", "sequence", *(f"right-{number}" for number in range(len(CHANGES)))]
        for name in names:
            main.create_branch(name)
        builder = SparkSession.builder.master("local[2]")
        for setting, value in sessions.settings(Path.cwd()).items():
            builder.config(setting, value)
        catalogs = {name.replace("-", "_"): f"nyc/{name}" for name in ("main", *names)}
        spark = configure(builder, lake, catalogs=catalogs).getOrCreate()
        spark.sparkContext.setLogLevel("OFF")
        try:
            pairs(spark, repository, version)
            assert repository.fsck().is_sound
        finally:
            spark.stop()


def pairs(spark: SparkSession, repository: Repository, version: int) -> None:
    main = repository.branch("main")
    begin(spark, version)
    for number, theirs in enumerate(CHANGES):
        repository.branch(f"right-{number}").merge("main")
        change(spark, f"right_{number}", theirs, 2)
    for ours in CHANGES:
        put_back(repository, "left", main.commit_id)
        change(spark, "left", ours, 1)
        head = repository.branch("left").commit_id
        for number, theirs in enumerate(CHANGES):
            left = put_back(repository, "left", head)
            if excludes(ours, theirs):
                with pytest.raises(MergeConflict) as caught:
                    left.merge(f"right-{number}")
                assert list(caught.value.reasons) == ["tables/db/t"], (ours, theirs)
                assert ("of the branch rewrote files" in caught.value.reasons["tables/db/t"]) == ("compact" in ours)
                continue
            with suppress(NothingToMerge):
                left.merge(f"right-{number}")
            put_back(repository, "sequence", head)
            change(spark, "sequence", theirs, 2)
            assert rows(spark, "left") == rows(spark, "sequence"), (ours, theirs)
            if version > 2:
                ids = [id for (id,) in sql(spark, f"SELECT _row_id FROM left.{T}")]
                assert len(set(ids)) == len(ids), (ours, theirs)


def begin(spark: SparkSession, version: int) -> None:
    """A table of two files on main."""
    modes = ", ".join(f"'write.{verb}.mode'='merge-on-read'" for verb in ("delete", "update", "merge"))
    sql(spark, "CREATE NAMESPACE main.db")
    properties = f"'format-version'='{version}', {modes}"
    sql(spark, f"CREATE TABLE main.{T} (k BIGINT, s STRING) USING iceberg TBLPROPERTIES ({properties})")
    for low in (1, 11):
        values = ", ".join(f"({k}, 'row {k}')" for k in range(low, low + 3))
        sql(spark, f"INSERT INTO main.{T} SELECT /*+ COALESCE(1) */ * FROM VALUES {values}")


def put_back(repository: Repository, name: str, commit: str) -> Branch:
    """A branch at a commit, which its catalog goes on to read."""
    branch = repository.branch(name)
    branch.hard_reset(commit)
    return branch


if __name__ == "__main__":
    main(int(sys.argv[1]))
