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
        f"Column {column!r} has the type {kind!r}, which only Spark reads.", next="Read the table with to_spark."
    )
