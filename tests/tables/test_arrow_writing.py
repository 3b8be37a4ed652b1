"""Tables that are written in this process, without Spark: from Arrow, Polars, pandas and DuckDB."""

from __future__ import annotations

import decimal
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import duckdb
import pandas
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import strandline
from strandline.cli import run
from strandline.errors import BranchProtected, Conflict, MergeConflict, SchemaMismatch, StorageError, UsageError
from strandline.repository.branch import Branch
from strandline.repository.repository import Repository
from strandline.tables.columns import arrow_type, spark_type
from strandline.tables.layout import NULL_PARTITION
from strandline.tables.outcomes import WriteResult
from tests.conftest import names

ROWS = 100
NUMBERS = pa.table(
    {
        "id": pa.array(range(ROWS), pa.int64()),
        "month": pa.array([number % 3 for number in range(ROWS)], pa.int32()),
        "code": [f"{number % 5:03d}" for number in range(ROWS)],
    }
)


def ids(table: Any, where: str | None = None) -> list[int]:
    return sorted(table.to_arrow(where, ["id"]).column("id").to_pylist())


def numbers(first: int, end: int, month: int = 1) -> pa.Table:
    count = end - first
    return pa.table(
        {
            "id": pa.array(range(first, end), pa.int64()),
            "month": pa.array([month] * count, pa.int32()),
            "code": ["x"] * count,
        }
    )


FORMS: dict[str, Callable[[], object]] = {
    "table": lambda: NUMBERS,
    "batch": lambda: NUMBERS.combine_chunks().to_batches()[0],
    "reader": lambda: NUMBERS.to_reader(7),
    "polars": lambda: polars.from_arrow(NUMBERS),
    "lazy": lambda: polars.from_arrow(NUMBERS).lazy(),  # type: ignore[union-attr]
    "pandas": lambda: NUMBERS.to_pandas(),
    "relation": lambda: duckdb.connect().from_arrow(NUMBERS),
    "dictionaries": lambda: pa.table(
        {**{n: NUMBERS[n] for n in NUMBERS.schema.names}, "code": NUMBERS["code"].dictionary_encode()}
    ),
    "large": lambda: NUMBERS.cast(pa.schema([("id", pa.int64()), ("month", pa.int32()), ("code", pa.large_string())])),
    "pieces": lambda: pa.concat_tables([NUMBERS.slice(0, 1), NUMBERS.slice(1, 0), NUMBERS.slice(1)]),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("partition_by", "files"), [(None, 1), ("month", 3), (["month", "code"], 15)])
def test_rows_of_any_form_are_written(main: Branch, form: str, partition_by: Any, files: int) -> None:
    table = main.table("tables/numbers")
    done = table.write(FORMS[form](), partition_by=partition_by)
    assert (done.rows, done.files) == (ROWS, files)
    assert table.to_arrow().sort_by("id").equals(NUMBERS)
    assert [field["type"] for field in table.record.fields] == ["long", "integer", "string"]
    assert all(file.statistics is not None for file in table.files())
    main.commit("written")
    assert [change.added_rows for change in table.history()] == [ROWS]


@pytest.mark.parametrize("data", [None, [1], "text", {"a": [1]}, 5, object(), NUMBERS["id"]])
def test_what_holds_no_rows_is_refused(main: Branch, data: Any) -> None:
    with pytest.raises(UsageError, match="cannot be written from") as refused:
        main.table("t").write(data)
    assert "Polars" in refused.value.next
    assert not names(main)


def test_an_index_of_pandas_is_not_dropped_without_a_word(main: Branch) -> None:
    frame = NUMBERS.to_pandas().set_index("id")
    with pytest.raises(UsageError, match="reset_index"):
        main.table("t").write(frame)
    main.table("t").write(frame.reset_index())
    assert ids(main.table("t")) == list(range(ROWS))
    mixed = pandas.DataFrame({"a": [1, "x"]})
    with pytest.raises(UsageError, match="cannot hold"):
        main.table("u").write(mixed)


def test_modes_take_away_what_they_say(main: Branch) -> None:
    table = main.table("t")
    table.write(NUMBERS, partition_by="month")
    table.write(numbers(200, 210), mode="append")
    assert len(ids(table)) == ROWS + 10
    table.write(numbers(300, 305), mode="overwrite_partitions")
    assert ids(table, "month = 1") == list(range(300, 305))
    assert len(ids(table, "month <> 1")) == ROWS - len(range(1, ROWS, 3))
    table.write(numbers(400, 401), mode="overwrite")
    assert ids(table) == [400]


@pytest.mark.parametrize(
    ("where", "kept"),
    [
        ("month = 1 AND id >= 50", lambda row: not (row["month"] == 1 and row["id"] >= 50)),
        ("id BETWEEN 10 AND 20", lambda row: not 10 <= row["id"] <= 20),
        ("code IS NULL OR id > 90", lambda row: row["code"] is not None and row["id"] <= 90),
        ("NOT (code LIKE '00%') OR id = 7", lambda row: row["id"] != 7),
    ],
)
@pytest.mark.parametrize("partition_by", [None, "month"])
def test_rows_are_replaced_by_a_condition(
    main: Branch, where: str, kept: Callable[[dict[str, Any]], bool], partition_by: str | None
) -> None:
    """What a condition is not true for stays, be it false or null."""
    codes = [None if number % 10 == 0 else f"{number % 5:03d}" for number in range(ROWS)]
    data = NUMBERS.set_column(2, "code", pa.array(codes))
    table = main.table("t")
    table.write(data, partition_by=partition_by)
    new = pa.table({"id": pa.array([7], pa.int64()), "month": pa.array([1], pa.int32()), "code": pa.array(["x"])})
    fitting = {"month = 1 AND id >= 50": 77, "id BETWEEN 10 AND 20": 15, "code IS NULL OR id > 90": 95}.get(where, 7)
    new = new.set_column(0, "id", pa.array([fitting], pa.int64()))
    table.write(new, mode="overwrite", where=where)
    expected = [row for row in data.to_pylist() if kept(row)] + new.to_pylist()
    found = table.to_arrow().to_pylist()
    assert sorted(found, key=str) == sorted(expected, key=str)


def test_rows_outside_of_where_are_refused_and_nothing_changes(main: Branch) -> None:
    table = main.table("t")
    table.write(NUMBERS, partition_by="month")
    before = names(main)
    with pytest.raises(UsageError, match="does not fulfil 'month = 1'"):
        table.write(NUMBERS, mode="overwrite", where="month = 1")
    for mode, where in (("append", "month = 1"), ("overwrite", "nope = 1"), ("overwrite", "substr(code, 1) = 'x'")):
        with pytest.raises(UsageError):
            table.write(NUMBERS, mode=mode, where=where)  # type: ignore[arg-type]
    assert names(main) == before


def test_a_write_with_a_message_is_a_commit(main: Branch) -> None:
    table = main.table("t")
    table.write(NUMBERS, message="nightly", writer="etl")
    assert next(iter(main.log())).message == "nightly"
    assert not list(main.uncommitted())
    assert [info.writer for info in main.transactions] == ["etl"]


def test_a_transaction_writes_several_tables_or_none(main: Branch) -> None:
    with pytest.raises(ZeroDivisionError), main.transaction("etl") as tx:
        tx.table("a").write(NUMBERS)
        raise ZeroDivisionError
    assert not names(main)
    with main.transaction("etl", "both") as tx:
        tx.table("a").write(NUMBERS)
        tx.table("b").write(NUMBERS, partition_by="month")
        assert ids(tx.table("a")) == ids(tx.table("b"))
        assert not main.table("a").exists()
    assert ids(main.table("a")) == ids(main.table("b")) == list(range(ROWS))


def test_two_writers_of_a_new_table_meet(main: Branch) -> None:
    class Between:
        """Rows of the first writer, between whose batches the second one makes the table."""

        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            def batches() -> Any:
                main.table("t").write(numbers(0, 1))
                yield from NUMBERS.to_batches()

            return pa.RecordBatchReader.from_batches(NUMBERS.schema, batches()).__arrow_c_stream__(requested_schema)

    with pytest.raises(Conflict):
        main.table("t").write(Between())
    assert ids(main.table("t")) == [0]


def test_an_error_of_a_stream_leaves_nothing(main: Branch) -> None:
    def batches() -> Any:
        yield from NUMBERS.to_batches()
        raise ConnectionError("the source went away")

    with pytest.raises(StorageError, match="the source went away"):
        main.table("t").write(pa.RecordBatchReader.from_batches(NUMBERS.schema, batches()))
    assert not names(main)


def test_schemas_change_by_the_rules_of_spark(main: Branch) -> None:
    table = main.table("t")
    table.write(NUMBERS)
    more = NUMBERS.append_column("price", pa.array([1.5] * ROWS))
    with pytest.raises(SchemaMismatch, match="more columns: price"):
        table.write(more)
    table.write(more, schema="merge")
    table.write(pa.table({"id": pa.array([1000], pa.int16())}), schema="merge")
    found = table.to_arrow(where="id >= 1000").to_pylist()
    assert found == [{"id": 1000, "month": None, "code": None, "price": None}]
    with pytest.raises(SchemaMismatch, match="id is long, not string"):
        table.write(pa.table({"id": ["x"]}), schema="merge")
    table.write(pa.table({"id": ["x"]}), mode="overwrite", schema="replace")
    assert table.to_arrow().to_pylist() == [{"id": "x"}]


def test_a_value_that_does_not_fit_is_refused(main: Branch) -> None:
    """A nanosecond has no place in a table, and nothing is rounded without a word."""
    moments = pa.table({"at": pa.array([1_001], pa.timestamp("ns"))})
    with pytest.raises(SchemaMismatch, match="column 'at' does not fit"):
        main.table("t").write(moments)
    main.table("t").write(pa.table({"at": pa.array([1_000], pa.timestamp("ns"))}))
    assert main.table("t").schema["fields"][0]["type"] == "timestamp_ntz"
    for kind in (pa.uint64(), pa.time64("us"), pa.duration("s")):
        with pytest.raises(UsageError, match="tables do not hold"):
            main.table("u").write(pa.table({"x": pa.nulls(1, kind)}))
    with pytest.raises(UsageError, match="nothing but nulls"):
        main.table("u").write(pa.table({"x": pa.nulls(1)}))
    main.table("t").write(pa.table({"at": pa.nulls(1)}))  # where the table knows the type
    assert main.table("t").to_arrow().column("at").null_count == 1


def test_columns_that_differ_in_case_are_named(main: Branch) -> None:
    main.table("t").write(pa.table({"id": [1], "name": ["x"]}))
    for schema in (None, "merge"):
        with pytest.raises(SchemaMismatch, match="ID differs from id only in case"):
            main.table("t").write(pa.table({"ID": [1], "name": ["x"]}), schema=schema)


def test_what_only_spark_writes_is_refused_before_anything_is_written(main: Branch) -> None:
    for options in (
        {"file_format": "orc"},
        {"file_format": "csv"},
        {"options": {"parquet.block.size": 1}},
        {"options": {"compression": "lzo"}},
    ):
        with pytest.raises(UsageError, match=r"Spark|compression"):
            main.table("t").write(NUMBERS, **options)
    with pytest.raises(UsageError, match="no folder"):
        main.table("t").write(pa.table({"b": [b"x"], "a": [1]}), partition_by="b")
    with pytest.raises(UsageError, match="no folder"):
        main.table("t").write(pa.table({"b": [0.1], "a": [1]}), partition_by="b")
    with pytest.raises(UsageError, match="has no column 'nope'"):
        main.table("t").write(NUMBERS, partition_by="nope")
    assert not names(main)


@pytest.mark.parametrize("compression", ["zstd", "gzip", "none", "snappy"])
def test_files_are_compressed_as_the_record_says(main: Branch, compression: str) -> None:
    table = main.table("t")
    table.write(NUMBERS, options={"compression": compression})
    address = table.files()[0].info.physical_address
    with main._core.resolver.namespace.open_read(address) as source:
        found = pq.read_metadata(source).row_group(0).column(0).compression
    assert found.lower() == {"none": "uncompressed"}.get(compression, compression)


def test_files_become_about_as_big_as_asked(main: Branch) -> None:
    data = pa.table({"id": pa.array(range(400_000), pa.int64()), "x": pa.array(range(400_000), pa.int64())})
    done = main.table("t").write(data.to_reader(10_000), target_file_bytes=2 << 20)
    assert done.rows == 400_000
    assert 3 <= done.files <= 5
    with pytest.raises(UsageError, match="too small"):
        main.table("t").write(data, target_file_bytes=1)


def test_an_empty_frame_makes_an_empty_table(main: Branch) -> None:
    table = main.table("t")
    done = table.write(NUMBERS.slice(0, 0), partition_by="month")
    assert done.rows == 0
    assert table.to_arrow().num_rows == 0
    table.write(NUMBERS)
    table.write(NUMBERS.slice(0, 0), mode="overwrite_partitions")
    assert ids(table) == list(range(ROWS))


def test_branches_that_replace_a_partition_conflict(repo: Repository, main: Branch) -> None:
    main.table("t").write(NUMBERS, partition_by="month", message="first")
    other = repo.create_branch("other", "main")
    main.table("t").write(numbers(500, 501), mode="overwrite_partitions", message="here")
    other.table("t").write(numbers(600, 601), mode="overwrite_partitions", message="there")
    with pytest.raises(MergeConflict):
        main.merge(other)
    third = repo.create_branch("third", "main~1")
    third.table("t").write(numbers(700, 701, month=2), mode="overwrite_partitions", message="elsewhere")
    main.merge(third)
    assert ids(main.table("t"), "month = 2") == [700]


PLACES: list[tuple[pa.DataType, list[Any]]] = [
    (
        pa.string(),
        ["a", "b c", "x/y", "50%", 'q"', "ä=ö", "#?:*", "[^]{", "\\", "'", "\x01", "é", "🌊", " ", ".", "..", "_x"],
    ),
    (pa.int8(), [-128, 0, 127]),
    (pa.int64(), [-(2**63), 2**63 - 1]),
    (pa.bool_(), [True, False]),
    (pa.date32(), [date(1, 1, 1), date(1969, 12, 31), date(9999, 12, 31)]),
    (pa.timestamp("us", "UTC"), [datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC), datetime(2026, 1, 1, tzinfo=UTC)]),
    (pa.timestamp("us"), [datetime(2026, 1, 1, 1, 2, 3, 100), datetime(1900, 1, 1)]),
    (pa.decimal128(10, 2), [decimal.Decimal("-1.50"), decimal.Decimal("12345678.99")]),
    (pa.decimal128(18, 8), [decimal.Decimal("0E-8"), decimal.Decimal("0.00000001")]),
]


@pytest.mark.parametrize(
    ("kind", "values"), PLACES, ids=lambda value: str(value) if isinstance(value, pa.DataType) else ""
)
def test_partition_values_come_back(main: Branch, kind: pa.DataType, values: list[Any]) -> None:
    data = pa.table({"p": pa.array([*values, None], kind), "id": pa.array(range(len(values) + 1), pa.int64())})
    table = main.table("t")
    table.write(data, partition_by="p")
    assert table.to_arrow().sort_by("id").select(["p", "id"]).equals(data)
    assert any(NULL_PARTITION in file.relative for file in table.files())
    table.write(data, mode="overwrite_partitions")
    assert table.to_arrow().num_rows == len(data), "a value has one folder"


def test_what_cannot_name_a_folder_is_refused(main: Branch) -> None:
    far = pa.table({"p": pa.array([3_000_000], pa.date32()), "id": [1]})
    texts = ("a\0b", "x" * 300, "", NULL_PARTITION)  # of the last two the folder says null
    for wrong in (far, *(pa.table({"p": [text], "id": [1]}) for text in texts)):
        with pytest.raises(UsageError, match="cannot be the name of a partition's folder"):
            main.table("t").write(wrong, partition_by="p")
    assert not names(main)


def test_columns_may_have_any_name(main: Branch) -> None:
    data = pa.table({"folder 0": [1, 2], "folder": [3, 4], "p": ["a", "b"]})
    main.table("t").write(data, partition_by="p")
    assert main.table("t").to_arrow().sort_by("folder").to_pylist() == data.to_pylist()


def test_choices_of_polars_and_series_of_pandas(main: Branch) -> None:
    frame = polars.DataFrame({"c": ["a", "b", "a"]}, schema={"c": polars.Categorical})
    main.table("t").write(frame)
    assert main.table("t").to_arrow()["c"].to_pylist() == ["a", "b", "a"]
    with pytest.raises(UsageError, match="cannot be written from"):
        main.table("u").write(pandas.Series([1, 2]))


TYPES = st.recursive(
    st.sampled_from(
        [
            *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.bool_()),
            *(pa.binary(), pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.decimal128(20, 3)),
            *(
                pa.uint8(),
                pa.uint16(),
                pa.uint32(),
                pa.large_string(),
                pa.timestamp("ms", "Europe/Berlin"),
                pa.date64(),
            ),
            *(pa.timestamp("s"), pa.binary(3), pa.large_binary(), pa.string_view()),
        ]
    ),
    lambda inner: st.one_of(
        inner.map(pa.list_),
        inner.map(pa.large_list),
        st.lists(inner, min_size=1, max_size=3).map(
            lambda kinds: pa.struct([(f"f{at}", k) for at, k in enumerate(kinds)])
        ),
        inner.map(lambda kind: pa.map_(pa.string(), kind)),
    ),
    max_leaves=4,
)


@given(kind=TYPES)
def test_each_type_has_one_of_spark_that_holds_its_values(kind: pa.DataType) -> None:
    spark = spark_type(kind, "c")
    assert spark_type(arrow_type(spark, "c"), "c") == spark


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "byte": st.integers(-128, 127),
    "long": st.integers(-(2**63), 2**63 - 1),
    "double": st.floats(allow_nan=False),
    "string": st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    "boolean": st.booleans(),
    "binary": st.binary(max_size=10),
    "date": st.dates(),
    "timestamp": st.datetimes(timezones=st.just(UTC)),
    "timestamp_ntz": st.datetimes(),
    "decimal(20,3)": st.decimals(-(10**16), 10**16, places=3),
}


@settings(max_examples=25)
@given(data=st.data())
def test_what_is_written_is_read(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Any columns, any values, any partition columns, in any number of batches."""
    kinds = data.draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=4))
    count = data.draw(st.integers(0, 30))
    columns: dict[str, pa.Array] = {"id": pa.array(range(count), pa.int64())}
    for at, kind in enumerate(kinds):
        values = data.draw(st.lists(st.none() | VALUES[kind], min_size=count, max_size=count))
        columns[f"c{at}"] = pa.array(values, arrow_type(kind, "c"))
    frame = pa.table(columns)
    fit = [name for at, name in enumerate(list(columns)[1:]) if kinds[at] not in ("binary", "double")]
    parts = data.draw(st.lists(st.sampled_from(fit), unique=True, max_size=2)) if fit else []
    # texts that no folder has: null instead, or refused
    parts = [name for name in parts if not any(v == "" or "\0" in str(v) for v in frame[name].to_pylist())]
    with strandline.open("memory://", create=True) as lake:
        table = lake.repository("nyc", create=True).branch("main").table("t")
        done: WriteResult = table.write(frame.to_reader(data.draw(st.integers(1, 40))), partition_by=parts)
        assert done.rows == count
        assert table.to_arrow().sort_by("id").equals(frame)


def test_tables_of_an_object_store_are_written_through_it(tmp_path: Path) -> None:
    with strandline.open(kv=f"sqlite://{tmp_path / 'kv.db'}", blob="memory://tables", create=True) as lake:
        repo = lake.repository("nyc", create=True)
        table = repo.branch("main").table("t")
        table.write(NUMBERS, partition_by="month", message="one")
        assert ids(table) == list(range(ROWS))
        assert repo.fsck().problem_count == 0
        assert not [one for one in repo.gc.plan(grace_days=0).places if one.prefix.startswith("data/")]


def test_a_store_that_fails_is_named(main: Branch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pyarrow.dataset.write_dataset", full)
    with pytest.raises(StorageError, match="No space left") as failed:
        main.table("t").write(NUMBERS)
    assert "visible" in failed.value.safe
    assert not names(main)


def test_tables_are_found_counted_and_measured(repo: Repository, main: Branch, tmp_path: Path) -> None:
    assert main.tables() == []
    main.table("tables/a").write(NUMBERS, partition_by="month")
    main.table("tables/b").write(NUMBERS.slice(0, 5))
    main.table("raw").write(NUMBERS.slice(0, 1), message="one")
    main.put("tables/readme", b"x")
    assert [table.path for table in main.tables()] == ["raw", "tables/a", "tables/b"]
    assert [table.path for table in repo.ref("main").tables("tables/")] == ["tables/a", "tables/b"]
    table = main.table("tables/a")
    assert table.count() == ROWS
    assert table.count("month = 1 and id >= 50") == len([n for n in range(50, ROWS) if n % 3 == 1])
    assert table.count("month = 7") == 0
    assert table.size() == sum(file.info.size for file in table.files())
    table.write(NUMBERS.slice(0, 0), mode="overwrite")
    assert (table.count(), table.size()) == (0, 0)
    with pytest.raises(UsageError):
        table.count("nope = 1")
    for path in ("/t", "", "/"):
        with pytest.raises(UsageError, match="needs a path"):
            main.table(path)


def test_a_condition_that_changes_by_itself_replaces_nothing(main: Branch) -> None:
    main.table("t").write(NUMBERS)
    for where in ("rand() < 0.5", "id > 3 and uuid() = 'x'", "monotonically_increasing_id() = 1"):
        with pytest.raises(UsageError, match="another value each time"):
            main.table("t").write(NUMBERS, mode="overwrite", where=where)
    assert ids(main.table("t")) == list(range(ROWS))


@pytest.mark.parametrize("place", ["folder", "object store"])
def test_damage_in_a_table_is_found_on_request(tmp_path: Path, place: str) -> None:
    """In a folder by a checksum of the whole file; elsewhere by those that Parquet has of its pages."""
    blob = str(tmp_path / "data") if place == "folder" else f"memory://{tmp_path.name}"
    with strandline.open(kv=f"sqlite://{tmp_path / 'kv.db'}", blob=blob, create=True) as lake:
        repo = lake.repository("nyc", create=True)
        table = repo.branch("main").table("t")
        table.write(NUMBERS, message="one")
        sound = repo.fsck(content=True)
        assert sound.is_sound
        assert (sound.pages_compared, sound.sizes_compared) == ((0, 0) if place == "folder" else (1, 0))
        assert sound.compared >= 1
        assert repo.fsck().compared == 0
        info = table.files()[0].info
        assert info.checksum.startswith("blake3:" if place == "folder" else "etag:")
        blobs = repo._core.resolver.namespace
        raw = bytearray(blobs.get(info.physical_address))
        raw[len(raw) // 8] ^= 0xFF  # in the middle of the pages, before the footer
        blobs.put(info.physical_address, bytes(raw))
        assert repo.fsck().is_sound, "without reading, nobody can tell"
        found = repo.fsck(content=True)
        assert found.problem_count == 1
        assert info.path in found.problems[0]


def test_the_command_says_what_it_did_not_compare(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRANDLINE_LAKE", str(tmp_path / "lake"))
    with strandline.open(tmp_path / "lake", create=True) as lake:
        lake.repository("nyc", create=True).branch("main").table("t").write(NUMBERS, message="one")
    assert run(["fsck", "nyc"]) == 0
    assert "bytes were not: --content reads them" in capsys.readouterr().out
    assert run(["fsck", "nyc", "--content"]) == 0
    assert "Compared the bytes of 2 files." in capsys.readouterr().out


ENDING = """
import pyarrow as pa, strandline
main = strandline.open({kv}, create=True, compaction=False).repository("nyc", create=True).branch("main")
rows = pa.table({{"id": range(1000), "month": [number % 12 for number in range(1000)]}})
for name in "abc":
    main.table(name).write(rows, partition_by="month", message=name)
    main.table(name).to_arrow()
    main.table(name).to_arrow(where="id > 3")
"""


@pytest.mark.parametrize("place", ["folder", "object store"])
def test_a_script_that_has_read_tables_ends_as_it_should(tmp_path: Path, place: str) -> None:
    """A thread of Arrow that wanted Python while the interpreter ended aborted the process, in half of the runs."""
    for number in range(8):
        kv = f"{str(tmp_path / f'lake{number}')!r}" if place == "folder" else "kv='memory://x', blob='memory://y'"
        done = subprocess.run([sys.executable, "-c", ENDING.format(kv=kv)], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("where", "reason"),
    [
        ("id >", "it is not SQL at '>', after 'id'"),
        ("id = 1 1", "it is not SQL at '1', after 'id = 1'"),
        ("", "it is not SQL"),
        ("id = 'x", "it is not SQL"),
        ("(id = 1", "it is not SQL"),
    ],
)
def test_a_text_that_is_no_condition_is_refused_in_our_words(main: Branch, where: str, reason: str) -> None:
    """The parser names its own classes and the words that it expected inside."""
    table = main.table("t")
    table.write(NUMBERS)
    with pytest.raises(UsageError) as refused:
        table.files(where=where)
    assert reason in refused.value.what
    assert "sqlglot" not in str(refused.value)
    assert "expected" not in str(refused.value).lower()


def test_a_write_without_a_writer_is_told_to_take_one_on_a_protected_branch(repo: Repository, main: Branch) -> None:
    """Its own name is made up for each thread: no protection could name it."""
    main.table("t").write(NUMBERS, message="made")
    repo.protect("main", writers=["nightly"])
    with pytest.raises(BranchProtected) as refused:
        main.table("t").write(NUMBERS, message="more")
    assert "Give writer=" in refused.value.next
    assert "write " not in refused.value.next.replace("this write", "")
    main.table("t").write(NUMBERS, message="more", writer="nightly")
    assert main.table("t").count() == 2 * ROWS
