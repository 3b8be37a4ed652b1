"""Rows of this process as the source of a write: Arrow writes the files, in the layout that Spark gives them.

Whatever has Arrow's stream interface is taken: tables and readers of PyArrow, frames of Polars and pandas, relations of
DuckDB. A stream is written as it comes; nothing holds all of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow import fs

from strandline.blob import BlobStore
from strandline.errors import SchemaMismatch, StorageError, StrandlineError, UsageError
from strandline.ids import new_id
from strandline.tables.arrow_files import Uploads
from strandline.tables.columns import Kind, arrow_type, kind_of, spark_fields
from strandline.tables.condition import Condition
from strandline.tables.frames import Scan, arrow_schema, rows_of
from strandline.tables.given import data_of, plain_values, reason_of
from strandline.tables.keys import Unfulfilled, told
from strandline.tables.layout import ESCAPED, FOLDER_MAX_BYTES, NULL_PARTITION, UNNAMED
from strandline.tables.outcomes import WriteResult
from strandline.tables.record import Field, TableRecord, WriteOptions
from strandline.tables.scan import TableFile
from strandline.tables.statistics import Statistics
from strandline.tables.table import Table
from strandline.tables.values import partition_value
from strandline.tables.writing import Written, outside, write_rows

GROUP_MIN_ROWS = 128 << 10
GROUP_MAX_ROWS = 1 << 20
OPEN_FILES_MAX = 512
PARTITIONS_MAX = 100_000
COMPRESSIONS = ("snappy", "zstd", "gzip", "lz4", "brotli", "none", "uncompressed")
DEFAULT_COMPRESSION = "snappy"
"""Spark's, too."""
_ESCAPED = re.compile(ESCAPED)
_UNFIT_PARTITIONS = ("binary", "float")
"""Spark spells the same number in another way, and a partition that has two names is two partitions to a merge."""


def write_table(table: Table, data: object, options: WriteOptions) -> WriteResult:
    """Write rows of this process; see `Table.write`."""
    found = data_of(data)
    return write_rows(table, ArrowRows(found.schema, found.batches), options)


class ArrowRows:
    """A stream of record batches as the source of a write; it is read once.

    Args:
        schema: of the batches.
        batches: gives the batches, once.
    """

    engine = "Arrow"
    zone = "UTC"

    def __init__(self, schema: pa.Schema, batches: Callable[[], Iterable[pa.RecordBatch]]) -> None:
        self._schema = schema
        self._batches = batches
        self._own_rows: int | None = None

    @property
    def fields(self) -> Sequence[Field]:
        return spark_fields(self._schema)

    def fitted(self, record: TableRecord) -> ArrowRows:
        refuse_unfit(record)
        wanted = arrow_schema(record)
        held = {name: at for at, name in enumerate(self._schema.names)}
        if self._schema.equals(wanted):
            return self

        def batches() -> Iterator[pa.RecordBatch]:
            for batch in self._batches():
                columns = [
                    _cast(batch.column(held[one.name]), one) if one.name in held else pa.nulls(len(batch), one.type)
                    for one in wanted
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=wanted)

        return ArrowRows(wanted, batches)

    def condition(self, record: TableRecord, column: Any) -> NoReturn:
        raise UsageError(
            "A Spark column is a condition for rows of Spark, and these are of this process.",
            next='Write the condition as a text, such as where="month = 3", or give a frame of keys.',
        )

    def replacing(
        self,
        table: Table,
        record: TableRecord,
        where: Any,
        condition: Condition,
        partly: Sequence[TableFile],
        *,
        fits: bool = True,
    ) -> ArrowRows:
        is_true = condition.arrow()

        def batches() -> Iterator[pa.RecordBatch]:
            made._own_rows = 0
            for batch in self._batches():
                made._own_rows += len(batch)
                if fits and len(batch.filter(is_true)) != len(batch):
                    raise outside(told(where, condition))
                yield batch
            if partly:
                kept = Unfulfilled(condition)  # by the scan, which makes a set of keys once a file, not once a batch
                yield from rows_of(Scan(table.ref._core.resolver, record, partly, table._describe, kept))

        made = ArrowRows(self._schema, batches)
        return made

    def own_rows(self) -> int | None:
        return self._own_rows

    def write(
        self, table: Table, record: TableRecord, new_folder: Callable[[], str], target_file_bytes: int | None
    ) -> Written:
        prefix = new_folder()
        write_files(self, record, table.ref._core.resolver.namespace, prefix, target_file_bytes, table.path)
        return Written(prefix)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return iter(self._batches())

    def statistics(
        self, table: Table, record: TableRecord, files: Sequence[TableFile], columns: Mapping[str, Kind]
    ) -> dict[str, Statistics]:
        return {}  # what is written here has footers


def write_files(
    rows: ArrowRows, record: TableRecord, store: BlobStore, prefix: str, target_file_bytes: int | None, path: str
) -> list[str]:
    """Write rows that have the table's columns to new files below a key of a store.

    Args:
        target_file_bytes: how big files become, about, by the size of their rows in memory.
        path: of the table, for sentences.

    Returns:
        The names of the files below the key, the folders of their partitions included.

    Raises:
        UsageError: a value cannot be the name of a partition's folder.
        StorageError: Arrow or the store failed.
    """
    folders = _Folders(record)
    place = store.local_path(prefix)
    most_rows = 0
    batches = iter(rows)
    failed: list[Exception] = []
    made: list[str] = []

    def arranged() -> Iterator[pa.RecordBatch]:
        try:
            if first is not None:
                yield folders.arranged(first)
            for batch in batches:
                yield folders.arranged(batch)
        except Exception as error:
            failed.append(error)  # Arrow would wrap it
            raise

    try:
        first = next(batches, None)
        if target_file_bytes is not None and first is not None and len(first):
            most_rows = max(1, target_file_bytes * len(first) // max(1, first.nbytes))
        ds.write_dataset(
            arranged(),
            place or prefix,
            schema=folders.schema,
            format=ds.ParquetFileFormat(),
            file_options=_file_options(record),
            partitioning=folders.partitioning,
            filesystem=fs.LocalFileSystem() if place else fs.PyFileSystem(Uploads(store, failed)),
            basename_template=f"part-{{i}}-{new_id()}.parquet",
            max_partitions=PARTITIONS_MAX,
            max_open_files=OPEN_FILES_MAX,
            max_rows_per_file=most_rows,
            min_rows_per_group=min(GROUP_MIN_ROWS, most_rows or GROUP_MIN_ROWS),
            max_rows_per_group=min(GROUP_MAX_ROWS, most_rows or GROUP_MAX_ROWS),
            existing_data_behavior="overwrite_or_ignore",
            file_visitor=lambda file: made.append(file.path[len(place or prefix) :].lstrip("/")),
        )
    except Exception as error:
        _fail(failed[0] if failed else error, path)
    return made


def _fail(error: Exception, path: str) -> NoReturn:
    if isinstance(error, StrandlineError):
        raise error
    raise StorageError(
        f"Arrow failed to write table {path!r}: {reason_of(error)}.",
        safe="Nothing of it is visible on the branch.",
        next="Look at the data and at the disk, then write again.",
    ) from error


def refuse_unfit(record: TableRecord) -> None:
    """Refuse a table that only Spark writes, before anything is written."""
    if record.file_format != "parquet":
        raise UsageError(
            f"Tables in {record.file_format} are written by Spark only.",
            next="Write a Spark DataFrame, or keep the table in Parquet.",
        )
    for name, value in record.options.items():
        if name.lower() != "compression":
            raise UsageError(
                f"Arrow writes tables with the option compression only, and this one has the option {name!r}.",
                next="Check its spelling, leave it out, or write a Spark DataFrame.",
            )
        if value.lower() not in COMPRESSIONS:
            raise UsageError(
                f"{value!r} is not a compression that Arrow writes.", next=f"Use one of {', '.join(COMPRESSIONS)}."
            )
    for field in record.fields:
        if field["type"] == "void":
            raise UsageError(
                f"Column {field['name']!r} has nothing but nulls, which do not tell its type.",
                next="Cast it to the type that its values will have.",
            )
        arrow_type(field["type"], field["name"])
        if field["name"] in record.partition_by and kind_of(field) in (None, *_UNFIT_PARTITIONS):
            raise UsageError(
                f"Column {field['name']!r} is of type {field['type']}, which has no folder names here.",
                next="Partition by another column, or write a Spark DataFrame.",
            )


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    if column.type.equals(field.type):
        return column
    try:
        return plain_values(column).cast(field.type)
    except (pa.ArrowException, TypeError) as error:
        raise SchemaMismatch(
            f"A value of column {field.name!r} does not fit its type, {field.type}: {reason_of(error)}.",
            safe="Nothing of the write is visible on the branch.",
            next="Round or cast the column first.",
        ) from error


def _file_options(record: TableRecord) -> Any:
    named = {name.lower(): value.lower() for name, value in record.options.items()}
    compression = named.get("compression", DEFAULT_COMPRESSION)
    return ds.ParquetFileFormat().make_write_options(
        compression="none" if compression == "uncompressed" else compression,
        write_page_checksum=True,
        store_schema=False,
        coerce_timestamps="us",
    )


# --- folders of partitions --------------------------------------------------------------------------------------------


class _Folders:
    """Puts the name of its folder beside each row, for each partition column: Arrow then only sorts rows into folders.

    Arrow's own names of partitions are not Spark's, and a partition that has two names is two partitions to a merge.
    """

    def __init__(self, record: TableRecord) -> None:
        schema = arrow_schema(record)
        self._stored = [field["name"] for field in record.stored]
        self._columns = record.partition_by
        self._kinds = {field["name"]: kind_of(field) for field in record.fields}
        self._known: list[dict[Any, str]] = [{} for _ in self._columns]
        prefix = max((name for name in self._stored if name.startswith("folder")), default="folder")
        folders = [pa.field(f"{prefix} {at}", pa.string()) for at in range(len(self._columns))]
        self.schema = pa.schema([*(schema.field(name) for name in self._stored), *folders])
        self.partitioning = ds.DirectoryPartitioning(pa.schema(folders), segment_encoding="none") if folders else None

    def arranged(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = [batch.column(name) for name in self._stored]
        for name, known in zip(self._columns, self._known, strict=True):
            column = batch.column(name).dictionary_encode(null_encoding="encode")
            names = [self._folder(name, value, known) for value in _texts(column.dictionary)]
            columns.append(pa.array(names, pa.string()).take(column.indices))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _folder(self, column: str, text: str | None, known: dict[Any, str]) -> str:
        if text not in known:
            name = f"{_escaped(column)}={NULL_PARTITION if text is None else _escaped(text)}"
            has_value = text is None or partition_value(text, self._kinds[column]) is not None
            if not has_value or text in UNNAMED or "\0" in name or len(name.encode()) > FOLDER_MAX_BYTES:
                raise UsageError(
                    f"{text!r} in column {column!r} cannot be the name of a partition's folder.",
                    safe="Nothing of the write is visible on the branch.",
                    next="Make it null, take these rows out, or partition by another column.",
                )
            known[text] = name
        return known[text]


def _texts(values: pa.Array) -> list[str | None]:
    """Values as Spark writes them in the names of folders, in UTC."""
    kind = values.type
    if pa.types.is_decimal(kind):
        return [None if value is None else format(value, "f") for value in values.to_pylist()]
    if pa.types.is_timestamp(kind):
        plain = values.cast(pa.timestamp("us"))
        found: list[str | None] = pc.strftime(plain, format="%Y-%m-%d %H:%M:%S").to_pylist()
        return [None if text is None else text.rstrip("0").rstrip(".") if "." in text else text for text in found]
    texts: list[str | None] = values.cast(pa.string()).to_pylist()
    return texts


def _escaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)
