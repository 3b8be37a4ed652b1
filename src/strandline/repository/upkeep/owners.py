"""The transactions that files belong to, in the states that a collection goes by."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from strandline.branch import transactions
from strandline.branch.rules.record import BranchRecord, RefRecord
from strandline.branch.transactions import TransactionRecord
from strandline.core.physical import iceberg_part, transaction_folder, transaction_prefix
from strandline.core.repository_core import RepositoryCore
from strandline.envelope import decode
from strandline.ids import BranchId, prefix_end
from strandline.repository.upkeep.files import Files


@dataclass(frozen=True, slots=True)
class Owner:
    """A transaction and what its keys begin with.

    Attributes:
        state: of `transactions.State`, or "orphan": its branch is deleted, and nobody will ever acknowledge it.
    """

    branch_id: BranchId
    id: int
    state: str
    record: TransactionRecord | None

    def places(self, files: Files) -> list[slice | npt.NDArray[np.int64]]:
        """Where the files stand that it has written, or that are about it."""
        prefixes = transaction_prefix(self.branch_id, self.id), transaction_folder(self.branch_id, self.id)
        own = files.iceberg_parts.get(iceberg_part(self.branch_id, self.id), np.zeros(0, np.int64))
        return [*(files.below(prefix, prefix_end(prefix)) for prefix in prefixes), own]


class KnownTransactions:
    """The states of all transactions, read before any file was listed: what was open then stays, whatever came."""

    def __init__(self, core: RepositoryCore) -> None:
        self._stores = core.stores
        self._records = [record for _, record in transactions.records_of(core.stores)]
        self._branches: dict[str, BranchRecord] = {}
        for key, value in core.stores.kv.scan(core.stores.refs):
            found = decode(RefRecord, value, f"ref {key.decode()!r}")
            if isinstance(found, BranchRecord):
                self._branches[found.branch_id] = found

    def all(self) -> Iterator[Owner]:
        known: set[tuple[str, int]] = set()
        for record in self._records:
            branch = self._branches.get(record.branch_id)
            known.add((record.branch_id, record.id))
            yield Owner(record.branch_id, record.id, self._state(branch, record), record)
        for branch in self._branches.values():
            for writer in branch.writers.values():
                if writer.is_open and (branch.branch_id, writer.started) not in known:
                    yield Owner(branch.branch_id, writer.started, "open", None)

    def _state(self, branch: BranchRecord | None, record: TransactionRecord) -> str:
        state = transactions.effective_state(branch, record)
        if branch is None and state == "rejected-pending":
            return "orphan"  # its branch is deleted, nobody will ever acknowledge it: the grace decides
        return state
