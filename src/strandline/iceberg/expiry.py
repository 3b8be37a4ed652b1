"""Which snapshots of a table are old enough to go, by the properties that Iceberg has for that. Pure.

They leave the table's metadata, which else grows for ever. No file is deleted: earlier commits and other branches may
need it, and a collection of garbage knows. Source: "Snapshot Retention Policy" of the Iceberg Table Spec, and
`RemoveSnapshots` of its Java library for the defaults.
"""

from __future__ import annotations

from typing import Any

from strandline.errors import UsageError
from strandline.iceberg.building import MAIN
from strandline.iceberg.schemas import Json

AGE = "history.expire.max-snapshot-age-ms"
KEEP = "history.expire.min-snapshots-to-keep"
REF_AGE = "history.expire.max-ref-age-ms"
AGE_DEFAULT_MS = 5 * 86_400_000
KEEP_DEFAULT = 1
_NEVER = 2**63 - 1


def expiring(table: Json, now_ms: int, *, older_than_ms: int | None = None, keep: int | None = None) -> list[Json]:
    """Updates that remove the snapshots of a table which nothing keeps any more; none if all are kept.

    A branch of the table keeps its newest snapshots, and those that are young enough; a tag keeps its one. Refs whose
    own age is over go, but for main.

    Args:
        now_ms: milliseconds since 1970 UTC.
        older_than_ms: snapshots that were made before may go; by default, what the table's properties say.
        keep: how many a branch keeps at least; by default, what the table's properties say.
    """
    if keep is not None and keep < 1:
        raise UsageError(f"A branch keeps at least 1 snapshot, not {keep}.", next="Give a number from 1 on.")
    properties = table.get("properties") or {}
    age_ms = _number(properties, AGE, AGE_DEFAULT_MS)
    before = now_ms - age_ms if older_than_ms is None else older_than_ms
    least = _number(properties, KEEP, KEEP_DEFAULT) if keep is None else keep
    snapshots = {one["snapshot-id"]: one for one in table.get("snapshots") or ()}
    refs: dict[str, Json] = table.get("refs") or {}
    ref_age_ms = _number(properties, REF_AGE, _NEVER)
    gone = [name for name, ref in refs.items() if name != MAIN and _is_over(ref, snapshots, now_ms, ref_age_ms)]
    kept: set[int] = set()
    seen: set[int] = set()
    for name, ref in refs.items():
        if name in gone:
            continue
        if ref["type"] == "tag":
            kept.add(ref["snapshot-id"])
            seen.add(ref["snapshot-id"])
            continue
        own_before = now_ms - ref["max-snapshot-age-ms"] if "max-snapshot-age-ms" in ref else before
        own_least = ref.get("min-snapshots-to-keep", least)
        for count, number in enumerate(_line(snapshots, ref["snapshot-id"])):
            seen.add(number)
            if count < own_least or snapshots[number]["timestamp-ms"] >= own_before:
                kept.add(number)
    # what no ref leads to may be about to get one
    kept |= {number for number, one in snapshots.items() if number not in seen and one["timestamp-ms"] >= before}
    removed = sorted(set(snapshots) - kept)
    updates: list[Json] = [{"action": "remove-snapshot-ref", "ref-name": name} for name in sorted(gone)]
    return [*updates, {"action": "remove-snapshots", "snapshot-ids": removed}] if removed else updates


def _is_over(ref: Json, snapshots: dict[int, Json], now_ms: int, default_ms: int) -> bool:
    snapshot = snapshots.get(ref["snapshot-id"])
    if snapshot is None:
        return True
    return bool(now_ms - snapshot["timestamp-ms"] > ref.get("max-ref-age-ms", default_ms))


def _line(snapshots: dict[int, Json], number: int | None) -> list[int]:
    """A snapshot and those before it, newest first."""
    found: list[int] = []
    while number is not None and number in snapshots and len(found) <= len(snapshots):
        found.append(number)
        number = snapshots[number].get("parent-snapshot-id")
    return found


def _number(properties: dict[str, Any], name: str, default: int) -> int:
    text = str(properties.get(name, ""))
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else default
