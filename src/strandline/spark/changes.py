"""What changed in a table of a branch: files, or the rows in them, incrementally and each once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import reduce

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from strandline.errors import CommitExpired, InvalidRef, RefNotFound, TableNotFound, UsageError
from strandline.repository.branch import Branch
from strandline.repository.feed import SCHEMA
from strandline.repository.repository import Repository
from strandline.results.rows import ObjectInfo
from strandline.shards.rows.codec import DIFF, TIME
from strandline.shards.rows.updates import update_schema
from strandline.spark.read import FILE, metadata_path, quoted, scan_files, scan_in_parts
from strandline.spark.row_diff import CHANGE, check_key, refuse_taken
from strandline.tables.record import TableRecord
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
    key: Sequence[str] | None = None,
) -> DataFrame:
    """What changed below a path of a branch after a move of its head.

    Args:
        since: the number of a move, from `_time` of an earlier call; None for all, what was there at first as well.
        rows: of a table, the rows that came (`_diff` 1) and went (`_diff` -1) in all, instead of the files; a row that
            is in a file that came and in one that went is there twice, and adds up to nothing.
        key: columns that name a row of a table: its rows as they are now, one for each key that changed.

    Returns:
        Files: `path`, `change` ("added" or "removed"), `commit`, `author`, the object, `_time` and `_diff`. Or rows:
        the columns of the table, and `_diff`. Or with a key: the columns of the table, of which a row that went has
        those of the key alone, `_change` ("upsert" or "delete"), and `_commit` and `_time` of its last change. Rows
        that were only written again, as by `rewrite_files`, did not change; a key that came and went is a "delete".

    Raises:
        TableNotFound: `rows` or a `key` of a path that is not a table.
        UsageError: the table has no such column.
        BeforeSince: what came after that move was forgotten: all streams of the feed have read it.
        Conflict, CommitExpired: changes in between are not known any more.
    """
    if not isinstance(repository, Repository):
        raise UsageError(f"{repository!r} is not a repository.", next="Give what lake.repository(name) made.")
    found = repository.branch(branch) if isinstance(branch, str) else branch
    prefix = path if not path or path.endswith("/") else path + "/"
    told = found.feed.changes(prefix, since)
    if key is not None:
        return consolidated(spark, found.table(path.rstrip("/")), told, key)
    if not rows:
        schema = from_arrow_schema(update_schema(SCHEMA))
        return spark.createDataFrame(told.to_pylist(), schema)
    return rows_of(spark, found.table(path.rstrip("/")), told)


def rows_of(spark: SparkSession, table: Table, told: pa.Table) -> DataFrame:
    """The rows that came and went with files, by what a feed told of them.

    In `foreachBatch` of a stream of changes: `rows_of(spark, table, batch.toArrow())`. The rows of a file are what they
    were when it came or went, though the table may have other columns now, or be gone.
    """
    records = _Records(table)
    net: Counter[tuple[object, ...]] = Counter()
    commits: dict[tuple[tuple[object, ...], int], str] = {}
    columns = [told.column(name).to_pylist() for name in (*OBJECT, "change", "commit")]
    for *file, change, commit in zip(*columns, strict=True):
        sign = 1 if change == "added" else -1
        net[tuple(file)] += sign
        commits[tuple(file), sign] = commit
    groups: list[tuple[TableRecord, int, list[ObjectInfo]]] = [(records.newest(told), 1, [])]
    for values, count in net.items():
        if count:
            sign = 1 if count > 0 else -1
            record = records.at(commits[values, sign], sign)
            for known, known_sign, infos in groups:
                if (known, known_sign) == (record, sign):
                    infos.append(_info(values))
                    break
            else:
                groups.append((record, sign, [_info(values)]))
    frames = []
    for record, sign, infos in groups:
        files: list[TableFile] = list(data_files(infos, table.prefix, record))
        frames.append(scan_files(spark, table, record, files).withColumn(DIFF, F.lit(sign).cast("bigint")))
    return reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), frames)


COMMIT = "_commit"


def consolidated(spark: SparkSession, table: Table, told: pa.Table, key: Sequence[str]) -> DataFrame:
    """One row for each key that changed, by what a feed told of files: what it is after the last of these changes.

    In a stream: `consolidated(spark, table, batch.toArrow(), ["id"])`, in `foreachBatch`.

    Raises:
        UsageError: the table has no such column, or its type cannot be a key.
    """
    records = _Records(table)
    newest = records.newest(told)
    names = check_key(newest, key)
    refuse_taken(newest, (DIFF, CHANGE, COMMIT, TIME, FILE))
    events: dict[tuple[int, tuple[object, ...]], list[tuple[int, int, str]]] = {}
    known: list[TableRecord] = [newest]
    columns = [told.column(name).to_pylist() for name in (*OBJECT, "change", "commit", TIME)]
    for *file, change, commit, time in zip(*columns, strict=True):
        sign = 1 if change == "added" else -1
        record = records.at(commit, sign)
        if record not in known:
            known.append(record)
        events.setdefault((known.index(record), tuple(file)), []).append((time, sign, commit))
    frames = [_no_events(scan_files(spark, table, newest, []))]
    for number, record in enumerate(known):
        held = {_info(file): found for (at, file), found in events.items() if at == number}
        files: list[TableFile] = list(data_files(held, table.prefix, record))
        for some, frame in scan_in_parts(spark, table, record, files, with_file=True) if files else ():
            frames.append(frame.join(F.broadcast(_events(spark, table, some, held)), FILE).drop(FILE))
    every = reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), frames)
    # without the commits: the feed gives one time to all that came before `since`, where a row may have come and gone
    shown = [name for name in every.columns if name not in (DIFF, COMMIT)]
    newest_of = F.max_by(COMMIT, DIFF).alias(COMMIT)
    net = every.groupBy(*map(quoted, shown)).agg(F.sum(DIFF).alias(DIFF), newest_of).where(F.col(DIFF) != 0)
    last = Window.partitionBy(*map(quoted, names)).orderBy(F.desc(TIME), F.desc(DIFF))
    newest_only = net.withColumn("__sl_rank", F.row_number().over(last)).where("__sl_rank = 1")
    is_there = F.col(DIFF) > 0
    rows = [quoted(name) if name in names else F.when(is_there, quoted(name)).alias(name) for name in newest.names]
    kind = F.when(is_there, "upsert").otherwise("delete").alias(CHANGE)
    return newest_only.select(*rows, kind, F.col(COMMIT), F.col(TIME))


def _no_events(frame: DataFrame) -> DataFrame:
    kinds = {TIME: "bigint", DIFF: "bigint", COMMIT: "string"}
    return frame.select("*", *(F.lit(None).cast(kind).alias(name) for name, kind in kinds.items()))


def _events(
    spark: SparkSession,
    table: Table,
    files: Sequence[TableFile],
    held: Mapping[ObjectInfo, Sequence[tuple[int, int, str]]],
) -> DataFrame:
    """When files came and went, by their paths as Spark spells them."""
    core = table.ref._core
    rows = [(metadata_path(core, file), *event) for file in files for event in held[file.info]]
    columns = [pa.array(values, kind) for values, kind in zip(zip(*rows, strict=True), _EVENT.types, strict=True)]
    return spark.createDataFrame(pa.table(columns, schema=_EVENT))


_EVENT = pa.schema([(FILE, pa.string()), (TIME, pa.int64()), (DIFF, pa.int64()), (COMMIT, pa.string())])


class _Records:
    """What a table was at the commits of a feed: files that came are of the commit, those that went of the one
    before."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._now = table._find_record()[1]
        self._known: dict[tuple[str, int], TableRecord | None] = {}

    def newest(self, told: pa.Table) -> TableRecord:
        """What the table is now; if it is gone, what it was at the last of some changes."""
        if self._now is not None:
            return self._now
        for commit in reversed(dict.fromkeys(told.column("commit").to_pylist())):
            for sign in (1, -1):
                found = self._at(commit, sign)
                if found is not None:
                    return found
        raise TableNotFound(
            f"{self._table.path!r} is not a table of {self._table.ref!r}.",
            next="Leave out `rows` and `key`: then its files are listed.",
        )

    def at(self, commit: str, sign: int) -> TableRecord:
        found = self._at(commit, sign) or self._at(commit, -sign) or self._now
        if found is None:
            raise TableNotFound(
                f"{self._table.path!r} was no table at the commit {commit}.", next="Leave `rows` away to see its files."
            )
        return found

    def _at(self, commit: str, sign: int) -> TableRecord | None:
        if (commit, sign) not in self._known:
            try:
                ref = self._table.ref._core.open(commit if sign > 0 else f"{commit}~1")
                self._known[commit, sign] = ref.table(self._table.path)._find_record()[1]
            except (InvalidRef, RefNotFound, CommitExpired):  # the first commit has none before; old ones expire
                self._known[commit, sign] = None
        return self._known[commit, sign]


def _info(values: tuple[object, ...]) -> ObjectInfo:
    found = dict(zip(OBJECT, values, strict=True))
    moment = found.pop("modified_at")
    stamp = pa.scalar(moment, pa.timestamp("us", "UTC")).value
    return ObjectInfo(modified_at_us=stamp, **found)  # type: ignore[arg-type]
