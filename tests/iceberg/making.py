"""Metadata of Iceberg's tables, and updates of it, for tests; PyIceberg is the witness that it is a table's."""

from __future__ import annotations

import copy
import io
import json
from typing import Any

import fastavro
from pyiceberg.table.metadata import TableMetadataUtil

from strandline.iceberg.creation import new_table
from strandline.iceberg.updates import apply

UUID = "9c12d441-03fe-4693-9a96-a0705ddf69c1"
NOW = 1_800_000_000_000


def field(id: int, name: str, kind: Any = "long", **more: Any) -> dict[str, Any]:
    return {"id": id, "name": name, "required": False, "type": kind} | more


def schema(*fields: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "struct", "fields": list(fields), **more}


def table(version: int = 2, **request: Any) -> dict[str, Any]:
    given = {"schema": schema(field(7, "k"), field(9, "s", "string")), **request}
    given["properties"] = {"format-version": str(version), **given.get("properties", {})}
    return new_table(given, UUID, "file:///lake/ice/key/branch", NOW)


def snapshot(id: int, sequence: int, parent: int | None = None, **more: Any) -> dict[str, Any]:
    made = {
        "snapshot-id": id,
        "sequence-number": sequence,
        "timestamp-ms": NOW + id,
        "manifest-list": f"file:///m{id}",
        "summary": {"operation": "append"},
        "schema-id": 0,
        **more,
    }
    return made | ({} if parent is None else {"parent-snapshot-id": parent})


MANIFEST_LIST = {
    "type": "record",
    "name": "manifest_file",
    "fields": [{"name": "manifest_path", "type": "string", "field-id": 500}],
}


def listed(tables: Any, id: int, below: str = f"ice/{'0' * 20}/{'1' * 20}") -> dict[str, Any]:
    """Store a manifest list without manifests, as a client would; the field of a snapshot that says where it is."""
    out = io.BytesIO()
    fastavro.writer(out, MANIFEST_LIST, [])
    key = f"{below}/metadata/snap-{id}.avro"
    tables._core.resolver.namespace.put(key, out.getvalue())
    return {"manifest-list": tables._url(key)}


def added(*snapshots: dict[str, Any]) -> list[dict[str, Any]]:
    """Updates that add snapshots and move main to each."""
    steps: list[dict[str, Any]] = []
    for one in snapshots:
        steps.append({"action": "add-snapshot", "snapshot": one})
        steps.append(
            {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": one["snapshot-id"]}
        )
    return steps


def is_a_table(metadata: dict[str, Any]) -> None:
    parsed = TableMetadataUtil.parse_raw(json.dumps(metadata))
    assert str(parsed.table_uuid) == metadata["table-uuid"]
    assert parsed.schema().schema_id == metadata["current-schema-id"]


def on(base: dict[str, Any], *updates: dict[str, Any], **options: Any) -> dict[str, Any]:
    """Apply updates, and look that what they began with is as it was."""
    before = copy.deepcopy(base)
    made = apply(base, updates, NOW + 1_000, **options)
    assert base == before
    is_a_table(made)
    return made
