"""A put that happens only if the path holds what the caller expects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from strandline.branch.attempts import Attempts
from strandline.branch.cell import BranchCell
from strandline.branch.commits import CommitLog
from strandline.branch.lock_rules import refuse_locked_keys
from strandline.branch.record import Branch, refuse_blocked
from strandline.branch.staging import refused_too_late, unchecked
from strandline.branch.view import Layers
from strandline.errors import NotAllowed, OutcomeUnknown, PreconditionFailed, RangeLocked, StoreUnavailable
from strandline.ids import BranchId, CommitId, StagingToken
from strandline.kv.store import ABSENT, PredicateFailed
from strandline.tree.rows import TOMBSTONE, Entry, checked_staged, decode_staged, encode_staged

Condition = Callable[[Entry | None], bool]
HEADS_MAX = 64
"""How many moves of the head are looked at, before it counts as unknown what lies beneath an entry."""


@dataclass(frozen=True, slots=True)
class _Before:
    """What a call knew when it wrote its entry to a token.

    Attributes:
        held: what the token had at the path; no store knows that any more.
        found: what the path showed.
        branch: the record then.
    """

    held: bytes | None
    found: Entry | None
    branch: Branch


Written = dict[StagingToken, _Before]
"""The tokens that a call has written its own entry to, oldest first."""


class _CannotTell(Exception):
    """What lay beneath an entry that was folded or committed meanwhile may have changed as well."""


def stage_if(
    cell: BranchCell, commits: CommitLog, branch_id: BranchId, path: str, entry: Entry, condition: Condition
) -> None:
    """Stage an entry if `condition` holds for what the path shows; of two that race, one wins.

    Invariant: the swap demands what was read of the path in the staging token, and the layers are the same in a read
    of the record begun after the swap. So at the swap the token was the staging token, nothing lay above, and what
    was judged lay beneath. If the layers moved, the entry may be in or not: it is judged again against what the path
    would show without it, and written again or taken back. What it replaced in a token is in no store any more, nor is
    what lay beneath once that was folded: so the call keeps both.

    Raises:
        PreconditionFailed: it does not hold.
        OutcomeUnknown: the entry was written, and others have folded it together with changes of their own.
    """
    kv = cell.stores.kv
    key, value = path.encode(), checked_staged([entry])[0]
    written_to: Written = {}
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
            found = _without(layers, path, key, value, held, written_to)
            holds = condition(found)
            written = value if holds else encode_staged(found if found is not None else TOMBSTONE)
            if not holds and not written_to:
                raise _failed(cell.name, path, found)
            kv.set_if(partition, key, written, ABSENT if held is None else held)
            if holds and (held != value or seen.branch.staging_token not in written_to):
                written_to[seen.branch.staging_token] = _Before(held, found, seen.branch)
            attempts.safe = f"It is unknown whether the write is a part of branch {cell.name!r}."
            if cell.read(branch_id).branch.layers == seen.branch.layers:
                if holds:
                    return
                raise _failed(cell.name, path, found)
        except PredicateFailed:
            continue
        except _CannotTell:
            raise OutcomeUnknown(
                f"Others changed branch {cell.name!r} while {path!r} was being written.",
                safe=f"It is unknown whether the write is a part of branch {cell.name!r}.",
                next="Read it back, and decide anew.",
            ) from None
        except (NotAllowed, RangeLocked) as error:
            raise (refused_too_late(cell.name, error) if written_to else error) from None
        except StoreUnavailable as error:
            if not written_to:
                raise
            raise unchecked(cell.name, error) from error


def _without(
    layers: Layers, path: str, key: bytes, mine: bytes, held: bytes | None, written_to: Written
) -> Entry | None:
    """What a path would show if my own entry were in no layer.

    Args:
        mine: my entry as it is staged.
        held: what the staging token has.

    Raises:
        _CannotTell
    """
    stores = layers.cell.stores
    for token in layers.branch.tokens:
        staged = held if token == layers.branch.staging_token else stores.kv.get(stores.staging(token), key)
        if staged == mine and token in written_to:
            staged = written_to[token].held
        if staged is not None:
            return _shown(staged)
    found = layers.trees.find(layers.base, path)
    before = next((written_to[token] for token in reversed(written_to) if token not in layers.branch.tokens), None)
    own = decode_staged(mine)
    assert isinstance(own, Entry)
    if before is None or found is None or found.physical_address != own.physical_address:
        return found
    # committed or folded already: what lies beneath it there?
    if before.held is not None:
        return _shown(before.held)
    if _is_the_same_beneath(layers, path, own, before):
        return before.found
    raise _CannotTell


def _is_the_same_beneath(layers: Layers, path: str, own: Entry, before: _Before) -> bool:
    """Whether nobody has put anything beneath the entry since it was written.

    Folds and commits keep what a path shows. What changes it beneath tokens is an attach, or a move of the head: then
    some head on the way shows something that was not there.
    """
    if layers.branch.attaches != before.branch.attaches:
        return False
    known = {None if entry is None else entry.physical_address for entry in (own, before.found)}
    known.add(_address(layers, before.branch.head, path))
    head = layers.branch.head
    for _ in range(HEADS_MAX):
        if head == before.branch.head:
            return True
        if _address(layers, head, path) not in known:
            return False
        parents = layers.commits.get(head).parents
        if not parents:
            return False
        head = parents[0]
    return False


def _address(layers: Layers, commit: CommitId, path: str) -> str | None:
    found = layers.trees.find(layers.commits.tree(commit), path)
    return None if found is None else found.physical_address


def _shown(staged: bytes) -> Entry | None:
    decoded = decode_staged(staged)
    return decoded if isinstance(decoded, Entry) else None


def _failed(branch: str, path: str, found: Entry | None) -> PreconditionFailed:
    return PreconditionFailed(
        f"{path!r} on branch {branch!r} {'holds another object' if found else 'does not exist'}.",
        paths=[path],
        next="Read the object again and decide anew.",
    )
