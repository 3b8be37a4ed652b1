"""Merge, revert and cherry-pick: three trees, one new head."""

from __future__ import annotations

from collections.abc import Mapping

from strandline.branch.at import BranchAt
from strandline.branch.commits import Commit, Draft
from strandline.branch.heads import Compute, NewHead, set_head
from strandline.branch.rules.record import Action, refuse_blocked
from strandline.branch.view import uncommitted
from strandline.errors import Advice, MergeConflict, NothingToMerge, UsageError, some_paths
from strandline.ids import CommitId
from strandline.repository.core.promises import pinned
from strandline.repository.core.repository_core import RepositoryCore
from strandline.repository.refs.history import merge_base
from strandline.repository.refs.ref import Ref
from strandline.tree.merge import Strategies, Strategy, merge
from strandline.tree.store import EMPTY, Tree

MergeStrategy = Strategy | Mapping[str, Strategy] | None
_STRATEGIES = ("source-wins", "dest-wins")


def check_strategies(strategy: MergeStrategy) -> Strategies:
    """The strategies by prefix; refuses words that mean nothing."""
    if strategy is None:
        return {}
    strategies: Strategies = {"": strategy} if isinstance(strategy, str) else dict(strategy)
    for prefix, word in strategies.items():
        if word not in _STRATEGIES:
            raise UsageError(
                f"{word!r} (for prefix {prefix!r}) is not a merge strategy.", next=f"Use {' or '.join(_STRATEGIES)}."
            )
    return strategies


def merge_into(
    core: RepositoryCore, at: BranchAt, source: Ref, draft: Draft, strategy: MergeStrategy, squash: bool
) -> Commit:
    strategies = check_strategies(strategy)
    if source._target.kind == "branch" and source._target.name == at.name:
        raise UsageError(f"Branch {at.name!r} cannot be merged into itself.", next="Name another source.")
    if source._target.kind == "staged":
        raise UsageError(
            f"{source.expression!r} is only what is staged, and a merge brings commits.",
            next="Commit it, then merge the branch.",
        )
    source_commit = core.commits.get(source.commit_id)

    def compute(head: Commit) -> NewHead:
        base = merge_base(core.commits, head.id, source_commit.id)
        if base is not None and base.id == source_commit.id:
            raise _nothing_to_merge(core, at, source)
        base_tree = EMPTY if base is None else core.commits.tree(base.id)
        tree = _merge(
            core,
            base_tree,
            core.commits.tree(source_commit.id),
            core.commits.tree(head.id),
            strategies,
            "Merging",
            source,
        )
        if squash:
            head_tree = core.commits.tree(head.id)
            return _changed_head(tree, head_tree, head, draft, "The branch has all that the source changed.")
        return _new_head(tree, (head, source_commit), draft)

    with pinned(core.stores, [source_commit.id], f"merge into {at.name}"):
        return _finish(core, at, "merge", "merge", compute)


def _nothing_to_merge(core: RepositoryCore, at: BranchAt, source: Ref) -> NothingToMerge:
    why, advice = f"{at.name!r} already has all its commits.", ""
    target = source._target
    if target.kind == "branch" and len(uncommitted(core.at(target.name, target.branch_id))):
        why = "It has only uncommitted changes, and a merge brings commits."
        advice = f"Commit on {target.name!r} first."
    return NothingToMerge(f"There is nothing to merge from {source.expression!r}. {why}", next=advice)


def revert(core: RepositoryCore, at: BranchAt, target: Ref, draft: Draft, parent: int | None) -> Commit:
    undone = core.commits.get(target.commit_id)
    before = _parent(undone, parent, "revert")

    def compute(head: Commit) -> NewHead:
        head_tree, tree_before = core.commits.tree(head.id), core.commits.tree(before)
        tree = _merge(core, core.commits.tree(undone.id), tree_before, head_tree, {}, "Reverting", target)
        return _changed_head(tree, head_tree, head, draft, "The branch no longer has what this commit did.")

    with pinned(core.stores, [undone.id, before], f"revert on {at.name}"):
        return _finish(core, at, "commit", "revert", compute)


def cherry_pick(core: RepositoryCore, at: BranchAt, target: Ref, draft: Draft, parent: int | None) -> Commit:
    picked = core.commits.get(target.commit_id)
    before = _parent(picked, parent, "cherry-pick")

    def compute(head: Commit) -> NewHead:
        head_tree, tree_before = core.commits.tree(head.id), core.commits.tree(before)
        tree = _merge(core, tree_before, core.commits.tree(picked.id), head_tree, {}, "Picking", target)
        return _changed_head(tree, head_tree, head, draft, "The branch has all that this commit did.")

    with pinned(core.stores, [picked.id, before], f"cherry-pick onto {at.name}"):
        return _finish(core, at, "commit", "cherry-pick", compute)


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


def _merge(
    core: RepositoryCore, base: Tree, source: Tree, dest: Tree, strategies: Strategies, doing: str, ref: Ref
) -> Tree:
    merged = merge(core.stores.trees, base, source, dest, strategies)
    if merged.conflicts:
        raise MergeConflict(
            f"{doing} {ref.expression!r} meets {len(merged.conflicts)} conflicting "
            f"path{'s' * (len(merged.conflicts) > 1)}: {some_paths(merged.conflicts)}.",
            paths=merged.conflicts,
            next='Change one side, or pass a strategy such as {"prefix/": "source-wins"}.',
        )
    return merged.tree


def _new_head(tree: Tree, parents: tuple[Commit, ...], draft: Draft) -> NewHead:
    return NewHead(draft.commit(tree, parents), tree)


def _changed_head(tree: Tree, head_tree: Tree, head: Commit, draft: Draft, why: str) -> NewHead:
    if tree.id == head_tree.id:
        raise NothingToMerge(f"Nothing would change. {why}")
    return _new_head(tree, (head,), draft)


def _finish(core: RepositoryCore, at: BranchAt, action: Action, verb: str, compute: Compute) -> Commit:
    record = set_head(at, lambda now: refuse_blocked(now, action, at.name), verb, compute)
    core.committed()
    return record
