"""The branch record and its transitions: pure functions from a record to the next one.

Everything that must be decided atomically about a branch is decided here, on one value, and written with one
compare-and-swap by `strandline.branch.cell`. Nothing in this file does I/O.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import Enum
from typing import Literal

import msgspec
from msgspec.structs import replace

from strandline.branch.rules.ranges import Range
from strandline.clock import Microseconds, from_us
from strandline.errors import Advice, BranchProtected, RepositoryReadOnly
from strandline.ids import BranchId, CommitId, StagingToken
from strandline.tree.store import TreeRef

WRITE_IDS_KEPT = 16
"""How many swaps ago a client with a lost reply can still recognise its own."""
MOVES_KEPT = 16
"""Head moves on the record itself; older ones are in the reflog (`strandline.branch.reflog`)."""
MOVES_KEPT_WHEN_FULL = 8
COOL_DOWN_S = 60
"""Time between the beginnings of two compactions of a branch: a million staged entries are compacted in a few seconds,
so compaction takes a small part of one processor however fast others delete, and a crashed one is followed soon."""

Action = Literal["stage", "commit", "merge", "reset", "delete"]
FORBIDDEN: dict[Action, str] = {
    "stage": "nothing may be written to it",
    "commit": "nothing may be committed to it",
    "merge": "nothing may be merged into it",
    "reset": "its head may not be moved",
    "delete": "it may not be deleted",
}
HIDDEN_FORMAT = 6
"""The first format of records that knows hidden branches."""
ETAG_FORMAT = 7
"""The first one in which what is staged may have ETags."""
ONE_SHOT_FORMAT = 8
"""The first one that knows the tokens of one-shot publications."""
DONE_KEPT = 16
"""Tokens of one-shot publications on the record itself; older ones have records of their own."""
DONE_KEPT_WHEN_FULL = 8
READ_ONLY = "read-only"
"""Stands in `Branch.blocked` of every branch of a read-only repository."""


class HeadMove(msgspec.Struct, frozen=True, array_like=True):
    """A move of a branch's head.

    Attributes:
        at_us: by the clock of the process that moved it, in microseconds since 1970 UTC.
        verb: "create", "commit", "merge", "revert", "cherry-pick", "import", "publish" or "reset".
        by: the committer.
        before: the head until then; empty for a new branch.
    """

    at_us: Microseconds
    verb: str
    by: str
    before: CommitId | Literal[""]
    after: CommitId

    @property
    def at(self) -> datetime:
        """When the head moved, in UTC."""
        return from_us(self.at_us)


class Why(msgspec.Struct, frozen=True):
    """What a transition that moves the head leaves in the reflog."""

    verb: str
    by: str
    at_us: Microseconds


class Done(msgspec.Struct, frozen=True, array_like=True):
    """A one-shot publication, as a repetition recognises it.

    Attributes:
        token: what its caller named it by.
        digest: of what it was to change: the same token with other changes is a mistake.
        commit: that it made.
        at_us: when, by the clock of its process.
    """

    token: str
    digest: str
    commit: CommitId
    at_us: Microseconds


class WriterRecord(msgspec.Struct, frozen=True, array_like=True):
    """A name under which transactions are made; see `strandline.branch.rules.writers`.

    Attributes:
        started: the last transaction that was begun, or 0; it is open if it is not `committed`.
        committed: the last one that was published, or 0.
        commit: the commit that published it, or "".
        node: the only one that may begin and commit under this name; empty if anyone may.
        position: what the last published one said of how far it consumed its source.
        token: what the last published one said that makes a repetition of it recognisable.
        digest: of what the last published one changed.
    """

    started: int = 0
    committed: int = 0
    commit: CommitId | Literal[""] = ""
    node: str = ""
    position: str = ""
    token: str = ""
    digest: str = ""

    @property
    def is_open(self) -> bool:
        return self.started != self.committed


LockMode = Literal["exclusive", "shared", "quarantine"]
"""exclusive: one holder, which alone changes the ranges. shared: nobody does, as several holders agree. quarantine:
like exclusive, and others do not even read them."""


class LockRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A lock on ranges of paths; see `strandline.branch.rules.lock_rules`.

    Attributes:
        id: names the lock; several entries with one id are one lock that was extended.
        description: of the owner, when it was taken.
        state: pending from when everyone sees it until what was staged before it is folded, then held; of a repository,
            releasing from when new branches are free until all are.
        ranges: sorted, disjoint, not adjacent.
        base: the commit that shows what the ranges held when it became held, or "".
        sealed: the token that was sealed when it was put on record, or "".
        of_repository: the lock of a whole repository, on one of its branches.
        writer, transaction: the transaction that holds it, if one does: the lock lives no longer than that is open.
    """

    id: str
    owner: str
    description: str
    mode: LockMode
    state: Literal["pending", "held", "releasing"]
    ranges: tuple[Range, ...]
    taken_at: Microseconds
    base: CommitId | Literal[""] = ""
    sealed: StagingToken | Literal[""] = ""
    writer: str = ""
    transaction: int = 0
    of_repository: bool = False


class Waiting(msgspec.Struct, frozen=True, array_like=True):
    """A waiter for a lock; first come, first served.

    Attributes:
        seen_at: when it last said so, by its clock: if that is long ago it loses its turn, and nothing else.
    """

    id: str
    owner: str
    mode: LockMode
    ranges: tuple[Range, ...]
    seen_at: Microseconds


class BranchRecord(msgspec.Struct, frozen=True, tag="branch", kw_only=True):
    """A branch.

    Attributes:
        branch_id: unique to this creation of the name; begins every physical path that is written through it.
        head: the newest commit.
        content_epoch: grows with every transition but seal, attach and commit.
        attaches: grows with every attach, whose token may come to lie beneath tokens that others have read.
        staging_token: where new writes go.
        sealed_tokens: newest first; being committed or compacted.
        compacted: a tree that holds head and some of what is staged, or None.
        compaction_started: when the last compaction began, or None.
        blocked: the actions that a protection rule forbids, or `READ_ONLY`.
        publishers: the writers that may publish although something is blocked.
        next_txn: the id of the next transaction: one counter for all writers, so that no id is ever used again.
        writers: by name, at most `MAX_WRITERS` (`strandline.branch.rules.writers`); a name that is not here is fenced.
        locks: on ranges of paths, at most `lock_rules.MAX_RANGES` ranges.
        whole: a lock on the whole branch, beside which `locks` rest.
        waiting: the waiters for a lock, longest first.
        lock_changes_at: up to when the changes of locks so far have used up the rate that is allowed.
        write_ids: ids of this record and of those before it, newest first.
        created_at: microseconds since 1970 UTC.
        moves: the last moves of the head, newest first.
        move_count: how many there have been.
        is_hidden: left out of lists of branches unless they are asked for; else a branch as any.
        has_etags: what is staged may have ETags. It stays so for the life of the branch.
        done: the last one-shot publications with a token, newest first.
    """

    branch_id: BranchId
    head: CommitId
    staging_token: StagingToken
    created_at: Microseconds
    content_epoch: int = 0
    attaches: int = 0
    sealed_tokens: tuple[StagingToken, ...] = ()
    compacted: TreeRef | None = None
    compaction_started: Microseconds | None = None
    blocked: tuple[str, ...] = ()
    publishers: tuple[str, ...] = ()
    next_txn: int = 1
    writers: Mapping[str, WriterRecord] = {}
    locks: tuple[LockRecord, ...] = ()
    whole: LockRecord | None = None
    waiting: tuple[Waiting, ...] = ()
    lock_changes_at: Microseconds = 0
    write_ids: tuple[str, ...] = ()
    moves: tuple[HeadMove, ...] = ()
    move_count: int = 0
    is_hidden: bool | msgspec.UnsetType = msgspec.UNSET
    has_etags: bool | msgspec.UnsetType = msgspec.UNSET
    done: tuple[Done, ...] | msgspec.UnsetType = msgspec.UNSET

    @property
    def format_needed(self) -> int:
        """The format that this record has to be written in, if it is newer than that of all records."""
        if self.done:
            return ONE_SHOT_FORMAT
        if self.has_etags:
            return ETAG_FORMAT
        return HIDDEN_FORMAT if self.is_hidden else 0

    @property
    def layers(self) -> tuple[StagingToken, tuple[StagingToken, ...], TreeRef | None, CommitId, int, int]:
        """All that a read depends on. The two counters tell a branch that came back to a head from one that never
        left it: a merge and the hard reset that undoes it leave the same tokens and the same head.
        """
        return (
            self.staging_token,
            self.sealed_tokens,
            self.compacted,
            self.head,
            self.content_epoch,
            self.attaches,
        )

    def only_sealed_since(self, earlier: BranchRecord) -> bool:
        """Whether nothing but seals happened to the layers since an earlier record, so that all of its tokens lie over
        the same trees still, and nothing came between them.

        The head counts, not only the epoch: a commit of nothing but a compacted tree moves it and changes no counter.
        """
        mine = (self.head, self.compacted, self.content_epoch, self.attaches)
        theirs = (earlier.head, earlier.compacted, earlier.content_epoch, earlier.attaches)
        return (
            mine == theirs
            and is_tail(earlier.sealed_tokens, self.sealed_tokens)
            and earlier.staging_token in self.tokens
        )

    @property
    def tokens(self) -> tuple[StagingToken, ...]:
        """All staged layers, newest first."""
        return self.staging_token, *self.sealed_tokens


class TagRecord(msgspec.Struct, frozen=True, tag="tag", kw_only=True):
    commit: CommitId
    created_at: Microseconds


class Deleted(msgspec.Struct, frozen=True, tag="deleted", kw_only=True):
    """What a deleted branch or tag leaves: a bare delete could be overtaken by a late swap."""

    was: Literal["branch", "tag"]
    deleted_at: Microseconds
    tokens: tuple[StagingToken, ...] = ()
    write_ids: tuple[str, ...] = ()


RefRecord = BranchRecord | TagRecord | Deleted


class LayersMoved(Exception):
    """What a transition was computed from is no longer on record: compute again."""


class CoolingDown(Exception):
    """A compaction of the branch began a short while ago."""


def refuse_read_only(branch: BranchRecord, name: str, *, forced: bool = False) -> None:
    """Raise if nothing may change. Throwing staged changes away is allowed on protected branches, not here.

    Args:
        forced: the caller means to change what is read-only.
    """
    if READ_ONLY in branch.blocked and not forced:
        raise RepositoryReadOnly(
            f"The repository of branch {name!r} is read-only.",
            next=Advice(
                "An administrator can make it writable: repository.set_read_only(False).",
                command="An administrator can make it writable: `strandline repo read-only --off`.",
            ),
        )


def refuse_blocked(branch: BranchRecord, action: Action, name: str, *, forced: bool = False) -> None:
    """Raise if the branch may not do this: judged on the very record that is swapped. No caller passes a protection."""
    refuse_read_only(branch, name, forced=forced)
    if action in branch.blocked:
        advice = {
            "stage": "Write to another branch and merge it.",
            "commit": "Commit on another branch and merge it.",
            "merge": "Nobody may merge into it; ask the person who protected it.",
            "reset": "Revert the commits instead of resetting the branch.",
            "delete": "Remove its protection first.",
        }[action]
        raise BranchProtected(f"Branch {name!r} is protected: {FORBIDDEN[action]}.", next=advice)


def seal(branch: BranchRecord, fresh: StagingToken) -> BranchRecord:
    """New writes go to a fresh token; what was staged so far becomes the newest sealed token."""
    if fresh in branch.tokens:
        raise ValueError("the new staging token is on record already")
    return replace(branch, staging_token=fresh, sealed_tokens=(branch.staging_token, *branch.sealed_tokens))


def is_tail(tokens: Sequence[StagingToken], of: Sequence[StagingToken]) -> bool:
    return len(tokens) <= len(of) and tuple(of[len(of) - len(tokens) :]) == tuple(tokens)


def without_tail(tokens: tuple[StagingToken, ...], count: int) -> tuple[StagingToken, ...]:
    return tokens[: len(tokens) - count]


def refuse_moved(now: BranchRecord, seen: BranchRecord, applied: Sequence[StagingToken]) -> None:
    """Raise unless head, compacted, epoch are those of `seen`, and `applied` is still the tail of the sealed tokens."""
    same = (now.head, now.compacted, now.content_epoch) == (seen.head, seen.compacted, seen.content_epoch)
    if not same or not is_tail(applied, now.sealed_tokens):
        raise LayersMoved


def attach(now: BranchRecord, seen: BranchRecord, token: StagingToken) -> BranchRecord:
    """A private token, filled beforehand with what was computed from `seen`, becomes visible right beneath the staging
    token that was fresh in `seen`: what was staged meanwhile lies above it and is ordered after it.

    The layers beneath that staging token say the same as in `seen` if it is still on record, since commits take tails
    of the tokens and so took at most what was read; if nothing was folded; and if nobody else attached.
    """
    same = now.content_epoch == seen.content_epoch and now.attaches == seen.attaches
    if not same or seen.staging_token not in now.tokens:
        raise LayersMoved
    at = now.tokens.index(seen.staging_token)
    sealed = (*now.sealed_tokens[:at], token, *now.sealed_tokens[at:])
    return replace(now, sealed_tokens=sealed, attaches=now.attaches + 1)


def attach_on_top(now: BranchRecord, token: StagingToken, fresh: StagingToken) -> BranchRecord:
    """A private token that was not computed from anything: it lies above all that was acknowledged before this swap."""
    sealed = seal(now, fresh)
    return replace(sealed, sealed_tokens=(token, *sealed.sealed_tokens), attaches=now.attaches + 1)


def fold(
    now: BranchRecord, seen: BranchRecord, applied: Sequence[StagingToken], compacted: TreeRef | None
) -> BranchRecord:
    """Replace applied tokens by a tree: compaction, reset of a range, and dropping what changes nothing."""
    refuse_moved(now, seen, applied)
    return replace(
        now,
        compacted=compacted,
        sealed_tokens=without_tail(now.sealed_tokens, len(applied)),
        content_epoch=now.content_epoch + 1,
    )


def is_cooling_down(branch: BranchRecord, at_us: Microseconds, cool_down_s: float = COOL_DOWN_S) -> bool:
    """Whether a compaction began a short while ago. A time far in the future is that of a wrong clock: it counts for
    nothing, so that it holds nobody up."""
    started = branch.compaction_started
    return started is not None and abs(at_us - started) < cool_down_s * 1e6


def claim_compaction(now: BranchRecord, fresh: StagingToken, at_us: Microseconds, cool_down_s: float) -> BranchRecord:
    """Begin a compaction: seal, and say so on record, so that of all processes that see the need one goes to work.

    Raises:
        CoolingDown: somebody began one less than `cool_down_s` ago.
    """
    if is_cooling_down(now, at_us, cool_down_s):
        raise CoolingDown
    return replace(seal(now, fresh), compaction_started=at_us)


def drop_staged(now: BranchRecord, fresh: StagingToken) -> BranchRecord:
    """Reset of everything: all staged layers go at once."""
    return replace(now, staging_token=fresh, sealed_tokens=(), compacted=None, content_epoch=now.content_epoch + 1)


def move_head(
    now: BranchRecord,
    seen: BranchRecord,
    applied: Sequence[StagingToken],
    head: CommitId,
    compacted: TreeRef | None,
    why: Why,
) -> BranchRecord:
    """Merge, revert, cherry-pick, import: a new head, and what stays staged in effect folded over it."""
    return with_head(fold(now, seen, applied, compacted), head, why)


def hard_reset(now: BranchRecord, head: CommitId, fresh: StagingToken, why: Why) -> BranchRecord:
    """The head moves to any commit and everything staged goes."""
    return with_head(drop_staged(now, fresh), head, why)


def committed(now: BranchRecord, head: CommitId, applied: int, why: Why) -> BranchRecord:
    """The swap of a commit: decided by `decide_commit`."""
    after = replace(now, compacted=None, sealed_tokens=without_tail(now.sealed_tokens, applied))
    return with_head(after, head, why)


def with_head(branch: BranchRecord, head: CommitId, why: Why) -> BranchRecord:
    """The head moves, and the move goes on record; when there are too many, the older ones leave it."""
    moves = (HeadMove(why.at_us, why.verb, why.by, branch.head, head), *branch.moves)
    if len(moves) > MOVES_KEPT:
        moves = moves[:MOVES_KEPT_WHEN_FULL]
    return replace(branch, head=head, moves=moves, move_count=branch.move_count + 1)


def moves_that_leave(before: BranchRecord, after: BranchRecord) -> tuple[int, tuple[HeadMove, ...]]:
    """The head moves that are on `before` and not on `after`, and the number (from 1) of the oldest of them."""
    kept = len(after.moves) - (after.move_count - before.move_count)
    if after.move_count == before.move_count or kept >= len(before.moves):
        return 0, ()
    leaving = before.moves[kept:]
    return before.move_count - len(before.moves) + 1, leaving


def with_done(branch: BranchRecord, done: Done) -> BranchRecord:
    """A one-shot publication goes on record; when there are too many, the older ones leave it."""
    kept = (done, *(branch.done or ()))
    return replace(branch, done=kept[:DONE_KEPT_WHEN_FULL] if len(kept) > DONE_KEPT else kept)


def done_that_leave(before: BranchRecord, after: BranchRecord) -> tuple[Done, ...]:
    """The one-shot publications that are on `before` and not on `after`."""
    if before.done is after.done or not before.done:
        return ()
    kept = {one.token for one in after.done or ()}
    return tuple(one for one in before.done if one.token not in kept)


def with_etags(branch: BranchRecord) -> BranchRecord:
    """Say that what is staged may have ETags: before any of it has."""
    return branch if branch.has_etags else replace(branch, has_etags=True)


def what_changed(before: BranchRecord, after: BranchRecord) -> str:
    """In a word, what somebody else did to a branch between two reads of it."""
    if after.branch_id != before.branch_id:
        return "branch deleted and made anew"
    if after.head != before.head:
        return after.moves[0].verb if after.moves else "commit"
    if after.content_epoch != before.content_epoch:
        return "compaction or reset"
    if after.attaches != before.attaches:
        return "atomic change"
    if after.writers != before.writers:
        return "transaction begun"
    if (after.locks, after.whole, after.waiting) != (before.locks, before.whole, before.waiting):
        return "change of locks"
    return "seal" if after.staging_token != before.staging_token else "change of settings"


class Verdict(Enum):
    """What a committer does with the record that it meets when it wants to swap."""

    SWAP = "swap"
    REPARENT = "reparent"
    LOOK_FOR_MINE = "look for mine"
    RECOMPUTE = "recompute"


def decide_commit(
    seen: BranchRecord, mine: Sequence[StagingToken], is_complete: bool, now: BranchRecord
) -> tuple[Verdict, tuple[StagingToken, ...]]:
    """Decide how a commit goes on, and which of its tokens are still on record.

    Args:
        seen: the record after the seal; the tree was made from its base and `mine`.
        mine: the tokens that were scanned, a tail of `seen.sealed_tokens`.
        is_complete: a read of the record after the scan showed all of `mine`. If not, another committer may have
            been deleting a token while it was read.
    """
    left = tuple(token for token in mine if token in now.sealed_tokens)
    tail = is_tail(left, now.sealed_tokens)
    same_epoch = now.content_epoch == seen.content_epoch
    if same_epoch and now.head == seen.head and now.compacted == seen.compacted and left == tuple(mine) and tail:
        # tokens never return to a record, so all of mine were there throughout: the scan was complete
        return Verdict.SWAP, left
    nothing_compacted = now.compacted is None and seen.compacted is None
    if same_epoch and nothing_compacted and left and tail and is_complete and now.attaches == seen.attaches:
        # commits that came first took a tail of mine on top of my own base, so my tree contains theirs; an attach
        # could have put something between my tokens that such a commit took and my tree lacks
        return Verdict.REPARENT, left
    if not left and now.compacted is None:
        return Verdict.LOOK_FOR_MINE, left
    return Verdict.RECOMPUTE, left
