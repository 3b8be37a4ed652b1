"""Every type of Spark in every format and place: what is written comes back, or is refused before anything is visible.

Avro needs a package from Maven; it is tried in `test_s3.py`, whose session fetches packages anyway.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from strandline.errors import StorageError, UsageError
from strandline.repository.branch import Branch
from strandline.tables.formats import MOMENTS
from tests.conftest import names

pytestmark = pytest.mark.spark
FORMATS = ("parquet", "orc", "json", "csv")
VALUES: dict[str, list[str]] = {
    "byte": ["-128Y", "127Y"],
    "short": ["-32768S", "32767S"],
    "int": ["cast(-2147483648 as int)", "2147483647"],
    "long": ["cast(-9223372036854775808 as bigint)", "9223372036854775807L"],
    "float": ["float('1.1')", "float('NaN')", "float('-Infinity')", "float('-0.0')"],
    "double": ["0.1D", "double('NaN')", "double('Infinity')", "1e300D"],
    "decimal": ["cast('-12345678901234567.899' as decimal(20, 3))", "cast('0.001' as decimal(20, 3))"],
    "wide_decimal": [f"cast('{'9' * 38}' as decimal(38, 0))", "cast('-1' as decimal(38, 0))"],
    "flag": ["true", "false"],
    "text": ["'a b/c=d%e'", r"'\"x\\y\''", "'  x '", "'🌊ä'"],
    "lines": [r"'a\nb\r\nc'", r"'\t,;'", "'null'", "'NULL'"],
    "day": ["date'1969-12-31'", "date'2026-02-28'", "date'9999-12-31'"],
    "moment": ["timestamp'1970-01-01 00:00:00.000001Z'", "timestamp'2026-03-29 01:30:00.123456Z'"],
    "local": ["timestamp_ntz'1900-01-01 00:00:00.1'", "timestamp_ntz'2026-03-29 02:30:00.000001'"],
    "months": ["interval '1-2' year to month", "interval '-9-11' year to month"],
    "days": ["interval '1 02:03:04.5' day to second", "interval '-1 00:00:00.000001' day to second"],
    # where they may be in files, but name no folder
    "bytes": ["X'00FF80'", "X''"],
    "empty": ["''", r"'\0'", r"'a\0b'"],
    "void": ["null"],
    "variant": ["""parse_json('{"a": [1, null]}')""", "parse_json('5')"],
    "list": ["array(1L, null)", "array()"],
    "map": ["map('k', 1.5D)", "map()"],
    "numbered": ["map(1, array('x'))"],
    "record": ["named_struct('a', 1L, 'b', cast(null as string))"],
    "deep": ["array(named_struct('m', map('a', timestamp'2026-01-01 00:00:00.000001Z'), 'd', date'2026-01-01'))"],
    "listed_bytes": ["array(X'00FF')"],
    "collated": ["'x' collate UNICODE_CI"],
    "listed_collated": ["array('x' collate UNICODE_CI)"],
    "ancient": ["date'0001-01-01'", "date'1582-10-14'"],
    "fraction": ["timestamp'1969-12-31 23:59:59.999999Z'"],
}
NO_FOLDER = tuple(VALUES)[tuple(VALUES).index("bytes") :]
REFUSED_BY_VALUE = {("empty", "partition"), ("ancient", "orc"), ("fraction", "orc")}
NESTED = ("list", "map", "numbered", "record", "deep", "listed_bytes", "listed_collated")
UNHELD = {
    "parquet": (),
    "orc": ("void", "variant", "collated", "listed_collated", "ancient", "fraction"),
    "json": ("numbered",),
    "csv": ("void", "variant", "bytes", *NESTED),
}
OTHER_TYPES = {
    "time": "time'12:34:56.789'",
    "interval": "make_interval(1, 2)",
    "list of times": "array(time'12:34:56')",
}
"""Which Spark itself keeps nowhere."""
LOUD_IN_ARROW = {
    "parquet": ("void", "variant", "months", "days"),
    "orc": ("months", "days"),
    "json": ("void", "variant", "months", "days", "bytes", "listed_bytes", "map", "deep", "float", "double"),
    "csv": ("months", "days"),
}
"""What Arrow does not read of a format, and says so."""


def frame(spark: SparkSession, columns: list[str]) -> DataFrame:
    """A row for each value, and one of nulls."""
    rows = max(len(VALUES[name]) for name in columns) + 1
    cases = [
        "case id " + " ".join(f"when {at} then {value}" for at, value in enumerate(VALUES[name])) + f" end as {name}"
        for name in columns
    ]
    return spark.range(rows).selectExpr("id", *cases).coalesce(1)


def shown(rows: DataFrame) -> list[dict[str, object]]:
    """The rows as Spark writes them in full; Python has no values for some of its types."""
    text = F.to_json(F.struct("*"), {**MOMENTS, "ignoreNullFields": "false"})
    return [json.loads(row[0]) for row in rows.orderBy("id").select(text).collect()]


@pytest.mark.parametrize("file_format", FORMATS)
def test_every_type_that_a_format_holds_comes_back(main: Branch, spark: SparkSession, file_format: str) -> None:
    """Through Spark all of them; through Arrow the same values as from Parquet, or an error, never others."""
    held = [name for name in VALUES if name not in UNHELD[file_format]]
    rows = frame(spark, held)
    table = main.table("t")
    table.write(rows, file_format=file_format)
    assert table.to_spark(spark).schema.simpleString() == rows.schema.simpleString()
    assert shown(table.to_spark(spark)) == shown(rows)
    truth = main.table("truth")
    truth.write(rows)
    if file_format == "csv":  # whose columns are read all together
        rows = rows.drop(*LOUD_IN_ARROW["csv"])
        table.write(rows, mode="overwrite", schema="replace")
    loud = list(LOUD_IN_ARROW["csv"]) if file_format == "csv" else []
    held = [name for name in held if name not in loud]
    for name in held:
        try:
            found = table.to_arrow(columns=["id", name]).sort_by("id")
        except (UsageError, StorageError):
            loud.append(name)
            continue
        assert same(found, truth.to_arrow(columns=["id", name]).sort_by("id")), name
    assert set(loud) == set(LOUD_IN_ARROW[file_format])


def same(left: pa.Table, right: pa.Table) -> bool:
    """Equal, NaN and all."""
    return left.schema.equals(right.schema) and repr(left.to_pylist()) == repr(right.to_pylist())


@pytest.mark.parametrize("file_format", FORMATS)
def test_every_type_that_names_a_folder_comes_back(main: Branch, spark: SparkSession, file_format: str) -> None:
    places = [name for name in VALUES if name not in NO_FOLDER]
    rows = frame(spark, places).withColumn("text", F.coalesce("text", F.lit("x")))
    table = main.table("t")
    table.write(rows, file_format=file_format, partition_by=places)
    assert shown(table.to_spark(spark)) == shown(rows)
    for name in places:
        if name not in ("months", "days"):
            found = table.to_arrow(columns=["id", name]).sort_by("id")
            assert repr(found.to_pylist()) == repr(rows.select("id", name).orderBy("id").toArrow().to_pylist()), name
            assert table.to_arrow(columns=[name]).num_rows == len(found)


def refused(file_format: str) -> Iterator[tuple[str, str]]:
    yield from ((name, "file") for name in UNHELD[file_format])
    yield from ((name, "partition") for name in NO_FOLDER if name not in ("ancient", "fraction"))
    yield from ((name, place) for name in OTHER_TYPES for place in ("file", "partition"))


@pytest.mark.parametrize("file_format", FORMATS)
def test_what_would_not_come_back_is_refused(main: Branch, spark: SparkSession, file_format: str) -> None:
    """By its type before Spark starts, by its value before anything is visible."""
    for name, place in refused(file_format):
        if name in OTHER_TYPES:
            rows = spark.range(1).selectExpr("id", f"{OTHER_TYPES[name]} as x")
        else:
            rows = frame(spark, [name]).withColumnRenamed(name, "x")
        with pytest.raises(UsageError) as error:
            main.table("t").write(rows, file_format=file_format, partition_by=["x"] if place == "partition" else None)
        by_value = (name, place) in REFUSED_BY_VALUE or (name, file_format) in REFUSED_BY_VALUE
        assert ("visible" in error.value.safe) == by_value, (name, place, error.value)
        assert "x" in error.value.what
    assert not names(main)


NESTED_IN_ORC = [
    "array(timestamp'1969-12-31 23:59:59.5Z')",
    "map('a', date'1500-01-01')",
    "named_struct('a', array(named_struct('b', date'1500-01-01')))",
]


@pytest.mark.parametrize("value", NESTED_IN_ORC)
def test_what_orc_moves_is_found_within_others(main: Branch, spark: SparkSession, value: str) -> None:
    rows = spark.range(2).selectExpr("id", f"case when id = 1 then {value} end as x")
    with pytest.raises(UsageError, match="that ORC moves"):
        main.table("t").write(rows, file_format="orc")
    main.table("t").write(rows.where("id = 0"), file_format="orc")
    assert main.table("t").count() == 1
