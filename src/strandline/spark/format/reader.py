"""Reading a table by Python workers: all of it at a moment, or the rows of files that come to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from strandline.blob import Resolver, open_store
from strandline.branch.commits import Commit
from strandline.errors import Conflict, TableNotFound, UsageError
from strandline.lake import Lake
from strandline.results.rows import ObjectInfo
from strandline.spark.format.options import FOLLOWING, READING, opened, refuse_other_types, refuse_unknown
from strandline.spark.session import refuse_two_stores
from strandline.tables.condition import Condition
from strandline.tables.frames import Scan, rows_of
from strandline.tables.history import Mark, decode_mark
from strandline.tables.layout import folder_of
from strandline.tables.record import TableRecord
from strandline.tables.rewriting import new_beside
from strandline.tables.scan import TableFile, data_files
from strandline.tables.table import Table

SPLIT_BYTES = 128 << 20
"""Small files share a task up to this size, as in Spark's own readers."""


@dataclass
class FilesPartition(InputPartition):
    """Files of a table, with all that a worker needs to read them but the keys of the store."""

    url: str
    record: TableRecord
    files: Sequence[TableFile]
    condition: Condition | None
    place: str
    columns: Sequence[str]


def partitions_of(
    table: Table, record: TableRecord, files: Sequence[TableFile], condition: Condition | None, columns: Sequence[str]
) -> Sequence[InputPartition]:
    """Files as tasks; one task without files if there are none."""
    refuse_two_stores(table.ref._core)
    url, place = table.ref._core.resolver.namespace.url, table._describe()
    return [FilesPartition(url, record, part, condition, place, columns) for part in _split(files) or [[]]]


def read_partition(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The rows of a task, in an executor."""
    assert isinstance(partition, FilesPartition)
    place: Callable[[], str] = partial(str, partition.place)
    resolver = Resolver(open_store(partition.url))
    scan = Scan(resolver, partition.record, partition.files, place, partition.condition, partition.columns)
    for batch in rows_of(scan):
        if batch.num_rows:
            yield batch


class TableReader(DataSourceReader):
    """Rows of a table at the moment when the query is planned.

    Args:
        schema: the columns that are read: all of the table's, or those that the user gave.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = dict(options)
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        refuse_unknown(self._options, READING)
        lake, table = opened(self._options)
        with lake:
            where = self._options.get("where") or None
            record, files, condition = table._chosen(where, None)
            refuse_other_types(record, self._schema, table)
            return partitions_of(table, record, files, condition, self._schema.names)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition)


Offset = dict[str, str]
"""How far a stream has come: "commit" is the id of one, "" before the first; "table" is the place that it is of."""


class TableStreamReader(DataSourceStreamReader):
    """Rows of the files that come to a table, commit by commit or several at once: each file is read once.

    An offset names a commit, so a batch that is run again has the same rows.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = dict(options)
        self._schema = schema
        self._may_remove = options.get("removals") == "ignore"

    def _opened(self) -> tuple[Lake, Table]:
        """The lake and the table, after a look at the options: an error that came earlier, Spark would not show."""
        refuse_unknown(self._options, FOLLOWING)
        removals = self._options.get("removals") or "fail"
        if removals not in ("fail", "ignore"):
            raise UsageError(f"removals {removals!r} is unknown.", next="Use fail or ignore.")
        return opened(self._options)

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        start = self._options.get("start") or ""
        lake, table = self._opened()
        with lake:
            if not start:
                return _offset(table, "")
            ref = table.ref if start == "now" else table.ref._other(start)
            return _offset(table, ref.commit_id)

    def latestOffset(self) -> Offset:  # noqa: N802 - Spark's name
        lake, table = self._opened()
        with lake:
            return _offset(table, table.ref.commit_id)

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        if start["table"] != end["table"]:
            raise UsageError(
                f"The checkpoint is of a stream of {start['table']!r}, and this one is of {end['table']!r}.",
                next="Give each stream a checkpoint of its own.",
            )
        if start["commit"] == end["commit"]:
            return []
        lake, followed = self._opened()
        with lake:
            table = Table(followed.ref._other(end["commit"]), followed.path)
            record, files = _all_files(table) if not start["commit"] else self._came(table, start["commit"])
            if record is None or not files:
                return []
            refuse_other_types(record, self._schema, table)
            return partitions_of(table, record, files, None, self._schema.names)

    def _came(self, table: Table, start: str) -> tuple[TableRecord | None, list[TableFile]]:
        """The files that came since a commit, step by step: some may be gone again, rewritten together. And what the
        table was at the end, or before it went."""
        found: list[TableFile] = []
        record: TableRecord | None = None
        for left, right in pairwise(_steps(table, start)):
            before, after = (Table(table.ref._other(commit), table.path) for commit in (left, right))
            came: list[ObjectInfo] = []
            went: list[ObjectInfo] = []
            for change in before.ref.diff(right, table.prefix):
                if change.after is not None:
                    came.append(change.after)
                if change.before is not None:
                    went.append(change.before)
            if not came and not went:
                continue
            (_, gone), (now, new) = _data_files(before, went), _data_files(after, came)
            record = now or record
            if gone and (beside := new_beside(_marks(table, came), gone, new)) is not None:
                found += beside
                continue
            if gone and not self._may_remove:
                raise Conflict(
                    f"{gone[0].info.path!r} was removed or replaced by the commit {right[:12]}, and a stream of new "
                    "files cannot take rows back.",
                    paths=[gone[0].info.path],
                    next='Follow the rows that come and go with the format "strandline.changes", or give '
                    '.option("removals", "ignore"): then rows of replaced files come again.',
                )
            found += new
        return table._find_record()[1] or record, found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition)

    def commit(self, end: Offset) -> None:
        """Nothing: commits that offsets name are kept as others are, by the retention rule of the repository."""

    def stop(self) -> None:
        """Nothing is held."""


def _offset(table: Table, commit: str) -> Offset:
    return {"commit": commit, "table": table.place}


def _steps(table: Table, start: str) -> list[str]:
    """The commits from one to that of the table, along first parents; those two alone if it is no ancestor."""
    steps = [commit.id for commit in _until(table, start)]
    return [start, *reversed(steps)] if steps else [start, table.ref.commit_id]


def _until(table: Table, start: str) -> list[Commit]:
    passed: list[Commit] = []
    for commit in table.ref.log(amount=None, prefixes=(), first_parent=True):
        if commit.id == start:
            return passed
        passed.append(commit)
    return []


def _data_files(table: Table, infos: Sequence[ObjectInfo]) -> tuple[TableRecord | None, list[TableFile]]:
    _, record = table._find_record()
    return record, [] if record is None else list(data_files(infos, table.prefix, record))


def _marks(table: Table, came: Sequence[ObjectInfo]) -> list[Mark]:
    """The marks of overwrites among objects."""
    found = [(folder_of(info.path), info.user_metadata) for info in came]
    return [decode_mark(said, is_whole=folder == table.path) for folder, said in found if folder]


def _all_files(table: Table) -> tuple[TableRecord | None, list[TableFile]]:
    if not table.exists():
        raise TableNotFound(f"{table.path!r} is not a table of {table.ref!r}.", next="Write it first.")
    record = table.record
    return record, list(table._files(record))


def _split(files: Sequence[TableFile]) -> list[list[TableFile]]:
    parts: list[list[TableFile]] = []
    filled = SPLIT_BYTES
    for file in files:
        if filled + file.info.size > SPLIT_BYTES:
            parts.append([])
            filled = 0
        parts[-1].append(file)
        filled += file.info.size
    return parts
