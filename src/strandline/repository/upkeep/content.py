"""Whether bytes are what was written, as far as that is known.

By a checksum of ours, by those that writers of Parquet put beside their pages, by the tag of an object that somebody
else keeps, or by the size alone.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import pyarrow as pa
from blake3 import blake3

from strandline.blob import BlobNotFound, BlobStore, Resolver
from strandline.errors import StoreUnavailable, UsageError

CHUNK_BYTES = 4 << 20
How = Literal["bytes", "pages", "tag", "size"]


class Compared(NamedTuple):
    """How an object was compared, and what is wrong with it; None if nothing is."""

    how: How
    problem: str | None


def compare(resolver: Resolver, path: str, address: str, size: int, checksum: str) -> Compared:
    """Compare an object with what is known of it, as well as that goes."""
    if "://" in address:
        return Compared("tag", changed_elsewhere(resolver, path, address, size, checksum))
    blobs, key = resolver.resolve(address)
    if checksum.startswith("blake3:") or address.endswith(".parquet"):
        how: How = "bytes" if checksum.startswith("blake3:") else "pages"
        return Compared(how, other_bytes(blobs, path, key, checksum))
    try:
        found = blobs.head(key).size
    except (BlobNotFound, StoreUnavailable) as error:
        return Compared("size", unreadable(path, address, error))
    told = f"{path!r} has {found:,} bytes in {address!r}, not {size:,}."
    return Compared("size", None if found == size else told)


def changed_elsewhere(resolver: Resolver, path: str, address: str, size: int, checksum: str) -> str | None:
    """What is wrong with an object that was imported: its size and tag are compared, not its bytes."""
    try:
        blobs, key = resolver.resolve(address)
        found = blobs.head(key)
    except BlobNotFound:
        return f"The bytes of {path!r} are gone: there is nothing at {address!r}, where it was imported from."
    except (StoreUnavailable, UsageError) as error:
        return f"{path!r} at {address!r} cannot be looked at: {error.what}"
    tag = f"etag:{found.etag}"
    if found.size != size or (checksum.startswith("etag:") and tag != checksum):
        return f"{path!r} was changed at {address!r} since it was imported."
    return None


def other_bytes(blobs: BlobStore, path: str, address: str, checksum: str) -> str | None:
    """What is wrong with bytes of our own: all of them are read."""
    if not checksum.startswith("blake3:"):
        return _bad_pages(blobs, path, address)
    digest = blake3()
    try:
        with blobs.open_read(address) as source:
            while chunk := source.read(CHUNK_BYTES):
                digest.update(chunk)
    except (BlobNotFound, StoreUnavailable) as error:
        return unreadable(path, address, error)
    if checksum == f"blake3:{digest.hexdigest()}":
        return None
    return f"{path!r} holds other bytes than were written, in {address!r}."


def unreadable(path: str, address: str, error: Exception) -> str:
    return f"The bytes of {path!r} in {address!r} cannot be read: {error}"


def _bad_pages(blobs: BlobStore, path: str, address: str) -> str | None:
    """What is wrong with a file of Parquet, whose writers put a checksum beside each page."""
    import pyarrow.parquet as pq  # noqa: PLC0415 - slow to load, and only needed here

    try:
        with blobs.open_read(address) as source:
            for _ in pq.ParquetFile(source, page_checksum_verification=True).iter_batches():
                pass
    except (BlobNotFound, StoreUnavailable) as error:
        return unreadable(path, address, error)
    except (pa.ArrowException, OSError) as error:
        return f"{path!r} is damaged, in {address!r}: {str(error).partition(chr(10))[0].rstrip('.')}."
    return None
