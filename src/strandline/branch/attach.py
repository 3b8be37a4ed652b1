"""Many staged changes at one instant: written to a private token, which then becomes the newest sealed one."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from strandline.branch.cell import MAX_ATTEMPTS, BranchCell, LayersMoved, Moved, Seen, backoff_s, contention, update
from strandline.branch.record import Branch, attach, refuse_blocked, seal
from strandline.branch.staging import write_pairs
from strandline.branch.token_queue import QueueItem, is_condemned, put_item
from strandline.errors import OutcomeUnknown
from strandline.ids import BranchId, StagingToken, new_id

Pairs = Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Computed:
    """Staged pairs, in any order, each path once.

    Attributes:
        reads_layers: whether they were computed from what the branch held; if not, they stay right whatever moves.
    """

    pairs: Pairs
    reads_layers: bool


def attach_changes(cell: BranchCell, branch_id: BranchId, compute: Callable[[Branch], Computed]) -> int:
    """Stage the changes that `compute` makes from a record whose sealed layers it may read; all of them or none.

    Everything acknowledged before the call lies beneath the changes, what is staged meanwhile lies above them.

    Returns:
        The number of changes.
    """
    computed: Computed | None = None
    token, intent = StagingToken(""), b""
    for attempt in range(MAX_ATTEMPTS):
        seen = update(cell, branch_id, lambda branch: _seal_if_allowed(cell.name, branch))
        if computed is None or computed.reads_layers:
            computed = compute(seen.branch)
            if not computed.pairs:
                return 0
            token, intent = _write_private(cell, seen.branch, computed.pairs)
        elif is_condemned(cell.stores, intent):
            token, intent = _write_private(cell, seen.branch, computed.pairs)
        if _try(cell, branch_id, seen, token, intent):
            cell.stores.kv.delete(cell.stores.records, intent)
            return len(computed.pairs)
        time.sleep(backoff_s(attempt))
    raise contention(cell.name)


def _seal_if_allowed(name: str, branch: Branch) -> Branch:
    refuse_blocked(branch, "stage", name)
    return seal(branch, StagingToken(new_id()))


def _write_private(cell: BranchCell, branch: Branch, pairs: Pairs) -> tuple[StagingToken, bytes]:
    """Record the intent, then fill a fresh token that nobody else knows."""
    token = StagingToken(new_id())
    item = QueueItem(branch=cell.name, branch_id=branch.branch_id, tokens=(token,), kind="private")
    intent = put_item(cell.stores, item)
    write_pairs(cell.stores, cell.stores.staging(token), pairs)
    return token, intent


def _try(cell: BranchCell, branch_id: BranchId, seen: Seen, token: StagingToken, intent: bytes) -> bool:
    """Attach the token to the layers of `seen`; False if they moved.

    Invariant: the item of the token is read after the record that the swap demands, and a cleaner condemns the item
    before it seals the branch. So either this sees that the token is condemned, or the cleaner's seal comes after the
    swap and it finds the token on record, or the seal makes the swap fail.
    """
    now = seen
    for _ in range(MAX_ATTEMPTS):
        if is_condemned(cell.stores, intent):
            return False
        try:
            refuse_blocked(now.branch, "stage", cell.name)
            cell.swap(now, attach(now.branch, seen.branch, token))
            return True
        except LayersMoved:
            return False
        except Moved:
            now = cell.read(branch_id)
        except OutcomeUnknown:
            if token in cell.read(branch_id).branch.tokens:
                return True
            raise
    return False
