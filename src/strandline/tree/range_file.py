"""Ranges and metaranges as bytes: Parquet that any reader understands, named by the hash of what it says.

The hash is of the values, not of the file, so that another version of the Parquet library gives the same ids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from blake3 import blake3

from strandline.errors import Corrupted, NewerFormat
from strandline.ids import MetaRangeId, RangeId
from strandline.tree.rows import POOL, SCHEMA, column

FLAT_FORMAT = 1
"""Of metaranges that list ranges."""
RANGE_FORMAT = 2
"""What is read. 2 has the column `etag`, and is written only for ranges in which some object has an ETag."""
VERSION_KEY = b"strandline.format"
ID_BYTES = 20
COMPRESSION = "lz4"
"""A quarter of zstd's writing time; Spark, DuckDB and Polars read it."""


class RangeInfo(msgspec.Struct, frozen=True, gc=False):
    """A range as its metarange describes it.

    Attributes:
        id: hash of its rows.
        address: key of its file in the storage namespace; unique to this writing of it.
        min_path, max_path: its first and last path.
        count: its rows.
        raw_bytes: the size that `chunking.raw_bytes` gives.
        height: of a node, how many levels are below it; of a range none.
    """

    height: ClassVar[int] = 0

    id: RangeId
    address: str
    min_path: str
    max_path: str
    count: int
    raw_bytes: int


METARANGE_SCHEMA = pa.schema(
    [
        pa.field("range_id", pa.string(), nullable=False),
        pa.field("address", pa.string(), nullable=False),
        pa.field("min_path", pa.string(), nullable=False),
        pa.field("max_path", pa.string(), nullable=False),
        pa.field("count", pa.int64(), nullable=False),
        pa.field("raw_bytes", pa.int64(), nullable=False),
    ]
)


_PATHS = pa.schema([SCHEMA.field("path")])
_FIRST_SCHEMA = pa.schema([field for field in SCHEMA if field.name != "etag"])
"""Of ranges of format 1."""


def _format_of(rows: pa.Table) -> int:
    return 1 if column(rows, "etag").null_count == rows.num_rows else RANGE_FORMAT


def _schema_of(version: int) -> pa.Schema:
    return _FIRST_SCHEMA if version == 1 else SCHEMA


def range_id(rows: pa.Table) -> RangeId:
    """Hash of the rows: column by column, the lengths, the bytes and the nulls, all little-endian."""
    version = _format_of(rows)
    digest = blake3(b"strandline.range.%d" % version)
    digest.update(rows.num_rows.to_bytes(8, "little"))
    for field in _schema_of(version):
        array = column(rows, field.name)
        if array.null_count:
            nulls = array.is_null().to_numpy(zero_copy_only=False)
            digest.update(b"\1" + np.packbits(nulls, bitorder="little").tobytes())
        else:
            digest.update(b"\0")
        buffers, first, last = array.buffers(), array.offset, array.offset + len(array)
        if pa.types.is_string(field.type):
            offsets = np.frombuffer(buffers[1], "<i4")[first : last + 1]
            digest.update(np.diff(offsets).astype("<i4").tobytes())
            if buffers[2] is not None:
                digest.update(memoryview(buffers[2])[int(offsets[0]) : int(offsets[-1])])
        elif array.null_count:
            digest.update(array.cast(pa.int64()).fill_null(0).to_numpy().astype("<i8").tobytes())
        else:
            digest.update(np.frombuffer(buffers[1], "<i8")[first:last].tobytes())
    return RangeId(digest.hexdigest(length=ID_BYTES))


def metarange_id(ranges: Sequence[RangeInfo]) -> MetaRangeId:
    """Hash of the ids, bounds and counts of the ranges; not of where their files are."""
    digest = blake3(b"strandline.metarange.1")
    for info in ranges:
        low, high = info.min_path.encode(), info.max_path.encode()
        digest.update(
            b"".join(
                (
                    bytes.fromhex(info.id),
                    len(low).to_bytes(4, "little"),
                    low,
                    len(high).to_bytes(4, "little"),
                    high,
                    info.count.to_bytes(8, "little"),
                    info.raw_bytes.to_bytes(8, "little"),
                )
            )
        )
    return MetaRangeId(digest.hexdigest(length=ID_BYTES))


def write_parquet(table: pa.Table, version: int) -> bytes:
    """A file of a tree, with the format of its kind of file."""
    buffer = pa.BufferOutputStream()
    versioned = table.replace_schema_metadata({VERSION_KEY: b"%d" % version})
    pq.write_table(versioned, buffer, compression=COMPRESSION, use_dictionary=False, memory_pool=POOL)
    content: bytes = buffer.getvalue().to_pybytes()
    return content


def read_parquet(
    data: bytes, schema_of: Callable[[int], pa.Schema], newest: int, name: str, columns: list[str] | None = None
) -> pa.Table:
    """The rows of such a file, whose columns are those of its format.

    Raises:
        Corrupted: it is not a Parquet file, or has other columns.
        NewerFormat: a newer strandline wrote it.
    """
    advice = "Restore the file from a backup, or use a commit that does not need it."
    try:
        table = pq.ParquetFile(pa.BufferReader(data)).read(columns, use_threads=False)
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        raise Corrupted(f"{name} is not a readable Parquet file: {error}.", next=advice) from error
    version = (table.schema.metadata or {}).get(VERSION_KEY, b"")
    if version.isdigit() and int(version) > newest:
        raise NewerFormat(
            f"{name} has format {version.decode()}; this strandline reads up to {newest}.",
            next="Upgrade strandline.",
        )
    schema = schema_of(int(version) if version.isdigit() else newest)
    if not version.isdigit() or table.schema.names != schema.names:
        raise Corrupted(f"{name} is not a file that strandline wrote.", next=advice)
    try:
        table = table.cast(schema).combine_chunks()
        table.validate(full=True)  # among others that all text is UTF-8
    except (pa.ArrowException, ValueError) as error:
        raise Corrupted(f"{name} has other columns than it should: {error}.", next=advice) from error
    return table


def write_rows(rows: pa.Table) -> bytes:
    version = _format_of(rows)
    return write_parquet(rows.select(_schema_of(version).names), version)


def read_rows(data: bytes, expected: RangeId) -> pa.Table:
    """Read a range and check that it says what its id promises.

    Raises:
        Corrupted: it does not, or is not a Parquet file.
        NewerFormat: a newer strandline wrote it.
    """
    rows = read_parquet(data, _schema_of, RANGE_FORMAT, f"Range {expected}")
    if "etag" not in rows.schema.names:
        rows = rows.append_column(SCHEMA.field("etag"), pa.nulls(rows.num_rows, pa.string()))
    found = range_id(rows)
    if found != expected:
        raise Corrupted(
            f"Range {expected} holds other rows than were written: their hash is {found}.",
            next="Restore the file from a backup, or use a commit that does not need it.",
        )
    return rows


def read_paths(data: bytes, expected: RangeId) -> pa.StringArray:
    """The paths of a range, of which nothing else is read; its id, which is that of whole rows, is not checked."""
    table = read_parquet(data, lambda _: _PATHS, RANGE_FORMAT, f"Range {expected}", _PATHS.names)
    return table.column("path").chunk(0) if table.num_rows else pa.array([], pa.string())


def write_ranges(ranges: Sequence[RangeInfo]) -> bytes:
    columns = [
        pa.array([info.id for info in ranges], pa.string()),
        pa.array([info.address for info in ranges], pa.string()),
        pa.array([info.min_path for info in ranges], pa.string()),
        pa.array([info.max_path for info in ranges], pa.string()),
        pa.array([info.count for info in ranges], pa.int64()),
        pa.array([info.raw_bytes for info in ranges], pa.int64()),
    ]
    return write_parquet(pa.Table.from_arrays(columns, schema=METARANGE_SCHEMA), FLAT_FORMAT)
