"""Locks on ranges of a branch, and who may hold them: ours, in lakeFS's style."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from strandline.branch.rules.ranges import Range
from strandline.errors import NotFound
from strandline.repository.locks.locks import LockInfo, Locks
from strandline.server.messages import Response
from strandline.server.operation import Call, Need, Operation, branch_need, branch_to_write, repository_need
from strandline.server.refusals import BadRequest
from strandline.server.rest import shapes
from strandline.server.rest.replies import amount_of, json, nothing, page


class KeyRange(msgspec.Struct):
    """Paths from a start up to an end, which is not in it; without an end, all from there on."""

    start: str
    end: str | None = None


class Lock(msgspec.Struct):
    """A lock: who changes these paths, while nobody else does."""

    id: str
    owner: str
    description: str
    mode: str
    state: str
    ranges: list[KeyRange]
    creation_date: int
    is_whole: bool = False
    transaction: int | None = None


class LockList(msgspec.Struct):
    """A page of locks."""

    pagination: shapes.Pagination
    results: list[Lock]


class LockCreation(msgspec.Struct):
    """A lock to be taken; on the whole branch if it names no prefixes and no ranges."""

    owner: str
    prefixes: Annotated[list[str], Meta(max_length=256)] = []
    ranges: Annotated[list[KeyRange], Meta(max_length=256)] = []
    mode: str = "exclusive"
    on_dirty: str = "fail"


class LockOwner(msgspec.Struct):
    """Who holds locks, and what for: others read it in the errors that they get."""

    name: str
    description: str


class LockOwnerList(msgspec.Struct):
    """A page of owners."""

    pagination: shapes.Pagination
    results: list[LockOwner]


def _locks(call: Call) -> Locks:
    return branch_to_write(call).locks


def _shape(found: LockInfo) -> Lock:
    return Lock(
        id=found.id,
        owner=found.owner,
        description=found.description,
        mode=found.mode,
        state=found.state,
        ranges=[KeyRange(one.start, one.end) for one in found.ranges],
        creation_date=found.taken_at_us // 1_000_000,
        is_whole=found.is_whole,
        transaction=found.transaction,
    )


def list_locks(call: Call) -> Response:
    after = call.query.after
    rows = sorted((lock for lock in _locks(call) if lock.id > after), key=lambda lock: lock.id)
    kept, pagination = page(rows, amount_of(call.query.amount), lambda lock: lock.id)
    return json(200, LockList(pagination, [_shape(lock) for lock in kept]))


def take_lock(call: Call) -> Response:
    given: LockCreation = call.body
    wanted: list[Any] = [*given.prefixes, *(Range(one.start, one.end) for one in given.ranges)]
    mode, on_dirty = given.mode, given.on_dirty
    # nobody waits here for the locks of others: a client asks again
    if wanted:
        made = _locks(call).take(wanted, owner=given.owner, mode=mode, on_dirty=on_dirty)  # type: ignore[arg-type]
    else:
        made = _locks(call).take_branch(owner=given.owner, mode=mode, on_dirty=on_dirty)  # type: ignore[arg-type]
    return json(201, _shape(made))


def release_lock(call: Call) -> Response:
    id = call.path["lock"]
    if not any(lock.id == id for lock in _locks(call)):
        raise NotFound(f"The branch has no lock {id[:80]!r}.", next="List its locks.")
    _locks(call).release(id)
    return nothing()


def list_owners(call: Call) -> Response:
    owners = call.services.repository(call.path["repository"]).lock_owners
    rows = (one for one in owners if one.name.startswith(call.query.prefix) and one.name > call.query.after)
    kept, pagination = page(rows, amount_of(call.query.amount), lambda one: one.name)
    return json(200, LockOwnerList(pagination, [LockOwner(one.name, one.description) for one in kept]))


def register_owner(call: Call) -> Response:
    if call.body.name != call.path["owner"]:
        raise BadRequest("The body names another owner than the address.", next="Give the same name twice.")
    call.services.repository(call.path["repository"]).lock_owners.register(call.body.name, call.body.description)
    return json(200, call.body)


def remove_owner(call: Call) -> Response:
    call.services.repository(call.path["repository"]).lock_owners.remove(call.path["owner"])
    return nothing()


_LOCKS = "/repositories/{repository}/branches/{branch}/locks"
_OWNERS = "/repositories/{repository}/lock_owners"
_OWNER = Need("strandline:WriteLockOwner", "arn:lakefs:fs:::repository/{repository}/lock_owner/{owner}")

OPERATIONS = (
    Operation(
        "listLocks",
        "GET",
        _LOCKS,
        branch_need("strandline:ReadLocks"),
        list_locks,
        "The locks of a branch",
        {200: LockList},
        "locks",
        query=shapes.Page,
        is_ours=True,
    ),
    Operation(
        "takeLock",
        "POST",
        _LOCKS,
        branch_need("strandline:TakeLock"),
        take_lock,
        "Freeze paths of a branch for one owner",
        {201: Lock, 423: shapes.Error},
        "locks",
        body=LockCreation,
        is_ours=True,
    ),
    Operation(
        "releaseLock",
        "DELETE",
        _LOCKS + "/{lock}",
        branch_need("strandline:ReleaseLock"),
        release_lock,
        "End a lock",
        {204: None},
        "locks",
        is_ours=True,
    ),
    Operation(
        "listLockOwners",
        "GET",
        _OWNERS,
        repository_need("strandline:ReadLockOwners"),
        list_owners,
        "The owners that may hold locks",
        {200: LockOwnerList},
        "locks",
        query=shapes.Page,
        is_ours=True,
    ),
    Operation(
        "registerLockOwner",
        "PUT",
        _OWNERS + "/{owner}",
        _OWNER,
        register_owner,
        "Let somebody hold locks, and say what for",
        {200: LockOwner},
        "locks",
        body=LockOwner,
        is_ours=True,
    ),
    Operation(
        "removeLockOwner",
        "DELETE",
        _OWNERS + "/{owner}",
        _OWNER,
        remove_owner,
        "Remove an owner that holds no locks",
        {204: None},
        "locks",
        is_ours=True,
    ),
)
