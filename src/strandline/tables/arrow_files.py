"""What a table's files, and a repository's namespace, are to Arrow: file systems that do one thing each."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa
from pyarrow import fs

from strandline.blob import BlobNotFound, BlobStore
from strandline.repository.objects.upload import ObjectWriter
from strandline.tables.scan import TableFile, cut, vanished

if TYPE_CHECKING:
    from strandline.repository.core.repository_core import RepositoryCore

Describe = Callable[[], str]
"""Tells the table and its commit, if there is something to complain of."""


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

    def __init__(self, core: RepositoryCore, files: Sequence[TableFile], place: Describe) -> None:
        self._core = core
        self._files = files
        self._place = place

    def _file(self, path: str) -> TableFile:
        return self._files[int(path.partition("/")[0])]

    def get_file_info(self, paths: Sequence[str]) -> list[fs.FileInfo]:
        return [fs.FileInfo(path, fs.FileType.File, size=self._file(path).info.size) for path in paths]

    def open_input_file(self, path: str) -> Any:
        file = self._file(path)
        blobs, key = self._core.resolver.resolve(file.info.physical_address)
        try:
            local = blobs.local_path(key)
            opened = pa.OSFile(local, "r") if local is not None else pa.PythonFile(blobs.open_read(key), mode="r")
            if opened.size() != file.info.size:
                raise cut(file, self._place(), opened.size())
            return opened
        except (BlobNotFound, FileNotFoundError):
            raise vanished(file, self._place()) from None

    def open_input_stream(self, path: str) -> Any:
        return self.open_input_file(path)


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
                self._store.put(path, spool)
            except Exception as error:
                self._failed.append(error)
                raise

        return pa.PythonFile(ObjectWriter(arrive), mode="w")
