"""Position deletes and compactions on a branch, as engines make them: PyIceberg writes neither."""

from __future__ import annotations

import io
import secrets
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.manifest import ManifestContent
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _OverwriteFiles

from strandline.iceberg import Catalog
from strandline.iceberg.live import AvroFile, read_file
from strandline.iceberg.position_deletes import PATH_FIELD_ID, SCHEMA
from strandline.iceberg.tables import TableChange, Tables
from strandline.repository.branch import Branch
from tests.iceberg.branches import T
from tests.iceberg.making import added


class Compacting(Catalog):
    """What Spark does in rewrite_data_files: PyIceberg knows no snapshots that say so."""

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> Any:
        for one in updates:
            if one.action == "add-snapshot":
                one.snapshot.summary.__dict__["operation"] = Operation.REPLACE  # the model is frozen
        return super().commit_table(table, requirements, updates)


class _WithoutDeletes(_OverwriteFiles):
    def _existing_manifests(self) -> Any:
        return [one for one in super()._existing_manifests() if one.content != ManifestContent.DELETES]


def compact(branch: Branch, *, drops_deletes: bool = False) -> None:
    """Write all rows into one file.

    Args:
        drops_deletes: delete files go as well, which are of no rows any more.
    """
    table = Compacting(branch).load_table(T)
    held = table.scan().to_arrow()
    kind: type[_OverwriteFiles] = _WithoutDeletes if drops_deletes else _OverwriteFiles
    with table.transaction() as tx, kind(Operation.OVERWRITE, tx, table.io) as snapshot:
        for task in table.scan().plan_files():
            snapshot.delete_data_file(task.file)
        for file in _dataframe_to_data_files(tx.table_metadata, held, table.io):
            snapshot.append_data_file(file)


def delete_by_position(branch: Branch, key: int) -> None:
    """Delete the row of a key by a file that says where it is."""
    tables, blobs = Tables(branch), branch._core.resolver.namespace
    held = tables.load(["db", "t"]).metadata
    folder, id = tables.key_of(held["location"]), secrets.randbits(60)
    path, place = _place(branch, key)
    out = io.BytesIO()
    pq.write_table(pa.table({"file_path": [path], "pos": [place]}, SCHEMA), out)
    name = f"{folder}/data/deletes-{id}.parquet"
    blobs.put(name, out.getvalue())
    last = next(one for one in held["snapshots"] if one["snapshot-id"] == held["current-snapshot-id"])
    listing = read_file(blobs, last["manifest-list"])
    like = read_file(blobs, next(one for one in listing.records if not one["content"])["manifest_path"])
    bound: list[Any] = [{"key": PATH_FIELD_ID, "value": path.encode()}]
    file = {**like.records[0]["data_file"], "content": 1, "file_path": tables.url_of(name), "record_count": 1}
    file |= {"file_size_in_bytes": out.tell(), "lower_bounds": bound, "upper_bounds": bound}
    entry: dict[str, Any] = {
        "status": 1,
        "snapshot_id": id,
        "sequence_number": None,
        "file_sequence_number": None,
        "data_file": file,
    }

    def stored(records: list[Any], source: AvroFile, name: str, **more: str) -> tuple[str, int]:
        out = io.BytesIO()
        plain = {key: value for key, value in source.schema.items() if not key.startswith("__")}
        fastavro.writer(out, plain, records, metadata={**source.metadata, **more})
        blobs.put(f"{folder}/metadata/{name}", out.getvalue())
        return tables.url_of(f"{folder}/metadata/{name}"), out.tell()

    manifest, size = stored([{**like.records[0], **entry}], like, f"{id}-m0.avro", content="deletes")
    sequence = held["last-sequence-number"] + 1
    counts: dict[str, Any] = {
        f"{word}_{what}_count": 0 for word in ("added", "existing", "deleted") for what in ("files", "rows")
    }
    row: dict[str, Any] = {
        **listing.records[0],
        **counts,
        "added_files_count": 1,
        "added_rows_count": 1,
        "added_snapshot_id": id,
    }
    row |= {"manifest_path": manifest, "manifest_length": size, "content": 1}
    row |= {"sequence_number": sequence, "min_sequence_number": sequence}
    made = {**last, "snapshot-id": id, "parent-snapshot-id": last["snapshot-id"], "sequence-number": sequence}
    made |= {"manifest-list": stored([*listing.records, row], listing, f"snap-{id}.avro")[0]}
    made |= {"summary": {"operation": "delete"}, "timestamp-ms": held["last-updated-ms"] + 1}
    tables.commit([TableChange(("db", "t"), [], added(made))])


def _place(branch: Branch, key: int) -> tuple[str, int]:
    """The file that has the row of a key, and where in it."""
    for task in Catalog(branch).load_table(T).scan().plan_files():
        held = pq.read_table(task.file.file_path.removeprefix("file://"))["k"].to_pylist()
        if key in held:
            return task.file.file_path, held.index(key)
    raise KeyError(key)
