"""What a commit of a table is called on the branch: in words that a person understands. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_VERBS = {"append": "append to", "overwrite": "overwrite", "delete": "delete from", "replace": "rewrite"}
_OF_SCHEMA = ("add-schema", "set-current-schema", "remove-schemas")
_OF_LAYOUT = ("add-spec", "set-default-spec", "add-sort-order", "set-default-sort-order", "remove-partition-specs")


@dataclass(frozen=True, slots=True)
class Message:
    """A message, and what programs find beside it."""

    text: str
    metadata: dict[str, str]


def message_of(table: str, updates: Sequence[Any], *, is_new: bool) -> Message:
    """What a commit does to a table, from its updates."""
    metadata = {"iceberg.table": table}
    snapshots = [one["snapshot"] for one in updates if one.get("action") == "add-snapshot"]
    if is_new:
        text = f"create table {table}"
    elif snapshots:
        text = f"{_done(snapshots[-1])} {table}"
    else:
        actions = {str(one.get("action")) for one in updates}
        what = "change the schema of" if actions & set(_OF_SCHEMA) else "change"
        what = "change the layout of" if what == "change" and actions & set(_OF_LAYOUT) else what
        what = "set properties of" if actions <= {"set-properties", "remove-properties"} else what
        text = f"{what} {table}"
    if snapshots:
        summary = snapshots[-1].get("summary") or {}
        metadata["iceberg.snapshot"] = str(snapshots[-1].get("snapshot-id"))
        metadata["iceberg.operation"] = str(summary.get("operation", ""))[:80]
    return Message(text, metadata)


def _done(snapshot: dict[str, Any]) -> str:
    summary = snapshot.get("summary") or {}
    operation = str(summary.get("operation", "change"))
    added, deleted = summary.get("added-records"), summary.get("deleted-records")
    if operation == "append" and (count := _count(added)) is not None:
        return f"append {_rows(count)} to"
    if operation == "delete" and (count := _count(deleted)) is not None:
        return f"delete {_rows(count)} from"
    return _VERBS.get(operation, "change")


def _rows(count: int) -> str:
    return f"{count:,} row" if count == 1 else f"{count:,} rows"


def _count(text: Any) -> int | None:
    is_number = isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 19
    return int(text) if is_number else None
