"""Spark and Arrow write the same table: one plan, two engines."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from strandline.errors import MergeConflict, UsageError
from strandline.repository.branch import Branch
from strandline.repository.repository import Repository
from strandline.tables.frames import arrow_schema
from strandline.tables.table import Table

pytestmark = pytest.mark.spark
ENGINES = ("spark", "arrow")
BEFORE_1970 = datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC)
PAIR = T.StructType([T.StructField("a", T.LongType()), T.StructField("b", T.StringType())])
FIELDS: dict[str, tuple[T.DataType, list[Any]]] = {
    "byte": (T.ByteType(), [-128, 127, None]),
    "short": (T.ShortType(), [-(2**15), 2**15 - 1, None]),
    "int": (T.IntegerType(), [-(2**31), 2**31 - 1, None]),
    "long": (T.LongType(), [-(2**63), 2**63 - 1, None]),
    "float": (T.FloatType(), [0.5, float("inf"), None]),
    "double": (T.DoubleType(), [0.1, -1e300, None]),
    "flag": (T.BooleanType(), [True, False, None]),
    "text": (T.StringType(), ["a b/c=d%e", " x", None]),
    "blank": (T.StringType(), ["", " ", None]),
    "word": (T.StringType(), ["ä#?*:'\"\\{[]^\x7f", "🌊 x", None]),
    "bytes": (T.BinaryType(), [b"\x00\xff", b"", None]),
    "day": (T.DateType(), [date(1969, 12, 31), date(2026, 2, 28), None]),
    "moment": (T.TimestampType(), [BEFORE_1970, datetime(2026, 1, 1, tzinfo=UTC), None]),
    "local": (T.TimestampNTZType(), [datetime(2026, 1, 1, 1, 2, 3, 100), datetime(1900, 1, 1), None]),
    "amount": (T.DecimalType(20, 3), [Decimal("-1.500"), Decimal("12345678901234567.899"), None]),
    "list": (T.ArrayType(T.LongType()), [[1, None], [], None]),
    "map": (T.MapType(T.StringType(), T.DoubleType()), [{"k": 1.0}, {}, None]),
    "record": (PAIR, [(1, "x"), (None, None), None]),
}
PARTITIONS: list[tuple[str, ...]] = [
    (),
    *((name,) for name in FIELDS if name not in ("blank", "bytes", "list", "map", "record", "float", "double")),
    ("int", "word"),
    ("day", "flag", "amount"),
]


def frame(spark: SparkSession) -> DataFrame:
    schema = T.StructType([T.StructField("id", T.LongType())] + [T.StructField(n, t) for n, (t, _) in FIELDS.items()])
    rows = [(at, *(values[at] for _, values in FIELDS.values())) for at in range(3)]
    return spark.createDataFrame(rows, schema).coalesce(1)


@pytest.mark.parametrize("partition_by", PARTITIONS, ids=lambda names: "-".join(names) or "none")
def test_both_engines_write_the_same_table(main: Branch, spark: SparkSession, partition_by: tuple[str, ...]) -> None:
    """The same record, folders, rows, statistics, and what each engine reads of what the other wrote."""
    made = frame(spark)
    by_spark, by_arrow = main.table("spark"), main.table("arrow")
    by_spark.write(made, partition_by=partition_by, options={"compression": "snappy"})
    rows = by_spark.to_arrow()
    by_arrow.write(rows, partition_by=partition_by, options={"compression": "snappy"})
    assert by_spark.record == by_arrow.record
    assert shape(by_spark) == shape(by_arrow)
    for table in (by_spark, by_arrow):
        assert table.to_arrow().sort_by("id").equals(rows.sort_by("id"))
    assert by_arrow.to_spark(spark).orderBy("id").collect() == by_spark.to_spark(spark).orderBy("id").collect()


def shape(table: Table) -> list[Any]:
    """By partition folder, what is known of its file."""
    found = []
    for file in table.files():
        statistics = file.statistics
        assert statistics is not None
        found.append((file.relative.rpartition("/")[0], file.partition, statistics.rows, statistics.columns))
    return sorted(found, key=str)


@pytest.mark.parametrize("first", ENGINES)
@pytest.mark.parametrize("second", ENGINES)
@pytest.mark.parametrize("mode", ["append", "overwrite", "overwrite_partitions", "where"])
def test_engines_take_turns(main: Branch, spark: SparkSession, first: str, second: str, mode: str) -> None:
    rows = pa.table({"id": pa.array(range(60), pa.int64()), "month": pa.array([n % 3 for n in range(60)], pa.int32())})
    more = pa.table({"id": pa.array([100, 103], pa.int64()), "month": pa.array([1, 1], pa.int32())})

    def form(data: pa.Table, engine: str) -> Any:
        return spark.createDataFrame(data) if engine == "spark" else data

    table = main.table("t")
    table.write(form(rows, first), partition_by="month")
    if mode == "where":
        table.write(form(more, second), mode="overwrite", where="month = 1 and id > 30")
    else:
        table.write(form(more, second), mode=mode)  # type: ignore[arg-type]
    before = rows.to_pylist()
    kept = {
        "append": before,
        "overwrite": [],
        "overwrite_partitions": [row for row in before if row["month"] != 1],
        "where": [row for row in before if not (row["month"] == 1 and row["id"] > 30)],
    }[mode]
    expected = sorted([*kept, *more.to_pylist()], key=str)
    assert sorted(table.to_arrow().to_pylist(), key=str) == expected
    assert sorted((row.asDict() for row in table.to_spark(spark).collect()), key=str) == expected


def test_branches_of_both_engines_conflict_by_partition(repo: Repository, main: Branch, spark: SparkSession) -> None:
    """A partition has one name, whoever writes it: else two overwrites of it would merge into both."""
    rows = pa.table({"p": ["x y/z", "b"], "id": pa.array([1, 2], pa.int64())})
    main.table("t").write(rows, partition_by="p", message="first")
    other = repo.create_branch("other", "main")
    main.table("t").write(rows.slice(0, 1), mode="overwrite_partitions", message="here")
    other.table("t").write(spark.createDataFrame(rows.slice(0, 1)), mode="overwrite_partitions", message="there")
    with pytest.raises(MergeConflict):
        main.merge(other)


def test_spark_reads_what_arrow_has_of_its_own(main: Branch, spark: SparkSession) -> None:
    """Types that Spark does not have come as the next wider one."""
    data = pa.table(
        {
            "u8": pa.array([255], pa.uint8()),
            "u16": pa.array([65_535], pa.uint16()),
            "u32": pa.array([2**32 - 1], pa.uint32()),
            "half": pa.array([1.5], pa.float32()),
            "choice": pa.array(["a"]).dictionary_encode(),
            "ms": pa.array([1], pa.timestamp("ms", "Europe/Berlin")),
            "fixed": pa.array([b"abc"], pa.binary(3)),
        }
    )
    table = main.table("t")
    table.write(data)
    assert table.to_spark(spark).schema.simpleString() == (
        "struct<u8:smallint,u16:int,u32:bigint,half:float,choice:string,ms:timestamp,fixed:binary>"
    )
    row = table.to_spark(spark).collect()[0]
    assert (row.u8, row.u16, row.u32, row.half, row.choice, bytes(row.fixed)) == (
        255,
        65_535,
        2**32 - 1,
        1.5,
        "a",
        b"abc",
    )
    assert arrow_schema(table.record) == table.to_arrow().schema


TEXTS = [
    "",
    " ",
    "  around  ",
    "line\nend",
    "cr\r\nlf",
    'a "quoted", text',
    "\\",
    "back\\slash",
    '"',
    ",",
    "#",
    "null",
    "NULL",
    "\t",
]
MOMENTS = [
    datetime(2026, 1, 1, 1, 2, 3, 4),
    datetime(1900, 1, 1, 0, 0, 0, 1),
    datetime(2200, 12, 31, 23, 59, 59, 999_999),
]


@pytest.mark.parametrize("file_format", ["parquet", "orc", "json", "csv"])
@pytest.mark.parametrize("header", [True, False])
def test_no_format_changes_a_value_without_a_word(
    main: Branch, spark: SparkSession, file_format: str, header: bool
) -> None:
    """What the format cannot hold is refused; all else is read as it was written, by Spark and by Arrow."""
    kinds = {
        "text": T.StringType(),
        "moment": T.TimestampType(),
        "local": T.TimestampNTZType(),
        "day": T.DateType(),
        "double": T.DoubleType(),
        "amount": T.DecimalType(20, 3),
        "long": T.LongType(),
        "flag": T.BooleanType(),
    }
    schema = T.StructType([T.StructField("id", T.LongType())] + [T.StructField(n, k) for n, k in kinds.items()])
    rows: list[tuple[Any, ...]] = []
    for at, text in enumerate(TEXTS):
        moment = MOMENTS[at % 3]
        zoned = moment.replace(tzinfo=UTC, microsecond=0 if file_format == "orc" else moment.microsecond)
        values = (text, zoned, moment, date(1969, 12, 31), 0.1 * at, Decimal("-1.500"), -(2**63) + at, at % 2 == 0)
        rows.append((at, *values))
        rows.append((100 + at, *(None if at % 8 == place else value for place, value in enumerate(values))))
    rows.append((1000, *([None] * 8)))
    options = {"header": header} if file_format == "csv" else None
    table = main.table("t")
    table.write(spark.createDataFrame(rows, schema), file_format=file_format, options=options)
    found = {row.id: tuple(row)[1:] for row in table.to_spark(spark).collect()}
    expected = {row.id: tuple(row)[1:] for row in spark.createDataFrame(rows, schema).collect()}
    assert found == expected
    by_arrow = {row["id"]: tuple(row.values())[1:] for row in table.to_arrow().to_pylist()}
    assert by_arrow == {row[0]: row[1:] for row in rows}


@pytest.mark.parametrize("file_format", ["json", "csv"])
def test_a_column_of_nulls_and_empty_texts_keeps_its_rows(main: Branch, spark: SparkSession, file_format: str) -> None:
    table = main.table("t")
    table.write(spark.createDataFrame([(None,), ("",), ("a",)], "x string"), file_format=file_format)
    assert sorted(table.to_arrow()["x"].to_pylist(), key=str) == sorted([None, "", "a"], key=str)
    assert table.to_spark(spark).count() == 3


def test_what_a_format_cannot_hold_is_refused(main: Branch, spark: SparkSession) -> None:
    with pytest.raises(UsageError, match="stands for null in CSV"):
        main.table("a").write(spark.createDataFrame([(r"\N",)], "x string"), file_format="csv")
    with pytest.raises(UsageError, match="holds values of type binary"):
        main.table("b").write(spark.createDataFrame([(b"\xff",)], "x binary"), file_format="csv")
    before = spark.createDataFrame([(datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC),)], "x timestamp")
    with pytest.raises(UsageError, match="a part of a second before 1970"):
        main.table("c").write(before, file_format="orc")
    assert not main.list().first()
    main.table("d").write(spark.createDataFrame([(r"\N", "-")], "x string, y string"), file_format="json")
    assert main.table("d").to_spark(spark).collect()[0].x == r"\N"


@pytest.mark.parametrize("character", ["x", "{", "\\", "]", "^", "é"])
def test_both_engines_name_the_longest_folders_and_refuse_longer_ones(
    main: Branch, spark: SparkSession, character: str
) -> None:
    most = 253 // {"x": 1, "é": 2}.get(character, 3)  # the column's name and "=" take two bytes of 255
    for length in (most, most + 1):
        text = character * length
        makers = {
            "arrow": pa.table({"p": [text], "id": [1]}),
            "spark": spark.createDataFrame([(text, 1)], "p string, id long"),
        }
        for engine, data in makers.items():
            table = main.table(f"{engine}{length}")
            if length == most:
                table.write(data, partition_by="p")
                assert table.to_arrow()["p"].to_pylist() == [text]
            else:
                with pytest.raises(UsageError, match="cannot be the name of a partition's folder"):
                    table.write(data, partition_by="p")
                assert not table.exists()


def test_rows_that_are_none_leave_no_file(main: Branch, spark: SparkSession) -> None:
    empty = spark.createDataFrame([], "id long, p string")
    for data in (empty, empty.toArrow()):
        table = main.table(f"t-{type(data).__module__[:7]}")
        assert table.write(data).files == 0
        assert table.to_spark(spark).schema == empty.schema
        assert table.to_arrow().num_rows == table.to_spark(spark).count() == 0
        table.write(spark.createDataFrame([(1, "a")], "id long, p string"))
        done = table.write(data)
        assert (done.files, done.bytes, done.rows, done.changes) == (0, 0, 0, 0)
        assert len(table.files()) == 1
