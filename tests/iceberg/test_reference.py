"""Sequences of commits, told to Iceberg's reference server as well: the same tables, and the same refusals."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strandline.iceberg import requirements
from strandline.iceberg.creation import new_table
from strandline.iceberg.refusals import BadUpdate, Stale
from strandline.iceberg.updates import apply
from tests.iceberg.making import UUID, field, schema, snapshot
from tests.iceberg.reference import Reference, reference_server
from tests.iceberg.test_any_updates import STEPS

pytestmark = pytest.mark.server
IDS = st.integers(0, 9)
NAMES = st.sampled_from(["main", "b"])


def statistics(id: int, path: str) -> dict[str, Any]:
    sizes = {"file-size-in-bytes": 5, "file-footer-size-in-bytes": 4}
    return {"snapshot-id": id, "statistics-path": path, "blob-metadata": [], **sizes}


MORE_STEPS = st.one_of(
    st.builds(
        lambda number, how: {
            "action": "add-sort-order",
            "sort-order": {"order-id": 1, "fields": [{"source-id": number, "transform": "identity", **how}]},
        },
        st.integers(1, 4),
        st.sampled_from(
            [
                {"direction": "asc", "null-order": "nulls-first"},
                {"direction": "desc", "null-order": "nulls-last"},
            ]
        ),
    ),
    st.builds(lambda number: {"action": "set-default-sort-order", "sort-order-id": number}, st.integers(-1, 3)),
    st.builds(
        lambda number, transform: {
            "action": "add-spec",
            "spec": {"fields": [{"source-id": number, "name": f"q{number}", "transform": transform}]},
        },
        st.integers(1, 3),
        st.sampled_from(["bucket[4]", "truncate[2]", "void", "day"]),
    ),
    st.builds(
        lambda number, kind, more: {
            "action": "add-schema",
            "schema": schema(field(1, "k"), field(number, "x", kind), **more),
        },
        st.integers(2, 5),
        st.sampled_from(["int", "long", "string", "date", "timestamp_ns", "decimal(9, 2)"]),
        st.sampled_from([{}, {"identifier-field-ids": []}]),
    ),
    st.builds(
        lambda number, path: {
            "action": "set-statistics",
            "snapshot-id": number,
            "statistics": statistics(number, path),
        },
        IDS,
        st.sampled_from(["file:///s1", "file:///s2"]),
    ),
    st.builds(lambda number: {"action": "remove-statistics", "snapshot-id": number}, IDS),
    st.builds(
        lambda number: {
            "action": "set-partition-statistics",
            "partition-statistics": {"snapshot-id": number, "statistics-path": "file:///p", "file-size-in-bytes": 3},
        },
        IDS,
    ),
    st.builds(lambda number: {"action": "remove-partition-statistics", "snapshot-id": number}, IDS),
    st.builds(
        lambda name, kind, number, more: {
            "action": "set-snapshot-ref",
            "ref-name": name,
            "type": kind,
            "snapshot-id": number,
            **more,
        },
        NAMES,
        st.sampled_from(["branch", "tag"]),
        st.integers(1, 9),
        st.sampled_from([{}, {"max-ref-age-ms": 5}, {"min-snapshots-to-keep": 2}, {"max-snapshot-age-ms": 0}]),
    ),
    st.builds(lambda version: {"action": "upgrade-format-version", "format-version": version}, st.integers(1, 3)),
    st.builds(lambda names: {"action": "remove-properties", "removals": names}, st.lists(st.sampled_from("abc"))),
    st.sampled_from([{"action": "assign-uuid", "uuid": UUID}]),
    st.builds(
        lambda number: {
            "action": "add-encryption-key",
            "encryption-key": {"key-id": number, "encrypted-key-metadata": "aGk=", "encrypted-by-id": "x"},
        },
        st.sampled_from("ab"),
    ),
    st.builds(lambda number: {"action": "remove-encryption-key", "key-id": number}, st.sampled_from("ab")),
)
DEMANDS = st.one_of(
    st.builds(
        lambda ref, number: {"type": "assert-ref-snapshot-id", "ref": ref, "snapshot-id": number},
        NAMES,
        st.none() | IDS,
    ),
    st.builds(lambda n: {"type": "assert-current-schema-id", "current-schema-id": n}, st.integers(0, 2)),
    st.builds(lambda n: {"type": "assert-default-spec-id", "default-spec-id": n}, st.integers(0, 2)),
    st.builds(lambda n: {"type": "assert-default-sort-order-id", "default-sort-order-id": n}, st.integers(0, 2)),
    st.builds(lambda n: {"type": "assert-last-assigned-field-id", "last-assigned-field-id": n}, st.integers(1, 4)),
    st.builds(
        lambda n: {"type": "assert-last-assigned-partition-id", "last-assigned-partition-id": n},
        st.integers(999, 1_001),
    ),
    st.just({"type": "assert-create"}),
    st.just({"type": "assert-table-uuid", "uuid": UUID}),
)
APPENDS = st.builds(lambda: "append")
"""Stands for a snapshot that fits to the table as it is, and main going there."""
REQUESTS = st.lists(
    st.tuples(
        st.lists(DEMANDS, max_size=1) | st.just([]),
        APPENDS | st.lists(STEPS | MORE_STEPS, min_size=1, max_size=4),
    ),
    max_size=8,
)
FAULTS = ("arraySize cannot be negative",)
"""Words of the reference for what it stumbles over: more snapshots are removed than there are."""
LOST = ({"add-schema", "remove-schemas"}, {"add-spec", "remove-partition-specs"})
"""What a request adds, removes and adds again is not there afterwards, in the reference."""


@pytest.fixture(scope="module")
def reference() -> Iterator[Reference]:
    with reference_server() as served:
        yield served


def outcome(held: dict[str, Any], demands: list[Any], updates: list[Any]) -> tuple[int, dict[str, Any]]:
    """As the catalog answers a commit."""
    try:
        if requirements.is_create(demands):
            raise Stale("It is there.")
        requirements.check(demands, held)
        return 200, apply(held, updates, held["last-updated-ms"] + 1)
    except BadUpdate:
        return 400, held
    except Stale:
        return 409, held


def compared(metadata: dict[str, Any]) -> dict[str, Any]:
    """What has to be the same: all but places and times, and however a thing is said that is not there."""
    held = copy.deepcopy(metadata)
    for name in ("location", "last-updated-ms", "metadata-log"):
        held.pop(name, None)
    if held["format-version"] == 1:
        held.pop("last-sequence-number", None)  # which is 0
    for one in held.get("snapshots", []):
        one["sequence-number"] = one.get("sequence-number", 0)
    held["snapshot-log"] = [one["snapshot-id"] for one in held.get("snapshot-log", [])]
    for name in ("snapshots", "statistics", "partition-statistics"):
        held[name] = sorted(held.get(name, []), key=lambda one: one["snapshot-id"])
    if held.get("current-snapshot-id") is None:
        held["current-snapshot-id"] = -1
    found: dict[str, Any] = _without_empty(held)
    return found


def _without_empty(value: Any) -> Any:
    if isinstance(value, dict):
        inner = {name: _without_empty(one) for name, one in value.items()}
        return {name: one for name, one in inner.items() if one not in (None, [], {})}
    return [_without_empty(one) for one in value] if isinstance(value, list) else value


def goes_back(after: dict[str, Any], updates: list[dict[str, Any]]) -> bool:
    """Whether a snapshot without a parent has an earlier sequence number than others: the reference forgets those."""
    numbers = [one["snapshot"]["sequence-number"] for one in updates if one["action"] == "add-snapshot"]
    return any(number < after["last-sequence-number"] for number in numbers)


def fitting(held: dict[str, Any]) -> list[dict[str, Any]]:
    """Updates that append to a table."""
    last = held.get("last-sequence-number", 0)
    id = 10 + len(held.get("snapshots", [])) + last
    lineage = {"first-row-id": held["next-row-id"], "added-rows": 3} if held["format-version"] > 2 else {}
    parent = held.get("current-snapshot-id")
    added = snapshot(
        id, last + 1 if held["format-version"] > 1 else 0, parent if parent not in (None, -1) else None, **lineage
    )
    return [
        {"action": "add-snapshot", "snapshot": added},
        {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": id},
    ]


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from([1, 2, 3]), REQUESTS)
def test_commits_do_what_they_do_there(
    reference: Reference, version: int, requests: list[tuple[list[Any], list[Any] | str]]
) -> None:
    made = {
        "schema": schema(field(1, "k"), field(2, "s", "string")),
        # which the reference sets by itself
        "properties": {"format-version": str(version), "write.parquet.compression-codec": "zstd"},
    }
    name, status, theirs = reference.make(made)
    assert status == 200
    mine = new_table(made, theirs["table-uuid"], theirs["location"], theirs["last-updated-ms"])
    assert compared(mine) == compared(theirs)
    for demands, steps in requests:
        updates = fitting(mine) if isinstance(steps, str) else copy.deepcopy(steps)
        actions = {one["action"] for one in updates}
        if any(actions >= pair for pair in LOST):
            continue
        for one in updates:
            if one["action"] == "add-snapshot":  # later than all that was there, as the reference wants it
                one["snapshot"]["timestamp-ms"] = theirs["last-updated-ms"] + one["snapshot"]["snapshot-id"]
            if one["action"] == "set-snapshot-ref" and one["ref-name"] == "main":
                one["type"] = "branch"  # a tag of this name passes there, and is refused here
            if one["action"] == "add-spec":
                one["spec"]["spec-id"] = 0  # which the reference demands, and ignores
                partition = one["spec"]["fields"][0]  # without an id the reference gives 1000 to several
                partition["field-id"] = 1000 if mine["format-version"] == 1 else 1000 + partition["source-id"]
            if one["action"] == "assign-uuid":
                one["uuid"] = mine["table-uuid"]
        status, answer = reference.commit(name, demands, updates)
        found, after = outcome(mine, demands, updates)
        said = json.dumps([demands, updates, answer.get("message")])
        if status != 200 and any(fault in str(answer["message"]) for fault in FAULTS):
            return
        if found == 200 and goes_back(after, updates):
            return
        assert (found == 200) == (status == 200), said
        if status < 500:
            assert found == status, said
        if status == 200:
            assert compared(after) == compared(answer), said
            mine, theirs = after, answer


PLAIN = st.sampled_from(["boolean", "int", "long", "double", "date", "timestamp", "string", "binary", "decimal(9, 2)"])
OF_TIME = {"date": ["day", "month"], "timestamp": ["hour", "day"]}


@st.composite
def creations(draw: st.DrawFn) -> dict[str, Any]:
    """A request that makes a table of nested columns, whose ids are anything that is there once."""
    ids = iter(draw(st.permutations(range(1, 60))))

    def kind(depth: int) -> Any:
        which = "plain" if depth == 0 else draw(st.sampled_from(["plain", "plain", "struct", "list", "map"]))
        if which == "struct":
            return {"type": "struct", "fields": columns(depth - 1, draw(st.integers(1, 3)))}
        if which == "list":
            return {
                "type": "list",
                "element-id": next(ids),
                "element-required": draw(st.booleans()),
                "element": kind(depth - 1),
            }
        if which == "map":
            return {
                "type": "map",
                "key-id": next(ids),
                "key": draw(PLAIN),
                "value-id": next(ids),
                "value-required": draw(st.booleans()),
                "value": kind(depth - 1),
            }
        return draw(PLAIN)

    def columns(depth: int, count: int) -> list[dict[str, Any]]:
        return [
            field(next(ids), f"c{n}", kind(depth), required=draw(st.booleans()), **draw(st.sampled_from(DOCS)))
            for n in range(count)
        ]

    found = columns(2, draw(st.integers(1, 4)))
    fields, orders = [], []
    for one in found:
        if not isinstance(one["type"], str) or draw(st.booleans()):
            continue
        transforms = ["identity", "void", *OF_TIME.get(one["type"], [])]
        transform = draw(st.sampled_from(transforms))
        named = {"source-id": one["id"], "transform": transform}
        same = transform == "identity"
        fields.append({**named, "name": one["name"] if same else f"{one['name']}_{transform}", "field-id": one["id"]})
        orders.append({**named, "direction": "asc", "null-order": draw(st.sampled_from(["nulls-first", "nulls-last"]))})
    request = {
        "schema": schema(*found, **{"schema-id": draw(st.integers(0, 3))}),
        "properties": {
            "format-version": str(draw(st.integers(1, 3))),
            "write.parquet.compression-codec": "zstd",
            **draw(st.sampled_from([{}, {"a": "1"}])),
        },
    }
    if draw(st.booleans()):
        request["partition-spec"] = {"spec-id": draw(st.integers(0, 3)), "fields": fields}
    if draw(st.booleans()):
        request["write-order"] = {"order-id": draw(st.integers(1, 3)) if orders else 0, "fields": orders}
    return request


DOCS: list[dict[str, str]] = [{}, {"doc": "of it"}]


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(creations())
def test_tables_are_made_as_they_are_there(reference: Reference, request: dict[str, Any]) -> None:
    _, status, theirs = reference.make(request)
    said = json.dumps([request, theirs.get("message")])
    mine: dict[str, Any] = {}
    with suppress(BadUpdate):
        mine = new_table(request, UUID, "file:///x", 0)
    assert status == (200 if mine else 400), said
    if mine:
        assert compared({**mine, "table-uuid": ""}) == compared({**theirs, "table-uuid": ""}), said
