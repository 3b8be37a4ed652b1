"""Updates of what a table holds: snapshots, branches and tags of its own, statistics. Pure.

Source: "Snapshots", "Sequence Numbers", "Row Lineage" and "Snapshot References" of the Iceberg Table Spec.
"""

from __future__ import annotations

from strandline.iceberg.building import MAIN, NO_SNAPSHOT, Building, field_of, numbers_of
from strandline.iceberg.refusals import BadUpdate, Stale
from strandline.iceberg.schemas import Json

ROW_LINEAGE_VERSION = 3
OPERATIONS = ("append", "replace", "overwrite", "delete")
_REF_FIELDS = ("snapshot-id", "type", "min-snapshots-to-keep", "max-snapshot-age-ms", "max-ref-age-ms")
_OF_BRANCHES = ("min-snapshots-to-keep", "max-snapshot-age-ms")


def add_snapshot(table: Building, update: Json) -> None:
    """A snapshot that was made from what the table was before another one came is `Stale`: its client makes it anew."""
    snapshot = field_of(update, "snapshot", dict)
    number, at_ms = snapshot["snapshot-id"], snapshot["timestamp-ms"]
    if not (table.items("schemas") and table.items("partition-specs") and table.items("sort-orders")):
        raise BadUpdate("A table without a schema, a partition spec and a sort order has no snapshots.")
    if number in table.snapshot_ids:
        raise BadUpdate(f"The table has a snapshot {number} already.")
    data = table.data
    summary = snapshot.get("summary")
    if summary is not None and summary.get("operation") not in OPERATIONS:
        raise BadUpdate(f"The operation of a snapshot is one of {', '.join(OPERATIONS)}.")
    sequence = snapshot.get("sequence-number")
    last = data.get("last-sequence-number", 0)
    if table.version > 1:
        if not snapshot.get("manifest-list") or not snapshot.get("summary"):
            raise BadUpdate("A snapshot of a table from version 2 on has a manifest list and a summary.")
        if not isinstance(sequence, int):
            raise BadUpdate("A snapshot of a table from version 2 on has a sequence number.")
        if sequence <= last and snapshot.get("parent-snapshot-id") is not None:
            raise Stale(f"Snapshot {number} has the sequence number {sequence}; the table's last one is {last}.")
    if sequence:
        data["last-sequence-number"] = max(last, sequence)
    if table.version >= ROW_LINEAGE_VERSION:
        _take_rows(table, snapshot)
    table.add("snapshots", snapshot)
    table.snapshot_ids.add(number)
    _touch(table, at_ms)
    table.added_snapshots[number] = snapshot


def _touch(table: Building, at_ms: int) -> int:
    """Say when the table changed. Clocks differ, and readers refuse logs that go back: rather it stands still."""
    moment = max(at_ms, int(table.data.get("last-updated-ms", 0)))
    table.data["last-updated-ms"] = moment
    return moment


def _take_rows(table: Building, snapshot: Json) -> None:
    """Give a snapshot the ids of its rows, which no other one has."""
    first, added = snapshot.get("first-row-id"), snapshot.get("added-rows")
    if not isinstance(first, int) or not isinstance(added, int) or added < 0:
        raise BadUpdate("A snapshot of a table of version 3 says which row ids are its own.")
    following = table.data.get("next-row-id", 0)
    if first < following:
        raise Stale(f"The snapshot begins with row id {first}; the table's next one is {following}.")
    table.data["next-row-id"] = first + added


def set_ref(table: Building, update: Json) -> None:
    name, number = field_of(update, "ref-name", str), field_of(update, "snapshot-id", int)
    kind = field_of(update, "type", str)
    if name == MAIN and kind != "branch":
        raise BadUpdate(f"The ref {name[:80]!r} cannot be a {kind[:80]}.")
    if kind == "tag" and any(update.get(key) is not None for key in _OF_BRANCHES):
        raise BadUpdate("A tag has no rules for the snapshots of a branch.")
    if number not in table.snapshot_ids:
        raise BadUpdate(f"The table has no snapshot {number}.")
    ref = {key: update[key] for key in _REF_FIELDS if update.get(key) is not None}
    refs = table.data.get("refs") or {}
    if refs.get(name) == ref:
        return
    table.data["refs"] = {**refs, name: ref}
    if name == MAIN and table.data.get("current-snapshot-id") != number:
        table.data["current-snapshot-id"] = number
        own = table.added_snapshots.get(number)
        at_ms = _touch(table, table.now_ms if own is None else own["timestamp-ms"])
        table.add("snapshot-log", {"timestamp-ms": at_ms, "snapshot-id": number})
        table.moved.append(number)


def remove_ref(table: Building, update: Json) -> None:
    _drop_refs(table, {field_of(update, "ref-name", str)})


def _drop_refs(table: Building, gone: set[str]) -> None:
    refs = table.data.get("refs") or {}
    if not gone & set(refs):
        return
    table.data["refs"] = {name: ref for name, ref in refs.items() if name not in gone}
    if MAIN in gone:
        table.data["current-snapshot-id"] = NO_SNAPSHOT  # the log stays: a table that is replaced keeps its history


def remove_snapshots(table: Building, update: Json) -> None:
    """Snapshots go with the refs at them, with their statistics, and with the log up to the newest of them: no gaps."""
    gone = set(numbers_of(update, "snapshot-ids")) & table.snapshot_ids
    if not gone:
        return
    table.snapshot_ids -= gone
    table.keep("snapshots", lambda one: one["snapshot-id"] not in gone)
    for name in ("statistics", "partition-statistics"):
        table.keep(name, lambda one: one["snapshot-id"] not in gone)
    log = table.items("snapshot-log")
    newest = max((at for at, entry in enumerate(log) if entry["snapshot-id"] in gone), default=-1)
    table.put("snapshot-log", log[newest + 1 :])
    for number in gone:
        table.added_snapshots.pop(number, None)
    refs = table.data.get("refs") or {}
    _drop_refs(table, {name for name, ref in refs.items() if ref["snapshot-id"] in gone})


def set_statistics(name: str, table: Building, update: Json) -> None:
    """Of each snapshot there is one file of statistics."""
    given = field_of(update, name, dict)
    number = field_of(given, "snapshot-id", int)
    table.keep(name, lambda one: one["snapshot-id"] != number)
    table.add(name, given)


def remove_statistics(name: str, table: Building, update: Json) -> None:
    number = field_of(update, "snapshot-id", int)
    table.keep(name, lambda one: one["snapshot-id"] != number)


def forget_steps(table: Building) -> None:
    """Take out of the log what was main's head only on the way to the last snapshot of this request."""
    current = table.data.get("current-snapshot-id")
    steps = {number for number in table.moved if number != current and number in table.added_snapshots}
    if steps:
        table.keep("snapshot-log", lambda entry: entry["snapshot-id"] not in steps)
