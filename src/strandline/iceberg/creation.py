"""The metadata of a new table, from a request that makes one. Pure."""

from __future__ import annotations

from typing import Any

from strandline.iceberg.building import VERSION_MAX
from strandline.iceberg.partitions import with_sources
from strandline.iceberg.refusals import BadUpdate
from strandline.iceberg.schemas import Json, check, with_fresh_ids
from strandline.iceberg.shapes import check_request
from strandline.iceberg.updates import apply

VERSION = "format-version"
VERSION_DEFAULT = 2


def new_table(request: Json, uuid: str, location: str, now_ms: int) -> Json:
    """The metadata of a table without snapshots, whose columns and partition fields have new ids.

    Args:
        request: `schema`, and perhaps `partition-spec`, `write-order` and `properties`, where the version of the format
            is a property.

    Raises:
        BadUpdate: it is malformed, or does not fit together.
    """
    check_request(request)
    given = request.get("properties") or {}
    text = given.get(VERSION, str(VERSION_DEFAULT))
    if text not in map(str, range(1, VERSION_MAX + 1)):
        raise BadUpdate(f"The format version {text[:20]!r} is not one of 1 to {VERSION_MAX}.")
    check(request.get("schema"), int(text))
    schema, new_ids = with_fresh_ids(request["schema"])
    spec = with_sources(_given(request, "partition-spec"), new_ids, "partition spec")
    order = with_sources(_given(request, "write-order"), new_ids, "sort order")
    updates = [
        {"action": "assign-uuid", "uuid": uuid},
        {"action": "upgrade-format-version", "format-version": int(text)},
        {"action": "add-schema", "schema": schema},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "add-spec", "spec": spec},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": order},
        {"action": "set-default-sort-order", "sort-order-id": -1},
        {"action": "set-properties", "updates": {name: value for name, value in given.items() if name != VERSION}},
    ]
    return {**apply(None, updates, now_ms), "location": location}


def _given(request: Json, name: str) -> Any:
    found = request.get(name)
    return {"fields": []} if found is None else found
