"""Any sequence of updates, and anything at any place of them: what comes out is a table, or a refusal in words."""

from __future__ import annotations

import copy
from contextlib import suppress
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from strandline.iceberg import requirements
from strandline.iceberg.creation import new_table
from strandline.iceberg.refusals import BadUpdate, Stale
from strandline.iceberg.updates import apply
from tests.iceberg.making import NOW, UUID, added, field, is_a_table, schema, snapshot, table

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "id", "x"]), inner, max_size=3)
    ),
    max_leaves=5,
)
GOOD: list[dict[str, Any]] = [
    *added(snapshot(11, 1)),
    {
        "action": "add-schema",
        "schema": schema(
            field(1, "k"), field(2, "l", {"type": "list", "element-id": 3, "element": "int", "element-required": True})
        ),
    },
    {"action": "set-current-schema", "schema-id": -1},
    {"action": "add-spec", "spec": {"fields": [{"source-id": 1, "name": "b", "transform": "bucket[4]"}]}},
    {
        "action": "add-sort-order",
        "sort-order": {
            "fields": [{"source-id": 1, "transform": "identity", "direction": "asc", "null-order": "nulls-first"}]
        },
    },
    {"action": "set-properties", "updates": {"a": "1"}},
    {"action": "set-snapshot-ref", "ref-name": "v", "type": "tag", "snapshot-id": 11, "max-ref-age-ms": 5},
    {"action": "remove-snapshots", "snapshot-ids": [5]},
]
DEMANDS: list[dict[str, Any]] = [
    {"type": "assert-table-uuid", "uuid": UUID},
    {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": None},
    {"type": "assert-current-schema-id", "current-schema-id": 0},
]


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every holder and key within a value."""
    pairs = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    )
    return [(value, key) for key, _ in pairs] + [place for _, inner in pairs for place in places(inner)]


@given(st.data())
def test_anything_at_any_place_is_refused_in_words(data: st.DataObject) -> None:
    updates, demands, request = copy.deepcopy(
        (GOOD, DEMANDS, {"schema": schema(field(1, "k")), "properties": {"a": "b"}})
    )
    for value in (updates, demands, request):
        holder, key = data.draw(st.sampled_from(places(value)))
        holder[key] = data.draw(JSON)
    held = table()
    with suppress(BadUpdate, Stale):
        requirements.is_create(demands)
        requirements.check(demands, held)
    with suppress(BadUpdate, Stale):
        is_a_table(apply(held, updates, NOW + 1_000))
    with suppress(BadUpdate):
        is_a_table(new_table(request, UUID, "file:///x", NOW))


STEPS = st.one_of(
    st.builds(
        lambda n: {"action": "add-schema", "schema": schema(field(1, "k"), field(2, "s", "string"), field(n, f"c{n}"))},
        st.integers(3, 6),
    ),
    st.builds(lambda n: {"action": "set-current-schema", "schema-id": n}, st.integers(-1, 4)),
    st.builds(lambda n: {"action": "remove-schemas", "schema-ids": [n]}, st.integers(0, 4)),
    st.builds(
        lambda n: {
            "action": "add-spec",
            "spec": {"fields": [{"source-id": n, "name": f"p{n}", "transform": "identity"}]},
        },
        st.integers(1, 5),
    ),
    st.builds(lambda n: {"action": "set-default-spec", "spec-id": n}, st.integers(-1, 3)),
    st.builds(lambda n: {"action": "remove-partition-specs", "spec-ids": [n]}, st.integers(0, 3)),
    st.builds(
        lambda n, s, p: {"action": "add-snapshot", "snapshot": snapshot(n, s, p)},
        st.integers(1, 9),
        st.integers(0, 9),
        st.none() | st.integers(1, 9),
    ),
    st.builds(
        lambda n, name, kind: {"action": "set-snapshot-ref", "ref-name": name, "type": kind, "snapshot-id": n},
        st.integers(1, 9),
        st.sampled_from(["main", "b"]),
        st.sampled_from(["branch", "tag"]),
    ),
    st.builds(lambda n: {"action": "remove-snapshots", "snapshot-ids": [n, n + 1]}, st.integers(1, 9)),
    st.builds(lambda name: {"action": "remove-snapshot-ref", "ref-name": name}, st.sampled_from(["main", "b"])),
    st.just({"action": "set-properties", "updates": {"a": "1"}}),
    st.just({"action": "upgrade-format-version", "format-version": 2}),
)


@given(st.sampled_from([1, 2]), st.lists(st.lists(STEPS, max_size=4), max_size=6))
def test_whatever_is_applied_is_a_table_or_refused(version: int, requests: list[list[dict[str, Any]]]) -> None:
    held = table(version)
    for asked in requests:
        before = copy.deepcopy(held)
        try:
            made = apply(held, asked, NOW + 5_000)
        except (BadUpdate, Stale):
            assert held == before
            continue
        assert held == before
        is_a_table(made)
        ids = {one["snapshot-id"] for one in made["snapshots"]}
        assert {ref["snapshot-id"] for ref in made["refs"].values()} <= ids
        assert {entry["snapshot-id"] for entry in made["snapshot-log"]} <= ids
        assert made["current-snapshot-id"] == made["refs"].get("main", {"snapshot-id": -1})["snapshot-id"]
        assert made["last-column-id"] >= held["last-column-id"]
        assert made["last-sequence-number"] >= held["last-sequence-number"]
        held = made
