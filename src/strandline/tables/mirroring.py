"""Files that somebody else writes as the files of a table: what each of them is, seen where the source is listed.

A file counts as it was before if its address, size and tag are those on record. Of all others the footer is read: it
has the columns, and statistics for reads that skip files.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from strandline.blob import BlobNotFound, Resolver
from strandline.errors import Contention, UsageError, some_paths
from strandline.parallel import in_parallel
from strandline.tables.columns import Kind, arrow_type, kind_of, spark_fields
from strandline.tables.formats import FileFormat
from strandline.tables.layout import NULL_PARTITION, is_data_file, is_hidden, partition_names, partition_values
from strandline.tables.record import Field
from strandline.tables.statistics import Statistics, encode_statistics, footer_statistics
from strandline.tables.values import NOT_FINITE, partition_value
from strandline.tree.rows import BoolArray, column, search

SPARK_FIELDS = b"org.apache.spark.sql.parquet.row.metadata"
"""What Spark calls its own schema in the footer of a Parquet file."""


class Mirrored(msgspec.Struct, frozen=True):
    """What the files of a source must be, and what is wanted of them.

    Attributes:
        prefix: of the table's paths.
        record_path: of the table's record, which the source does not have.
        partition_types: as Spark calls them, by the names of the partition columns, outermost first.
        statistics: columns of which footers tell the least and the greatest value.
    """

    prefix: str
    record_path: str
    file_format: FileFormat
    partition_types: dict[str, str]
    statistics: dict[str, Kind]


class Seen(msgspec.Struct):
    """What a worker has seen.

    Attributes:
        fields: the columns of files that are new, as JSON of their fields, each with a file's path.
        files: how many data files there are.
    """

    fields: dict[str, str] = {}
    files: int = 0


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
    sizes = column(rows, "size").to_pylist()
    counts = [
        # consoles and Hadoop mark a folder of an object store by an empty object
        not is_hidden(name) and (size > 0 or is_data_file(name, mirrored.file_format))
        for name, size in zip(relative, sizes, strict=True)
    ]
    rows = rows.filter(pa.array(counts, pa.bool_())).combine_chunks()
    relative = [name for name, does in zip(relative, counts, strict=True) if does]
    _refuse_others(mirrored, relative)
    seen.files += len(relative)
    known, before = _as_before(rows, held)
    fresh = np.flatnonzero(~known)
    told: list[str | None] = column(rows, "user_metadata").to_pylist()
    for at in np.flatnonzero(known):
        told[at] = before[at]
    if mirrored.file_format == "parquet" and len(fresh):
        addresses = column(rows, "physical_address").take(pa.array(fresh)).to_pylist()
        for at, footer in zip(fresh, in_parallel(lambda one: footer_of(resolver, one), addresses), strict=True):
            told[at] = encode_statistics(_statistics_of(footer, mirrored))
            seen.fields.setdefault(msgspec.json.encode(fields_of(footer)).decode(), relative[at])
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
    names = tuple(mirrored.partition_types)
    folders = {name.rpartition("/")[0]: name for name in relative}
    for name in folders.values():
        found = partition_names(name)
        if found != names:
            raise UsageError(
                f"The folders of {name!r} name the columns {list(found)}, and those of the table {list(names)}.",
                next="Mirror a folder in which all files are partitioned alike.",
            )
        for column_name, text in partition_values(name, names).items():
            kind = mirrored.partition_types[column_name]
            if not _is_value(text, kind):
                raise UsageError(
                    f"The folder of {name!r} says {text!r} for {column_name!r}, which is of type {kind}.",
                    next=f"Name another type in partition_types, such as 'string'; null is {NULL_PARTITION}.",
                )


def _is_value(text: str | None, kind: str) -> bool:
    """Whether the text of a folder names a value of a type."""
    if text is None or kind == "string":
        return True
    family = kind_of({"type": kind})
    if family == "float":
        return text in NOT_FINITE or partition_value(text, family) is not None
    value = partition_value(text, family)
    if value is None:
        return False
    try:
        pa.scalar(value, pa.int64() if family in ("timestamp", "timestamp_ntz") else arrow_type(kind, ""))
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return False
    return True


def _statistics_of(footer: pq.FileMetaData, mirrored: Mirrored) -> Statistics:
    """Statistics, if the file's columns are of the table's types; if not, the whole is refused later."""
    try:
        return footer_statistics(footer, mirrored.statistics)
    except (AttributeError, TypeError, ValueError, ArithmeticError):
        return Statistics(footer.num_rows)


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
        raise gone(repr(shown)) from None
    except (pa.ArrowInvalid, OSError) as error:
        raise UsageError(
            f"{shown!r} is not a Parquet file: {str(error).splitlines()[0]}",
            next="If it is being written, mirror again when its writer is done.",
        ) from error


def gone(file: str) -> Contention:
    """What a mirror says of a file that somebody took away meanwhile."""
    return Contention(
        f"{file} was listed and is gone: the source changes while it is read.",
        safe="Nothing of it is visible.",
        next="Mirror again when its writer is done.",
    )


def fields_of(footer: pq.FileMetaData) -> list[Field]:
    """The columns of a Parquet file: as Spark wrote them down, where that can be of what is there, or as Arrow reads
    them. Others that write a file again may pass the note on, of columns that are others by then."""
    schema = footer.schema.to_arrow_schema()
    plain = spark_fields(schema)
    try:
        noted: list[Field] = json.loads((footer.metadata or {})[SPARK_FIELDS])["fields"]
        if [field["name"] for field in noted] == schema.names:
            return [
                one if _may_be(one["type"], other["type"]) else other for one, other in zip(noted, plain, strict=True)
            ]
    except (AttributeError, KeyError, TypeError, ValueError):
        pass
    return plain


def _may_be(noted: Any, plain: Any) -> bool:
    """Whether a type that Spark wrote down can be that of a column that Arrow reads as another one."""
    if isinstance(noted, dict) and noted["type"] == "udt":
        return _may_be(noted["sqlType"], plain)
    if isinstance(noted, dict) and isinstance(plain, dict):
        if noted["type"] != plain["type"]:
            return False
        if noted["type"] == "struct":
            both = noted["fields"], plain["fields"]
            names, others = ([field["name"] for field in fields] for fields in both)
            return names == others and all(_may_be(a["type"], b["type"]) for a, b in zip(*both, strict=True))
        inner = ("elementType",) if noted["type"] == "array" else ("keyType", "valueType")
        return all(_may_be(noted[name], plain[name]) for name in inner)
    if isinstance(noted, dict):
        return False
    if noted == "variant":
        return isinstance(plain, dict)
    family = next((family for starts, family in _WRITTEN_AS if noted.startswith(starts)), (noted,))
    return plain in family


_WRITTEN_AS = (
    (("string", "char(", "varchar("), ("string",)),
    (("timestamp",), ("timestamp", "timestamp_ntz")),
    (("interval",), ("integer", "long")),
)
"""How types of Spark begin, and what Arrow reads where a file has them."""
