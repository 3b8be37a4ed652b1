"""Conditions against Spark, which is the judge: whatever strandline says of a row or of a file, Spark says so, too.

`make fuzz CONDITIONS=5000` tries more of them, from another seed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from strandline.errors import UsageError
from strandline.repository.branch import Branch
from strandline.tables.condition import can_match, must_match
from strandline.tables.condition_text import condition_of_column, parse_condition
from strandline.tables.scan import Pruning
from strandline.tables.table import Table
from tests.spark.conditions import Grammar, rows

pytestmark = pytest.mark.spark

COUNT = int(os.environ.get("STRANDLINE_TEST_CONDITIONS") or 300)
SEED = int(os.environ.get("STRANDLINE_TEST_CONDITIONS_SEED") or 1)
BATCH = 50
ROOT = Path(__file__).parents[2]
Truths = dict[int, bool | None]
"""By the id of a row, what Spark says of it."""

SPARKS_OWN = ("\\", "BD", "L ", "ANY", "SOME", "ALL", "ESCAPE", "COLLATE", "`", "<=>", "! ", "'NaN'", "isnan")
"""What DuckDB reads otherwise or not at all: escapes in strings, suffixes of numbers, words of Spark's own; and a null
is no NaN to Spark, and to DuckDB it may be."""


@dataclass
class Fixture:
    table: Table
    frame: DataFrame
    held: pa.Table


@pytest.fixture(scope="module")
def written(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Fixture]:
    import strandline

    with strandline.open(tmp_path_factory.mktemp("conditions"), create=True, synced=False) as lake:
        main = lake.repository("nyc", create=True).branch("main")
        table = main.table("t")
        table.write(spark.sql(rows()).repartitionByRange(8, "id"), partition_by="part")
        frame = table.to_spark(spark).cache()
        yield Fixture(table, frame, table.dataset().to_table())
        frame.unpersist()


def judged_by_spark(frame: DataFrame, texts: Sequence[str]) -> dict[str, Truths]:
    """What each condition is for each row; conditions that Spark refuses, or fails with, are left out."""
    fit = []
    for text in texts:
        try:
            fit.append((text, frame.select(F.expr(text).cast("boolean").alias("c")).schema and F.expr(text)))
        except PySparkException:
            continue
    found: dict[str, Truths] = {}
    for first in range(0, len(fit), BATCH):
        found |= _batch(frame, fit[first : first + BATCH])
    return found


def _batch(frame: DataFrame, fit: list[tuple[str, Any]]) -> dict[str, Truths]:
    try:
        got = frame.select("id", *[column.alias(f"c{at}") for at, (_, column) in enumerate(fit)]).collect()
    except PySparkException:
        if len(fit) == 1:
            return {}  # such as a text that is no number, which Spark casts row by row
        half = len(fit) // 2
        return _batch(frame, fit[:half]) | _batch(frame, fit[half:])
    return {text: {row["id"]: row[at + 1] for row in got} for at, (text, _) in enumerate(fit)}


def check(held: Fixture, text: str, truth: Truths, seen: Counter[str]) -> str:
    """What strandline says differently of a condition; empty if nothing."""
    try:
        condition = parse_condition(text, held.table.record)
    except UsageError as error:
        return f"refused: {error}"
    pruning = Pruning(held.table.record, condition)
    for file in held.table.files():
        ids = ids_of(held, file.relative)
        spans = pruning.spans(file)
        values = {truth[id] for id in ids}
        judged = condition.judge(spans)
        for value, may_be in ((True, judged.true), (False, judged.false), (None, judged.null)):
            if value in values and not may_be:
                return f"{file.relative} cannot be {value}, it is said, and rows of it are"
        if True in values and not can_match(condition, spans):
            return f"{file.relative} is left out"
        if must_match(condition, spans) and values != {True}:
            return f"all of {file.relative} is said to match"
    try:
        filtered = held.held.filter(condition.arrow()).column("id").to_pylist()
    except UsageError:
        seen["only Spark"] += 1
        return ""
    seen["understood"] += 1
    expected = sorted(id for id, value in truth.items() if value)
    return "" if sorted(filtered) == expected else f"Arrow gives {sorted(filtered)}, Spark {expected}"


_ids: dict[tuple[int, str], list[int]] = {}


def ids_of(held: Fixture, relative: str) -> list[int]:
    key = (id(held.table), relative)
    if key not in _ids:
        (file,) = [one for one in held.table.files() if one.relative == relative]
        blobs, name = held.table.ref._core.resolver.resolve(file.info.physical_address)
        with blobs.open_read(name) as opened:
            import pyarrow.parquet as pq

            _ids[key] = pq.read_table(opened, columns=["id"]).column("id").to_pylist()
    return _ids[key]


@pytest.mark.timeout(3_600)
def test_conditions_mean_what_they_mean_to_spark(written: Fixture) -> None:
    texts = Grammar(SEED).conditions(COUNT)
    truths = judged_by_spark(written.frame, texts)
    seen: Counter[str] = Counter()
    wrong = {text: found for text, truth in truths.items() if (found := check(written, text, truth, seen))}
    assert wrong == {}
    assert len(truths) > COUNT * 0.6  # the grammar makes conditions, not errors
    assert seen["understood"] > COUNT * 0.15
    assert seen["only Spark"] > COUNT * 0.1


NEGATED = [
    "NOT LIKE 'a%'",
    "LIKE 'a%'",
    "NOT LIKE '%c'",
    "NOT ILIKE 'A%'",
    "NOT LIKE ANY ('a%', 'b')",
    "NOT RLIKE '^a'",
]


@pytest.mark.parametrize("negated", NEGATED)
def test_not_like_is_not_like(written: Fixture, spark: SparkSession, negated: str) -> None:
    where = f"s {negated}"
    expected = sorted(row["id"] for row in written.frame.where(where).collect())
    assert sorted(row["id"] for row in written.table.to_spark(spark, where=where).collect()) == expected
    left = {file.relative for file in written.table.files(where=where)}
    assert {id for relative in left for id in ids_of(written, relative)} >= set(expected)
    try:
        assert sorted(written.table.to_arrow(where).column("id").to_pylist()) == expected
        assert sorted(written.table.to_polars(where)["id"].to_list()) == expected
    except UsageError as error:
        assert "understood by Spark only" in error.what  # noqa: PT017 - either is right, and never other rows


def test_not_like_replaces_the_rows_that_are_not_like(main: Branch, spark: SparkSession) -> None:
    table = main.table("t")
    frame = spark.createDataFrame([("abc", 1), ("b", 2), ("c", 3), (None, 4)], "s STRING, n INT")
    table.write(frame.coalesce(1))
    table.write(spark.createDataFrame([("new", 9)], "s STRING, n INT"), mode="overwrite", where="s NOT LIKE 'a%'")
    found = sorted((row["s"], row["n"]) for row in table.to_spark(spark).where("s is not null").collect())
    assert found == [("abc", 1), ("new", 9)]
    assert table.to_spark(spark).where("s is null").count() == 1


def test_a_condition_of_a_column_reads_like_its_sql(written: Fixture) -> None:
    columns = [
        F.col("s").like("a%"),
        ~F.col("s").like("a%"),
        F.col("i").isin(1, 2) & ~(F.col("b")),
        ~F.col("i").between(1, 3),
        F.col("d") > 2.5,
        F.col("s").isNull() | (F.col("m") <= 1),
        ~F.col("s").isNotNull(),
    ]
    for column in columns:
        truth = {row["id"]: row["c"] for row in written.frame.select("id", column.alias("c")).collect()}
        condition = condition_of_column(str(column), written.table.record, "UTC")
        if condition is None:
            continue
        pruning = Pruning(written.table.record, condition)
        for file in written.table.files():
            if any(truth[id] for id in ids_of(written, file.relative)):
                assert can_match(condition, pruning.spans(file))


def test_duckdb_agrees_on_the_plain_part_of_the_grammar(written: Fixture) -> None:
    """A second judge, so that Spark's interface here is not taken at its word; what differs is in a list above."""
    import duckdb

    plain = [
        text for text in Grammar(SEED + 1).conditions(COUNT, depth=1) if not any(word in text for word in SPARKS_OWN)
    ]
    held = written.held
    asked, wrong = 0, {}
    for text, truth in judged_by_spark(written.frame, plain).items():
        try:
            got = {id for id, value in duckdb.execute(f"select id, ({text}) from held").fetchall() if value}
        except duckdb.Error:
            continue
        asked += 1
        expected = {id for id, value in truth.items() if value}
        if got != expected:
            wrong[text] = (sorted(got - expected), sorted(expected - got))
    assert held.num_rows
    assert asked > COUNT * 0.3
    assert wrong == {}


def test_the_oldest_parser_that_is_allowed_reads_the_same(written: Fixture) -> None:
    """What each condition is read as, by the parser that is locked and by the oldest one that pyproject.toml allows."""
    place = ROOT / ".cache" / "sqlglot-oldest"
    texts = [*Grammar(SEED).conditions(COUNT), *(f"s {one}" for one in NEGATED)]
    truths = judged_by_spark(written.frame, texts)
    script = """
import json, sys, pickle
import sqlglot
from strandline.errors import UsageError
from strandline.tables.condition_text import parse_condition
record, texts = pickle.load(sys.stdin.buffer)
found = []
for text in texts:
    try:
        found.append(parse_condition(text, record))
    except UsageError:
        found.append(None)
sys.stdout.buffer.write(pickle.dumps((sqlglot.__version__, found)))
"""
    import pickle

    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(place), str(ROOT / "src")])}
    given = pickle.dumps((written.table.record, list(truths)))
    run = subprocess.run([sys.executable, "-c", script], input=given, env=environment, capture_output=True, check=True)
    version, conditions = pickle.loads(run.stdout)
    assert version.startswith("27.")
    wrong = {}
    for (text, truth), condition in zip(truths.items(), conditions, strict=True):
        if condition is None:
            continue
        try:
            filtered = sorted(written.held.filter(condition.arrow()).column("id").to_pylist())
        except UsageError:
            continue
        if filtered != sorted(id for id, value in truth.items() if value):
            wrong[text] = filtered
    assert wrong == {}
