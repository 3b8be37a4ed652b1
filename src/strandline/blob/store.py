"""The interface to the bytes: immutable blobs under keys, written whole or not at all.

`strandline.testing.blob_conformance.BlobStoreTests` has one test for each sentence of these docstrings.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Literal

PutMode = Literal["create", "fresh", "overwrite"]
LIST_PAGE_BLOBS = 1_000


class BlobNotFound(Exception):
    """No blob has this key. Not a `StrandlineError`: the caller knows what its absence means."""


class BlobExists(Exception):
    """A put in mode "create" found the key taken. Nothing was written."""


@dataclass(frozen=True, slots=True)
class BlobInfo:
    """What a store knows of a blob without reading it.

    Attributes:
        key: relative to the store's root.
        size: in bytes.
        etag: changes whenever the bytes may have changed; its form is the store's own.
        modified_at_us: microseconds since 1970 UTC.
    """

    key: str
    size: int
    etag: str
    modified_at_us: int


class NotRead(Exception):
    """A file that is to be stored could not be read: the fault of the file, not of the store."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


def read_from(file: BinaryIO, most: int) -> bytes:
    """The next bytes of a file that is to be stored; none at its end."""
    try:
        return file.read(most)
    except BaseException as error:
        raise NotRead(error) from error


def evenly(keys: Sequence[str], wanted: int) -> list[str]:
    """Some of sorted keys, such that as many stretches lie between them."""
    most = min(wanted, len(keys))
    return sorted({keys[at * len(keys) // most] for at in range(1, most)})


class BlobStore(ABC):
    """Blobs under one root. Safe to share between threads.

    Keys are UTF-8, without empty, "." and ".." components and without NUL. A put is atomic: readers see all of the
    blob or none. Any call may raise `StoreUnavailable`.

    Attributes:
        url: the root, as `open_store` takes it, without a trailing slash and without secrets.
        readers: how many threads that read at once gain time; 1 where a store is not for threads.
        is_remote: whether a call mostly waits for an answer.
    """

    url: str
    readers: int = 1
    is_remote: bool = False

    @abstractmethod
    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        """The bytes `start <= i < end` of a blob; by default all. What lies beyond its end is left out.

        Raises:
            BlobNotFound: no such key.
        """

    @abstractmethod
    def put(self, key: str, data: bytes | BinaryIO, mode: PutMode = "overwrite") -> None:
        """Store a blob; when it returns, the blob is as durable as the store makes things.

        Args:
            data: bytes, or a binary file that is read once, to its end. What its `read` raises gets out, and nothing
                is stored.
            mode: "create" demands that the key is free. "fresh" is for a key that nothing refers to yet: what a put
                that died left there is garbage as any other, so it need not appear at one instant.

        Raises:
            BlobExists: mode is "create" and the key is taken.
        """

    def put_new(self, blobs: Sequence[tuple[str, bytes]]) -> None:
        """Store several blobs, whose keys are free, in any order; all of them are durable when it returns."""
        for key, data in blobs:
            self.put(key, data, "create")

    @abstractmethod
    def head(self, key: str) -> BlobInfo:
        """Size and identity of a blob.

        Raises:
            BlobNotFound: no such key.
        """

    def exists(self, key: str) -> bool:
        """Whether a blob is there."""
        try:
            self.head(key)
        except BlobNotFound:
            return False
        return True

    @abstractmethod
    def delete_many(self, keys: Iterable[str]) -> None:
        """Remove blobs. Removing what is not there is fine."""

    @abstractmethod
    def list_pages(self, prefix: str = "") -> Iterator[list[BlobInfo]]:
        """All blobs whose key starts with `prefix`, page by page, in no promised order."""

    def list_between(self, prefix: str, after: str, last: str | None) -> Iterator[list[BlobInfo]]:
        """The blobs with `after < key <= last` whose key starts with `prefix`, in the order of their keys.

        Args:
            last: None for all that comes.
        """
        page: list[BlobInfo] = []
        for info in sorted(self.list(prefix), key=lambda info: info.key):
            if info.key > after and (last is None or info.key <= last):
                page.append(info)
            if len(page) == LIST_PAGE_BLOBS:
                yield page
                page = []
        if page:
            yield page

    def cuts(self, prefix: str, wanted: int) -> list[str]:
        """Where to cut what lies below a prefix into about as many stretches, for `list_between`; their sizes are not
        known, and nothing need be at a cut."""
        return evenly(sorted(self.list_keys(prefix)), wanted)

    @abstractmethod
    def open_read(self, key: str) -> BinaryIO:
        """A seekable binary file over a blob, fetched as it is read.

        Raises:
            BlobNotFound: no such key.
        """

    def sync(self, keys: Sequence[str]) -> None:  # noqa: B027 - most stores have nothing to do
        """Make blobs that others wrote, such as Spark, as durable as those of `put`."""

    def through_links(self, keys: Sequence[str]) -> set[str]:
        """Which keys lead through a link below the root, to what somebody else may keep. They are never deleted."""
        return set()

    def half_written(self, before_us: int) -> list[BlobInfo]:
        """What puts that died have left, and readers never see; only what was last written before a moment."""
        return []

    def drop_half_written(self, infos: Iterable[BlobInfo]) -> None:  # noqa: B027 - most stores have none
        """Remove what `half_written` found."""

    @property
    def own(self) -> BlobStore:
        """The store that is written to and deleted from; what is only read from may lie elsewhere."""
        return self

    @abstractmethod
    def spark_url(self, key: str) -> str:
        """The URL under which Hadoop's file systems, and so Spark, know a key."""

    def presigned(self, method: str, key: str, lasts_s: int) -> str | None:
        """A URL by which anybody can GET or PUT a blob for a while; None if the store gives out no such URLs."""
        return None

    def local_path(self, key: str) -> str | None:
        """Where the blob is on this machine, if it is a file; never to be written."""
        return None

    def list_keys(self, prefix: str = "") -> Iterator[str]:
        """Like `list`, only the keys, for which a store may need to ask less."""
        for page in self.list_pages(prefix):
            for info in page:
                yield info.key

    def list(self, prefix: str = "") -> Iterator[BlobInfo]:
        """Like `list_pages`, blob by blob."""
        for page in self.list_pages(prefix):
            yield from page


class PartsStore(BlobStore):
    """A store that takes the parts of a blob in any order."""

    @abstractmethod
    def put_at(self, key: str, offset: int, data: BinaryIO) -> None:
        """Write a part of a blob that nothing refers to yet, and make the blob if it is not there.

        Args:
            data: read to its end. What its `read` raises gets out; some of the part may be written then.
        """

    @abstractmethod
    def cut(self, key: str, size: int) -> None:
        """End a blob of parts after so many bytes, all of which are written; it is durable as one of `put` then."""


def without_marks(pages: Iterable[Sequence[BlobInfo]], before: str = "") -> Iterator[list[BlobInfo]]:
    """Pages of an ordered listing without marks of folders that show themselves as such.

    A mark is an object of no bytes whose key ends in a slash, which the library of object stores takes away. So
    `city=San` after `city=San Jose/part` is `city=San/`, and no object has the name. Other marks look like objects.

    Args:
        before: a key that the listing begins after.
    """
    for page in pages:
        found = []
        for info in page:
            if info.size == 0 and info.key <= before < info.key + "/":
                continue
            found.append(info)
            before = info.key
        if found:
            yield found
