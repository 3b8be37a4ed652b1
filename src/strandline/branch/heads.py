"""Moving the head otherwise than by a commit: merge, revert, cherry-pick, import, publish, hard reset.

Seal, scan, judge what is staged in effect on that scan, compute, and swap head, folded changes and epoch together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from strandline.branch.at import BranchAt
from strandline.branch.attempts import Attempts, read_back, still_named, update
from strandline.branch.cell import BranchCell, Moved, Seen
from strandline.branch.commits import Commit, commit_pair
from strandline.branch.reflog import Forgotten, came_to
from strandline.branch.rules.lock_rules import (
    NOBODY,
    in_the_way,
    range_locked,
    refuse_locked_ranges,
    refuse_unheld,
)
from strandline.branch.rules.ranges import ALL
from strandline.branch.rules.record import BranchRecord, LayersMoved, Why, hard_reset, move_head, refuse_blocked, seal
from strandline.branch.staged import scan_staged
from strandline.branch.stores import Stores
from strandline.branch.token_queue import dropped, item_pair, put_item
from strandline.branch.view import in_effect
from strandline.errors import Advice, OutcomeUnknown, StoreUnavailable, StrandlineError, UncommittedChanges, some_paths
from strandline.ids import CommitId, StagingToken, new_id
from strandline.tree.apply import apply
from strandline.tree.diff import Difference, diff
from strandline.tree.store import Tree


@dataclass(frozen=True, slots=True)
class NewHead:
    """What a computation on the current head wants to put there."""

    commit: Commit
    tree: Tree


Compute = Callable[[Commit], NewHead]
"""From the commit at the head to the one that replaces it; run again if the head moves."""
InTheWay = Callable[[Difference], list[str]]
"""Of what is staged in effect, the paths that forbid the move."""
Judge = Callable[[BranchRecord], None]
"""Raises if the move may not happen on this very record."""
Mark = Callable[[BranchRecord, CommitId], BranchRecord]
"""What the move changes besides the head, in the same swap."""


class _CameThrough(Exception):
    """A swap whose reply was lost has happened."""

    def __init__(self, commit: Commit) -> None:
        self.commit = commit


@dataclass(slots=True)
class _Tried:
    """The heads whose swap may have happened, or may still come, and how often the head had moved before.

    Attributes:
        heads: with their commits, which need not be read to say that they are there.
        demanded: the records that these swaps demand. On any other one none of them can come any more.
    """

    heads: dict[CommitId, Commit] = field(default_factory=dict)
    since: int = 0
    unknown: OutcomeUnknown | None = None
    demanded: set[bytes] = field(default_factory=set)

    def refuse_done(self, stores: Stores, branch: BranchRecord) -> None:
        """Raise `_CameThrough` if the head came to one of them: before anything else is judged on a fresh record."""
        if self.heads and (done := self.done(stores, branch)) is not None:
            raise _CameThrough(done)

    def done(self, stores: Stores, branch: BranchRecord) -> Commit | None:
        """Which of them the head came to.

        Raises:
            OutcomeUnknown: it cannot be told.
        """
        try:
            found = came_to(stores, branch, self.heads.keys(), self.since)
            return None if found is None else self.heads[found]
        except (Forgotten, StoreUnavailable):
            assert self.unknown is not None
            raise self.unknown from None


def everything(staged: Difference) -> list[str]:
    """Nothing at all may be staged: for merge, revert and cherry-pick."""
    paths: list[str] = staged.paths.to_pylist()
    return paths


def set_head(
    at: BranchAt,
    judge: Judge,
    verb: str,
    compute: Compute,
    in_the_way: InTheWay = everything,
    mark: Mark = lambda branch, head: branch,
    locks: Collection[str] = NOBODY,
) -> Commit:
    """Move the head to a new commit.

    Args:
        locks: ids of locks under which it is moved: all of them are held, and no other one covers what changes.
        judge: called on every record that the move may be swapped against.
        verb: what the reflog calls it.

    Raises:
        UncommittedChanges: staged changes are in the way.
        RangeLocked: what changes between the heads is locked by somebody else.
        BranchGone, Contention, StoreUnavailable; and what `judge` and `compute` raise. Nothing was moved then, unless
            the error says that it is unknown.
    """
    tried = _Tried()

    def judge_new(branch: BranchRecord) -> None:
        tried.refuse_done(at.stores, branch)  # what happened is done, whatever forbids it by now
        judge(branch)

    try:
        return _moved(at, judge_new, verb, compute, in_the_way, mark, locks, tried)
    except _CameThrough as came:
        return came.commit
    except OutcomeUnknown:
        raise
    except StrandlineError as error:
        if tried.unknown is None:
            raise
        done = _settled(at, tried, error)
        if done is None:
            raise
        return done


def _settled(at: BranchAt, tried: _Tried, error: StrandlineError) -> Commit | None:
    """What became of swaps with lost replies, when something else went wrong after them; None if surely nothing.

    Raises:
        OutcomeUnknown: one may have happened, or may still come.
    """
    assert tried.unknown is not None
    try:
        seen = at.read()
    except StrandlineError:
        raise tried.unknown from error
    done = tried.done(at.stores, seen.branch)
    if done is None and seen.raw in tried.demanded:
        raise tried.unknown from error
    return done


def _moved(
    at: BranchAt,
    judge: Judge,
    verb: str,
    compute: Compute,
    in_the_way: InTheWay,
    mark: Mark,
    locks: Collection[str],
    tried: _Tried,
) -> Commit:
    """Move the head, as `set_head` says."""
    stores = at.stores
    attempts = Attempts(at.cell, verb)
    while True:
        attempts.next()
        seen = _sealed(at, judge)
        branch = seen.branch
        if not tried.heads:
            tried.since = branch.move_count
        applied = branch.sealed_tokens
        head_commit = at.commits.get(branch.head)
        try:
            with still_named(at, branch):
                head = stores.trees.tree(head_commit.tree_ref)
                base = stores.trees.tree(branch.compacted) if branch.compacted else head
                staged = in_effect(stores.trees, head, base, scan_staged(stores, applied))
        except LayersMoved:
            continue
        if blockers := in_the_way(staged):
            if not _is_complete(at, applied):
                continue
            raise UncommittedChanges(
                f"Branch {at.name!r} has uncommitted changes in the way: {some_paths(blockers)}.",
                paths=blockers,
                next="Commit or discard them first.",
            )
        new = compute(head_commit)

        def judge_all(now: BranchRecord) -> None:
            judge(now)
            refuse_unheld(now, at.name, locks)
            refuse_locked_changes(at.cell, now, head, new.tree, locks)  # noqa: B023 - called within this turn

        compacted = apply(stores.trees, new.tree, [staged.as_changes()]).tree.ref if len(staged) else None
        pairs = [commit_pair(new.commit)]
        if applied:
            pairs.append(item_pair(stores, dropped(at.name, branch, applied)))
        stores.kv.set_many(stores.records, pairs)
        why = Why(verb, new.commit.committer, stores.clock.now_us())
        move = _Move(seen, applied, new.commit, compacted, why)
        if _swap(at, move, judge_all, mark, attempts, tried):
            at.commits.remember(new.commit)
            return new.commit


def refuse_locked_changes(
    cell: BranchCell, now: BranchRecord, before: Tree, after: Tree, locks: Collection[str] = NOBODY
) -> None:
    """Raise if a head would move from one tree to another that differ in what somebody else has locked."""
    for lock in in_the_way(now, locks):
        for one in lock.ranges:
            if before.id != after.id and any(
                len(p) for p in diff(cell.stores.trees, before, after, one.start, one.end)
            ):
                raise range_locked(lock, cell.name, str(one))
        if lock is now.whole:
            raise range_locked(lock, cell.name, "Everything")


def _sealed(at: BranchAt, judge: Judge) -> Seen:
    """A record on which everything acknowledged so far is sealed.

    Nothing needs to be sealed if the staging token is empty in a scan that began after the call: what comes into it
    later is ordered after the move.
    """
    seen = at.read()
    judge(seen.branch)
    stores = at.stores
    if not stores.kv.scan_page(stores.staging(seen.branch.staging_token), limit=1).keys:
        return seen

    def transition(branch: BranchRecord) -> BranchRecord:
        judge(branch)
        return seal(branch, StagingToken(new_id()))

    return update(at, transition)


def _is_complete(at: BranchAt, scanned: tuple[StagingToken, ...]) -> bool:
    """Whether tokens that were scanned are all on record still, so that nobody was deleting from them meanwhile."""
    return set(scanned) <= set(at.read().branch.tokens)


@dataclass(frozen=True, slots=True)
class _Move:
    """A move of the head, and what it was computed from.

    Attributes:
        seen: the record with the layers that were read.
        applied: the sealed tokens that the new head, or the compacted tree beneath it, has in it.
        compacted: the tree of what stays uncommitted, if there is any.
    """

    seen: Seen
    applied: tuple[StagingToken, ...]
    commit: Commit
    compacted: str | None
    why: Why

    def onto(self, now: BranchRecord) -> BranchRecord:
        """The record after the move; `LayersMoved` if it was computed from other layers."""
        return move_head(now, self.seen.branch, self.applied, self.commit.id, self.compacted, self.why)


def _swap(at: BranchAt, move: _Move, judge: Judge, mark: Mark, attempts: Attempts, tried: _Tried) -> bool:
    """Swap the head in, whatever newer tokens came meanwhile; False if the layers moved.

    Invariant: the new head and the folded tree were computed from exactly the layers that the swap demands.
    """
    now = move.seen
    while True:
        try:
            judge(now.branch)
            at.cell.swap(now, mark(move.onto(now.branch), move.commit.id))
            return True
        except LayersMoved:
            return False
        except Moved:
            attempts.again()
            now = at.read()
        except OutcomeUnknown as unknown:
            tried.heads[move.commit.id] = move.commit
            tried.demanded.add(now.raw)
            tried.unknown = unknown
            now = read_back(at, unknown)
            attempts.again()  # it did not happen yet; what is swapped next excludes it, or finds that it came first


def reset_head(at: BranchAt, head: CommitId, *, force: bool) -> None:
    """Move the head to any commit; staged changes go.

    Raises:
        UncommittedChanges: something is staged in effect, and `force` is not set.
    """
    stores = at.stores
    attempts = Attempts(at.cell, "hard reset")
    while True:
        attempts.next()
        seen = _sealed(at, lambda branch: refuse_blocked(branch, "reset", at.name, forced=at.is_forced))
        branch = seen.branch
        if not force:
            try:
                with still_named(at, branch):
                    tree = at.commits.tree(branch.head)
                    base = stores.trees.tree(branch.compacted) if branch.compacted else tree
                    staged = in_effect(stores.trees, tree, base, scan_staged(stores, branch.sealed_tokens))
            except LayersMoved:
                continue
            if len(staged):
                if not _is_complete(at, branch.sealed_tokens):
                    continue
                blockers = everything(staged)
                raise UncommittedChanges(
                    f"Branch {at.name!r} has uncommitted changes that would be lost: {some_paths(blockers)}.",
                    paths=blockers,
                    next=Advice(
                        "Commit or discard them first, or pass force=True to lose them.",
                        command="Commit or discard them first, or add --force to lose them.",
                    ),
                )
        why = Why("reset", stores.committer, stores.clock.now_us())
        if force:
            refuse_locked_ranges(branch, at.name, [ALL])
        else:
            refuse_locked_changes(at.cell, branch, at.commits.tree(branch.head), at.commits.tree(head))
        if force:
            put_item(stores, dropped(at.name, branch, branch.tokens))
            after = hard_reset(branch, head, StagingToken(new_id()), why)
        else:
            if branch.sealed_tokens:
                put_item(stores, dropped(at.name, branch, branch.sealed_tokens))
            after = move_head(branch, branch, branch.sealed_tokens, head, None, why)
        try:
            at.cell.swap(seen, after)
            return
        except Moved:
            continue
