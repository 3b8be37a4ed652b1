"""Writing a table by Python workers: a fenced transaction that is begun before the first task, and published after the
last one.

Tasks write files that nothing refers to; the driver publishes those of the attempts that counted. Spark plans a write
and commits it in two Python processes, so the transaction travels in between, in the writer's own state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Self

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

import strandline
from strandline.blob import open_store
from strandline.core.node import one_write
from strandline.errors import StrandlineError
from strandline.lake import Lake
from strandline.repository.branch import Branch
from strandline.repository.transactions.transaction import resume
from strandline.spark.format.options import Job, job_of, place_of
from strandline.tables.arrow_rows import ArrowRows, refuse_unfit, write_files
from strandline.tables.record import Field, TableRecord
from strandline.tables.table import Table
from strandline.tables.writing import Written, planned, write_rows
from strandline.tables.written import WrittenRows


@dataclass
class TaskFiles(WriterCommitMessage):
    """The files of a task's attempt, by their names below the folder of the write."""

    names: list[str]


@dataclass(frozen=True)
class Target:
    """Where tasks write; pickles without secrets."""

    url: str
    prefix: str
    record: TableRecord
    target_file_bytes: int | None
    path: str

    def write(self, batches: Iterator[pa.RecordBatch]) -> TaskFiles:
        first = next(batches, None)
        if first is None:
            return TaskFiles([])
        rows = ArrowRows(first.schema, lambda: chain([first], batches)).fitted(self.record)
        store = open_store(self.url)
        return TaskFiles(write_files(rows, self.record, store, self.prefix, self.target_file_bytes, self.path))


class TableWriter(DataSourceArrowWriter):
    """Writes a frame to a table in a commit of its own. With the option "token", a repeated job does nothing.

    Args:
        saved: the open transaction; None if an earlier run with the same token was published.
    """

    def __init__(
        self, options: Mapping[str, str], job: Job, fields: Sequence[Field], saved: bytes | None, target: Target | None
    ) -> None:
        self._options = dict(options)
        self._job = job
        self._fields = fields
        self._saved = saved
        self._target = target

    @classmethod
    def planned(cls, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> Self:
        """Begin the transaction, which dooms earlier ones of the same writer, and look at the table.

        Raises:
            UsageError: an option is wrong, or the ref is not a branch.
            SchemaMismatch: the columns are not the table's.
        """
        job = job_of(options, overwrite=overwrite)
        path = place_of(options).path
        fields: list[Field] = schema.jsonValue()["fields"]
        lake, branch = _opened(options)
        with lake:
            transaction = branch.transaction(job.writer or one_write(), job.message, token=_token(job, path)).begin()
            if transaction.is_repeat:
                return cls(options, job, fields, None, None)
            try:
                table = Table(transaction, path)
                _, _, record = planned(table, transaction, fields, job.write)
                refuse_unfit(record)
                url = branch._core.resolver.namespace.url
                folder = transaction._new_folder()
                target = Target(url, folder, record, job.write.target_file_bytes, path)
                return cls(options, job, fields, transaction._saved(), target)
            except BaseException:
                transaction.abort()
                raise

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskFiles:
        return TaskFiles([]) if self._target is None else self._target.write(iterator)

    def commit(self, messages: list[Any]) -> None:
        if self._saved is None or self._target is None:
            return
        names = frozenset(name for message in messages if isinstance(message, TaskFiles) for name in message.names)
        lake, branch = _opened(self._options)
        with lake, resume(branch._core, branch._at, self._saved, "the job's transaction") as transaction:
            rows = WrittenRows("Spark", self._fields, Written(self._target.prefix, names))
            write_rows(Table(transaction, self._target.path), rows, self._job.write)

    def abort(self, messages: list[Any]) -> None:
        if self._saved is None:
            return
        lake, branch = _opened(self._options)
        with lake:
            try:
                resume(branch._core, branch._at, self._saved, "the job's transaction").abort()
            except StrandlineError:
                return  # it has ended already, as after a commit that was refused; its files will be collected


def _token(job: Job, path: str) -> str:
    """What a repetition is recognised by: the caller's token, for this table. A job may use one for several."""
    return f"{job.token} {path}" if job.token else ""


def _opened(options: Mapping[str, str]) -> tuple[Lake, Branch]:
    place = place_of(options)
    lake = strandline.open(options.get("lake"))
    try:
        return lake, lake.repository(place.repository).branch(place.ref)
    except BaseException:
        lake.close()
        raise
