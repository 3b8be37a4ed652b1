"""Columns of native tables as those of Iceberg's tables, and back; values as both keep them. Pure.

Source: "Appendix D: Single-value serialization" and "Column Projection" (name mapping) of the Iceberg Table Spec.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any

import msgspec
import pyarrow as pa

from strandline.errors import UsageError
from strandline.iceberg.schemas import Json, walk
from strandline.tables.columns import Kind, type_name

_PLAIN = {
    "boolean": "boolean",
    "byte": "int",
    "short": "int",
    "integer": "int",
    "long": "long",
    "float": "float",
    "double": "double",
    "string": "string",
    "binary": "binary",
    "date": "date",
    "timestamp": "timestamptz",
    "timestamp_ntz": "timestamp",
}
_BACK = {name: kind for kind, name in _PLAIN.items() if kind not in ("byte", "short")}
_DECIMAL = re.compile(r"decimal\((\d+),\s*(\d+)\)")
_TEXT = re.compile(r"(?:var)?char\(\d+\)")
_FIXED = re.compile(r"fixed\[\d+\]")
_FORMATS = {"int": "<i", "long": "<q", "float": "<f", "double": "<d", "date": "<i", "boolean": "<?"}
_EPOCH, _EPOCH_DAY = datetime(1970, 1, 1, tzinfo=UTC), date(1970, 1, 1)
_MOMENTS = ("timestamp", "timestamptz")
_EXACT = Context(prec=60)
"""More digits than any column has; of Python's own there are fewer."""


# --- columns of files -------------------------------------------------------------------------------------------------


class Mapped(msgspec.Struct, frozen=True, rename="kebab"):
    """Names by which a name mapping finds a column in files without ids."""

    names: tuple[str, ...] = ()
    field_id: int | None = None
    fields: tuple[Mapped, ...] = ()


def mapping_of(text: str) -> tuple[Mapped, ...]:
    """A table's name mapping, from its property; none of what is malformed, as readers have it."""
    try:
        return msgspec.json.decode(text, type=tuple[Mapped, ...]) if text else ()
    except msgspec.MsgspecError:
        return ()


def field_ids(schema: pa.Schema, mapping: Sequence[Mapped] = ()) -> dict[str, int]:
    """The ids of the columns of a Parquet file, by name as `schemas.walk` has it; of those without one, nothing.

    Iceberg's readers go by them, whatever the names are: by those that the file's writer gave, or else by the table's
    name mapping.
    """
    found = {}
    for path, field in _columns(schema):
        id = (field.metadata or {}).get(b"PARQUET:field_id")
        if id is not None and int(id) >= 0:
            found[".".join(path)] = int(id)
    return found or _mapped(schema, mapping)


def column_names(schema: pa.Schema) -> set[str]:
    """The names of a file's columns and of their parts, as `schemas.walk` has them."""
    return {".".join(path) for path, _ in _columns(schema)}


def _mapped(schema: pa.Schema, mapping: Sequence[Mapped]) -> dict[str, int]:
    found = {}
    for path, _ in _columns(schema):
        one = Mapped(fields=tuple(mapping))
        for name in path:
            one = next((each for each in one.fields if name in each.names), Mapped())
        if one.field_id is not None:
            found[".".join(path)] = one.field_id
    return found


def _columns(schema: pa.Schema) -> Iterator[tuple[tuple[str, ...], pa.Field]]:
    """All that has a name in a file, or a part of a list or a map, and the way to it."""

    def below(field: pa.Field, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], pa.Field]]:
        yield path, field
        kind = field.type
        parts: list[tuple[str, pa.Field]] = []
        if pa.types.is_struct(kind):
            parts = [(one.name, one) for one in kind.fields]
        elif pa.types.is_map(kind):
            parts = [("key", kind.key_field), ("value", kind.item_field)]
        elif pa.types.is_nested(kind):
            parts = [("element", kind.value_field)]
        for name, part in parts:
            yield from below(part, (*path, name))

    for field in schema:
        yield from below(field, (field.name,))


def named_ids(schema: Json) -> dict[str, int]:
    """The ids of all that has one in a schema of Iceberg's, by name."""
    return {name: part.id for name, part in walk(schema)}


# --- types ------------------------------------------------------------------------------------------------------------


def iceberg_fields(fields: Sequence[Mapping[str, Any]]) -> list[Json]:
    """Columns in Spark's schema JSON as fields of an Iceberg schema, numbered from 1, inner ones behind outer ones.

    Raises:
        UsageError: Iceberg does not have a type.
    """
    number = 0

    def following() -> int:
        nonlocal number
        number += 1
        return number

    def made(kind: Any, column: str) -> Any:
        if isinstance(kind, str):
            if kind in _PLAIN:
                return _PLAIN[kind]
            if found := _DECIMAL.fullmatch(kind):
                return f"decimal({found[1]}, {found[2]})"
            if _TEXT.fullmatch(kind):
                return "string"
        elif kind.get("type") == "struct":
            return {"type": "struct", "fields": struct_of(kind["fields"], f"{column}.")}
        elif kind.get("type") == "array":
            id = following()
            element = made(kind["elementType"], f"{column}.element")
            return {"type": "list", "element-id": id, "element-required": False, "element": element}
        elif kind.get("type") == "map":
            key_id, value_id = following(), following()
            return {
                "type": "map",
                "key-id": key_id,
                "key": made(kind["keyType"], f"{column}.key"),
                "value-id": value_id,
                "value-required": False,
                "value": made(kind["valueType"], f"{column}.value"),
            }
        raise UsageError(
            f"Column {column!r} has the type {type_name(kind)}, which Iceberg does not have.",
            next="Write the table anew with another type.",
        )

    def struct_of(some: Sequence[Mapping[str, Any]], prefix: str) -> list[Json]:
        ids = [following() for _ in some]
        return [
            {"id": id, "name": one["name"], "required": False, "type": made(one["type"], f"{prefix}{one['name']}")}
            for id, one in zip(ids, some, strict=True)
        ]

    return struct_of(fields, "")


def name_mapping(fields: Sequence[Json]) -> list[Json]:
    """By which readers find the columns in files that were written without ids."""

    def inner(kind: Any) -> list[Json]:
        if isinstance(kind, str):
            return []
        if kind["type"] == "struct":
            return name_mapping(kind["fields"])
        if kind["type"] == "list":
            return [named(kind["element-id"], "element", kind["element"])]
        return [named(kind["key-id"], "key", kind["key"]), named(kind["value-id"], "value", kind["value"])]

    def named(id: int, name: str, kind: Any) -> Json:
        fields = inner(kind)
        return {"field-id": id, "names": [name], **({"fields": fields} if fields else {})}

    return [named(one["id"], one["name"], one["type"]) for one in fields]


def spark_type(kind: Any, column: str) -> Any:
    """A type of an Iceberg schema as Spark's schema JSON has it.

    Raises:
        UsageError: native tables do not hold it.
    """
    if isinstance(kind, str):
        if kind in _BACK:
            return _BACK[kind]
        if found := _DECIMAL.fullmatch(kind):
            return f"decimal({found[1]},{found[2]})"
        if _FIXED.fullmatch(kind):
            return "binary"
    elif kind["type"] == "struct":
        return {"type": "struct", "fields": spark_fields(kind["fields"], f"{column}.")}
    elif kind["type"] == "list":
        return {
            "type": "array",
            "elementType": spark_type(kind["element"], f"{column}.element"),
            "containsNull": not kind["element-required"],
        }
    elif kind["type"] == "map":
        return {
            "type": "map",
            "keyType": spark_type(kind["key"], f"{column}.key"),
            "valueType": spark_type(kind["value"], f"{column}.value"),
            "valueContainsNull": not kind["value-required"],
        }
    raise UsageError(
        f"Column {column!r} has the type {kind if isinstance(kind, str) else kind['type']}, which native tables do not "
        "hold.",
        next="Change the column with an engine first, or leave the table with Iceberg.",
    )


def spark_fields(fields: Sequence[Json], prefix: str = "") -> list[Json]:
    """The fields of an Iceberg schema as columns in Spark's schema JSON."""
    return [
        {
            "name": one["name"],
            "type": spark_type(one["type"], prefix + one["name"]),
            "nullable": True,
            "metadata": {},
        }
        for one in fields
    ]


# --- values -----------------------------------------------------------------------------------------------------------


def plain_value(value: Any, kind: str) -> Any:
    """A value of a column, as conditions compare it, in the type that Iceberg's value of it has."""
    if value is None:
        return None
    if kind in _MOMENTS:
        return value if isinstance(value, int) else (value.astimezone(UTC) - _EPOCH) // timedelta(microseconds=1)
    if kind == "date":
        return value if isinstance(value, int) else (value - _EPOCH_DAY).days
    if kind in ("float", "double"):
        return float(value)
    if found := _DECIMAL.fullmatch(kind):
        return Decimal(value).quantize(Decimal(1).scaleb(-int(found[2])), context=_EXACT)
    return value


def value_bytes(value: Any, kind: str) -> bytes:
    """A value as bounds of files hold it; see `plain_value`."""
    if kind in _FORMATS:
        return struct.pack(_FORMATS[kind], value)
    if kind in _MOMENTS:
        return struct.pack("<q", value)
    if kind == "string":
        return bytes(value.encode())
    if found := _DECIMAL.fullmatch(kind):
        unscaled = int(value.scaleb(int(found[2]), _EXACT))
        return unscaled.to_bytes((unscaled + (unscaled < 0)).bit_length() // 8 + 1, "big", signed=True)
    return bytes(value)


def bound_of(data: bytes, kind: str) -> Any:
    """The value of a bound, as statistics of native tables hold it: `statistics.as_json`; None if it is of no use.

    A bound may be of a narrower type than the column, which was widened later.
    """
    try:
        if kind in ("int", "long"):
            return int.from_bytes(data, "little", signed=True)
        if kind in ("float", "double"):
            return struct.unpack("<f" if len(data) == 4 else "<d", data)[0]
        if kind == "boolean":
            return bool(data[0])
        if kind == "date":
            return _EPOCH_DAY + timedelta(days=struct.unpack("<i", data)[0])
        if kind in _MOMENTS:
            return _EPOCH + timedelta(microseconds=struct.unpack("<q", data)[0])
        if kind == "string":
            return data.decode()
        if found := _DECIMAL.fullmatch(kind):
            return Decimal(int.from_bytes(data, "big", signed=True)).scaleb(-int(found[2]), _EXACT)
    except (struct.error, ValueError, OverflowError, IndexError):
        return None
    return None


AvroType = str | dict[str, Any]
_AVRO: dict[str, AvroType | Callable[..., AvroType]] = {
    "boolean": "boolean",
    "int": "int",
    "long": "long",
    "float": "float",
    "double": "double",
    "string": "string",
    "binary": "bytes",
    "date": {"type": "int", "logicalType": "date"},
    "timestamp": {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": False},
    "timestamptz": {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": True},
}


def avro_type(kind: str) -> Any:
    """The type of a partition value in manifests."""
    if found := _DECIMAL.fullmatch(kind):
        precision, scale = int(found[1]), int(found[2])
        size = next(size for size in range(1, 17) if 2 ** (8 * size - 1) > 10**precision)
        named = f"decimal_{precision}_{scale}"
        return {
            "type": "fixed",
            "name": named,
            "size": size,
            "logicalType": "decimal",
            "precision": precision,
            "scale": scale,
        }
    return _AVRO[kind]


KINDS: dict[str, Kind] = {
    "boolean": "boolean",
    "int": "integer",
    "long": "integer",
    "float": "float",
    "double": "float",
    "string": "string",
    "date": "date",
    "timestamp": "timestamp_ntz",
    "timestamptz": "timestamp",
}
"""As what values of a type compare in native tables."""


def kind_of_type(kind: Any) -> Kind | None:
    """As what values of a type compare in native tables; None if they are not compared there."""
    if not isinstance(kind, str):
        return None
    return "decimal" if _DECIMAL.fullmatch(kind) else KINDS.get(kind)
