"""A one-shot publication: what its caller read is compared and replaced in one swap, as a commit of its own.

It begins nothing, so no writer's name goes on record, and it takes nothing with it that others have staged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from strandline.branch import repeats
from strandline.branch.at import BranchAt
from strandline.branch.commits import Commit, Draft
from strandline.branch.heads import InTheWay, NewHead, set_head
from strandline.branch.rules.record import BranchRecord, Done, with_done
from strandline.branch.rules.writers import refuse_publisher
from strandline.errors import Conflict, NothingToCommit, TransactionClosed, some_paths
from strandline.ids import CommitId, prefix_end
from strandline.tree.apply import apply
from strandline.tree.diff import Difference, diff
from strandline.tree.rows import Changes, Entry, rows_from_entries


@dataclass(frozen=True, slots=True)
class Unchanged:
    """What else must be as it was: all below some prefixes, since a commit."""

    since: CommitId
    prefixes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OneShot:
    """What is to become visible, and what has to be there for that.

    Attributes:
        publisher: the name by which a protection may allow it.
        changes: by path, what is put there; None deletes.
        expected: by path, what the head holds there; None for nothing. A path that is not here may hold anything.
        draft: of its commit.
        token: makes a repetition recognisable; "" if nobody repeats it.
        digest: of what was asked for under the token.
        unchanged: where nothing may have changed.
    """

    publisher: str
    changes: Mapping[str, Entry | None]
    expected: Mapping[str, Entry | None]
    draft: Draft
    token: str = ""
    digest: str = ""
    unchanged: Unchanged | None = None


class _IsDone(Exception):
    """It was published before."""

    def __init__(self, done: Done) -> None:
        self.done = done


def publish(at: BranchAt, what: OneShot) -> Commit:
    """Put changes on the head in a commit of their own, if it holds what is expected.

    Invariant: the paths are compared on the tree of the very head that the swap demands, and the token is looked for
    on the very record. What leaves the record is written down before (`repeats.keep`), and looked for after that record
    was read. So of all calls with one token one is published, and the others find it, whichever replies are lost.

    Raises:
        Conflict: a path holds something else (`paths`).
        UncommittedChanges: somebody has staged something at a path that changes.
        NothingToCommit: the head holds all of it already.
        TransactionClosed: the token was used for other changes.
        RangeLocked, BranchProtected, RepositoryReadOnly, BranchGone, Contention, StoreUnavailable. Nothing was
            published then, except if the error says that it is unknown.
    """

    def judge(branch: BranchRecord) -> None:
        # first: what was published stays so, whatever became forbidden since
        if what.token and (done := repeats.find(at.stores, branch, what.token)) is not None:
            raise _IsDone(done)
        refuse_publisher(branch, what.publisher, at.name)

    def mark(branch: BranchRecord, head: CommitId) -> BranchRecord:
        if not what.token:
            return branch
        return with_done(branch, Done(what.token, what.digest, head, at.stores.clock.now_us()))

    try:
        return set_head(at, judge, "publish", lambda head: _computed(at, what, head), _staged_there(what), mark)
    except _IsDone as repeat:
        done = repeat.done
    if done.digest != what.digest:
        raise TransactionClosed(
            f"The token {what.token[:80]!r} was used for other changes, in commit {done.commit[:12]}.",
            next="Give each publication a token of its own.",
        )
    return at.commits.get(done.commit)


def _staged_there(what: OneShot) -> InTheWay:
    """Of what others have staged, what lies where the publication changes something; the rest stays staged."""

    def in_the_way(staged: Difference) -> list[str]:
        return [path for path in staged.paths.to_pylist() if path in what.changes]

    return in_the_way


def _computed(at: BranchAt, what: OneShot, head: Commit) -> NewHead:
    trees = at.stores.trees
    tree = trees.tree(head.tree_ref)
    moved = sorted(path for path, entry in what.expected.items() if trees.find(tree, path) != entry)
    if what.unchanged is not None and what.unchanged.since != head.id:
        before = at.commits.tree(what.unchanged.since)
        for prefix in what.unchanged.prefixes:
            for part in diff(trees, before, tree, prefix, prefix_end(prefix)):
                moved += part.paths.to_pylist()
    if moved:
        raise Conflict(
            f"Branch {at.name!r} holds something else than was read at {some_paths(moved)}.",
            paths=moved,
            next="Read it again, and decide anew.",
        )
    changed = apply(trees, tree, [_columns(what.changes)]).tree
    if changed.id == tree.id:
        raise NothingToCommit(f"Branch {at.name!r} holds all of it already.", next="Nothing needs to be done.")
    return NewHead(what.draft.commit(changed, (head,)), changed)


def _columns(changes: Mapping[str, Entry | None]) -> Changes:
    entries = sorted(((path.encode(), entry) for path, entry in changes.items()), key=lambda pair: pair[0])
    rows = rows_from_entries([key for key, _ in entries], [entry for _, entry in entries])
    return Changes(rows, np.array([entry is None for _, entry in entries], np.bool_))
