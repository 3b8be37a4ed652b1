"""The files that a table consists of at a snapshot: its data files, and the delete files that hold for them.

Source: "Manifests", "Sequence Number Inheritance" and "Row Lineage" of the Iceberg Table Spec.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from strandline.blob import BlobNotFound, BlobStore
from strandline.core.iceberg_files import avro, broken, key_of
from strandline.iceberg.building import MAIN, NO_SNAPSHOT
from strandline.iceberg.position_deletes import PATH_COLUMN, PATH_FIELD_ID, rows_of
from strandline.iceberg.schemas import Json
from strandline.parallel import in_parallel

EXISTING, ADDED, DELETED = 0, 1, 2
"""The status of an entry of a manifest."""
DATA, POSITION_DELETES, EQUALITY_DELETES = 0, 1, 2
"""What a file holds."""
FileId = tuple[str, int]
"""A file, and where in it: a file of deletion vectors holds several."""


@dataclass(frozen=True, slots=True)
class AvroFile:
    """A manifest or a manifest list, as it was read.

    Attributes:
        schema: that it was written with; fields that are not known here are in it as well.
        metadata: of the file: the schema and the partition spec of the table, as texts.
    """

    key: str
    records: list[Json]
    schema: Json
    metadata: dict[str, str]
    codec: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest of a snapshot.

    Attributes:
        listed: what the manifest list says of it.
        file: what it holds; what entries inherit from the list is filled in.
    """

    listed: Json
    file: AvroFile


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A file of a table.

    Attributes:
        entry: in its manifest.
        manifest: the place of that among the snapshot's.
        place: of the entry in it.
        spec: the id of the partition spec that it was written by.
    """

    entry: Json
    manifest: int
    place: int
    spec: int

    @property
    def file(self) -> Json:
        """What the manifest says of it."""
        found: Json = self.entry["data_file"]
        return found

    @property
    def content(self) -> int:
        """Whether it holds data, position deletes or equality deletes."""
        return int(self.file.get("content") or DATA)

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return int(self.file["record_count"])


@dataclass(slots=True)
class Live:
    """What a table consists of.

    Attributes:
        listing: the manifest list; None of a table without a snapshot.
        manifests: in the order of the list.
        data, deletes: the files by what they are.
    """

    listing: AvroFile | None = None
    manifests: list[Manifest] = field(default_factory=list)
    data: dict[FileId, LiveFile] = field(default_factory=dict)
    deletes: dict[FileId, LiveFile] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """How many rows the data files have; what deletes take away is not counted."""
        return sum(one.rows for one in self.data.values())


def head_of(table: Json) -> int | None:
    """The snapshot that main is at; None before the first one."""
    ref = (table.get("refs") or {}).get(MAIN)
    number = table.get("current-snapshot-id", NO_SNAPSHOT) if ref is None else ref["snapshot-id"]
    return None if number in (None, NO_SNAPSHOT) else int(number)


def snapshot_of(table: Json, number: int | None) -> Json | None:
    """A snapshot by its id."""
    return next((one for one in table.get("snapshots") or () if one["snapshot-id"] == number), None)


def read_live(blobs: BlobStore, table: Json) -> Live:
    """The files of a table at main.

    Raises:
        Corrupted: a manifest or the manifest list is gone, or cannot be read.
    """
    listing, listed = _listed(blobs, table)
    return read_manifests(blobs, listed, listing)


def manifests_of(blobs: BlobStore, table: Json) -> list[Json]:
    """What the manifest list of a table at main says of its manifests; raises `Corrupted`."""
    return _listed(blobs, table)[1]


def _listed(blobs: BlobStore, table: Json) -> tuple[AvroFile | None, list[Json]]:
    snapshot = snapshot_of(table, head_of(table))
    if snapshot is None:
        return None, []
    if "manifest-list" in snapshot:
        listing = read_file(blobs, snapshot["manifest-list"])
        return listing, listing.records
    return None, [{"manifest_path": path, "manifest_length": 0} for path in snapshot.get("manifests") or ()]


def read_manifests(blobs: BlobStore, listed: Sequence[Json], listing: AvroFile | None = None) -> Live:
    """The files of some manifests, as a manifest list names them; raises `Corrupted`."""
    found = Live(listing)
    files = in_parallel(lambda one: read_file(blobs, one["manifest_path"]), listed)
    for number, (one, file) in enumerate(zip(listed, files, strict=True)):
        found.manifests.append(Manifest(one, file))
        spec = int(one.get("partition_spec_id") or file.metadata.get("partition-spec-id") or 0)
        for place, entry in enumerate(_entries(one, file)):
            if entry["status"] == DELETED:
                continue
            live = LiveFile(entry, number, place, spec)
            (found.data if live.content == DATA else found.deletes)[id_of(blobs, live.file)] = live
    return found


def _entries(listed: Json, file: AvroFile) -> Iterator[Json]:
    """The entries of a manifest, with what they inherit: snapshot, sequence numbers, and the ids of their rows."""
    sequence = listed.get("sequence_number") or 0
    next_row = listed.get("first_row_id")
    for entry in file.records:
        if entry["status"] != DELETED:
            for name in ("sequence_number", "file_sequence_number"):
                if entry.get(name) is None:
                    entry[name] = sequence
            data = entry["data_file"]
            if next_row is not None and "first_row_id" in data and data["first_row_id"] is None:
                data["first_row_id"] = next_row
                next_row += data["record_count"]
        if entry.get("snapshot_id") is None:
            entry["snapshot_id"] = listed.get("added_snapshot_id")
        yield entry


def id_of(blobs: BlobStore, file: Json) -> FileId:
    """What a file is known by, wherever the lake was when it was written."""
    path: str = file["file_path"]
    return key_of(blobs, path) or path, int(file.get("content_offset") or 0)


def targets(blobs: BlobStore, deletes: LiveFile) -> set[str]:
    """The data files that position deletes are of.

    Raises:
        Corrupted: the file does not say it, and cannot be read.
    """
    names = _told_targets(deletes.file) or set(pc.unique(_names_in(blobs, deletes.file["file_path"])).to_pylist())
    return {key_of(blobs, name) or name for name in names}


def deleted_rows(blobs: BlobStore, deletes: LiveFile) -> dict[str, int]:
    """How many rows of each data file position deletes take away; raises `Corrupted` as `targets` does."""
    told = _told_targets(deletes.file)
    if told:
        return {key_of(blobs, name) or name: deletes.rows for name in told}
    counted = pc.value_counts(_names_in(blobs, deletes.file["file_path"]))
    return {
        key_of(blobs, name) or name: count
        for name, count in zip(counted.field(0).to_pylist(), counted.field(1).to_pylist(), strict=True)
    }


def _told_targets(file: Json) -> set[str]:
    """The one data file that deletes are of, if the manifest says it."""
    referenced = file.get("referenced_data_file")
    return {referenced} if referenced else _same_bounds(file)


def _same_bounds(file: Json) -> set[str]:
    """The one data file, if both bounds of the names are the same."""
    bounds = []
    for name in ("lower_bounds", "upper_bounds"):
        held = file.get(name) or ()
        bounds.append(next((one["value"] for one in held if one["key"] == PATH_FIELD_ID), None))
    lower, upper = bounds
    return {lower.decode()} if lower is not None and lower == upper else set()


def _names_in(blobs: BlobStore, location: str) -> pa.ChunkedArray:
    """The data file of each deleted row."""
    key = key_of(blobs, location)
    try:
        if key is None:
            raise broken(location, location, "lies outside the repository")
        rows = rows_of(blobs.get(key))
    except BlobNotFound:
        raise broken(str(key), str(key), "is gone") from None
    except (pa.ArrowException, ValueError, KeyError, EOFError) as error:
        raise broken(str(key), str(key), f"cannot be read: {error}") from None
    return rows.column(PATH_COLUMN)


def read_file(blobs: BlobStore, location: str) -> AvroFile:
    """A manifest or a manifest list.

    Raises:
        Corrupted: it is gone, cannot be read, or lies outside the repository.
    """
    key = key_of(blobs, location)
    if key is None:
        raise broken(location, location, "lies outside the repository")
    try:
        found = avro().reader(io.BytesIO(blobs.get(key)))
        kept = {name: value for name, value in found.metadata.items() if not name.startswith("avro.")}
        return AvroFile(key, list(found), found.writer_schema, kept, found.metadata.get("avro.codec", "null"))
    except BlobNotFound:
        raise broken(key, key, "is gone") from None
    except (ValueError, KeyError, TypeError, EOFError, IndexError) as error:
        raise broken(key, key, f"cannot be read: {error}") from None


def avro_bytes(records: list[Json], schema: Json, metadata: dict[str, str], codec: str = "deflate") -> bytes:
    """An Avro file, with a schema as it was written: what its reader has noted in it is left out."""
    out = io.BytesIO()
    plain = {name: value for name, value in schema.items() if not name.startswith("__")}
    avro().writer(out, plain, records, codec=codec, metadata=dict(metadata))
    return out.getvalue()


def removed_by(blobs: BlobStore, snapshot: Json) -> set[FileId]:
    """The data files that a snapshot took away."""
    found: set[FileId] = set()
    if "manifest-list" not in snapshot:
        return found
    number = snapshot["snapshot-id"]
    for one in read_file(blobs, snapshot["manifest-list"]).records:
        is_data = (one.get("content") or DATA) == DATA
        if is_data and one.get("added_snapshot_id") == number and one.get("deleted_files_count", 1) != 0:
            for entry in read_file(blobs, one["manifest_path"]).records:
                if entry["status"] == DELETED and entry.get("snapshot_id") in (None, number):
                    found.add(id_of(blobs, entry["data_file"]))
    return found
