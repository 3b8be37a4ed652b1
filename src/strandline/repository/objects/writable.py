"""What tables and uploads need of the thing they write to: a branch, where changes are staged, or private changes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from strandline.branch.at import BranchAt
from strandline.branch.cell import BranchCell
from strandline.ids import BranchId
from strandline.repository.refs.ref import Ref
from strandline.tree.rows import Entry

IfChanged = Literal["fail", "replace"]
"""What a transaction's overwrite does if others have changed its range since the transaction was begun."""


Keep = Callable[[str, Entry], bool]
"""Which objects below a prefix an overwrite leaves alone, by path and entry; it may raise `Conflict`."""


def keep_nothing(_path: str, _entry: Entry) -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Overwrite:
    """What else goes when entries are written.

    Attributes:
        below: all paths below this prefix that are not among the entries and not kept.
        keep: which of the objects present there stay; it may raise.
        present: paths below the prefix that must be there at that instant.
        if_changed: of a transaction only.
    """

    below: str
    keep: Keep = keep_nothing
    present: Collection[str] = ()
    if_changed: IfChanged = "fail"


class Writable(Ref):
    """A ref that can be written."""

    @property
    def name(self) -> str:
        """The name of the branch."""
        return self._target.name

    @property
    def branch_id(self) -> BranchId:
        return self._target.branch_id

    @property
    def _cell(self) -> BranchCell:
        return self._core.cell(self.name)

    @property
    def _at(self) -> BranchAt:
        return self._core.at(self.name, self.branch_id)

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

    def refuse_doomed(self, error: Exception) -> None:
        """Raise a better error than this one if what was written was doomed, and its files perhaps collected."""

    def _wrote(self, files: int, rows: int | None, size_bytes: int) -> None:
        """Told of each write of a table."""
