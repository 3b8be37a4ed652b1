"""The schemas, partition specs and sort orders of a table that both sides of a merge may have changed. Pure.

Their ids are in the files of tables: what one side has written under an id must mean the same on the other. So all that
the source has comes over with its ids, and an id that means two things is a conflict.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from strandline.iceberg.schemas import Json, content, walk
from strandline.tables.merging import Clash

_LISTS: tuple[tuple[str, str, str, str, Callable[[Json], Any]], ...] = (
    ("schema", "schemas", "schema-id", "current-schema-id", content),
    ("partitioning", "partition-specs", "spec-id", "default-spec-id", lambda one: one["fields"]),
    ("sort order", "sort-orders", "order-id", "default-sort-order-id", lambda one: one["fields"]),
)
_COUNTERS = ("format-version", "last-column-id", "last-partition-id")
_WIDENED = {("int", "long"), ("float", "double")}
_DECIMAL = re.compile(r"decimal\((\d+),\s*(\d+)\)")
ROW_LINEAGE_VERSION = 3


def with_shapes(base: Json, theirs: Json, ours: Json) -> Json | None:
    """The table of the branch with what the source has of shapes; None if the branch has all of it.

    Raises:
        Clash: an id means two things, or both sides made another shape the current one.
    """
    made = dict(ours)
    for word, items, id, current, same in _LISTS:
        held = {one[id]: one for one in ours.get(items) or ()}
        fresh = []
        for one in theirs.get(items) or ():
            mine = held.get(one[id])
            if mine is None:
                fresh.append(one)
            elif same(mine) != same(one):
                raise Clash(f"both sides changed its {word}: id {one[id]} means two things")
        if fresh:
            made[items] = sorted([*(ours.get(items) or ()), *fresh], key=lambda one: one[id])
        before, source, branch = (table.get(current) for table in (base, theirs, ours))
        if source not in (before, branch):
            if branch != before:
                raise Clash(f"both sides changed its {word}")
            made[current] = source
    for name in _COUNTERS:
        if name in theirs:
            made[name] = max(theirs[name], ours.get(name, theirs[name]))
    if made["format-version"] > ours["format-version"]:
        made.setdefault("last-sequence-number", 0)
        for name in ("schema", "partition-spec"):
            made.pop(name, None)
    if made["format-version"] >= ROW_LINEAGE_VERSION:
        made.setdefault("next-row-id", 0)
    return None if made == ours else made


def refuse_other_types(theirs: Json, ours: Json) -> None:
    """Raise `Clash` if a column has types on the two sides of which neither is a wider form of the other."""
    left, right = (_types(one) for one in (theirs, ours))
    for number in left.keys() & right.keys():
        one, other = left[number], right[number]
        if one != other and not (_is_wider(one, other) or _is_wider(other, one)):
            raise Clash(f"column {number} is {other} on the branch and {one} in the source")


def _types(table: Json) -> dict[int, str]:
    current = next(one for one in table["schemas"] if one["schema-id"] == table["current-schema-id"])
    return {part.id: part.type if isinstance(part.type, str) else part.type["type"] for _, part in walk(current)}


def _is_wider(narrow: str, wide: str) -> bool:
    if (narrow, wide) in _WIDENED:
        return True
    one, other = _DECIMAL.fullmatch(narrow), _DECIMAL.fullmatch(wide)
    return bool(one and other and one[2] == other[2] and int(one[1]) <= int(other[1]))
