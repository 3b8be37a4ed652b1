"""Tables on S3A: how many requests they cost, and Avro, whose package this session has."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from strandline.repository.branch import Branch

pytestmark = [
    pytest.mark.spark,
    pytest.mark.s3,
]
FILES = 24


def requests(log: Path, since: int) -> Counter[str]:
    """How often each operation was asked for, by the server's own log."""
    lines = log.read_text().splitlines()[since:]
    return Counter(found[1] for line in lines if (found := re.search(r" s3_(\w+) ", line)))


def count(log: Path) -> int:
    return len(log.read_text().splitlines())


def test_a_transaction_costs_a_bounded_number_of_requests_and_no_copy(
    spark: SparkSession, main: Branch, s3_log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A rename on S3 is a copy of all bytes: the magic committer and our own prefix need none."""
    frame = spark.range(0, 240, 1, FILES)
    main.table("warm").write(frame)
    before = count(s3_log)
    with main.transaction("nightly") as tx:
        tx.table("t").write(frame)
    wrote = requests(s3_log, before)
    before = count(s3_log)
    assert main.table("t").to_spark(spark).count() == 240
    read = requests(s3_log, before)
    with capsys.disabled():
        print(f"\n{FILES} files: written with {dict(wrote)}, planned and read with {dict(read)}")
    assert tx.result.files == FILES
    assert wrote["CompleteMultipartUpload"] == FILES  # the magic committer's files appear where they belong
    assert not [name for name in wrote if "Copy" in name]
    assert sum(wrote.values()) <= 20 * FILES + 120
    assert sum(read.values()) <= 8 * FILES + 60


def test_avro_with_its_package(spark: SparkSession, main: Branch) -> None:
    frame = spark.range(0, 30, 1, 3).selectExpr("id", "cast(id % 3 as int) as k", "concat('n', id) as name")
    table = main.table("t")
    table.write(frame, file_format="avro", partition_by="k")
    table.write(spark.createDataFrame([(99, 1, "last")], "id long, k int, name string"))
    assert table.to_spark(spark, where="k = 1 and id > 20").count() == 4
    assert {file.relative.rpartition(".")[2] for file in table.files()} == {"avro"}
    assert all(file.statistics is not None for file in table.files())
