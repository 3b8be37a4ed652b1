"""Updates as Parquet files: parts of batches, written once and read by any process that has the object store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec.structs import replace

from strandline.blob.store import BlobNotFound, BlobStore
from strandline.ids import new_id
from strandline.shards.rows.codec import DIFF, TIME, under_schema
from strandline.shards.rows.statistics import statistics_of
from strandline.shards.rows.updates import INT64, THREADED_ROWS, time_bounds, update_schema
from strandline.shards.state.state import Part

COMPRESSION = "lz4"
ROW_GROUP_ROWS = 262_144


@dataclass(frozen=True, slots=True)
class PartWriter:
    """Writes parts under one prefix, which belongs to one writer.

    Attributes:
        folder: of the shard in the store.
        inline_max_bytes: 0 to write all parts as blobs.
    """

    blobs: BlobStore
    folder: str
    owner: str
    schema_id: int
    inline_max_bytes: int

    def write(self, table: pa.Table, *, is_sorted: bool) -> Part:
        """Write updates, of which there is at least one; durable when it returns, unless it is inline."""
        first, last = time_bounds(table)
        has_diffs = not _all_ones(table)
        columns = [name for name in table.column_names if name not in (TIME, DIFF)]
        columns += ([TIME] if first != last else []) + ([DIFF] if has_diffs else [])
        raw = _parquet(table.select(columns))
        is_inline = len(raw) < self.inline_max_bytes
        key = "" if is_inline else f"{self.owner}/{new_id()}.parquet"
        if not is_inline:
            self.blobs.put(f"{self.folder}/{key}", raw, "create")
        return Part(
            key=key,
            inline=raw if is_inline else b"",
            rows=table.num_rows,
            size=len(raw),
            schema=self.schema_id,
            first=first,
            last=last,
            has_times=first != last,
            has_diffs=has_diffs,
            is_sorted=is_sorted,
            statistics=statistics_of(table, [name for name in columns if name not in (TIME, DIFF)]),
        )

    def flushed(self, part: Part) -> Part:
        """An inline part as a blob."""
        if part.key:
            return part
        key = f"{self.owner}/{new_id()}.parquet"
        self.blobs.put(f"{self.folder}/{key}", part.inline, "create")
        return replace(part, key=key, inline=b"")


def _all_ones(table: pa.Table) -> bool:
    found = pc.min_max(table.column(DIFF)).as_py()
    return bool(found["min"] == 1 and found["max"] == 1)


def _parquet(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    texts = [
        field.name for field in table.schema if pa.types.is_string(field.type) or pa.types.is_large_string(field.type)
    ]
    pq.write_table(table, sink, compression=COMPRESSION, use_dictionary=texts or False, row_group_size=ROW_GROUP_ROWS)
    raw: bytes = sink.getvalue().to_pybytes()
    return raw


def read_part(
    blobs: BlobStore,
    folder: str,
    part: Part,
    schema: pa.Schema,
    columns: Sequence[str] | None = None,
    where: pc.Expression | None = None,
) -> pa.Table:
    """The updates of a part, under a schema that is as new as the part's or newer.

    Args:
        columns: of the rows, which ones; by default all. Times and diffs always come along.
        where: which rows; it may name any column of the schema.

    Raises:
        BlobNotFound: the part was collected.
    """
    wanted = pa.schema([schema.field(name) for name in columns]) if columns is not None else schema
    source: pa.NativeFile | str
    path = None if not part.key else blobs.local_path(f"{folder}/{part.key}")
    source = path if path is not None else pa.BufferReader(part.inline or blobs.get(f"{folder}/{part.key}"))
    try:
        return _read(source, part, schema, wanted, where)
    except FileNotFoundError:
        raise BlobNotFound(part.key) from None


def _read(
    source: pa.NativeFile | str, part: Part, schema: pa.Schema, wanted: pa.Schema, where: pc.Expression | None
) -> pa.Table:
    own = [name for name, is_held in ((TIME, part.has_times), (DIFF, part.has_diffs)) if is_held]
    if where is None:
        with pq.ParquetFile(source, memory_map=isinstance(source, str)) as file:
            names = [name for name in file.schema_arrow.names if name in (*wanted.names, *own)]
            table = file.read(columns=names, use_threads=part.rows > THREADED_ROWS)
    else:  # row groups that cannot match are not read; columns that an older writer had not are null
        fields = [*schema, *(pa.field(name, INT64) for name in own)]
        # Arrow's datasets import pandas: two seconds that few processes need
        from strandline.shards.rows import pruning  # noqa: PLC0415 - loads pandas

        table = pruning.matching_rows(source, pa.schema(fields), [*wanted.names, *own], where)
    rows = table.num_rows
    times = table.column(TIME) if part.has_times else pa.chunked_array([pa.repeat(pa.scalar(part.first, INT64), rows)])
    diffs = table.column(DIFF) if part.has_diffs else pa.chunked_array([pa.repeat(pa.scalar(1, INT64), rows)])
    found = under_schema(table, wanted)
    found = found.append_column(pa.field(TIME, INT64, False), times).append_column(pa.field(DIFF, INT64, False), diffs)
    return found.cast(update_schema(wanted)) if found.schema != update_schema(wanted) else found
