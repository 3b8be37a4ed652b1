"""Writing a table: Spark writes natively into a private folder, and one attach makes all of it visible, or nothing."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from strandline.blob import BlobInfo
from strandline.errors import StorageError, UsageError
from strandline.ids import new_id
from strandline.repository.branch import Branch
from strandline.repository.upload import upload
from strandline.tables.layout import OVERWRITE_NAME, is_data_file, partition_folders, physical_prefix
from strandline.tables.record import (
    RECORD_NAME,
    SchemaChange,
    WriteMode,
    encode_record,
    plan_record,
)
from strandline.tables.table import Table, TableWrite
from strandline.tree.rows import Entry


def write_table(
    table: Table,
    data: DataFrame,
    mode: WriteMode,
    partition_by: Sequence[str] | None,
    change: SchemaChange | None,
) -> TableWrite:
    started = time.monotonic()
    branch = table.ref
    if not isinstance(branch, Branch):
        raise UsageError(f"{branch!r} cannot be written.", next="Write to a branch.")
    branch._refuse_early("stage")
    if not isinstance(data, DataFrame):
        raise UsageError(
            f"A table is written from a Spark DataFrame, not from {type(data).__name__}.",
            next="Make one with spark.createDataFrame(…).",
        )
    held_info, held = table.find_record()
    if held is None:
        _refuse_bad_place(branch, table)
    record = plan_record(held, data.schema.jsonValue()["fields"], mode, partition_by, change, table.path)
    blobs = branch._core.resolver.namespace
    prefix = physical_prefix(branch.branch_id, new_id())
    spark_started = time.monotonic()
    _let_spark_write(data, record.partition_by, blobs.spark_url(prefix), table)
    spark_seconds = time.monotonic() - spark_started
    files = [info for info in blobs.list(prefix + "/") if is_data_file(info.key[len(prefix) + 1 :])]
    # before anything refers to them, the files must be as durable as all else
    blobs.sync([info.key for info in files])
    entries = [_entry(table, prefix, info) for info in files]
    if held != record:
        body = encode_record(record)
        entry = upload(branch._core, branch.branch_id, RECORD_NAME, body, "application/json", None)
        entries.append((table.record_path, entry))
    replaced = {partition_folders(info.key[len(prefix) + 1 :]) for info in files}
    if mode != "append":
        if mode == "overwrite":
            replaced.add(())
        body = json.dumps({"write": prefix.rpartition("=")[2]}).encode()
        marker = upload(branch._core, branch.branch_id, OVERWRITE_NAME, body, "application/json", None)
        entries += [("/".join((table.path, *folders, OVERWRITE_NAME)), marker) for folders in sorted(replaced)]

    def is_kept(path: str) -> bool:
        relative = path[len(table.prefix) :]
        if relative == RECORD_NAME:
            return True
        return mode == "overwrite_partitions" and partition_folders(relative) not in replaced

    changes = branch.stage_atomically(
        entries,
        replace_below=None if mode == "append" else table.prefix,
        keep=is_kept,
        expect={table.record_path: None if held_info is None else held_info.checksum},
    )
    return TableWrite(
        files=len(files),
        bytes=sum(info.size for info in files),
        changes=changes,
        spark_seconds=spark_seconds,
        strandline_seconds=time.monotonic() - started - spark_seconds,
    )


def _refuse_bad_place(branch: Branch, table: Table) -> None:
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


def _let_spark_write(data: DataFrame, partition_by: Sequence[str], url: str, table: Table) -> None:
    # static: a session with dynamic partition overwrite breaks the committers of object stores
    writer = data.write.mode("errorifexists").option("partitionOverwriteMode", "static")
    if partition_by:
        writer = writer.partitionBy(*partition_by)
    try:
        writer.parquet(url)
    except PySparkException as error:
        reason = str(error).strip().partition("\n")[0]
        raise StorageError(
            f"Spark failed to write table {table.path!r}: {reason}",
            safe="Nothing of it is visible on the branch.",
            next="Mend the job, then write again.",
        ) from error


def _entry(table: Table, prefix: str, info: BlobInfo) -> tuple[str, Entry]:
    relative = info.key[len(prefix) + 1 :]
    entry = Entry(info.key, info.size, f"etag:{info.etag}", info.modified_at_us, "application/vnd.apache.parquet")
    return table.prefix + relative, entry
