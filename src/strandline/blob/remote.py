"""Object stores over the network, and one in memory, all through obstore."""

from __future__ import annotations

import io
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from itertools import chain, islice, pairwise
from os import getpid
from queue import Full, Queue
from typing import Any, BinaryIO, cast
from urllib.parse import parse_qs, urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, PermissionDeniedError, UnauthenticatedError
from obstore.store import AzureStore, GCSStore, MemoryStore, S3Store

from strandline.blob.store import (
    LIST_PAGE_BLOBS,
    BlobExists,
    BlobInfo,
    BlobNotFound,
    BlobStore,
    NotRead,
    PutMode,
    read_from,
    without_marks,
)
from strandline.errors import InvalidName, InvalidSettings, StoreUnavailable
from strandline.parallel import THREADS, in_parallel

READ_BUFFER_BYTES = 4 << 20
DELETE_BATCH_KEYS = 1_000
PART_BYTES = 8 << 20
"""A file that is not longer is stored in one request, a longer one part by part while it is read."""
_ABSENT = (FileNotFoundError,)

_client_pid: int | None = None
"""The process that first used an HTTP client: its threads are not in the child of a fork, where a call would never
end, not even one of a client that was made there."""
_memory: dict[str, MemoryStore] = {}
"""The memory stores of this process by name, so that `memory://name` means one thing however often it is opened."""


def _parts(file: BinaryIO) -> Iterator[bytes]:
    """The bytes of a file, as pieces of `PART_BYTES`; only the last is shorter."""
    is_open = True
    while is_open:
        pieces: list[bytes] = []
        left = PART_BYTES
        while left and is_open:
            piece = read_from(file, left)
            is_open = bool(piece)
            pieces.append(piece)
            left -= len(piece)
        if part := b"".join(pieces):
            yield part


@contextmanager
def _read_beside(parts: Iterator[bytes]) -> Iterator[Iterator[bytes]]:
    """The same parts, read by a thread of their own.

    obstore asks for them inside of its runtime, where a file that is itself read through obstore cannot be read.
    """
    waiting: Queue[bytes | BaseException | None] = Queue(1)
    is_over = threading.Event()

    def give(one: bytes | BaseException | None) -> bool:
        while not is_over.is_set():
            with suppress(Full):
                waiting.put(one, timeout=0.1)
                return True
        return False

    def read() -> None:
        try:
            for part in parts:
                if not give(part):
                    return
            give(None)
        except BaseException as error:
            give(error)

    def taken() -> Iterator[bytes]:
        while (one := waiting.get()) is not None:
            if isinstance(one, BaseException):
                raise one
            yield one

    reader = threading.Thread(target=read, name="strandline-put", daemon=True)
    reader.start()
    try:
        yield taken()
    finally:
        is_over.set()
        reader.join()


class _Readable(io.RawIOBase):
    """obstore's reader as a Python file."""

    def __init__(self, store: RemoteBlobStore, file: Any) -> None:
        self._store = store
        self._file = file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._store._refuse_forked()
        try:
            data = bytes(self._file.read(len(buffer)))
        except Exception as error:
            raise self._store._failed(error, "no") from error
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())


LAST_CHARACTER = "\U0010ffff"
PROBES_MAX = 2_000
"""Requests that look for places to cut; they take seconds, and a list that is worth cutting takes minutes."""


class RemoteBlobStore(BlobStore):
    """Durability: what the object store promises; in memory, none.

    Refused in the child of a fork: the runtime of the HTTP client does not survive one that comes after its first use
    in the process, and what is in memory is only a copy there.
    """

    readers = THREADS
    is_remote = True

    def __init__(self, url: str, store: Any, prefix: str, spark_root: str) -> None:
        self.url = url
        self._store = store
        self._prefix = f"{prefix}/" if prefix else ""
        self._spark_root = spark_root
        self._pid = getpid()

    def _refuse_forked(self) -> None:
        global _client_pid
        is_memory = self.url.startswith("memory:")
        if not is_memory and _client_pid is None:
            _client_pid = getpid()
        if getpid() == (self._pid if is_memory else _client_pid):
            return
        raise StoreUnavailable(
            f"The object store {self.url} "
            + (
                "is in the memory of the process that made it, and this is the child of a fork."
                if is_memory
                else "was used by this process before it was forked; its client does not work in the child."
            ),
            happened="no",
            next="Keep the bytes in a folder, which processes can share."
            if is_memory
            else 'Start processes with multiprocessing.get_context("spawn"), or fork before the lake is first used.',
        )

    def _key(self, key: str) -> str:
        self._refuse_forked()
        if not key or "\0" in key or any(part in ("", ".", "..") for part in key.split("/")):
            raise InvalidName(f"{key!r} is not a key of a blob.", next="Leave out empty, '.' and '..' components.")
        return self._prefix + key

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        name = self._key(key)
        try:
            if start == 0 and end is None:
                return bytes(obstore.get(self._store, name).bytes())
            size = int(obstore.head(self._store, name)["size"])
            end = size if end is None else min(end, size)
            if start >= end:
                return b""
            return bytes(obstore.get_range(self._store, name, start=start, end=end))
        except _ABSENT:
            raise BlobNotFound(key) from None
        except Exception as error:
            raise self._failed(error, "no") from error

    def put_new(self, blobs: Sequence[tuple[str, bytes]]) -> None:
        if len(blobs) == 1:
            self.put(*blobs[0], "create")
            return
        for _ in in_parallel(lambda blob: self.put(*blob, "create"), blobs):
            pass

    def put(self, key: str, data: bytes | BinaryIO, mode: PutMode = "overwrite") -> None:
        name = self._key(key)
        try:
            if mode == "create":
                # a conditional write is a single request on every store, never a multipart one
                body = data if isinstance(data, bytes) else b"".join(_parts(data))
                obstore.put(self._store, name, body, mode="create", use_multipart=False)
            elif isinstance(data, bytes):
                obstore.put(self._store, name, data)
            else:
                self._put_file(name, data)
        except AlreadyExistsError:
            raise BlobExists(key) from None
        except NotRead as failed:
            raise failed.error from None
        except Exception as error:
            raise self._failed(error, "unknown") from error

    def _put_file(self, name: str, file: BinaryIO) -> None:
        parts = _parts(file)
        first = next(parts, b"")
        if len(first) < PART_BYTES:
            obstore.put(self._store, name, first)
        else:  # what is raised out of the parts aborts the upload
            with _read_beside(parts) as read:
                obstore.put(self._store, name, chain([first], read))

    def presigned(self, method: str, key: str, lasts_s: int) -> str | None:
        if isinstance(self._store, MemoryStore):
            return None
        name = self._key(key)
        try:
            return str(obstore.sign(self._store, cast("Any", method), name, timedelta(seconds=lasts_s)))
        except Exception as error:
            raise self._failed(error, "no") from error

    def head(self, key: str) -> BlobInfo:
        try:
            return self._info(obstore.head(self._store, self._key(key)))
        except _ABSENT:
            raise BlobNotFound(key) from None
        except Exception as error:
            raise self._failed(error, "no") from error

    def delete_many(self, keys: Iterable[str]) -> None:
        remaining = iter(keys)
        while batch := [self._key(key) for key in islice(remaining, DELETE_BATCH_KEYS)]:
            try:
                obstore.delete(self._store, batch)
            except _ABSENT:
                continue
            except Exception as error:
                raise self._failed(error, "unknown") from error

    def list_pages(self, prefix: str = "") -> Iterator[list[BlobInfo]]:
        # object stores list by whole components, so ask for the folder and keep what matches
        self._refuse_forked()
        folder = (self._prefix + prefix).rpartition("/")[0]
        wanted = self._prefix + prefix
        try:
            for page in obstore.list(self._store, prefix=folder or None, chunk_size=LIST_PAGE_BLOBS):
                found = [self._info(meta) for meta in page if str(meta["path"]).startswith(wanted)]
                if found:
                    yield found
        except Exception as error:
            raise self._failed(error, "no") from error

    def list_between(self, prefix: str, after: str, last: str | None) -> Iterator[list[BlobInfo]]:
        before = ""
        pages = self._list_after(prefix, max(after, prefix) if after else "")
        for page in without_marks(pages, after):
            found = [info for info in page if info.key > after and (last is None or info.key <= last)]
            keys = [before, *(info.key for info in page)]
            if any(left >= right for left, right in pairwise(keys)):
                raise StoreUnavailable(
                    f"The object store {self.url} lists keys out of their order.",
                    happened="no",
                    next="List it in one go: import without Spark.",
                )
            before = keys[-1]
            if found:
                yield found
            if last is not None and before > last:
                return

    def cuts(self, prefix: str, wanted: int) -> list[str]:
        """Probes for the first keys behind what is known: as a list does not tell how long it will be, a stretch is cut
        by its next character until there are enough stretches, and not if it ends within a page."""
        whole: list[str] = []
        open_ones = deque([prefix])
        probes = 0
        while open_ones and len(open_ones) + len(whole) < wanted and probes < PROBES_MAX:
            stretch = open_ones.popleft()
            page = next(self._list_after(stretch, "" if stretch == prefix else stretch), [])
            probes += 1
            if len(page) < LIST_PAGE_BLOBS:
                whole.append(stretch)
                continue
            key: str | None = page[0].key
            while key is not None and probes < PROBES_MAX:
                child = key[: len(stretch) + 1]
                open_ones.append(child)
                probes += 1
                following = next(self._list_after(stretch, child + LAST_CHARACTER), [])
                key = following[0].key if following else None
        return sorted({*open_ones, *whole})[1:]

    def _list_after(self, prefix: str, after: str) -> Iterator[list[BlobInfo]]:
        """Pages of what comes after a key, in the order of the store."""
        self._refuse_forked()
        wanted = self._prefix + prefix
        folder = wanted.rpartition("/")[0]
        offset = self._prefix + after if after else None
        try:
            pages = obstore.list(self._store, prefix=folder or None, offset=offset, chunk_size=LIST_PAGE_BLOBS)
            for page in pages:
                found = [self._info(meta) for meta in page if str(meta["path"]).startswith(wanted)]
                if found:
                    yield found
                if page and str(page[-1]["path"]) > wanted + LAST_CHARACTER:
                    return
        except Exception as error:
            raise self._failed(error, "no") from error

    def open_read(self, key: str) -> BinaryIO:
        try:
            file = obstore.open_reader(self._store, self._key(key), buffer_size=READ_BUFFER_BYTES)
        except _ABSENT:
            raise BlobNotFound(key) from None
        except Exception as error:
            raise self._failed(error, "no") from error
        return cast("BinaryIO", io.BufferedReader(_Readable(self, file)))

    def spark_url(self, key: str) -> str:
        if not self._spark_root:
            raise InvalidSettings(
                f"Spark cannot reach the object store {self.url}.", next="Use a folder, S3, GCS or Azure for tables."
            )
        return f"{self._spark_root}/{self._key(key)}"

    def _info(self, meta: Any) -> BlobInfo:
        moment: datetime = meta["last_modified"]
        modified_at_us = int(moment.astimezone(UTC).timestamp() * 1_000_000)
        etag = str(meta.get("e_tag") or "").strip('"')
        return BlobInfo(str(meta["path"])[len(self._prefix) :], int(meta["size"]), etag, modified_at_us)

    def _failed(self, error: Exception, happened: str) -> StoreUnavailable:
        reason = str(error).partition("\n")[0].rstrip(".") or type(error).__name__
        advice = "See that the store runs and is reachable, then repeat the call."
        if "Error parsing Path" in str(error) or isinstance(error, ValueError):
            advice = "Rename the object: the library that reaches object stores takes no empty parts of keys, none of "
            advice += "dots alone, and no control characters. What lies beside it can be used by longer prefixes."
        if isinstance(error, PermissionDeniedError | UnauthenticatedError):
            happened, advice = "no", "Give the credentials in the environment the right to use it."
        return StoreUnavailable(
            f"The object store {self.url} failed: {reason}.",
            happened="no" if happened == "no" else "unknown",
            next=advice,
        )


def open_remote(url: str) -> RemoteBlobStore:
    """Open `memory://`, `s3://`, `gs://` or `az://`.

    Credentials come from the environment, as the provider's own tools read them. The query of an `s3://` URL may give
    `endpoint=` and `region=` for other stores than Amazon's.
    """
    parts = urlsplit(url)
    prefix = parts.path.strip("/")
    options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    try:
        if parts.scheme == "memory":
            return RemoteBlobStore(url, _memory.setdefault(parts.netloc, MemoryStore()), prefix, "")
        if not parts.netloc:
            raise InvalidSettings(f"{url!r} names no bucket.", next=f"Write {parts.scheme}://bucket/prefix.")
        if parts.scheme in ("s3", "s3a"):
            return _open_s3(url, parts.netloc, prefix, options)
        if options:
            raise InvalidSettings(
                f"{url!r} has an option that strandline does not know: {', '.join(sorted(options))}.",
                next="Leave it out; the provider's environment variables set everything.",
            )
        if parts.scheme in ("gs", "gcs"):
            return RemoteBlobStore(url, GCSStore(parts.netloc), prefix, f"gs://{parts.netloc}")
        if parts.scheme in ("az", "azure", "abfs", "abfss"):
            return RemoteBlobStore(url, AzureStore(parts.netloc), prefix, f"abfss://{parts.netloc}")
    except InvalidSettings:
        raise
    except Exception as error:
        raise InvalidSettings(
            f"The object store {url!r} cannot be opened: {str(error).partition(chr(10))[0]}.",
            next="Look at the URL and at the provider's environment variables.",
        ) from error
    raise InvalidSettings(
        f"No object store is known for {parts.scheme!r}.", next="Use a folder, or s3://, gs://, az://, memory://."
    )


def _open_s3(url: str, bucket: str, prefix: str, options: dict[str, str]) -> RemoteBlobStore:
    settings: dict[str, Any] = {}
    if endpoint := options.pop("endpoint", None):
        settings["endpoint"] = endpoint
    if region := options.pop("region", None):
        settings["region"] = region
    if options:
        raise InvalidSettings(
            f"{url!r} has an option that S3 does not know: {', '.join(options)}.",
            next="The options are endpoint= and region=; credentials go into the environment.",
        )
    client: Any = {"allow_http": True} if (endpoint or "").startswith("http://") else {}
    store = S3Store(bucket, client_options=client, **settings)
    return RemoteBlobStore(url, store, prefix, f"s3a://{bucket}")
