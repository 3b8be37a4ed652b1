"""What the parts of a branch have in common: its locks, its transactions, its writers, its jobs, its feed."""

from __future__ import annotations

from strandline.branch.at import BranchAt
from strandline.core.repository_core import RepositoryCore


class OfBranch:
    """A part of a branch, which needs its place and not its handle."""

    def __init__(self, core: RepositoryCore, at: BranchAt) -> None:
        self._core = core
        self._at = at

    @property
    def place(self) -> str:
        """The branch as `repository/branch`, for messages."""
        return f"{self._core.name}/{self._at.name}"
