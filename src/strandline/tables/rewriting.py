"""Writing a table's files anew: small ones together, or rows in another order. No row comes or goes.

Files are put into groups, each of one partition; a group is written by itself, here or in a task of an engine. Then one
write takes all groups' files out and puts the new ones in. Whatever others add to the table meanwhile stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from strandline.blob import BlobStore, Resolver
from strandline.clock import Microseconds
from strandline.engines import engine
from strandline.errors import StorageError, UsageError
from strandline.tables.arrow_rows import ArrowRows, refuse_unfit, write_files
from strandline.tables.frames import Scan, rows_of
from strandline.tables.given import reason_of
from strandline.tables.history import REWRITE, Mark, digest_of, write_of
from strandline.tables.layout import partition_folders
from strandline.tables.outcomes import FilesRewritten
from strandline.tables.record import TableRecord, WriteOptions
from strandline.tables.scan import TableFile
from strandline.tables.table import Table
from strandline.tables.upkeep_rule import LEAST_FILES
from strandline.tables.writing import Written, planned, write_rows
from strandline.tables.written import WrittenRows

SMALL = 0.75
"""A file with less than this part of the wanted size is small."""
ORDERED_FILES = 8
"""How many files' worth of rows are put in order together: they are in memory at once."""
CURVE_BITS = 10
"""Into how many places, as a power of two, the values of a column fall on the curve."""


@dataclass(frozen=True)
class Rewriting:
    """How files are written anew.

    Attributes:
        target_file_bytes: how big files become, about.
        sort_by: columns by which the rows of a group are sorted.
        z_order_by: columns along whose Z-order curve they are sorted.
        min_files: fewer files of a partition are left, if only small ones are taken.
        before_us: files that were written later are left.
        only_small: take small files alone although rows get an order.
    """

    target_file_bytes: int
    sort_by: tuple[str, ...] = ()
    z_order_by: tuple[str, ...] = ()
    min_files: int = LEAST_FILES
    before_us: Microseconds | None = None
    only_small: bool = False

    @property
    def is_ordered(self) -> bool:
        return bool(self.sort_by or self.z_order_by)

    @property
    def takes_all(self) -> bool:
        """Whether large files are taken as well, and single ones."""
        return self.is_ordered and not self.only_small


@dataclass(frozen=True)
class Group:
    """Files of one partition that become others together; with all that is needed to write them, where the keys of the
    store are at hand."""

    url: str
    prefix: str
    record: TableRecord
    files: Sequence[TableFile]
    how: Rewriting
    path: str

    @property
    def bytes(self) -> int:
        return sum(file.info.size for file in self.files)


class Rewriters(Protocol):
    """Writes groups: in this process, or on Spark."""

    def run(self, groups: Sequence[Group]) -> Iterator[list[str]]:
        """The names of the files of each group, below the folder of the write."""


class RewritersHere:
    """One group after the other in this process."""

    def __init__(self, store: BlobStore, resolver: Resolver) -> None:
        self._store, self._resolver = store, resolver

    def run(self, groups: Sequence[Group]) -> Iterator[list[str]]:
        for group in groups:
            yield write_group(group, self._store, self._resolver)


def rewrite(table: Table, how: Rewriting, where: Any, spark: Any) -> FilesRewritten:
    """Write files of a table anew; see `Table.rewrite_files`."""
    record, files, _ = table._chosen(where, None)
    branch = table.ref._for_writing()
    planned(table, branch, record.fields, WriteOptions(target_file_bytes=how.target_file_bytes))
    _check(table, record, how)
    rewriters: Rewriters
    core = branch._core
    namespace = core.resolver.namespace
    rewriters = engine("spark").rewriters(spark, core) if spark else RewritersHere(namespace, core.resolver)
    chosen = chosen_groups(files, how)
    if not chosen:
        return FilesRewritten()
    prefix = branch._new_folder()
    groups = [Group(namespace.url, prefix, record, part, how, table.path) for part in chosen]
    names = [name for made in rewriters.run(groups) for name in made]
    gone = [file for part in chosen for file in part]
    rows = WrittenRows("Arrow", record.fields, Written(prefix, frozenset(names)))
    done = write_rows(table, rows, WriteOptions(), rewritten=gone)
    before = sum(file.info.size for file in gone)
    return FilesRewritten(before=len(gone), after=done.files, bytes_before=before, bytes_after=done.bytes)


def _check(table: Table, record: TableRecord, how: Rewriting) -> None:
    if record.file_format != "parquet":
        raise UsageError(
            f"Table {table.path!r} is in {record.file_format}, and only tables in Parquet are written anew.",
            next="Overwrite it with its own rows: table.write(…, mode='overwrite').",
        )
    refuse_unfit(record)
    if how.sort_by and how.z_order_by:
        raise UsageError("Rows have one order.", next="Give sort_by or z_order_by.")
    for name in (*how.sort_by, *how.z_order_by):
        if name not in record.names:
            raise UsageError(f"Table {table.path!r} has no column {name!r}.", next=f"It has {', '.join(record.names)}.")
        if name in record.partition_by:
            raise UsageError(
                f"All rows of a partition have the same {name!r}, by which the table is partitioned.",
                next="Order by other columns.",
            )
    for field in record.fields:
        if field["name"] in (*how.sort_by, *how.z_order_by) and not isinstance(field["type"], str):
            raise UsageError(f"Column {field['name']!r} has no order.", next="Order by columns of plain types.")


def chosen_groups(files: Sequence[TableFile], how: Rewriting) -> list[list[TableFile]]:
    """Which files are written anew, in groups of one partition: small ones, up to a file's size together; all of them
    if rows get an order. A group whose only file would be written as it is, is none."""
    limit = how.target_file_bytes * (ORDERED_FILES if how.is_ordered else 1)
    groups: list[list[TableFile]] = []
    ordered = sorted(files, key=lambda file: (partition_folders(file.relative), file.relative))
    for _, partition in groupby(ordered, key=lambda file: partition_folders(file.relative)):
        group: list[TableFile] = []
        filled = 0
        taken = [file for file in partition if _is_taken(file, how)]
        if len(taken) < how.min_files and not how.takes_all:
            continue
        for file in taken:
            if group and filled + file.info.size > limit:
                groups.append(group)
                group, filled = [], 0
            group.append(file)
            filled += file.info.size
        groups.append(group)
    return [group for group in groups if len(group) >= (1 if how.takes_all else LEAST_FILES)]


def _is_taken(file: TableFile, how: Rewriting) -> bool:
    is_small = file.info.size < SMALL * how.target_file_bytes
    return (is_small or how.takes_all) and (how.before_us is None or file.info.modified_at_us < how.before_us)


def new_beside(marks: Sequence[Mark], went: Sequence[TableFile], came: Sequence[TableFile]) -> list[TableFile] | None:
    """The files that came with new rows, if those that went were written anew; None if that is not known.

    The mark of a rewriting names the files that it took the place of. It counts only if those are the very files that
    went: after a change of the rows, or of other files as well, they are not.

    Args:
        marks: that came with the files.
    """
    written = {mark.write: mark.replaced for mark in marks if mark.mode == REWRITE}
    if len(written) != 1:
        return None
    ((write, replaced),) = written.items()
    if digest_of(file.info.physical_address for file in went) != replaced:
        return None
    return [file for file in came if write_of(file.info.physical_address) != write]


def write_group(group: Group, store: BlobStore, resolver: Resolver) -> list[str]:
    """Write the rows of a group, wherever this runs."""
    place = f"table {group.path!r}"
    try:
        return _write_group(group, store, rows_of(Scan(resolver, group.record, group.files, lambda: place)))
    except (pa.ArrowException, MemoryError) as error:
        raise StorageError(
            f"Files of table {group.path!r} could not be written anew: {reason_of(error)}.",
            safe="Nothing of it is visible.",
            next="Give the process more memory, or rewrite with a smaller target_file_bytes.",
        ) from error


def _write_group(group: Group, store: BlobStore, batches: Iterator[pa.RecordBatch]) -> list[str]:
    first = next(batches, None)
    if first is None:
        return []
    if not group.how.is_ordered:

        def all_batches() -> Iterator[pa.RecordBatch]:
            yield first
            yield from batches

        rows = ArrowRows(first.schema, all_batches).fitted(group.record)
        return write_files(rows, group.record, store, group.prefix, None, group.path)
    whole = pa.Table.from_batches([first, *batches])
    order = _order(whole, group.how)
    # by their share of the bytes that the same rows had in files, which tells more than their size in memory
    most = max(1, whole.num_rows * group.how.target_file_bytes // max(1, group.bytes))
    names: list[str] = []
    for at in range(0, whole.num_rows, most):
        part = whole.take(order.slice(at, most))  # file by file: a copy of all of it would not fit beside it
        rows = ArrowRows(part.schema, part.to_batches).fitted(group.record)
        names += write_files(rows, group.record, store, group.prefix, None, group.path)
    return names


def _order(rows: pa.Table, how: Rewriting) -> pa.Array:
    if how.sort_by:
        return pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in how.sort_by])
    return pa.array(np.argsort(z_values([rows.column(name) for name in how.z_order_by]), kind="stable"))


def z_values(columns: Sequence[pa.ChunkedArray]) -> npt.NDArray[np.uint64]:
    """Where rows lie on the Z-order curve (Morton 1966): the bits of their places in each column, by turns.

    A place is a rank among the rows, cut to as many bits as fit, so that columns of any type and spread count alike.

    Args:
        columns: at most 64.
    """
    rows = len(columns[0])
    bits = min(CURVE_BITS, 64 // len(columns))
    found = np.zeros(rows, np.uint64)
    for at, column in enumerate(columns):
        ranks = pc.rank(column, tiebreaker="min").to_numpy().astype(np.uint64) - np.uint64(1)
        places = (ranks << np.uint64(bits)) // np.uint64(max(1, rows))
        for bit in range(bits):
            to = np.uint64(bit * len(columns) + len(columns) - 1 - at)
            found |= ((places >> np.uint64(bit)) & np.uint64(1)) << to
    return found
