"""Writing a table: Spark writes natively into a private folder, and one attach makes all of it visible, or nothing."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from strandline.blob import BlobInfo, BlobNotFound
from strandline.branch.locking import LOCK_PATIENCE_S, waiting_for_locks
from strandline.errors import Conflict, StorageError, StrandlineError, UsageError
from strandline.parallel import in_parallel
from strandline.repository.objects.upload import upload
from strandline.repository.objects.writable import Overwrite, Writable
from strandline.repository.refs.results import as_info
from strandline.spark.read import TIME_ZONE, no_filesystem, quoted, scan_files
from strandline.spark.session import described, held_settings, reason_of
from strandline.spark.statistics import computed_statistics
from strandline.tables.condition import must_match, refused
from strandline.tables.layout import (
    OVERWRITE_NAME,
    is_data_file,
    is_hidden,
    partition_folders,
    partition_values,
)
from strandline.tables.record import (
    RECORD_NAME,
    TableRecord,
    WriteMode,
    WriteOptions,
    encode_record,
    plan_record,
)
from strandline.tables.scan import PartitionKey, Pruning, TableFile, partition_key
from strandline.tables.statistics import Statistics, columns_to_read, encode_statistics, parquet_statistics
from strandline.tables.table import Table, WriteResult
from strandline.tree.rows import Entry

CONTENT_TYPES = {
    "parquet": "application/vnd.apache.parquet",
    "orc": "application/vnd.apache.orc",
    "avro": "application/vnd.apache.avro",
    "json": "application/x-ndjson",
    "csv": "text/csv",
}
TIMESTAMPS = {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}
"""Spark's default, INT96, has no statistics and is deprecated."""
ADVISORY_BYTES = "spark.sql.adaptive.advisoryPartitionSizeInBytes"
MIN_FILE_BYTES = 1 << 20


def write_table(table: Table, data: DataFrame, options: WriteOptions) -> WriteResult:
    """Let Spark write files, and stage them with all that the options say; see `Table.write`."""
    branch = table.ref
    if not isinstance(branch, Writable):
        raise UsageError(f"{branch!r} cannot be written.", next="Write to a branch.")
    if branch.is_repeat:
        return WriteResult(files=0, bytes=0, rows=0, changes=0, spark_seconds=0.0, strandline_seconds=0.0)
    with branch.writing():
        return _write(table, branch, data, options)


def _write(table: Table, branch: Writable, data: DataFrame, options: WriteOptions) -> WriteResult:
    started = time.monotonic()
    if not hasattr(data, "sparkSession"):
        raise UsageError(
            f"A table is written from a Spark DataFrame, not from {type(data).__name__}.",
            next="Make one with spark.createDataFrame(…).",
        )
    most = options.target_file_bytes
    if most is not None and most < MIN_FILE_BYTES:
        raise UsageError(f"Files of {most:,} bytes are too small.", next="Use at least 1 MiB.")
    held_info, held = table._find_record()
    if held is None:
        _refuse_bad_place(branch, table)
    record = plan_record(held, data.schema.jsonValue()["fields"], options, table.path)
    rows = _fitting(data, record)
    replaced = _whole(options.mode, record)
    if options.where is not None:
        rows, replaced = _replace_where(table, rows, options.mode, held, record, options.where)
    core = branch._core
    prefix = branch._new_folder()
    spark_started = time.monotonic()
    try:
        with described(data.sparkSession, f"strandline: write {table.path} on {core.name}/{branch.name}"):
            _let_spark_write(rows, record, core.resolver.namespace.spark_url(prefix), table, most)
            spark_seconds = time.monotonic() - spark_started
            files = _written(table, record, prefix)
            # before anything refers to them, the files must be as durable as all else
            core.resolver.namespace.sync([file.info.physical_address for file in files])
            statistics = _statistics(data, table, record, files)
    except (StorageError, BlobNotFound) as error:
        branch.refuse_doomed(error)  # what is gone may have been collected: then it is doomed, not damaged
        if isinstance(error, BlobNotFound):
            raise StorageError(
                f"A file that Spark has just written for table {table.path!r} is gone: {error}.",
                safe="Nothing of it is visible on the branch.",
                next="Write again.",
            ) from error
        raise
    entries = [(file.info.path, _entry(file, statistics)) for file in files]
    if held != record:
        entry = upload(core, branch._new_key(RECORD_NAME), RECORD_NAME, encode_record(record), "application/json", None)
        entries.append((table.record_path, entry))
    folders = {partition_folders(file.relative) for file in files}
    partitions = {partition_key(file.relative, record) for file in files}
    if replaced is not None:
        body = json.dumps({"write": prefix.rpartition("=")[2]}).encode()
        marker = upload(core, branch._new_key(OVERWRITE_NAME), OVERWRITE_NAME, body, "application/json", None)
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
    counted = [statistics.get(file.info.physical_address) for file in files]
    rows_written = None if any(one is None for one in counted) else sum(one.rows for one in counted if one is not None)
    size_bytes = sum(file.info.size for file in files)
    branch._wrote(len(files), rows_written, size_bytes)
    return WriteResult(
        files=len(files),
        bytes=size_bytes,
        rows=rows_written,
        changes=changes,
        spark_seconds=spark_seconds,
        strandline_seconds=time.monotonic() - started - spark_seconds,
    )


def _refuse_bad_place(branch: Writable, table: Table) -> None:
    """Refuse a new table where an object is, inside another table, or around one."""
    if branch.exists(table.path):
        raise UsageError(f"{table.path!r} is an object, so it cannot be a table.", next="Take another path.")
    parts = table.path.split("/")
    inside = ["/".join(parts[:depth]) for depth in range(1, len(parts))]
    around = [found.path for found in branch.list(table.prefix) if found.path.endswith("/" + RECORD_NAME)]
    tables = [path for path in inside if branch.exists(f"{path}/{RECORD_NAME}")] + around
    if tables:
        other = tables[0].removesuffix("/" + RECORD_NAME)
        raise UsageError(
            f"{table.path!r} and the table {other!r} would lie one in the other.", next="Take another path."
        )


def _fitting(data: DataFrame, record: TableRecord) -> DataFrame:
    """The data with the table's columns, in its order, narrower types widened and missing columns null."""
    schema = StructType.fromJson({"type": "struct", "fields": list(record.fields)})
    held = {field.name: field.dataType for field in data.schema.fields}
    if list(held) == list(record.names) and all(
        held[field.name].simpleString() == field.dataType.simpleString() for field in schema.fields
    ):
        return data
    return data.select(
        *(
            (quoted(field.name) if field.name in held else F.lit(None)).cast(field.dataType).alias(field.name)
            for field in schema.fields
        )
    )


# --- what a write takes away ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Replaced:
    """What a write takes away.

    Attributes:
        folders: partition folders that it takes something from, besides those that it writes to.
        is_kept: whether an object below the table stays, by its relative path, entry, and the partitions written to.
        taken: relative paths of files whose rows were read to be written again, or that are dropped unread.
    """

    folders: frozenset[tuple[str, ...]]
    is_kept: Callable[[str, Entry, set[PartitionKey]], bool]
    taken: Collection[str] = ()


def _whole(mode: WriteMode, record: TableRecord) -> _Replaced | None:
    if mode == "append":
        return None
    if mode == "overwrite":
        return _Replaced(frozenset({()}), lambda relative, entry, written: False)
    return _Replaced(frozenset(), lambda relative, entry, written: partition_key(relative, record) not in written)


def _replace_where(
    table: Table, data: DataFrame, mode: WriteMode, held: TableRecord | None, record: TableRecord, where: str
) -> tuple[DataFrame, _Replaced]:
    """The rows to write, and the files to take away, when those that a condition is true for are replaced."""
    from strandline.tables.condition_text import parse_condition  # noqa: PLC0415 - loads a SQL parser

    if mode != "overwrite" or held is None or held.fields != record.fields:
        raise UsageError(
            "where= replaces rows of a table that exists, with its own columns.",
            next='Use it with mode="overwrite", and change the schema in another write.',
        )
    spark = data.sparkSession
    zone = spark.conf.get("spark.sql.session.timeZone") or TIME_ZONE
    condition = parse_condition(where, record, zone)
    pruning = Pruning(record, condition)
    known = {file.relative: file for file in table._files(record)}
    touched = pruning.needed(known.values())
    partly = [file for file in touched if not must_match(condition, pruning.spans(file))]
    is_true = F.coalesce(F.expr(where), F.lit(False))
    outside = F.raise_error(F.lit(f"a row of the data does not fulfil {where}")).cast("boolean")
    try:
        rows = data.where(F.when(is_true, F.lit(True)).otherwise(outside))
        if partly:
            rows = rows.unionByName(scan_files(spark, table, record, partly).where(~is_true))
        rows.isStreaming  # noqa: B018 - on Spark Connect nobody has looked at the condition yet
    except StrandlineError:
        raise
    except Exception as error:
        raise refused(where, record, reason_of(error)) from error
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

    return rows, _Replaced(frozenset(partition_folders(relative) for relative in gone), is_kept, gone)


def _changed(table: Table, relative: str) -> Conflict:
    path = table.prefix + relative
    return Conflict(
        f"{path!r} was added or changed by somebody else while rows like its own were being replaced.",
        paths=[path],
        next="Nothing of this write is visible; write again to replace these rows as well.",
    )


# --- Spark's part, and what it left -----------------------------------------------------------------------------------


def _let_spark_write(
    data: DataFrame, record: TableRecord, url: str, table: Table, target_file_bytes: int | None
) -> None:
    settings = dict(TIMESTAMPS)
    if target_file_bytes is not None:
        settings[ADVISORY_BYTES] = str(target_file_bytes)
        columns: list[Column] = [quoted(name) for name in record.partition_by]
        data = data.hint("rebalance", *columns)
    # static: a session with dynamic partition overwrite breaks the committers of object stores
    writer = data.write.format(record.file_format).mode("error").options(**record.options)
    writer = writer.option("partitionOverwriteMode", "static").option("timeZone", TIME_ZONE)
    if record.partition_by:
        writer = writer.partitionBy(*record.partition_by)
    try:
        with held_settings(data.sparkSession, settings):
            writer.save(url)
    except Exception as error:
        if "FileSystem not found" in str(error) or "No FileSystem for scheme" in str(error):
            raise no_filesystem(table.ref._core) from error
        raise StorageError(
            f"Spark failed to write table {table.path!r}: {reason_of(error)}.",
            safe="Nothing of it is visible on the branch.",
            next=_advice(str(error)),
        ) from error


def _advice(text: str) -> str:
    if (
        "AVRO_NOT_LOADED_SQL_FUNCTIONS_UNUSABLE" in text
        or "spark-avro" in text
        or "Failed to find data source: avro" in text
    ):
        return "Avro is not part of PySpark: start the session with the package org.apache.spark:spark-avro_2.13."
    return "Mend the job, then write again."


def _written(table: Table, record: TableRecord, prefix: str) -> list[TableFile]:
    """The files of a write that belong to the table; what else lies there stays invisible."""
    found = []
    for blob in table.ref._core.resolver.namespace.list(prefix + "/"):
        relative = blob.key[len(prefix) + 1 :]
        if is_data_file(relative, record.file_format):
            info = as_info(table.prefix + relative, _plain_entry(blob, record))
            found.append(TableFile(info, relative, partition_values(relative, record.partition_by)))
        elif not is_hidden(relative):
            raise StorageError(
                f"Spark wrote a file that is none of the table's {record.file_format} files: {relative!r}.",
                safe="Nothing of the write is visible on the branch.",
                next="Look at the options of the format, such as its compression.",
            )
    return sorted(found, key=lambda file: file.relative)


def _plain_entry(blob: BlobInfo, record: TableRecord) -> Entry:
    content_type = CONTENT_TYPES[record.file_format]
    return Entry(blob.key, blob.size, f"etag:{blob.etag}", blob.modified_at_us, content_type)


def _statistics(
    data: DataFrame, table: Table, record: TableRecord, files: Sequence[TableFile]
) -> dict[str, Statistics]:
    """What is known of the files, by physical address."""
    columns = columns_to_read(record)
    if record.file_format != "parquet":
        return computed_statistics(data.sparkSession, table, record, files, columns)
    blobs = table.ref._core.resolver.namespace

    def footer(file: TableFile) -> tuple[str, Statistics]:
        try:
            with blobs.open_read(file.info.physical_address) as source:
                return file.info.physical_address, parquet_statistics(source, columns)
        except BlobNotFound:  # of a driver that was declared dead, perhaps: then the error says so
            raise table.ref._missing(file.info) from None

    return dict(in_parallel(footer, files))


def _entry(file: TableFile, statistics: dict[str, Statistics]) -> Entry:
    info = file.info
    known = statistics.get(info.physical_address)
    metadata = None if known is None else encode_statistics(known)
    return Entry(info.physical_address, info.size, info.checksum, info.modified_at_us, info.content_type, metadata)
