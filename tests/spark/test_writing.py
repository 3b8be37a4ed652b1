"""Writing tables: formats and their options, replacing rows by a condition, statistics, sizes of files."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from strandline.blob import BlobNotFound
from strandline.errors import Conflict, MergeConflict, ObjectMissing, SchemaMismatch, StorageError, UsageError
from strandline.repository.branch import Branch
from strandline.spark.session import held_settings
from strandline.tables.record import RECORD_NAME, decode_record, encode_record
from strandline.tables.statistics import STATISTICS_MAX_BYTES
from tests.conftest import names

pytestmark = pytest.mark.spark


@pytest.fixture
def numbers(spark: SparkSession) -> DataFrame:
    """100 rows in two parts: id, and the columns month and code."""
    return spark.range(0, 100, 1, 2).select(
        "id", (F.col("id") % 3).cast("int").alias("month"), F.format_string("%03d", F.col("id") % 5).alias("code")
    )


def ids(frame: DataFrame) -> list[int]:
    return sorted(row["id"] for row in frame.collect())


@pytest.mark.parametrize(
    ("file_format", "options", "suffix"),
    [
        ("parquet", {"compression": "zstd"}, ".zstd.parquet"),
        ("orc", {"compression": "snappy"}, ".snappy.orc"),
        ("json", {"compression": "gzip"}, ".json.gz"),
        ("csv", {"sep": ";", "compression": "gzip", "nullValue": "-"}, ".csv.gz"),
        ("csv", {"header": False}, ".csv"),
    ],
)
def test_formats_keep_their_options_on_record(
    main: Branch, spark: SparkSession, numbers: DataFrame, file_format: str, options: dict[str, Any], suffix: str
) -> None:
    table = main.table("t")
    frame = numbers.withColumn("code", F.when(F.col("id") > 3, F.col("code")))
    done = table.write(frame, file_format=file_format, options=options, partition_by="month")
    assert done.rows == 100
    table.write(frame)  # what is on record need not be said again
    assert all(file.relative.endswith(suffix) for file in table.files())
    assert all(file.info.physical_address.endswith(suffix) for file in table.files())
    for found in (table.to_spark(spark), spark.createDataFrame(table.to_arrow())):
        assert ids(found) == sorted([*range(100)] * 2)
        assert found.where("code is null").count() == 8
    assert len(table.files("id < 2")) < len(table.files())
    with pytest.raises(UsageError, match=f"is {file_format}, not avro"):
        table.write(frame, file_format="avro")
    with pytest.raises(UsageError, match="has the options"):
        table.write(frame, options={"compression": "none"})
    table.write(frame, mode="overwrite", schema="replace", file_format="parquet", options={})
    assert table.record.file_format == "parquet"
    assert table.to_spark(spark).count() == 100


def test_a_gzip_file_without_its_extension_is_refused_not_empty(
    main: Branch, spark: SparkSession, numbers: DataFrame, tmp_path: Path
) -> None:
    table = main.table("t")
    table.write(numbers.coalesce(1), file_format="csv", options={"compression": "gzip"})
    body = main.read(table.files()[0].info.path)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "plain.csv").write_bytes(body)
    main.commit("t")
    main.import_objects(tmp_path / "in", "in/")
    main.copy("in/plain.csv", "t/more.csv.gz")
    with pytest.raises(UsageError, match="misread"):
        table.to_spark(spark)


def test_avro_needs_its_package_and_says_so(main: Branch, numbers: DataFrame) -> None:
    with pytest.raises(StorageError, match="spark-avro"):
        main.table("t").write(numbers, file_format="avro")
    assert names(main) == []


def test_options_that_are_not_the_callers_are_refused(main: Branch, numbers: DataFrame) -> None:
    for name in ("path", "recursiveFileLookup", "basePath", "timeZone", "partitionOverwriteMode"):
        with pytest.raises(UsageError, match=name):
            main.table("t").write(numbers, options={name: "x"})
    with pytest.raises(UsageError, match="not a format"):
        main.table("t").write(numbers, file_format="xml")


@pytest.mark.everywhere
def test_where_replaces_rows_and_leaves_the_rest(main: Branch, spark: SparkSession, numbers: DataFrame) -> None:
    table = main.table("t")
    table.write(numbers, partition_by="month")
    before = {file.relative: file.info.physical_address for file in table.files()}
    fresh = spark.createDataFrame([(1000, 1, "x"), (1001, 1, "y")], "id LONG, month INT, code STRING")
    table.write(fresh, mode="overwrite", where="month = 1")
    assert ids(table.to_spark(spark)) == sorted([id for id in range(100) if id % 3 != 1] + [1000, 1001])
    # files that lie wholly within the condition are dropped unread, others of their partition stay as they are
    after = {file.relative: file.info.physical_address for file in table.files()}
    assert {path for path in before if path in after} == {path for path in before if not path.startswith("month=1/")}


def test_where_rewrites_files_that_lie_partly_within(main: Branch, spark: SparkSession, numbers: DataFrame) -> None:
    table = main.table("t")
    table.write(numbers)  # ids 0 to 49, and 50 to 99
    kept = {file.info.physical_address for file in table.files("id < 50")}
    fresh = spark.createDataFrame([(95, 0, "new")], "id LONG, month INT, code STRING")
    table.write(fresh, mode="overwrite", where="id >= 90")
    assert ids(table.to_spark(spark)) == [*range(90), 95]
    assert kept <= {file.info.physical_address for file in table.files()}
    table.write(numbers.where("id < 0"), mode="overwrite", where="code = '003' or code is null")
    assert table.to_spark(spark).where("code = '003'").count() == 0
    assert table.to_spark(spark).count() == 91 - 18
    table.write(numbers.where("id < 0"), mode="overwrite", where="hash(id) % 2 = 0")  # only Spark understands it
    assert table.to_spark(spark).where("hash(id) % 2 = 0").count() == 0


@pytest.mark.everywhere
def test_rows_outside_of_where_are_refused_and_nothing_changes(
    main: Branch, spark: SparkSession, numbers: DataFrame
) -> None:
    table = main.table("t")
    table.write(numbers, partition_by="month")
    before = names(main)
    with pytest.raises(UsageError, match="does not fulfil 'month = 1'"):
        table.write(numbers, mode="overwrite", where="month = 1")
    for mode, where in (("append", "month = 1"), ("overwrite", "nope = 1"), ("overwrite", "month = = 1")):
        with pytest.raises(UsageError):
            table.write(numbers, mode=mode, where=where)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="There is no table 'u'"):
        main.table("u").write(numbers, mode="overwrite", where="month = 1")
    assert names(main) == before


def test_rows_that_come_while_their_like_are_replaced_conflict(
    main: Branch, spark: SparkSession, numbers: DataFrame
) -> None:
    table = main.table("t")
    table.write(numbers, partition_by="month")
    stage = main.stage_atomically

    def meanwhile(month: int) -> Any:
        def other_first(*arguments: Any, **options: Any) -> Any:
            main.stage_atomically = stage  # type: ignore[method-assign]
            main.table("t").write(numbers.where(f"month = {month}").limit(1))
            return stage(*arguments, **options)

        return other_first

    fresh = numbers.where("month = 1")
    main.stage_atomically = meanwhile(1)  # type: ignore[method-assign]
    with pytest.raises(Conflict, match="added or changed by somebody else"):
        table.write(fresh, mode="overwrite", where="month = 1")
    main.stage_atomically = meanwhile(2)  # type: ignore[method-assign]
    table.write(fresh, mode="overwrite", where="month = 1")
    assert table.to_spark(spark).count() == 101


def test_a_file_that_is_replaced_by_others_while_its_rows_are_written_again_conflicts(
    main: Branch, spark: SparkSession, numbers: DataFrame
) -> None:
    table = main.table("t")
    table.write(numbers.coalesce(1))
    stage = main.stage_atomically

    def other_first(*arguments: Any, **options: Any) -> Any:
        main.stage_atomically = stage  # type: ignore[method-assign]
        main.delete(main.table("t").files()[0].info.path)
        return stage(*arguments, **options)

    main.stage_atomically = other_first  # type: ignore[method-assign]
    with pytest.raises(Conflict, match="deleted by somebody else"):
        table.write(numbers.where("id = 1"), mode="overwrite", where="id = 1")
    assert table.to_spark(spark).count() == 0  # rows that were deleted do not come back


def test_partitions_are_replaced_by_value_however_their_folders_are_spelled(
    main: Branch, spark: SparkSession, numbers: DataFrame
) -> None:
    table = main.table("t")
    table.write(numbers, partition_by="month")
    main.rename("t/month=1/", "t/month=01/")
    assert table.to_spark(spark).where("month = 1").count() == 33
    table.write(numbers.where("month = 1").limit(2), mode="overwrite_partitions")
    assert table.to_spark(spark).where("month = 1").count() == 2


def test_a_format_whose_files_have_another_suffix_is_refused(main: Branch, numbers: DataFrame) -> None:
    with pytest.raises(UsageError, match="extension"):
        main.table("t").write(numbers, file_format="csv", options={"extension": "tsv"})


def test_dates_that_python_does_not_have_are_written(main: Branch, spark: SparkSession) -> None:
    frame = spark.sql("select 1 as id, make_date(20224, 1, 1) as d, timestamp_ntz'20224-01-01 00:00:00' as n")
    for file_format in ("parquet", "orc"):
        table = main.table(file_format)
        table.write(frame, file_format=file_format)
        assert len(table.files("d > '2020-01-01'")) == 1
        assert table.to_spark(spark, where="d > '2020-01-01' and id = 1").count() == 1


def test_odd_spaces_in_partition_values_keep_their_rows(main: Branch, spark: SparkSession) -> None:
    values = ["a\u00a0b", "a\u3000b", "plain"]
    frame = spark.createDataFrame([(at, value) for at, value in enumerate(values)], "n INT, p STRING")
    for file_format in ("parquet", "json"):
        table = main.table(file_format)
        table.write(frame, partition_by="p", file_format=file_format)
        assert ids(table.to_spark(spark, where="n >= 0").withColumnRenamed("n", "id")) == [0, 1, 2]
        main.copy(f"{file_format}/", f"copy-{file_format}/")
        for file in main.table(f"copy-{file_format}").files():
            main.rename(file.info.path, file.info.path.replace("part-", "moved-"))
        found = main.table(f"copy-{file_format}").to_spark(spark).collect()
        assert {row["n"]: row["p"] for row in found} == dict(enumerate(values))


def test_branches_that_replaced_rows_of_the_same_partition_conflict(main: Branch, numbers: DataFrame) -> None:
    main.table("t").write(numbers, partition_by="month")
    main.commit("t")
    work = main.create_branch("work")
    for branch in (main, work):
        branch.table("t").write(numbers.where("month = 1 and id < 50"), mode="overwrite", where="month = 1")
        branch.commit("replace")
    with pytest.raises(MergeConflict):
        main.merge(work)


@pytest.mark.everywhere
def test_statistics_are_bounded_and_chosen(main: Branch, spark: SparkSession) -> None:
    wide = spark.range(10).select("id", *(F.concat(F.lit(f"{at}-"), F.col("id")).alias(f"c{at}") for at in range(50)))
    table = main.table("wide")
    table.write(wide.coalesce(1))
    (file,) = table.files()
    assert file.statistics is not None
    assert len(file.statistics.columns) == 32
    assert len(file.info.user_metadata or "") < 2 * STATISTICS_MAX_BYTES
    table.write(wide.coalesce(1), mode="overwrite", statistics=["c40"])
    assert list(table.files()[0].statistics.columns) == ["c40"]  # type: ignore[union-attr]
    table.write(wide.coalesce(1), mode="overwrite")
    assert list(table.files()[0].statistics.columns) == ["c40"]  # type: ignore[union-attr]
    with pytest.raises(UsageError, match="no column 'nope'"):
        table.write(wide, statistics="nope")
    lines = main.table("lines")
    assert lines.write(wide, file_format="json", statistics=[]).rows is None
    assert lines.files()[0].statistics is None


def test_files_get_about_the_size_that_is_asked_for(main: Branch, spark: SparkSession) -> None:
    data = spark.range(0, 600_000, 1, 12).select("id", F.sha2(F.col("id").cast("string"), 256).alias("h"))
    table = main.table("t")
    table.write(data)
    total = sum(file.info.size for file in table.files())
    assert len(table.files()) == 12
    target = total // 4
    table.write(data, mode="overwrite", target_file_bytes=target)
    sizes = [file.info.size for file in table.files()]
    assert 3 <= len(sizes) <= 8
    assert max(sizes) < 2 * target
    one = main.table("one")
    one.write(data.coalesce(1), target_file_bytes=target)
    assert 3 <= len(one.files()) <= 8
    with pytest.raises(UsageError, match="too small"):
        table.write(data, target_file_bytes=10)


def test_a_record_of_the_first_format_is_read_and_kept(main: Branch, spark: SparkSession, numbers: DataFrame) -> None:
    table = main.table("t")
    table.write(numbers)
    old = encode_record(table.record).replace(b'"format": 2', b'"format": 1')
    old = b"\n".join(line for line in old.split(b"\n") if b'"options"' not in line and b'"statistics"' not in line)
    main.put(f"t/{RECORD_NAME}", old)
    assert decode_record(old, "t").format == 1
    table.write(numbers)
    assert main.read(f"t/{RECORD_NAME}") == old
    table.write(numbers.withColumn("more", F.lit(1)), schema="merge")
    assert table.record.format == 2
    assert table.to_spark(spark).count() == 300


def test_a_narrower_type_only_fits_if_no_value_can_be_lost(main: Branch, spark: SparkSession) -> None:
    table = main.table("t")
    table.write(spark.sql("select 1 as n, 'x' as s"))
    for expression in ("cast(1 as bigint)", "1.5D", "'1'", "true"):
        with pytest.raises(SchemaMismatch):
            table.write(spark.sql(f"select {expression} as n, 'x' as s"))
    table.write(spark.sql("select cast(2 as tinyint) as n, 'y' as s"))
    with pytest.raises(SchemaMismatch, match="n would be long instead of integer"):
        table.write(spark.sql("select 1L as n, 'x' as s"))
    with pytest.raises(SchemaMismatch, match="other column types"):
        table.write(spark.sql("select 'a' as n, 'x' as s"), schema="merge")
    assert table.to_spark(spark).count() == 2


@pytest.mark.everywhere
def test_columns_may_come_in_any_order(main: Branch, spark: SparkSession, numbers: DataFrame) -> None:
    for file_format in ("csv", "parquet"):
        table = main.table(file_format)
        table.write(numbers, file_format=file_format)
        table.write(numbers.select("code", "month", "id"))
        assert ids(table.to_spark(spark)) == sorted([*range(100)] * 2)


@pytest.mark.everywhere
def test_leftovers_in_the_prefix_never_become_visible(main: Branch, numbers: DataFrame) -> None:
    """What speculative tasks, failed attempts and zombies leave is in the folder, and not in the table."""
    table = main.table("t")
    table.write(numbers, partition_by="month")
    seen = names(main)
    address = table.files()[0].info.physical_address
    folder = address.rpartition("/")[0]
    blobs = main._core.resolver.namespace
    for name in ("_temporary/0/part-9.parquet", "part-00099-late.parquet", ".x.parquet", "_committed_1"):
        blobs.put(f"{folder}/{name}", b"zombie")
    assert names(main) == seen
    main.commit("t")
    assert names(main) == seen
    assert table.to_arrow().num_rows == 100


def test_jobs_are_described_and_the_description_is_put_back(
    main: Branch, spark: SparkSession, numbers: DataFrame
) -> None:
    spark.sparkContext.setJobDescription("the user's")
    seen: list[str | None] = []
    original = type(numbers).write.fget  # type: ignore[attr-defined]
    try:
        with pytest.MonkeyPatch.context() as patch:
            key = "spark.job.description"

            def write(frame: DataFrame) -> Any:
                seen.append(spark.sparkContext.getLocalProperty(key))
                return original(frame)

            patch.setattr(type(numbers), "write", property(write))
            main.table("t").write(numbers)
        assert seen == ["strandline: write t on nyc/main"]
        assert spark.sparkContext.getLocalProperty("spark.job.description") == "the user's"
    finally:
        spark.sparkContext.setLocalProperty("spark.job.description", None)  # type: ignore[arg-type]


@pytest.mark.everywhere
def test_settings_are_put_back_by_the_last_of_several_calls(spark: SparkSession) -> None:
    name = "spark.sql.files.maxRecordsPerFile"
    before = spark.conf.get(name)
    inside, outside = threading.Event(), threading.Event()

    def other() -> None:
        with held_settings(spark, {name: "7"}):
            inside.set()
            assert outside.wait(30)

    thread = threading.Thread(target=other)
    with held_settings(spark, {name: "7"}):
        thread.start()
        assert inside.wait(30)
    assert spark.conf.get(name) == "7"
    outside.set()
    thread.join()
    assert spark.conf.get(name) == before


def test_a_write_into_a_transaction_has_no_message_of_its_own(main: Branch, spark: SparkSession) -> None:
    frame = spark.range(3)
    with main.transaction("job", "the one that counts") as tx:
        with pytest.raises(UsageError, match="no message or writer of its own"):
            tx.table("t").write(frame, message="mine")
        with pytest.raises(UsageError, match="no message or writer of its own"):
            tx.table("t").write(frame, message="mine", writer="me")
        with pytest.raises(UsageError, match="message="):
            tx.table("t").write(frame, writer="me")
        tx.table("t").write(frame)
    with pytest.raises(UsageError, match="message="):
        main.table("t").write(frame, writer="me")
    assert main.get_commit().message == "the one that counts"
    assert main.table("t").to_spark(spark).count() == 3


def test_files_that_vanish_before_their_statistics_are_read_are_an_error_of_ours(
    main: Branch, numbers: DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the driver was declared dead, and the collector takes what it wrote."""
    blobs = main._core.resolver.namespace

    def gone(key: str) -> object:
        raise BlobNotFound(key)

    monkeypatch.setattr(blobs, "open_read", gone)
    with pytest.raises(ObjectMissing, match="are gone"):
        main.table("t").write(numbers)
    monkeypatch.undo()
    assert not main.table("t").exists()


def test_a_collated_column_is_read_as_it_was_written(main: Branch, spark: SparkSession) -> None:
    """PySpark changes the schema that it is given to read: a record lost what its texts compare by."""
    folded = spark.createDataFrame([(1, "a"), (2, "B")], "id long, name string").select(
        "id", F.collate("name", "UTF8_LCASE").alias("name")
    )
    table = main.table("t")
    for _ in range(2):
        table.write(folded)
        assert table.to_spark(spark).schema["name"].dataType.simpleString() == "string collate UTF8_LCASE"
    assert table.to_spark(spark, where="name = 'b'").count() == 2
    assert table.record == decode_record(encode_record(table.record), "t")
    with pytest.raises(UsageError, match="collation"):
        main.table("u").write(folded, partition_by="name")
    assert not main.table("u").exists()


def test_a_condition_that_changes_by_itself_replaces_nothing(
    main: Branch, spark: SparkSession, numbers: DataFrame
) -> None:
    table = main.table("t")
    table.write(numbers)
    with pytest.raises(UsageError, match="another value each time"):
        table.write(numbers, mode="overwrite", where="rand() < 0.5")
    assert ids(table.to_spark(spark)) == list(range(100))
    assert table.to_spark(spark, where="rand() < 2").count() == 100
