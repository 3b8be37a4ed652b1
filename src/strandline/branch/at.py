"""The place that features take: one creation of a branch, and what it takes to read and change it."""

from __future__ import annotations

import msgspec

from strandline.branch.cell import BranchCell, Seen
from strandline.branch.commits import CommitLog
from strandline.branch.stores import Stores
from strandline.ids import BranchId


class BranchAt(msgspec.Struct, frozen=True):
    """A branch as code knows it that holds no handle. A name whose branch was deleted raises `BranchGone`.

    Attributes:
        cell: the record of the name, shared by all in this process.
        branch_id: the creation of the name that is meant.
        is_forced: that its repository is read-only is no reason to refuse.
    """

    cell: BranchCell
    commits: CommitLog
    branch_id: BranchId
    is_forced: bool = False

    @staticmethod
    def of(stores: Stores, name: str, branch_id: BranchId) -> BranchAt:
        """A place for work on all branches of a repository, which shares no records with handles."""
        return BranchAt(BranchCell(stores, name), CommitLog(stores), branch_id)

    @property
    def name(self) -> str:
        return self.cell.name

    @property
    def stores(self) -> Stores:
        return self.cell.stores

    def read(self, *, shared: bool = False) -> Seen:
        """The record, in a read that begins after the call; see `BranchCell.read`."""
        return self.cell.read(self.branch_id, shared=shared)
