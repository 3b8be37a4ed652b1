"""Writing a table: an engine writes files into a private folder, and one attach makes all of it visible, or nothing.

The plan is the same whoever writes: which record the table has afterwards, which files go, what may not have changed.
An engine brings the rows (`Source`): Spark, or Arrow in this process.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
from blake3 import blake3

from strandline.blob import BlobInfo, BlobNotFound, BlobStore
from strandline.branch.locking import LOCK_PATIENCE_S, waiting_for_locks
from strandline.core.overwrite import Overwrite
from strandline.core.upload import upload
from strandline.errors import Conflict, StorageError, UsageError
from strandline.parallel import in_parallel
from strandline.results.rows import ObjectInfo, as_info
from strandline.tables.columns import Kind
from strandline.tables.condition import Condition, must_match
from strandline.tables.given import is_spark_column
from strandline.tables.history import REWRITE, WHERE_MAX_CHARS, Mark, digest_of, encode_mark
from strandline.tables.keys import among, told
from strandline.tables.layout import (
    OVERWRITE_NAME,
    is_data_file,
    is_hidden,
    partition_folders,
    partition_values,
)
from strandline.tables.outcomes import WriteResult
from strandline.tables.place import WritableTableRef
from strandline.tables.record import (
    RECORD_NAME,
    Field,
    TableRecord,
    WriteMode,
    WriteOptions,
    encode_record,
    plan_record,
    with_schema_default,
)
from strandline.tables.scan import PartitionKey, Pruning, TableFile, partition_key, rows_in, total_rows
from strandline.tables.statistics import Statistics, columns_to_read, encode_statistics, parquet_statistics
from strandline.tables.table import Table
from strandline.tree.rows import Entry

CONTENT_TYPES = {
    "parquet": "application/vnd.apache.parquet",
    "orc": "application/vnd.apache.orc",
    "avro": "application/vnd.apache.avro",
    "json": "application/x-ndjson",
    "csv": "text/csv",
}
MIN_FILE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Written:
    """The files of a write, before anything refers to them.

    Attributes:
        prefix: the key of the folder that they lie in.
        names: below it; None for all that lies there, if nobody else writes there.
    """

    prefix: str
    names: frozenset[str] | None = None


class Source(Protocol):
    """The rows of a write, and the engine that writes them."""

    @property
    def engine(self) -> str:
        """Its name, for sentences."""

    @property
    def fields(self) -> Sequence[Field]:
        """The columns, as Spark's schema JSON has them."""

    @property
    def zone(self) -> str:
        """The time zone of a moment without one in the text of a condition."""

    def fitted(self, record: TableRecord) -> Source:
        """The rows with the table's columns, in its order, narrower types widened and missing columns null."""

    def condition(self, record: TableRecord, column: Any) -> Condition:
        """What a column of Spark's says of the rows of the table.

        Raises:
            UsageError: the engine is not Spark.
        """

    def replacing(
        self,
        table: Table,
        record: TableRecord,
        where: Any,
        condition: Condition,
        partly: Sequence[TableFile],
        *,
        fits: bool = True,
    ) -> Source:
        """The rows, each of which has to fulfil a condition, and those of some files that do not fulfil it.

        Args:
            fits: refuse rows that do not fulfil it.
            where: the condition as the caller gave it: a text, a column of Spark's, or a frame of keys.
        """

    def own_rows(self) -> int | None:
        """After `write`: how many rows the caller brought, those of replaced files apart; None if nobody counted."""

    def write(
        self, table: Table, record: TableRecord, new_folder: Callable[[], str], target_file_bytes: int | None
    ) -> Written:
        """Write files below a key of the repository's namespace, in the folders of their partitions.

        Args:
            new_folder: gives a key under which nothing lies.

        Raises:
            UsageError: a row does not fulfil the condition, or a value does not fit.
            StorageError: the engine failed.
        """

    def statistics(
        self, table: Table, record: TableRecord, files: Sequence[TableFile], columns: Mapping[str, Kind]
    ) -> dict[str, Statistics]:
        """What is known of the files of a format without footers, by physical address; of some perhaps nothing."""


def write_rows(table: Table, rows: Source, options: WriteOptions, rewritten: Sequence[TableFile] = ()) -> WriteResult:
    """Let an engine write files, and stage them with all that the options say; see `Table.write`.

    Args:
        rewritten: files that go, whose rows are those that are written. Nothing else of the table is touched.
    """
    branch = table.ref._for_writing()
    if branch.is_repeat:
        return WriteResult(files=0, bytes=0, rows=0, changes=0, engine_seconds=0.0, strandline_seconds=0.0)
    with branch.writing():
        return _write(table, branch, rows, options, rewritten)


def _write(
    table: Table, branch: WritableTableRef, rows: Source, options: WriteOptions, rewritten: Sequence[TableFile]
) -> WriteResult:
    started = time.monotonic()
    most = options.target_file_bytes
    held_info, held, record = planned(table, branch, rows.fields, options)
    rows = rows.fitted(record)
    replaced = _those(table, rewritten) if rewritten else _whole(options.mode, record)
    if options.where is not None:
        rows, replaced = _replace_where(table, rows, options, held, record)
    core = branch._core
    engine_started = time.monotonic()
    try:
        written = rows.write(table, record, branch._new_folder, most)
        engine_seconds = time.monotonic() - engine_started
        files = _found(table, record, written, rows.engine)
        # before anything refers to them, the files must be as durable as all else
        core.resolver.namespace.sync([file.info.physical_address for file in files])
        files = _with_checksums(core.resolver.namespace, files)
        statistics = _statistics(rows, table, record, files)
    except (StorageError, BlobNotFound) as error:
        branch.refuse_doomed(error)  # what is gone may have been collected: then it is doomed, not damaged
        if isinstance(error, BlobNotFound):
            raise StorageError(
                f"A file that {rows.engine} has just written for table {table.path!r} is gone: {error}.",
                safe="Nothing of it is visible on the branch.",
                next="Write again.",
            ) from error
        raise
    rows_written = total_rows(statistics.get(file.info.physical_address) for file in files)
    if rewritten:
        _refuse_other_count(table, rows_in(rewritten), rows_written)
    # a file without rows, as Spark writes one for an empty frame, would only be opened by each reader
    files = [file for file in files if _rows(file, statistics) != 0]
    if replaced is not None and replaced.where and not replaced.taken and rows_written == 0:
        files, replaced = [], None  # nothing is replaced by nothing, and nobody needs to hear of it
    entries = [(file.info.path, _entry(file, statistics)) for file in files]
    if held != record:
        entry = upload(core, branch._new_key(RECORD_NAME), RECORD_NAME, encode_record(record), "application/json", None)
        entries.append((table.record_path, entry))
    folders = {partition_folders(file.relative) for file in files}
    partitions = {partition_key(file.relative, record) for file in files}
    if replaced is not None:
        said = _mark(written.prefix, REWRITE if rewritten else options.mode, replaced, rows)
        body = json.dumps({"write": said.write}).encode()
        key = branch._new_key(OVERWRITE_NAME)
        marker = upload(core, key, OVERWRITE_NAME, body, "application/json", encode_mark(said))
        marked = folders | replaced.folders
        entries += [("/".join((table.path, *parts, OVERWRITE_NAME)), marker) for parts in sorted(marked)]

    def is_kept(path: str, entry: Entry) -> bool:
        assert replaced is not None
        relative = path[len(table.prefix) :]
        return relative == RECORD_NAME or replaced.is_kept(relative, entry, partitions)

    overwrite = None
    if replaced is not None:
        taken = [table.prefix + relative for relative in replaced.taken]
        overwrite = Overwrite(below=table.prefix, keep=is_kept, present=taken, if_changed=options.if_changed)
    expect = {table.record_path: None if held_info is None else held_info.checksum}
    changes = waiting_for_locks(
        core.stores.clock, LOCK_PATIENCE_S, lambda: branch.stage_atomically(entries, overwrite, expect)
    )
    size_bytes = sum(file.info.size for file in files)
    branch._wrote(len(files), rows_written, size_bytes)
    return WriteResult(
        files=len(files),
        bytes=size_bytes,
        rows=rows_written,
        changes=changes,
        engine_seconds=engine_seconds,
        strandline_seconds=time.monotonic() - started - engine_seconds,
    )


def _refuse_other_count(table: Table, before: int | None, after: int | None) -> None:
    """Refuse to put other files in the place of some if they have more rows, or fewer."""
    if before is not None and after is not None and before != after:
        raise StorageError(
            f"{before:,} rows of table {table.path!r} were to be written anew, and {after:,} were written.",
            safe="Nothing of it is visible on the branch.",
            next="Look for damaged files: `strandline fsck --content`; then repeat the call.",
        )


def planned(
    table: Table, branch: WritableTableRef, fields: Sequence[Field], options: WriteOptions
) -> tuple[ObjectInfo | None, TableRecord | None, TableRecord]:
    """The record that a table has, and its object, or None; and the one that it has after a write.

    Raises:
        UsageError: the options do not fit together, or a table cannot be there.
        SchemaMismatch: the columns are not the table's, and the change was not asked for.
    """
    most = options.target_file_bytes
    if most is not None and most < MIN_FILE_BYTES:
        raise UsageError(f"Files of {most:,} bytes are too small.", next="Use at least 1 MiB.")
    held_info, held = table._find_record()
    if held is None:
        _refuse_bad_place(branch, table)
    return held_info, held, plan_record(held, fields, options, table.path)


def set_schema_default(table: Table, wanted: str) -> None:
    """Stage a record with another default; see `Table.set_schema_default`."""
    branch = table.ref._for_writing()
    record = with_schema_default(table.record, wanted)
    if branch.is_repeat:
        return
    with branch.writing():
        info, held = table._find_record()
        if info is None or held is None or msgspec.structs.replace(record, format=held.format) == held:
            return
        key = branch._new_key(RECORD_NAME)
        entry = upload(branch._core, key, RECORD_NAME, encode_record(record), "application/json", None)
        branch.stage_atomically([(table.record_path, entry)], expect={table.record_path: info.checksum})


def _mark(prefix: str, mode: str, replaced: _Replaced, rows: Source) -> Mark:
    """What the write says of itself, for the history of the table."""
    own_rows = rows.own_rows() if replaced.where else None
    return Mark(
        write=prefix.rpartition("=")[2],
        mode=mode,
        where=replaced.where[:WHERE_MAX_CHARS],
        new_rows=0 if mode == REWRITE else own_rows,
        replaced=replaced.digest,
    )


def _refuse_bad_place(branch: WritableTableRef, table: Table) -> None:
    """Refuse a new table where an object is, inside another table, or around one."""
    if branch.exists(table.path):
        raise UsageError(f"{table.path!r} is an object, so it cannot be a table.", next="Take another path.")
    if branch.exists(table.iceberg_path):
        raise UsageError(
            f"{table.path!r} is an Iceberg table, not a native one.",
            next="Write to it through Iceberg's catalog, or take it back with table.from_iceberg().",
        )
    parts = table.path.split("/")
    inside = ["/".join(parts[:depth]) for depth in range(1, len(parts))]
    around = [found.path for found in branch.list(table.prefix) if found.path.endswith("/" + RECORD_NAME)]
    tables = [path for path in inside if branch.exists(f"{path}/{RECORD_NAME}")] + around
    if tables:
        other = tables[0].removesuffix("/" + RECORD_NAME)
        raise UsageError(
            f"{table.path!r} and the table {other!r} would lie one in the other.", next="Take another path."
        )


# --- what a write takes away ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Replaced:
    """What a write takes away.

    Attributes:
        folders: partition folders that it takes something from, besides those that it writes to.
        is_kept: whether an object below the table stays, by its relative path, entry, and the partitions written to.
        taken: relative paths of files whose rows were read to be written again, or that are dropped unread.
        where: the condition, if only some rows are replaced.
        digest: of the files that are taken away, if only some rows are replaced.
    """

    folders: frozenset[tuple[str, ...]]
    is_kept: Callable[[str, Entry, set[PartitionKey]], bool]
    taken: Collection[str] = ()
    where: str = ""
    digest: str = ""


def _whole(mode: WriteMode, record: TableRecord) -> _Replaced | None:
    if mode == "append":
        return None
    if mode == "overwrite":
        return _Replaced(frozenset({()}), lambda relative, entry, written: False)
    return _Replaced(frozenset(), lambda relative, entry, written: partition_key(relative, record) not in written)


def _those(table: Table, files: Sequence[TableFile]) -> _Replaced:
    """Some files, if they are still what they were; whatever else comes to the table stays."""
    gone = {file.relative: file.info.physical_address for file in files}

    def is_kept(relative: str, entry: Entry, _: set[PartitionKey]) -> bool:
        if relative in gone and entry.physical_address != gone[relative]:
            raise _changed(table, relative)
        return relative not in gone

    folders = frozenset(partition_folders(relative) for relative in gone)
    return _Replaced(folders, is_kept, taken=gone, digest=digest_of(gone.values()))


def _replace_where(
    table: Table, rows: Source, options: WriteOptions, held: TableRecord | None, record: TableRecord
) -> tuple[Source, _Replaced]:
    """The rows to write, and the files to take away, when those that a condition is true for are replaced."""
    if options.mode != "overwrite":
        raise UsageError(
            f"where= says which rows are replaced, and mode={options.mode!r} replaces none by it.",
            next='Use it with mode="overwrite".',
        )
    if held is None:
        raise UsageError(
            f"There is no table {table.path!r} in {table.ref!r} of which rows could be replaced.",
            next="Write it first, without where=. Transactions, and writes with message=, see what is committed only.",
        )
    layout = [(one.partition_by, one.file_format, one.options) for one in (held, record)]
    if options.schema == "replace" or layout[0] != layout[1]:
        raise UsageError(
            "where= replaces some rows, and the others would not be read as they were written in another layout.",
            next="Change the schema or the layout in a write of all rows.",
        )
    where = options.where
    condition = _condition(rows, record, where)
    pruning = Pruning(record, condition)
    known = {file.relative: file for file in table._files(record)}
    touched = pruning.needed(known.values())
    partly = [file for file in touched if not must_match(condition, pruning.spans(file))]
    rows = rows.replacing(table, record, where, condition, partly, fits=options.fits)
    gone = {file.relative: file.info.physical_address for file in touched}

    def is_kept(relative: str, entry: Entry, _: set[PartitionKey]) -> bool:
        if relative in gone:
            if entry.physical_address != gone[relative]:
                raise _changed(table, relative)
            return False
        if relative not in known and is_data_file(relative, record.file_format):
            info = as_info(table.prefix + relative, entry)
            file = TableFile(info, relative, partition_values(relative, record.partition_by))
            if pruning.needed([file]):
                raise _changed(table, relative)
        return True

    return rows, _Replaced(
        folders=frozenset(partition_folders(relative) for relative in gone),
        is_kept=is_kept,
        taken=gone,
        where=told(where, condition),
        digest=digest_of(gone.values()),
    )


def _condition(rows: Source, record: TableRecord, where: Any) -> Condition:
    if isinstance(where, str):
        from strandline.tables.condition_text import parse_condition, refuse_changing  # noqa: PLC0415 - loads a SQL parser

        condition = parse_condition(where, record, rows.zone)
        refuse_changing(where, record)
        return condition
    return rows.condition(record, where) if is_spark_column(where) else among(where, record)


def outside(where: str) -> UsageError:
    """What a write says of rows that do not fulfil its condition: they would be there twice after the next one."""
    return UsageError(
        f"A row of the data does not fulfil {where!r}.",
        safe="Nothing of it is visible on the branch.",
        next="Take these rows out, or replace more with another condition.",
    )


def _changed(table: Table, relative: str) -> Conflict:
    path = table.prefix + relative
    return Conflict(
        f"{path!r} was added or changed by somebody else while rows like its own were being replaced.",
        paths=[path],
        next="Nothing of this write is visible; write again to replace these rows as well.",
    )


# --- what the engine left ---------------------------------------------------------------------------------------------


def _found(table: Table, record: TableRecord, written: Written, engine: str) -> list[TableFile]:
    """The files of a write that belong to the table; what else lies there stays invisible."""
    found = []
    for blob in table.ref._core.resolver.namespace.list(written.prefix + "/"):
        relative = blob.key[len(written.prefix) + 1 :]
        if written.names is not None and relative not in written.names:
            continue  # of an attempt of a task that another one replaced
        if is_data_file(relative, record.file_format):
            info = as_info(table.prefix + relative, _plain_entry(blob, record))
            found.append(TableFile(info, relative, partition_values(relative, record.partition_by)))
        elif not is_hidden(relative):
            raise StorageError(
                f"{engine} wrote a file that is none of the table's {record.file_format} files: {relative!r}.",
                safe="Nothing of the write is visible on the branch.",
                next="Look at the options of the format, such as its compression.",
            )
    gone = (written.names or frozenset()) - {file.relative for file in found}
    if gone:
        raise BlobNotFound(f"{written.prefix}/{min(gone)}")
    return sorted(found, key=lambda file: file.relative)


def _with_checksums(blobs: BlobStore, files: list[TableFile]) -> list[TableFile]:
    """The files with checksums of our own, where reading them again costs little: on this machine, from its memory."""

    def hashed(file: TableFile) -> TableFile:
        path = blobs.local_path(file.info.physical_address)
        if path is None:
            return file
        digest = blake3(max_threads=blake3.AUTO).update_mmap(path).hexdigest()
        return dataclasses.replace(file, info=msgspec.structs.replace(file.info, checksum=f"blake3:{digest}"))

    return list(in_parallel(hashed, files))


def _plain_entry(blob: BlobInfo, record: TableRecord) -> Entry:
    content_type = CONTENT_TYPES[record.file_format]
    return Entry(blob.key, blob.size, f"etag:{blob.etag}", blob.modified_at_us, content_type)


def _statistics(rows: Source, table: Table, record: TableRecord, files: Sequence[TableFile]) -> dict[str, Statistics]:
    """What is known of the files, by physical address."""
    columns = columns_to_read(record)
    if record.file_format != "parquet":
        return rows.statistics(table, record, files, columns)
    blobs = table.ref._core.resolver.namespace

    def footer(file: TableFile) -> tuple[str, Statistics]:
        try:
            with blobs.open_read(file.info.physical_address) as source:
                return file.info.physical_address, parquet_statistics(source, columns)
        except BlobNotFound:  # of a driver that was declared dead, perhaps: then the error says so
            raise table.ref._missing(file.info) from None

    return dict(in_parallel(footer, files))


def _rows(file: TableFile, statistics: dict[str, Statistics]) -> int | None:
    known = statistics.get(file.info.physical_address)
    return None if known is None else known.rows


def _entry(file: TableFile, statistics: dict[str, Statistics]) -> Entry:
    info = file.info
    known = statistics.get(info.physical_address)
    metadata = None if known is None else encode_statistics(known)
    return Entry(info.physical_address, info.size, info.checksum, info.modified_at_us, info.content_type, metadata)
