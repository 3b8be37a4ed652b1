"""Making and deleting the names of a repository: branches and tags under one key each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Literal

from msgspec import UNSET
from msgspec.structs import replace

from strandline.branch import repeats, shared_changes
from strandline.branch.attempts import Attempts
from strandline.branch.cell import Moved
from strandline.branch.reflog import forget_moves
from strandline.branch.rules.lock_rules import inherit, refuse_locked_ranges, without_locks
from strandline.branch.rules.ranges import ALL
from strandline.branch.rules.record import (
    HIDDEN_FORMAT,
    BranchRecord,
    Deleted,
    LockRecord,
    RefRecord,
    TagRecord,
    Why,
    refuse_blocked,
    seal,
    with_head,
)
from strandline.branch.token_queue import dropped, put_item
from strandline.branch.transactions import forget_transactions
from strandline.core.promises import pinned
from strandline.core.record import PARTITION, RepositoryRecord, blocked_actions, publishers
from strandline.core.repository_core import RepositoryCore
from strandline.envelope import decode, encode
from strandline.errors import (
    Advice,
    AlreadyExists,
    NotAllowed,
    OutcomeUnknown,
    RefNotFound,
    StoreUnavailable,
    StrandlineError,
)
from strandline.ids import BranchId, CommitId, StagingToken, check_ref_name, keys_behind, new_id
from strandline.kv.store import ABSENT, PredicateFailed, page_keys_of
from strandline.repository.refs.expressions import Target, read_ref
from strandline.repository.refs.ref import Ref

BEING_MADE = "made-"
"""The id of the lock under which a branch is made begins so."""


def repository_record(core: RepositoryCore) -> tuple[bytes, RepositoryRecord]:
    raw = core.stores.kv.get(PARTITION, core.name.encode())
    record = None if raw is None else decode(RepositoryRecord, raw, f"repository {core.name!r}")
    if raw is None or record is None or record.id != core.stores.repository_id or record.state != "active":
        raise RefNotFound(f"Repository {core.name!r} of this handle was deleted.", next="Open it anew.")
    return raw, record


def create_name(core: RepositoryCore, name: str, record: BranchRecord | TagRecord) -> bool:
    """Take a name for a branch or a tag; False if somebody has it.

    Invariant: one key holds either kind, and it is taken by a swap against "absent" or against the tombstone of a
    deleted name, so of all callers that race for it one wins.
    """
    raw, held = read_ref(core.stores, name)
    if held is not None and not isinstance(held, Deleted):
        return False
    value = encode(record)
    try:
        core.stores.kv.set_if(core.stores.refs, name.encode(), value, ABSENT if raw is None else raw)
    except PredicateFailed:
        return False
    except StoreUnavailable as error:
        if error.happened == "no":
            raise
        now, _ = read_ref(core.stores, name)
        if now != value:
            raise
    return True


def create_branch(
    core: RepositoryCore, name: str, source: Ref, *, exist_ok: bool, hidden: bool = False, force: bool = False
) -> Target:
    check_ref_name(name)
    if hidden and core.max_format < HIDDEN_FORMAT:
        raise NotAllowed(
            f"Hidden branches need format {HIDDEN_FORMAT} of records, and this lake's settings allow up to "
            f"{core.max_format}.",
            next="Raise max_format, which older versions of strandline do not read, or make a branch that is shown.",
        )
    _, settings = repository_record(core)
    if settings.read_only and not force:
        refuse_blocked(_probe(settings, name), "stage", name)
    now_us = core.stores.clock.now_us()
    record = BranchRecord(
        branch_id=BranchId(new_id()),
        head=CommitId(""),
        staging_token=StagingToken(new_id()),
        created_at=now_us,
        blocked=blocked_actions(settings, name),
        publishers=publishers(settings, name),
        write_ids=(new_id(),),
        is_hidden=True if hidden else UNSET,
    )
    record = with_head(record, source.commit_id, Why("create", core.stores.committer, now_us))
    record = replace(record, whole=being_made(record, core.stores.committer))
    with pinned(core.stores, [record.head], f"create branch {name}"):
        is_made = create_name(core, name, record)
    if not is_made:
        _, held = read_ref(core.stores, name)
        if exist_ok and isinstance(held, BranchRecord):
            finish_making(core, name, held)
            return Target("branch", held.head, name, held.branch_id)
        raise _taken(name, held)
    try:
        finish_making(core, name, record)
    except StrandlineError as error:
        raise OutcomeUnknown(
            error.what,
            safe=f"Branch {name!r} is there, and locked as long as it is not ready.",
            next=Advice(
                f"create_branch({name!r}, …, exist_ok=True) makes it ready.",
                command="Make it once more; the same command makes it ready.",
            ),
        ) from error
    return Target("branch", record.head, name, record.branch_id)


def finish_making(core: RepositoryCore, name: str, record: BranchRecord) -> None:
    """Give a branch to everyone that is being made, by this process or by one that has died.

    What was decided for all branches meanwhile may not have met this one: until it has, it is locked.

    Invariant: the branch is read before the repository's record, and the swap demands what was read. Those who change
    the rules, or end the lock of a repository, change its record first and then swap every branch that is concerned. So
    what the branch is given holds at the swap, or they come after it.
    """
    if record.whole is None or record.whole.id != f"{BEING_MADE}{record.branch_id}":
        return
    cell, attempts = core.cell(name), Attempts(core.cell(name), "create branch")
    while True:
        attempts.next()
        seen = cell.read(record.branch_id)
        if seen.branch.whole is None or seen.branch.whole.id != f"{BEING_MADE}{record.branch_id}":
            return
        latest = repository_record(core)[1]
        lock = latest.lock if latest.lock is not None and latest.lock.state != "releasing" else None
        try:
            cell.swap(seen, made(with_rules(latest, name, seen.branch), lock))
            return
        except Moved:
            continue


def bring_rules(core: RepositoryCore, name: str, branch: BranchRecord, *, is_concerned: bool) -> None:
    """Bring the rules of a repository onto a branch, sealed: a writer with an older record in its cache meets them.

    Invariant: as in `finish_making`. A process that brings older rules and is slow loses its swap to this one, which
    swaps even if the branch shows the right rules already.

    Args:
        is_concerned: the rules that were changed say something else about this branch than those before.
    """
    cell, attempts = core.cell(name), Attempts(core.cell(name), "change of rules")
    while True:
        attempts.next()
        seen = cell.read(branch.branch_id)
        ruled = with_rules(repository_record(core)[1], name, seen.branch)
        if ruled == seen.branch and not is_concerned:
            return
        with suppress(Moved):
            cell.swap(seen, seal(ruled, StagingToken(new_id())))
            is_concerned = False


def being_made(branch: BranchRecord, by: str) -> LockRecord:
    """The lock under which a branch is made: a slow maker finds out what was decided in the time between."""
    return LockRecord(
        id=f"{BEING_MADE}{branch.branch_id}",
        owner="create branch",
        description=f"the branch is being made by {by}",
        mode="exclusive",
        state="held",
        ranges=(ALL,),
        taken_at=branch.created_at,
        base=branch.head,
    )


def made(branch: BranchRecord, lock: LockRecord | None) -> BranchRecord:
    """A new branch as it is given to everyone: under the lock of the repository, if there is one."""
    ready = without_locks(branch, [f"{BEING_MADE}{branch.branch_id}"])
    return ready if lock is None or ready.whole is not None else inherit(ready, lock)


def with_rules(settings: RepositoryRecord, name: str, branch: BranchRecord) -> BranchRecord:
    return replace(branch, blocked=blocked_actions(settings, name), publishers=publishers(settings, name))


def _probe(settings: RepositoryRecord, name: str) -> BranchRecord:
    return BranchRecord(
        branch_id=BranchId(""),
        head=CommitId(""),
        staging_token=StagingToken(""),
        created_at=0,
        blocked=blocked_actions(settings, name),
    )


def _taken(name: str, held: RefRecord | None) -> AlreadyExists:
    kind = "tag" if isinstance(held, TagRecord) else "branch"
    return AlreadyExists(f"There is a {kind} {name!r} already.", next="Take another name, or delete it first.")


def delete_branch(core: RepositoryCore, name: str, *, force: bool = False) -> CommitId:
    """Delete a branch with what is staged on it; returns its last head, by which its commits can still be read."""
    _, settings = repository_record(core)
    if name == settings.default_branch:
        raise NotAllowed(
            f"{name!r} is the default branch of {core.name!r} and cannot be deleted.",
            next=Advice(
                "Make another branch the default first: repository.set_default_branch(…).",
                command=f"Make another branch the default first: `strandline repo default-branch {core.name} BRANCH`.",
            ),
        )
    cell = core.cell(name)
    attempts = Attempts(cell, "deletion")
    while True:
        attempts.next()
        seen = cell.read()
        if seen.branch.whole is not None and seen.branch.whole.id.startswith(BEING_MADE):
            finish_making(core, name, seen.branch)
            continue
        refuse_blocked(seen.branch, "delete", name, forced=force)
        refuse_locked_ranges(seen.branch, name, [ALL])
        put_item(core.stores, dropped(name, seen.branch, seen.branch.tokens))
        gone = Deleted(was="branch", deleted_at=core.stores.clock.now_us(), tokens=seen.branch.tokens)
        try:
            cell.swap(seen, gone)
        except Moved:
            continue
        try:
            is_default = repository_record(core)[1].default_branch == name
        except StoreUnavailable as error:
            raise StoreUnavailable(
                error.what,
                happened="unknown",
                safe=f"Branch {name!r} was deleted; it is unknown whether it became the default branch just then.",
                next="Look at the repository's default branch.",
            ) from error
        if is_default:
            _bring_back(core, name, seen.branch)
            raise NotAllowed(f"{name!r} was made the default branch at the same time, so it stays.")
        with suppress(StoreUnavailable):  # the branch is gone; what is left of its reflog harms nobody
            forget_moves(core.stores, seen.branch.branch_id)
            repeats.forget(core.stores, seen.branch.branch_id)
            forget_transactions(core.stores, seen.branch.branch_id)
            shared_changes.forget(core.stores, seen.branch.branch_id)
        return seen.branch.head


def _bring_back(core: RepositoryCore, name: str, branch: BranchRecord) -> None:
    """Undo a deletion; its tokens are on record again before any sweep looks at them, since sweeps wait."""
    raw, held = read_ref(core.stores, name)
    if raw is not None and isinstance(held, Deleted) and held.tokens == branch.tokens:
        restored = replace(branch, write_ids=(new_id(), *held.write_ids))
        with suppress(PredicateFailed):  # somebody made a branch of that name
            core.stores.kv.set_if(core.stores.refs, name.encode(), encode(restored), raw)


def create_tag(core: RepositoryCore, name: str, source: Ref, *, force: bool = False) -> None:
    check_ref_name(name, "tag")
    _, settings = repository_record(core)
    if settings.read_only and not force:
        refuse_blocked(_probe(settings, name), "stage", name)
    tag = TagRecord(commit=source.commit_id, created_at=core.stores.clock.now_us())
    with pinned(core.stores, [tag.commit], f"create tag {name}"):
        is_made = create_name(core, name, tag)
    if not is_made:
        raise _taken(name, read_ref(core.stores, name)[1])


def delete_tag(core: RepositoryCore, name: str, *, force: bool = False) -> None:
    raw, held = read_ref(core.stores, name)
    if raw is None or not isinstance(held, TagRecord):
        raise RefNotFound(f"There is no tag {name!r}.", next=f"`strandline tag list {core.name}` shows the tags.")
    _, settings = repository_record(core)
    if settings.read_only and not force:
        refuse_blocked(_probe(settings, name), "stage", name)
    gone = Deleted(was="tag", deleted_at=core.stores.clock.now_us())
    try:
        core.stores.kv.set_if(core.stores.refs, name.encode(), encode(gone), raw)
    except PredicateFailed:
        raise RefNotFound(f"The tag {name!r} was deleted by somebody else.") from None


def list_names(
    core: RepositoryCore, kind: Literal["branch", "tag"], prefix: str = "", after: str = "", amount: int | None = None
) -> Iterator[tuple[str, RefRecord]]:
    """The branches or tags in a span, each with its record.

    Args:
        amount: how many the caller will look at, or None for all: so many are read first.
    """
    wanted = BranchRecord if kind == "branch" else TagRecord
    for key, value in core.stores.kv.scan(core.stores.refs, *keys_behind(prefix, after), page_keys_of(amount)):
        record = decode(RefRecord, value, f"ref {key.decode()!r}")
        if isinstance(record, wanted):
            yield key.decode(), record
