"""A put that happens only if the path holds what the caller expects."""

from __future__ import annotations

import time
from collections.abc import Callable

from strandline.branch.cell import MAX_ATTEMPTS, BranchCell, backoff_s, contention
from strandline.branch.commits import CommitLog
from strandline.branch.record import refuse_blocked
from strandline.branch.view import Layers
from strandline.errors import PreconditionFailed
from strandline.ids import BranchId
from strandline.kv.store import ABSENT, PredicateFailed
from strandline.tree.rows import Entry, decode_staged, encode_staged

Condition = Callable[[Entry | None], bool]


def stage_if(
    cell: BranchCell, commits: CommitLog, branch_id: BranchId, path: str, entry: Entry, condition: Condition
) -> None:
    """Stage an entry if `condition` holds for what the path shows; of two that race, one wins.

    Invariant: the swap demands what was read of the path in the staging token, and the layers beneath are the same
    in a read of the record begun after the swap. So nothing was staged at the path between judging and writing: not
    above, since the token was still the staging token, and not beneath, since sealed layers do not change.

    Raises:
        PreconditionFailed: it does not hold.
    """
    kv = cell.stores.kv
    key = path.encode()
    value = encode_staged(entry)
    for attempt in range(MAX_ATTEMPTS):
        seen = cell.read(branch_id)
        refuse_blocked(seen.branch, "stage", cell.name)
        partition = cell.stores.staging(seen.branch.staging_token)
        held = kv.get(partition, key)
        if held is not None:
            staged = decode_staged(held)
            found = staged if isinstance(staged, Entry) else None
        else:
            found = Layers(cell, commits, seen.branch).find(path, key)
        mine_already = found is not None and found.physical_address == entry.physical_address
        if not mine_already and not condition(found):
            raise PreconditionFailed(
                f"{path!r} on branch {cell.name!r} {'holds another object' if found else 'does not exist'}.",
                paths=[path],
                next="Read the object again and decide anew.",
            )
        try:
            kv.set_if(partition, key, value, ABSENT if held is None else held)
        except PredicateFailed:
            continue
        if cell.read(branch_id).branch.layers == seen.branch.layers:
            return
        time.sleep(backoff_s(attempt))
    raise contention(cell.name)
