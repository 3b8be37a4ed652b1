"""Whether what a request refers to is there, and in this repository: a collection of garbage would not see it else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from strandline.blob import BlobNotFound, BlobStore
from strandline.core.iceberg_files import key_in, read_avro
from strandline.iceberg.live import ADDED
from strandline.iceberg.refusals import BadUpdate
from strandline.parallel import in_parallel

_WITH_PATHS = {"set-statistics": "statistics", "set-partition-statistics": "partition-statistics"}


WITHOUT_THREADS = 3
"""So few files are looked for one after the other: threads take longer to start."""
LIST_MAX_BYTES = 64 << 20
"""Of a manifest list, which is read whole: a hundred thousand manifests."""


def referred(blobs: BlobStore, updates: Sequence[Any]) -> tuple[set[str], set[str]]:
    """The keys of what a request newly refers to.

    Data files may lie elsewhere: they are their owner's to keep.

    Args:
        updates: of the shapes of their actions.

    Returns:
        What a table cannot be read without: manifest lists, the manifests that are new in them, and their files; and
        statistics, which it can.

    Raises:
        BadUpdate: a new snapshot has no manifest list here, or something that is added lies elsewhere.
    """
    needed: set[str] = set()
    statistics: set[str] = set()
    for one in updates:
        if one["action"] == "add-snapshot":
            needed |= _of_snapshot(blobs, one["snapshot"])
        elif name := _WITH_PATHS.get(one["action"]):
            statistics.add(_key(blobs, one[name]["statistics-path"], "statistics"))
    return needed, statistics


def refuse_missing(blobs: BlobStore, keys: Iterable[str]) -> None:
    """Raise `BadUpdate` if one of some files is not there."""
    wanted = sorted(keys)
    is_quick = len(wanted) <= WITHOUT_THREADS or blobs.local_path("x") is not None
    looks = map(blobs.exists, wanted) if is_quick else in_parallel(blobs.exists, wanted)
    for key, found in zip(wanted, looks, strict=True):
        if not found:
            raise BadUpdate(f"The file {key[:200]!r} of a new snapshot is not there.", next="Write it anew.")


def _of_snapshot(blobs: BlobStore, snapshot: Any) -> set[str]:
    fresh = {_key(blobs, one, "manifest") for one in snapshot.get("manifests") or ()}
    found = set(fresh)
    location = snapshot.get("manifest-list")
    if location is not None:
        key = _key(blobs, location, "manifest list")
        found.add(key)
        for one in _read(blobs, key, location, "manifest list", {"manifest_path", "added_snapshot_id"}):
            manifest = _key(blobs, one["manifest_path"], "manifest")
            # the others were there before, in a snapshot of the table
            if one.get("added_snapshot_id") in (None, snapshot["snapshot-id"]):
                fresh.add(manifest)
    for manifest in fresh:  # what a manifest takes over from another one was there before
        for entry in _read(blobs, manifest, manifest, "manifest", {"status", "data_file", "file_path"}):
            file = key_in(blobs, entry["data_file"]["file_path"]) if entry["status"] == ADDED else None
            found |= set() if file is None else {file}
    return found | fresh


def _read(blobs: BlobStore, key: str, location: str, what: str, names: set[str]) -> list[Any]:
    try:
        if what == "manifest list" and blobs.head(key).size > LIST_MAX_BYTES:
            raise BadUpdate(f"The manifest list {location[:200]!r} has more than {LIST_MAX_BYTES >> 20} MiB.")
        return read_avro(blobs.get(key), names)
    except BlobNotFound:
        raise BadUpdate(f"The {what} {location[:200]!r} is not there.") from None
    except (ValueError, KeyError, TypeError, EOFError, IndexError) as error:
        raise BadUpdate(f"The {what} {location[:200]!r} cannot be read: {error}.") from None


def _key(blobs: BlobStore, location: str, what: str) -> str:
    key = key_in(blobs, location)
    if key is None:
        raise BadUpdate(
            f"The {what} {location[:200]!r} lies outside the repository.",
            next="Write the files of a table below its location.",
        )
    return key
