"""Staged changes: how they are written so that none that was acknowledged is lost."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from strandline.branch.at import BranchAt
from strandline.branch.attempts import Attempts, update
from strandline.branch.cell import Seen
from strandline.branch.locking import Pairs, what_is_left
from strandline.branch.rules.lock_rules import locked_key, refuse_locked_keys
from strandline.branch.rules.record import refuse_blocked, with_etags
from strandline.errors import BranchGone, Contention, NotAllowed, OutcomeUnknown, RangeLocked, StoreUnavailable
from strandline.ids import StagingToken
from strandline.kv.store import GUARDED_MAX_BYTES, Guarded, in_part
from strandline.tree.rows import hold_etags

GUARDED_ATTEMPTS = 3
"""A guard is refused after every change of the record, and the token moves with few of them: where a branch changes
faster than it can be written to, a writer that lost so often writes without a guard and looks afterwards."""


def stage(at: BranchAt, pairs: Pairs, fresh: Seen | None = None) -> None:
    """Write into the staging token so that the write is surely a part of the branch when this returns.

    Any number of entries; each part of as many as a store guards at once is a write of its own, so a failed call may
    have staged some.

    Args:
        fresh: a record that was read after the caller's own call began.

    Raises:
        RangeLocked: a lock of somebody else covers some of it. Nothing is staged if the lock was there before the call;
            else nothing of the part that met it is visible, and the parts before it are staged.
    """
    most = at.stores.kv.guarded_max_pairs
    if len(pairs) > most:  # what is refused from the beginning is refused whole
        fresh, _ = _allowing(at, pairs, fresh or at.read(shared=True))
    for number, part in enumerate(_parts(pairs, most)):
        try:
            with in_part(number > 0):
                _stage_part(at, part, None if number else fresh)
        except (Contention, NotAllowed, RangeLocked) as error:
            if number:
                error.now_safe("A part of what was to be staged is staged.")
            raise


def _parts(pairs: Pairs, most: int) -> Iterator[Pairs]:
    for first in range(0, len(pairs), most):
        part = pairs[first : first + most]
        if sum(map(len, chain.from_iterable(part))) <= GUARDED_MAX_BYTES:
            yield part
            continue
        begin = size = 0
        for at, (key, value) in enumerate(part):
            size += len(key) + len(value)
            if size > GUARDED_MAX_BYTES and at > begin:
                yield part[begin:at]
                begin, size = at, len(key) + len(value)
        yield part[begin:]


def _stage_part(at: BranchAt, pairs: Pairs, fresh: Seen | None) -> None:
    """Write some entries at one instant.

    Invariant: the write happens at an instant at which the record is the one that it was judged by: it allows the
    write, no lock covers it, and the token of the write is its staging token. So every later scan of the token, by a
    committer or anyone else, sees the write, and a record from a cache will do.
    """
    attempts = Attempts(at.cell, "write")
    attempts.next()
    seen, is_new = _allowing(at, pairs, fresh)
    for _ in range(GUARDED_ATTEMPTS):
        outcome = at.cell.set_while(seen, pairs)
        if outcome is Guarded.WRITTEN:
            return
        if outcome is Guarded.MAYBE:
            _write_and_look(at, pairs, seen.branch.staging_token, attempts)
            return
        if is_new:  # a remembered record may be old: nobody else was first
            attempts.again()
        seen, is_new = _allowing(at, pairs, at.read(shared=True))
    _write_and_look(at, pairs, None, attempts)


def _allowing(at: BranchAt, pairs: Pairs, fresh: Seen | None) -> tuple[Seen, bool]:
    """A record that allows a write, a remembered one if `fresh` is None, and whether it was read just now.

    What refuses a write was read just now. A record in which what is staged has no ETags allows no write that has one:
    an older version would read it as another entry. So it is swapped first, to a format that older versions refuse.
    """
    seen, is_new = (fresh, True) if fresh else at.cell.cached(at.branch_id)
    try:
        _refuse(at, seen, pairs)
    except (NotAllowed, RangeLocked):
        if is_new:
            raise
        seen, is_new = at.read(shared=True), True
        _refuse(at, seen, pairs)
    if not seen.branch.has_etags and hold_etags(value for _, value in pairs):
        seen, is_new = update(at, with_etags), True
        _refuse(at, seen, pairs)
    return seen, is_new


def _refuse(at: BranchAt, seen: Seen, pairs: Pairs) -> None:
    refuse_blocked(seen.branch, "stage", at.name, forced=at.is_forced)
    if seen.branch.locks or seen.branch.whole:
        refuse_locked_keys(seen.branch, at.name, sorted(key for key, _ in pairs))


def _write_and_look(at: BranchAt, pairs: Pairs, token: StagingToken | None, attempts: Attempts) -> None:
    """Write where the store could not guard, until it is known that a write was in time.

    Invariant: a token that is the staging token in a read begun after the write ended was not sealed before the write
    ended, so every later scan of it, by a committer or anyone else, sees the write. If it is not, a committer may or
    may not have seen it, and writing the same again is harmless: equal identities are no change. A lock that covers
    the write came with a seal, so it came after, or is seen here; then what was written is read back.

    The token comes from a read begun after the call. One from a cache would do for the above, but might have been
    sealed long ago: a commit that is scanning it would show this write and lack others that returned before it began.

    Args:
        token: that the entries were written under just now, if they were.
    """
    while True:
        try:
            seen = None
            if token is not None:
                attempts.safe = f"It is unknown whether the write is a part of branch {at.name!r}."
                seen = at.read(shared=True)
                if seen.branch.staging_token == token:
                    return
            if attempts.next() or seen is None:
                seen = at.read(shared=True)
            if token is None:
                _refuse(at, seen, pairs)
            else:
                refuse_blocked(seen.branch, "stage", at.name, forced=at.is_forced)
                if locked_key(seen.branch, sorted(key for key, _ in pairs)):
                    pairs = what_is_left(at, pairs, token)
                    if not pairs:
                        return
                    continue
            under = seen.branch.staging_token
            at.stores.kv.set_many(at.stores.staging(under), pairs)
            token = under
        except BranchGone as error:
            if token is not None:
                error.now_safe("The write went to the deleted branch and is lost with it.")
            raise
        except NotAllowed as error:
            raise (error if token is None else refused_too_late(at.name, error)) from None
        except OutcomeUnknown:
            raise
        except StoreUnavailable as error:
            if token is None:
                raise
            raise unchecked(at.name, error) from error


def unchecked(name: str, error: StoreUnavailable) -> StoreUnavailable:
    """The error of a write that was made, when the store failed before it was known to be a part of the branch."""
    return StoreUnavailable(
        error.what,
        happened="unknown",
        safe=f"The write was made, but it is unknown whether it is a part of branch {name!r}.",
        next="Read it back, or repeat the call.",
    )


def refused_too_late(name: str, error: NotAllowed | RangeLocked) -> OutcomeUnknown:
    """The error of a write that met a rule which came after it had been made, in a token sealed meanwhile.

    Whether it was made before the seal, or what a committer saw of it, cannot be told.
    """
    return OutcomeUnknown(
        f"{error.what} That came while this was being written.",
        safe=f"It is unknown whether the write is a part of branch {name!r}.",
        next="Read it back.",
    )
