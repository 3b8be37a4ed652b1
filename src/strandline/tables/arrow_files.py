"""What a table's files, and a repository's namespace, are to Arrow: file systems that do one thing each."""

from __future__ import annotations

import atexit
import gc
import io
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn
from weakref import WeakSet

import pyarrow as pa
from pyarrow import fs

from strandline.blob import BlobInfo, BlobNotFound, BlobStore, is_absolute
from strandline.core.upload import ObjectWriter
from strandline.tables.scan import TableFile, changed, cut, vanished

if TYPE_CHECKING:
    from strandline.blob import Resolver

EXIT_WAIT_S = 2.0
LAST_STEPS_S = 0.05
"""For what a thread does after it has let go of a file: it frees what it used to open it."""
Describe = Callable[[], str]
"""Tells the table and its commit, if there is something to complain of."""


_open: WeakSet[Any] = WeakSet()
"""Files of Python that Arrow has: its threads let go of them a moment after the call that read them returned."""


_was_used: list[bool] = []


def _noted(file: Any) -> Any:
    _was_used[:] = [True]
    _open.add(file)
    return file


@atexit.register
def _wait_for_arrow() -> None:
    """Wait until Arrow's threads have let go of Python: one that wants it while it ends aborts the process."""
    if not _was_used:
        return
    gc.collect()  # scans that nobody holds any more
    until = time.monotonic() + EXIT_WAIT_S
    while len(_open) and time.monotonic() < until:
        time.sleep(0.001)
    time.sleep(LAST_STEPS_S)


class _Handler(fs.FileSystemHandler):  # type: ignore[misc] # pyarrow has no types
    """A file system of which Arrow uses a part."""

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def get_type_name(self) -> str:
        return "strandline"

    def normalize_path(self, path: str) -> str:
        return path

    def _refuse(self, *arguments: Any, **options: Any) -> NoReturn:
        """PyArrow demands that a handler has these; none of them is called here."""
        raise io.UnsupportedOperation("this file system is for one purpose")

    _unused: Any = _refuse
    get_file_info = get_file_info_selector = open_input_file = open_input_stream = _unused
    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = delete_file = _unused
    move = copy_file = open_output_stream = open_append_stream = _unused


class Files(_Handler):
    """The files of a scan, by their number in it."""

    def __init__(self, resolver: Resolver, files: Sequence[TableFile], place: Describe) -> None:
        self._resolver = resolver
        self._files = files
        self._place = place

    def _file(self, path: str) -> TableFile:
        return self._files[int(path.partition("/")[0])]

    def get_file_info(self, paths: Sequence[str]) -> list[fs.FileInfo]:
        return [fs.FileInfo(path, fs.FileType.File, size=self._file(path).info.size) for path in paths]

    def open_input_file(self, path: str) -> Any:
        file = self._file(path)
        blobs, key = self._resolver.resolve(file.info.physical_address)
        try:
            local = blobs.local_path(key)
            opened = (
                pa.OSFile(local, "r") if local is not None else pa.PythonFile(_noted(blobs.open_read(key)), mode="r")
            )
            if opened.size() != file.info.size:
                raise cut(file, self._place(), opened.size())
            if is_absolute(file.info.physical_address):
                _refuse_changed(file, self._place, blobs.head(key))
            return opened
        except (BlobNotFound, FileNotFoundError):
            raise vanished(file, self._place()) from None

    def open_input_stream(self, path: str) -> Any:
        return self.open_input_file(path)


def file_system(resolver: Resolver, files: Sequence[TableFile], place: Describe) -> tuple[fs.FileSystem, list[str]]:
    """A file system with the files of a scan, and what they are called in it.

    Files on this machine are Arrow's own business: a thread of Arrow that asks Python for something when the
    interpreter ends aborts the process. They are looked at before the scan, as `Files` does when it opens them.

    Raises:
        ObjectMissing, Corrupted: a file on this machine is gone, or has another size.
    """
    paths = []
    for file in files:
        blobs, key = resolver.resolve(file.info.physical_address)
        local = blobs.local_path(key)
        # Arrow tells compression by the name, and the one that the table has for a file counts
        if local is None or local.rpartition(".")[2] != file.relative.rpartition(".")[2]:
            names = [f"{at}/{one.relative.rpartition('/')[2]}" for at, one in enumerate(files)]
            return fs.PyFileSystem(Files(resolver, files, place)), names
        try:
            _refuse_changed(file, place, blobs.head(key))
        except BlobNotFound:
            raise vanished(file, place()) from None
        paths.append(local)
    return fs.LocalFileSystem(), paths


def _refuse_changed(file: TableFile, place: Describe, found: BlobInfo) -> None:
    error = changed(file, place, found)
    if error is not None:
        raise error


class Uploads(_Handler):
    """A namespace in an object store, to which new files are written.

    Args:
        failed: takes the error of a write, which Arrow would wrap.
    """

    def __init__(self, store: BlobStore, failed: list[Exception]) -> None:
        self._store = store
        self._failed = failed

    def create_dir(self, path: str, recursive: bool) -> None:
        """Object stores have no folders."""

    def get_file_info(self, paths: Sequence[str]) -> list[fs.FileInfo]:
        return [fs.FileInfo(path, fs.FileType.Directory) for path in paths]

    def open_output_stream(self, path: str, metadata: object) -> pa.NativeFile:
        def arrive(spool: Any) -> None:
            try:
                self._store.put(path, spool, "fresh")
            except Exception as error:
                self._failed.append(error)
                raise

        return pa.PythonFile(_noted(ObjectWriter(arrive)), mode="w")
