"""What is on record about a repository, and what it means for its branches."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Literal, get_args

import msgspec

from strandline.branch.rules.record import READ_ONLY, Action, LockRecord
from strandline.branch.rules.writers import check_writer_name
from strandline.clock import Microseconds
from strandline.core.retention import Retention
from strandline.errors import Advice, UsageError
from strandline.ids import RepositoryId

PARTITION = b"repositories"
"""Repository records by name."""
ACTIONS: tuple[str, ...] = get_args(Action)
DEFAULT_PROTECTION: tuple[Action, ...] = ("stage", "commit", "reset", "delete")
"""What a protection blocks unless told: everything but merges."""
MAX_PROTECTIONS = 100


class Protection(msgspec.Struct, frozen=True, kw_only=True):
    """Actions that are blocked on all branches whose name matches a glob pattern.

    Attributes:
        writers: the writers whose transactions may be published all the same.
    """

    pattern: str
    blocked: tuple[str, ...]
    writers: tuple[str, ...] = ()


class LockOwner(msgspec.Struct, frozen=True):
    """An owner, which may hold locks.

    Attributes:
        is_leaving: being removed; it takes no more locks.
    """

    name: str
    description: str
    registered_at: Microseconds
    is_leaving: bool = False


class RepositoryRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A repository.

    Attributes:
        namespace: where its bytes are: a URL, or a name below the lake's own object store.
        behind: the URL of another lake's namespace, from which what is not in its own is read; or "".
        lock: on all branches; new ones inherit it.
        state: a deleted one keeps its record, so that a late swap cannot bring it back.
    """

    id: RepositoryId
    name: str
    namespace: str
    default_branch: str
    created_at: Microseconds
    behind: str = ""
    read_only: bool = False
    protections: tuple[Protection, ...] = ()
    retention: Retention = Retention()
    lock_owners: tuple[LockOwner, ...] = ()
    lock: LockRecord | None = None
    state: Literal["active", "deleting", "deleted"] = "active"


def blocked_actions(record: RepositoryRecord, branch: str) -> tuple[str, ...]:
    """What stands in `Branch.blocked` for a branch of this name."""
    matching = [rule.blocked for rule in record.protections if fnmatchcase(branch, rule.pattern)]
    blocked = sorted({action for actions in matching for action in actions})
    return (READ_ONLY, *blocked) if record.read_only else tuple(blocked)


def publishers(record: RepositoryRecord, branch: str) -> tuple[str, ...]:
    """What stands in `Branch.publishers`: the writers that every protection of the branch names."""
    named = [set(rule.writers) for rule in record.protections if fnmatchcase(branch, rule.pattern)]
    return tuple(sorted(set.intersection(*named))) if named else ()


def check_protection(pattern: str, blocked: Iterable[str], writers: Iterable[str] = ()) -> Protection:
    actions = tuple(sorted(set(blocked)))
    unknown = [action for action in actions if action not in ACTIONS]
    if unknown or not actions or not pattern:
        raise UsageError(
            f"A protection needs a pattern and some of the actions {', '.join(ACTIONS)}; got {pattern!r}, {actions}.",
            next=Advice(
                'For example: repository.protect("release-*", block=["stage", "commit"]).',
                command="For example: `strandline repo protect REPOSITORY 'release-*' --block stage --block commit`.",
            ),
        )
    return Protection(pattern=pattern, blocked=actions, writers=tuple(sorted(map(check_writer_name, writers))))
