"""What a table needs of the ref that it lies at: to read it, and to write there.

The refs themselves stand above the tables, for each opens the tables that lie at it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from strandline.branch.commits import Commit
from strandline.core.overwrite import Overwrite
from strandline.core.repository_core import RepositoryCore
from strandline.errors import ObjectMissing
from strandline.ids import CommitId
from strandline.results.differences import Diff
from strandline.results.history import Log
from strandline.results.listing import Listing
from strandline.results.rows import ObjectInfo
from strandline.tree.rows import Entry


class TableRef(Protocol):
    """What tables are read from: each `Ref`, so also a branch or a transaction; each method is the ref's."""

    _core: RepositoryCore

    @property
    def place(self) -> str: ...

    @property
    def commit_id(self) -> CommitId: ...

    def get_commit(self) -> Commit: ...

    def find(self, path: str) -> ObjectInfo | None: ...

    def exists(self, path: str) -> bool: ...

    def read(self, path: str) -> bytes: ...

    def list(self, prefix: str) -> Listing: ...

    def log(self, *, amount: int | None, prefixes: Sequence[str] | str, first_parent: bool) -> Log: ...

    def diff(self, other: str, prefix: str) -> Diff: ...

    def _other(self, other: str) -> TableRef:
        """What an expression means in the same repository."""

    def _missing(self, info: ObjectInfo) -> ObjectMissing:
        """The error for an object whose bytes are gone."""

    def _for_writing(self) -> WritableTableRef:
        """The same ref, if it can be written.

        Raises:
            UsageError: it cannot.
        """


class WritableTableRef(TableRef, Protocol):
    """What tables are written to: a `Branch`, where changes are staged, or a `Transaction`, where they are private."""

    @property
    def name(self) -> str: ...

    @property
    def is_repeat(self) -> bool: ...

    @property
    def is_transaction(self) -> bool: ...

    def writing(self) -> AbstractContextManager[None]: ...

    def refuse_doomed(self, error: Exception) -> None: ...

    def stage_atomically(
        self,
        entries: Sequence[tuple[str, Entry]],
        overwrite: Overwrite | None = None,
        expect: Mapping[str, str | None] | None = None,
    ) -> int: ...

    def _new_key(self, path: str) -> str: ...

    def _new_folder(self) -> str: ...

    def _wrote(self, files: int, rows: int | None, size_bytes: int) -> None: ...

    def _published(self, writer: str | None, message: str) -> AbstractContextManager[WritableTableRef]:
        """A transaction that is published, with a message, at the end of a `with` block.

        Raises:
            UsageError: the ref is a transaction itself, whose end publishes what is written to it.
        """
