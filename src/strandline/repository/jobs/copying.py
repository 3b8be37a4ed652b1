"""Copying the bytes of objects from one store to another, checked by their checksums."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from typing import BinaryIO, Protocol, cast

import msgspec
from blake3 import blake3

from strandline.blob import BlobNotFound, BlobStore, open_store
from strandline.core.upload import CHUNK_BYTES, SPOOL_BYTES
from strandline.errors import Corrupted, ObjectMissing
from strandline.parallel import in_parallel

CHECKED = "blake3:"
"""What checksums begin with that are of the bytes themselves."""
TAGGED = "etag:"
"""What those of imported objects begin with."""


class CopyTask(msgspec.Struct, frozen=True):
    """An object to be copied.

    Attributes:
        path: what it will be called.
        source_url, source_key: where its bytes are.
        target_key: where they go, in the target's store.
        checksum: that the bytes must have, or one of another kind, or "".
    """

    path: str
    source_url: str
    source_key: str
    target_key: str
    size: int
    checksum: str
    content_type: str | None = None
    user_metadata: str | None = None


class Copied(msgspec.Struct, frozen=True):
    """What was copied: size and checksum as they were read."""

    path: str
    size: int
    checksum: str


class Copier(Protocol):
    """Copies bytes: in this process, or on Spark. Results in any order."""

    def __call__(self, target: BlobStore, tasks: Sequence[CopyTask]) -> Iterator[Copied]: ...


def copy_here(target: BlobStore, tasks: Sequence[CopyTask]) -> Iterator[Copied]:
    """Copy in threads of this process."""
    stores = {url: open_store(url) for url in {task.source_url for task in tasks}}
    return in_parallel(lambda task: copy_one(stores[task.source_url], target, task), tasks)


def copy_one(source: BlobStore, target: BlobStore, task: CopyTask) -> Copied:
    """Copy one object.

    Raises:
        ObjectMissing: there is nothing to copy.
        Corrupted: the bytes are not what they are said to be. Nothing refers to what was written.
    """
    if task.checksum.startswith(TAGGED):
        _refuse_other_tag(source, task)
    digest = blake3()
    size = 0
    with tempfile.SpooledTemporaryFile(SPOOL_BYTES) as spool:
        try:
            with source.open_read(task.source_key) as file:
                while chunk := file.read(CHUNK_BYTES):
                    digest.update(chunk)
                    size += len(chunk)
                    spool.write(chunk)
        except BlobNotFound:
            raise ObjectMissing(
                f"The bytes of {task.path!r} are gone: there is nothing at {task.source_key!r}.",
                next="Restore them, or leave the object out.",
            ) from None
        checksum = CHECKED + digest.hexdigest()
        is_checked = task.checksum.startswith(CHECKED)
        if size != task.size or (is_checked and checksum != task.checksum):
            raise Corrupted(
                f"The bytes of {task.path!r} at {task.source_key!r} are not what its entry says: {size:,} bytes with "
                f"{checksum}, not {task.size:,} with {task.checksum}.",
                next="Run `strandline fsck --content` on the source.",
            )
        spool.seek(0)
        target.put(task.target_key, cast("BinaryIO", spool))
    return Copied(task.path, size, checksum)


def _refuse_other_tag(source: BlobStore, task: CopyTask) -> None:
    """Refuse an imported object that was written over since; one without a tag on record is compared by its size."""
    try:
        found = source.head(task.source_key)
    except BlobNotFound:
        return  # the copy says so
    if f"{TAGGED}{found.etag}" != task.checksum:
        raise Corrupted(
            f"The bytes of {task.path!r} at {task.source_key!r} were changed since they were imported.",
            next="Import them again, and commit.",
        )
