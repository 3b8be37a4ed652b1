"""Metadata of tables and views that was read: a file of it never changes, so it is read and parsed once."""

from __future__ import annotations

from strandline.iceberg.schemas import Json
from strandline.tree.cache import ByteBoundedCache

MAX_BYTES = 64 << 20
PARSED_FACTOR = 8
"""What a parsed text takes of memory, in sizes of the text."""


class MetadataCache:
    """Safe to share between threads. What it returns is shared: nobody may change it."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._parsed: ByteBoundedCache[Json] = ByteBoundedCache(max_bytes)

    def get(self, repository_id: str, address: str) -> Json | None:
        """The metadata at a physical address, if it was read lately."""
        return self._parsed.get(f"{repository_id} {address}")

    def put(self, repository_id: str, address: str, metadata: Json, size_bytes: int) -> None:
        """Keep what was read."""
        self._parsed.put(f"{repository_id} {address}", metadata, size_bytes * PARSED_FACTOR)
