"""Files written anew hold the rows that they held, and what others do meanwhile is kept or refused."""

from __future__ import annotations

import datetime
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import Conflict, Corrupted, StorageError, TableNotFound, UsageError
from strandline.repository.branch import Branch
from strandline.results.rows import ObjectInfo
from strandline.tables import rewriting
from strandline.tables.record import TableRecord, encode_record
from strandline.tables.rewriting import Rewriting, chosen_groups, z_values
from strandline.tables.scan import TableFile
from strandline.tables.table import Table

MIB = 1 << 20
FIELD = {"name": "k", "type": "long", "nullable": True, "metadata": {}}


def rows(*ks: int) -> pa.Table:
    return pa.table(
        {
            "k": pa.array(ks, pa.int64()),
            "part": [f"p{k % 2}" for k in ks],
            "text": [None if k % 5 == 0 else f"é{k}" for k in ks],
            "at": [datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(hours=k) for k in ks],
        }
    )


def held(table: Table) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table.to_arrow().to_pylist()
    return sorted(found, key=lambda row: row["k"])


def files(table: Table) -> list[str]:
    return [file.relative for file in table._files(table.record)]


@pytest.fixture
def table(main: Branch) -> Table:
    found = main.table("t")
    for n in range(6):
        found.write(rows(*range(n * 10, n * 10 + 10)), partition_by=["part"], message=f"write {n}")
    return found


def test_small_files_of_a_partition_become_one(table: Table, main: Branch) -> None:
    before = held(table)
    done = table.rewrite_files()
    assert (done.before, done.after) == (12, 2)
    assert 0 < done.bytes_after < done.bytes_before
    assert held(table) == before
    assert sorted(name.split("/")[0] for name in files(table)) == ["part=p0", "part=p1"]
    assert table.count() == 60  # from statistics
    assert next(iter(main.log())).message == "rewrite files of t"


def test_a_table_without_small_files_is_left_alone(table: Table, main: Branch) -> None:
    table.rewrite_files()
    before = main.commit_id
    assert table.rewrite_files().before == 0
    assert main.commit_id == before or not list(main._other(before).diff(main))
    with pytest.raises(TableNotFound):
        main.table("none").rewrite_files()


def test_the_history_says_that_no_row_came_or_went(table: Table) -> None:
    table.rewrite_files(message="together")
    (newest, *_) = table.history()
    assert (newest.message, newest.operation) == ("together", "rewrite")
    assert (newest.inserted_rows, newest.deleted_rows) == (0, 0)
    assert (newest.added_files, newest.removed_files) == (2, 12)


def test_only_files_that_a_condition_asks_for_are_taken(table: Table) -> None:
    assert table.rewrite_files(where="part = 'p1'").before == 6
    assert len([name for name in files(table) if name.startswith("part=p0")]) == 6


def test_what_others_append_meanwhile_stays(table: Table, main: Branch) -> None:
    with main.transaction("rewriter") as tx:
        tx.table("t").rewrite_files()
        table.write(rows(100, 101), message="meanwhile")
    assert [row["k"] for row in held(table)] == [*range(60), 100, 101]
    assert len(files(table)) == 4


@pytest.mark.parametrize("what", ["delete", "overwrite"])
def test_what_others_take_away_meanwhile_is_a_conflict(table: Table, main: Branch, what: str) -> None:
    tx = main.transaction("rewriter").begin()
    tx.table("t").rewrite_files()
    if what == "delete":
        table.delete("k = 7", message="meanwhile")
    else:
        table.write(rows(1), mode="overwrite", message="meanwhile")
    kept = held(table)
    with pytest.raises(Conflict):
        tx.commit()
    assert held(table) == kept


def test_a_rewriting_that_loses_rows_is_refused(table: Table, main: Branch, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = rewriting.RewritersHere.run
    monkeypatch.setattr(rewriting.RewritersHere, "run", lambda self, groups: list(whole(self, groups))[1:])
    before = files(table)
    with pytest.raises(StorageError, match="60 rows of table 't' were to be written anew, and 30"):
        table.rewrite_files()
    assert files(table) == before


def test_a_damaged_file_is_named_and_stays(table: Table, main: Branch) -> None:
    (first, *_) = table._files(table.record)
    store = main._core.resolver.namespace
    store.put(first.info.physical_address, store.get(first.info.physical_address)[:-5])
    with pytest.raises(Corrupted, match=first.relative.rpartition("/")[2]):
        table.rewrite_files()


def test_a_table_in_another_format_is_left_alone(main: Branch) -> None:
    main.put("csv/_strandline_table.json", encode_record(TableRecord(fields=(FIELD,), file_format="csv")))
    main.commit("a table in CSV")
    with pytest.raises(UsageError, match="only tables in Parquet"):
        main.table("csv").rewrite_files()


def test_rows_are_sorted_within_files(main: Branch) -> None:
    table = main.table("s")
    numbers = list(range(4000))
    random.Random(1).shuffle(numbers)
    for at in range(0, 4000, 1000):
        table.write(rows(*numbers[at : at + 1000]), message="some")
    assert table.rewrite_files(sort_by="k").after == 1
    assert table.to_arrow().column("k").to_pylist() == sorted(numbers)


def test_a_curve_lets_conditions_on_each_column_skip_files(main: Branch, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    table = main.table("z")
    data = pa.table({"x": rng.integers(0, 1000, 40_000), "y": rng.permutation(40_000)})
    for at in range(0, 40_000, 10_000):
        table.write(data.slice(at, 10_000), message="some")
    monkeypatch.setattr("strandline.tables.writing.MIN_FILE_BYTES", 1)
    size = sum(file.info.size for file in table._files(table.record))
    done = table.rewrite_files(z_order_by=["x", "y"], target_file_bytes=size // 16)
    assert done.after >= 16
    for condition in ("x < 50", "y BETWEEN 10000 AND 11000"):
        _, needed, _ = table._chosen(condition, None)
        assert len(needed) <= done.after // 2
    assert table.to_arrow().sort_by([("y", "ascending")]).equals(data.sort_by([("y", "ascending")]))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 40)), max_size=40), st.booleans())
def test_groups_have_each_small_file_once(sizes: list[tuple[int, int]], ordered: bool) -> None:
    made = [
        TableFile(ObjectInfo(f"t/p={p}/{n:02}", f"key{n}", size * MIB, "", 0), f"p={p}/{n:02}", {"p": str(p)})
        for n, (p, size) in enumerate(sizes)
    ]
    how = Rewriting(32 * MIB, sort_by=("k",) if ordered else ())
    groups = chosen_groups(made, how)
    taken = [file.relative for group in groups for file in group]
    assert len(taken) == len(set(taken))
    for group in groups:
        assert len({file.relative.split("/")[0] for file in group}) == 1
        total = sum(file.info.size for file in group)
        assert len(group) == 1 or total <= 32 * MIB * (rewriting.ORDERED_FILES if ordered else 1)
        assert ordered or (len(group) > 1 and all(file.info.size < 24 * MIB for file in group))
    if ordered:
        assert sorted(taken) == sorted(file.relative for file in made)


@given(st.lists(st.tuples(st.integers(0, 1000), st.one_of(st.none(), st.text(max_size=3))), min_size=1, max_size=60))
def test_near_on_the_curve_is_near_in_each_column(pairs: list[tuple[int, str | None]]) -> None:
    texts = pa.array([text for _, text in pairs], pa.string())
    columns = [pa.chunked_array([[number for number, _ in pairs]]), pa.chunked_array([texts])]
    found = z_values(columns)
    assert len(found) == len(pairs)
    for i in range(len(pairs)):
        for j in range(len(pairs)):
            if pairs[i] == pairs[j]:
                assert found[i] == found[j]
            elif pairs[i][1] == pairs[j][1] and pairs[i][0] < pairs[j][0]:
                assert found[i] <= found[j]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sort_by": "none"}, "no column 'none'"),
        ({"sort_by": "part"}, "partitioned"),
        ({"sort_by": "k", "z_order_by": "at"}, "one order"),
        ({"target_file_bytes": 1}, "too small"),
        ({"where": "none = 1"}, "none"),
        ({"spark": "local"}, "not a Spark session"),
    ],
)
def test_wrong_arguments_are_refused(table: Table, options: dict[str, Any], said: str) -> None:
    before = files(table)
    with pytest.raises(UsageError, match=said):
        table.rewrite_files(**options)
    assert files(table) == before
