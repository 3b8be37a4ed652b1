"""Which files the metadata of Iceberg's tables refers to: from metadata to manifest lists, manifests and data files.

Each manifest list and each manifest is read once, however many tables and snapshots share it. Nothing outside the
storage namespace is opened; of a lake that was moved, what its metadata names at the old place is found at the new one.
Source: "Table Metadata", "Manifest Lists" and "Manifests" of the Iceberg Table Spec.
"""

from __future__ import annotations

import io
import re
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from strandline.blob import BlobNotFound, BlobStore
from strandline.core.physical import ICEBERG_ROOT
from strandline.errors import Corrupted, InvalidSettings, UsageError
from strandline.parallel import in_parallel
from strandline.progress import Progress, no_progress

_OURS = re.compile(
    r"/((?:ice/[0-9a-f]{20}/[0-9a-f]{20}(?:\.txn-[0-9]{16})?/(?:data|metadata)"
    r"|data/sl_branch=[0-9a-f]{20}(?:\.txn-[0-9]{16})?/sl_write=[0-9a-f]{20}|data/[0-9a-f]{20})/.+)",
    re.ASCII | re.DOTALL,
)
POINTER = "_iceberg.metadata.json"
"""The name of the object that is a table, in the table's folder."""
MEND = "Restore the file from a backup, or drop the table from each branch and tag that has it."
DELETED = 2
"""The status of an entry of a manifest that says which file has left the table."""
METADATA_KEY = rf"{ICEBERG_ROOT}/[0-9a-f]{{20}}/[^/]+/metadata/[^/]+\.metadata\.json"
_METADATA = re.compile(METADATA_KEY, re.ASCII)
_SAME_SCHEMES = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "wasb": "abfs", "wasbs": "abfs", "abfss": "abfs"}
"""Schemes by which clients know the same store."""


class _Snapshot(msgspec.Struct, rename="kebab"):
    manifest_list: str | None = None
    manifests: list[str] | None = None


class _Statistics(msgspec.Struct, rename="kebab"):
    statistics_path: str


class _Earlier(msgspec.Struct, rename="kebab"):
    metadata_file: str


class _Metadata(msgspec.Struct, rename="kebab"):
    snapshots: list[_Snapshot] | None = None
    statistics: list[_Statistics] | None = None
    partition_statistics: list[_Statistics] | None = None
    metadata_log: list[_Earlier] | None = None


def is_metadata(key: str) -> bool:
    """Whether a key is that of the metadata of a table or a view."""
    return _METADATA.fullmatch(key) is not None


def key_in(blobs: BlobStore, location: str) -> str | None:
    """The key of a location, in whichever way a client writes it; None if it lies outside the namespace.

    Locations are taken as they are, without decoding: what a client has written, it reads by the same text.
    """
    place = _plain(location)
    for root in _roots(blobs):
        if place.startswith(root):
            key = place[len(root) :]
            return key if key and not {"", ".", ".."} & set(key.split("/")) else None
    return None


def key_of(blobs: BlobStore, location: str) -> str | None:
    """The same of what is in the lake already, whose locations may name a place at which the lake was once.

    The ids in our keys are never drawn twice, so a location that ends like one of ours is of the file with that key.
    """
    key = key_in(blobs, location)
    if key is None and (found := _OURS.search(location)) is not None:
        key = found[1]
    return None if key is None or {"", ".", ".."} & set(key.split("/")) else key


def _roots(blobs: BlobStore) -> list[str]:
    local = blobs.local_path("x")
    if local is not None:
        return [local[:-1]]
    roots = [_plain(blobs.url.partition("?")[0]).rstrip("/") + "/"]
    try:
        roots.append(_plain(blobs.spark_url("x"))[:-1])
    except InvalidSettings:
        pass  # Spark does not know this kind of store
    return roots


def _plain(location: str) -> str:
    scheme, colon, rest = location.partition(":")
    if not colon or "/" in scheme:
        return location
    if scheme == "file":
        return "/" + rest.lstrip("/")
    return f"{_SAME_SCHEMES.get(scheme.lower(), scheme.lower())}:{rest}"


Kind = Literal["metadata", "list", "manifest", "file"]
"""What a file of Iceberg's is; "file" refers to nothing."""
PART = 8_192
"""Keys of a walk that come together."""
_NAMES: dict[Kind, str] = {"list": "manifest lists", "manifest": "manifests"}


@dataclass(frozen=True, slots=True)
class Named:
    """A file that another one names, by its key.

    Attributes:
        source: the key of the file that names it.
        place: as that one writes it, if it is a manifest of a list.
    """

    kind: Kind
    key: str
    source: str
    place: str = ""


def named_by(blobs: BlobStore, one: Named, known: Container[str] = frozenset()) -> list[Named]:
    """What a file names directly; nothing outside the storage namespace but data files, which are left out.

    Args:
        known: places of manifests that need not be named again: each snapshot's list names those of the one before.

    Raises:
        Corrupted: it cannot be read, or names something outside, so that it is not known what else is referred to.
        UsageError: the package that reads manifests is not installed.
    """
    if one.kind == "metadata":
        return _of_metadata(blobs, one.key)
    if one.kind == "list":
        places = [row["manifest_path"] for row in _rows(blobs, one, {"manifest_path"})]
        fresh = [place for place in places if place not in known]
        return [Named("manifest", _key(blobs, place, one.source), one.source, place) for place in fresh]
    if one.kind == "manifest":
        entries = _rows(blobs, one, {"status", "data_file", "file_path"})
        live = [key_of(blobs, row["data_file"]["file_path"]) for row in entries if row["status"] != DELETED]
        # what lies elsewhere is nobody's here to delete
        return [Named("file", key, one.source) for key in live if key is not None]
    return []


class Reach:
    """Walks from metadata to all that it refers to.

    Args:
        blobs: the storage namespace.
    """

    def __init__(self, blobs: BlobStore, progress: Progress = no_progress) -> None:
        self._blobs = blobs
        self._progress = progress
        self._seen: set[str] = set()
        self._places: set[str] = set()

    def from_metadata(self, keys: Iterable[str]) -> Iterator[list[str]]:
        """The keys of all files that metadata refers to, in large parts; a file may come several times.

        Raises:
            Corrupted, UsageError: as for `named_by`.
        """
        part: list[str] = []
        for found in self._walk(keys):
            part += found
            if len(part) >= PART:
                yield part
                part = []
        yield part

    def _walk(self, keys: Iterable[str]) -> Iterator[list[str]]:
        lists: dict[str, Named] = {}
        manifests: dict[str, Named] = {}
        wanted = [Named("metadata", key, key) for key in sorted(set(keys))]
        for found in in_parallel(lambda one: named_by(self._blobs, one), wanted):
            yield [one.key for one in found if one.kind == "file"]
            lists.update((one.key, one) for one in found if one.kind == "list")
            manifests.update((one.key, one) for one in found if one.kind == "manifest")
        yield list(lists)
        for found in self._each("list", lists):
            manifests.update((one.key, one) for one in found)
            self._places.update(one.place for one in found)
        yield list(manifests)
        for found in self._each("manifest", manifests):
            yield [one.key for one in found]

    def _each(self, kind: Kind, found: dict[str, Named]) -> Iterator[list[Named]]:
        fresh = [one for key, one in found.items() if key not in self._seen]
        self._seen.update(one.key for one in fresh)
        for done, named in enumerate(in_parallel(lambda one: named_by(self._blobs, one, self._places), fresh)):
            self._progress(f"reading {_NAMES[kind]}", done, len(fresh))
            yield named


def _of_metadata(blobs: BlobStore, key: str) -> list[Named]:
    try:
        read = msgspec.json.decode(blobs.get(key), type=_Metadata)
    except BlobNotFound:
        raise broken(key, key, "is gone") from None
    except msgspec.MsgspecError as error:
        raise broken(key, key, f"cannot be read: {error}") from None
    found = [Named("file", key, key)]
    for snapshot in read.snapshots or ():
        if snapshot.manifest_list is not None:
            found.append(Named("list", _key(blobs, snapshot.manifest_list, key), key))
        found.extend(Named("manifest", _key(blobs, one, key), key) for one in snapshot.manifests or ())
    statistics = [*(read.statistics or ()), *(read.partition_statistics or ())]
    earlier = [one.metadata_file for one in read.metadata_log or ()]
    # those may be of a table that was registered from elsewhere, and are not opened
    others = [key_of(blobs, one) for one in (*(one.statistics_path for one in statistics), *earlier)]
    return found + [Named("file", one, key) for one in others if one is not None]


def _key(blobs: BlobStore, location: str, source: str) -> str:
    key = key_of(blobs, location)
    if key is None:
        raise broken(location, source, "lies outside the repository")
    return key


def _rows(blobs: BlobStore, one: Named, names: set[str]) -> list[Any]:
    try:
        return read_avro(blobs.get(one.key), names)
    except BlobNotFound:
        raise broken(one.key, one.source, "is gone") from None
    except (ValueError, KeyError, TypeError, EOFError, IndexError) as error:
        raise broken(one.key, one.source, f"cannot be read: {error}") from None


def broken(file: str, source: str, what: str) -> Corrupted:
    """The error about a file that some metadata refers to."""
    place = file if file == source else f"{file}, to which {source} refers,"
    return Corrupted(
        f"The Iceberg file {place} {what}. The files that only it names are unknown.",
        next=MEND,
    )


def avro() -> Any:
    """The package that reads and writes manifests.

    Raises:
        UsageError: it is not installed.
    """
    try:
        import fastavro  # noqa: PLC0415 - only lakes with Iceberg's tables need it
    except ModuleNotFoundError as error:
        raise UsageError(
            "This lake has Iceberg tables, whose manifests are read with the Python package 'fastavro', which is not "
            "installed.",
            next="Run: pip install 'strandline[iceberg]'",
        ) from error
    return fastavro


def read_avro(data: bytes, names: set[str] | None = None) -> list[Any]:
    """The records of an Avro file.

    Args:
        names: fields that are wanted, on every level; None for all.
    """
    package = avro()
    if names is None:
        return list(package.reader(io.BytesIO(data)))
    written = package.reader(io.BytesIO(data)).writer_schema
    return list(package.reader(io.BytesIO(data), reader_schema=_only(written, names)))


def _only(schema: Any, names: set[str]) -> Any:
    """A schema of records with some of their fields."""
    if not isinstance(schema, dict) or schema.get("type") != "record":
        return schema
    kept = [{**one, "type": _only(one["type"], names)} for one in schema["fields"] if one["name"] in names]
    return {"type": "record", "name": schema["name"], "fields": kept}
