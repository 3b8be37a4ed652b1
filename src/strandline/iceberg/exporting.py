"""A table as plain files that other catalogs read: at its current snapshot, with addresses of where it is exported to.

Manifests, their list and the metadata are written anew, since Iceberg's files name each other by whole addresses. The
metadata is `v1.metadata.json` with a hint beside it, as readers of a bare folder expect it.
"""

from __future__ import annotations

import io
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from strandline.core.iceberg_files import key_of
from strandline.core.repository_core import RepositoryCore
from strandline.errors import UsageError
from strandline.iceberg.building import MAIN
from strandline.iceberg.live import DELETED, POSITION_DELETES, AvroFile, avro_bytes, head_of, read_file, snapshot_of
from strandline.iceberg.position_deletes import FORMATS, PATH_COLUMN, PATH_FIELD_ID, rows_of
from strandline.iceberg.row_merging import JOINED
from strandline.iceberg.schemas import Json
from strandline.iceberg.settled import read_metadata
from strandline.iceberg.shapes import encoded
from strandline.iceberg.tables import FORCED
from strandline.results.rows import ObjectInfo


@dataclass(frozen=True, slots=True)
class TablePart:
    """A file of an exported table.

    Attributes:
        name: its path below the folder of the table.
        key: whose bytes it has; "" for those that were made.
        data: what was made.
    """

    name: str
    key: str = ""
    size: int = 0
    data: bytes = b""


def exported(core: RepositoryCore, pointer: ObjectInfo, place: str) -> list[TablePart]:
    """The files of a table as they are to be at a place.

    Args:
        pointer: the object that is the table.
        place: the address of the table's folder there, without a slash at the end.

    Raises:
        UsageError: its manifests are encrypted.
        Corrupted, ObjectMissing: a file of it cannot be read.
    """
    table = read_metadata(core, pointer.path, pointer.physical_address)
    if table.get("encryption-keys"):
        raise UsageError(
            f"The manifests of {pointer.path!r} are encrypted: they cannot be exported to another place.",
            safe="Nothing was written.",
            next="Leave it out.",
        )
    return _Export(core, place).parts(table)


class _Export:
    def __init__(self, core: RepositoryCore, place: str) -> None:
        self._blobs = core.resolver.namespace
        self._place = place
        self._parts: dict[str, TablePart] = {}
        self._names: dict[str, str] = {}

    def parts(self, table: Json) -> list[TablePart]:
        snapshot = snapshot_of(table, head_of(table))
        kept = {
            **{name: value for name, value in table.items() if name not in ("statistics", "partition-statistics")},
            "location": self._place,
            "properties": {
                name: value
                for name, value in (table.get("properties") or {}).items()
                if name not in (*FORCED, JOINED)  # another catalog's rules from now on
            },
            "snapshots": [],
            "snapshot-log": [],
            "metadata-log": [],
            "refs": {},
        }
        if snapshot is not None:
            kept["snapshots"] = [self._snapshot(snapshot)]
            kept["refs"] = {MAIN: {"snapshot-id": snapshot["snapshot-id"], "type": "branch"}}
        self._made("metadata/v1.metadata.json", encoded(kept))
        self._made("metadata/version-hint.text", b"1")
        return list(self._parts.values())

    def _snapshot(self, snapshot: Json) -> Json:
        if "manifest-list" not in snapshot:  # as the first versions wrote it
            made = [self._manifest(read_file(self._blobs, one))[0] for one in snapshot.get("manifests") or ()]
            return {**snapshot, "manifests": made}
        listing = read_file(self._blobs, snapshot["manifest-list"])
        for one in listing.records:
            one["manifest_path"], one["manifest_length"] = self._manifest(read_file(self._blobs, one["manifest_path"]))
        return {**snapshot, "manifest-list": self._written(listing, "snap")}

    def _manifest(self, held: AvroFile) -> tuple[str, int]:
        """Write a manifest anew; its address and its size."""
        for entry in held.records:
            if entry["status"] != DELETED:
                file = entry["data_file"]
                is_position_delete = file.get("content") == POSITION_DELETES
                if is_position_delete and file["file_format"].upper() in FORMATS:
                    self._position_deletes(file)
                else:
                    file[PATH_COLUMN] = self._there(file[PATH_COLUMN], file["file_size_in_bytes"])
                if file.get("referenced_data_file") is not None:
                    file["referenced_data_file"] = self._there(file["referenced_data_file"])
        address = self._written(held, "manifest")
        return address, len(self._parts[address[len(self._place) + 1 :]].data)

    def _position_deletes(self, file: Json) -> None:
        key = key_of(self._blobs, file[PATH_COLUMN])
        if key is None:
            return
        rows = rows_of(self._blobs.get(key))
        distinct = pc.unique(rows.column(PATH_COLUMN))
        fresh = pa.array([self._there(one) for one in distinct.to_pylist()], distinct.type)
        column = fresh.take(pc.index_in(rows.column(PATH_COLUMN), distinct).combine_chunks())
        at = rows.schema.get_field_index(PATH_COLUMN)
        out = io.BytesIO()
        renamed = rows.set_column(at, rows.schema.field(at), column)
        ordered = renamed.sort_by([(PATH_COLUMN, "ascending"), ("pos", "ascending")])  # as Iceberg's format demands
        pq.write_table(ordered, out, compression="zstd")
        file[PATH_COLUMN] = self._made(f"data/{len(self._parts):06d}-deletes.parquet", out.getvalue())
        file |= {"file_size_in_bytes": out.tell(), "file_format": "PARQUET", "split_offsets": None}
        for bounds, text in (("lower_bounds", pc.min(column).as_py()), ("upper_bounds", pc.max(column).as_py())):
            for one in file.get(bounds) or ():
                if one["key"] == PATH_FIELD_ID and text is not None:
                    one["value"] = text.encode()

    def _there(self, location: str, size: int | None = None) -> str:
        """The address of a file after the export; what lies outside of the repository stays where it is."""
        key = key_of(self._blobs, location)
        if key is None:
            return location
        name = self._names.get(key)
        if name is None:
            name = self._names[key] = f"data/{len(self._names):06d}-{key.rpartition('/')[2]}"
        if size is not None:
            self._parts[name] = TablePart(name, key, size)
        return f"{self._place}/{name}"

    def _written(self, held: AvroFile, name: str) -> str:
        data = avro_bytes(held.records, held.schema, held.metadata, held.codec)
        return self._made(f"metadata/{name}-{len(self._parts):06d}.avro", data)

    def _made(self, name: str, data: bytes) -> str:
        self._parts[name] = TablePart(name, size=len(data), data=data)
        return f"{self._place}/{name}"
