"""Schemas of tables as plain JSON: ids, names, and what a version of the format allows. Pure.

Source: "Schemas and Data Types" and "Appendix C: JSON serialization" of the Iceberg Table Spec, versions 1 to 3.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import msgspec

from strandline.iceberg.refusals import BadUpdate
from strandline.iceberg.shapes import List, Map, Schema, Structure, check_shape

Json = dict[str, Any]
DEPTH_MAX = 100
"""Of types in types; JSON of clients may nest as deep as it likes."""
FIRST_SCHEMA_ID = 0
_PLAIN = frozenset(
    "boolean int long float double date time timestamp timestamptz string uuid binary".split()  # noqa: SIM905
)
_SINCE_3 = re.compile(r"timestamp_ns|timestamptz_ns|unknown|variant|geometry(\(.*\))?|geography(\(.*\))?")
_FIXED = re.compile(r"fixed\[([1-9]\d{0,8})\]", re.ASCII)
_DECIMAL = re.compile(r"decimal\(\s*(\d{1,2})\s*,\s*(\d{1,2})\s*\)", re.ASCII)
PRECISION_MAX = 38
_SHAPES: dict[str, type[msgspec.Struct]] = {"struct": Structure, "list": List, "map": Map}


class _Part:
    """A field, an element, a key or a value: whatever has an id and a type of its own."""

    __slots__ = ("holder", "id_key", "name", "type_key")

    def __init__(self, holder: Json, id_key: str, type_key: str, name: str) -> None:
        self.holder = holder
        self.id_key = id_key
        self.type_key = type_key
        self.name = name

    @property
    def id(self) -> int:
        return int(self.holder[self.id_key])

    @property
    def type(self) -> Any:
        return self.holder[self.type_key]


def _parts(kind: Any) -> list[_Part]:
    """What a type holds directly; nothing of a primitive one.

    Raises:
        BadUpdate: it is not a type.
    """
    if isinstance(kind, str):
        return []
    name = kind.get("type") if isinstance(kind, dict) else None
    if isinstance(name, str) and name in _SHAPES:
        check_shape(kind, _SHAPES[name], f"A {name} of the schema")
        if name == "struct":
            return [_Part(field, "id", "type", field["name"]) for field in kind["fields"]]
        if name == "list":
            return [_Part(kind, "element-id", "element", "element")]
        return [_Part(kind, "key-id", "key", "key"), _Part(kind, "value-id", "value", "value")]
    raise BadUpdate(f"The schema has a type that is not known: {str(kind)[:80]}.")


def walk(schema: Json) -> Iterator[tuple[str, _Part]]:
    """All that has an id, with its full name, outer ones first.

    Raises:
        BadUpdate: the schema is malformed, or nests too deeply.
    """
    level = [("", schema, 0)]
    while level:
        following = []
        for prefix, kind, depth in level:
            if depth > DEPTH_MAX:
                raise BadUpdate(f"The schema nests more than {DEPTH_MAX} types.")
            for part in _parts(kind):
                name = f"{prefix}.{part.name}" if prefix else str(part.name)
                yield name, part
                following.append((name, part.type, depth + 1))
        level = following


def check(schema: Any, version: int) -> None:
    """Raise `BadUpdate` unless a table of this format version can have the schema."""
    check_shape(schema, Schema, "The schema")
    ids: set[int] = set()
    names: set[str] = set()
    for name, part in walk(schema):
        number = part.id
        if number in ids or name in names:
            raise BadUpdate(f"The id or the name of {name[:80]!r} is there twice.")
        ids.add(number)
        names.add(name)
        if isinstance(part.type, str):
            _check_primitive(part.type, name, version)
        if version < 3 and part.holder.get("initial-default") is not None:
            raise BadUpdate(f"{name[:80]!r} has an initial default, which tables of version {version} cannot have.")
    _check_identifiers(schema)


def _check_identifiers(schema: Json) -> None:
    """Raise `BadUpdate` unless each identifier is a column that always holds a value, of a type that is compared."""
    wanted = schema.get("identifier-field-ids") or ()
    parts = {part.id: part for _, part in walk(schema)} if wanted else {}
    for number in wanted:
        part = parts.get(number)
        is_plain = part is not None and isinstance(part.type, str) and part.type not in ("float", "double")
        if part is None or not is_plain or not part.holder.get("required"):
            raise BadUpdate(f"Field {number} cannot be an identifier: it has to be a required column of a plain type.")


def _check_primitive(kind: str, name: str, version: int) -> None:
    decimal = _DECIMAL.fullmatch(kind)
    if decimal and 1 <= int(decimal[1]) <= PRECISION_MAX and int(decimal[2]) <= int(decimal[1]):
        return
    if kind in _PLAIN or _FIXED.fullmatch(kind):
        return
    if not _SINCE_3.fullmatch(kind):
        raise BadUpdate(f"{name[:80]!r} is of the type {kind[:80]!r}, which is not known.")
    if version < 3:
        raise BadUpdate(f"{name[:80]!r} is of the type {kind[:80]!r}, which tables of version {version} cannot have.")


def highest_id(schema: Json) -> int:
    """The greatest id of a field, an element, a key or a value; 0 of a schema without fields."""
    return max((part.id for _, part in walk(schema)), default=0)


def types_by_id(schema: Json) -> dict[int, Any]:
    """By the id of whatever has one, its type."""
    return {part.id: part.type for _, part in walk(schema)}


def content(schema: Json) -> Json:
    """What makes two schemas the same: all but their own id."""
    return {
        "fields": schema.get("fields"),
        "identifier-field-ids": sorted(schema.get("identifier-field-ids") or ()),
    }


def with_fresh_ids(schema: Json) -> tuple[Json, dict[int, int]]:
    """The schema of a new table, whose ids are given from 1 on, a struct's before those within; and by old id the new.

    Source: what Iceberg's own catalogs do with the schema of a request, so that ids of another table mean nothing.
    """
    numbers = count(1)
    given: dict[int, int] = {}

    def fresh(old: int) -> int:
        given[old] = new = next(numbers)
        return new

    made = _renumbered(schema, fresh)
    made["schema-id"] = FIRST_SCHEMA_ID
    if schema.get("identifier-field-ids"):
        made["identifier-field-ids"] = [given[old] for old in schema["identifier-field-ids"]]
    return made, given


def _renumbered(kind: Any, fresh: Callable[[int], int]) -> Any:
    if isinstance(kind, str):
        return kind
    made = dict(kind)
    if kind["type"] == "struct":
        made["fields"] = fields = [{**field, "id": fresh(field["id"])} for field in kind["fields"]]
        for field in fields:
            field["type"] = _renumbered(field["type"], fresh)
        return made
    parts = _parts(made)
    for part in parts:
        made[part.id_key] = fresh(part.id)
    for part in parts:
        made[part.type_key] = _renumbered(part.type, fresh)
    return made
