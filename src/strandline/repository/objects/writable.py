"""What tables and uploads need of the thing they write to: a branch, where changes are staged, or private changes."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import IO, Any, cast

from strandline.arguments import checked
from strandline.branch.at import BranchAt
from strandline.branch.cell import BranchCell
from strandline.core.overwrite import Overwrite
from strandline.core.upload import Content, ObjectWriter, TextWriter, upload
from strandline.errors import UsageError
from strandline.ids import BranchId, check_path, check_paths
from strandline.operations import logged
from strandline.parallel import in_parallel
from strandline.repository.refs.ref import Ref
from strandline.results.rows import ObjectInfo
from strandline.tree.rows import Entry


@checked(but=("put",))
class Writable(Ref):
    """A ref that can be written."""

    _is_forced = False
    is_transaction = False
    """Whether what is written is private until all of it is published."""

    @property
    def name(self) -> str:
        """The name of the branch."""
        return self._target.name

    @property
    def branch_id(self) -> BranchId:
        """The id. A branch that is made again under the same name has another one."""
        return self._target.branch_id

    @property
    def _cell(self) -> BranchCell:
        return self._core.cell(self.name)

    @property
    def _at(self) -> BranchAt:
        return self._core.at(self.name, self.branch_id, is_forced=self._is_forced)

    @property
    def is_repeat(self) -> bool:
        """Whether an earlier run with the same token has done it all: nothing has to be written."""
        return False

    @contextmanager
    def writing(self) -> Iterator[None]:
        """What is written in the block belongs together: keys that are made in it stay good until its end.

        Raises:
            NotAllowed: it is known already that this will be refused; no bytes are uploaded for nothing.
        """
        self._refuse_early()
        yield

    @abstractmethod
    def put(
        self,
        path: str,
        content: Content,
        *,
        content_type: str | None = None,
        metadata: Mapping[str, str] | None = None,
        create: bool = False,
        if_match: str | None = None,
    ) -> ObjectInfo:
        """Write an object; see `Branch.put`."""

    @logged("put many")
    def put_many(self, contents: Mapping[str, Content] | Iterable[tuple[str, Content]], *, atomic: bool = True) -> int:
        """Write several objects; with `atomic` they appear at one instant. Returns their number.

        Raises:
            UsageError: a path occurs twice.
        """
        pairs = list(contents.items() if isinstance(contents, Mapping) else contents)
        distinct_keys([path for path, _ in pairs])
        if self.is_repeat:
            return len(pairs)

        def one(pair: tuple[str, Content]) -> tuple[str, Entry]:
            path, content = pair
            return path, upload(self._core, self._new_key(path), path, content, None, None)

        with self.writing():
            uploaded = list(in_parallel(one, pairs))
            count = self.stage_atomically(uploaded) if atomic else self.stage_each(uploaded)
            self._wrote(len(uploaded), None, sum(entry.size for _, entry in uploaded))
        return count

    def open(self, path: str, mode: str = "rb") -> IO[Any]:
        """A file over an object: "rb" or "r" to read, "wb" or "w" to write; a written one is staged when closed."""
        if mode not in ("wb", "w"):
            return super().open(path, mode)
        check_path(path)
        if not self.is_repeat:
            self._refuse_early(path)
        writer = cast("IO[bytes]", ObjectWriter(lambda spool: self.put(path, spool)))
        return writer if mode == "wb" else TextWriter(writer, "utf-8")

    @abstractmethod
    def _refuse_early(self, path: str | None = None) -> None:
        """Find out that something is forbidden before bytes are uploaded for nothing."""

    @abstractmethod
    def _new_key(self, path: str) -> str:
        """A fresh physical key for the bytes of one object."""

    @abstractmethod
    def _new_folder(self) -> str:
        """A fresh physical folder for one write of a table."""

    @abstractmethod
    def stage_atomically(
        self,
        entries: Sequence[tuple[str, Entry]],
        overwrite: Overwrite | None = None,
        expect: Mapping[str, str | None] | None = None,
    ) -> int:
        """Write entries, and perhaps delete what else is below a prefix, at one instant; returns the changes made.

        Args:
            expect: checksums that paths must have (None: must not exist) at that instant.

        Raises:
            Conflict: an expectation does not hold.
        """

    @abstractmethod
    def stage_expecting(
        self,
        changes: Mapping[str, Entry | None],
        expected: Mapping[str, Entry | None],
        alone: Sequence[str] = (),
    ) -> bool:
        """Write and delete at one instant, if some paths hold exactly what is expected then; False if they do not.

        Args:
            changes: by path; None deletes. Their bytes are kept by something else than this.
            expected: by path; None for nothing.
            alone: prefixes below which nothing may be but what changes.
        """

    @abstractmethod
    def stage_each(self, entries: Sequence[tuple[str, Entry]]) -> int:
        """Write entries whose bytes the caller has just written; on a branch not atomic. Returns their number."""

    def refuse_doomed(self, error: Exception) -> None:
        """Raise a better error than this one if what was written was doomed, and its files perhaps collected."""

    def _for_writing(self) -> Writable:
        return self

    def _published(self, writer: str | None, message: str) -> AbstractContextManager[Writable]:
        """A transaction of one write to a table, which a `with` block publishes."""
        raise UsageError(
            f"A write into {self!r} is published with it, and has no message or writer of its own.",
            next="Give the message to the transaction, or write to the branch.",
        )

    def _wrote(self, files: int, rows: int | None, size_bytes: int) -> None:
        """Told of each write of a table."""


def check_condition(create: bool, if_match: str | None) -> Callable[[Entry | None], bool] | None:
    """What `put(create=, if_match=)` demands of the object at its path; None if nothing."""
    if create and if_match is not None:
        raise UsageError("An object cannot be both absent and matched.", next="Give create or if_match.")
    if create:
        return lambda found: found is None
    if if_match is not None:
        return lambda found: found is not None and found.checksum == if_match
    return None


def distinct_keys(paths: Sequence[str]) -> list[bytes]:
    """The keys of paths; refuses a path that occurs twice."""
    keys = check_paths(paths)
    if len(set(keys)) != len(keys):
        twice = [path for path, count in Counter(paths).items() if count > 1]
        raise UsageError(f"A path occurs twice in one call: {twice[0]!r}.", next="Give each path once.")
    return keys
