"""The owners that may hold locks in a repository."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from strandline.arguments import checked
from strandline.branch.rules.lock_rules import locks_of
from strandline.branch.rules.record import BranchRecord
from strandline.clock import Microseconds, from_us
from strandline.core.record import LockOwner, RepositoryRecord
from strandline.core.repository_core import RepositoryCore
from strandline.core.texts import check_text
from strandline.errors import Advice, LockInvalid, LockRejected
from strandline.operations import logged
from strandline.repository.names.branches import list_names, repository_record
from strandline.repository.names.settings import swap_record
from strandline.results.rows import Results

MAX_OWNERS = 256
NAME_MAX_CHARS = 128
LEAVING_POLL_S = 0.05
LEAVING_POLLS = 100


class OwnerInfo(msgspec.Struct, frozen=True):
    """An owner of locks."""

    name: str
    description: str
    registered_at_us: Microseconds

    @property
    def registered_at(self) -> datetime:
        """When the owner was registered, in UTC."""
        return from_us(self.registered_at_us)


@checked()
class LockOwners(Results[OwnerInfo]):
    """The owners of locks, by name. What they are described as stands in every error that their locks cause."""

    _titles = ("owner", "description", "registered")

    def __init__(self, core: RepositoryCore) -> None:
        self._core = core

    @property
    def place(self) -> str:
        """The repository, for messages."""
        return self._core.name

    def __iter__(self) -> Iterator[OwnerInfo]:
        owners = repository_record(self._core)[1].lock_owners
        found = [OwnerInfo(one.name, one.description, one.registered_at) for one in owners if not one.is_leaving]
        return iter(sorted(found, key=lambda one: one.name))

    def __contains__(self, name: object) -> bool:
        return any(one.name == name for one in self)

    @logged("register owner of locks")
    def register(self, name: str, description: str) -> None:
        """Register an owner, or change its description; the same again is fine.

        Raises:
            LockInvalid: name or description is empty or too long, or there are too many owners.
        """
        check_owner(name)
        if not isinstance(description, str) or not description.strip():
            raise LockInvalid(
                f"Owner {name!r} has no description.", next="Say what the owner locks things for: others will read it."
            )
        check_text(description, "A description")
        now = self._core.stores.clock.now_us()

        def change(record: RepositoryRecord) -> RepositoryRecord:
            held = {one.name: one for one in record.lock_owners}
            since = held[name].registered_at if name in held and not held[name].is_leaving else now
            held[name] = LockOwner(name, description, since)
            if len(held) > MAX_OWNERS:
                raise LockInvalid(f"A repository has at most {MAX_OWNERS} owners of locks.", next="Remove some.")
            return replace(record, lock_owners=tuple(held.values()))

        swap_record(self._core, change)

    @logged("remove owner of locks")
    def remove(self, name: str) -> None:
        """Remove an owner; one that is not there is fine.

        Invariant: it is marked as leaving before the branches are looked at, and a taker of a lock looks at its owner
        after its lock is on record. So either this sees the lock, or that sees the mark; perhaps both step back.

        Raises:
            LockRejected: it holds locks. It stays.
        """
        if not any(one.name == name for one in repository_record(self._core)[1].lock_owners):
            return
        swap_record(self._core, lambda record: _marked(record, name, is_leaving=True))
        where = [
            branch
            for branch, record in list_names(self._core, "branch")
            if isinstance(record, BranchRecord) and any(lock.owner == name for lock in locks_of(record))
        ]
        if where:
            swap_record(self._core, lambda record: _marked(record, name, is_leaving=False))
            raise LockRejected(
                f"Owner {name!r} holds locks on branch {', '.join(map(repr, where[:5]))}.",
                next=Advice(
                    f"Release them first: branch.locks.release_all({name!r}), or `strandline lock release … --owner "
                    f"{name}`.",
                    command=f"Release them first: `strandline lock release … --owner {name}`.",
                ),
            )
        swap_record(
            self._core,
            lambda record: replace(
                record,
                lock_owners=tuple(one for one in record.lock_owners if not (one.name == name and one.is_leaving)),
            ),
        )

    def to_arrow(self) -> pa.Table:
        rows = list(self)
        return pa.table(
            {
                "owner": pa.array([row.name for row in rows], pa.string()),
                "description": pa.array([row.description for row in rows], pa.string()),
                "registered_at": pa.array([row.registered_at for row in rows], pa.timestamp("us", tz="UTC")),
            }
        )

    def _cells(self, row: OwnerInfo) -> tuple[object, ...]:
        return row.name, row.description, row.registered_at


def check_owner(name: str) -> str:
    if not isinstance(name, str) or not name.strip() or len(name) > NAME_MAX_CHARS or not name.isprintable():
        raise LockInvalid(
            f"{name!r} is not the name of an owner.", next=f"Use 1 to {NAME_MAX_CHARS} printable characters."
        )
    return name


def find_owner(core: RepositoryCore, name: str) -> LockOwner:
    """The owner as it is on record now.

    Raises:
        LockInvalid: it is not registered.
    """
    check_owner(name)
    for one in repository_record(core)[1].lock_owners:
        if one.name == name and not one.is_leaving:
            return one
    raise LockInvalid(
        f"{name!r} is not registered as an owner of locks in {core.name!r}.",
        next=Advice(
            f"Register it: repository.lock_owners.register({name!r}, 'what for'), or `strandline lock owner add "
            f"{core.name} {name} 'what for'`.",
            command=f"Register it: `strandline lock owner add {core.name} {name} 'what for'`.",
        ),
    )


def waiting_for_owner(core: RepositoryCore, name: str) -> None:
    """Raise if an owner is not registered; while it is being removed, nobody knows yet.

    Raises:
        LockInvalid: it is not registered, or its removal has come to no end in time.
    """
    polls = 0
    while any(one.name == name and one.is_leaving for one in repository_record(core)[1].lock_owners):
        if polls >= LEAVING_POLLS:
            break
        core.stores.clock.sleep(LEAVING_POLL_S)
        polls += 1
    find_owner(core, name)


def _marked(record: RepositoryRecord, name: str, *, is_leaving: bool) -> RepositoryRecord:
    owners = tuple(replace(one, is_leaving=is_leaving) if one.name == name else one for one in record.lock_owners)
    return replace(record, lock_owners=owners)
