"""What tables and uploads need of the thing they write to: a branch, where changes are staged, or a transaction."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal

from strandline.ids import BranchId
from strandline.repository.ref import Ref
from strandline.tree.rows import Entry

IfChanged = Literal["fail", "replace"]
"""What a transaction's overwrite does if others have changed its range since the transaction was begun."""


class Writable(Ref):
    """A ref that can be written."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the branch."""

    @property
    @abstractmethod
    def branch_id(self) -> BranchId: ...

    @abstractmethod
    def _refuse_early(self) -> None:
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
        *,
        replace_below: str | None = None,
        keep: Callable[[str, Entry], bool] = lambda path, entry: False,
        expect: Mapping[str, str | None] | None = None,
        present: Collection[str] = (),
        if_changed: IfChanged = "fail",
    ) -> int:
        """Write entries, and perhaps delete what else is below a prefix, at one instant; returns the changes made.

        Args:
            replace_below: delete all paths below this prefix that are not among the entries and not kept.
            keep: which of the objects present there stay, by path and entry; it may raise.
            expect: checksums that paths must have (None: must not exist) at that instant.
            present: paths below `replace_below` that must be there at that instant.
            if_changed: of a transaction only.

        Raises:
            Conflict: an expectation does not hold.
        """

    def _wrote(self, files: int, rows: int | None, size_bytes: int) -> None:
        """Told of each write of a table."""
