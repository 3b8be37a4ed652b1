"""Reading: a handle on a commit, a tag, a branch as it stands, or the staged part of a branch."""

from __future__ import annotations

import builtins
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np
import pyarrow as pa

from strandline.arguments import INT64_MAX, checked
from strandline.blob import BlobNotFound, BlobStore, is_absolute
from strandline.branch.at import BranchAt
from strandline.branch.commits import Commit
from strandline.branch.view import tree_window, uncommitted, uncommitted_window
from strandline.clock import Microseconds, to_us
from strandline.core.iceberg_files import POINTER
from strandline.core.promises import PIN_DAYS, drop_pin, is_expired, put_pin
from strandline.core.repository_core import RepositoryCore
from strandline.engines import engine, load
from strandline.errors import Advice, Corrupted, ObjectMissing, ObjectNotFound, UsageError
from strandline.ids import CommitId, check_path, encoded, prefix_end
from strandline.operations import logged
from strandline.progress import Progress, no_progress
from strandline.repository.refs.exporting import Source, address_of, export, local_only, of_size
from strandline.repository.refs.expressions import Target, parse_time
from strandline.results.differences import Diff
from strandline.results.history import NOTHING, Log, LogFilter
from strandline.results.listing import Listing
from strandline.results.rows import ObjectInfo, as_info, check_amount
from strandline.tree.diff import Difference, diff
from strandline.tree.rows import Changes, Entry, entries_of
from strandline.tree.store import EMPTY, Tree

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from strandline.tables.place import WritableTableRef
    from strandline.tables.table import Table

COPY_BUFFER_BYTES = 1 << 20


@checked(
    but=(
        "find",
        "exists",
        "read",
        "stat",
    )
)
class Ref:
    """Something that can be read: here a commit, which never changes. `Branch` is a `Ref` too.

    Safe to share between threads; usable after a fork; pickles without secrets.
    """

    def __init__(self, core: RepositoryCore, expression: str, target: Target) -> None:
        self._core = core
        self.expression = expression
        self._target = target

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._core.name}/{self.expression}>"

    def __eq__(self, other: object) -> bool:
        """Whether both read the same: the same commit, or the same creation of a branch, of the same repository."""
        return isinstance(other, Ref) and type(other) is type(self) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def _identity(self) -> tuple[str, ...]:
        target = self._target
        what = target.commit if target.kind == "commit" else target.branch_id
        return self._core.stores.repository_id, target.kind, what

    @property
    def place(self) -> str:
        """repository/ref"""
        return f"{self._core.name}/{self.expression}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen_ref, (self._core.reopen, self.expression, self._target)

    # --- what the kinds of refs do differently ------------------------------------------------------------------------

    @property
    def commit_id(self) -> CommitId:
        """The commit; of a branch, its head right now."""
        return self._target.commit

    def _find(self, path: str, key: bytes) -> Entry | None:
        return self._core.stores.trees.find(self._tree(), path)

    def _window(self, start: bytes, end: bytes | None, limit: int) -> tuple[pa.Table, bytes | None]:
        return tree_window(self._core.stores.trees, self._tree(), start, end, limit)

    def _layers(self, prefix: str) -> tuple[Tree, list[Changes]]:
        """What there is below a prefix at one instant: a tree, and changes over it, sorted by path."""
        return self._tree(), []

    # --- reading ------------------------------------------------------------------------------------------------------

    def _tree(self) -> Tree:
        return self._core.commits.tree(self.commit_id)

    def get_commit(self) -> Commit:
        """The commit's record: message, date, parents, metadata."""
        return self._core.commits.get(self.commit_id)

    def find(self, path: str) -> ObjectInfo | None:
        """The object at a path, or None."""
        entry = self._find(path, check_path(path))
        return None if entry is None else as_info(path, entry)

    def stat(self, path: str) -> ObjectInfo:
        """The object at a path.

        Raises:
            ObjectNotFound: there is none.
        """
        found = self.find(path)
        if found is None:
            raise ObjectNotFound(
                f"There is no object {path!r} in {self._core.name}/{self.expression}.",
                next=f"`strandline ls {self._core.name}/{self.expression}/` lists what there is.",
            )
        return found

    def exists(self, path: str) -> bool:
        """Whether there is an object at a path."""
        return self.find(path) is not None

    def read(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        """The bytes of an object, or of a part of it.

        Raises:
            ObjectNotFound: there is no object at the path.
            ObjectMissing: there is, but its bytes are gone from the object store.
        """
        info = self.stat(path)
        blobs, key = self._locate(info)
        if type(start) is not int or (end is not None and type(end) is not int):
            raise UsageError(f"{start!r} to {end!r} is not a valid part of an object.", next="Give numbers of bytes.")
        if not 0 <= start <= INT64_MAX or (end is not None and not 0 <= end <= INT64_MAX):
            raise UsageError(
                f"{start} to {end} is not a valid part of an object.", next="Count the bytes from its beginning, 0."
            )
        try:
            data = blobs.get(key, start, end)
        except BlobNotFound:
            raise self._missing(info) from None
        expected = max(0, (info.size if end is None else min(end, info.size)) - start)
        if len(data) != expected:
            raise self._damaged(info, start + len(data))
        return data

    def open(self, path: str, mode: str = "rb") -> IO[Any]:
        """A file over an object: "rb" for bytes, "r" for text."""
        if mode not in ("rb", "r"):
            raise UsageError(
                f"{self.expression!r} cannot be opened with mode {mode!r}.", next="Only branches can be written."
            )
        file = self._open_whole(self.stat(path))
        return file if mode == "rb" else io.TextIOWrapper(file, "utf-8")

    def _locate(self, info: ObjectInfo) -> tuple[BlobStore, str]:
        """Where the bytes are. What was imported by reference must still be what was imported.

        Raises:
            ObjectMissing: the bytes are gone, or others lie in their place.
        """
        blobs, key = self._core.resolver.resolve(info.physical_address)
        if is_absolute(info.physical_address) and info.checksum.startswith("etag:"):
            try:
                found = blobs.head(key)
            except BlobNotFound:
                raise self._missing(info) from None
            if (found.size, f"etag:{found.etag}") != (info.size, info.checksum):
                raise ObjectMissing(
                    f"{info.physical_address!r} was changed since it was imported as {info.path!r}: these are not the "
                    f"bytes of {self._core.name}/{self.expression}.",
                    next="Import it again to use the new bytes; the old ones are gone.",
                )
        return blobs, key

    def url(self, path: str) -> str:
        """Where the bytes of an object are, as Spark and Hadoop write it; to be read, never written."""
        blobs, key = self._core.resolver.resolve(self.stat(path).physical_address)
        return blobs.spark_url(key)

    def _missing(self, info: ObjectInfo) -> ObjectMissing:
        stores = self._core.stores
        if self._target.kind == "commit" and is_expired(stores, self.commit_id):
            return ObjectMissing(
                f"Commit {self.commit_id[:12]} has expired, and the bytes of {info.path!r} were collected.",
                next=Advice(
                    "Read a commit that is kept; pin one that has to be read for long: with ref.pin(): …",
                    command="Read a commit that is kept; "
                    f"`strandline gc retention {self._core.name}` says for how long that is.",
                ),
            )
        return ObjectMissing(
            f"The bytes of {info.path!r} in {self._core.name}/{self.expression} are gone: there is nothing at "
            f"{info.physical_address!r}.",
            next="Restore them from a backup of the object store, or read the path from another commit.",
        )

    def list(self, prefix: str = "", *, delimiter: str = "", after: str = "", amount: int | None = None) -> Listing:
        """The objects below a prefix, in byte order of their paths.

        Args:
            delimiter: paths with a delimiter after the prefix are shown once, as `CommonPrefix`.
            after: begin behind this path.
            amount: the most that are returned.
        """
        return Listing(self._window, prefix, delimiter, after, amount)

    def log(
        self,
        *,
        amount: int | None = None,
        first_parent: bool = False,
        paths: Sequence[str] | str = (),
        prefixes: Sequence[str] | str = (),
        since: datetime | str | None = None,
        until: datetime | str | None = None,
        after: Commit | Ref | str | None = None,
        stop_at: Commit | Ref | str | None = None,
    ) -> Log:
        """The history, newest first; filters are those of `LogFilter`, times may be written as in ref expressions.

        Args:
            after: begin behind this commit, the last one of a page before.
            stop_at: end with this commit.
        """
        now = self._core.stores.clock.now_us()
        paths, prefixes = ((text,) if isinstance(text, str) else tuple(text) for text in (paths, prefixes))
        check_amount(amount, "history", "commits")
        passed, last = (
            NOTHING if one is None else one.id if isinstance(one, Commit) else self._other(one).commit_id
            for one in (after, stop_at)
        )
        wanted = LogFilter(
            first_parent, paths, prefixes, _moment(since, now), _moment(until, now), amount, passed, last
        )
        return Log(self._core.commits, self.commit_id, wanted)

    def diff(
        self,
        other: Ref | str,
        prefix: str = "",
        *,
        delimiter: str = "",
        after: str = "",
        amount: int | None = None,
    ) -> Diff:
        """What changes from this ref's commit to that of another one, by path; what is staged does not count.

        Args:
            delimiter, after, amount: see `Diff`.
        """
        left, right = self._compared(), self._other(other)._compared()
        trees, commits = self._core.stores.trees, self._core.commits

        def parts(start: str, end: str | None, _: int | None) -> Iterator[Difference]:
            return diff(trees, commits.tree(left), commits.tree(right), start, end)

        return Diff(parts, prefix, delimiter, after, amount)

    def _compared(self) -> CommitId:
        """The commit that a diff compares; refuses if there is more here than a commit."""
        return self.commit_id

    def _other(self, other: Ref | str) -> Ref:
        return as_ref(self._core, other)

    @contextmanager
    def pin(self, *, days: float = PIN_DAYS, why: str = "a reader") -> Iterator[Ref]:
        """Keep this commit, and all its files, for the length of a `with` block, whatever a retention rule says.

        Args:
            days: how long it is kept if the process dies in the block.

        Yields:
            The commit: of a branch, its head now.

        Raises:
            CommitExpired: it is too late.
        """
        commit = self.commit_id
        key = put_pin(self._core.stores, commit, why, days)
        try:
            yield self._other(commit)
        finally:
            drop_pin(self._core.stores, key)

    # --- taking bytes out ---------------------------------------------------------------------------------------------

    def download(self, path: str, target: str | Path, *, progress: Progress = no_progress) -> Path:
        """Copy an object into a local file, which is replaced only when all bytes are there.

        Args:
            progress: called with the number of bytes that are there.
        """
        target = local_only(target, "A single object")
        partial = target.with_name(f".{target.name}.part")
        try:
            info = self.stat(path)
            with self._open_whole(info) as source, partial.open("wb") as file:
                while chunk := source.read(COPY_BUFFER_BYTES):
                    file.write(chunk)
                    progress("copying", file.tell(), info.size)
            partial.replace(target)
        except OSError as error:
            raise UsageError(f"{str(target)!r} cannot be written: {error.strerror}.", next="Check the path.") from error
        finally:
            partial.unlink(missing_ok=True)
        return target

    @logged("export")
    def export(
        self,
        target: str | Path,
        prefix: str = "",
        *,
        progress: Progress = no_progress,
        spark: SparkSession | None = None,
    ) -> int:
        """Copy all objects below a prefix into plain files that any tool reads; returns their number.

        Paths below the target are those of the lake without the part of the prefix up to its last "/". An Iceberg table
        becomes a folder with its files at its current snapshot, which other catalogs read there.

        Args:
            target: a folder, or the URL of a prefix in an object store, such as s3://bucket/prefix. It must be new or
                empty. A folder appears when all is there. An export of the same commit that broke off is gone on with.
            spark: a session whose executors copy the bytes, to an object store.

        Raises:
            UsageError: the target holds something, or paths cannot be files beside each other. Nothing was written.
            ObjectNotFound: there is nothing below the prefix.
        """
        cut = prefix.rfind("/") + 1
        items = [(info, info.path[cut:]) for info in cast("Iterator[ObjectInfo]", iter(self.list(prefix)))]
        if prefix and not items:
            raise ObjectNotFound(
                f"There is nothing below {prefix!r} in {self._core.name}/{self.expression}.",
                safe="Nothing was written.",
                next=f"`strandline ls {self._core.name}/{self.expression}/` lists what there is.",
            )
        made: dict[str, bytes] = {}
        if any(relative.rpartition("/")[2] == POINTER for _, relative in items):
            items = list(self._with_tables(items, address_of(target), made))
        copier = None if spark is None else engine("spark").exporter(spark, self._core, progress)
        return export(Source(self._open_whole, lambda: self.commit_id, made), items, target, progress, copier)

    def _with_tables(
        self, items: Iterable[tuple[ObjectInfo, str]], place: str, made: dict[str, bytes]
    ) -> Iterator[tuple[ObjectInfo, str]]:
        """What is exported, with the files of Iceberg tables instead of the objects that name them."""
        for info, relative in items:
            if relative.rpartition("/")[2] != POINTER:
                yield info, relative
                continue
            folder = relative.removesuffix(POINTER)
            for part in load("export").exported(self._core, info, f"{place}/{folder}".rstrip("/")):
                name = folder + part.name
                if not part.key:
                    made[name] = part.data
                yield ObjectInfo(name, part.key, part.size, "", info.modified_at_us), name

    def _open_whole(self, info: ObjectInfo) -> BinaryIO:
        """The bytes of an object as a file, which has as many as are on record.

        Raises:
            ObjectMissing: there are none.
            Corrupted: there are more or fewer.
        """
        blobs, key = self._locate(info)
        try:
            file = blobs.open_read(key)
        except BlobNotFound:
            raise self._missing(info) from None
        return of_size(file, info.size, lambda found: self._damaged(info, found))

    def _damaged(self, info: ObjectInfo, found: int) -> Corrupted:
        return Corrupted(
            f"{info.path!r} in {self._core.name}/{self.expression} has {found:,} bytes instead of {info.size:,}: the "
            f"file {info.physical_address!r} was cut, or written over.",
            next="Restore it from a backup of the object store, or use an earlier commit; `strandline fsck` says what "
            "else is damaged.",
        )

    # --- tables -------------------------------------------------------------------------------------------------------

    def table(self, path: str) -> Table:
        """The table at a path; see `strandline.tables`."""
        from strandline.tables.table import Table  # noqa: PLC0415 - objects alone need no tables

        return Table(self, path)

    def tables(self, prefix: str = "") -> builtins.list[Table]:
        """The tables below a prefix, in the order of their paths."""
        from strandline.tables.table import find_tables  # noqa: PLC0415 - objects alone need no tables

        return find_tables(self, prefix)

    def _for_writing(self) -> WritableTableRef:
        raise UsageError(f"{self!r} cannot be written.", next="Write to a branch.")


class StagedRef(Ref):
    """`main$`: only what is staged on a branch, as the changes that a commit would make."""

    def _find(self, path: str, key: bytes) -> Entry | None:
        part = uncommitted(self._at, path, path + "\0")
        if not len(part) or part.right.column("checksum")[0].as_py() is None:
            return None
        return entries_of(part.right)[0][1]

    def _window(self, start: bytes, end: bytes | None, limit: int) -> tuple[pa.Table, bytes | None]:
        part, reach = uncommitted_window(self._at, start.decode(), None if end is None else end.decode(), limit)
        rows = part.right.filter(pa.compute.is_valid(part.right.column("checksum")))
        return rows.combine_chunks(), encoded(reach)

    def _layers(self, prefix: str) -> tuple[Tree, list[Changes]]:
        return EMPTY, as_changes(self, prefix)

    @property
    def _at(self) -> BranchAt:
        return self._core.at(self._target.name, self._target.branch_id)


def as_changes(ref: Ref, prefix: str) -> list[Changes]:
    """All objects of a ref below a prefix, as changes of nothing."""
    return [Changes(rows, np.zeros(rows.num_rows, np.bool_)) for rows in ref.list(prefix).tables()]


def key_range(prefix: str) -> tuple[str, str | None]:
    """The half-open range of paths below a prefix."""
    return prefix, prefix_end(prefix)


def _moment(when: datetime | str | None, now: Microseconds) -> Microseconds | None:
    if when is None:
        return None
    return parse_time(when, now) if isinstance(when, str) else to_us(when)


def as_ref(core: RepositoryCore, ref: Ref | str) -> Ref:
    """A ref of the same repository, or what an expression means in it."""
    if isinstance(ref, Ref):
        if ref._core.stores.repository_id != core.stores.repository_id:
            raise UsageError(f"{ref!r} is a ref of another repository.", next="Use refs of one repository.")
        return ref
    opened: Ref = core.open(ref)
    return opened


def _reopen_ref(reopen: tuple[Callable[..., Any], tuple[Any, ...]], expression: str, target: Target) -> Ref:
    """The very same commit, or the same creation of a branch, whatever the expression would mean by now."""
    make, arguments = reopen
    opened: Ref = make(*arguments)._core.open(expression, target)
    return opened
