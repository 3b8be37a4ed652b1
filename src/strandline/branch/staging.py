"""Staged changes: how they are written so that none that was acknowledged is lost."""

from __future__ import annotations

from collections.abc import Callable

from strandline.branch.at import BranchAt
from strandline.branch.attempts import Attempts
from strandline.branch.cell import Seen
from strandline.branch.locking import Pairs, what_is_left
from strandline.branch.rules.lock_rules import locked_key, refuse_locked_keys
from strandline.branch.rules.record import refuse_blocked
from strandline.branch.staged import write_pairs
from strandline.errors import BranchGone, NotAllowed, OutcomeUnknown, RangeLocked, StoreUnavailable
from strandline.ids import StagingToken

Write = Callable[[bytes, Pairs], None]
"""Puts pairs into a partition; raises if that failed."""


def stage(at: BranchAt, pairs: Pairs, write: Write, fresh: Seen | None = None) -> None:
    """Write into the staging token so that the write is surely a part of the branch when this returns.

    Invariant: a token that is the staging token in a read begun after the write ended was not sealed before the write
    ended, so every later scan of it, by a committer or anyone else, sees the write. If it is not, a committer may or
    may not have seen it, and writing the same again is harmless: equal identities are no change. A lock that covers
    the write came with a seal, so it came after, or is seen here; then what was written is read back.

    The token comes from a read begun after the call. One from a cache would do for the above, but might have been
    sealed long ago: a commit that is scanning it would show this write and lack others that returned before it began.

    Args:
        fresh: a record that was read after the caller's own call began.

    Raises:
        RangeLocked: a lock of somebody else covers it. Nothing of it is visible.
    """
    has_written = False
    token = StagingToken("")
    attempts = Attempts(at.cell, "write")
    while True:
        if attempts.next():
            fresh = None
        try:
            seen = fresh or at.read(shared=True)
            refuse_blocked(seen.branch, "stage", at.name)
            if seen.branch.locks or seen.branch.whole:
                keys = sorted(key for key, _ in pairs)
                if not has_written:
                    refuse_locked_keys(seen.branch, at.name, keys)
                elif locked_key(seen.branch, keys):
                    pairs = what_is_left(at, pairs, token)
                    if not pairs:
                        return
                    fresh = None
                    continue
            token = seen.branch.staging_token
            write(at.stores.staging(token), pairs)
            has_written = True
            attempts.safe = f"It is unknown whether the write is a part of branch {at.name!r}."
            fresh = at.read(shared=True)
            if fresh.branch.staging_token == token:
                return
        except BranchGone as error:
            if has_written:
                error.safe = "The write went to the deleted branch and is lost with it."
                error.args = (" ".join((error.what, error.safe, error.next)),)
            raise
        except NotAllowed as error:
            raise (refused_too_late(at.name, error) if has_written else error) from None
        except OutcomeUnknown:
            raise
        except StoreUnavailable as error:
            if not has_written:
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


def stage_one(at: BranchAt, key: bytes, value: bytes, fresh: Seen | None = None) -> None:
    stage(at, [(key, value)], lambda partition, _: at.stores.kv.set(partition, key, value), fresh)


def stage_many(at: BranchAt, pairs: Pairs) -> None:
    """Stage any number of entries with one check of the branch; not atomic: a failed call may have staged some."""
    stage(at, pairs, lambda partition, left: write_pairs(at.stores, partition, left))
