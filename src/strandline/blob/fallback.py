"""A store that writes to one place and reads what is not there from another: a lake restored without its bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import BinaryIO, TypeVar

from strandline.blob.store import BlobInfo, BlobNotFound, BlobStore, PutMode

Result = TypeVar("Result")


class FallbackBlobs(BlobStore):
    """Nothing is ever written to, or deleted from, the place behind; a listing shows both.

    Args:
        front: where everything is written.
        behind: where what is not in `front` is read from.
    """

    def __init__(self, front: BlobStore, behind: BlobStore) -> None:
        self.front = front
        self.behind = behind
        self.url = front.url
        self.readers = front.readers
        self.is_remote = front.is_remote

    @property
    def own(self) -> BlobStore:
        return self.front

    def _read(self, read: Callable[[BlobStore], Result]) -> Result:
        try:
            return read(self.front)
        except BlobNotFound:
            return read(self.behind)

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        return self._read(lambda blobs: blobs.get(key, start, end))

    def head(self, key: str) -> BlobInfo:
        return self._read(lambda blobs: blobs.head(key))

    def open_read(self, key: str) -> BinaryIO:
        return self._read(lambda blobs: blobs.open_read(key))

    def put(self, key: str, data: bytes | BinaryIO, mode: PutMode = "overwrite") -> None:
        self.front.put(key, data, mode)

    def put_new(self, blobs: Sequence[tuple[str, bytes]]) -> None:
        self.front.put_new(blobs)

    def delete_many(self, keys: Iterable[str]) -> None:
        self.front.delete_many(keys)

    def list_pages(self, prefix: str = "") -> Iterator[list[BlobInfo]]:
        mine: set[str] = set()
        for page in self.front.list_pages(prefix):
            mine.update(info.key for info in page)
            yield page
        for page in self.behind.list_pages(prefix):
            if others := [info for info in page if info.key not in mine]:
                yield others

    def sync(self, keys: Sequence[str]) -> None:
        self.front.sync(keys)

    def local_path(self, key: str) -> str | None:
        return self._place(key).local_path(key)

    def spark_url(self, key: str) -> str:
        return self._place(key).spark_url(key)

    def _place(self, key: str) -> BlobStore:
        """Where a key is; what is nowhere yet is about to be written."""
        for blobs in (self.front, self.behind):
            try:
                blobs.head(key)
                return blobs
            except BlobNotFound:
                continue
        return self.front
