"""Reading tables: conditions, what they skip, and the same rows from every engine."""

from __future__ import annotations

import math
import subprocess
import sys
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from strandline.errors import Corrupted, ObjectMissing, SchemaMismatch, StorageError, UsageError
from strandline.lake import Lake
from strandline.repository.branch import Branch
from strandline.tables.condition import can_match, must_match
from strandline.tables.condition_text import parse_condition
from strandline.tables.record import TableRecord
from strandline.tables.scan import Pruning
from strandline.tables.table import Table
from tests.conftest import SPARK

pytestmark = pytest.mark.spark

FORMATS = ("parquet", "orc", "json", "csv")


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted((tuple("NaN" if x != x else x for x in row) for row in frame.collect()), key=repr)


def arrow_rows(table: Table, where: str | None = None) -> list[tuple[Any, ...]]:
    found = table.to_arrow(where)
    return sorted(zip(*(column.to_pylist() for column in found.columns), strict=True), key=repr)


@pytest.fixture
def mixed(spark: SparkSession) -> DataFrame:
    """40 rows of all kinds of columns, with nulls and NaN, sorted by id, in four partitions."""
    return spark.sql(
        """select cast(id as int) as id, cast(id * 1000000007 as bigint) as big,
        if(id % 7 = 0, null, concat('name ', lpad(cast(id as string), 3, '0'))) as name,
        if(id = 5, cast('NaN' as double), if(id % 5 = 1, null, id / 4D)) as ratio, cast(id / 8D as float) as single,
        cast(id as decimal(12,2)) as price, date_add(date'2026-01-01', cast(id as int)) as day,
        timestamp'2026-01-01 00:00:00' + make_interval(0, 0, 0, 0, cast(id as int)) as moment,
        id % 2 = 0 as flag, concat('p', cast(id % 3 as string)) as part
        from range(0, 40, 1, 4)"""
    )


CONDITIONS = [
    "id < 10",
    "id >= 10 and id < 20",
    "10 > id",
    "id = 3 or id = 33",
    "id in (1, 2, 38)",
    "id not in (1, 2, 38)",
    "id between 5 and 8",
    "not (id > 5)",
    "name = 'name 012'",
    "name is null",
    "name is not null and id > 30",
    "name like 'name 01%'",
    "name != 'name 012'",
    "ratio > 9",
    "ratio >= 2.5",
    "ratio < 0.5",
    "ratio = 0.75",
    "ratio is null",
    "single <= 0.125",
    "single > 4.5",
    "price = 12.00",
    "price > 38.5",
    "price in (1, 2.00)",
    "day = date'2026-01-15'",
    "day >= '2026-02-05'",
    "moment < timestamp'2026-01-01 05:00:00'",
    "moment >= '2026-01-02 12:00:00'",
    "flag",
    "not flag and id < 6",
    "flag = true and part = 'p1'",
    "part = 'p2'",
    "part in ('p0', 'p1') and id > 35",
    "part is null",
    "big > 20000000000",
    "id > 1.5 and id < 3.5",
    "id = 1 and null",
    "true",
    "id < -1",
    "id > -1",
]


@pytest.mark.parametrize("file_format", [pytest.param("parquet", marks=pytest.mark.everywhere), *FORMATS[1:]])
def test_every_engine_gives_the_same_rows(
    main: Branch, spark: SparkSession, mixed: DataFrame, file_format: str
) -> None:
    table = main.table("t")
    if file_format == "json":
        mixed = mixed.where("not isnan(ratio) or ratio is null")  # Spark writes NaN as text, which Arrow does not read
    table.write(mixed, partition_by="part", file_format=file_format)
    judged = [F.coalesce(F.expr(where), F.lit(False)).alias(f"is{at}") for at, where in enumerate(CONDITIONS)]
    expected = mixed.select("*", *judged).collect()
    for at, where in enumerate(CONDITIONS):
        matching = sorted(row["id"] for row in expected if row[f"is{at}"])
        assert sorted(table.to_arrow(where, columns=["id"])["id"].to_pylist()) == matching, where
        if file_format == "parquet" or at % 7 == 0:
            assert sorted(row["id"] for row in table.to_spark(spark, where=where).collect()) == matching, where
    columns = [name for name in mixed.columns if name != "moment"]
    everything = sorted((tuple("NaN" if row[c] != row[c] else row[c] for c in columns) for row in expected), key=repr)
    assert rows(table.to_spark(spark).select(columns)) == everything
    found = table.to_arrow(columns=columns).to_pylist()
    assert sorted((tuple("NaN" if x != x else x for x in row.values()) for row in found), key=repr) == everything
    assert table.to_spark(spark).schema.simpleString() == mixed.schema.simpleString()
    moments = {row["id"]: row["moment"] for row in table.to_arrow().to_pylist()}
    assert moments[30].replace(tzinfo=None) == datetime(2026, 1, 2, 6)


@pytest.mark.everywhere
def test_polars_duckdb_and_pandas_read_the_same(main: Branch, mixed: DataFrame, tmp_path: Path) -> None:
    table = main.table("t")
    table.write(mixed, partition_by="part")
    where = "part = 'p1' and id > 10"
    expected = sorted(row["id"] for row in mixed.where(where).collect())
    assert table.to_polars(where)["id"].sort().to_list() == expected
    assert sorted(table.to_pandas(where)["id"]) == expected
    assert sorted(row[0] for row in table.to_duckdb(where=where).fetchall()) == expected
    assert table.to_polars(where, columns=["part", "id"]).columns == ["part", "id"]
    assert table.dataset().count_rows() == 40
    ds.write_dataset(table.dataset(), tmp_path / "copy", format="parquet")
    assert ds.dataset(tmp_path / "copy").count_rows() == 40
    assert table.to_duckdb(columns=["id"]).aggregate("sum(id)").fetchall() == [(780,)]
    relation = table.to_duckdb(where=where)
    assert relation.aggregate("count(*)").fetchall() == relation.aggregate("count(*)").fetchall() == [(len(expected),)]
    assert relation.filter("id > 20").count("*").fetchall() == [(len([id for id in expected if id > 20]),)]
    lines = main.table("lines")
    lines.write(mixed.select("id", "part"), file_format="json")
    assert lines.to_duckdb(where="part = 'p1'").aggregate("count(*)").fetchall() == [(13,)]


@pytest.mark.parametrize("file_format", ["json", "csv"])
@pytest.mark.parametrize("how", ["cut", "longer"])
@pytest.mark.parametrize("number", [2, 24])
def test_spark_reads_no_file_of_another_size(
    main: Branch, spark: SparkSession, mixed: DataFrame, file_format: str, how: str, number: int
) -> None:
    table = main.table("t")
    table.write(mixed.select("id", "part").repartition(number), file_format=file_format)
    file = next(iter(table.files())).info
    blobs, key = main._core.resolver.resolve(file.physical_address)
    body = blobs.get(key)
    blobs.put(key, body[: len(body) // 2] if how == "cut" else body + body[-8:])
    with pytest.raises(Corrupted, match=f"instead of {file.size}"):
        table.to_spark(spark).count()
    blobs.put(key, body)
    assert table.to_spark(spark).count() == 40


SLOW_OPENS = """
import faulthandler, sys, threading, time
from strandline.tables import frames
import strandline

faulthandler.dump_traceback_later(30, exit=True)
opened = frames.Files.open_input_file

def slow(self, path):
    if threading.current_thread() is not threading.main_thread():
        time.sleep(0.002)
    return opened(self, path)

frames.Files.open_input_file = slow
table = strandline.open(sys.argv[1]).repository("nyc").branch("main").table("t")
for _ in range(10):
    assert table.to_duckdb().aggregate("sum(id)").fetchall() == [(780,)]
    assert table.to_arrow(columns=["id"]).num_rows == 40
    assert table.to_duckdb(where="id < 20").aggregate("count(*)").fetchall() == [(20,)]
print("read")
"""


def test_a_stream_begins_while_threads_open_files(main: Branch, lake: Lake, mixed: DataFrame, tmp_path: Path) -> None:
    """A scan that begins with Python's lock held waits for threads that want it: no time limit of a test stops that."""
    main.table("t").write(mixed.select("id").repartition(40))
    done = subprocess.run([sys.executable, "-c", SLOW_OPENS, str(tmp_path / "lake")], capture_output=True, text=True)
    assert done.stdout == "read\n", done.stderr


def test_a_condition_skips_files_by_statistics_and_partitions(main: Branch, mixed: DataFrame) -> None:
    table = main.table("t")
    table.write(mixed)
    files = table.files()
    assert len(files) == 4
    assert [file.statistics.rows for file in files if file.statistics] == [10, 10, 10, 10]
    for where, count in (
        ("id < 10", 1),
        ("name = 'name 012'", 1),
        ("day >= date'2026-02-05'", 1),
        ("moment < '2026-01-01 05:00:00'", 1),
        ("price > 38.5", 1),
        ("ratio = 9", 2),  # the file with a NaN tells no bounds of this column
        ("id = 3 or id = 33", 2),
        ("id < 0", 0),
        ("flag", 4),
        ("hash(id) = 3", 4),
    ):
        assert len(table.files(where)) == count, where


@pytest.mark.everywhere
def test_spark_reads_only_the_files_that_are_left(main: Branch, spark: SparkSession, mixed: DataFrame) -> None:
    table = main.table("t")
    table.write(mixed)
    for where in ("id < 10", F.col("id") < 10, (F.col("id") < 5) & (F.col("price") < 3) | (F.col("id") == 1)):
        found = table.to_spark(spark, where=where)
        assert len(found.inputFiles()) == (4 if SPARK == "connect" and not isinstance(where, str) else 1), where
    for column, count in (
        (F.col("name") == "name 012", 1),
        (F.col("day") >= date(2026, 2, 5), 1),
        (F.col("id").isin(1, 2), 1),
        (~(F.col("single") > 1.0), 1),
        (F.col("big") > 39000000000, 1),
        (F.col("name").isNull(), 4),
        (F.col("name").like("name 01%"), 1),
        (F.hash("id") == 3, 4),
        (F.col("price") == 1.5, 4),  # a decimal against a double: only Spark knows how it rounds
    ):
        # on Spark Connect the text of a column does not tell strings, so Spark alone skips what it can
        files = len(table.to_spark(spark, where=column).inputFiles())
        assert files == (4 if SPARK == "connect" else count), str(column)
        assert table.to_spark(spark, where=column).count() == mixed.where(column).count()


@pytest.mark.everywhere
def test_a_string_that_looks_like_a_condition_excludes_no_file(main: Branch, spark: SparkSession) -> None:
    texts = ["x'), =(n, 2", "x', 'y", "a\\\\", "it's", "x) AND (n = 2", "`", '"', "2026-01-01", "5", "NULL", "n"]
    frame = spark.createDataFrame([(text, at) for at, text in enumerate(texts)], "s STRING, n INT")
    table = main.table("t")
    table.write(frame.repartition(4, "n"))
    for at, text in enumerate(texts):
        for where in (F.col("s") == text, F.col("s").isin(text), (F.col("s") == text) & (F.col("n") == at)):
            assert table.to_spark(spark, where=where).count() == 1, text


def test_files_tell_their_partition_values_and_statistics(main: Branch, mixed: DataFrame) -> None:
    table = main.table("t")
    table.write(mixed.where("id < 10").coalesce(1), partition_by=["part", "flag"])
    (file,) = [file for file in table.files() if file.partition == {"part": "p1", "flag": "false"}]
    assert file.statistics is not None
    assert file.statistics.rows == 2
    assert file.statistics.columns["id"] == (1, 7, 0)
    assert file.statistics.columns["name"] == ("name 001", "name 001", 1)
    assert {file.partition["part"] for file in table.files("part > 'p0'")} == {"p1", "p2"}


def test_copied_and_renamed_files_keep_their_statistics(main: Branch, mixed: DataFrame) -> None:
    table = main.table("t")
    table.write(mixed)
    main.copy("t/", "u/")
    assert len(main.table("u").files("id < 10")) == 1


def test_a_condition_that_does_not_fit_names_the_columns(main: Branch, spark: SparkSession, mixed: DataFrame) -> None:
    table = main.table("t")
    table.write(mixed)
    for where in ("nope = 1", "id = = 1", "id +"):
        with pytest.raises(UsageError, match="does not fit the table.*|condition"):
            table.to_arrow(where)
        with pytest.raises(UsageError, match="does not fit the table"):
            table.to_spark(spark, where=where)
    with pytest.raises(UsageError, match="understood by Spark only"):
        table.to_arrow("hash(id) = 3")
    with pytest.raises(UsageError, match="no column 'nope'"):
        table.to_arrow(columns=["nope"])


@pytest.mark.everywhere
def test_a_file_that_vanished_is_named_with_the_commit(main: Branch, spark: SparkSession, mixed: DataFrame) -> None:
    table = main.table("t")
    table.write(mixed)
    commit = main.commit("t")
    file = table.files()[2]
    main._core.resolver.namespace.delete_many([file.info.physical_address])
    for read in (lambda: table.to_spark(spark), lambda: table.to_arrow(), lambda: table.to_polars()):
        with pytest.raises(ObjectMissing) as error:
            read()
        assert file.info.path in str(error.value)
        assert commit.id[:12] in str(error.value)
    assert table.to_spark(spark, where="id < 10").count() == 10


def test_a_damaged_file_gets_a_sentence(main: Branch, mixed: DataFrame) -> None:
    table = main.table("t")
    table.write(mixed)
    blobs = main._core.resolver.namespace
    damaged = table.files()[0].info
    blobs.put(damaged.physical_address, b"x" * damaged.size)
    with pytest.raises(StorageError, match="cannot be read"):
        table.to_arrow()
    blobs.put(damaged.physical_address, b"not parquet")
    with pytest.raises(StorageError, match="has 11 bytes instead of"):
        table.to_arrow()


def test_an_added_and_a_widened_column_read_in_every_format(main: Branch, spark: SparkSession) -> None:
    old = spark.sql("select cast(1 as int) as n, cast(0.5 as float) as f, cast(1.25 as decimal(5,2)) as d")
    new = spark.sql("select 5000000000 as n, 0.25D as f, cast(1000000.5 as decimal(12,3)) as d, 'x' as s")
    for file_format in FORMATS:
        table = main.table(file_format)
        table.write(old, file_format=file_format)
        data = new
        if file_format in ("json", "csv"):  # as text a float would read as another double than it was
            with pytest.raises(SchemaMismatch, match="f is float, not double"):
                table.write(new, schema="merge")
            data = new.withColumn("f", F.col("f").cast("float"))
        table.write(data, schema="merge")
        expected = [(1, 0.5, Decimal("1.250"), None), (5000000000, 0.25, Decimal("1000000.500"), "x")]
        assert rows(table.to_spark(spark)) == expected
        assert arrow_rows(table) == expected
        assert len(table.files("n > 3000000000")) == 1
        assert len(table.files("s is not null")) >= 1
        table.write(old.withColumn("s", F.lit("y")))  # narrower values fit
        assert table.to_spark(spark).count() == 3


@pytest.mark.everywhere
def test_odd_imported_names_are_read_or_refused(
    main: Branch, spark: SparkSession, mixed: DataFrame, tmp_path: Any
) -> None:
    table = main.table("t")
    table.write(mixed.where("id < 10").coalesce(1))
    body = main.read(table.files()[0].info.path)
    for name in ("a b.parquet", "t[1]{x}.parquet", "50%.parquet", "q?*.parquet", "ünï😀.parquet"):
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / "in" / name).write_bytes(body)
    main.commit("t")
    main.import_objects(tmp_path / "in", "t/more/")
    assert table.to_spark(spark).count() == 60
    assert table.to_arrow().num_rows == 60
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "_x.parquet").write_bytes(body)
    main.import_objects(tmp_path / "bad", "hidden/")
    main.copy("hidden/_x.parquet", "t/shown.parquet")
    with pytest.raises(UsageError, match=r"misread 't/shown.parquet'"):
        table.to_spark(spark)
    assert table.to_arrow().num_rows == 70


def test_history_tells_what_commits_did(main: Branch, mixed: DataFrame) -> None:
    table = main.table("t")
    table.write(mixed)
    first = main.commit("first")
    main.put("other", b"x")
    main.commit("not the table's")
    table.write(mixed.where("id < 7").coalesce(1), mode="overwrite")
    second = main.commit("second")
    newest, oldest = table.history()
    assert (oldest.commit, newest.commit) == (first.id, second.id)
    assert (oldest.added_files, oldest.removed_files, oldest.added_rows, oldest.schema_changed) == (4, 0, 40, True)
    assert (newest.added_files, newest.removed_files) == (1, 4)
    assert (newest.added_rows, newest.removed_rows, newest.schema_changed) == (7, 40, False)
    assert [row["message"] for row in table.history().to_arrow().to_pylist()] == ["second", "first"]
    assert len(list(table.history(amount=1))) == 1
    assert "−4" in repr(table.history())


def test_what_only_spark_can_compare_excludes_no_file(main: Branch, spark: SparkSession) -> None:
    frame = spark.sql(
        "select 999999999999999999 as big, cast('12345678901234567.88' as decimal(38,2)) as d, "
        "'2024-01-01 08:00' as s, cast(0.1 as float) as f, 5 as i"
    )
    table = main.table("t")
    table.write(frame, partition_by="f")
    for where in ("big >= 1e18", "d = '12345678901234567.89'", "f > 0.1", "i = '5'", "i > cast(4.7 as bigint)"):
        assert len(table.files(where)) == 1, where
        assert table.to_spark(spark, where=where).count() == frame.where(where).count() == 1, where
    column = F.col("s") == date(2024, 1, 1)
    assert table.to_spark(spark, where=column).count() == frame.where(column).count()
    for condition in ("i = '5'", "i < 100000000000000000000000000000000000000000"):
        with pytest.raises(UsageError):
            table.to_arrow(condition)


def test_columns_in_another_case_are_not_taken_for_missing(
    main: Branch, spark: SparkSession, mixed: DataFrame, tmp_path: Any
) -> None:
    import pyarrow.parquet

    table = main.table("t")
    table.write(mixed.select("id"))
    main.commit("t")
    (tmp_path / "in").mkdir()
    pyarrow.parquet.write_table(pa.table({"ID": pa.array([7], pa.int32())}), tmp_path / "in" / "x.parquet")
    main.import_objects(tmp_path / "in", "t/in/")
    assert table.to_spark(spark).where("id = 7").count() == 2
    with pytest.raises(UsageError, match="calls the column 'id' 'ID'"):
        table.to_arrow()
    with pytest.raises(UsageError, match="only in case"):
        table.write(mixed.selectExpr("id as ID"), schema="merge")


def test_history_counts_files_of_a_format_that_is_gone(main: Branch, mixed: DataFrame) -> None:
    table = main.table("t")
    table.write(mixed.coalesce(1), file_format="json")
    main.commit("json")
    main.delete_prefix("t/")
    main.commit("gone")
    assert [(change.added_files, change.removed_files) for change in table.history()] == [(0, 1), (1, 0)]


# --- the judgement of files, against rows -----------------------------------------------------------------------------

values = st.one_of(st.none(), st.integers(-3, 3))
leaves = st.one_of(
    st.tuples(st.sampled_from(["a", "b"]), st.sampled_from(["=", "!=", "<", "<=", ">", ">="]), st.integers(-4, 4)).map(
        lambda t: f"{t[0]} {t[1]} {t[2]}"
    ),
    st.sampled_from(
        ["a is null", "b is not null", "a in (1, 2)", "b not in (0)", "a between -1 and 1", "null", "true"]
    ),
)
conditions = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(lambda t: f"({t[0]}) {t[1]} ({t[2]})"),
        inner.map(lambda t: f"not ({t})"),
    ),
    max_leaves=5,
)
RECORD = TableRecord(fields=tuple({"name": name, "type": "integer", "nullable": True, "metadata": {}} for name in "ab"))


@given(conditions, st.lists(st.tuples(values, values), min_size=1, max_size=6))
@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_file_is_left_out_only_if_no_row_matches(text: str, held: list[tuple[int | None, int | None]]) -> None:
    import duckdb

    from strandline.tables.statistics import Statistics, spans_of

    columns: dict[str, tuple[Any, Any, int | None]] = {}
    for name, column in zip("ab", zip(*held, strict=True), strict=True):
        present = [value for value in column if value is not None]
        columns[name] = (min(present, default=None), max(present, default=None), len(column) - len(present))
    spans = spans_of(Statistics(len(held), columns), {"a": "integer", "b": "integer"})
    condition = parse_condition(text, RECORD)
    given_rows = ", ".join(f"({'null' if a is None else a}, {'null' if b is None else b})" for a, b in held)
    query = f"select count(*) filter (where {text}), count(*) from (values {given_rows}) as t(a, b)"
    (counted,) = duckdb.execute(query.replace("values (null, null)", "values (null::int, null::int)")).fetchall()
    matching, total = counted
    if matching:
        assert can_match(condition, spans)
    if must_match(condition, spans):
        assert matching == total


def test_arrow_and_the_judgement_know_nan(main: Branch, spark: SparkSession) -> None:
    frame = spark.createDataFrame([(float("nan"),), (1.0,), (math.inf,), (None,)], "x DOUBLE").coalesce(1)
    table = main.table("t")
    table.write(frame)
    for where in ("x > 5", "x >= 1", "x < 5", "x != 1", "not (x > 5)", "x = 1"):
        assert len(arrow_rows(table, where)) == table.to_spark(spark, where=where).count() == frame.where(where).count()


def test_text_is_cut_without_losing_rows(main: Branch, spark: SparkSession) -> None:
    texts = ["a" * 200, "z" * 200, "é" * 50 + "x"]
    frame = spark.createDataFrame(
        [(text, day) for text, day in zip(texts, [date(2026, 1, 1)] * 3, strict=True)], "s STRING, d DATE"
    )
    table = main.table("t")
    table.write(frame.coalesce(1))
    for text in texts:
        assert len(table.files(f"s = '{text}'")) == 1
    assert table.files(f"s > '{'é' * 33}'") == table.files()
    assert table.files("s < 'a'") == []
    record = table.record
    assert Pruning(record, parse_condition("d = '2026-01-01'", record)).needed(table.files()) == table.files()


@pytest.mark.everywhere
@pytest.mark.parametrize("partition_by", [None, "k"])
def test_a_folder_of_many_files_is_read_as_such_only_while_it_holds_nothing_else(
    partition_by: str | None, spark: SparkSession, main: Branch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark plans a folder faster than its files one by one; what is not the table's must not come with it."""
    table = main.table("many")
    frame = spark.range(0, 40, 1, 20).selectExpr("id", "id % 2 as k")
    table.write(frame, partition_by=partition_by)
    main.commit("many files")
    folders: list[int] = []

    from strandline.spark import roots

    choose, still = roots.folders_and_files, roots.still_whole

    def watched(*arguments: Any) -> Any:
        found = choose(*arguments)
        folders.append(len(found[0]))
        return found

    monkeypatch.setattr("strandline.spark.read.folders_and_files", watched)
    assert sorted(row.id for row in table.to_spark(spark).collect()) == list(range(40))
    # a file less: what is left is read one by one
    gone = table.files()[0]
    main.delete(gone.info.path)
    left = len(table.to_spark(spark).collect())
    assert left < 40
    main.discard(gone.info.path)
    # a file more, which comes before Spark looks, or between our two looks
    namespace = main._core.resolver.namespace
    address = gone.info.physical_address
    intruder = address.rpartition("/")[0] + "/part-99999-intruder.snappy.parquet"

    def comes_late(*arguments: Any) -> bool:
        namespace.put(intruder, namespace.get(address))
        return still(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr("strandline.spark.read.still_whole", comes_late)
        assert len(table.to_spark(spark).collect()) == 40
    assert len(table.to_spark(spark).collect()) == 40
    assert folders == [1, 0, 1, 0]
