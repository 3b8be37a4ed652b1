"""The lake as an fsspec file system: `strandline://repository/ref/path` for pandas, PyArrow, Polars, DuckDB and others.

What is written is staged on the branch that the URL names; commits are made with the Python API or the command line.
There are no empty folders. Nothing is cached: a branch may move at any moment, a commit or tag never does.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import IO, Any, ClassVar, cast

from fsspec.spec import AbstractFileSystem
from fsspec.transaction import Transaction

import strandline
from strandline import forks
from strandline.core.upload import ObjectWriter, upload
from strandline.errors import InvalidSettings, NotAllowed, NotFound, PreconditionFailed, StrandlineError, UsageError
from strandline.lake import Lake
from strandline.places import Place
from strandline.redaction import SecretUrl, without_secrets
from strandline.repository.branch import Branch
from strandline.repository.refs.ref import Ref
from strandline.results.rows import CommonPrefix, ObjectInfo
from strandline.tree.rows import Entry

Detail = dict[str, Any]
OF_FSSPEC = frozenset(("asynchronous", "loop", "listings_expiry_time", "max_paths", "use_listings_cache"))
"""Options that any file system of fsspec takes."""


class _Transaction(Transaction):  # type: ignore[misc] # fsspec has no types
    """Files that were written within `with fs.transaction:` appear on their branch at one instant."""

    def complete(self, commit: bool = True) -> None:
        written = [cast("_Writer", file) for file in self.files]
        self.files.clear()
        self.fs._intrans = False
        self.fs._transaction = None
        self.fs: Any = None
        by_branch: dict[tuple[str, str], tuple[Branch, dict[str, Entry]]] = {}
        for file in written:
            if commit and file.entry is not None:
                if file.create and file.branch.exists(file.path):
                    raise FileExistsError(errno.EEXIST, "There is an object already", file.path)
                key = (file.branch._core.stores.repository_id, file.branch.name)
                by_branch.setdefault(key, (file.branch, {}))[1][file.path] = file.entry
        for branch, entries in by_branch.values():
            with _as_os_error(branch.name):
                branch.stage_atomically(list(entries.items()))


class _Writer(ObjectWriter):
    """A file that becomes an object when it is closed; in a transaction, when that ends."""

    def __init__(self, branch: Branch, path: str, *, create: bool, autocommit: bool) -> None:
        super().__init__(self._arrive)
        self.branch = branch
        self.path = path
        self.mode = "wb"
        self.entry: Entry | None = None
        self._while = sys.exc_info()[1]
        self.create = create
        self._autocommit = autocommit

    def close(self) -> None:
        """Make the object; but not when an error ends the `with` block of something around this file."""
        error = sys.exc_info()[1]
        if error is not None and error is not self._while:
            self.discard()
        else:
            super().close()

    def __del__(self) -> None:
        if not self.closed:  # nobody closed it: whatever it holds is not whole
            self.discard()

    def _arrive(self, spool: IO[bytes]) -> None:
        with _as_os_error(self.path):
            if self._autocommit:
                self.branch.put(self.path, spool, create=self.create)
            else:
                self.entry = upload(self.branch._core, self.branch._new_key(self.path), self.path, spool, None, None)

    def commit(self) -> None:
        """Part of fsspec's protocol; the transaction makes all its files appear together."""


class StrandlineFileSystem(AbstractFileSystem):  # type: ignore[misc] # fsspec has no types
    """A lake as a file system.

    Args:
        lake: where the lake is: a folder or a TOML file; by default the environment says, as for `strandline.open`.
        kv, blob, tenant: as for `strandline.open`.
    """

    protocol: ClassVar[str] = "strandline"
    root_marker: ClassVar[str] = ""
    transaction_type: ClassVar[type[Transaction]] = _Transaction

    def __init__(
        self,
        lake: str | os.PathLike[str] | None = None,
        *,
        kv: str | None = None,
        blob: str | None = None,
        tenant: str | None = None,
        **options: Any,
    ) -> None:
        if unknown := sorted(set(options) - OF_FSSPEC):
            raise InvalidSettings(
                f"The file system has no option {unknown[0]!r}.", next="The options are lake, kv, blob and tenant."
            )
        super().__init__(**{**options, "use_listings_cache": False})
        self._kv = None if kv is None else SecretUrl(kv)
        self._blob, self._tenant = blob, tenant
        self._location = lake
        self._lake: Lake | None = None
        self._lake_lock = forks.lock()

    # what travels to other processes, in pickles and as JSON, holds no secrets

    @property
    def storage_options(self) -> dict[str, Any]:
        """Arguments that open the same file system again, without secrets."""
        return self._portable

    @storage_options.setter
    def storage_options(self, options: dict[str, Any]) -> None:
        kept = {name: os.fspath(value) if name == "lake" else value for name, value in options.items() if value}
        self._portable = {
            name: without_secrets(value) if name in ("kv", "blob") else value for name, value in kept.items()
        }

    @property
    def lake(self) -> Lake:
        """The lake; opened at the first use."""
        with self._lake_lock:
            if self._lake is None:
                with _as_os_error(str(self._location)):
                    kv = None if self._kv is None else self._kv.reveal()
                    self._lake = strandline.open(self._location, kv=kv, blob=self._blob, tenant=self._tenant)
            return self._lake

    # --- places -------------------------------------------------------------------------------------------------------

    def _split(self, path: str) -> Place:
        return Place.named_by(self._strip_protocol(path))

    def _ref(self, repository: str, ref: str) -> Ref:
        return self.lake.repository(repository).ref(ref)

    def _place(self, path: str) -> tuple[Ref, str]:
        repository, ref, inner = self._split(path)
        if not inner:
            raise IsADirectoryError(errno.EISDIR, "This is a folder, not an object", path)
        return self._ref(repository, ref), inner

    def _branch(self, path: str) -> tuple[Branch, str]:
        ref, inner = self._place(path)
        if not isinstance(ref, Branch):
            raise PermissionError(errno.EROFS, f"{ref.expression!r} is not a branch, so it cannot be written", path)
        return ref, inner

    # --- looking ------------------------------------------------------------------------------------------------------

    def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
        with _as_os_error(path):
            found = self._list(self._strip_protocol(path))
        return found if detail else [one["name"] for one in found]

    def _list(self, path: str) -> list[Detail]:
        repository, ref, inner = self._split(path)
        if not repository:
            return [_folder(record.name) for record in self.lake.repositories()]
        if not ref:
            held = self.lake.repository(repository)
            return [_folder(f"{repository}/{name.name}") for names in (held.branches(), held.tags()) for name in names]
        handle = self._ref(repository, ref)
        below = inner.rstrip("/") + "/" if inner else ""
        found = [
            _folder(f"{repository}/{ref}/{one.path.rstrip('/')}")
            if isinstance(one, CommonPrefix)
            else _file(f"{repository}/{ref}", one)
            for one in handle.list(below, delimiter="/")
            if one.path != below
        ]
        if found or not inner:
            return found
        return [_file(f"{repository}/{ref}", handle.stat(inner))]

    def info(self, path: str, **options: Any) -> Detail:
        path = self._strip_protocol(path)
        repository, ref, inner = self._split(path)
        with _as_os_error(path):
            if not repository:
                return _folder("")
            held = self.lake.repository(repository)
            if not ref:
                return _folder(repository)
            handle = held.ref(ref)
            if not inner:
                return _folder(path)
            found = handle.find(inner)
            if found is not None:
                return _file(f"{repository}/{ref}", found)
            if handle.list(inner + "/", amount=1).first() is None:
                raise FileNotFoundError(errno.ENOENT, "There is no object and no folder", path)
            return _folder(path)

    def exists(self, path: str, **options: Any) -> bool:
        try:
            self.info(path)
        except FileNotFoundError:
            return False
        return True

    def find(
        self, path: str, maxdepth: int | None = None, withdirs: bool = False, detail: bool = False, **options: Any
    ) -> Any:
        repository, ref, inner = self._split(path)
        if not ref or withdirs or maxdepth is not None:
            return super().find(path, maxdepth=maxdepth, withdirs=withdirs, detail=detail, **options)
        try:
            with _as_os_error(path):
                handle = self._ref(repository, ref)
                objects = list(handle.list(inner.rstrip("/") + "/" if inner else ""))
                if not objects and inner:
                    objects = [handle.stat(inner)]
        except FileNotFoundError:
            objects = []
        found = {one["name"]: one for one in (_file(f"{repository}/{ref}", info) for info in objects)}
        return found if detail else list(found)

    def checksum(self, path: str) -> str:
        """The checksum of an object's content, which is equal for equal content."""
        return str(self.info(path)["checksum"])

    def ukey(self, path: str) -> str:
        return self.checksum(path)

    def modified(self, path: str) -> datetime:
        with _as_os_error(path):
            ref, inner = self._place(path)
            return ref.stat(inner).modified_at

    # --- reading ------------------------------------------------------------------------------------------------------

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: Any = None,
        **options: Any,
    ) -> Any:
        with _as_os_error(path):
            if mode == "rb":
                ref, inner = self._place(path)
                return ref.open(inner)
            if mode not in ("wb", "xb"):
                raise ValueError(f"Objects are read or written whole: mode {mode!r} is not possible.")
            branch, inner = self._branch(path)
            branch._refuse_early()
            if mode == "xb" and branch.exists(inner):
                raise FileExistsError(errno.EEXIST, "There is an object already", path)
            return _Writer(branch, inner, create=mode == "xb", autocommit=autocommit)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        with _as_os_error(path):
            ref, inner = self._place(path)
            if (start or 0) < 0 or (end or 0) < 0:  # from the end, as in a slice
                low, high, _ = slice(start, end).indices(ref.stat(inner).size)
                return ref.read(inner, low, high)
            return ref.read(inner, start or 0, end)

    def cat(self, path: str | list[str], recursive: bool = False, on_error: str = "raise", **options: Any) -> Any:
        if recursive:  # folders are among what fsspec would expand this to, and have no bytes
            path = sorted({one for root in ([path] if isinstance(path, str) else path) for one in self.find(root)})
        return super().cat(path, recursive=False, on_error=on_error, **options)

    def get_file(self, rpath: str, lpath: Any, callback: Any = None, outfile: Any = None, **options: Any) -> None:
        if outfile is not None or not isinstance(lpath, str | os.PathLike):
            super().get_file(rpath, lpath, outfile=outfile, **options)
            return
        if self.isdir(rpath):
            os.makedirs(lpath, exist_ok=True)
            return
        with _as_os_error(rpath):
            ref, inner = self._place(rpath)
            Path(lpath).parent.mkdir(parents=True, exist_ok=True)
            ref.download(inner, Path(lpath))

    # --- writing ------------------------------------------------------------------------------------------------------

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        with self.open(path, "xb" if mode == "create" else "wb") as file:
            file.write(value)

    def put_file(self, lpath: Any, rpath: str, callback: Any = None, mode: str = "overwrite", **options: Any) -> None:
        if os.path.isdir(lpath):
            return  # there are no empty folders
        with open(lpath, "rb") as source, self.open(rpath, "xb" if mode == "create" else "wb") as target:
            while chunk := source.read(1 << 20):
                target.write(chunk)

    def cp_file(self, path1: str, path2: str, **options: Any) -> None:
        """Copy an object; within a branch no bytes are copied."""
        if self.isdir(path1):
            return
        with _as_os_error(path1):
            source, inner = self._place(path1)
            target, to = self._branch(path2)
            if source._core.stores.repository_id == target._core.stores.repository_id:
                if (source.expression, inner) != (target.expression, to):
                    target.copy(inner, to, ref=source)  # no bytes are copied
                return
            with source.open(inner) as file:
                target.put(to, file)

    def mv(self, path1: str, path2: str, recursive: bool = False, maxdepth: int | None = None, **options: Any) -> None:
        first, second = self._split(path1), self._split(path2)
        if first[:2] != second[:2] or not first.path or maxdepth is not None or path2.endswith("/"):
            super().mv(path1, path2, recursive=recursive, maxdepth=maxdepth, **options)
            return
        is_folder = self.isdir(path1)
        if is_folder and not recursive:
            raise IsADirectoryError(errno.EISDIR, "This is a folder: pass recursive=True", path1)
        if self.isdir(path2):
            name = first.path.rstrip("/").rpartition("/")[2]
            second = second._replace(path=f"{second.path.rstrip('/')}/{name}".lstrip("/"))
        with _as_os_error(path1):
            branch, _ = self._branch(path1)
            ends = [f"{part.rstrip('/')}/" if is_folder else part for part in (first.path, second.path)]
            branch.rename(*ends)

    def rm_file(self, path: str) -> None:
        with _as_os_error(path):
            branch, inner = self._branch(path)
            if not branch.delete(inner):
                raise FileNotFoundError(errno.ENOENT, "There is no object", path)

    _rm = rm_file

    def rm(self, path: str | list[str], recursive: bool = False, maxdepth: int | None = None) -> None:
        paths = [path] if isinstance(path, str) else path
        if not recursive or maxdepth is not None or any(char in one for one in paths for char in "*?["):
            for one in reversed(self.expand_path(path, recursive=recursive, maxdepth=maxdepth)):
                if self.isfile(one):
                    self.rm_file(one)
                elif not self.exists(one):
                    raise FileNotFoundError(errno.ENOENT, "There is no object and no folder", one)
                elif not recursive:
                    raise IsADirectoryError(errno.EISDIR, "This is a folder: pass recursive=True", one)
            return
        for one in paths:
            with _as_os_error(one):
                branch, inner = self._branch(one)
                count = branch.delete_prefix(inner.rstrip("/") + "/")
                if not branch.delete(inner) and not count:
                    raise FileNotFoundError(errno.ENOENT, "There is no object and no folder", one)

    def mkdir(self, path: str, create_parents: bool = True, **options: Any) -> None:
        """Does nothing below a branch, since folders come and go with their objects."""
        repository, ref, _ = self._split(path)
        with _as_os_error(path):
            self._ref(repository, ref)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        if not exist_ok and self.isdir(path):
            raise FileExistsError(errno.EEXIST, "There is such a folder", path)
        self.mkdir(path)

    def rmdir(self, path: str) -> None:
        if self.ls(path):
            raise OSError(errno.ENOTEMPTY, "The folder holds objects", path)


def _folder(name: str) -> Detail:
    return {"name": name, "size": 0, "type": "directory"}


def _file(place: str, info: Any) -> Detail:
    assert isinstance(info, ObjectInfo)
    return {
        "name": f"{place}/{info.path}",
        "size": info.size,
        "type": "file",
        "checksum": info.checksum,
        "LastModified": info.modified_at,
        "ContentType": info.content_type,
        "metadata": info.metadata,
    }


@contextmanager
def _as_os_error(path: str) -> Iterator[None]:
    """Errors as those of files, with our words; callers that open files expect no others."""
    try:
        yield
    except (io.UnsupportedOperation, OSError):
        raise
    except NotFound as error:
        raise FileNotFoundError(errno.ENOENT, str(error), path) from error
    except PreconditionFailed as error:
        raise FileExistsError(errno.EEXIST, str(error), path) from error
    except NotAllowed as error:
        raise PermissionError(errno.EACCES, str(error), path) from error
    except UsageError as error:
        raise ValueError(str(error)) from error
    except StrandlineError as error:
        raise OSError(errno.EIO, str(error), path) from error
