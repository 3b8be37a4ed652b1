"""Bringing bytes in: the physical key, the checksum, and the entry that will be staged."""

from __future__ import annotations

import hashlib
import io
import mimetypes
import tempfile
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from blake3 import blake3

from strandline.core.repository_core import RepositoryCore
from strandline.core.texts import check_content_type, check_metadata
from strandline.errors import NotFound, UsageError
from strandline.tree.rows import Entry

Content = bytes | bytearray | memoryview | str | Path | IO[bytes]
"""Bytes, text (as UTF-8), a path to a local file, or a binary file."""
SPOOL_BYTES = 16 << 20
CHUNK_BYTES = 1 << 20


def upload(
    core: RepositoryCore,
    key: str,
    path: str,
    content: Content,
    content_type: str | None,
    metadata: Mapping[str, str] | None,
    *,
    with_etag: bool = False,
) -> Entry:
    """Store content under a fresh physical key and make its entry. Nothing is staged yet.

    Args:
        with_etag: keep its MD5 as well, by which HTTP's clients know it.
    """
    text = check_metadata(metadata)
    check_content_type(content_type, path)
    blobs = core.resolver.namespace
    digest = blake3()
    md5 = hashlib.md5(usedforsecurity=False) if with_etag else None
    if isinstance(content, str):
        try:
            content = content.encode()
        except UnicodeEncodeError as error:
            raise UsageError(f"The text for {path!r} is not Unicode: {error.reason}.", next="Give bytes.") from None
    if isinstance(content, bytes | bytearray | memoryview):
        body = bytes(content)
        digest.update(body)
        if md5 is not None:
            md5.update(body)
        size = len(body)
        blobs.put(key, body, "fresh")
    elif not isinstance(content, Path) and not hasattr(content, "read"):
        raise UsageError(
            f"{type(content).__name__} is not content for {path!r}.",
            next="Give bytes, text, a pathlib.Path of a local file, or a binary file.",
        )
    else:
        with _open(content) if isinstance(content, Path) else nullcontext(content) as source:
            passing = _Hashed(source, path, digest, md5)
            blobs.put(key, cast("BinaryIO", passing), "fresh")
            size = passing.size
    return Entry(
        physical_address=key,
        size=size,
        checksum=f"blake3:{digest.hexdigest()}",
        modified_at=core.stores.clock.now_us(),
        content_type=content_type or mimetypes.guess_type(path)[0],
        user_metadata=text,
        etag=None if md5 is None else md5.hexdigest(),
    )


def _open(path: Path) -> IO[bytes]:
    try:
        return path.open("rb")
    except OSError as error:
        raise NotFound(f"The file {str(path)!r} cannot be read: {error.strerror}.", next="Check the path.") from error


class _Hashed:
    """A file that is read once: what passes is hashed and counted.

    Attributes:
        size: what has passed, in bytes.
    """

    def __init__(self, source: IO[bytes], path: str, digest: blake3, md5: Any) -> None:
        self.size = 0
        self._md5 = md5
        self._source = source
        self._path = path
        self._digest = digest

    def read(self, most: int = -1) -> bytes:
        """The next bytes; none at the end of the file, and only there.

        Raises:
            UsageError: the file gives text instead of bytes, or None because it does not wait, or cannot be read.
        """
        try:
            chunk: Any = self._source.read(CHUNK_BYTES if most < 0 else min(most, CHUNK_BYTES))
        except OSError as error:
            raise UsageError(
                f"The file for {self._path!r} could not be read to its end: {error.strerror or error}.",
                next="Look at the file, then repeat the call.",
            ) from error
        if chunk is None:
            raise UsageError(
                f"The file for {self._path!r} does not wait for its bytes: read() gave None.",
                next="Make it blocking, or read it to its end first.",
            )
        if not isinstance(chunk, bytes | bytearray | memoryview):
            raise UsageError(f"The file for {self._path!r} is not binary.", next="Open it with mode 'rb'.")
        read = bytes(chunk)
        self._digest.update(read)
        if self._md5 is not None:
            self._md5.update(read)
        self.size += len(read)
        return read


class ObjectWriter(io.BufferedIOBase):
    """A binary file whose content becomes an object when it is closed; if the `with` block fails, it does not."""

    def __init__(self, finish: Callable[[IO[bytes]], object]) -> None:
        self._finish = finish
        self._spool = cast("IO[bytes]", tempfile.SpooledTemporaryFile(SPOOL_BYTES))  # noqa: SIM115

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return self._spool.write(data)

    def tell(self) -> int:
        return self._spool.tell()

    def close(self) -> None:
        if not self.closed:
            try:
                self._spool.seek(0)
                self._finish(self._spool)
            finally:
                self.discard()

    def discard(self) -> None:
        """Close without making an object."""
        self._spool.close()
        super().close()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()


class TextWriter(io.TextIOWrapper):
    """Text over an `ObjectWriter`: a failing `with` block leaves no object."""

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is not None:
            cast("ObjectWriter", self.detach()).discard()
        else:
            self.close()
