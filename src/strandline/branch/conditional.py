"""A put that happens only if the path holds what the caller expects."""

from __future__ import annotations

from collections.abc import Callable

from strandline.branch.attempts import Attempts
from strandline.branch.cell import BranchCell
from strandline.branch.commits import CommitLog
from strandline.branch.lock_rules import refuse_locked_keys
from strandline.branch.record import refuse_blocked
from strandline.branch.staging import refused_too_late, unchecked
from strandline.branch.view import Layers
from strandline.errors import NotAllowed, PreconditionFailed, RangeLocked, StoreUnavailable
from strandline.ids import BranchId, StagingToken
from strandline.kv.store import ABSENT, PredicateFailed
from strandline.tree.rows import TOMBSTONE, Entry, checked_staged, decode_staged, encode_staged

Condition = Callable[[Entry | None], bool]
Replaced = dict[StagingToken, bytes | None]
"""What a call's own entry replaced in each token that it was written to, in the order of the writes."""


def stage_if(
    cell: BranchCell, commits: CommitLog, branch_id: BranchId, path: str, entry: Entry, condition: Condition
) -> None:
    """Stage an entry if `condition` holds for what the path shows; of two that race, one wins.

    Invariant: the swap demands what was read of the path in the staging token, and the layers are the same in a read
    of the record begun after the swap. So at the swap the token was the staging token, nothing lay above, and what
    was judged lay beneath. If the layers moved, the entry may be in or not: it is judged again against what the path
    would show without it, and written again or taken back. What it replaced in a token is in no store any more, so the
    call keeps it.

    Raises:
        PreconditionFailed: it does not hold.
    """
    kv = cell.stores.kv
    key, value = path.encode(), checked_staged([entry])[0]
    replaced: Replaced = {}
    attempts = Attempts(cell, "conditional write")
    while True:
        attempts.next()
        try:
            seen = cell.read(branch_id)
            refuse_blocked(seen.branch, "stage", cell.name)
            refuse_locked_keys(seen.branch, cell.name, [key])
            layers = Layers(cell, commits, seen.branch)
            partition = cell.stores.staging(seen.branch.staging_token)
            held = kv.get(partition, key)
            found = _without(layers, path, key, value, held, replaced)
            holds = condition(found)
            written = value if holds else encode_staged(found if found is not None else TOMBSTONE)
            if not holds and not replaced:
                raise _failed(cell.name, path, found)
            kv.set_if(partition, key, written, ABSENT if held is None else held)
            if held != value:
                replaced[seen.branch.staging_token] = held
            attempts.safe = f"It is unknown whether the write is a part of branch {cell.name!r}."
            if cell.read(branch_id).branch.layers == seen.branch.layers:
                if holds:
                    return
                raise _failed(cell.name, path, found)
        except PredicateFailed:
            continue
        except (NotAllowed, RangeLocked) as error:
            raise (refused_too_late(cell.name, error) if replaced else error) from None
        except StoreUnavailable as error:
            if not replaced:
                raise
            raise unchecked(cell.name, error) from error


def _without(
    layers: Layers, path: str, key: bytes, mine: bytes, held: bytes | None, replaced: Replaced
) -> Entry | None:
    """What a path would show if my own entry were in no layer.

    Args:
        mine: my entry as it is staged.
        held: what the staging token has.
    """
    stores = layers.cell.stores
    for token in layers.branch.tokens:
        staged = held if token == layers.branch.staging_token else stores.kv.get(stores.staging(token), key)
        if staged == mine:
            staged = replaced.get(token)
        if staged is not None:
            return _shown(staged)
    address = decode_staged(mine)
    assert isinstance(address, Entry)
    found = layers.trees.find(layers.base, path)
    if found is None or found.physical_address != address.physical_address:
        return found
    # committed or folded already: what was there before? First what it replaced in the tokens that went, newest first
    for token in reversed(replaced):
        staged = replaced[token]
        if token not in layers.branch.tokens and staged is not None:
            return _shown(staged)
    commit = layers.commits.get(layers.branch.head)
    while found is not None and found.physical_address == address.physical_address:
        found = layers.trees.find(layers.commits.tree(commit.id), path)
        if found is not None and found.physical_address == address.physical_address:
            if not commit.parents:
                return None
            commit = layers.commits.get(commit.parents[0])
    return found


def _shown(staged: bytes) -> Entry | None:
    decoded = decode_staged(staged)
    return decoded if isinstance(decoded, Entry) else None


def _failed(branch: str, path: str, found: Entry | None) -> PreconditionFailed:
    return PreconditionFailed(
        f"{path!r} on branch {branch!r} {'holds another object' if found else 'does not exist'}.",
        paths=[path],
        next="Read the object again and decide anew.",
    )
