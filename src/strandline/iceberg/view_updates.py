"""The metadata of a view, and what updates of a request do to it. Pure.

Works on plain JSON, so that what this version does not know is kept. Source: the Iceberg View Spec, version 1, and
`ViewMetadata.Builder` for what updates do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import msgspec

from strandline.iceberg.building import VERSION_MAX, field_of
from strandline.iceberg.refusals import BadArgument, Stale
from strandline.iceberg.schemas import Json, check, content
from strandline.iceberg.shapes import Count, Schema, check_shape

KEPT = "version.history.num-entries"
KEPT_DEFAULT = 10
LOSES_DIALECTS = "replace.drop-dialect.allowed"
UPDATES_MAX = 1_000
_LAST = -1
_UUID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", re.IGNORECASE)


class _Shape(msgspec.Struct, rename="kebab"):
    pass


class _Sql(_Shape):
    type: str
    sql: str | None = None
    dialect: str | None = None


class _Version(_Shape):
    version_id: int
    timestamp_ms: Count
    schema_id: int
    summary: dict[str, str]
    representations: Annotated[list[_Sql], msgspec.Meta(min_length=1)]
    default_namespace: list[str]
    default_catalog: str | None = None


class _Entry(_Shape):
    version_id: int
    timestamp_ms: Count


class _View(_Shape):
    view_uuid: str
    format_version: Literal[1]
    schemas: list[Schema]
    versions: list[_Version]
    current_version_id: int
    version_log: list[_Entry]
    properties: dict[str, str] | None = None


class _Creation(_Shape):
    schema: Schema
    view_version: _Version
    properties: dict[str, str] | None = None


def check_view(metadata: Any) -> None:
    """Raise `BadUpdate` unless this is the metadata of a view, as far as it is read here."""
    check_shape(metadata, _View, "The metadata")
    if metadata["current-version-id"] not in {one["version-id"] for one in metadata["versions"]}:
        raise BadArgument("The metadata names a current version that is not there.")


def new_view(request: Json, uuid: str, location: str, now_ms: int) -> Json:
    """The metadata of a view from a request that makes one: `schema`, `view-version`, `properties`.

    Raises:
        BadArgument: it is malformed.
    """
    check_shape(request, _Creation, "The request to make a view")
    updates = [
        {"action": "assign-uuid", "uuid": uuid},
        {"action": "set-properties", "updates": request.get("properties") or {}},
        {"action": "add-schema", "schema": request["schema"]},
        {"action": "add-view-version", "view-version": {**request["view-version"], "schema-id": _LAST}},
        {"action": "set-current-view-version", "view-version-id": _LAST},
    ]
    return {**apply_to_view(None, updates, now_ms), "location": location}


def check_view_requirements(requirements: Any, view: Json) -> None:
    """Raise unless a view is as a request demands.

    Raises:
        BadArgument: a requirement is not known, or malformed.
        Stale: one does not hold.
    """
    for one in _objects(requirements, "requirements"):
        if one.get("type") != "assert-view-uuid" or not isinstance(one.get("uuid"), str):
            raise BadArgument(f"The requirement {str(one.get('type'))[:80]!r} of a view is not known.")
        if one["uuid"].lower() != view["view-uuid"].lower():
            raise Stale(
                "Requirement failed: view UUID does not match: the view is another one than was read, since it was "
                "dropped and made anew."
            )


class _Building:
    def __init__(self, base: Json | None, now_ms: int) -> None:
        self.data: Json = {
            "format-version": 1,
            "schemas": [],
            "versions": [],
            "version-log": [],
            "properties": {},
            **(base or {}),
        }
        self.data["properties"] = self.data["properties"] or {}
        self.before = base
        self.now_ms = now_ms
        self.last_schema: int | None = None
        self.last_version: int | None = None
        self.added: set[int] = set()

    def versions(self) -> dict[int, Json]:
        return {one["version-id"]: one for one in self.data["versions"]}


def _assign_uuid(view: _Building, update: Json) -> None:
    given, held = field_of(update, "uuid", str), view.data.get("view-uuid")
    if not _UUID.fullmatch(given):
        raise BadArgument(f"{given[:80]!r} is not a UUID.")
    if held is not None and held.lower() != given.lower():
        raise BadArgument("The UUID of a view cannot be changed.")
    view.data["view-uuid"] = held or given


def _upgrade(view: _Building, update: Json) -> None:
    if field_of(update, "format-version", int) != view.data["format-version"]:
        raise BadArgument("Views have version 1.")


def _add_schema(view: _Building, update: Json) -> None:
    schema = field_of(update, "schema", dict)
    check(schema, VERSION_MAX)
    held: list[Json] = view.data["schemas"]
    same = next((one for one in held if content(one) == content(schema)), None)
    if same is not None:
        view.last_schema = same["schema-id"]
        return
    view.last_schema = max((one["schema-id"] for one in held), default=-1) + 1
    view.data["schemas"] = [*held, {**schema, "schema-id": view.last_schema}]


def _add_version(view: _Building, update: Json) -> None:
    version: Json = field_of(update, "view-version", dict)
    check_shape(version, _Version, "The version of the view")
    number = version["schema-id"]
    if number == _LAST:
        if view.last_schema is None:
            raise BadArgument("-1 means the schema that the request added last, and it added none.")
        number = view.last_schema
    if number not in {one["schema-id"] for one in view.data["schemas"]}:
        raise BadArgument(f"The view has no schema {number}.")
    dialects = [(one.get("dialect") or "").lower() for one in version["representations"] if one["type"] == "sql"]
    if twice := sorted({one for one in dialects if dialects.count(one) > 1}):
        raise BadArgument(f"Invalid view version: Cannot add multiple queries for dialect {twice[0][:40]}.")
    made = {**version, "schema-id": number}
    same = next((one for one in view.data["versions"] if _content(one) == _content(made)), None)
    if same is not None:
        view.last_version = same["version-id"]
        return
    made["version-id"] = max((*view.versions(), made["version-id"] - 1)) + 1
    view.last_version = made["version-id"]
    view.added.add(made["version-id"])
    view.data["versions"] = [*view.data["versions"], made]


def _content(version: Json) -> Json:
    return {name: value for name, value in version.items() if name not in ("version-id", "timestamp-ms")}


def _set_version(view: _Building, update: Json) -> None:
    number = field_of(update, "view-version-id", int)
    if number == _LAST:
        if view.last_version is None:
            raise BadArgument("-1 means the version that the request added last, and it added none.")
        number = view.last_version
    version = view.versions().get(number)
    if version is None:
        raise BadArgument(f"The view has no version {number}.")
    if view.data.get("current-version-id") == number:
        return
    at_ms = version["timestamp-ms"] if number in view.added else view.now_ms
    view.data["current-version-id"] = number
    view.data["version-log"] = [*view.data["version-log"], {"timestamp-ms": at_ms, "version-id": number}]


def _set_properties(view: _Building, update: Json) -> None:
    given = field_of(update, "updates", dict)
    if not all(isinstance(one, str) for one in given.values()):
        raise BadArgument("The properties of a view are texts by name.")
    view.data["properties"] = {**view.data["properties"], **given}


def _remove_properties(view: _Building, update: Json) -> None:
    gone = field_of(update, "removals", list)
    held = view.data["properties"]
    view.data["properties"] = {name: value for name, value in held.items() if name not in gone}


def _ignore(_: _Building, __: Json) -> None:
    """Where a view lies is not its clients' to decide."""


_ACTIONS: dict[str, Callable[[_Building, Json], None]] = {
    "assign-uuid": _assign_uuid,
    "upgrade-format-version": _upgrade,
    "add-schema": _add_schema,
    "add-view-version": _add_version,
    "set-current-view-version": _set_version,
    "set-properties": _set_properties,
    "remove-properties": _remove_properties,
    "set-location": _ignore,
}


def apply_to_view(base: Json | None, updates: Any, now_ms: int) -> Json:
    """The metadata after some updates; `base` itself if they change nothing.

    Args:
        base: the metadata before; None for a view that is being made.
        now_ms: milliseconds since 1970 UTC.

    Raises:
        BadArgument: an update is not known, malformed, or cannot be applied.
    """
    view = _Building(base, now_ms)
    for one in _objects(updates, "updates"):
        action = one.get("action")
        step = _ACTIONS.get(action) if isinstance(action, str) else None
        if step is None:
            raise BadArgument(f"The update {str(action)[:80]!r} of a view is not known.")
        step(view, one)
    if view.data == base:
        return base
    if "view-uuid" not in view.data or "current-version-id" not in view.data:
        raise BadArgument("The view has no UUID, or no current version.")
    _refuse_lost_dialects(view)
    _forget_old(view)
    return view.data


def _refuse_lost_dialects(view: _Building) -> None:
    """A query in a dialect that its engine needs must not go because another engine wrote a version without it."""
    before = view.before
    if before is None or view.data["properties"].get(LOSES_DIALECTS, "").lower() == "true":
        return
    old = {one["version-id"]: one for one in before["versions"]}.get(before["current-version-id"])
    new = view.versions()[view.data["current-version-id"]]
    if old is not None and (lost := _dialects(old) - _dialects(new)):
        raise BadArgument(
            f"Cannot replace the view due to loss of view dialects: {', '.join(sorted(lost))}.",
            next=f"Give a query of each dialect, or set {LOSES_DIALECTS} to true.",
        )


def _dialects(version: Json) -> set[str]:
    return {(one.get("dialect") or "").lower() for one in version["representations"]}


def _forget_old(view: _Building) -> None:
    """Keep the newest versions, the current one, and those of this request; and the log since the newest that goes."""
    text = view.data["properties"].get(KEPT, str(KEPT_DEFAULT))
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 10**9):
        raise BadArgument(f"{KEPT} is {text[:40]!r}; it has to be a number from 1 on.")
    current = view.data["current-version-id"]
    newest = sorted(view.versions(), reverse=True)
    most = max(int(text), len(view.added))
    kept = {current, *[one for one in newest if one != current][: most - 1]}
    if len(kept) == len(newest):
        return
    view.data["versions"] = [one for one in view.data["versions"] if one["version-id"] in kept]
    log: list[Json] = []
    for one in view.data["version-log"]:
        if one["version-id"] in kept:
            log.append(one)
        else:
            log.clear()
    view.data["version-log"] = log


def _objects(value: Any, what: str) -> Sequence[Json]:
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value) or len(value) > UPDATES_MAX:
        raise BadArgument(f"The {what} of a request are a list of up to {UPDATES_MAX:,} objects.")
    return value
