"""Rows of native tables deleted, updated and merged: the same as in SQL, whoever else is writing."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import strandline
from strandline.errors import Conflict, StrandlineError, UsageError
from strandline.repository.branch import Branch
from strandline.tables.table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = pa.schema([("id", pa.int64()), ("part", pa.string()), ("n", pa.int64()), ("s", pa.string())])


@pytest.fixture
def main(tmp_path: Path) -> Iterator[Branch]:
    with strandline.open(tmp_path / "lake", create=True, synced=False) as lake:
        yield lake.create_repository("nyc").branch("main")


def some(ids: Any, part: str | None = None) -> pa.Table:
    rows = [
        {
            "id": one,
            "part": part or ("a" if one % 2 else "b"),
            "n": None if one % 5 == 0 else one * 10,
            "s": f"row {one}",
        }
        for one in ids
    ]
    return pa.Table.from_pylist(rows, SCHEMA)


def made(main: Branch, rows: pa.Table | None = None) -> Table:
    table = main.table("tables/t")
    table.write(some(range(1, 21)) if rows is None else rows, partition_by="part", message="first")
    return table


def held(table: Table) -> list[dict[str, Any]]:
    return sorted(table.to_arrow().to_pylist(), key=str)


def by_sql(rows: list[dict[str, Any]], *statements: str, **frames: pa.Table) -> list[dict[str, Any]]:
    """What DuckDB makes of the same statements."""
    with duckdb.connect() as session:
        session.register("given", pa.Table.from_pylist(rows, SCHEMA))
        for name, frame in frames.items():
            session.register(name, frame)
        session.execute("CREATE TABLE t AS FROM given")
        for statement in statements:
            session.execute(statement)
        return sorted(session.execute("FROM t").to_arrow_table().to_pylist(), key=str)


CONDITIONS = [
    "id = 3",
    "n > 100",
    "n IS NULL",
    "part = 'a'",
    "part = 'a' AND id < 6",
    "id IN (1, 2, 99)",
    "true",
    "false",
]


@pytest.mark.parametrize("where", CONDITIONS)
def test_delete_is_sqls(where: str, main: Branch) -> None:
    table = made(main)
    before, head = held(table), main.commit_id
    done = table.delete(where)
    assert held(table) == by_sql(before, f"DELETE FROM t WHERE {where}")
    assert done.deleted == len(before) - len(held(table))
    assert (main.commit_id != head) == (done.deleted > 0) or done.deleted == 0
    assert list(main.uncommitted()) == []


@pytest.mark.parametrize("where", [*CONDITIONS, None])
def test_update_is_sqls(where: str | None, main: Branch) -> None:
    table = made(main)
    before = held(table)
    done = table.update({"n": lambda rows: pc.add(rows["n"], 1), "s": "changed", "part": "c"}, where)
    clause = "" if where is None else f" WHERE {where}"
    wanted = by_sql(before, f"UPDATE t SET n = n + 1, s = 'changed', part = 'c'{clause}")
    assert held(table) == wanted
    assert done.updated == sum(row["s"] == "changed" for row in wanted)


def test_files_without_such_rows_are_not_touched(main: Branch) -> None:
    table = made(main, some(range(1, 5)))
    table.write(some(range(100, 105)), message="second")
    before = {file.info.physical_address for file in table.files()}
    done = table.delete("id = 3")
    after = {file.info.physical_address for file in table.files()}
    assert len(before & after) == 2  # those of the second write
    assert (done.deleted, done.files) == (1, 2)
    assert table.delete("part = 'a' AND id > 50").files == 0  # a file that goes as a whole is not read
    assert main.get_commit().message == "delete rows of tables/t"


def test_changes_of_a_transaction_are_published_with_it(main: Branch) -> None:
    table = made(main)
    with main.transaction("job", "all of it") as tx:
        inside = tx.table("tables/t")
        inside.delete("id = 1")
        inside.update({"s": "x"}, "id = 2")
        inside.merge_into(some([2, 50]), "id", matched="delete")
        assert table.count() == 20
        with pytest.raises(UsageError, match="no message"):
            inside.delete("id = 3", message="own")
    assert main.get_commit().message == "all of it"
    assert sorted(row["id"] for row in held(table)) == [*range(3, 21), 50]


def test_others_that_change_the_same_files_are_a_conflict(main: Branch) -> None:
    table = made(main)
    tx = main.transaction("slow").begin()
    tx.table("tables/t").update({"n": 0}, "id = 1")
    table.delete("id = 3")
    before = held(table)
    with pytest.raises(Conflict):
        tx.commit()
    tx.abort()
    assert held(table) == before
    other = main.transaction("other").begin()
    other.table("tables/t").update({"n": 0}, "id = 1")
    table.write(some([101]), message="an append of another file")
    other.commit()
    assert table.count() == 20


def test_what_cannot_be_meant(main: Branch) -> None:
    table = made(main)
    before = main.commit_id
    wrong: list[Callable[[], object]] = [
        lambda: table.delete("nothing = 1"),
        lambda: table.update({}, "id = 1"),
        lambda: table.update({"nothing": 1}),
        lambda: table.update({"n": "text"}),
        lambda: table.update({"n": lambda rows: [1]}),
        lambda: table.update({"n": lambda rows: 1 / 0}) if False else table.update({"n": object()}),
        lambda: table.merge_into(some([1]), "nothing"),
        lambda: table.merge_into(some([1]), []),
        lambda: table.merge_into(some([1]), "id", matched="explode"),
        lambda: table.merge_into(some([1]), "id", matched=["id"]),
        lambda: table.merge_into(some([1]), "id", matched=["nothing"]),
        lambda: table.merge_into(some([1]), "id", not_matched="explode"),  # type: ignore[arg-type]
        lambda: table.merge_into(some([1, 1]), "id"),
        lambda: table.merge_into(some([1]).drop(["id"]), "id"),
        lambda: table.merge_into(some([1]).append_column("more", pa.array([1])), "id"),
        lambda: table.merge_into(pa.table({"id": ["x"]}), "id"),
        lambda: main.table("tables/none").delete("true"),
    ]
    for number, call in enumerate(wrong):
        with pytest.raises(StrandlineError) as caught:
            call()
        assert "Nothing" in str(caught.value), number
        assert main.commit_id == before, number


MERGES: list[tuple[Any, str]] = [
    ("update", "WHEN MATCHED THEN UPDATE SET part = s.part, n = s.n, s = s.s"),
    ("delete", "WHEN MATCHED THEN DELETE"),
    ("keep", ""),
    (["n"], "WHEN MATCHED THEN UPDATE SET n = s.n"),
]


@pytest.mark.parametrize("not_matched", ["insert", "skip"])
@pytest.mark.parametrize(("matched", "clause"), MERGES)
def test_merge_is_sqls(matched: Any, clause: str, not_matched: Any, main: Branch) -> None:
    table = made(main)
    before = held(table)
    source = pa.concat_tables(
        [some([1, 2, 7, 30, 31], "b"), pa.Table.from_pylist([{"id": None, "s": "no key"}], SCHEMA)]
    )
    done = table.merge_into(source, "id", matched=matched, not_matched=not_matched)
    insert = "WHEN NOT MATCHED THEN INSERT BY POSITION" if not_matched == "insert" else ""
    if clause or insert:
        statement = f"MERGE INTO t USING source s ON t.id = s.id {clause} {insert}"
        assert held(table) == by_sql(before, statement, source=source)
    else:
        assert held(table) == before
    assert done.inserted == (3 if not_matched == "insert" else 0)
    assert done.updated + done.deleted == (0 if matched == "keep" else 3)


def test_merges_by_several_columns_and_with_fewer_of_them(main: Branch) -> None:
    table = made(main)
    source = pa.table({"part": ["a", "b", "a"], "id": [1, 1, 3], "n": [-1, -2, -3]})
    done = table.merge_into(source, ["id", "part"])
    assert (done.updated, done.inserted) == (2, 1)
    found = {(row["id"], row["part"]): (row["n"], row["s"]) for row in held(table)}
    assert (found[1, "a"], found[1, "b"], found[3, "a"]) == ((-1, "row 1"), (-2, None), (-3, "row 3"))
    empty = table.merge_into(source.slice(0, 0), ["id", "part"])
    assert (empty.updated, empty.inserted) == (0, 0)


@pytest.mark.parametrize("seed", range(6))
def test_random_histories_are_sqls(seed: int, main: Branch) -> None:
    chance = random.Random(seed)
    table = made(main)
    rows = held(table)
    for _ in range(8):
        kind = chance.choice(["delete", "update", "merge", "append"])
        where = chance.choice([f"id % 3 = {chance.randrange(3)}", f"n < {chance.randrange(200)}", "part = 'b'"])
        where = (
            where
            if "%" not in where
            else f"id IN ({', '.join(str(one) for one in range(chance.randrange(1, 4), 40, 3))})"
        )
        if kind == "delete":
            table.delete(where)
            rows = by_sql(rows, f"DELETE FROM t WHERE {where}")
        elif kind == "update":
            table.update({"s": "u"}, where)
            rows = by_sql(rows, f"UPDATE t SET s = 'u' WHERE {where}")
        elif kind == "append":
            more = some([chance.randrange(1_000, 2_000)])
            table.write(more, message="more")
            rows = by_sql(rows, "INSERT INTO t FROM more", more=more)
        else:
            source = some(chance.sample(range(40), 6))
            table.merge_into(source, "id")
            clause = MERGES[0][1]
            text = f"MERGE INTO t USING source s ON t.id = s.id {clause} WHEN NOT MATCHED THEN INSERT BY POSITION"
            rows = by_sql(rows, text, source=source)
        assert held(table) == rows


@pytest.mark.spark
def test_spark_does_the_same(spark: SparkSession, main: Branch) -> None:
    from pyspark.sql import functions as F

    table = made(main)
    rows = held(table)
    assert table.delete(F.col("id") == 4).deleted == 1
    assert table.update({"n": lambda frame: F.col("n") + 1, "s": "spark"}, F.col("part") == "a").updated == 10
    rows = by_sql(rows, "DELETE FROM t WHERE id = 4", "UPDATE t SET n = n + 1, s = 'spark' WHERE part = 'a'")
    assert held(table) == rows
    source = some([1, 2, 30], "b")
    frame = spark.createDataFrame(
        [tuple(row.values()) for row in source.to_pylist()], "id LONG, part STRING, n LONG, s STRING"
    )
    done = table.merge_into(frame, "id")
    assert (done.updated, done.inserted) == (2, 1)
    text = f"MERGE INTO t USING source s ON t.id = s.id {MERGES[0][1]} WHEN NOT MATCHED THEN INSERT BY POSITION"
    rows = by_sql(rows, text, source=source)
    assert held(table) == rows
    for matched, clause in MERGES[1:]:
        source = some([2, 6, 40 + len(rows)], "a")
        frame = spark.createDataFrame([tuple(row.values()) for row in source.to_pylist()], frame.schema)
        table.merge_into(frame, "id", matched=matched, not_matched="insert")
        text = f"MERGE INTO t USING source s ON t.id = s.id {clause} WHEN NOT MATCHED THEN INSERT BY POSITION"
        rows = by_sql(rows, text, source=source)
        assert held(table) == rows, matched
    keys = spark.createDataFrame([(6,), (7,)], "id LONG")
    table.delete(keys)
    assert held(table) == by_sql(rows, "DELETE FROM t WHERE id IN (6, 7)")
    with pytest.raises(UsageError, match="Several rows"):
        table.merge_into(spark.createDataFrame([(1,), (1,)], "id LONG"), "id")
