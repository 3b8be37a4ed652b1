"""The commit protocol. Writers never wait for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from strandline import metrics
from strandline.branch.at import BranchAt
from strandline.branch.attempts import Attempts, still_named, update
from strandline.branch.cell import BranchCell, Moved, Seen
from strandline.branch.commits import Commit, CommitLog, Draft, commit_pair
from strandline.branch.folding import Folder, fold_here
from strandline.branch.reflog import Forgotten, came_to
from strandline.branch.rules.lock_rules import refuse_whole
from strandline.branch.rules.record import (
    BranchRecord,
    LayersMoved,
    Verdict,
    Why,
    committed,
    decide_commit,
    fold,
    refuse_blocked,
    seal,
)
from strandline.branch.token_queue import dropped, item_pair
from strandline.errors import Advice, Contention, NothingToCommit, OutcomeUnknown, StoreUnavailable
from strandline.ids import CommitId, StagingToken, new_id
from strandline.tree.diff import are_alike
from strandline.tree.levels import is_large
from strandline.tree.store import Tree, TreeRef


@dataclass(slots=True)
class _Mine:
    """The commits whose swap may have happened, and how often the head had moved before the first of them."""

    ids: set[CommitId] = field(default_factory=set)
    since: int = 0


def commit(at: BranchAt, draft: Draft, fold_staged: Folder = fold_here) -> Commit:
    """Commit everything that was acknowledged before the call began.

    Args:
        fold_staged: lays what is staged over a tree.

    Raises:
        NothingToCommit: nothing is staged in effect, or a later commit took everything.
        BranchProtected, RepositoryReadOnly, BranchGone, StoreUnavailable, Contention.
    """

    made = _Mine()
    try:
        return _commit(at, draft, made, fold_staged)
    except Contention as error:
        if made.ids:
            raise _unknown(at.name, error.what) from error
        raise
    except StoreUnavailable as error:
        if isinstance(error, OutcomeUnknown):
            raise
        if made.ids:
            raise _unknown(at.name, error.what) from error
        raise StoreUnavailable(
            error.what,
            happened="no",
            safe=f"Nothing was committed to {at.name!r}, and everything that was staged still is.",
            next=error.next,
        ) from error


def _nothing_is_staged(cell: BranchCell, branch: BranchRecord) -> bool:
    """Whether no layer above head holds anything, in scans that begin after the record was read.

    Then head was the listing of the branch, if the record names the same tokens after the scans: a token is emptied
    only when no record names it, and never comes back. Else a compaction may have taken what was in them. Nothing is
    swapped for that, so that committers that find nothing to commit, again and again, hold no other up whose change is
    computed from the layers.
    """
    stores = cell.stores
    if branch.compacted is not None or any(
        stores.kv.scan_page(stores.staging(token), limit=1).keys for token in branch.tokens
    ):
        return False
    return set(branch.tokens) <= set(cell.read(branch.branch_id).branch.tokens)


def _commit(at: BranchAt, draft: Draft, made: _Mine, fold_staged: Folder) -> Commit:
    def seal_if_allowed(branch: BranchRecord) -> BranchRecord:
        refuse_blocked(branch, "commit", at.name, forced=at.is_forced)
        refuse_whole(branch, at.name)
        return seal(branch, StagingToken(new_id()))

    seen = at.read()
    sealed = seal_if_allowed(seen.branch)
    if not draft.allow_empty and _nothing_is_staged(at.cell, seen.branch):
        raise _nothing(at.name, "Nothing staged differs from the last commit.")
    try:
        seen = at.cell.swap(seen, sealed)
    except Moved:
        seen = update(at, seal_if_allowed)
    mine = seen.branch.sealed_tokens
    made.since = seen.branch.move_count
    metrics.sealed_tokens().observe(len(mine))
    attempts = Attempts(at.cell, "commit")
    while True:
        attempts.next()
        record = None
        try:
            tree, is_complete, now = _build(at, seen.branch, mine, fold_staged)
        except LayersMoved:
            tree, is_complete, now = None, False, at.read()
        if tree is not None and is_complete:
            record, now = _swap_until_decided(at, draft, tree, seen.branch, mine, now, made, attempts)
        if record is not None:
            return record
        verdict, left = decide_commit(seen.branch, mine, is_complete, now.branch)
        if made.ids or verdict is Verdict.LOOK_FOR_MINE:
            found = _find_mine(at.cell, at.commits, now.branch, made)
            if found is not None:
                return found
            if verdict is Verdict.LOOK_FOR_MINE and not draft.allow_empty:
                raise _nothing(at.name, "Somebody else committed or discarded everything that was staged.")
        # compute again from the record as it is, with what is left of mine and what lies beneath it
        newest = now.branch.sealed_tokens.index(left[0]) if left else len(now.branch.sealed_tokens)
        seen, mine = now, now.branch.sealed_tokens[newest:]


def _build(
    at: BranchAt, branch: BranchRecord, mine: Sequence[StagingToken], fold_staged: Folder
) -> tuple[Tree, bool, Seen]:
    """The tree of a commit of `mine`, and whether all of `mine` were there while they were read.

    Raises:
        LayersMoved: the tree beneath them was replaced and collected.
    """
    stores = at.stores
    with still_named(at, branch):
        base = stores.trees.tree(branch.compacted) if branch.compacted else at.commits.tree(branch.head)
        tree = fold_staged(stores, base, mine).tree
    now = at.read()
    return tree, set(mine) <= set(now.branch.sealed_tokens), now


def _swap_until_decided(
    at: BranchAt,
    draft: Draft,
    tree: Tree,
    seen: BranchRecord,
    mine: tuple[StagingToken, ...],
    now: Seen,
    made: _Mine,
    attempts: Attempts,
) -> tuple[Commit | None, Seen]:
    """Swap as long as the verdict is to swap; return the commit, or None and the record that needs another verdict.

    Invariant: `tree` is the listing of head and all layers of `seen` at the instant of the seal. It stays a listing of
    the branch while only newer tokens come, and while earlier commits take a tail of `mine` on the same base.
    """
    stores = at.stores
    while True:
        verdict, left = decide_commit(seen, mine, True, now.branch)
        if verdict not in (Verdict.SWAP, Verdict.REPARENT):
            return None, now
        parent = at.commits.get(now.branch.head)
        if not draft.allow_empty and _is_nothing_new(at, now.branch, parent, tree):
            if _drop_without_effect(at.cell, now, left, None if tree.id == parent.tree_id else tree.ref):
                raise _nothing(at.name, "Nothing staged differs from the last commit.")
            attempts.again()
            now = at.read()
            continue
        refuse_blocked(now.branch, "commit", at.name, forced=at.is_forced)
        refuse_whole(now.branch, at.name)
        record = draft.commit(tree, (parent,))
        # both before the swap: a crash in between leaves garbage that is known, never a head without its record
        pairs = [commit_pair(record)]
        if left:
            pairs.append(item_pair(stores, dropped(at.name, now.branch, left)))
        stores.kv.set_many(stores.records, pairs)
        try:
            why = Why("commit", record.committer, stores.clock.now_us())
            at.cell.swap(now, committed(now.branch, record.id, len(left), why))
        except Moved:
            attempts.again()
            now = at.read()
            continue
        except OutcomeUnknown:
            made.ids.add(record.id)
            now = at.read()
            found = _find_mine(at.cell, at.commits, now.branch, made)
            if found is not None:
                return found, now
            attempts.again()
            continue
        at.commits.remember(record)
        return record, now


def _is_nothing_new(at: BranchAt, branch: BranchRecord, parent: Commit, tree: Tree) -> bool:
    if tree.id == parent.tree_id:
        return True
    if is_large(tree.parts) and at.stores.trees.are_same(tree, at.commits.tree(parent.id)):
        return True
    return bool(branch.has_etags) and are_alike(at.stores.trees, at.commits.tree(parent.id), tree)


def _drop_without_effect(
    cell: BranchCell, now: Seen, left: tuple[StagingToken, ...], compacted: TreeRef | None
) -> bool:
    """Take tokens off the record whose entries change nothing, so that they do not pile up; True if that went well.

    Args:
        compacted: the tree with their ETags, if these are new: they are shown, and are no reason for a commit.
    """
    if not left and now.branch.compacted == compacted:
        return True
    stores = cell.stores
    if left:
        stores.kv.set_many(stores.records, [item_pair(stores, dropped(cell.name, now.branch, left))])
    try:
        cell.swap(now, fold(now.branch, now.branch, left, compacted))
    except (Moved, LayersMoved):
        return False
    return True


def _find_mine(cell: BranchCell, commits: CommitLog, branch: BranchRecord, made: _Mine) -> Commit | None:
    """One of my own commits, if the head came to it since I began: then my reply was lost, and it is done.

    Raises:
        OutcomeUnknown: the head moved so often that it cannot be told.
    """
    if not made.ids:
        return None
    try:
        found = came_to(cell.stores, branch, made.ids, made.since)
    except Forgotten:
        raise _unknown(cell.name, "The reply to a commit was lost, and the reflog does not reach back to it.") from None
    return None if found is None else commits.get(found)


def _unknown(name: str, what: str) -> OutcomeUnknown:
    return OutcomeUnknown(
        what,
        safe=f"It is unknown whether the commit to {name!r} was made; nothing that was staged is lost.",
        next="Look at `strandline log REPOSITORY/REF`, and commit again if it is not there.",
    )


def _nothing(name: str, why: str) -> NothingToCommit:
    return NothingToCommit(
        f"There is nothing to commit on branch {name!r}. {why}",
        safe="The branch is as it was.",
        next=Advice(
            "Pass allow_empty=True to commit all the same.", command="Add --allow-empty to commit all the same."
        ),
    )
