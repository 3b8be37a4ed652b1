"""Metadata as data frames: entries, differences, history, files, locks, transactions, and storage use.

Ranges are Parquet, so Spark reads them itself: the entries and differences of a very large tree never pass through the
driver, which reads nodes alone. What is staged on a branch, and the records of locks and transactions, are small: the
driver reads them, and hands them to Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F

from strandline.blob import BlobStore, open_store
from strandline.core.repository_core import RepositoryCore
from strandline.errors import UsageError
from strandline.ids import check_path, check_prefix
from strandline.progress import no_progress
from strandline.repository.branch import Branch
from strandline.repository.refs.ref import Ref, as_ref, key_range
from strandline.repository.repository import Repository
from strandline.repository.upkeep.usage import SEPARATOR, check_depth, holdings, prefix_pattern, rows_of
from strandline.results.differences import ARROW_SCHEMA as DIFFERENCES
from strandline.results.differences import to_table
from strandline.spark.read import LISTING_PARALLELISM, LISTING_TASKS, explicit
from strandline.spark.session import described, held_settings, parallelism
from strandline.tables.table import Table
from strandline.tree.diff import Stretch, compare, stretches
from strandline.tree.range_file import RangeInfo
from strandline.tree.rows import Changes, concat
from strandline.tree.store import Tree, TreeStore

RANGES_PER_READ = 5_000
BROADCAST_ROWS = 100_000
STRETCHES_PER_TASK = 500
"""At most: some seconds of work, which is what is lost with an executor."""
CACHE_MAX_BYTES = 64 << 20
ENTRIES = (
    "path STRING, physical_address STRING, size BIGINT, checksum STRING, modified_at TIMESTAMP, content_type STRING, "
    "user_metadata STRING, etag STRING"
)
_SIDE = ENTRIES.partition(", ")[2]
_DIFF = "path STRING, kind STRING, " + ", ".join(
    f"{side}_{one}" for side in ("before", "after") for one in _SIDE.split(", ")
)


def entries(spark: SparkSession, ref: Ref, prefix: str = "") -> DataFrame:
    """The objects below a prefix, as `ref.list(prefix)` shows them at one instant; of a branch with what is staged.

    What is staged, and all that an open transaction shows, comes through this process.

    Raises:
        UsageError: workers of Spark could not read the files: the lake lies in this process.
        RangeLocked: a part of it may not be read by others.
    """
    _check(spark, ref)
    check_prefix(prefix)
    start, end = key_range(prefix)
    tree, changes = ref._layers(prefix)
    frame = range_rows(spark, ref._core.resolver.namespace, _ranges(ref._core, tree, start, end), ENTRIES)
    if start:
        frame = frame.where(F.col("path").startswith(F.lit(start)))
    return _overlaid(spark, frame, changes) if changes else frame


def _ranges(core: RepositoryCore, tree: Tree, start: str, end: str | None) -> list[RangeInfo]:
    found = []
    for info in core.stores.trees.ranges(tree, start):
        if end is not None and info.min_path >= end:
            break
        found.append(info)
    return found


def range_rows(
    spark: SparkSession, blobs: BlobStore, ranges: Sequence[RangeInfo], schema: str, *, with_file: bool = False
) -> DataFrame:
    """Rows of range files, read by Spark's own reader; on request with the names of their files."""
    if not ranges:
        return spark.createDataFrame([], schema)
    reader = strict_reader(spark, schema)
    urls = [explicit(blobs.spark_url(info.address)) for info in ranges]
    with held_settings(spark, {LISTING_PARALLELISM: LISTING_TASKS}):
        frames = [reader.parquet(*urls[at : at + RANGES_PER_READ]) for at in range(0, len(urls), RANGES_PER_READ)]
        if with_file:
            frames = [frame.select("*", F.col("_metadata.file_name").alias("file")) for frame in frames]
        return reduce(DataFrame.union, frames)


def strict_reader(spark: SparkSession, schema: str) -> DataFrameReader:
    """A reader of files, none of which may be left out, as a session may be set to do with what it cannot read."""
    reader = spark.read.schema(schema)
    for name in ("ignoreCorruptFiles", "ignoreMissingFiles"):
        reader = reader.option(name, "false")
    return reader


def _overlaid(spark: SparkSession, frame: DataFrame, changes: Sequence[Changes]) -> DataFrame:
    """Rows with changes over them."""
    rows = concat([one.rows for one in changes])
    kept = rows.filter(pa.array(~np.concatenate([one.deleted for one in changes])))
    touched = spark.createDataFrame(rows.select(["path"]))
    if len(rows) <= BROADCAST_ROWS:
        touched = F.broadcast(touched)
    return frame.join(touched, "path", "left_anti").unionByName(spark.createDataFrame(kept, ENTRIES))


def diff(spark: SparkSession, left: Ref, right: Ref | str, prefix: str = "") -> DataFrame:
    """What changes from one ref's commit to that of another one, as `left.diff(right, prefix).to_arrow()` has it.

    Ranges that both have are not read; the others are compared in tasks.
    """
    _check(spark, left)
    other = as_ref(left._core, right)
    check_prefix(prefix)
    start, end = key_range(prefix)
    core = left._core
    blobs = core.stores.trees.blobs
    if blobs.own is not blobs:  # a lake without its bytes reads them from another one's as well
        return spark.createDataFrame(left.diff(other, prefix).to_arrow(), _DIFF)
    before, after = (core.commits.tree(one._compared()) for one in (left, other))
    found = [_told(stretch) for stretch in stretches(core.stores.trees, before, after, start, end)]
    if not found:
        return spark.createDataFrame([], _DIFF)
    core.resolver.namespace.spark_url("_strandline")  # refuses a lake in memory
    rows = spark.createDataFrame(pa.table({"stretch": pa.array(found, pa.string())}))
    tasks = min(len(found), max(2 * parallelism(spark), len(found) // STRETCHES_PER_TASK))
    return rows.repartition(tasks).mapInArrow(_compares(blobs.url, start, end), _DIFF)


def _told(stretch: Stretch) -> str:
    return msgspec.json.encode(stretch).decode()


def _compares(url: str, start: str, end: str | None) -> Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]:
    """Compares ranges in a Python worker, which gets the address of the store and finds credentials where it runs."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        store = TreeStore(open_store(url), CACHE_MAX_BYTES)
        for batch in batches:
            for text in batch.column(0).to_pylist():
                found = compare(store, msgspec.json.decode(text, type=Stretch), start, end)
                if len(found):
                    yield from to_table(found).cast(DIFFERENCES).combine_chunks().to_batches()

    return run


def commits(spark: SparkSession, ref: Ref, **filters: Any) -> DataFrame:
    """The history of a ref, as `ref.log(**filters)` has it."""
    _check(spark, ref)
    return spark.createDataFrame(ref.log(**filters).to_arrow())


HISTORY = (
    "commit STRING, date TIMESTAMP, committer STRING, message STRING, kind STRING, size BIGINT, checksum STRING, "
    "physical_address STRING"
)


def history(spark: SparkSession, ref: Ref, path: str) -> DataFrame:
    """The commits that changed an object, newest first, each with what it made of it; kind is that of `diff`."""
    _check(spark, ref)
    check_path(path)
    return spark.createDataFrame(history_rows(ref, path), HISTORY)


def history_rows(ref: Ref, path: str) -> list[tuple[Any, ...]]:
    """The rows of `history`."""
    trees, commits = ref._core.stores.trees, ref._core.commits
    found = []
    for one in ref.log(paths=path):
        after = trees.find(commits.tree(one.id), path)
        before = trees.find(commits.tree(one.parents[0]), path) if one.parents else None
        kind = "removed" if after is None else "added" if before is None else "changed"
        told = (None, None, None) if after is None else (after.size, after.checksum, after.physical_address)
        found.append((one.id, one.date, one.committer, one.message, kind, *told))
    return found


FILES = (
    "path STRING, physical_address STRING, size BIGINT, modified_at TIMESTAMP, partition MAP<STRING, STRING>, "
    "rows BIGINT, columns MAP<STRING, STRUCT<least: STRING, greatest: STRING, nulls: BIGINT>>"
)


def files(spark: SparkSession, table: Table) -> DataFrame:
    """The data files of a native table, with their partitions and statistics.

    Iceberg tables have this as `<table>.files` in a catalog of theirs.
    """
    if not isinstance(table, Table):
        raise UsageError(f"files takes a table, not {type(table).__name__}.", next="Give what ref.table(path) made.")
    _check(spark, None)
    return spark.createDataFrame(file_rows(table), FILES)


def file_rows(table: Table) -> list[tuple[Any, ...]]:
    """The rows of `files`; bounds as text, as they are on record."""
    found = []
    for one in table._files(table.record):
        info, statistics = one.info, one.statistics
        columns = None
        if statistics is not None:
            columns = {
                name: (_text(low), _text(high), nulls) for name, (low, high, nulls) in statistics.columns.items()
            }
        rows = None if statistics is None else statistics.rows
        found.append((info.path, info.physical_address, info.size, info.modified_at, one.partition, rows, columns))
    return found


def _text(bound: Any) -> str | None:
    return None if bound is None else str(bound)


def storage_use(spark: SparkSession, repository: Repository, *, depth: int = 1) -> DataFrame:
    """What a repository's objects take, as `repository.storage_use(depth=…)` has it, counted by Spark."""
    _check(spark, repository)
    if not isinstance(repository, Repository):
        raise UsageError(f"{repository!r} is not a repository.", next="Give what lake.repository(name) made.")
    check_depth(depth)
    core = repository._core
    held = holdings(core, no_progress)
    if not held.ranges:
        return spark.createDataFrame(rows_of(held, {}, {}).to_arrow())
    infos, numbers = zip(*held.ranges, strict=True)
    files = [info.address.rpartition("/")[2] for info in infos]
    groups_of = spark.createDataFrame(pa.table({"file": pa.array(files), "group": pa.array(numbers, pa.int64())}))
    schema = "path STRING, physical_address STRING, size BIGINT"
    with described(spark, f"strandline: what {core.name} takes"):
        rows = range_rows(spark, core.resolver.namespace, infos, schema, with_file=True).join(
            F.broadcast(groups_of), "file"
        )
        rows = rows.where(~F.col("physical_address").contains("://"))
        groups = F.array_join(F.transform(F.array_sort(F.collect_set("group")), lambda g: g.cast("string")), SEPARATOR)
        holders = rows.groupBy("physical_address").agg(groups.alias("groups"), F.max("size").alias("size"))
        prefix = F.regexp_replace("path", prefix_pattern(depth), "$1").alias("prefix")
        below = rows.groupBy(prefix, "physical_address").agg(F.max("size").alias("size"))
        found = [
            {row[0]: (row[1], row[2]) for row in frame.groupBy(name).agg(F.count("size"), F.sum("size")).collect()}
            for frame, name in ((holders, "groups"), (below, "prefix"))
        ]
    return spark.createDataFrame(rows_of(held, *found).to_arrow())


def locks(spark: SparkSession, branch: Branch) -> DataFrame:
    """The locks of a branch, a row a range; an end of null lies behind all paths."""
    _check_branch(spark, branch)
    return spark.createDataFrame(branch.locks.to_arrow())


def transactions(spark: SparkSession, branch: Branch) -> DataFrame:
    """The transactions that are on the record of a branch, in the states that it gives them."""
    _check_branch(spark, branch)
    return spark.createDataFrame(branch.transactions.to_arrow())


def _check_branch(spark: Any, branch: Any) -> None:
    _check(spark, branch)
    if not isinstance(branch, Branch):
        raise UsageError(f"{branch!r} is not a branch.", next="Give a branch, which alone has them.")


def _check(spark: Any, handle: Any) -> None:
    if not hasattr(spark, "createDataFrame"):
        raise UsageError(f"{type(spark).__name__} is not a Spark session.", next="Give the session first.")
    if handle is not None and not isinstance(handle, Ref | Repository):
        raise UsageError(
            f"{handle!r} is not a ref or a repository.",
            next='Give a handle, such as lake.repository("nyc").branch("main").',
        )
