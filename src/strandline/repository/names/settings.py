"""The record of a repository, and how a change of its rules comes to all its branches."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from strandline.branch.attempts import MAX_ATTEMPTS
from strandline.branch.rules.record import BranchRecord
from strandline.core.record import PARTITION, RepositoryRecord
from strandline.core.repository_core import RepositoryCore
from strandline.envelope import encode
from strandline.errors import BranchGone, Contention, RefNotFound, StoreUnavailable
from strandline.kv.store import PredicateFailed
from strandline.repository.names.branches import bring_rules, list_names, repository_record, with_rules


def swap_record(core: RepositoryCore, change: Callable[[RepositoryRecord], RepositoryRecord]) -> RepositoryRecord:
    """Change the record of a repository against whatever others do to it."""
    for _ in range(MAX_ATTEMPTS):
        raw, record = repository_record(core)
        changed = change(record)
        if changed == record:
            return record
        try:
            core.stores.kv.set_if(PARTITION, core.name.encode(), encode(changed), raw)
            return changed
        except PredicateFailed:
            continue
        except StoreUnavailable as error:
            if error.happened == "no" or repository_record(core)[1] != changed:
                raise
            return changed  # the reply was lost, and the change was not
    raise Contention(
        f"Others changed the settings of repository {core.name!r} {MAX_ATTEMPTS} times in a row.",
        next="Repeat the call.",
    )


def change_settings(
    core: RepositoryCore, change: Callable[[RepositoryRecord], RepositoryRecord], *, is_about_rules: bool = False
) -> None:
    """Swap the repository's record, then bring the new rules onto every branch record.

    A change of rules that changes nothing may be the repetition of one whose process died before it had come to all
    branches: then it concerns them all.
    """
    before: list[RepositoryRecord] = []

    def noted(record: RepositoryRecord) -> RepositoryRecord:
        before[:] = [record]
        return change(record)

    after = swap_record(core, noted)
    for name, branch in list_names(core, "branch"):
        assert isinstance(branch, BranchRecord)
        old, new = (with_rules(rules, name, branch) for rules in (before[-1], after))
        is_concerned = old != new or (is_about_rules and before[-1] == after)
        if is_concerned or new != branch:
            with suppress(BranchGone, RefNotFound):  # deleted meanwhile
                bring_rules(core, name, branch, is_concerned=is_concerned)
