"""A table of a ref: its record, its files, and the way to the engines that read and write it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow.compute as pc

from strandline.arguments import checked
from strandline.core.iceberg_files import POINTER
from strandline.core.overwrite import IfChanged
from strandline.engines import engine, load
from strandline.errors import TableNotFound, UsageError
from strandline.ids import check_path
from strandline.operations import logged
from strandline.results.rows import ObjectInfo
from strandline.tables.condition import Condition
from strandline.tables.given import is_spark_frame
from strandline.tables.history import TableChange, TableHistory, change_of
from strandline.tables.outcomes import FilesRewritten, RowsChanged, TableConverted, WriteResult
from strandline.tables.place import TableRef
from strandline.tables.record import (
    RECORD_NAME,
    Matched,
    NotMatched,
    OptionValue,
    SchemaChange,
    SchemaDefault,
    TableRecord,
    WriteMode,
    WriteOptions,
    decode_record,
)
from strandline.tables.scan import Pruning, TableFile, data_files, rows_in
from strandline.tree.rows import column

if TYPE_CHECKING:
    import duckdb
    import pandas
    import polars
    import pyarrow as pa
    import pyarrow.dataset as ds
    from pyspark.sql import Column, DataFrame, SparkSession

    InProcess: TypeAlias = pa.Table | pa.RecordBatch | pa.RecordBatchReader | duckdb.DuckDBPyRelation
    Rows: TypeAlias = DataFrame | InProcess | polars.DataFrame | polars.LazyFrame | pandas.DataFrame
    Where: TypeAlias = str | Rows


@checked()
class Table:
    """A path prefix with a table record, at one ref."""

    def __init__(self, ref: TableRef, path: str) -> None:
        self.ref = ref
        self.path = path.rstrip("/")
        check_path(f"{self.path}/{RECORD_NAME}")
        if not self.path or self.path.startswith("/"):
            raise UsageError(
                "A table needs a path, without a '/' at its beginning.",
                next='For example branch.table("tables/flights").',
            )

    def __repr__(self) -> str:
        return f"<Table {self.path} at {self.ref!r}>"

    @property
    def prefix(self) -> str:
        """The prefix of the objects of the table: its path and a "/"."""
        return self.path + "/"

    @property
    def record_path(self) -> str:
        """The path of the object that holds the schema and the options."""
        return self.prefix + RECORD_NAME

    @property
    def iceberg_path(self) -> str:
        """The path of the object that an Iceberg table would be, if one lay here."""
        return self.prefix + POINTER

    @property
    def place(self) -> str:
        """repository/ref/path"""
        return f"{self.ref.place}/{self.path}"

    def _describe(self) -> str:
        """The table and its commit, for sentences."""
        return f"table {self.path!r} at {self.ref.place} (commit {self.ref.commit_id[:12]})"

    def _find_record(self) -> tuple[ObjectInfo | None, TableRecord | None]:
        info = self.ref.find(self.record_path)
        return info, None if info is None else decode_record(self.ref.read(self.record_path), self.path)

    @property
    def record(self) -> TableRecord:
        """The table record.

        Raises:
            TableNotFound: there is no table at the path in this ref.
        """
        _, record = self._find_record()
        if record is None:
            what = "is an object" if self.ref.exists(self.path) else "has no table record"
            advice = "Write a table there first, or check the path and ref."
            if self.ref.exists(self.iceberg_path):
                what = "is an Iceberg table"
                advice = "Read it through Iceberg's catalog, or take it back with table.from_iceberg()."
            raise TableNotFound(f"{self.path!r} in {self.ref!r} {what}.", next=advice)
        return record

    def exists(self) -> bool:
        """Whether there is a table at this path of the ref."""
        return self.ref.exists(self.record_path)

    @property
    def schema(self) -> dict[str, Any]:
        """The columns, as Spark's schema JSON."""
        return {"type": "struct", "fields": list(self.record.fields)}

    def count(self, where: Where | None = None) -> int:
        """How many rows there are; without a condition, from statistics, if all files have some.

        Args:
            where: a condition on the columns, as SQL, or a frame of keys; only rows that fulfil it are counted.

        Raises:
            TableNotFound, UsageError, ObjectMissing, StorageError: as for `to_arrow_batches`.
        """
        record, files, condition = self._chosen(where, None)
        known = rows_in(files) if condition is None else None
        if known is not None:
            return known
        found: int = _frames().count_of(self._scan(record, files, condition))
        return found

    def size(self) -> int:
        """How many bytes the data files have."""
        return sum(file.info.size for file in self._files(self.record))

    def files(self, where: Where | None = None) -> list[TableFile]:
        """The data files, in the order of their paths, with their partition values and statistics.

        Args:
            where: a condition on the columns, as SQL, or a frame of keys; files that cannot hold a row that fulfils it
                are left out.

        Raises:
            UsageError: the condition is none, or names a column that is not there.
        """
        record = self.record
        files = self._files(record)
        if where is None:
            return list(files)
        return Pruning(record, _condition(where, record)).needed(files)

    def _files(self, record: TableRecord) -> Iterator[TableFile]:
        return data_files(self.ref.list(self.prefix), self.prefix, record)

    def history(self, *, amount: int | None = None, first_parent: bool = False) -> TableHistory:
        """The commits that changed the table, newest first: files and rows added and removed, and by whom.

        Args:
            amount: the most commits to show.
            first_parent: of a merge, follow only the branch that was merged into: the rows then add up.

        Raises:
            TableNotFound: while it is read, if there is no table at the path, and never was.
        """

        def changes() -> Iterator[TableChange]:
            is_empty = True
            for commit in self.ref.log(amount=amount, prefixes=[self.prefix], first_parent=first_parent):
                is_empty = False
                now = self.ref._other(commit.id)
                before = self.ref._other(commit.parents[0]) if commit.parents else None
                new, old = (None if ref is None else Table(ref, self.path)._find_record()[1] for ref in (now, before))
                yield change_of(self.path, now, before, new, old)
            if is_empty and amount != 0 and not self.exists():
                self.record  # noqa: B018 - which says that there is none

        return TableHistory(changes)

    # --- engines, known by name only --------------------------------------------------------------------------------

    @logged("plan table")
    def to_spark(self, spark: SparkSession, where: Where | Column | None = None) -> DataFrame:
        """The table as a Spark DataFrame, planned now, read when Spark acts.

        Args:
            where: a condition on its columns, as SQL or as a Spark column, or a frame of keys: a Spark DataFrame, an
                Arrow table, a Polars or pandas frame with some of the table's columns, one row for each key. Rows that
                do not fulfil it are left out; partitions and files that have none are not read.

        Raises:
            TableNotFound: there is no table at the path in this ref.
            UsageError: the condition does not fit, or the session cannot reach the object store.
            ObjectMissing: a file of the table is gone from the object store.
        """
        frame: DataFrame = engine("spark").read_table(self, spark, where)
        return frame

    def dataset(self) -> ds.Dataset:
        """The table as a PyArrow dataset: filters and column choices given to it reach the files.

        For streams take `to_arrow`, and for DuckDB `to_duckdb`: PyArrow's own `scanner().to_reader()` (26.0) can stand
        still for ever with files that are opened in Python.
        """
        record = self.record
        found: ds.Dataset = _frames().dataset_of(
            self.ref._core.resolver, record, list(self._files(record)), self._describe
        )
        return found

    def to_arrow(self, where: Where | None = None, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows as an Arrow table, in memory; arguments and errors are those of `to_arrow_batches`."""
        record, files, condition = self._chosen(where, columns)
        found: pa.Table = _frames().table_of(self._scan(record, files, condition, columns))
        return found

    def to_arrow_batches(
        self, where: Where | None = None, columns: Sequence[str] | None = None
    ) -> pa.RecordBatchReader:
        """The rows as a stream of Arrow record batches, which never holds all of them.

        Args:
            where: a condition on the columns, as SQL, or a frame of keys, as for `to_spark`; partitions and files that
                have no such row are not read.
            columns: which columns, in this order; by default all.

        Raises:
            UsageError: the condition or a column does not fit, or only Spark reads this table.
            ObjectMissing, StorageError: while it is read, a file of the table is gone or damaged.
        """
        record, files, condition = self._chosen(where, columns)
        rows: pa.RecordBatchReader = _frames().rows_of(self._scan(record, files, condition, columns))
        return rows

    def _scan(
        self,
        record: TableRecord,
        files: list[TableFile],
        condition: Condition | None,
        columns: Sequence[str] | None = None,
    ) -> Any:
        return _frames().Scan(self.ref._core.resolver, record, files, self._describe, condition, columns)

    def _chosen(
        self, where: Where | None, columns: Sequence[str] | None
    ) -> tuple[TableRecord, list[TableFile], Condition | None]:
        """The record, the files that have to be read, and the condition."""
        record = self.record
        unknown = [name for name in columns or () if name not in record.names]
        if unknown:
            raise UsageError(
                f"Table {self.path!r} has no column {unknown[0]!r}.", next=f"It has {', '.join(record.names)}."
            )
        if where is None:
            return record, list(self._files(record)), None
        condition = _condition(where, record)
        return record, Pruning(record, condition).needed(self._files(record)), condition

    def to_polars(self, where: Where | None = None, columns: Sequence[str] | None = None) -> polars.DataFrame:
        """The rows as a Polars data frame; arguments and errors are those of `to_arrow`."""
        frame: polars.DataFrame = _package("polars").from_arrow(self.to_arrow(where, columns))
        return frame

    def to_pandas(self, where: Where | None = None, columns: Sequence[str] | None = None) -> pandas.DataFrame:
        """The rows as a pandas data frame; arguments and errors are those of `to_arrow`."""
        _package("pandas")
        return self.to_arrow(where, columns).to_pandas()

    def to_duckdb(
        self,
        connection: duckdb.DuckDBPyConnection | None = None,
        where: Where | None = None,
        columns: Sequence[str] | None = None,
    ) -> duckdb.DuckDBPyRelation:
        """A DuckDB relation over the table as it is now; arguments and errors are those of `to_arrow`.

        DuckDB reads the files when it needs rows, and only what its queries need.
        """
        into = _package("duckdb").connect() if connection is None else connection
        record, files, condition = self._chosen(where, columns)
        rows = _frames().source_of(self._scan(record, files, condition, columns))
        relation: duckdb.DuckDBPyRelation = into.from_arrow(rows)
        if columns is None:
            return relation
        return relation.project(", ".join('"' + name.replace('"', '""') + '"' for name in columns))

    @logged("write table")
    def write(
        self,
        data: Rows,
        mode: WriteMode = "append",
        *,
        where: Where | Column | None = None,
        partition_by: Sequence[str] | str | None = None,
        schema: SchemaChange | None = None,
        file_format: str | None = None,
        options: Mapping[str, OptionValue] | None = None,
        statistics: Sequence[str] | str | None = None,
        target_file_bytes: int | None = None,
        if_changed: IfChanged = "fail",
        message: str | None = None,
        writer: str | None = None,
    ) -> WriteResult:
        """Write rows; all of them appear on the branch at one instant, staged; or with its transaction.

        Args:
            data: a Spark DataFrame, which Spark writes; or rows of this process, which Arrow writes in the same
                layout: an Arrow table, record batch or reader, a Polars or pandas frame, or a DuckDB relation.
            mode: "append" adds files; "overwrite" replaces all; "overwrite_partitions" replaces the partitions that
                the data has rows for.
            where: with "overwrite", replace only the rows that fulfil this condition: SQL, a frame of keys, or, for a
                Spark frame, a Spark column. Each row of the data has to fulfil it. Files that lie wholly within it are
                dropped unread, others are written again.
            partition_by: columns whose values become folders; decided by the first write.
            schema: "merge" to add columns and widen types; "replace", with "overwrite", to change everything; "refuse"
                to refuse other columns. By default what `set_schema_default` says, and that is "refuse" at first.
            file_format: parquet, orc, json, csv or avro; decided by the first write.
            options: of the format, as Spark names them; decided by the first write.
            statistics: columns whose least and greatest values are kept, so that reads skip files; by default the
                first 32. Parquet has them in its footers; other formats are read once more for them, unless it is [].
            target_file_bytes: how big files become, about, by the size of their rows in memory. Spark shuffles the data
                for it, and by default writes a file for each partition of it; Arrow by default writes one file for each
                partition of the table.
            if_changed: in a transaction, what an overwrite does when it is published if others have changed what it
                replaces since the transaction was begun: "fail", or "replace" their changes too.
            message: makes the write a transaction of its own, which is published at once as a commit with this message,
                instead of staging it.
            writer: of that transaction; by default this thread. Two writes under one name fence each other.

        Raises:
            SchemaMismatch: the columns are not the table's, or a value does not fit its column's type.
            Conflict: somebody else made or changed the table since the write began. Nothing of this write is visible.
            StorageError: the engine failed. Nothing of this write is visible.
        """
        if message is None and writer is not None:
            raise UsageError(
                "writer= names the transaction that a write with message= makes.",
                next="Give message=, or leave it out.",
            )
        wanted = WriteOptions(
            mode=mode,
            where=where,
            partition_by=_texts(partition_by),
            schema=schema,
            file_format=file_format,
            options=options,
            statistics=_texts(statistics),
            target_file_bytes=target_file_bytes,
            if_changed=if_changed,
        )
        if message is None:
            return self._write(data, wanted)
        with self.ref._for_writing()._published(writer, message) as transaction:
            return Table(transaction, self.path)._write(data, wanted)

    @logged("rewrite files")
    def rewrite_files(
        self,
        *,
        target_file_bytes: int = 128 << 20,
        where: str | None = None,
        sort_by: Sequence[str] | str = (),
        z_order_by: Sequence[str] | str = (),
        spark: SparkSession | None = None,
        message: str | None = None,
        writer: str | None = None,
    ) -> FilesRewritten:
        """Write small files together, or rows in another order, in a commit of its own; see `delete` for commits.

        No row comes or goes, and files that others add meanwhile stay. If others replace or delete a file that is
        written anew, this call fails, and nothing is changed.

        Args:
            target_file_bytes: how big files become, about. Files with three quarters of it stay as they are, unless
                rows get an order.
            where: SQL; only files that may have rows that fulfil it are written anew, whole.
            sort_by: columns by which rows are sorted, within about eight files of a partition.
            z_order_by: columns along whose Z-order curve rows are sorted, so that conditions on any of them skip files.
            spark: a session whose executors write; by default this process does.

        Raises:
            UsageError: the table is not in Parquet, or has no such column, or the column has no order.
            Conflict: others changed the same files meanwhile.
        """
        rewriting = import_module("strandline.tables.rewriting")
        how = rewriting.Rewriting(target_file_bytes, _texts(sort_by) or (), _texts(z_order_by) or ())
        changes = import_module("strandline.tables.changing")
        with changes.changing(self, f"rewrite files of {self.path}", message, writer) as table:
            found: FilesRewritten = rewriting.rewrite(table, how, where, spark)
        return found

    @logged("delete rows")
    def delete(self, where: Where | Column, *, message: str | None = None, writer: str | None = None) -> RowsChanged:
        """Delete the rows that fulfil a condition, in a commit of its own, or with the transaction of this table.

        Args:
            where: SQL, a frame of keys, or a Spark column, which Spark judges.
            message: of the commit.
            writer: of its transaction; by default this thread.

        Raises:
            TableNotFound, UsageError, StorageError: as for `write`.
            Conflict: others changed the same files meanwhile. Nothing was deleted.
        """
        if where is None:
            raise UsageError("It is not said which rows go.", next='Give a condition; where="true" deletes all rows.')
        changes = import_module("strandline.tables.changing")
        with changes.changing(self, f"delete rows of {self.path}", message, writer) as table:
            found: RowsChanged = changes.delete_rows(table, where)
        return found

    @logged("update rows")
    def update(
        self,
        assignments: Mapping[str, Any],
        where: Where | Column | None = None,
        *,
        message: str | None = None,
        writer: str | None = None,
    ) -> RowsChanged:
        """Change columns of the rows that fulfil a condition; see `delete` for commits and errors.

        Args:
            assignments: by column, its new value; or a function that makes an array of values from a record batch of
                rows. Where Spark judges the condition: a value, or a function that makes a column from the frame.
            where: as for `delete`; by default all rows.
        """
        changes = import_module("strandline.tables.changing")
        with changes.changing(self, f"update rows of {self.path}", message, writer) as table:
            found: RowsChanged = changes.update_rows(table, assignments, where)
        return found

    @logged("merge rows")
    def merge_into(
        self,
        source: Rows,
        on: Sequence[str] | str,
        *,
        matched: Matched | Sequence[str] = "update",
        not_matched: NotMatched = "insert",
        message: str | None = None,
        writer: str | None = None,
    ) -> RowsChanged:
        """Bring rows of a source into the table by their keys; see `delete` for commits and errors.

        Args:
            source: rows with columns of the table, one for each key: a Spark DataFrame, which Spark joins, or rows of
                this process, which are held in memory together with the rows that they match.
            on: the columns of the key. A null in one of them matches nothing.
            matched: what becomes of rows whose key the source has: "update" takes all columns that the source has, a
                list of columns takes these; "delete" or "keep" them.
            not_matched: "insert" the source's other rows, or "skip" them.
        """
        keys = [on] if isinstance(on, str) else list(on)
        changes = import_module("strandline.tables.changing")
        with changes.changing(self, f"merge rows into {self.path}", message, writer) as table:
            found: RowsChanged = changes.merge_rows(table, source, keys, matched, not_matched)
        return found

    @logged("convert table")
    def to_iceberg(self, identifier: str | Sequence[str] | None = None) -> TableConverted:
        """Make an Iceberg table of the files of this one, in a commit of its own, or in the table's transaction.

        No data is copied: both tables have the same files, and what is written to one is not seen in the other. Only
        the footers of the files are read.

        Args:
            identifier: the name of the Iceberg table, such as "db.trips", whose namespace is there; by default the
                Iceberg table takes the place of this one.

        Raises:
            UsageError: the files are not Parquet, or were written in types that Iceberg does not read.
            AlreadyExists: the name is taken.
            TableNotFound, ObjectMissing, StorageError.
        """
        done: TableConverted = load("conversion").to_iceberg(self, identifier)
        return done

    @logged("convert table")
    def from_iceberg(self, identifier: str | Sequence[str] | None = None) -> TableConverted:
        """Make this table of the files of an Iceberg table, in a commit of its own, or in the table's transaction.

        No data is copied, and the Iceberg table stays as it is. This one has no partition columns: files are found by
        their statistics.

        Args:
            identifier: the name of the Iceberg table; by default the one at this path, whose place this table takes.

        Raises:
            UsageError: rows of it are deleted by files of deletes, its columns were renamed, or native tables do not
                hold one of its types.
            AlreadyExists: something lies at this path.
            NotFound, ObjectMissing.
        """
        done: TableConverted = load("conversion").from_iceberg(self, identifier)
        return done

    def set_schema_default(self, schema: SchemaDefault) -> None:
        """Say what writes do with other columns if they do not say; staged, and part of the next commit.

        Versions that do not know such defaults refuse to read or write a table with "merge".

        Args:
            schema: "merge" to add columns and widen types; "refuse", as at first.

        Raises:
            TableNotFound: there is no table at the path in this ref.
            UsageError: the ref cannot be written.
            Conflict: somebody else changed the table at the same time.
        """
        import_module("strandline.tables.writing").set_schema_default(self, schema)

    def _write(self, data: Rows, options: WriteOptions) -> WriteResult:
        if data is not None and options.where is data:
            raise UsageError(
                "where= is the whole frame: only rows that are written again unchanged would be replaced.",
                next='Select the columns by which rows are the same, such as where=data.select("id").',
            )
        writer = engine("spark") if is_spark_frame(data) else import_module("strandline.tables.arrow_rows")
        written: WriteResult = writer.write_table(self, data, options)
        return written


def find_tables(ref: TableRef, prefix: str = "") -> list[Table]:
    """The tables whose records lie below a prefix, in the order of their paths."""
    mark = f"/{RECORD_NAME}"
    paths = chain.from_iterable(
        column(rows, "path").filter(pc.ends_with(column(rows, "path"), mark)).to_pylist()
        for rows in ref.list(prefix).tables()
    )
    return [Table(ref, path.removesuffix(mark)) for path in paths]


def _condition(where: Where, record: TableRecord) -> Condition:
    """What a text or a frame of keys says; what reads them takes time to load."""
    if isinstance(where, str):
        parsed: Condition = import_module("strandline.tables.condition_text").parse_condition(where, record)
        return parsed
    found: Condition = import_module("strandline.tables.keys").among(where, record)
    return found


def _texts(names: Sequence[str] | str | None) -> tuple[str, ...] | None:
    return None if names is None else (names,) if isinstance(names, str) else tuple(names)


def _frames() -> Any:
    return import_module("strandline.tables.frames")


def _package(name: str, extra: str | None = None) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"This needs the Python package {error.name!r}, which is not installed.",
            next=f"Run: pip install 'strandline[{extra or name}]'",
        ) from error
