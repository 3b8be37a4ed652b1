"""Reading a table without Spark: one Arrow dataset, which Arrow, Polars and DuckDB stream from.

Partition values come from the logical paths, as everywhere: each file is a fragment that carries them as its partition
expression. Filters and column choices reach the files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow import fs

from strandline.blob import is_absolute
from strandline.errors import StorageError, UsageError
from strandline.tables.arrow_files import Describe, Files, file_system
from strandline.tables.columns import arrow_type, kind_of
from strandline.tables.condition import Condition
from strandline.tables.formats import MOMENTS, SAFE_OPTIONS
from strandline.tables.given import reason_of
from strandline.tables.record import TableRecord
from strandline.tables.scan import TableFile
from strandline.tables.values import NOT_FINITE, partition_value

if TYPE_CHECKING:
    from strandline.blob import Resolver


"""As Spark spells them in the names of folders."""


def arrow_schema(record: TableRecord) -> pa.Schema:
    return pa.schema([pa.field(field["name"], arrow_type(field["type"], field["name"])) for field in record.fields])


def dataset_of(
    resolver: Resolver,
    record: TableRecord,
    files: Sequence[TableFile],
    place: Describe,
    kind: type[ds.FileSystemDataset] = ds.FileSystemDataset,
) -> ds.Dataset:
    """The files as one dataset with the columns of the record.

    Raises:
        UsageError: Arrow does not read the format, or an option of it.
    """
    schema = arrow_schema(record)
    file_format = _format(record, schema)
    source, names = file_system(resolver, files, place)
    kinds = {field["name"]: kind_of(field) for field in record.fields}
    fragments = []
    for at, file in enumerate(files):
        known: pc.Expression | None = None
        for name in record.partition_by:
            part = _is_value(schema.field(name), file.partition[name], kinds[name])
            known = part if known is None else known & part
        # an empty file of lines has no rows to parse, and Arrow's readers refuse it
        if file.info.size or record.file_format not in ("csv", "json"):
            fragment = file_format.make_fragment(names[at], source, partition_expression=known)
            if record.file_format == "parquet" and is_absolute(file.info.physical_address):
                _refuse_other_case(fragment, schema, file)
            fragments.append(fragment)
    return kind(fragments, schema, file_format, source)


def _refuse_other_case(fragment: Any, schema: pa.Schema, file: TableFile) -> None:
    """Refuse what others wrote with columns in another case: Arrow would take them for missing, Spark would not."""
    ours = {name.lower(): name for name in schema.names}
    for name in fragment.physical_schema.names:
        if ours.get(name.lower(), name) != name:
            raise UsageError(
                f"{file.info.path!r} calls the column {ours[name.lower()]!r} {name!r}.", next="Read with to_spark."
            )


def _is_value(field: pa.Field, text: str | None, kind: Any) -> pc.Expression:
    if text is None:
        return pc.field(field.name).is_null()
    return pc.field(field.name) == _partition_scalar(field, text, kind)


def _partition_scalar(field: pa.Field, text: str | None, kind: Any) -> pa.Scalar:
    if text is None:
        return pa.scalar(None, field.type)
    value = partition_value(text, kind)
    if value is None and kind == "float" and text in NOT_FINITE:
        return pa.scalar(float(text), field.type)
    if value is None:
        raise UsageError(
            f"The partition value {text!r} is not one of column {field.name!r} ({field.type}).",
            next="Rename the folder, or read the table with to_spark, which takes it for null.",
        )
    return (
        pa.scalar(value, pa.int64()).cast(field.type)
        if pa.types.is_timestamp(field.type)
        else pa.scalar(value, field.type)
    )


class _Streamed(ds.FileSystemDataset):  # type: ignore[misc] # pyarrow has no types
    """A dataset for DuckDB, which reads scans as streams: see `_Scan`."""

    def scanner(self, *arguments: Any, **options: Any) -> _Scan:
        return _Scan(super().scanner(*arguments, **options))


class _Scan:
    """A scanner whose stream begins without Python's lock.

    PyArrow's own `Scanner.to_reader` (26.0) keeps Python's lock while it starts the scan. A thread of Arrow that opens
    one of `Files` wants that lock, and has one that the start of the scan wants: the process stands still for ever.
    DuckDB reads datasets by that call. `to_batches` and all others let the lock go.
    """

    def __init__(self, scanner: Any) -> None:
        self._scanner = scanner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scanner, name)

    def to_reader(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self._scanner.projected_schema, self._scanner.to_batches())


def _format(record: TableRecord, schema: pa.Schema) -> ds.FileFormat:
    stored = pa.schema([schema.field(field["name"]) for field in record.stored])
    if record.file_format == "parquet":
        return ds.ParquetFileFormat()
    if record.file_format == "orc":
        return ds.OrcFileFormat()
    if record.file_format == "csv":
        return _csv(record, stored)
    raise UsageError(f"Tables in {record.file_format} are read by Spark only.", next="Use to_spark.")


def _json_batches(
    resolver: Resolver, record: TableRecord, files: Sequence[TableFile], place: Describe
) -> Iterator[pa.RecordBatch]:
    """Files of JSON lines, one after the other: Arrow's datasets do not make dates and times of text."""
    from pyarrow import json  # noqa: PLC0415 - one format of several

    _refuse_options(record, ("compression", *_ours(record, MOMENTS)))
    schema = arrow_schema(record)
    for field in schema:
        if field.name not in record.partition_by and (what := _unread_in_json(field.type)):
            raise UsageError(
                f"Column {field.name!r} has {what}, which only Spark reads in JSON.",
                next="Use to_spark, or choose other columns.",
            )
    kinds = {field["name"]: kind_of(field) for field in record.fields}
    stored = [schema.field(field["name"]) for field in record.stored]
    parsed = pa.schema([field.with_type(pa.string()) if _is_text(field.type) else field for field in stored])
    options = json.ParseOptions(explicit_schema=parsed, unexpected_field_behavior="ignore")
    source = fs.PyFileSystem(Files(resolver, files, place))
    for at, file in enumerate(files):
        if not file.info.size:
            continue
        name = f"{at}/{file.relative}"
        with source.open_input_stream(name, compression="detect") as lines:
            rows = json.read_json(lines, parse_options=options)
        columns = []
        for field in schema:
            if field.name in record.partition_by:
                text = file.partition[field.name]
                columns.append(pa.repeat(_partition_scalar(field, text, kinds[field.name]), len(rows)))
            else:
                columns.append(rows.column(field.name).cast(field.type))
        yield from pa.table(columns, schema=schema).to_batches()


def _unread_in_json(kind: pa.DataType) -> str:
    """What Arrow's reader of JSON does not make of a type: bytes, which JSON holds as texts, and maps."""
    if pa.types.is_map(kind):
        return "maps"
    if pa.types.is_nested(kind):
        return next(filter(None, (_unread_in_json(kind.field(at).type) for at in range(kind.num_fields))), "")
    return "bytes" if pa.types.is_binary(kind) else ""


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))


def _refuse_options(record: TableRecord, known: Sequence[str]) -> None:
    other = [name for name in record.options if name.lower() not in known]
    if other:
        raise UsageError(
            f"The table has the option {other[0]!r}, which only Spark knows to read by.", next="Use to_spark."
        )


def _ours(record: TableRecord, safe: Mapping[str, str]) -> list[str]:
    """The options of a table that have the values that Arrow reads anyway."""
    lower = {name.lower(): value for name, value in safe.items()}
    return [name.lower() for name, value in record.options.items() if lower.get(name.lower()) == value]


def _csv(record: TableRecord, stored: pa.Schema) -> ds.FileFormat:
    from pyarrow import csv  # noqa: PLC0415 - one format of several

    known = ("header", "sep", "delimiter", "quote", "escape", "nullvalue", "encoding", "compression", "multiline")
    _refuse_options(record, (*known, *_ours(record, SAFE_OPTIONS["csv"])))
    options = {name.lower(): value for name, value in record.options.items()}
    is_doubled = options.get("escape") == options.get("quote", '"')  # as RFC 4180 has it
    has_header = options.get("header", "false") == "true"
    return ds.CsvFileFormat(
        parse_options=csv.ParseOptions(
            delimiter=options.get("sep", options.get("delimiter", ",")),
            quote_char=options.get("quote", '"') or False,
            double_quote=is_doubled,
            escape_char=False if is_doubled else options.get("escape", "\\") or False,
            newlines_in_values=options.get("multiline", "false") == "true",
        ),
        # a file with a header may lack columns that came later
        read_options=csv.ReadOptions(
            column_names=None if has_header else stored.names, encoding=options.get("encoding", "utf8").lower()
        ),
        convert_options=csv.ConvertOptions(
            column_types=stored,
            null_values=[options.get("nullvalue", "")],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            true_values=["true"],
            false_values=["false"],
        ),
    )


def _filter(condition: Condition | None) -> pc.Expression | None:
    try:
        return None if condition is None else condition.arrow()
    except (pa.ArrowException, OverflowError) as error:
        raise _unfit(error) from error


def _unfit(error: Exception) -> UsageError:
    return UsageError(
        f"Arrow cannot compare a column with a value of the condition: {reason_of(error)}.",
        next="Use a value of the column's type and range, or read with to_spark.",
    )


@dataclass(frozen=True, slots=True)
class Scan:
    """What is read of a table.

    Attributes:
        files: those that may hold a row.
        condition: that rows have to fulfil, or None.
        columns: which ones, in this order; None for all.
    """

    resolver: Resolver
    record: TableRecord
    files: Sequence[TableFile]
    place: Describe
    condition: Condition | None = None
    columns: Sequence[str] | None = None


def _dataset(scan: Scan, kind: type[ds.FileSystemDataset] = ds.FileSystemDataset) -> ds.Dataset:
    return dataset_of(scan.resolver, _needed(scan), scan.files, scan.place, kind)


def _needed(scan: Scan) -> TableRecord:
    """The record with the columns that are needed only: others may be of types that Arrow does not read."""
    record = scan.record
    if scan.columns is None:
        return record
    names = {*scan.columns, *(scan.condition.columns() if scan.condition is not None else ())}
    if record.file_format == "csv":  # columns are told apart by their places
        names.update(field["name"] for field in record.stored)
    return msgspec.structs.replace(
        record,
        fields=tuple(field for field in record.fields if field["name"] in names),
        partition_by=tuple(name for name in record.partition_by if name in names),
        statistics=None,
    )


def rows_of(scan: Scan) -> pa.RecordBatchReader:
    """A stream of the rows for which a condition is true; what goes wrong on the way is said in our words."""
    scanner = _scanner(scan)

    def batches() -> Iterator[pa.RecordBatch]:
        with _in_our_words(scan.place):
            yield from scanner.to_batches()

    return pa.RecordBatchReader.from_batches(scanner.projected_schema, batches())


def table_of(scan: Scan) -> pa.Table:
    """The rows of `rows_of` in memory, read side by side."""
    with _in_our_words(scan.place):
        return _scanner(scan).to_table()


def count_of(scan: Scan) -> int:
    """How many rows a condition is true for."""
    columns = sorted(scan.condition.columns()) if scan.condition is not None else [scan.record.stored[0]["name"]]
    with _in_our_words(scan.place):
        if scan.record.file_format == "json":
            return sum(map(len, rows_of(replace(scan, columns=columns))))
        return int(_dataset(replace(scan, columns=columns)).count_rows(filter=_filter(scan.condition)))


@contextmanager
def _in_our_words(place: Describe) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeError) as error:
        raise StorageError(
            f"A file of {place()} cannot be read: {reason_of(error)}.",
            next="`strandline fsck` says whether it is damaged; if not, to_spark may read what Arrow does not.",
        ) from error


def _scanner(scan: Scan) -> Any:
    record, condition = scan.record, scan.condition
    chosen = list(record.names if scan.columns is None else scan.columns)
    matching = _filter(condition)
    if scan.record.file_format == "json":
        needed = _needed(scan)
        lines = _json_batches(scan.resolver, needed, scan.files, scan.place)
        scanner = ds.Scanner.from_batches(lines, schema=arrow_schema(needed), columns=chosen, filter=matching)
    else:
        dataset = _dataset(scan)
        try:
            scanner = dataset.scanner(columns=chosen, filter=matching)
        except pa.ArrowException as error:
            raise _unfit(error) from error
    return scanner


def source_of(scan: Scan) -> ds.Dataset | pa.Table:
    """The matching rows as something that can be read more than once: a dataset; of JSON lines, a table in memory."""
    if scan.record.file_format == "json":
        return table_of(scan)
    dataset = _dataset(scan, _Streamed)
    return dataset if scan.condition is None else dataset.filter(_filter(scan.condition))
