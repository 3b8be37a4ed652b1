"""The moves of a branch's head: the newest stand on the branch record, older ones in blocks of their own.

A block holds moves that happened, since they were on record, and is written before the swap that takes them off it. So
the reflog has no gap and no move that never was, whichever process dies when; two that race write the same block.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from contextlib import suppress
from itertools import islice

import msgspec

from strandline.branch.rules.record import MOVES_KEPT, MOVES_KEPT_WHEN_FULL, BranchRecord, HeadMove, moves_that_leave
from strandline.branch.stores import Stores
from strandline.envelope import decode, encode
from strandline.errors import StoreUnavailable
from strandline.ids import BranchId, CommitId, keys_below

REFLOG_MAX_MOVES = 1_000
"""How many moves are kept at least; a few more may be."""
BLOCK_MOVES = MOVES_KEPT - MOVES_KEPT_WHEN_FULL + 1
_BLOCKS_KEPT = REFLOG_MAX_MOVES // BLOCK_MOVES + 1


class Block(msgspec.Struct, frozen=True):
    """Consecutive moves, newest first."""

    moves: tuple[HeadMove, ...]


def _prefix(branch_id: BranchId) -> bytes:
    return b"reflog/" + branch_id.encode() + b"/"


def _key(branch_id: BranchId, first: int) -> bytes:
    return _prefix(branch_id) + b"%012d" % first


def keep_moves(stores: Stores, before: BranchRecord, after: BranchRecord) -> None:
    """Write down the moves that leave the record with the swap from `before` to `after`, which comes next."""
    first, leaving = moves_that_leave(before, after)
    if not leaving:
        return
    stores.kv.set(stores.records, _key(before.branch_id, first), encode(Block(leaving)))
    too_old = first - _BLOCKS_KEPT * BLOCK_MOVES
    if too_old > 0:
        with suppress(StoreUnavailable):  # one block too many
            stores.kv.delete(stores.records, _key(before.branch_id, too_old))


def read_moves(stores: Stores, branch: BranchRecord) -> Iterator[HeadMove]:
    """All moves that are kept, newest first."""
    yield from branch.moves
    prefix = _prefix(branch.branch_id)
    oldest_on_record = branch.move_count - len(branch.moves) + 1
    blocks = list(stores.kv.scan(stores.records, *keys_below(prefix)))
    for key, value in reversed(blocks):
        if (
            int(key[len(prefix) :]) < oldest_on_record
        ):  # the swap that a newer block was written for may never have been
            block: Block = decode(Block, value, "the reflog")
            yield from block.moves


def block_pairs(stores: Stores, branch: BranchRecord) -> list[tuple[bytes, bytes]]:
    """The records of the blocks, for a backup."""
    prefix = _prefix(branch.branch_id)
    return list(stores.kv.scan(stores.records, *keys_below(prefix)))


def came_to(stores: Stores, branch: BranchRecord, ids: Set[CommitId], since: int) -> CommitId | None:
    """Which of these commits the head came to after its first `since` moves, wherever it went from there.

    Looking back from head would not do: a hard reset takes the head off a commit that was made.

    Raises:
        Forgotten: the reflog does not reach back that far, and has none of them.
    """
    wanted = branch.move_count - since
    looked_at = 0
    for move in islice(read_moves(stores, branch), wanted):
        if move.after in ids:
            return move.after
        looked_at += 1
    if looked_at < wanted:
        raise Forgotten
    return None


class Forgotten(Exception):
    """A move would be further back than the reflog reaches."""


def forget_moves(stores: Stores, branch_id: BranchId) -> None:
    """Clean up after a deleted branch."""
    prefix = _prefix(branch_id)
    for page in stores.kv.scan_pages(stores.records, *keys_below(prefix)):
        stores.kv.delete_many(stores.records, page.keys)
