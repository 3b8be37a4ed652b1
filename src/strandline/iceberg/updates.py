"""Applies the updates of a commit request to the metadata of a table. Pure: the caller publishes what comes out.

Works on plain JSON, so that what this version does not know is kept. Source: the REST catalog specification of Iceberg
for the names and shapes of updates, and `TableMetadata.Builder` for what they do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from strandline.iceberg import shape_updates as shape
from strandline.iceberg import snapshot_updates as snapshots
from strandline.iceberg.building import VERSION_MAX, Building, field_of
from strandline.iceberg.refusals import BadUpdate
from strandline.iceberg.schemas import Json
from strandline.iceberg.shapes import check_updates

LOG_MAX = "write.metadata.previous-versions-max"
LOG_MAX_DEFAULT = 100
_UUID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", re.IGNORECASE)


def _assign_uuid(table: Building, update: Json) -> None:
    given = field_of(update, "uuid", str)
    if not _UUID.fullmatch(given):
        raise BadUpdate(f"{given[:80]!r} is not a UUID.")
    held = table.data.get("table-uuid")
    if held is not None and held.lower() != given.lower():
        raise BadUpdate("The UUID of a table cannot be changed.")
    table.data["table-uuid"] = held or given


def _upgrade(table: Building, update: Json) -> None:
    version, before = field_of(update, "format-version", int), table.version
    if table.is_new and not table.items("schemas"):
        before = 1  # what a new table begins with is its maker's choice
    if not before <= version <= VERSION_MAX:
        raise BadUpdate(f"A table of version {before} cannot become one of version {version}.")
    data = table.data
    data["format-version"] = version
    if version > 1:
        for name in ("schema", "partition-spec"):
            data.pop(name, None)
        data.setdefault("last-sequence-number", 0)
    if version >= snapshots.ROW_LINEAGE_VERSION:
        data.setdefault("next-row-id", 0)


def _set_properties(table: Building, update: Json) -> None:
    given = field_of(update, "updates", dict)
    table.data["properties"] = {**(table.data.get("properties") or {}), **given}


def _remove_properties(table: Building, update: Json) -> None:
    gone = field_of(update, "removals", list)
    held = table.data.get("properties") or {}
    if any(name in held for name in gone):
        table.data["properties"] = {name: value for name, value in held.items() if name not in gone}


def _add_key(table: Building, update: Json) -> None:
    key = field_of(update, "encryption-key", dict)
    id = field_of(key, "key-id", str)
    if not any(one.get("key-id") == id for one in table.items("encryption-keys")):
        table.add("encryption-keys", key)


def _remove_key(table: Building, update: Json) -> None:
    id = field_of(update, "key-id", str)
    table.keep("encryption-keys", lambda one: one.get("key-id") != id)


def _ignore(_: Building, __: Json) -> None:
    """Where a table lies is not its clients' to decide."""


_ACTIONS: dict[str, Callable[[Building, Json], None]] = {
    "assign-uuid": _assign_uuid,
    "upgrade-format-version": _upgrade,
    "add-schema": shape.add_schema,
    "set-current-schema": shape.set_current_schema,
    "remove-schemas": shape.remove_schemas,
    "add-spec": shape.add_spec,
    "set-default-spec": shape.set_default_spec,
    "remove-partition-specs": shape.remove_specs,
    "add-sort-order": shape.add_sort_order,
    "set-default-sort-order": shape.set_default_sort_order,
    "add-snapshot": snapshots.add_snapshot,
    "set-snapshot-ref": snapshots.set_ref,
    "remove-snapshot-ref": snapshots.remove_ref,
    "remove-snapshots": snapshots.remove_snapshots,
    "set-statistics": partial(snapshots.set_statistics, "statistics"),
    "remove-statistics": partial(snapshots.remove_statistics, "statistics"),
    "set-partition-statistics": partial(snapshots.set_statistics, "partition-statistics"),
    "remove-partition-statistics": partial(snapshots.remove_statistics, "partition-statistics"),
    "set-properties": _set_properties,
    "remove-properties": _remove_properties,
    "set-location": _ignore,
    "add-encryption-key": _add_key,
    "remove-encryption-key": _remove_key,
}


def apply(base: Json | None, updates: Sequence[Any], now_ms: int, *, previous: str = "") -> Json:
    """The metadata after some updates; `base` itself if they change nothing.

    Args:
        base: the metadata before; None for a table that is being made.
        now_ms: milliseconds since 1970 UTC.
        previous: where the file of `base` is.

    Raises:
        BadUpdate: an update is not known, malformed, or cannot be applied.
        Stale: a snapshot was made from an older state of the table.
    """
    check_updates(updates)
    table = Building(base, now_ms)
    for update in updates:
        step = _ACTIONS.get(update["action"])
        if step is None:
            raise BadUpdate(f"The update {update['action'][:80]!r} is not known.")
        step(table, update)
    if table.data == base:
        return base
    _finish(table, base, previous)
    return table.data


def _finish(table: Building, base: Json | None, previous: str) -> None:
    data = table.data
    shape.refuse_unbound(table, base)
    snapshots.forget_steps(table)
    if "table-uuid" not in data or "current-schema-id" not in data:
        raise BadUpdate("The table has no UUID, or no current schema.")
    if base is None or data.get("last-updated-ms") == base.get("last-updated-ms"):
        data["last-updated-ms"] = max(table.now_ms, data.get("last-updated-ms", 0))  # see `snapshot_updates`
    if table.version == 1:  # which old readers take it from
        if data.get("last-sequence-number"):
            raise BadUpdate("The snapshots of a table of version 1 have no sequence numbers.")
        data["schema"] = table.schema
        data["partition-spec"] = table.by_id("partition-specs", "spec-id")[data["default-spec-id"]]["fields"]
    if base is not None and previous:
        log = [*table.items("metadata-log"), {"timestamp-ms": base["last-updated-ms"], "metadata-file": previous}]
        data["metadata-log"] = log[-log_max(data) :]


def log_max(table: Json) -> int:
    """How many earlier metadata files a table remembers."""
    text = str((table.get("properties") or {}).get(LOG_MAX, ""))
    return max(1, int(text)) if text.isascii() and text.isdigit() and len(text) < 10 else LOG_MAX_DEFAULT
