"""What changed in a table of a branch: files, or the rows in them, incrementally and each once."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from strandline.errors import TableNotFound
from strandline.repository.branch import Branch
from strandline.repository.feed import SCHEMA
from strandline.repository.repository import Repository
from strandline.repository.results import ObjectInfo
from strandline.shards.codec import DIFF
from strandline.shards.updates import update_schema
from strandline.spark.read import scan_files
from strandline.tables.scan import TableFile, data_files
from strandline.tables.table import Table

OBJECT = ("path", "physical_address", "size", "checksum", "modified_at", "content_type", "user_metadata")


def changes(
    spark: SparkSession,
    repository: Repository,
    branch: Branch | str,
    path: str,
    *,
    since: int | None = None,
    rows: bool = False,
) -> DataFrame:
    """What changed below a path of a branch after a move of its head.

    Args:
        since: the number of a move, from `_time` of an earlier call; None for all, what was there at first as well.
        rows: of a table, the rows that came (`_diff` 1) and went (`_diff` -1) in all, instead of the files; a row that
            is in a file that came and in one that went is there twice, and adds up to nothing.

    Returns:
        Files: `path`, `change` ("added" or "removed"), `commit`, `author`, the object, `_time` and `_diff`. Or rows:
        the columns of the table, and `_diff`.

    Raises:
        TableNotFound: `rows` of what is no table.
        Conflict, CommitExpired: changes in between are not known any more.
    """
    found = repository.branch(branch) if isinstance(branch, str) else branch
    prefix = path if not path or path.endswith("/") else path + "/"
    told = found.feed.changes(prefix, since)
    if not rows:
        schema = from_arrow_schema(update_schema(SCHEMA))
        return spark.createDataFrame(told.to_pylist(), schema)
    return rows_of(spark, found.table(path.rstrip("/")), told)


def rows_of(spark: SparkSession, table: Table, told: pa.Table) -> DataFrame:
    """The rows that came and went with files, by what a feed told of them.

    In `foreachBatch` of a stream of changes: `rows_of(spark, table, batch.toArrow())`.
    """
    record = table.find_record()[1]
    if record is None:
        raise TableNotFound(f"{table.path!r} is no table of {table.ref!r}.", next="Leave `rows` away to see its files.")
    net: Counter[tuple[object, ...]] = Counter()
    columns = [told.column(name).to_pylist() for name in OBJECT]
    for *values, change in zip(*columns, told.column("change").to_pylist(), strict=True):
        net[tuple(values)] += 1 if change == "added" else -1
    frames = []
    for sign in (1, -1):
        infos = [_info(values) for values, count in net.items() if count * sign > 0]
        files: list[TableFile] = list(data_files(infos, table.prefix, record))
        frames.append(scan_files(spark, table, record, files).withColumn(DIFF, F.lit(sign).cast("bigint")))
    return frames[0].unionByName(frames[1])


def _info(values: tuple[object, ...]) -> ObjectInfo:
    found = dict(zip(OBJECT, values, strict=True))
    moment = found.pop("modified_at")
    stamp = pa.scalar(moment, pa.timestamp("us", "UTC")).value
    return ObjectInfo(modified_at_us=stamp, **found)  # type: ignore[arg-type]
