"""Files that somebody else writes as the files of a table: what each of them is, seen where the source is listed.

A file counts as it was before if its address, size and tag are those on record. Of all others the footer is read: it
has the columns, and statistics for reads that skip files.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from strandline.blob import BlobNotFound, Resolver
from strandline.errors import Contention, UsageError, some_paths
from strandline.parallel import in_parallel
from strandline.tables.columns import Kind, spark_fields
from strandline.tables.formats import FileFormat
from strandline.tables.layout import NULL_PARTITION, is_data_file, is_hidden, partition_folders, partition_values
from strandline.tables.record import Field
from strandline.tables.statistics import encode_statistics, footer_statistics
from strandline.tables.values import partition_value
from strandline.tree.rows import BoolArray, column, search

SPARK_FIELDS = b"org.apache.spark.sql.parquet.row.metadata"
"""What Spark calls its own schema in the footer of a Parquet file."""


class Mirrored(msgspec.Struct, frozen=True):
    """What the files of a source must be, and what is wanted of them.

    Attributes:
        prefix: of the table's paths.
        record_path: of the table's record, which the source does not have.
        partition_kinds: by the names of the partition columns, outermost first.
        statistics: columns of which footers tell the least and the greatest value.
    """

    prefix: str
    record_path: str
    file_format: FileFormat
    partition_kinds: dict[str, Kind | None]
    statistics: dict[str, Kind]


class Seen(msgspec.Struct):
    """What a worker has seen: the columns of the files that are new, each once, as JSON of their fields."""

    fields: dict[str, None] = {}


def dressed(mirrored: Mirrored, rows: pa.Table, held: pa.Table, resolver: Resolver, seen: Seen) -> pa.Table:
    """The data files among listed rows, with statistics.

    Args:
        rows, held: sorted by path; of the listing, and of the branch in the same stretch.

    Raises:
        UsageError: a file is of another format, or lies in other folders; or the table has files of its own.
        Contention: a file that was listed is gone.
    """
    _refuse_own_files(mirrored, held)
    relative = [path[len(mirrored.prefix) :] for path in column(rows, "path").to_pylist()]
    rows = rows.filter(pa.array([not is_hidden(name) for name in relative], pa.bool_())).combine_chunks()
    relative = [name for name in relative if not is_hidden(name)]
    _refuse_others(mirrored, relative)
    known, before = _as_before(rows, held)
    fresh = np.flatnonzero(~known)
    told: list[str | None] = column(rows, "user_metadata").to_pylist()
    for at in np.flatnonzero(known):
        told[at] = before[at]
    if mirrored.file_format == "parquet" and len(fresh):
        addresses = column(rows, "physical_address").take(pa.array(fresh)).to_pylist()
        for at, footer in zip(fresh, in_parallel(lambda one: footer_of(resolver, one), addresses), strict=True):
            told[at] = encode_statistics(footer_statistics(footer, mirrored.statistics))
            seen.fields[msgspec.json.encode(fields_of(footer)).decode()] = None
    where = rows.schema.get_field_index("user_metadata")
    return rows.set_column(where, rows.schema.field(where), pa.array(told, pa.string()))


def _refuse_own_files(mirrored: Mirrored, held: pa.Table) -> None:
    """Nothing that only this table has may go because a source does not have it."""
    addresses, paths = column(held, "physical_address"), column(held, "path")
    is_own = pc.and_(pc.invert(pc.match_substring(addresses, "://")), pc.not_equal(paths, mirrored.record_path))
    if pc.any(is_own).as_py():
        shown = paths.filter(is_own).slice(0, 3).to_pylist()
        raise UsageError(
            f"The table has files of its own, which the source does not have: {some_paths(shown)}.",
            next="Mirror to another path; or drop this table, and mirror then.",
        )


def _refuse_others(mirrored: Mirrored, relative: Sequence[str]) -> None:
    others = [name for name in relative if not is_data_file(name, mirrored.file_format)]
    if others:
        raise UsageError(
            f"The source has files of other formats than {mirrored.file_format}: {some_paths(others[:3])}.",
            next="Mirror a folder that holds one table; names that begin with '_' or '.' do not count.",
        )
    names = tuple(mirrored.partition_kinds)
    folders = {name.rpartition("/")[0]: name for name in relative}
    for name in folders.values():
        found = tuple(folder.partition("=")[0] for folder in partition_folders(name))
        if found != names:
            raise UsageError(
                f"The folders of {name!r} name the columns {list(found)}, and those of the table {list(names)}.",
                next="Mirror a folder in which all files are partitioned alike.",
            )
        for column_name, text in partition_values(name, names).items():
            kind = mirrored.partition_kinds[column_name]
            if text is not None and kind != "string" and partition_value(text, kind) is None:
                raise UsageError(
                    f"The folder of {name!r} says {text!r} for {column_name!r}, which is not of type {kind}.",
                    next=f"Name another type in partition_types, such as 'string'; null is {NULL_PARTITION}.",
                )


def _as_before(rows: pa.Table, held: pa.Table) -> tuple[BoolArray, list[str | None]]:
    """Which rows the branch has with the same bytes, and their user metadata there."""
    positions, found = search(column(held, "path"), column(rows, "path"))
    if not held.num_rows:
        return found, [None] * rows.num_rows
    there = held.take(pa.array(np.minimum(positions, held.num_rows - 1)))
    for name in ("physical_address", "size", "checksum"):
        same = pc.fill_null(pc.equal(column(there, name), column(rows, name)), False)
        found = found & same.to_numpy(zero_copy_only=False)
    metadata: list[str | None] = column(there, "user_metadata").to_pylist()
    return found, metadata


def footer_of(resolver: Resolver, address: str) -> pq.FileMetaData:
    """The footer of a Parquet file.

    Raises:
        Contention: it is gone.
        UsageError: it is none.
    """
    shown = address.partition("?")[0]
    try:
        store, key = resolver.resolve(address)
        with store.open_read(key) as file:
            return pq.read_metadata(file)
    except BlobNotFound:
        raise Contention(
            f"{shown!r} was listed and is gone: the source changes while it is read.",
            safe="Nothing of it is visible.",
            next="Mirror again when its writer is done.",
        ) from None
    except (pa.ArrowInvalid, OSError) as error:
        raise UsageError(
            f"{shown!r} is not a Parquet file: {str(error).splitlines()[0]}",
            next="If it is being written, mirror again when its writer is done.",
        ) from error


def fields_of(footer: pq.FileMetaData) -> list[Field]:
    """The columns of a Parquet file: as Spark wrote them down, or as Arrow reads them."""
    noted = (footer.metadata or {}).get(SPARK_FIELDS)
    if noted is not None:
        found: list[Field] = json.loads(noted)["fields"]
        return found
    return spark_fields(footer.schema.to_arrow_schema())
