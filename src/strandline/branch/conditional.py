"""A put that happens only if the path holds what the caller expects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from strandline.branch.at import BranchAt
from strandline.branch.attempts import Attempts, update
from strandline.branch.rules.lock_rules import refuse_locked_keys
from strandline.branch.rules.record import BranchRecord, refuse_blocked, with_etags
from strandline.branch.staging import refused_too_late, unchecked
from strandline.branch.view import Layers
from strandline.errors import NotAllowed, OutcomeUnknown, PreconditionFailed, RangeLocked, StoreUnavailable
from strandline.ids import CommitId, StagingToken
from strandline.kv.store import ABSENT, PredicateFailed
from strandline.tree.rows import TOMBSTONE, Entry, check_one, decode_staged, encode_staged, hold_etags

Condition = Callable[[Entry | None], bool]
HEADS_MAX = 64
"""How many moves of the head are looked at, before it counts as unknown what lies beneath an entry."""


@dataclass(frozen=True, slots=True)
class _Before:
    """What a call knew when it wrote to a token.

    Attributes:
        written: what it wrote there, newest first: its entry, what it took that back with. A commit may hold any of it.
        held: what the token had at the path; no store knows that any more.
        found: what the path showed without the call.
        branch: the record then.
        is_whole: the sealed tokens were on the record still after `found` was read: nobody was deleting from them. (Of
            its own token the call knows what it had: the swap demanded it.)
    """

    written: tuple[bytes, ...]
    held: bytes | None
    found: Entry | None
    branch: BranchRecord
    is_whole: bool = False


Written = dict[StagingToken, _Before]
"""The tokens that a call has written to, oldest first."""


class _CannotTell(Exception):
    """What lay beneath something that was folded or committed meanwhile may have changed as well."""


def stage_if(at: BranchAt, path: str, entry: Entry, condition: Condition) -> None:
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
    kv = at.stores.kv
    key, value = path.encode(), check_one(entry)
    written_to: Written = {}
    attempts = Attempts(at.cell, "conditional write")
    while True:
        attempts.next()
        try:
            seen = at.read()
            refuse_blocked(seen.branch, "stage", at.name, forced=at.is_forced)
            refuse_locked_keys(seen.branch, at.name, [key])
            layers = Layers(at.cell, at.commits, seen.branch)
            partition = at.stores.staging(seen.branch.staging_token)
            held = kv.get(partition, key)
            found, on_top = _without(layers, path, key, held, written_to)
            holds = condition(found)
            wanted = value if holds else encode_staged(found if found is not None else TOMBSTONE)
            if not seen.branch.has_etags and hold_etags([wanted]):
                update(at, with_etags)  # as in `staging`: older versions must refuse the record first
                continue
            if holds or any(one != wanted for one in on_top):
                kv.set_if(partition, key, wanted, ABSENT if held is None else held)
                earlier = written_to.get(seen.branch.staging_token)
                mine = () if earlier is None else earlier.written
                replaced = earlier.held if earlier is not None and held in mine else held
                written_to[seen.branch.staging_token] = _Before((wanted, *mine), replaced, found, seen.branch)
                attempts.safe = f"It is unknown whether the write is a part of branch {at.name!r}."
            elif not written_to:
                raise failed_precondition(at.name, path, found)
            now = at.read().branch
            if now.layers == seen.branch.layers:
                if holds:
                    return
                raise failed_precondition(at.name, path, found)
            latest = written_to.get(seen.branch.staging_token)
            if (
                latest is not None
                and latest.branch is seen.branch
                and set(seen.branch.sealed_tokens) <= set(now.tokens)
            ):
                written_to[seen.branch.staging_token] = replace(latest, is_whole=True)
        except PredicateFailed:
            continue
        except _CannotTell:
            raise OutcomeUnknown(
                f"Others changed branch {at.name!r} while {path!r} was being written.",
                safe=f"It is unknown whether the write is a part of branch {at.name!r}.",
                next="Read it back, and decide anew.",
            ) from None
        except (NotAllowed, RangeLocked) as error:
            raise (refused_too_late(at.name, error) if written_to else error) from None
        except StoreUnavailable as error:
            if not written_to:
                raise
            raise unchecked(at.name, error) from error


def _without(
    layers: Layers, path: str, key: bytes, held: bytes | None, written_to: Written
) -> tuple[Entry | None, tuple[bytes, ...]]:
    """What a path would show without the call, and what the call has written that it may show.

    The staging token shows what it has. A sealed one may have been scanned before the call wrote to it last: a commit
    that goes on may put anything there that the call ever wrote to it.

    Args:
        held: what the staging token has.

    Raises:
        _CannotTell: what the call wrote was folded or committed, together with changes of others beneath it.
    """
    stores = layers.cell.stores
    on_top: tuple[bytes, ...] = ()
    for token in layers.branch.tokens:
        staged = held if token == layers.branch.staging_token else stores.kv.get(stores.staging(token), key)
        before = written_to.get(token)
        if before is not None and staged in before.written:
            is_sealed = token != layers.branch.staging_token
            on_top = on_top or (before.written if is_sealed else (staged,))
            staged = before.held
        if staged is not None:
            return _shown(staged), on_top
    found = layers.trees.find(layers.base, path)
    gone = [before for token, before in written_to.items() if token not in layers.branch.tokens]
    # not the last one for sure: its token may have been dropped before it was written to
    shown = ((one, mine) for one in reversed(gone) for mine in one.written if _place(_shown(mine)) == _place(found))
    before, mine = next(shown, (None, b""))
    if before is None:
        return found, on_top
    # committed or folded already: what lies beneath it there?
    on_top = on_top or (mine,)
    if before.held is not None:
        return _shown(before.held), on_top
    if before.is_whole and _is_the_same_beneath(layers, path, before):
        return before.found, on_top
    raise _CannotTell


def _is_the_same_beneath(layers: Layers, path: str, before: _Before) -> bool:
    """Whether what a path showed beneath a token is surely what it would show there now.

    Commits and compactions keep what a path shows. Attaches and moves of the head need not; nor does a fold that
    discards what is staged, which looks like a compaction. So the heads since then may show what the call wrote, before
    that what lay beneath it, and before that what the first head showed, in this order and nothing else.
    """
    first = _address(layers, before.branch.head, path)
    was_staged = _place(before.found) != first
    if layers.branch.attaches != before.branch.attaches:
        return False
    if was_staged and layers.branch.content_epoch != before.branch.content_epoch:
        return False
    left = [*(_place(_shown(mine)) for mine in before.written), _place(before.found), first]
    head = layers.branch.head
    for _ in range(HEADS_MAX):
        if head == before.branch.head:
            return True
        shown = _address(layers, head, path)
        if shown not in left:
            return False
        left = left[left.index(shown) :]
        parents = layers.commits.get(head).parents
        if not parents:
            return False
        head = parents[0]
    return False


def _place(entry: Entry | None) -> str | None:
    return None if entry is None else entry.physical_address


def _address(layers: Layers, commit: CommitId, path: str) -> str | None:
    return _place(layers.trees.find(layers.commits.tree(commit), path))


def _shown(staged: bytes) -> Entry | None:
    decoded = decode_staged(staged)
    return decoded if isinstance(decoded, Entry) else None


def failed_precondition(branch: str, path: str, found: Entry | None) -> PreconditionFailed:
    return PreconditionFailed(
        f"{path!r} on branch {branch!r} {'holds another object' if found else 'does not exist'}.",
        paths=[path],
        next="Read the object again and decide anew.",
    )
