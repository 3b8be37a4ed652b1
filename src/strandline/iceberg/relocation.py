"""Lakes that move: Iceberg writes whole addresses into its files, which then name a place where nothing is any more.

Metadata is an object of commits, and stays as it is: its addresses are put right whenever it is read (`moved`). The
files that it refers to are of no commit, and are written anew in their places (`relocate`): position deletes, manifests
and manifest lists, in this order, since each holds the sizes of those before it.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from strandline.blob import BlobStore
from strandline.core.iceberg_files import avro, key_in, key_of
from strandline.core.physical import ICEBERG_ROOT
from strandline.iceberg.names import table_key_of
from strandline.iceberg.position_deletes import FORMATS, PATH_COLUMN, PATH_FIELD_ID, rows_of
from strandline.iceberg.schemas import Json
from strandline.parallel import in_parallel
from strandline.progress import Progress, no_progress

POSITION_DELETES = 1
Place = Callable[[str], str]
"""Where clients find the file of a key."""


class Relocated(msgspec.Struct, frozen=True, kw_only=True):
    """What was written anew.

    Attributes:
        files: how many manifest lists, manifests and position deletes.
        read: how many were looked at.
    """

    files: int = 0
    read: int = 0


def moved(metadata: Json, key: str, blobs: BlobStore, place: Place) -> Json:
    """Metadata with the addresses of where the lake is now; itself if it was written here.

    Args:
        key: of the file that holds it.
    """
    table, location = table_key_of(key), metadata.get("location")
    if table is None or not isinstance(location, str) or key_in(blobs, f"{location}/x") is not None:
        return metadata
    part = f"/{ICEBERG_ROOT}/{table}/"
    _, found, rest = location.rpartition(part)
    if not found:
        return metadata  # it was never below a key of ours

    def here(text: Any) -> Any:
        known = key_of(blobs, text) if isinstance(text, str) else None
        return text if known is None else place(known)

    def with_here(one: Json, name: str) -> Json:
        return {**one, name: here(one[name])} if name in one else one

    changed = {**metadata, "location": place(f"{ICEBERG_ROOT}/{table}/{rest}")}
    lists = (
        ("snapshots", "manifest-list"),
        ("statistics", "statistics-path"),
        ("partition-statistics", "statistics-path"),
        ("metadata-log", "metadata-file"),
    )
    for name, field in lists:
        if metadata.get(name):
            changed[name] = [with_here(one, field) for one in metadata[name]]
    if any("manifests" in one for one in changed.get("snapshots") or ()):
        changed["snapshots"] = [
            {**one, "manifests": [here(path) for path in one["manifests"]]} if "manifests" in one else one
            for one in changed["snapshots"]
        ]
    return changed


def relocate(blobs: BlobStore, place: Place, progress: Progress = no_progress) -> Relocated:
    """Write the files anew whose addresses name another place than where the lake is. Going on after a break is fine.

    Raises:
        StorageError: a store does not answer, or holds a file that cannot be read.
        UsageError: the package that reads manifests is not installed.
    """
    return _Relocation(blobs, place, progress).run()


@dataclass(frozen=True, slots=True)
class _Avro:
    """A manifest or a manifest list."""

    key: str
    records: list[Any]
    schema: Any
    codec: str
    metadata: dict[str, str]

    @property
    def is_list(self) -> bool:
        return any(field["name"] == "manifest_path" for field in self.schema["fields"])


class _Relocation:
    def __init__(self, blobs: BlobStore, place: Place, progress: Progress) -> None:
        self._blobs = blobs
        self._place = place
        self._progress = progress
        self._sizes: dict[str, int] = {}
        self._written = 0

    def run(self) -> Relocated:
        # the sizes of all: a run that broke off has written some manifests anew, and not the lists with their sizes
        self._sizes = {one.key: one.size for page in self._blobs.list_pages(f"{ICEBERG_ROOT}/") for one in page}
        keys = [key for key in self._sizes if key.endswith(".avro") and "/metadata/" in key]  # data may be in Avro too
        lists: list[str] = []
        for done, (key, is_list) in enumerate(zip(keys, in_parallel(self._manifest, keys), strict=True)):
            self._progress("writing manifests", done, len(keys))
            if is_list:
                lists.append(key)
        for done, _ in enumerate(in_parallel(self._list, lists)):
            self._progress("writing manifest lists", done, len(lists))
        return Relocated(files=self._written, read=len(keys))

    def _here(self, text: str) -> str:
        key = key_of(self._blobs, text)
        return text if key is None else self._place(key)

    def _manifest(self, key: str) -> bool:
        """Write a manifest anew, if need be; whether it is a manifest list instead, which comes later."""
        read = self._read(key)
        if read.is_list:
            return True
        is_changed = False
        for entry in read.records:
            file = entry["data_file"]
            before = file[PATH_COLUMN]
            after = self._here(before)
            is_changed |= after != before
            file[PATH_COLUMN] = after
            if (referenced := file.get("referenced_data_file")) is not None:
                file["referenced_data_file"] = self._here(referenced)
            kind = file.get("file_format", "").upper()
            if file.get("content") == POSITION_DELETES and after != before and kind in FORMATS:
                self._position_deletes(file)
        if is_changed:
            self._write(read)
        return False

    def _position_deletes(self, file: Json) -> None:
        """Position deletes name the data files that they are of, and the manifest holds bounds of these names."""
        key = key_of(self._blobs, file[PATH_COLUMN])
        if key is None:
            return
        rows = rows_of(self._blobs.get(key))
        names = rows.column(PATH_COLUMN)
        distinct = pc.unique(names)
        fresh = pa.array([self._here(one) for one in distinct.to_pylist()], distinct.type)
        column = fresh.take(pc.index_in(names, distinct).combine_chunks())
        at = rows.schema.get_field_index(PATH_COLUMN)
        rows = rows.set_column(at, rows.schema.field(at), column)
        out = io.BytesIO()
        pq.write_table(rows, out, compression="zstd")
        self._put(key, out.getvalue())
        file["file_size_in_bytes"] = out.tell()
        file["file_format"] = "PARQUET"  # whatever it was: readers go by this, and not by the name
        file["split_offsets"] = None
        for bounds, text in (("lower_bounds", pc.min(column).as_py()), ("upper_bounds", pc.max(column).as_py())):
            for one in file.get(bounds) or ():
                if one["key"] == PATH_FIELD_ID and text is not None:
                    one["value"] = text.encode()

    def _list(self, key: str) -> None:
        read = self._read(key)
        is_changed = False
        for one in read.records:
            after = self._here(one["manifest_path"])
            held = key_of(self._blobs, after)
            size = self._sizes.get(held, one["manifest_length"]) if held is not None else one["manifest_length"]
            is_changed |= (after, size) != (one["manifest_path"], one["manifest_length"])
            one["manifest_path"], one["manifest_length"] = after, size
        if is_changed:
            self._write(read)

    def _read(self, key: str) -> _Avro:
        found = avro().reader(io.BytesIO(self._blobs.get(key)))
        kept = {name: value for name, value in found.metadata.items() if not name.startswith("avro.")}
        return _Avro(key, list(found), found.writer_schema, found.metadata.get("avro.codec", "null"), kept)

    def _write(self, one: _Avro) -> None:
        out = io.BytesIO()
        avro().writer(out, one.schema, one.records, codec=one.codec, metadata=one.metadata)
        self._put(one.key, out.getvalue())

    def _put(self, key: str, data: bytes) -> None:
        folder, _, name = key.rpartition("/")
        if (checksum := f"{folder}/.{name}.crc") in self._sizes:  # Hadoop's, of what was there before
            self._blobs.delete_many([checksum])
        self._blobs.put(key, data)
        self._sizes[key] = len(data)
        self._written += 1
