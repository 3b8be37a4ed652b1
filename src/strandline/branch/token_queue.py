"""Tokens that left a branch record, and how their entries are deleted without a crash losing track of any.

A token is put on the queue *before* the swap that takes it off the record. Later a sweep deletes its entries, but only
if it is on no record; the item stays until a second sweep, since a late writer may still set into a dead token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec.structs import replace

from strandline.branch.at import BranchAt
from strandline.branch.attempts import update
from strandline.branch.rules.record import BranchRecord, RefRecord, seal
from strandline.branch.stores import Stores
from strandline.clock import Microseconds
from strandline.envelope import decode, encode
from strandline.errors import RefNotFound
from strandline.ids import BranchId, StagingToken, keys_below, new_id

KEY_PREFIX = b"queue/"
SWEEP_AFTER_S = 60
"""Age at which a dropped token is swept first: long enough for ordinary readers and writers to be done with it."""
SWEEP_AGAIN_AFTER_S = 600
PRIVATE_AFTER_S = 3_600
"""Age at which a private token counts as left behind: nobody takes an hour to fill and attach one."""
QUEUE_PAGE_ITEMS = 1_000
DELETE_PAGE_KEYS = 5_000


class QueueItem(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens on their way out.

    Attributes:
        kind: "dropped" tokens were on the record; a "private" one was made to be attached and may never have been.
        swept_at: when the first sweep was, in microseconds, or None.
        condemned: a cleaner is about to fence the attach of a private token; its owner makes another token.
    """

    branch: str
    branch_id: BranchId
    tokens: tuple[StagingToken, ...]
    kind: Literal["dropped", "private"] = "dropped"
    swept_at: Microseconds | None = None
    condemned: bool = False


def item_pair(stores: Stores, item: QueueItem) -> tuple[bytes, bytes]:
    """Key and value of a new item; keys sort by time."""
    return KEY_PREFIX + f"{stores.clock.now_us():020d}-{new_id()}".encode(), encode(item)


def put_item(stores: Stores, item: QueueItem) -> bytes:
    key, value = item_pair(stores, item)
    stores.kv.set(stores.records, key, value)
    return key


def _age_s(key: bytes, now: Microseconds) -> float:
    """The age of an item. One from the future was written by a process whose clock is ahead: it is taken for new."""
    return max(0.0, (now - int(key[len(KEY_PREFIX) : len(KEY_PREFIX) + 20])) / 1e6)


def sweep(
    stores: Stores,
    *,
    after_s: float = SWEEP_AFTER_S,
    again_after_s: float = SWEEP_AGAIN_AFTER_S,
    private_after_s: float = PRIVATE_AFTER_S,
) -> int:
    """Delete the entries of dropped tokens that are old enough. Anyone may sweep at any time, and stop at any time.

    Args:
        after_s: age of an item at its first sweep, in seconds.
        again_after_s: time between its first sweep and its second and last.
        private_after_s: age at which a private token is taken for left behind.

    Returns:
        The number of entries deleted.
    """
    now = stores.clock.now_us()
    deleted = 0
    for page in stores.kv.scan_pages(stores.records, *keys_below(KEY_PREFIX), QUEUE_PAGE_ITEMS):
        for key, value in zip(page.keys, page.values, strict=True):
            if _age_s(key, now) < after_s:
                return deleted  # keys sort by time
            item: QueueItem = decode(QueueItem, value, "the token queue")
            if item.swept_at is not None and max(0, now - item.swept_at) / 1e6 < again_after_s:
                continue
            if item.kind == "private" and _age_s(key, now) < private_after_s:
                continue
            deleted += _sweep_item(stores, key, item, now)
    return deleted


def queued_tokens(stores: Stores) -> int:
    """How many tokens wait to be swept."""
    items = stores.kv.scan(stores.records, *keys_below(KEY_PREFIX))
    return sum(len(decode(QueueItem, value, "the token queue").tokens) for _, value in items)


def _sweep_item(stores: Stores, key: bytes, item: QueueItem, now: Microseconds) -> int:
    if item.kind == "private" and item.swept_at is None:
        stores.kv.set(stores.records, key, encode(replace(item, condemned=True)))
        _fence_attach(stores, item)
    alive = _tokens_on_record(stores, item)
    deleted = sum(_delete_entries(stores, token) for token in item.tokens if token not in alive)
    if item.swept_at is not None or (item.kind == "private" and alive.intersection(item.tokens)):
        # swept twice; or attached, and the process that takes it off the record queues it again
        stores.kv.delete(stores.records, key)
    elif not alive.intersection(item.tokens):
        stores.kv.set(stores.records, key, encode(replace(item, swept_at=now, condemned=True)))
    # else the swap that drops them may still come, however old the item is by this clock: it waits
    return deleted


def _tokens_on_record(stores: Stores, item: QueueItem) -> set[StagingToken]:
    """The tokens of the branch that the item speaks of. A token that is on no record now never will be again.

    That holds for a private token only once its attach is fenced.
    """
    raw = stores.kv.get(stores.refs, item.branch.encode())
    record = None if raw is None else decode(RefRecord, raw, f"branch {item.branch!r}")
    if isinstance(record, BranchRecord) and record.branch_id == item.branch_id:
        return set(record.tokens)
    return set()


def _fence_attach(stores: Stores, item: QueueItem) -> None:
    """Make the attach of a private token impossible if it has not happened, by changing the record with a seal.

    A client that is still alive reads its queue item after each read of the record and before each attempt. So an
    attempt on a record older than this seal fails at its swap, and on a newer one the client sees that the item is
    condemned. The caller looks afterwards whether the token made it onto the record before.
    """
    try:
        at = BranchAt.of(stores, item.branch, item.branch_id)
        update(at, lambda branch: seal(branch, StagingToken(new_id())))
    except RefNotFound:
        return  # the branch is gone, and with it every attach


def _delete_entries(stores: Stores, token: StagingToken) -> int:
    partition = stores.staging(token)
    deleted = 0
    while True:
        page = stores.kv.scan_page(partition, limit=DELETE_PAGE_KEYS)
        if not page.keys:
            return deleted
        stores.kv.delete_many(partition, page.keys)
        deleted += len(page.keys)


def dropped(branch_name: str, branch: BranchRecord, tokens: Sequence[StagingToken]) -> QueueItem:
    return QueueItem(branch=branch_name, branch_id=branch.branch_id, tokens=tuple(tokens))


def is_condemned(stores: Stores, key: bytes) -> bool:
    """Whether a private token may no longer be attached: its item is condemned or gone."""
    value = stores.kv.get(stores.records, key)
    if value is None:
        return True
    item: QueueItem = decode(QueueItem, value, "the token queue")
    return item.condemned
