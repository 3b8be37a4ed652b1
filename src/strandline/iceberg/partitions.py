"""Partition specs and sort orders as plain JSON: ids, and whether they fit a schema. Pure.

Source: "Partitioning" and "Sorting" of the Iceberg Table Spec.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from strandline.iceberg.refusals import BadUpdate
from strandline.iceberg.schemas import Json, types_by_id, walk
from strandline.iceberg.shapes import Order, Spec, check_shape

FIRST_FIELD_ID = 1_000
UNSORTED_ID = 0
FIRST_ORDER_ID = 1
NO_TRANSFORM = "void"
_WIDTH = re.compile(r"(?:bucket|truncate)\[(\d{1,10})\]", re.ASCII)
_DAYS = ("date", "timestamp")
_OF_TIME = {"year": _DAYS, "month": _DAYS, "day": _DAYS, "hour": ("timestamp",)}
"""What the types of columns begin with that these transforms are for."""


def _sources(field: Json) -> list[int]:
    found = field.get("source-ids") or [field.get("source-id")]
    if not all(isinstance(one, int) and not isinstance(one, bool) for one in found):
        raise BadUpdate("A field of a spec or an order names no source column.")
    return list(found)


def _fields(given: Any, what: str) -> list[Json]:
    check_shape(given, Spec if what == "partition spec" else Order, f"The {what}")
    fields: list[Json] = given["fields"]
    for field in fields:
        _sources(field)
    return fields


def check_fits(given: Json, schema: Json, what: str) -> None:
    """Raise `BadUpdate` unless each source of a spec or an order is a primitive column of the schema."""
    kinds: Mapping[int, Any] | None = None
    for field in _fields(given, what):
        if field["transform"] == NO_TRANSFORM:
            continue  # its column may have been dropped
        kinds = types_by_id(schema) if kinds is None else kinds
        for source in _sources(field):
            if source not in kinds:
                raise BadUpdate(f"The {what} needs column {source}, which the schema does not have.")
            if not isinstance(kinds[source], str):
                raise BadUpdate(f"The {what} needs column {source}, which is a nested one.")
            _check_transform(field["transform"], kinds[source])


def check_names(spec: Json, schema: Json) -> None:
    """Raise `BadUpdate` if a partition is called like a column that it is not made of."""
    columns = {name: part.id for name, part in walk(schema)}
    for field in spec["fields"]:
        held = columns.get(field["name"])
        if held is not None and _sources(field) != [held]:
            raise BadUpdate(f"A partition cannot be called {field['name'][:80]!r}: a column is.")


def _check_transform(transform: str, kind: str) -> None:
    """Raise `BadUpdate` if a transform that is known cannot be of values of a type; others pass."""
    found = _WIDTH.fullmatch(transform)
    if found and int(found[1]) == 0:
        raise BadUpdate(f"The width of {transform[:40]!r} is zero.")
    if transform in _OF_TIME and not kind.startswith(_OF_TIME[transform]):
        raise BadUpdate(f"The transform {transform!r} is not for columns of the type {kind[:80]!r}.")


def spec_content(spec: Json) -> list[tuple[Any, ...]]:
    """What makes two specs compatible: all but ids of their own."""
    return [(field["name"], field["transform"], tuple(_sources(field))) for field in _fields(spec, "partition spec")]


def spec_with_ids(spec: Json, specs: Sequence[Json], version: int, last_id: int) -> Json:
    """A spec whose fields all have ids: those of equal fields of older specs, else new ones.

    Raises:
        BadUpdate: a name is there twice, or the ids of a table of version 1 are not in sequence.
    """
    fields = _fields(spec, "partition spec")
    names = [field["name"] for field in fields]
    if not all(names) or len(set(names)) < len(names):
        raise BadUpdate("The fields of a partition spec have names, each another one.")
    known = {(tuple(_sources(one)), one["transform"]): one["field-id"] for old in specs for one in old["fields"]}
    numbers = count(FIRST_FIELD_ID if version == 1 else max(FIRST_FIELD_ID - 1, last_id) + 1)
    made = []
    for field in fields:
        number = field.get("field-id")
        if number is None:
            held = None if version == 1 else known.get((tuple(_sources(field)), field["transform"]))
            number = next(numbers) if held is None else held
        made.append({**field, "field-id": number})
    ids = [field["field-id"] for field in made]
    if len(set(ids)) < len(ids):
        raise BadUpdate("The id of a partition field is there twice.")
    if version == 1 and ids != list(range(FIRST_FIELD_ID, FIRST_FIELD_ID + len(ids))):
        raise BadUpdate("In tables of version 1 the ids of partition fields go from 1000 on without a gap.")
    return {**spec, "fields": made}


def order_content(order: Json) -> list[tuple[Any, ...]]:
    """What makes two orders the same: all but their own id."""
    return [
        (tuple(_sources(field)), field["transform"], field["direction"], field["null-order"])
        for field in _fields(order, "sort order")
    ]


def with_sources(given: Json, new_ids: Mapping[int, int], what: str) -> Json:
    """A spec or an order of a request on columns that got new ids; fields lose ids of their own."""
    made = []
    for field in _fields(given, what):
        sources = _sources(field)
        if lost := [one for one in sources if one not in new_ids]:
            raise BadUpdate(f"The {what} needs column {lost[0]}, which the schema does not have.")
        fresh = [new_ids[one] for one in sources]
        kept = {key: value for key, value in field.items() if key != "field-id"}
        made.append({**kept, **({"source-ids": fresh} if "source-ids" in field else {"source-id": fresh[0]})})
    return {**given, "fields": made}
