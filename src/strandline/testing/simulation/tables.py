"""Clients of Iceberg's catalog beside all others: a family of schedules.

Each append is a snapshot of its own, which a client sends again, as it is, when its reply was lost, and anew on what is
there when others were first. What a commit puts on the branch is a one-shot publication, and judged as one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

from strandline.errors import OutcomeUnknown, StoreUnavailable
from strandline.iceberg import names
from strandline.iceberg.landing import Plan
from strandline.iceberg.live import avro_bytes
from strandline.iceberg.refusals import Stale
from strandline.iceberg.tables import NoSuchTable, TableChange, Tables
from strandline.repository.refs.ref import Ref
from strandline.testing.simulation.actors import KINDS, ROLES, Actor
from strandline.testing.simulation.history import Broken, History, Operation

TRIES = 3
LOST_ANSWERS = 0.3
NAMESPACE, TABLE = ("db",), ("db", "t")
COLUMN = {"id": 1, "name": "k", "required": False, "type": "long"}
REQUEST: dict[str, Any] = {"schema": {"type": "struct", "fields": [COLUMN]}}
_LIST = {
    "type": "record",
    "name": "manifest_file",
    "fields": [{"name": "manifest_path", "type": "string", "field-id": 500}],
}


class _Client(Tables):
    """The tables of a branch for one operation, which writes down what its commits change and rely on."""

    def __init__(self, ref: Ref, op: Operation) -> None:
        super().__init__(ref)
        self._op = op
        self._landing.turn = nullcontext  # type: ignore[method-assign] # threads here are not those that wait for it

    def _publish(self, decide: Callable[[Ref], Plan], again: Callable[[Ref], Any] = lambda _: None) -> Any:
        def noted(head: Ref) -> Plan:
            plan, op = decide(head), self._op
            if plan.changes:
                plan.message = op.value
                op.values = {path: None if one is None else one.checksum for path, one in plan.changes.items()}
                op.arguments["paths"] = ",".join(plan.changes)
                op.arguments["expected"] = {
                    path: None if info is None else info.checksum for path, info in plan.expected.items()
                }
            return plan

        return super()._publish(noted, again)


def _begin(actor: Actor, **arguments: Any) -> tuple[Ref, Operation]:
    branch = actor.branch()
    op = actor.begin("one shot", branch.name, branch.branch_id, paths="", token="", expected={}, **arguments)
    return branch, op


def _commit_of(actor: Actor, op: Operation) -> str:
    """The commit that an operation made, which only the watcher of the store knows; "" if there is none."""
    commits = actor.world.history.commits.items()
    return next((str(id) for id, one in commits if one.message == op.value), "")


def make(actor: Actor, _kind: str) -> None:
    """Make what is missing: the namespace, or then the table."""
    branch, op = _begin(actor)

    def act() -> str:
        client = _Client(branch, op)
        if branch.exists(names.marker_of(NAMESPACE)):
            client.create(TABLE, REQUEST)
        else:
            client.create_namespace(NAMESPACE, {})
        return _commit_of(actor, op)

    actor.finish(op, act)


def append(actor: Actor, _kind: str) -> None:
    branch, op = _begin(actor)
    number = op.number + 1

    def act() -> str:
        client = _Client(branch, op)
        for left in range(TRIES, 0, -1):
            change = _append(client, number)
            op.arguments["snapshot"] = number
            try:
                _sent(actor, client, change)
            except Stale:
                if left == 1:
                    raise
            else:
                break
        return _commit_of(actor, op)

    actor.finish(op, act)


def _append(client: _Client, number: int) -> TableChange:
    """An append to what the table is now, whose manifest list is stored."""
    held = client.load(TABLE).metadata
    key = f"{names.files_below(names.new_table_key(), client.files_part)}/metadata/snap-{number}.avro"
    client.blobs.put(key, avro_bytes([], _LIST, {}))
    parent = held["current-snapshot-id"]
    snapshot = {
        "snapshot-id": number,
        "sequence-number": held["last-sequence-number"] + 1,
        "timestamp-ms": held["last-updated-ms"] + 1,
        "manifest-list": client.url_of(key),
        "summary": {"operation": "append"},
        "schema-id": 0,
        **({"parent-snapshot-id": parent} if parent != -1 else {}),
    }
    demands = [
        {"type": "assert-table-uuid", "uuid": held["table-uuid"]},
        {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": None if parent == -1 else parent},
    ]
    move = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": number}
    return TableChange(TABLE, demands, [{"action": "add-snapshot", "snapshot": snapshot}, move])


def _sent(actor: Actor, client: _Client, change: TableChange) -> None:
    """Send a commit; if its outcome is not known, or the answer of the server is lost, perhaps the very same again."""
    try:
        client.commit([change])
        is_lost = actor.rnd.random() < LOST_ANSWERS
    except StoreUnavailable:
        if actor.rnd.random() < 0.5:
            raise
        is_lost = True
    if is_lost:
        actor.world.scheduler.sleep(3)
        try:
            client.commit([change])
        except StoreUnavailable as error:  # of this one nothing may have happened, and the first one may be there
            raise OutcomeUnknown(error.what) from error


def load(actor: Actor, _kind: str) -> None:
    """Read which snapshots the table has."""
    branch = actor.branch()
    op = actor.begin("load table", branch.name, branch.branch_id)

    def act() -> tuple[str, tuple[int, ...]] | None:
        try:
            held = Tables(branch).load(TABLE).metadata
        except NoSuchTable:
            return None
        return held["table-uuid"], tuple(one["snapshot-id"] for one in held.get("snapshots") or ())

    actor.finish(op, act)


def table_promises(history: History) -> Iterator[Broken]:
    """What is promised of appends: what was acknowledged is in each later load, once; what was refused is in none.

    Of branches whose heads went only forward, and as long as the table is the same one.
    """
    back = {op.branch for op in history.operations if op.kind in ("hard reset", "revert", "cherry-pick", "merge")}
    loads = [op for op in history.operations if op.kind == "load table" and op.status == "ok" and op.result is not None]
    appends = {op.arguments["snapshot"]: op for op in history.operations if "snapshot" in op.arguments}
    for read in loads:
        _, seen = read.result
        if len(set(seen)) < len(seen):
            yield Broken("a snapshot is in a table once", f"{read}: {seen}")
        for number in seen:
            op = appends[number]
            if op.status in ("refused", "failed") and read.creation == op.creation:
                yield Broken("a refused append is in no table", f"{read} has {op}")
        if read.branch in back:
            continue
        for number, op in appends.items():
            is_before = op.status == "ok" and op.end < read.start and op.creation == read.creation
            if is_before and number not in seen:
                yield Broken("an acknowledged append is in each later load", f"{read} lacks {op}")


KINDS["table make"] = make
KINDS["table append"] = append
KINDS["table load"] = load
ROLES["catalog client"] = {"table make": 2, "table append": 4, "table load": 2}
FAMILIES: dict[str, dict[str, tuple[str, ...]]] = {
    "tables": {
        "rivals": ("catalog client",),
        "beside writers": ("catalog client", "catalog client", "writer", "committer", "compactor"),
        "beside heads": ("catalog client", "catalog client", "resetter", "committer"),
        "on branches that go": ("catalog client", "catalog client", "brancher", "sweeper"),
    }
}
