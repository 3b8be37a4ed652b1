"""Columns of a table: their kinds, which changes of type are a widening, and their Arrow types."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

import pyarrow as pa

from strandline.errors import UsageError

Kind = Literal["integer", "float", "decimal", "string", "date", "timestamp", "timestamp_ntz", "boolean", "binary"]
"""What values of a column compare as."""

_KINDS: dict[str, Kind] = {
    "byte": "integer",
    "short": "integer",
    "integer": "integer",
    "long": "integer",
    "float": "float",
    "double": "float",
    "string": "string",
    "date": "date",
    "timestamp": "timestamp",
    "timestamp_ntz": "timestamp_ntz",
    "boolean": "boolean",
    "binary": "binary",
}
_ARROW = {
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
}
_DECIMAL = re.compile(r"decimal\((\d+),\s*(\d+)\)")
_INTEGER_DIGITS = {"byte": 3, "short": 5, "integer": 10, "long": 20}
_WIDER = {
    "byte": ("short", "integer", "long"),
    "short": ("integer", "long"),
    "integer": ("long", "double"),
    "float": ("double",),
}


def kind_of(field: Mapping[str, Any]) -> Kind | None:
    """How values of a column compare, given as in Spark's schema JSON; None if they are not compared here."""
    kind = field["type"]
    if not isinstance(kind, str) or any(name.startswith("__") for name in field.get("metadata") or ()):
        return None  # Spark marks collations and padded text in the metadata
    return "decimal" if _DECIMAL.fullmatch(kind) else _KINDS.get(kind)


def is_widening(narrow: Any, wide: Any) -> bool:
    """Whether each value of one type is a value of the other, and readers of old files know how to make it one."""
    if not isinstance(narrow, str) or not isinstance(wide, str):
        return False
    if wide in _WIDER.get(narrow, ()):
        return True
    into = _DECIMAL.fullmatch(wide)
    if into is None:
        return False
    precision, scale = int(into[1]), int(into[2])
    if narrow in _INTEGER_DIGITS:
        return precision - scale >= _INTEGER_DIGITS[narrow]
    held = _DECIMAL.fullmatch(narrow)
    return held is not None and precision - scale >= int(held[1]) - int(held[2]) and scale >= int(held[2])


def same_type(left: Any, right: Any) -> bool:
    """Whether two types differ at most in whether nulls may occur."""
    return bool(_without_nullability(left) == _without_nullability(right))


def _without_nullability(kind: Any) -> Any:
    if isinstance(kind, dict):
        skipped = ("nullable", "containsNull", "valueContainsNull", "metadata")
        return {key: _without_nullability(value) for key, value in kind.items() if key not in skipped}
    if isinstance(kind, list):
        return [_without_nullability(item) for item in kind]
    return kind


def type_name(kind: Any) -> str:
    """A type of Spark's schema JSON as SQL writes it, such as `array<struct<a: long>>`."""
    if not isinstance(kind, Mapping):
        return str(kind)
    if kind["type"] == "array":
        return f"array<{type_name(kind['elementType'])}>"
    if kind["type"] == "map":
        return f"map<{type_name(kind['keyType'])}, {type_name(kind['valueType'])}>"
    if kind["type"] == "struct":
        fields = (f"{field['name']}: {type_name(field['type'])}" for field in kind["fields"])
        return f"struct<{', '.join(fields)}>"
    return str(kind["type"])


def arrow_type(kind: Any, column: str) -> pa.DataType:
    """The Arrow type of a type of Spark's schema JSON.

    Raises:
        UsageError: it has none.
    """
    if isinstance(kind, str):
        if found := _DECIMAL.fullmatch(kind):
            return pa.decimal128(int(found[1]), int(found[2]))
        if kind in _ARROW:
            return _ARROW[kind]
        if kind.startswith(("char(", "varchar(")):
            return pa.string()
    elif isinstance(kind, Mapping):
        if kind["type"] == "array":
            return pa.list_(pa.field("element", arrow_type(kind["elementType"], column)))
        if kind["type"] == "map":
            return pa.map_(arrow_type(kind["keyType"], column), arrow_type(kind["valueType"], column))
        if kind["type"] == "struct":
            return pa.struct([pa.field(f["name"], arrow_type(f["type"], column)) for f in kind["fields"]])
    raise UsageError(
        f"Column {column!r} has the type {type_name(kind)}, which only Spark reads.",
        next="Read the table with to_spark.",
    )


_SPARK = {kind: name for name, kind in _ARROW.items()} | {
    # wider types of Spark's for those that it does not have, and other layouts of the same values
    pa.uint8(): "short",
    pa.uint16(): "integer",
    pa.uint32(): "long",
    pa.float16(): "float",
    pa.large_string(): "string",
    pa.string_view(): "string",
    pa.large_binary(): "binary",
    pa.binary_view(): "binary",
    pa.date64(): "date",
}


def spark_fields(schema: pa.Schema) -> list[dict[str, Any]]:
    """The columns of Arrow data as Spark's schema JSON has them.

    Raises:
        UsageError: a type has no values that a table could hold.
    """
    return [_spark_field(field, field.name) for field in schema]


def _spark_field(field: pa.Field, column: str) -> dict[str, Any]:
    return {"name": field.name, "type": spark_type(field.type, column), "nullable": field.nullable, "metadata": {}}


def spark_type(kind: pa.DataType, column: str) -> Any:
    """The type of Spark's schema JSON whose values hold those of an Arrow type."""
    if kind in _SPARK:
        return _SPARK[kind]
    if pa.types.is_null(kind):
        return "void"
    if pa.types.is_dictionary(kind):
        return spark_type(kind.value_type, column)
    if pa.types.is_timestamp(kind):
        return "timestamp_ntz" if kind.tz is None else "timestamp"
    if pa.types.is_fixed_size_binary(kind):
        return "binary"
    if pa.types.is_decimal(kind) and 1 <= kind.precision <= 38 and 0 <= kind.scale <= kind.precision:
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        element = spark_type(kind.value_type, column)
        return {"type": "array", "elementType": element, "containsNull": kind.value_field.nullable}
    if pa.types.is_map(kind):
        return {
            "type": "map",
            "keyType": spark_type(kind.key_type, column),
            "valueType": spark_type(kind.item_type, column),
            "valueContainsNull": kind.item_field.nullable,
        }
    if pa.types.is_struct(kind):
        return {"type": "struct", "fields": [_spark_field(kind.field(at), column) for at in range(kind.num_fields)]}
    raise UsageError(
        f"Column {column!r} has the Arrow type {kind}, which tables do not hold.",
        next="Cast it: unsigned 64-bit numbers to decimal(20, 0), times of day and durations to integers or text.",
    )
