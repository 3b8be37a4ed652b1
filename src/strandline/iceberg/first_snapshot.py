"""The first snapshot of a table whose files are there already: its manifests, and the list of them. Pure.

Source: "Manifests" and "Manifest Lists" of the Iceberg Table Spec, version 2.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from strandline.iceberg.building import MAIN
from strandline.iceberg.live import ADDED, DATA, avro_bytes
from strandline.iceberg.native_types import avro_type, value_bytes
from strandline.iceberg.replay import SNAPSHOT_ID_BITS
from strandline.iceberg.schemas import Json

FILES_PER_MANIFEST = 10_000
SEQUENCE = 1
SPEC_ID = 0


@dataclass(frozen=True, slots=True)
class NewFile:
    """A data file.

    Attributes:
        partition: values of the partition columns by their names, as `native_types.plain_value` has them.
        nulls: how many there are, by column id.
        lower, upper: bounds by column id, as `native_types.value_bytes` has them.
    """

    location: str
    size: int
    rows: int
    partition: dict[str, Any] = field(default_factory=dict)
    nulls: dict[int, int] = field(default_factory=dict)
    lower: dict[int, bytes] = field(default_factory=dict)
    upper: dict[int, bytes] = field(default_factory=dict)


def avro_name(name: str) -> str:
    """The name of a field in Avro's schemas, as Iceberg's specification makes it of any name; readers go by its id."""
    spelled = "".join(one if one == "_" or (one.isascii() and one.isalnum()) else f"_x{ord(one):X}" for one in name)
    return f"_{spelled}" if spelled[:1].isdigit() else spelled


def _field(name: str, id: int, kind: Any, *, optional: bool = False) -> Json:
    return {"name": name, "field-id": id, "type": ["null", kind] if optional else kind} | (
        {"default": None} if optional else {}
    )


def _map(key_id: int, value_id: int, kind: str) -> Json:
    """A map by column id, which Avro's own maps cannot be: their keys are texts."""
    fields = [_field("key", key_id, "int"), _field("value", value_id, kind)]
    pair = {"type": "record", "name": f"k{key_id}_v{value_id}", "fields": fields}
    return {"type": "array", "logicalType": "map", "items": pair}


def _entry_schema(partition: Sequence[tuple[int, str, str]]) -> Json:
    """Of the entries of a manifest.

    Args:
        partition: the id, the name and the type of each partition field.
    """
    values = [_field(avro_name(name), id, avro_type(kind), optional=True) for id, name, kind in partition]
    data_file = [
        _field("content", 134, "int"),
        _field("file_path", 100, "string"),
        _field("file_format", 101, "string"),
        _field("partition", 102, {"type": "record", "name": "r102", "fields": values}),
        _field("record_count", 103, "long"),
        _field("file_size_in_bytes", 104, "long"),
        _field("null_value_counts", 110, _map(121, 122, "long"), optional=True),
        _field("lower_bounds", 125, _map(126, 127, "bytes"), optional=True),
        _field("upper_bounds", 128, _map(129, 130, "bytes"), optional=True),
    ]
    fields = [
        _field("status", 0, "int"),
        _field("snapshot_id", 1, "long", optional=True),
        _field("sequence_number", 3, "long", optional=True),
        _field("file_sequence_number", 4, "long", optional=True),
        _field("data_file", 2, {"type": "record", "name": "r2", "fields": data_file}),
    ]
    return {"type": "record", "name": "manifest_entry", "fields": fields}


_SUMMARY = {
    "type": "record",
    "name": "r508",
    "fields": [
        _field("contains_null", 509, "boolean"),
        _field("contains_nan", 518, "boolean", optional=True),
        _field("lower_bound", 510, "bytes", optional=True),
        _field("upper_bound", 511, "bytes", optional=True),
    ],
}
_LIST_SCHEMA = {
    "type": "record",
    "name": "manifest_file",
    "fields": [
        _field("manifest_path", 500, "string"),
        _field("manifest_length", 501, "long"),
        _field("partition_spec_id", 502, "int"),
        _field("content", 517, "int"),
        _field("sequence_number", 515, "long"),
        _field("min_sequence_number", 516, "long"),
        _field("added_snapshot_id", 503, "long"),
        *(
            _field(f"{word}_files_count", id, "int")
            for word, id in (("added", 504), ("existing", 505), ("deleted", 506))
        ),
        *(
            _field(f"{word}_rows_count", id, "long")
            for word, id in (("added", 512), ("existing", 513), ("deleted", 514))
        ),
        _field("partitions", 507, {"type": "array", "items": _SUMMARY, "element-id": 508}, optional=True),
    ],
}


def first_snapshot(
    table: Json, files: Sequence[NewFile], new_key: Callable[[str], str], place: Callable[[str], str], now_ms: int
) -> tuple[list[Json], dict[str, bytes]]:
    """The updates that give a table without snapshots its files, and what has to be stored for that, by key.

    Args:
        table: its metadata, of version 2.
        new_key: where a file of the table goes, from the beginning of its name.
        place: where clients find the file of a key.
    """
    schema = next(one for one in table["schemas"] if one["schema-id"] == table["current-schema-id"])
    spec = next(one for one in table["partition-specs"] if one["spec-id"] == table["default-spec-id"])
    kinds = {one["id"]: one["type"] for one in schema["fields"]}
    partition = [(one["field-id"], one["name"], kinds[one["source-id"]]) for one in spec["fields"]]
    number = secrets.randbits(SNAPSHOT_ID_BITS) + 1
    header = {
        "schema": json.dumps(schema),
        "schema-id": str(schema["schema-id"]),
        "partition-spec": json.dumps(spec["fields"]),
        "partition-spec-id": str(spec["spec-id"]),
        "format-version": "2",
        "content": "data",
    }
    stored: dict[str, bytes] = {}
    listed = []
    for first in range(0, len(files), FILES_PER_MANIFEST):
        some = files[first : first + FILES_PER_MANIFEST]
        key = new_key("first")
        stored[key] = avro_bytes([_entry(one) for one in some], _entry_schema(partition), header)
        listed.append(
            {
                "manifest_path": place(key),
                "manifest_length": len(stored[key]),
                "partition_spec_id": spec["spec-id"],
                "content": DATA,
                "sequence_number": SEQUENCE,
                "min_sequence_number": SEQUENCE,
                "added_snapshot_id": number,
                "added_files_count": len(some),
                "added_rows_count": sum(one.rows for one in some),
                "partitions": [_summary_of([one.partition[name] for one in some], kind) for _, name, kind in partition],
                **{f"{word}_{what}_count": 0 for word in ("existing", "deleted") for what in ("files", "rows")},
            }
        )
    key = new_key(f"snap-{number}-1")
    of_list = {"snapshot-id": str(number), "sequence-number": str(SEQUENCE), "format-version": "2"}
    stored[key] = avro_bytes(listed, _LIST_SCHEMA, of_list)
    rows, size = sum(one.rows for one in files), sum(one.size for one in files)
    counts = {"data-files": len(files), "records": rows, "files-size": size}
    summary = {f"{word}-{name}": str(count) for word in ("added", "total") for name, count in counts.items()}
    deletes = {f"total-{name}": "0" for name in ("delete-files", "position-deletes", "equality-deletes")}
    snapshot = {
        "snapshot-id": number,
        "sequence-number": SEQUENCE,
        "timestamp-ms": max(now_ms, table["last-updated-ms"]),
        "manifest-list": place(key),
        "summary": {"operation": "append", **summary, **deletes},
        "schema-id": schema["schema-id"],
    }
    move = {"action": "set-snapshot-ref", "ref-name": MAIN, "type": "branch", "snapshot-id": number}
    return [{"action": "add-snapshot", "snapshot": snapshot}, move], stored


def _entry(file: NewFile) -> Json:
    def pairs(held: dict[int, Any]) -> list[Json]:
        return [{"key": id, "value": value} for id, value in sorted(held.items())]

    return {
        "status": ADDED,
        "snapshot_id": None,
        "sequence_number": None,
        "file_sequence_number": None,
        "data_file": {
            "content": DATA,
            "file_path": file.location,
            "file_format": "PARQUET",
            "partition": {avro_name(name): value for name, value in file.partition.items()},
            "record_count": file.rows,
            "file_size_in_bytes": file.size,
            "null_value_counts": pairs(file.nulls),
            "lower_bounds": pairs(file.lower),
            "upper_bounds": pairs(file.upper),
        },
    }


def _summary_of(values: Sequence[Any], kind: str) -> Json:
    """What a list says of the values of a partition field in a manifest."""
    held = [one for one in values if one is not None and one == one]  # not a number is not compared
    return {
        "contains_null": None in values,
        "contains_nan": any(one != one for one in values if one is not None),
        "lower_bound": value_bytes(min(held), kind) if held else None,
        "upper_bound": value_bytes(max(held), kind) if held else None,
    }
