"""Blobs as files under a folder.

Written here rather than taken from obstore, whose local store neither syncs to disk nor survives a fork.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

from strandline.blob.store import (
    LIST_PAGE_BLOBS,
    BlobExists,
    BlobInfo,
    BlobNotFound,
    NotRead,
    PartsStore,
    PutMode,
    evenly,
    read_from,
)
from strandline.blob.write_behind import WriteBehind
from strandline.errors import InvalidName, StoreUnavailable
from strandline.ids import new_id

INCOMING = ".strandline-incoming"
"""Folder of half-written files, below the root: on the same file system, so that a rename is atomic."""
_OF_A_PUT = re.compile(r"[0-9a-f]{20}")
COPY_BUFFER_BYTES = 1 << 20
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


_Entry = tuple[str, os.DirEntry[str], frozenset[str] | None]


def _may_hold(folder: str, prefix: str, after: str, last: str | None) -> bool:
    """Whether a file with `after < key <= last` that starts with a prefix may lie in a folder."""
    below = folder + "/"
    if not (below.startswith(prefix) or prefix.startswith(below)):
        return False
    return folder + "0" > after and (last is None or below <= last)  # "0" comes next after "/"


class LocalBlobStore(PartsStore):
    """Durability: with `synced` a put that returned survives a power loss; without, only a killed process."""

    readers = 4 if (os.cpu_count() or 1) > 3 else 2  # what is read is decompressed and hashed

    def __init__(self, root: str | Path, *, synced: bool = True) -> None:
        self.root = Path(os.path.abspath(root))
        self.synced = synced
        self.url = "file://" + quote(str(self.root))
        self._root = str(self.root).rstrip(os.sep) + os.sep  # the root of all may be one
        self._known_folders: set[str] = set()

    def _path(self, key: str) -> str:
        if not key or "\0" in key or any(part in ("", ".", "..") for part in key.split("/")):
            raise InvalidName(f"{key!r} is not a key of a blob.", next="Leave out empty, '.' and '..' components.")
        return self._root + key

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        try:
            with open(self._path(key), "rb", buffering=0) as file:
                if start:
                    file.seek(start)
                return file.read() if end is None else file.read(max(0, end - start))
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            raise BlobNotFound(key) from None
        except OSError as error:
            raise _unavailable(error, self.root, "no") from error

    def put(self, key: str, data: bytes | BinaryIO, mode: PutMode = "overwrite") -> None:
        target = self._path(key)
        incoming = target if mode == "fresh" else f"{self._root}{INCOMING}/{new_id()}"
        try:
            self._make_folder(os.path.dirname(target))
            if incoming != target:
                self._make_folder(os.path.dirname(incoming))
            descriptor = os.open(incoming, _NEW_FILE, 0o666)  # of what was there nothing is taken away
            try:
                try:
                    if isinstance(data, bytes):
                        _write_all(descriptor, data)
                    else:
                        with WriteBehind(lambda chunk: _write_all(descriptor, chunk)) as out:
                            while chunk := read_from(data, COPY_BUFFER_BYTES):
                                out.write(chunk)
                    if self.synced:
                        os.fsync(descriptor)
                finally:
                    os.close(descriptor)
                if mode == "create":
                    os.link(incoming, target)  # refuses a taken name, which a rename would not
                    os.unlink(incoming)
                elif mode == "overwrite":
                    os.replace(incoming, target)
            except BaseException:
                with suppress(OSError):
                    os.unlink(incoming)
                raise
            if self.synced:
                _sync(os.path.dirname(target))
        except NotRead as failed:
            raise failed.error from None
        except FileExistsError:
            raise BlobExists(key) from None
        except OSError as error:
            self._known_folders.clear()
            raise _unavailable(error, self.root, "no") from error

    def put_at(self, key: str, offset: int, data: BinaryIO) -> None:
        target = self._path(key)
        try:
            self._make_folder(os.path.dirname(target))
            descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                os.lseek(descriptor, offset, os.SEEK_SET)
                with WriteBehind(lambda chunk: _write_all(descriptor, chunk)) as out:
                    while chunk := read_from(data, COPY_BUFFER_BYTES):
                        out.write(chunk)
            finally:
                os.close(descriptor)
        except NotRead as failed:
            raise failed.error from None
        except OSError as error:
            self._known_folders.clear()
            raise _unavailable(error, self.root, "unknown") from error

    def cut(self, key: str, size: int) -> None:
        target = self._path(key)
        try:
            with open(target, "r+b", buffering=0) as file:
                file.truncate(size)
                if self.synced:
                    os.fsync(file.fileno())
            if self.synced:
                _sync(os.path.dirname(target))
        except FileNotFoundError:
            raise BlobNotFound(key) from None
        except OSError as error:
            raise _unavailable(error, self.root, "unknown") from error

    def _make_folder(self, folder: str) -> None:
        if folder in self._known_folders:
            return
        missing = []
        above = folder
        while not os.path.isdir(above):
            missing.append(above)
            above = os.path.dirname(above)
        for path in reversed(missing):
            with suppress(FileExistsError):
                os.mkdir(path)
            if self.synced:
                _sync(os.path.dirname(path))
        self._known_folders.add(folder)

    def head(self, key: str) -> BlobInfo:
        try:
            stat = os.stat(self._path(key))
        except (FileNotFoundError, NotADirectoryError):
            raise BlobNotFound(key) from None
        except OSError as error:
            raise _unavailable(error, self.root, "no") from error
        return _info(key, stat)

    def delete_many(self, keys: Iterable[str]) -> None:
        links = _Links(self._root)
        for key in keys:
            if links.lead_away(key):
                continue
            try:
                os.unlink(self._path(key))
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                raise _unavailable(error, self.root, "unknown") from error

    def through_links(self, keys: Sequence[str]) -> set[str]:
        links = _Links(self._root)
        return {key for key in keys if links.lead_away(key)}

    def half_written(self, before_us: int) -> list[BlobInfo]:
        found: list[BlobInfo] = []
        if os.path.islink(self._root + INCOMING):
            return found  # it leads to what is somebody else's
        try:
            with os.scandir(self._root + INCOMING) as entries:
                for entry in entries:
                    if not _OF_A_PUT.fullmatch(entry.name):
                        continue
                    with suppress(FileNotFoundError):  # its put has ended meanwhile
                        info = _info(entry.name, entry.stat(follow_symlinks=False))
                        if entry.is_file(follow_symlinks=False) and info.modified_at_us < before_us:
                            found.append(info)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise _unavailable(error, self.root, "no") from error
        return found

    def drop_half_written(self, infos: Iterable[BlobInfo]) -> None:
        for info in infos:
            with suppress(OSError):  # a later run tries again
                os.unlink(f"{self._root}{INCOMING}/{info.key}")

    def list_pages(self, prefix: str = "") -> Iterator[list[BlobInfo]]:
        return self._pages(self._walk(prefix))

    def list_between(self, prefix: str, after: str, last: str | None) -> Iterator[list[BlobInfo]]:
        return self._pages(self._walk(prefix, after, last, in_order=True))

    def cuts(self, prefix: str, wanted: int) -> list[str]:
        """By folders, level by level, until there are enough of them; the files of one that is flat count too."""
        level: list[_Entry] = list(self._entries(prefix.rpartition("/")[0], frozenset(), in_order=True))
        while True:
            level = [one for one in level if one[0].startswith(prefix) or _may_hold(one[0], prefix, "", None)]
            if len(level) >= wanted or not any(linked is not None for _, _, linked in level):
                return evenly([key for key, _, _ in level], wanted)
            level = [
                inner
                for key, entry, linked in level
                for inner in ([(key, entry, None)] if linked is None else self._entries(key, linked, in_order=True))
            ]

    def _pages(self, found: Iterator[tuple[str, os.DirEntry[str]]]) -> Iterator[list[BlobInfo]]:
        page: list[BlobInfo] = []
        try:
            for key, entry in found:
                try:
                    page.append(_info(key, entry.stat()))
                except FileNotFoundError:
                    continue  # deleted since the folder was read
                if len(page) == LIST_PAGE_BLOBS:
                    yield page
                    page = []
        except OSError as error:
            raise _unavailable(error, self.root, "no") from error
        if page:
            yield page

    def list_keys(self, prefix: str = "") -> Iterator[str]:
        try:
            for key, _ in self._walk(prefix):
                yield key
        except OSError as error:
            raise _unavailable(error, self.root, "no") from error

    def _walk(
        self, prefix: str, after: str = "", last: str | None = None, *, in_order: bool = False
    ) -> Iterator[tuple[str, os.DirEntry[str]]]:
        """Files with `after < key <= last` whose key starts with `prefix`, depth first; folders that cannot have some
        are not opened.

        Args:
            in_order: of their keys; else as the file system has them, which costs less.
        """
        pending = [self._entries(prefix.rpartition("/")[0], frozenset(), in_order=in_order)]
        while pending:
            found = next(pending[-1], None)
            if found is None:
                pending.pop()
                continue
            key, entry, linked = found
            if linked is None:
                if key.startswith(prefix) and key > after and (last is None or key <= last):
                    yield key, entry
            elif _may_hold(key, prefix, after, last):
                pending.append(self._entries(key, linked, in_order=in_order))

    def _entries(self, folder: str, linked: frozenset[str], *, in_order: bool) -> Iterator[_Entry]:
        """What is in a folder: keys, and for folders the links that lead to what is in them."""
        found = self._scanned(folder, linked)
        return iter(sorted(found, key=lambda one: one[0] if one[2] is None else one[0] + "/")) if in_order else found

    def _scanned(self, folder: str, linked: frozenset[str]) -> Iterator[_Entry]:
        try:
            entries = os.scandir(self._root + folder)
        except (FileNotFoundError, NotADirectoryError):
            return
        with entries:
            for entry in entries:
                key = f"{folder}/{entry.name}" if folder else entry.name
                if not entry.is_dir():
                    yield key, entry, None
                elif key != INCOMING:
                    above = linked
                    if entry.is_symlink():  # of a circle, once around is enough
                        real = os.path.realpath(entry.path)
                        here = os.path.realpath(self._root + folder)
                        if real in linked or f"{here}/".startswith(f"{real.rstrip('/')}/"):
                            continue
                        above = linked | {real}
                    yield key, entry, above

    def open_read(self, key: str) -> BinaryIO:
        try:
            return open(self._path(key), "rb")
        except (FileNotFoundError, NotADirectoryError):
            raise BlobNotFound(key) from None
        except OSError as error:
            raise _unavailable(error, self.root, "no") from error

    def sync(self, keys: Sequence[str]) -> None:
        if not self.synced:
            return
        try:
            folders: set[str] = set()
            for key in keys:
                path = self._path(key)
                _sync(path)
                while len(path) > len(self._root):
                    path = os.path.dirname(path)
                    folders.add(path)
            for folder in folders:
                _sync(folder)
        except OSError as error:
            raise _unavailable(error, self.root, "unknown") from error

    def local_path(self, key: str) -> str:
        return self._path(key)

    def spark_url(self, key: str) -> str:
        return f"file://{self._root}{key}"


class _Links:
    """Which folders below a root are reached through a link; each is looked at once."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._away: dict[str, bool] = {"": False}

    def lead_away(self, key: str) -> bool:
        return self._folder(key.rpartition("/")[0]) or os.path.islink(self._root + key)

    def _folder(self, folder: str) -> bool:
        found = self._away.get(folder)
        if found is None:
            found = self._folder(folder.rpartition("/")[0]) or os.path.islink(self._root + folder)
            self._away[folder] = found
        return found


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _info(key: str, stat: os.stat_result) -> BlobInfo:
    # inode, time and size together: a file that was replaced differs in at least one of them
    etag = f"{stat.st_ino:x}-{stat.st_mtime_ns:x}-{stat.st_size:x}"
    return BlobInfo(key, stat.st_size, etag, stat.st_mtime_ns // 1000)


def _unavailable(error: OSError, root: Path, happened: str) -> StoreUnavailable:
    advice = "Look at the disk, then repeat the call."
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        advice = "Free some space on the disk, then repeat the call."
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        advice = "Give this user the right to write the folder, then repeat the call."
    return StoreUnavailable(
        f"The object store {root} failed: {error.strerror or error}.",
        happened="no" if happened == "no" else "unknown",
        next=advice,
    )
