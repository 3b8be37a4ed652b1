"""The shapes of what clients send, as far as something is read in it. What is not known here passes as it is. Pure.

Source: the schemas of the REST catalog specification of Iceberg.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec

from strandline.iceberg.refusals import BadUpdate

UPDATES_MAX = 10_000
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Positive = Annotated[int, msgspec.Meta(gt=0, le=2**63 - 1)]
FieldId = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class _Shape(msgspec.Struct, rename="kebab"):
    pass


class Field(_Shape):
    """A field of a struct."""

    id: FieldId
    name: str
    required: bool
    type: str | dict[str, Any]


class List(_Shape):
    """A list's type."""

    element_id: FieldId
    element: str | dict[str, Any]
    element_required: bool


class Map(_Shape):
    """A map's type."""

    key_id: FieldId
    key: str | dict[str, Any]
    value_id: FieldId
    value: str | dict[str, Any]
    value_required: bool


class Structure(_Shape):
    """A struct's type."""

    fields: list[Field]


class Schema(Structure):
    """The schema of a table."""

    type: Literal["struct"]
    schema_id: int | None = None
    identifier_field_ids: list[int] | None = None


class _PartitionField(_Shape):
    name: str
    transform: str
    source_id: int | None = None
    source_ids: list[int] | None = None
    field_id: FieldId | None = None


class Spec(_Shape):
    """A partition spec."""

    fields: list[_PartitionField]


class _SortField(_Shape):
    transform: str
    direction: Literal["asc", "desc"]
    null_order: Literal["nulls-first", "nulls-last"]
    source_id: int | None = None
    source_ids: list[int] | None = None


class Order(_Shape):
    """A sort order."""

    fields: list[_SortField]


class _Snapshot(_Shape):
    snapshot_id: Int64
    timestamp_ms: Count
    summary: dict[str, str] | None = None
    manifest_list: str | None = None
    manifests: list[str] | None = None
    sequence_number: Count | None = None
    parent_snapshot_id: Int64 | None = None
    schema_id: int | None = None
    first_row_id: Count | None = None
    added_rows: Count | None = None


class _Statistics(_Shape):
    snapshot_id: Int64
    statistics_path: str
    file_size_in_bytes: Count
    file_footer_size_in_bytes: Count
    blob_metadata: list[dict[str, Any]]


class _PartitionStatistics(_Shape):
    snapshot_id: Int64
    statistics_path: str
    file_size_in_bytes: Count


class _Key(_Shape):
    key_id: str


class _AddSchema(_Shape):
    schema: Schema


class _AddSpec(_Shape):
    spec: Spec


class _AddOrder(_Shape):
    sort_order: Order


class _AddSnapshot(_Shape):
    snapshot: _Snapshot


class _SetRef(_Shape):
    ref_name: str
    type: Literal["branch", "tag"]
    snapshot_id: Int64
    min_snapshots_to_keep: Positive | None = None
    max_snapshot_age_ms: Positive | None = None
    max_ref_age_ms: Positive | None = None


class _SetStatistics(_Shape):
    statistics: _Statistics


class _SetPartitionStatistics(_Shape):
    partition_statistics: _PartitionStatistics


class _SetProperties(_Shape):
    updates: dict[str, str]


class _RemoveProperties(_Shape):
    removals: list[str]


class _AddKey(_Shape):
    encryption_key: _Key


class _SetLocation(_Shape):
    location: str


_UPDATES: dict[str, type[_Shape]] = {
    "add-schema": _AddSchema,
    "add-spec": _AddSpec,
    "add-sort-order": _AddOrder,
    "add-snapshot": _AddSnapshot,
    "set-snapshot-ref": _SetRef,
    "set-statistics": _SetStatistics,
    "set-partition-statistics": _SetPartitionStatistics,
    "set-properties": _SetProperties,
    "remove-properties": _RemoveProperties,
    "add-encryption-key": _AddKey,
    "set-location": _SetLocation,
}


class _Request(_Shape):
    schema: Schema
    partition_spec: Spec | None = None
    write_order: Order | None = None
    properties: dict[str, str] | None = None


class _Metadata(_Shape):
    format_version: Literal[1, 2, 3]
    table_uuid: str
    last_updated_ms: Count
    last_column_id: Count
    schemas: list[Schema]
    partition_specs: list[Spec]
    current_schema_id: int
    default_spec_id: int
    properties: dict[str, str] | None = None
    snapshots: list[_Snapshot] | None = None


def check_shape(value: Any, kind: type[msgspec.Struct], what: str) -> None:
    """Raise `BadUpdate` unless a value has a shape."""
    try:
        msgspec.convert(value, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise BadUpdate(f"{what} is malformed: {error}.") from None


def check_updates(updates: Any) -> None:
    """Raise `BadUpdate` unless updates are a list of objects with an action, each of its action's shape."""
    if not isinstance(updates, Sequence) or isinstance(updates, str | bytes):
        raise BadUpdate("The updates of a request are a list.")
    if len(updates) > UPDATES_MAX:
        raise BadUpdate(f"The request has more than {UPDATES_MAX:,} updates.")
    for one in updates:
        action = one.get("action") if isinstance(one, dict) else None
        if not isinstance(action, str):
            raise BadUpdate(f"The update {str(one)[:80]!r} names no action.")
        kind = _UPDATES.get(action)
        if kind is not None:
            check_shape(one, kind, f"The update {action}")


def check_request(request: Any) -> None:
    """Raise `BadUpdate` unless a request to make a table has its shape."""
    check_shape(request, _Request, "The request to make a table")


def check_metadata(metadata: Any) -> None:
    """Raise `BadUpdate` unless this is the metadata of a table, as far as it is read here."""
    check_shape(metadata, _Metadata, "The metadata")


def encoded(value: Any) -> bytes:
    """A value as JSON; raises `BadUpdate` if a text in it is not Unicode."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError as error:
        raise BadUpdate(f"A text of the request is not Unicode: {error.reason}.") from None
