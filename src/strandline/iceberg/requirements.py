"""What a commit request demands of the table that it changes. Pure.

Source: `UpdateRequirement` of the REST catalog specification of Iceberg. What does not hold is said as its Java library
says it, by whose words clients and their users know it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from strandline.iceberg.refusals import BadUpdate, Stale
from strandline.iceberg.schemas import Json

CREATE = "assert-create"
_NUMBERS = {
    "assert-last-assigned-field-id": ("last-column-id", "last-assigned-field-id", "last assigned field id"),
    "assert-last-assigned-partition-id": (
        "last-partition-id",
        "last-assigned-partition-id",
        "last assigned partition id",
    ),
    "assert-current-schema-id": ("current-schema-id", "current-schema-id", "current schema"),
    "assert-default-spec-id": ("default-spec-id", "default-spec-id", "default partition spec"),
    "assert-default-sort-order-id": ("default-sort-order-id", "default-sort-order-id", "default sort order"),
}
"""By requirement, the field of the metadata, the one of the requirement, and its name for people."""
FAILED = "Requirement failed:"


def is_create(requirements: Sequence[Any]) -> bool:
    """Whether a request makes a table.

    Raises:
        BadUpdate: it makes one, and demands something of it besides.
    """
    if not isinstance(requirements, list | tuple):
        raise BadUpdate("The requirements of a request are a list.")
    kinds = [one.get("type") if isinstance(one, dict) else None for one in requirements]
    if CREATE in kinds and len(kinds) > 1:
        raise BadUpdate("A request that makes a table demands nothing else of it.")
    return CREATE in kinds


def check(requirements: Sequence[Any], table: Json) -> None:
    """Raise unless a table is as a request demands.

    Raises:
        BadUpdate: a requirement is not known, or malformed.
        Stale: one does not hold.
    """
    for one in requirements:
        kind = one.get("type") if isinstance(one, dict) else None
        if kind == CREATE:
            raise Stale(f"{FAILED} table already exists.")
        test = _TESTS.get(kind) if isinstance(kind, str) else None
        if test is None:
            raise BadUpdate(f"The requirement {str(kind)[:80]!r} is not known.")
        test(one, table)


def _same_uuid(wanted: Json, table: Json) -> None:
    given = wanted.get("uuid")
    if not isinstance(given, str):
        raise BadUpdate("assert-table-uuid lacks the UUID.")
    if given.lower() != str(table["table-uuid"]).lower():
        raise Stale(
            f"{FAILED} UUID does not match: the table is another one than was read, since it was dropped and made anew."
        )


def _same_ref(wanted: Json, table: Json) -> None:
    name, number = wanted.get("ref"), wanted.get("snapshot-id")
    if not isinstance(name, str) or not isinstance(number, int | None):
        raise BadUpdate("assert-ref-snapshot-id lacks the name of a ref, or has another type than an id.")
    held = (table.get("refs") or {}).get(name)
    found = None if held is None else held["snapshot-id"]
    if found != number:
        shown = "is not there" if found is None else f"is at snapshot {found}"
        raise Stale(f"{FAILED} ref {name[:80]} has changed: it {shown}, not at {number}.")


def _same_number(field: str, name: str, what: str, wanted: Json, table: Json) -> None:
    given = wanted.get(name)
    if not isinstance(given, int) or isinstance(given, bool):
        raise BadUpdate(f"{wanted['type']} lacks {name}.")
    if table.get(field) != given:
        raise Stale(f"{FAILED} {what} changed: it is {table.get(field)}, not {given}.")


_TESTS: dict[str, Callable[[Json, Json], None]] = {
    "assert-table-uuid": _same_uuid,
    "assert-ref-snapshot-id": _same_ref,
    **{kind: partial(_same_number, *names) for kind, names in _NUMBERS.items()},
}
