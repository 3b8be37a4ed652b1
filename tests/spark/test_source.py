"""The format "strandline": tables read by its name alone say what native reads say."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

import strandline
from strandline.errors import UsageError
from strandline.repository.branch import Branch
from strandline.spark import register
from strandline.spark.format import reader as reading
from strandline.spark.format import source

pytestmark = [pytest.mark.spark, pytest.mark.everywhere]
TABLE = "nyc/main/tables/rides"
ROWS = pa.table(
    {
        "day": pa.array([datetime.date(2026, 1, 1 + n % 3) for n in range(30)]),
        "k": pa.array(range(30), pa.int64()),
        "text": pa.array([None if n % 7 == 0 else f"ä{n}" for n in range(30)]),
        "at": pa.array([datetime.datetime(2026, 1, 1, n % 24, tzinfo=datetime.UTC) for n in range(30)]),
        "price": pa.array([decimal.Decimal(n) / 4 for n in range(30)], pa.decimal128(9, 2)),
        "list": pa.array([[n, None] for n in range(30)], pa.list_(pa.int32())),
    }
)


@pytest.fixture
def main(spark: SparkSession, lake_url: str) -> Iterator[Branch]:
    with strandline.open(lake_url, create=True, synced=False) as lake:
        main = lake.repository("nyc", create=True).branch("main")
        main.table("tables/rides").write(ROWS, partition_by=["day"], message="first")
        register(spark)
        yield main


@pytest.fixture
def reader(spark: SparkSession, lake_url: str, main: Branch) -> Any:
    return lambda: spark.read.format("strandline").option("lake", lake_url)


def rows(frame: DataFrame) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = frame.toArrow().to_pylist()
    return sorted(found, key=lambda row: row["k"])


@pytest.mark.parametrize("file_format", ["parquet", "orc", "csv", "json"])
def test_a_table_is_what_it_is_natively(spark: SparkSession, main: Branch, reader: Any, file_format: str) -> None:
    flat = ROWS.drop_columns(["list"]) if file_format in ("csv", "json") else ROWS
    main.table("t").write(spark.createDataFrame(flat), partition_by=["day"], file_format=file_format, message="rows")
    found = reader().load("nyc/main/t")
    native = main.table("t").to_spark(spark)
    assert found.schema == native.schema
    assert rows(found) == rows(native)


def test_options_name_the_place_the_moment_columns_and_rows(main: Branch, reader: Any) -> None:
    first = main.commit_id
    main.table("tables/rides").write(ROWS.slice(0, 2), mode="append", message="second")
    assert reader().load(TABLE).count() == 32
    assert reader().load(f"nyc/{first}/tables/rides").count() == 30
    assert reader().option("repo", "nyc").option("ref", "main~1").load("tables/rides").count() == 30
    chosen = reader().options(columns="text, k", where="day = DATE'2026-01-02' AND k > 10").load(TABLE)
    assert chosen.columns == ["text", "k"]
    assert rows(chosen) == [{"text": None if n % 7 == 0 else f"ä{n}", "k": n} for n in range(13, 30, 3)]
    assert reader().options(columns='["k"]').load(TABLE).columns == ["k"]
    some = reader().schema("k BIGINT").load(TABLE)
    assert some.columns == ["k"]
    assert some.agg({"k": "sum"}).collect()[0][0] == sum([*range(30), 0, 1])


def test_only_files_that_may_have_rows_are_read(main: Branch, lake_url: str) -> None:
    options = {"lake": lake_url, "path": TABLE, "where": "day = DATE'2026-01-02'"}
    schema = source.LakeSource(options).schema()
    assert isinstance(schema, StructType)
    parts = reading.TableReader(options, schema).partitions()
    assert [len(part.files) for part in parts if isinstance(part, reading.FilesPartition)] == [1]


def test_files_share_tasks_up_to_a_size(main: Branch, lake_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"lake": lake_url, "path": TABLE}
    made = source.LakeSource(options)
    sizes = [file.info.size for file in main.table("tables/rides")._files(main.table("tables/rides").record)]
    schema = made.schema()
    assert isinstance(schema, StructType)
    for most, wanted in ((1, 3), (sum(sizes), 1), (sizes[0] + sizes[1], 2)):
        monkeypatch.setattr(reading, "SPLIT_BYTES", most)
        assert len(reading.TableReader(options, schema).partitions()) == wanted


def test_tables_are_there_in_sql(spark: SparkSession, main: Branch, lake_url: str) -> None:
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW by_format USING strandline "
        f"OPTIONS (lake '{lake_url}', path 'nyc/main/tables/rides', columns 'k')"
    )
    assert spark.sql("SELECT sum(k) FROM by_format").collect()[0][0] == sum(range(30))
    main.table("tables/deep/er").write(pa.table({"k": [1]}), message="another")
    assert register(spark, main, "tables/") == ["deep_er", "rides"]
    assert spark.sql("SELECT count(*) FROM rides JOIN deep_er USING (k)").collect()[0][0] == 1
    main.table("tables/deep_er").write(pa.table({"k": [1]}), message="one too many")
    with pytest.raises(UsageError, match="Two tables"):
        register(spark, main, "tables/")


def test_an_empty_table_has_no_rows(main: Branch, reader: Any) -> None:
    main.table("t").write(ROWS.slice(0, 0), message="none")
    found = reader().load("nyc/main/t")
    assert found.count() == 0
    assert "price" in found.columns


def test_a_file_that_vanishes_under_a_scan_is_named(main: Branch, reader: Any) -> None:
    frame = reader().load(TABLE)
    core = main._core
    (file, *_) = main.table("tables/rides")._files(main.table("tables/rides").record)
    core.resolver.namespace.delete_many([file.info.physical_address])
    with pytest.raises(Exception, match="is gone from the object store"):
        frame.collect()


@pytest.mark.parametrize(
    ("options", "path", "said"),
    [
        ({}, "nyc/main", "names no table"),
        ({}, "", "is not repository/ref"),
        ({}, "nyc/main/none", "no table"),
        ({}, "nyc/nothing/tables/rides", "nothing"),
        ({"columns": "k, none"}, TABLE, "no column 'none'"),
        ({"columns": "[1]"}, TABLE, "not a list of columns"),
        ({"columns": '["'}, TABLE, "not a list of columns"),
        ({"where": "none = 1"}, TABLE, "none"),
        ({"where": "k ="}, TABLE, "k ="),
    ],
)
def test_wrong_options_are_named(reader: Any, options: dict[str, str], path: str, said: str) -> None:
    with pytest.raises(Exception, match=said):
        reader().options(**options).load(path).collect()


def test_another_type_than_the_tables_is_refused(reader: Any) -> None:
    with pytest.raises(Exception, match="is bigint, not string"):
        reader().schema("k STRING").load(TABLE).collect()


def test_what_is_not_a_session_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a Spark session"):
        register(tmp_path)  # type: ignore[arg-type]
