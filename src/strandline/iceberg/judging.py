"""Whether what a request refers to is there, and in this repository: a collection of garbage would not see it else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strandline.blob import BlobNotFound, BlobStore
from strandline.core.iceberg_files import key_in, read_avro
from strandline.iceberg.refusals import BadUpdate

_WITH_PATHS = {"set-statistics": "statistics", "set-partition-statistics": "partition-statistics"}


def refuse_strangers(blobs: BlobStore, updates: Sequence[Any]) -> None:
    """Raise `BadUpdate` if a new snapshot has no manifest list here, or if something that is added lies elsewhere.

    Data files may lie elsewhere: they are their owner's to keep.

    Args:
        updates: of the shapes of their actions.
    """
    for one in updates:
        if one["action"] == "add-snapshot":
            _check_snapshot(blobs, one["snapshot"])
        elif name := _WITH_PATHS.get(one["action"]):
            _key(blobs, one[name]["statistics-path"], "statistics")


def _check_snapshot(blobs: BlobStore, snapshot: Any) -> None:
    manifests = list(snapshot.get("manifests") or ())
    location = snapshot.get("manifest-list")
    if location is not None:
        key = _key(blobs, location, "manifest list")
        try:
            manifests += [one["manifest_path"] for one in read_avro(blobs.get(key), {"manifest_path"})]
        except BlobNotFound:
            raise BadUpdate(f"The manifest list {location[:200]!r} is not there.") from None
        except (ValueError, KeyError, TypeError, EOFError, IndexError) as error:
            raise BadUpdate(f"The manifest list {location[:200]!r} cannot be read: {error}.") from None
    for manifest in manifests:
        _key(blobs, manifest, "manifest")


def _key(blobs: BlobStore, location: str, what: str) -> str:
    key = key_in(blobs, location)
    if key is None:
        raise BadUpdate(
            f"The {what} {location[:200]!r} lies outside the repository.",
            next="Write the files of a table below its location.",
        )
    return key
