"""Throwing staged changes away: all of them, or those of a range of paths."""

from __future__ import annotations

from itertools import chain

from strandline.branch.attempts import Attempts
from strandline.branch.cell import BranchCell, Moved, still_named, update
from strandline.branch.commits import CommitLog
from strandline.branch.rules.lock_rules import refuse_locked_ranges
from strandline.branch.rules.ranges import ALL, Range
from strandline.branch.rules.record import BranchRecord, LayersMoved, drop_staged, fold, refuse_read_only, seal
from strandline.branch.staged import outside, scan_staged
from strandline.branch.token_queue import dropped, put_item
from strandline.ids import BranchId, StagingToken, new_id
from strandline.tree.apply import apply
from strandline.tree.diff import diff


def reset_all(cell: BranchCell, branch_id: BranchId) -> None:
    """Discard everything that is staged, at one instant."""
    attempts = Attempts(cell, "reset")
    while True:
        attempts.next()
        seen = cell.read(branch_id)
        refuse_read_only(seen.branch, cell.name)
        refuse_locked_ranges(seen.branch, cell.name, [ALL])
        put_item(cell.stores, dropped(cell.name, seen.branch, seen.branch.tokens))
        try:
            cell.swap(seen, drop_staged(seen.branch, StagingToken(new_id())))
            return
        except Moved:
            continue


def reset_range(cell: BranchCell, commits: CommitLog, branch_id: BranchId, start: str, end: str | None) -> None:
    """Discard what is staged in `start <= path < end`; the rest stays staged, folded into a compacted tree."""
    stores = cell.stores
    ranges = [Range(start, end)]

    def seal_if_allowed(branch: BranchRecord) -> BranchRecord:
        refuse_read_only(branch, cell.name)
        refuse_locked_ranges(branch, cell.name, ranges)
        return seal(branch, StagingToken(new_id()))

    seen = update(cell, branch_id, seal_if_allowed)
    attempts = Attempts(cell, "reset")
    while True:
        branch = seen.branch
        try:
            with still_named(cell, branch_id, branch):
                head = commits.tree(branch.head)
                base = stores.trees.tree(branch.compacted) if branch.compacted else head
                kept = apply(stores.trees, base, outside(scan_staged(stores, branch.sealed_tokens), start, end)).tree
                restored = (part.as_changes() for part in diff(stores.trees, kept, head, start, end))
                tree = apply(stores.trees, kept, chain(restored)).tree
        except LayersMoved:
            attempts.again()
            seen = cell.read(branch_id)
            continue
        compacted = None if tree.id == head.id else tree.ref
        if not branch.sealed_tokens and compacted == branch.compacted:
            return  # somebody took or discarded everything meanwhile: no reason to make others compute again
        now = cell.read(branch_id)
        refuse_read_only(now.branch, cell.name)
        refuse_locked_ranges(now.branch, cell.name, ranges)
        try:
            after = fold(now.branch, branch, branch.sealed_tokens, compacted)
            put_item(stores, dropped(cell.name, branch, branch.sealed_tokens))
            cell.swap(now, after)
            return
        except (LayersMoved, Moved):
            attempts.again()
            seen = cell.read(branch_id)
