"""Frames of keys as conditions: rows that are read, and rows that are replaced."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import duckdb
import pandas
import polars
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import Conflict, UncommittedChanges, UsageError
from strandline.repository.branch import Branch
from strandline.tables.keys import among
from strandline.tables.record import TableRecord

ROWS = 60
KINDS: dict[str, list[Any]] = {
    "number": list(range(ROWS)),
    "text": ["", "1", "1:1", "ä", "a:b", "🌊", "x" * 40] * 9,
    "amount": [Decimal(number).scaleb(-2) for number in range(ROWS)],
    "day": [date(1969, 12, 30 + number % 2) for number in range(ROWS)],
    "moment": [datetime(1969, 12, 31, 23, 59, number, 999_999, UTC) for number in range(ROWS)],
    "local": [datetime(2026, 1, 1, 0, number) for number in range(ROWS)],
    "flag": [True, False] * 30,
}
DATA = pa.table(
    {
        "id": pa.array(range(ROWS), pa.int64()),
        "number": pa.array(KINDS["number"], pa.int32()),
        "text": KINDS["text"][:ROWS],
        "amount": pa.array(KINDS["amount"], pa.decimal128(9, 2)),
        "day": pa.array(KINDS["day"], pa.date32()),
        "moment": pa.array(KINDS["moment"], pa.timestamp("us", "UTC")),
        "local": pa.array(KINDS["local"], pa.timestamp("us")),
        "flag": KINDS["flag"],
        "double": [0.5] * ROWS,
        "part": [f"p{number % 4}" for number in range(ROWS)],
    }
)
FORMS: dict[str, Callable[[pa.Table], object]] = {
    "table": lambda keys: keys,
    "reader": lambda keys: keys.to_reader(),
    "polars": lambda keys: polars.from_arrow(keys),
    "lazy": lambda keys: polars.from_arrow(keys).lazy(),  # type: ignore[union-attr]
    "pandas": lambda keys: keys.to_pandas(),
    "duckdb": lambda keys: duckdb.from_arrow(keys),
}


def ids(rows: pa.Table) -> list[int]:
    return sorted(rows.column("id").to_pylist())


@pytest.mark.parametrize("form", FORMS)
def test_rows_are_read_by_a_frame_of_keys(main: Branch, form: str) -> None:
    table = main.table("t")
    table.write(DATA, partition_by="part")
    keys = pa.table({"id": [3, 3, 5, 1_000]})
    make = FORMS[form]
    assert ids(table.to_arrow(where=make(keys))) == [3, 5]
    assert table.count(where=make(keys)) == 2
    assert len(table.files(where=make(pa.table({"part": ["p1"]})))) == 1
    assert table.to_duckdb(where=make(keys)).aggregate("count(*)").fetchall() == [(2,)]


@pytest.mark.parametrize("columns", [*((name,) for name in KINDS), ("day", "text"), ("flag", "moment", "part")])
def test_keys_of_every_kind(main: Branch, columns: tuple[str, ...]) -> None:
    """What is found is what a loop over the rows finds, and so is what stays when it is replaced by nothing."""
    table = main.table("t")
    table.write(DATA.slice(0, 30), partition_by="part")
    table.write(DATA.slice(30))
    keys = DATA.slice(7, 5).select(columns)
    wanted = {tuple(row.values()) for row in keys.to_pylist()}
    fulfils = [tuple(row[name] for name in columns) in wanted for row in DATA.to_pylist()]
    assert ids(table.to_arrow(where=keys)) == [at for at in range(ROWS) if fulfils[at]]
    table.write(DATA.slice(0, 0), mode="overwrite", where=keys)
    assert ids(table.to_arrow()) == [at for at in range(ROWS) if not fulfils[at]]


texts = st.text(alphabet="a:1", max_size=3)


@given(
    st.lists(st.tuples(texts | st.none(), texts | st.none()), max_size=30),
    st.lists(st.tuples(texts, texts), max_size=10),
)
def test_no_two_rows_are_taken_for_one_another(rows: list[tuple[str, str]], keys: list[tuple[str, str]]) -> None:
    """Rows are compared as one text: no separator may make `a`, `1:` of `a1`, `:`."""
    record = TableRecord(fields=tuple({"name": name, "type": "string"} for name in "ab"))
    condition = among(pa.table([pa.array([key[at] for key in keys], pa.string()) for at in (0, 1)], ["a", "b"]), record)
    data = pa.table([pa.array([row[at] for row in rows], pa.string()) for at in (0, 1)], ["a", "b"])
    found = data.filter(condition.arrow()).to_pylist()
    assert [(row["a"], row["b"]) for row in found] == [row for row in rows if row in keys]


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=8),
    *[st.tuples(st.integers(0, 20), st.integers(0, 20)).map(sorted)] * 2,
)
def test_a_file_is_left_out_only_if_no_key_lies_in_it(
    keys: list[tuple[int, int]], first: list[int], second: list[int]
) -> None:
    from strandline.tables.condition import Span

    record = TableRecord(fields=tuple({"name": name, "type": "long"} for name in "ab"))
    condition = among(pa.table([pa.array([key[at] for key in keys], pa.int64()) for at in (0, 1)], ["a", "b"]), record)
    spans = {"a": Span(first[0], first[1], has_nulls=False), "b": Span(second[0], second[1], has_nulls=False)}
    inside = any(first[0] <= a <= first[1] and second[0] <= b <= second[1] for a, b in keys)
    truth = condition.judge(spans)
    assert truth.true == inside
    assert truth.false == (not inside or first[0] != first[1] or second[0] != second[1])
    assert condition.judge({}).true == bool(keys)
    assert not condition.judge({"a": Span(has_values=False)}).true


def test_rows_are_put_in_place_of_those_with_the_same_keys(main: Branch) -> None:
    """An upsert, in a transaction too: rows of the keys go, the caller's rows come, all others stay."""
    table = main.table("t")
    table.write(DATA, partition_by="part")
    main.commit("made")
    changed = DATA.slice(0, 2).set_column(8, "double", pa.array([9.0, 9.0]))
    fresh = DATA.slice(2, 1).set_column(0, "id", pa.array([1_000], pa.int64()))
    both = pa.concat_tables([changed, fresh])
    with main.transaction("nightly", "upsert") as tx:
        tx.table("t").write(both, mode="overwrite", where=both.select(["id"]))
    assert table.count() == ROWS + 1
    assert ids(table.to_arrow("double = 9")) == [0, 1]
    change = next(iter(table.history()))
    assert (change.inserted_rows, change.deleted_rows) == (3, 2)
    assert change.operation == "overwrite where id among 3 keys"


BAD: dict[str, Any] = {
    "a null": pa.table({"id": [1, None]}),
    "an unknown column": pa.table({"nope": [1]}),
    "no column": pa.table({}),
    "a column twice": pa.table([pa.array([1]), pa.array([1])], ["id", "id"]),
    "a floating number": pa.table({"double": [1.0]}),
    "a fraction for an integer": pa.table({"id": [1.5]}),
    "a word for an integer": pa.table({"id": ["x"]}),
    "a text for an integer": pa.table({"id": ["1"]}),
    "a floating number for an integer": pa.table({"id": [1.0]}),
    "a moment for a day": pa.table({"day": [datetime(2024, 1, 2, 17)]}),
    "a number for a boolean": pa.table({"flag": [5]}),
    "a moment with a zone for one without": pa.table({"local": pa.array([0], pa.timestamp("us", "Europe/Berlin"))}),
    "a moment without a zone for one with": pa.table({"moment": [datetime(2024, 1, 2, 17)]}),
    "a null in a dictionary": pa.table(
        {"text": pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array([None, "a"]))}
    ),
    "too many digits": pa.table({"amount": [Decimal("1.234")]}),
    "a series": pandas.Series([1], name="id"),
    "a number": 5,
    "a list": [1, 2],
    "a map": {"id": 1},
    "an index": pandas.DataFrame({"a": [1], "id": [1]}).set_index("a"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_keys_are_refused(main: Branch, what: str) -> None:
    table = main.table("t")
    table.write(DATA)
    for call in (
        lambda: table.to_arrow(where=BAD[what]),
        lambda: table.count(where=BAD[what]),
        lambda: table.files(where=BAD[what]),
        lambda: table.write(DATA, mode="overwrite", where=BAD[what]),
    ):
        with pytest.raises(UsageError) as refused:
            call()
        assert refused.value.next
    assert ids(table.to_arrow()) == list(range(ROWS))


@pytest.mark.parametrize(
    ("keys", "found"),
    [
        (pa.table({"amount": pa.array([0], pa.int64())}), [0]),
        (pa.table({"amount": pa.array([Decimal("0.10")], pa.decimal128(38, 2))}), [10]),
        (pa.table({"amount": pa.array([Decimal("0.1000")], pa.decimal128(20, 4))}), [10]),
        (pa.table({"ID": [7], "Part": ["p3"]}), [7]),
        (pa.table({"number": pa.array([3], pa.uint8())}), [3]),
        (pa.table({"part": pa.array(["p1"]).dictionary_encode()}), list(range(1, ROWS, 4))),
        (polars.DataFrame({"part": ["p1"]}, schema={"part": polars.Categorical}), list(range(1, ROWS, 4))),
        (pa.table({"part": pa.array(["p1"], pa.large_string())}), list(range(1, ROWS, 4))),
        (pa.table({"moment": pa.array([-1], pa.timestamp("us", "America/New_York"))}), [59]),
        (pa.table({"day": pa.array([2**31 - 1], pa.date32())}), []),
        (pa.table({"id": pa.array([1], pa.int64()), "day": pa.array([-(2**31)], pa.date32())}), []),
    ],
)
def test_keys_of_other_types_with_the_same_values(main: Branch, keys: Any, found: list[int]) -> None:
    table = main.table("t")
    table.write(DATA)
    assert ids(table.to_arrow(where=keys)) == found
    assert bool(table.files(where=keys)) == bool(found)


def test_a_folder_that_is_no_value_of_its_column_leaves_no_file_out(main: Branch) -> None:
    """Of such a folder only Spark knows what it says; judging its files by keys must not fail."""
    rows = pa.table({"id": [1], "n": pa.array([5], pa.int64()), "d": pa.array([Decimal("1.10")], pa.decimal128(10, 2))})
    table = main.table("t")
    table.write(rows, partition_by=["n", "d"])
    (path,) = (info.path for info in main.list("t/") if info.path.endswith(".parquet"))
    for folders in ("n=99999999999999999999999/d=1.10", "n=5/d=1.123"):
        main.copy(path, f"t/{folders}/x.parquet")
    assert len(table.files(where=rows.select(["id", "n"]))) >= 1
    assert len(table.files(where=rows.select(["id", "d"]))) >= 1
    assert len(table.files(where=rows.select(["n", "d"]))) >= 1


@pytest.mark.parametrize(
    "changed",
    [{"partition_by": ["part"]}, {"options": {"compression": "zstd"}}, {}],
    ids=["partitions", "options", "the same"],
)
def test_some_rows_are_not_replaced_in_another_layout(main: Branch, changed: dict[str, Any]) -> None:
    """The others would lie under a record that reads them in another way, or not at all."""
    table = main.table("t")
    table.write(DATA)
    with pytest.raises(UsageError, match="in another layout"):
        table.write(DATA.slice(0, 1), mode="overwrite", where="id = 0", schema="replace", **changed)
    assert ids(table.to_arrow()) == list(range(ROWS))


def test_an_upsert_may_add_columns(main: Branch) -> None:
    table = main.table("t")
    table.write(DATA.select(["id", "text"]))
    more = pa.table({"id": [3, 1_000], "text": ["x", "y"], "new": [1.5, 2.5]})
    table.write(more, mode="overwrite", where=more.select(["id"]), schema="merge")
    assert table.count() == ROWS + 1
    assert {row["id"]: row["new"] for row in table.to_arrow("new > 0").to_pylist()} == {3: 1.5, 1_000: 2.5}


def test_replacing_nothing_by_nothing_leaves_no_trace(main: Branch) -> None:
    table = main.table("t")
    table.write(DATA)
    main.commit("made")
    done = table.write(DATA.slice(0, 0), mode="overwrite", where=pa.table({"id": [1_000]}))
    assert (done.files, done.rows, done.changes) == (0, 0, 0)
    assert not list(main.uncommitted())


def test_a_row_outside_of_the_keys_is_refused(main: Branch) -> None:
    table = main.table("t")
    table.write(DATA)
    with pytest.raises(UsageError, match="does not fulfil 'id among 1 keys'"):
        table.write(DATA.slice(0, 2), mode="overwrite", where=pa.table({"id": [0]}))
    assert table.count() == ROWS


def test_keys_find_their_files_among_many(main: Branch) -> None:
    """Files are judged by the keys themselves, not by their least and greatest."""
    table = main.table("t")
    for start in range(0, 60, 10):
        table.write(DATA.slice(start, 10))
    assert len(table.files(where=pa.table({"id": [5, 55]}))) == 2
    assert len(table.files(where=pa.table({"id": [5, 55], "number": [5, 5]}))) == 1


def test_own_staged_rows_are_not_somebody_elses(main: Branch) -> None:
    """A write with a message is a transaction, which does not see them: they have to be committed first."""
    table = main.table("t")
    table.write(DATA)
    main.commit("made")
    table.write(DATA.slice(0, 1))
    with pytest.raises(UncommittedChanges) as refused:
        table.write(DATA.slice(0, 1), mode="overwrite", where="id = 0", message="again")
    assert "somebody else" not in str(refused.value)
    main.commit("more")
    table.write(DATA.slice(0, 1), mode="overwrite", where="id = 0", message="again")
    assert ids(table.to_arrow()) == list(range(ROWS))


def test_rows_that_others_committed_ask_for_another_run(main: Branch) -> None:
    table = main.table("t")
    table.write(DATA)
    main.commit("made")
    tx = main.transaction("nightly").begin()
    tx.table("t").write(DATA.slice(0, 1), mode="overwrite", where="id = 0")
    table.write(DATA.slice(0, 1), message="another one")
    with pytest.raises(Conflict, match="Run the job again on the branch as it is now"):
        tx.commit()


def test_the_whole_frame_is_no_frame_of_keys(main: Branch) -> None:
    """No row would be replaced but by itself, and each changed one would be there twice."""
    table = main.table("t")
    table.write(DATA)
    with pytest.raises(UsageError, match="whole frame"):
        table.write(DATA, mode="overwrite", where=DATA)
