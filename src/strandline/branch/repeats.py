"""What one-shot publications are recognised by when they are asked for again: the newest stand on the branch record.

One that leaves it gets a record of its own before the swap that takes it off. So whoever reads the branch record first
and finds nothing there, finds it here if it happened before that read.
"""

from __future__ import annotations

from strandline.branch.rules.record import BranchRecord, Done, done_that_leave
from strandline.branch.stores import Stores
from strandline.clock import Microseconds
from strandline.envelope import decode, encode
from strandline.ids import BranchId, keys_below

KEPT_US = 7 * 86_400 * 1_000_000
"""Clients repeat a call within minutes; a server that promises a day may have a wrong clock."""


def _prefix(branch_id: BranchId) -> bytes:
    return b"done/" + branch_id.encode() + b"/"


def _key(branch_id: BranchId, token: str) -> bytes:
    return _prefix(branch_id) + token.encode()


def find(stores: Stores, branch: BranchRecord, token: str) -> Done | None:
    """The publication of a token that happened before the branch record was read."""
    for one in branch.done or ():
        if one.token == token:
            return one
    if not branch.done:
        return None  # none was ever published with a token: what leaves the record leaves others there
    raw = stores.kv.get(stores.records, _key(branch.branch_id, token))
    found: Done | None = None if raw is None else decode(Done, raw, "a publication")
    return found


def keep(stores: Stores, before: BranchRecord, after: BranchRecord) -> None:
    """Write down what leaves the record with the swap from `before` to `after`, which comes next."""
    leaving = done_that_leave(before, after)
    if leaving:
        pairs = [(_key(before.branch_id, one.token), encode(one)) for one in leaving]
        stores.kv.set_many(stores.records, pairs)


def pairs(stores: Stores, branch: BranchRecord) -> list[tuple[bytes, bytes]]:
    """The records of a branch, for a backup."""
    return list(stores.kv.scan(stores.records, *keys_below(_prefix(branch.branch_id))))


def forget(stores: Stores, branch_id: BranchId) -> None:
    """Clean up after a deleted branch."""
    for page in stores.kv.scan_pages(stores.records, *keys_below(_prefix(branch_id))):
        stores.kv.delete_many(stores.records, page.keys)


def sweep(stores: Stores, now_us: Microseconds) -> None:
    """Forget publications of long ago: nobody repeats them any more."""
    for page in stores.kv.scan_pages(stores.records, *keys_below(b"done/")):
        found = zip(page.keys, page.values, strict=True)
        old = [key for key, value in found if now_us - decode(Done, value, "a publication").at_us > KEPT_US]
        stores.kv.delete_many(stores.records, old)
