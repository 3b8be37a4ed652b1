"""Merge, revert and cherry-pick: three trees, one new head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import islice

import msgspec

from strandline.blob import BlobNotFound
from strandline.branch.at import BranchAt
from strandline.branch.commits import Commit, Draft
from strandline.branch.heads import Compute, NewHead, set_head
from strandline.branch.rules.record import Action, refuse_blocked
from strandline.branch.view import uncommitted
from strandline.core.promises import pinned
from strandline.core.repository_core import RepositoryCore
from strandline.engines import load
from strandline.errors import PATHS_SHOWN, Advice, MergeConflict, NothingToMerge, ObjectMissing, UsageError
from strandline.ids import CommitId
from strandline.repository.commits.settling import Decisions, Settling, Side, Sides, Three, TreeWorkers, WorkersHere
from strandline.repository.refs.ref import Ref
from strandline.results.differences import Diff
from strandline.results.history import merge_base, merge_bases
from strandline.tables.merging import described
from strandline.tree.diff import diff
from strandline.tree.rows import Entry
from strandline.tree.store import EMPTY, Tree

MakeObject = Callable[[str, bytes], Entry]
"""Stores bytes as a new object for a path."""


class MergePreview(msgspec.Struct, frozen=True):
    """What a merge would do.

    Attributes:
        changes: of the branch; where there are conflicts, those beside them, as if the branch's side of each was taken.
        conflicts: by path, what both sides did to an object, a table or a partition.
    """

    changes: Diff
    conflicts: dict[str, str]

    @property
    def is_clean(self) -> bool:
        """Whether there are no conflicts."""
        return not self.conflicts


def merge_into(
    core: RepositoryCore,
    at: BranchAt,
    source: Ref,
    draft: Draft,
    decisions: Decisions,
    make: MakeObject,
    *,
    squash: bool,
    workers: TreeWorkers | None = None,
) -> Commit:
    """Merge the commits of another ref.

    Args:
        workers: compare and merge trees; None does so here.
    """
    _refuse_source(at, source)
    source_commit = core.commits.get(source.commit_id)
    settling = _settling(core, at, make, workers)

    def compute(head: Commit) -> NewHead:
        try:
            three = _three(core, at, source, head, source_commit)
        except NothingToMerge:
            if not draft.allow_empty:
                raise
            return _new_head(core.commits.tree(head.id), (head,), draft)
        tree = _merged(settling, three, decisions, "Merging", source)
        if squash:
            return _changed_head(tree, three.dest, head, draft, "The branch has all that the source changed.")
        return _new_head(tree, (head, source_commit), draft)

    with pinned(core.stores, [source_commit.id], f"merge into {at.name}"):
        return _finish(core, at, "merge", "merge", compute)


def preview_merge(
    core: RepositoryCore, at: BranchAt, source: Ref, decisions: Decisions, make: MakeObject
) -> MergePreview:
    """What `merge_into` would do now. Commits nothing; ranges and records that it makes are collected as garbage."""
    _refuse_source(at, source)
    source_commit = core.commits.get(source.commit_id)
    head = at.commits.get(at.read().branch.head)
    with pinned(core.stores, [source_commit.id, head.id], f"preview of a merge into {at.name}"):
        three = _three(core, at, source, head, source_commit)
        settling = _settling(core, at, make)
        found = rest = settling.settle(three, decisions)
        if found.conflicts:
            take: dict[str, Side] = {**dict.fromkeys(found.conflicts, "dest"), **decisions.take}
            rest = settling.settle(three, replace(decisions, take=take))
    return MergePreview(
        Diff(lambda start, end, _: diff(core.stores.trees, three.dest, rest.tree, start, end)), found.conflicts
    )


def _refuse_source(at: BranchAt, source: Ref) -> None:
    if source._target.kind == "branch" and source._target.name == at.name:
        raise UsageError(f"Branch {at.name!r} cannot be merged into itself.", next="Name another source.")
    if source._target.kind == "staged":
        raise UsageError(
            f"{source.expression!r} is only what is staged, and a merge brings commits.",
            next="Commit it, then merge the branch.",
        )


def _three(core: RepositoryCore, at: BranchAt, source: Ref, head: Commit, source_commit: Commit) -> Three:
    base = merge_base(core.commits, head.id, source_commit.id)
    if base is not None and base.id == source_commit.id:
        raise _nothing_to_merge(core, at, source)
    base_tree = EMPTY if base is None else core.commits.tree(base.id)

    def others() -> list[tuple[Tree, Tree]]:
        found = []
        first, *rest = merge_bases(core.commits, head.id, source_commit.id)
        for one in rest:
            before = merge_base(core.commits, first.id, one.id)
            found.append((core.commits.tree(one.id), EMPTY if before is None else core.commits.tree(before.id)))
        return found

    return Three(base_tree, core.commits.tree(source_commit.id), core.commits.tree(head.id), others)


def _nothing_to_merge(core: RepositoryCore, at: BranchAt, source: Ref) -> NothingToMerge:
    why, advice = f"{at.name!r} already has all its commits.", ""
    target = source._target
    if target.kind == "branch" and len(uncommitted(core.at(target.name, target.branch_id))):
        why = "It has only uncommitted changes, and a merge brings commits."
        advice = f"Commit on {target.name!r} first."
    return NothingToMerge(f"There is nothing to merge from {source.expression!r}. {why}", next=advice)


def replay(
    core: RepositoryCore,
    at: BranchAt,
    target: Ref,
    draft: Draft,
    decisions: Decisions,
    make: MakeObject,
    *,
    parent: int | None,
    undoes: bool,
) -> Commit:
    """Commit what a commit did once more, or, for a revert, the opposite of it."""
    verb, doing = ("revert", "Reverting") if undoes else ("cherry-pick", "Picking")
    commit = core.commits.get(target.commit_id)
    before = _parent(commit, parent, verb)
    settling = _settling(core, at, make)
    why = "The branch no longer has what this commit did." if undoes else "The branch has all that this commit did."

    def compute(head: Commit) -> NewHead:
        head_tree, old, new = (core.commits.tree(id) for id in (head.id, before, commit.id))
        three = Three(new, old, head_tree) if undoes else Three(old, new, head_tree)
        return _changed_head(_merged(settling, three, decisions, doing, target), head_tree, head, draft, why)

    with pinned(core.stores, [commit.id, before], f"{verb} on {at.name}"):
        return _finish(core, at, "commit", verb, compute)


def _parent(record: Commit, parent: int | None, verb: str) -> CommitId:
    if not record.parents:
        raise UsageError(f"The first commit has no parent, so there is nothing to {verb}.")
    if parent is None and len(record.parents) > 1:
        raise UsageError(
            f"Commit {record.id[:12]} is a merge with {len(record.parents)} parents.",
            next=Advice(
                "Say which parent's side it is compared with: parent=1 is the branch that was merged into.",
                command="Say which parent's side it is compared with: --parent 1 is the branch that was merged into.",
            ),
        )
    number = 1 if parent is None else parent
    if not 1 <= number <= len(record.parents):
        raise UsageError(f"Commit {record.id[:12]} has {len(record.parents)} parents, not {number}.")
    return record.parents[number - 1]


def _settling(core: RepositoryCore, at: BranchAt, make: MakeObject, workers: TreeWorkers | None = None) -> Settling:
    def read(entry: Entry) -> bytes:
        blobs, key = core.resolver.resolve(entry.physical_address)
        try:
            return blobs.get(key)
        except BlobNotFound:
            raise ObjectMissing(
                f"The bytes of the record of a table are gone: there is nothing at {entry.physical_address!r}.",
                next="`strandline fsck` lists what is missing; restore it from a backup of the object store.",
            ) from None

    def join(path: str, sides: Sides) -> Entry:
        made: Entry = load("iceberg").merged_entry(core, at.branch_id, path, sides)
        return made

    trees = core.stores.trees
    return Settling(trees, read, make, join, WorkersHere(trees) if workers is None else workers)


def _merged(settling: Settling, three: Three, decisions: Decisions, doing: str, ref: Ref) -> Tree:
    found = settling.settle(three, decisions)
    if not found.conflicts:
        return found.tree
    shown = [
        f"{described(path) if path in found.folders else repr(path)}: {why}"
        for path, why in islice(found.conflicts.items(), PATHS_SHOWN)
    ]
    more = len(found.conflicts) - len(shown)
    one = next(iter(found.conflicts))
    raise MergeConflict(
        f"{doing} {ref.expression!r} meets {len(found.conflicts)} conflict{'s' * (len(found.conflicts) > 1)}: "
        f"{'; '.join(shown)}{f'; and {more:,} more' if more > 0 else ''}.",
        reasons=found.conflicts,
        next=Advice(
            f'Take a side, as with take={{{one!r}: "source"}}; or bring the branch into the state that it is to have, '
            f'commit it, and take {{{one!r}: "dest"}}. A strategy takes one side of all conflicts.',
            command=f"Take a side, as with --take {one}=source; or bring the branch into the state that it is to have, "
            f"commit it, and use --take {one}=dest. --strategy takes one side of all conflicts.",
        ),
    )


def _new_head(tree: Tree, parents: tuple[Commit, ...], draft: Draft) -> NewHead:
    return NewHead(draft.commit(tree, parents), tree)


def _changed_head(tree: Tree, head_tree: Tree, head: Commit, draft: Draft, why: str) -> NewHead:
    if tree.id == head_tree.id and not draft.allow_empty:
        raise NothingToMerge(f"Nothing would change. {why}")
    return _new_head(tree, (head,), draft)


def _finish(core: RepositoryCore, at: BranchAt, action: Action, verb: str, compute: Compute) -> Commit:
    record = set_head(at, lambda now: refuse_blocked(now, action, at.name, forced=at.is_forced), verb, compute)
    core.committed()
    return record
