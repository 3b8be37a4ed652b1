"""Throwing staged changes away: all of them, or those of a range of paths."""

from __future__ import annotations

from itertools import chain

from strandline.branch.at import BranchAt
from strandline.branch.attempts import Attempts, still_named, update
from strandline.branch.cell import Moved
from strandline.branch.rules.lock_rules import refuse_locked_ranges
from strandline.branch.rules.ranges import ALL, Range
from strandline.branch.rules.record import BranchRecord, LayersMoved, drop_staged, fold, refuse_read_only, seal
from strandline.branch.staged import outside, scan_staged
from strandline.branch.token_queue import dropped, put_item
from strandline.ids import StagingToken, new_id
from strandline.tree.apply import apply
from strandline.tree.diff import diff


def reset_all(at: BranchAt) -> None:
    """Discard everything that is staged, at one instant."""
    attempts = Attempts(at.cell, "reset")
    while True:
        attempts.next()
        seen = at.read()
        refuse_read_only(seen.branch, at.name, forced=at.is_forced)
        refuse_locked_ranges(seen.branch, at.name, [ALL])
        put_item(at.stores, dropped(at.name, seen.branch, seen.branch.tokens))
        try:
            at.cell.swap(seen, drop_staged(seen.branch, StagingToken(new_id())))
            return
        except Moved:
            continue


def reset_range(at: BranchAt, start: str, end: str | None) -> None:
    """Discard what is staged in `start <= path < end`; the rest stays staged, folded into a compacted tree."""
    stores = at.stores
    ranges = [Range(start, end)]

    def seal_if_allowed(branch: BranchRecord) -> BranchRecord:
        refuse_read_only(branch, at.name, forced=at.is_forced)
        refuse_locked_ranges(branch, at.name, ranges)
        return seal(branch, StagingToken(new_id()))

    seen = update(at, seal_if_allowed)
    attempts = Attempts(at.cell, "reset")
    while True:
        branch = seen.branch
        try:
            with still_named(at, branch):
                head = at.commits.tree(branch.head)
                base = stores.trees.tree(branch.compacted) if branch.compacted else head
                kept = apply(stores.trees, base, outside(scan_staged(stores, branch.sealed_tokens), start, end)).tree
                restored = (part.as_changes() for part in diff(stores.trees, kept, head, start, end))
                tree = apply(stores.trees, kept, chain(restored)).tree
        except LayersMoved:
            attempts.again()
            seen = at.read()
            continue
        compacted = None if tree.id == head.id else tree.ref
        if not branch.sealed_tokens and compacted == branch.compacted:
            return  # somebody took or discarded everything meanwhile: no reason to make others compute again
        now = at.read()
        refuse_read_only(now.branch, at.name, forced=at.is_forced)
        refuse_locked_ranges(now.branch, at.name, ranges)
        try:
            after = fold(now.branch, branch, branch.sealed_tokens, compacted)
            put_item(stores, dropped(at.name, branch, branch.sealed_tokens))
            at.cell.swap(now, after)
            return
        except (LayersMoved, Moved):
            attempts.again()
            seen = at.read()
