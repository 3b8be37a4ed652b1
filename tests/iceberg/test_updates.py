"""Updates of a table's metadata, one by one, with PyIceberg as a witness that what comes out is a table."""

from __future__ import annotations

from typing import Any

import pytest

from strandline.iceberg import requirements
from strandline.iceberg.creation import new_table
from strandline.iceberg.messages import message_of
from strandline.iceberg.refusals import BadUpdate, Stale
from strandline.iceberg.updates import apply
from tests.iceberg.making import NOW, UUID, added, field, is_a_table, on, schema, snapshot, table

# --- new tables ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_new_table_has_ids_of_its_own(version: int) -> None:
    nested = schema(
        field(50, "p", schema(field(3, "x"), field(4, "y", "double"))),
        field(51, "l", {"type": "list", "element-id": 70, "element": "string", "element-required": False}),
        field(
            52,
            "m",
            {"type": "map", "key-id": 8, "key": "string", "value-id": 9, "value": "int", "value-required": False},
        ),
        field(53, "at", "date", required=True),
        **{"identifier-field-ids": [53]},
    )
    made = table(
        version,
        schema=nested,
        **{
            "partition-spec": {"fields": [{"source-id": 53, "field-id": 4, "name": "day", "transform": "day"}]},
            "write-order": {
                "fields": [{"source-id": 53, "transform": "identity", "direction": "asc", "null-order": "nulls-first"}]
            },
            "properties": {"owner": "ann"},
        },
    )
    is_a_table(made)
    fields = made["schemas"][0]["fields"]
    assert [one["id"] for one in fields] == [1, 2, 3, 4]
    assert [one["id"] for one in fields[0]["type"]["fields"]] == [5, 6]
    assert (fields[1]["type"]["element-id"], fields[2]["type"]["key-id"], fields[2]["type"]["value-id"]) == (7, 8, 9)
    assert made["schemas"][0]["identifier-field-ids"] == [4]
    assert (made["last-column-id"], made["last-partition-id"]) == (9, 1000)
    (spec,) = made["partition-specs"]
    assert spec["fields"] == [{"source-id": 4, "name": "day", "transform": "day", "field-id": 1000}]
    assert made["sort-orders"][0]["order-id"] == 1
    assert made["properties"] == {"owner": "ann"}
    assert ("next-row-id" in made) == (version == 3)
    assert ("schema" in made) == (version == 1)


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"schema": "long"},
        {"schema": schema(field(1, "k", "float128"))},
        {"schema": schema(field(1, "k", "variant"))},
        {"schema": schema(field(1, "k", "timestamp_ns"))},
        {"schema": schema(field(1, "k", **{"initial-default": 3}))},
        {"schema": schema(field(1, "k"), field(1, "s"))},
        {"schema": schema(field(1, "k"), field(2, "k"))},
        {"schema": schema({"name": "k", "type": "long"})},
        {"schema": schema(field(1, "k", {"type": "list"}))},
        {"schema": schema(field(1, "k", {"type": "set"}))},
        {"schema": schema(field(1, "k", 7))},
        {"schema": schema(field(1, "k"), **{"identifier-field-ids": [9]})},
        {"schema": schema(field(1, "k"), **{"identifier-field-ids": [1]})},
        {"schema": schema(field(1, "k", "double", required=True), **{"identifier-field-ids": [1]})},
        {"schema": schema(field(1, "k")), "partition-spec": {"fields": [{"source-id": 5, "transform": "day"}]}},
        {"schema": schema(field(1, "k")), "partition-spec": {"fields": [{"transform": "day", "name": "d"}]}},
        {"schema": schema(field(1, "k")), "partition-spec": {"fields": [{"source-id": 1, "name": "d"}]}},
        {"schema": schema(field(1, "k")), "partition-spec": {"fields": [{"source-id": 1, "transform": "day"}]}},
        {"schema": schema(field(1, "k")), "partition-spec": []},
        {"schema": schema(field(1, "k")), "write-order": {"fields": "x"}},
        {"schema": schema(field(1, "k")), "properties": {"format-version": "4"}},
        {"schema": schema(field(1, "k")), "properties": {"format-version": "two"}},
        {"schema": schema(field(1, "k")), "properties": {"a": 1}},
        {"schema": schema(field(1, "k")), "properties": [1]},
    ],
)
def test_a_request_that_makes_no_table(request_: dict[str, Any]) -> None:
    with pytest.raises(BadUpdate) as caught:
        new_table(request_, UUID, "file:///x", NOW)
    assert caught.value.what.endswith(".")


def test_a_schema_may_not_nest_for_ever() -> None:
    kind: Any = "long"
    for number in range(300):
        kind = schema(field(number + 2, "x", kind))
    with pytest.raises(BadUpdate, match="nests"):
        new_table({"schema": schema(field(1, "k", kind))}, UUID, "file:///x", NOW)


# --- schemas, specs, orders ---------------------------------------------------------------------------------------


def test_schemas_are_added_once_and_made_current() -> None:
    base = table()
    wider = schema(field(1, "k"), field(2, "s", "string"), field(3, "n"))
    made = on(base, {"action": "add-schema", "schema": wider}, {"action": "set-current-schema", "schema-id": -1})
    assert (made["current-schema-id"], made["last-column-id"], len(made["schemas"])) == (1, 3, 2)
    again = on(made, {"action": "add-schema", "schema": {**wider, "schema-id": 99}})
    assert again is made  # an equal one keeps its id
    with pytest.raises(BadUpdate, match="it added none"):
        on(made, {"action": "add-schema", "schema": wider}, {"action": "set-current-schema", "schema-id": -1})
    back = on(made, {"action": "set-current-schema", "schema-id": 0})
    assert back["current-schema-id"] == 0
    gone = on(back, {"action": "remove-schemas", "schema-ids": [1, 77]})
    assert [one["schema-id"] for one in gone["schemas"]] == [0]
    assert gone["last-column-id"] == 3  # ids never return
    for wrong in (
        {"action": "set-current-schema", "schema-id": 5},
        {"action": "remove-schemas", "schema-ids": [0]},
        {"action": "add-schema", "schema": schema(field(4, "v", "variant"))},
        {"action": "add-schema"},
        {"action": "set-current-schema", "schema-id": True},
    ):
        with pytest.raises(BadUpdate):
            on(back, wrong)


def test_a_column_that_the_partitions_need_stays() -> None:
    by_s: dict[str, Any] = {"fields": [{"source-id": 9, "name": "s", "transform": "identity"}]}
    base = table(2, **{"partition-spec": by_s})
    narrow: list[dict[str, Any]] = [
        {"action": "add-schema", "schema": schema(field(1, "k"))},
        {"action": "set-current-schema", "schema-id": -1},
    ]
    with pytest.raises(BadUpdate, match="needs column 2"):
        on(base, *narrow)
    void = {"fields": [{"source-id": 2, "field-id": 1000, "name": "s", "transform": "void"}]}
    freed = on(base, {"action": "add-spec", "spec": void}, {"action": "set-default-spec", "spec-id": -1})
    assert on(freed, *narrow)["current-schema-id"] == 1


def test_specs_and_orders_get_ids() -> None:
    base = table()
    by_k = {"fields": [{"source-id": 1, "name": "b", "transform": "bucket[8]"}]}
    made = on(base, {"action": "add-spec", "spec": by_k}, {"action": "set-default-spec", "spec-id": -1})
    assert made["partition-specs"][1]["fields"][0]["field-id"] == 1000
    both = {"fields": [*by_k["fields"], {"source-id": 2, "name": "t", "transform": "truncate[3]"}]}
    made = on(made, {"action": "add-spec", "spec": both}, {"action": "set-default-spec", "spec-id": -1})
    assert [one["field-id"] for one in made["partition-specs"][2]["fields"]] == [1000, 1001]  # an equal field is it
    assert made["last-partition-id"] == 1001
    assert on(made, {"action": "add-spec", "spec": by_k}) is made
    ordered = {"fields": [{"source-id": 1, "transform": "identity", "direction": "asc", "null-order": "nulls-last"}]}
    made = on(
        made,
        {"action": "add-sort-order", "sort-order": ordered},
        {"action": "set-default-sort-order", "sort-order-id": -1},
    )
    assert (made["default-sort-order-id"], [one["order-id"] for one in made["sort-orders"]]) == (1, [0, 1])
    made = on(made, {"action": "set-default-sort-order", "sort-order-id": 0})
    made = on(made, {"action": "remove-partition-specs", "spec-ids": [0, 1, 50]})
    assert [one["spec-id"] for one in made["partition-specs"]] == [2]
    nested = schema(field(1, "k"), field(2, "s", "string"), field(3, "p", schema(field(4, "x"))))
    wide = on(made, {"action": "add-schema", "schema": nested}, {"action": "set-current-schema", "schema-id": -1})
    for wrong in (
        {"action": "remove-partition-specs", "spec-ids": [2]},
        {"action": "set-default-spec", "spec-id": 0},
        {"action": "set-default-sort-order", "sort-order-id": 9},
        {"action": "add-spec", "spec": {"fields": [{"source-id": 3, "name": "p", "transform": "identity"}]}},
        {"action": "add-spec", "spec": {"fields": [{"source-id": 77, "name": "p", "transform": "identity"}]}},
        {"action": "add-spec", "spec": {"fields": [{"source-id": 1, "name": "p", "transform": "day"}] * 2}},
        {"action": "add-sort-order", "sort-order": {"fields": [{"source-id": 77, "transform": "identity"}]}},
    ):
        with pytest.raises(BadUpdate):
            on(wide, wrong)


def test_partition_ids_of_version_1_have_no_gap() -> None:
    base = table(1)
    gap: dict[str, Any] = {"fields": [{"source-id": 1, "field-id": 1005, "name": "b", "transform": "bucket[8]"}]}
    with pytest.raises(BadUpdate, match="without a gap"):
        on(base, {"action": "add-spec", "spec": gap})
    made = on(
        base,
        {"action": "add-spec", "spec": {"fields": [{**gap["fields"][0], "field-id": 1000}]}},
        {"action": "set-default-spec", "spec-id": -1},
    )
    assert made["partition-spec"] == made["partition-specs"][1]["fields"]


# --- snapshots and refs -------------------------------------------------------------------------------------------


def test_snapshots_move_main_and_its_log() -> None:
    made = on(table(), *added(snapshot(11, 1)))
    assert (made["current-snapshot-id"], made["last-sequence-number"], made["last-updated-ms"]) == (11, 1, NOW + 11)
    made = on(made, *added(snapshot(12, 2, 11), snapshot(13, 3, 12)))
    assert [entry["snapshot-id"] for entry in made["snapshot-log"]] == [11, 13]  # a step on the way is none
    made = on(made, {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 11})
    assert made["snapshot-log"][-1] == {"timestamp-ms": NOW + 1_000, "snapshot-id": 11}
    tagged = on(
        made, {"action": "set-snapshot-ref", "ref-name": "v1", "type": "tag", "snapshot-id": 12, "max-ref-age-ms": 5}
    )
    assert tagged["refs"]["v1"] == {"snapshot-id": 12, "type": "tag", "max-ref-age-ms": 5}
    same = {"action": "set-snapshot-ref", "ref-name": "v1", "type": "tag", "snapshot-id": 12, "max-ref-age-ms": 5}
    assert on(tagged, same) is tagged
    assert on(tagged, {"action": "remove-snapshot-ref", "ref-name": "nothing"}) is tagged
    emptied = on(tagged, {"action": "remove-snapshot-ref", "ref-name": "main"})
    assert (emptied["current-snapshot-id"], emptied["snapshot-log"]) == (-1, tagged["snapshot-log"])


def test_a_snapshot_of_an_older_state_is_stale_and_a_wrong_one_refused() -> None:
    made = on(table(), *added(snapshot(11, 1)), *added(snapshot(12, 2, 11)))
    for stale in (snapshot(13, 2, 11), snapshot(13, 1, 11)):
        with pytest.raises(Stale, match="sequence number"):
            on(made, *added(stale))
    assert on(made, *added(snapshot(13, 1)))["last-sequence-number"] == 2  # without a parent: a table that is replaced
    for wrong in (
        snapshot(12, 3, 11),
        {**snapshot(14, 3, 12), "manifest-list": None},
        {**snapshot(14, 3, 12), "sequence-number": None},
        {**snapshot(14, 3, 12), "timestamp-ms": "now"},
        {**snapshot(14, 3, 12), "snapshot-id": None},
    ):
        with pytest.raises(BadUpdate):
            on(made, *added(wrong))
    for ref in (
        {"ref-name": "main", "type": "tag", "snapshot-id": 12},
        {"ref-name": "x", "type": "twig", "snapshot-id": 12},
        {"ref-name": "x", "type": "tag", "snapshot-id": 12, "min-snapshots-to-keep": 3},
        {"ref-name": "x", "type": "branch", "snapshot-id": 99},
        {"ref-name": "x", "type": "branch"},
    ):
        with pytest.raises(BadUpdate):
            on(made, {"action": "set-snapshot-ref", **ref})


def test_snapshots_of_version_1_have_no_sequence_numbers() -> None:
    numbered = snapshot(11, 1)
    with pytest.raises(BadUpdate, match="sequence number"):
        on(table(1), *added(numbered))
    for plain in (snapshot(11, 0), {name: one for name, one in numbered.items() if name != "sequence-number"}):
        assert on(table(1), *added(plain))["current-snapshot-id"] == 11


def test_rows_of_version_3_have_ids() -> None:
    base = table(3)
    made = on(base, *added(snapshot(11, 1, **{"first-row-id": 0, "added-rows": 10})))
    assert made["next-row-id"] == 10
    with pytest.raises(Stale, match="row id"):
        on(made, *added(snapshot(12, 2, 11, **{"first-row-id": 3, "added-rows": 10})))
    for wrong in ({}, {"first-row-id": 10}, {"first-row-id": 10, "added-rows": -1}):
        with pytest.raises(BadUpdate):
            on(made, *added(snapshot(12, 2, 11, **wrong)))


def test_snapshots_go_with_all_that_is_theirs() -> None:
    made = on(table(), *added(snapshot(11, 1)))
    made = on(made, *added(snapshot(12, 2, 11)))
    made = on(
        made,
        *added(snapshot(13, 3, 12)),
        {"action": "set-snapshot-ref", "ref-name": "old", "type": "tag", "snapshot-id": 11},
    )
    file = {
        "statistics-path": "file:///s",
        "file-size-in-bytes": 1,
        "file-footer-size-in-bytes": 1,
        "blob-metadata": [],
    }
    for number in (11, 13, 13):
        made = on(
            made, {"action": "set-statistics", "snapshot-id": number, "statistics": {"snapshot-id": number, **file}}
        )
    assert [one["snapshot-id"] for one in made["statistics"]] == [11, 13]
    gone = on(made, {"action": "remove-snapshots", "snapshot-ids": [11, 99]})
    assert [one["snapshot-id"] for one in gone["snapshots"]] == [12, 13]
    assert set(gone["refs"]) == {"main"}
    assert [one["snapshot-id"] for one in gone["statistics"]] == [13]
    assert [one["snapshot-id"] for one in gone["snapshot-log"]] == [12, 13]
    assert on(gone, {"action": "remove-snapshots", "snapshot-ids": [11]}) is gone
    assert on(gone, {"action": "remove-statistics", "snapshot-id": 11}) is gone
    assert on(gone, {"action": "remove-statistics", "snapshot-id": 13})["statistics"] == []
    middle = on(made, {"action": "remove-snapshots", "snapshot-ids": [12]})
    assert [one["snapshot-id"] for one in middle["snapshot-log"]] == [13]  # no gap
    none = on(made, {"action": "remove-snapshots", "snapshot-ids": [11, 12, 13]})
    assert (none["current-snapshot-id"], none["refs"], none["snapshot-log"]) == (-1, {}, [])


# --- the rest -----------------------------------------------------------------------------------------------------


def test_properties_versions_keys_and_what_is_not_known() -> None:
    base = {**table(1), "of-the-future": {"a": [1]}}
    made = on(base, {"action": "set-properties", "updates": {"a": "1", "b": "2"}})
    made = on(made, {"action": "remove-properties", "removals": ["a", "nothing"]})
    assert (made["properties"], made["of-the-future"]) == ({"b": "2"}, {"a": [1]})
    assert on(made, {"action": "remove-properties", "removals": ["nothing"]}) is made
    assert on(made, {"action": "set-location", "location": "s3://elsewhere"}) is made
    newer = on(made, {"action": "upgrade-format-version", "format-version": 2})
    assert "schema" not in newer
    assert newer["last-sequence-number"] == 0
    third = apply(newer, [{"action": "upgrade-format-version", "format-version": 3}], NOW)
    assert third["next-row-id"] == 0
    key = {"key-id": "k1", "encrypted-key-metadata": "AA=="}
    keyed = apply(third, [{"action": "add-encryption-key", "encryption-key": key}] * 2, NOW)
    assert keyed["encryption-keys"] == [key]
    assert apply(keyed, [{"action": "remove-encryption-key", "key-id": "k1"}] * 2, NOW)["encryption-keys"] == []
    assert apply(third, [{"action": "assign-uuid", "uuid": UUID.upper()}], NOW) is third
    for wrong in (
        {"action": "upgrade-format-version", "format-version": 1},
        {"action": "upgrade-format-version", "format-version": 4},
        {"action": "assign-uuid", "uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c2"},
        {"action": "assign-uuid", "uuid": "x"},
        {"action": "set-properties", "updates": {"a": 1}},
        {"action": "set-properties"},
        {"action": "fly"},
        {"action": ["add-schema"]},
        {},
        "add-schema",
    ):
        with pytest.raises(BadUpdate):
            apply(third, [wrong], NOW)


def test_earlier_metadata_is_listed_up_to_a_number() -> None:
    made = on(
        table(), {"action": "set-properties", "updates": {"write.metadata.previous-versions-max": "2"}}, previous="m0"
    )
    for number in range(1, 5):
        made = on(made, {"action": "set-properties", "updates": {"n": str(number)}}, previous=f"m{number}")
    assert [entry["metadata-file"] for entry in made["metadata-log"]] == ["m3", "m4"]


def test_too_many_updates_are_refused() -> None:
    with pytest.raises(BadUpdate, match="10,000"):
        apply(table(), [{"action": "set-location", "location": "x"}] * 100_000, NOW)


def test_times_never_go_back() -> None:
    """Readers refuse metadata whose logs do, whatever the clocks of its writers said."""
    made = on(table(), *added(snapshot(11, 1, **{"timestamp-ms": NOW - 600_000})), previous="m0")
    made = on(made, *added(snapshot(12, 2, 11, **{"timestamp-ms": NOW + 600_000})), previous="m1")
    made = on(made, *added(snapshot(13, 3, 12)), previous="m2")
    made = on(
        made, {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 11}, previous="m3"
    )
    for log in ("snapshot-log", "metadata-log"):
        times = [entry["timestamp-ms"] for entry in made[log]]
        assert times == sorted(times)
        assert made["last-updated-ms"] >= times[-1]
    assert [entry["snapshot-id"] for entry in made["snapshot-log"]] == [11, 12, 13, 11]


def test_a_table_is_made_by_updates_alone() -> None:
    steps: list[dict[str, Any]] = [
        {"action": "assign-uuid", "uuid": UUID},
        {"action": "upgrade-format-version", "format-version": 1},
        {"action": "add-schema", "schema": schema(field(1, "k"))},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "add-spec", "spec": {"spec-id": 0, "fields": []}},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": {"order-id": 0, "fields": []}},
        {"action": "set-default-sort-order", "sort-order-id": -1},
    ]
    made = apply(None, [*steps, *added(snapshot(1, 0))], NOW)
    is_a_table({**made, "location": "file:///x"})
    for left in range(len(steps)):
        if steps[left]["action"] != "upgrade-format-version":
            with pytest.raises(BadUpdate):
                apply(None, steps[:left] + steps[left + 1 :], NOW)


@pytest.mark.parametrize(
    ("wanted", "holds"),
    [
        ({"type": "assert-table-uuid", "uuid": UUID.upper()}, True),
        ({"type": "assert-table-uuid", "uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c2"}, False),
        ({"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 11}, True),
        ({"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": None}, False),
        ({"type": "assert-ref-snapshot-id", "ref": "other", "snapshot-id": None}, True),
        ({"type": "assert-ref-snapshot-id", "ref": "other"}, True),
        ({"type": "assert-ref-snapshot-id", "ref": "other", "snapshot-id": 11}, False),
        ({"type": "assert-last-assigned-field-id", "last-assigned-field-id": 2}, True),
        ({"type": "assert-last-assigned-field-id", "last-assigned-field-id": 3}, False),
        ({"type": "assert-last-assigned-partition-id", "last-assigned-partition-id": 999}, True),
        ({"type": "assert-current-schema-id", "current-schema-id": 1}, False),
        ({"type": "assert-default-spec-id", "default-spec-id": 0}, True),
        ({"type": "assert-default-sort-order-id", "default-sort-order-id": 0}, True),
        ({"type": "assert-create"}, False),
    ],
)
def test_requirements(wanted: dict[str, Any], holds: bool) -> None:
    held = on(table(), *added(snapshot(11, 1)))
    if holds:
        requirements.check([wanted], held)
    else:
        with pytest.raises(Stale):
            requirements.check([wanted], held)


@pytest.mark.parametrize(
    "wanted",
    [
        {},
        "x",
        {"type": "assert-luck"},
        {"type": ["x"]},
        {"type": "assert-table-uuid"},
        {"type": "assert-ref-snapshot-id"},
        {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": "11"},
        {"type": "assert-current-schema-id"},
        {"type": "assert-current-schema-id", "current-schema-id": True},
    ],
)
def test_requirements_that_mean_nothing(wanted: Any) -> None:
    with pytest.raises(BadUpdate):
        requirements.check([wanted], table())


def test_a_creation_demands_nothing_else() -> None:
    assert requirements.is_create([{"type": "assert-create"}])
    assert not requirements.is_create([])
    with pytest.raises(BadUpdate):
        requirements.is_create([{"type": "assert-create"}, {"type": "assert-table-uuid", "uuid": UUID}])


def test_commits_say_what_happened() -> None:
    def message(*updates: dict[str, Any], is_new: bool = False) -> str:
        return message_of("db.t", updates, is_new=is_new).text

    append = {"operation": "append", "added-records": "1200"}
    assert message(*added(snapshot(1, 1, summary=append))) == "append 1,200 rows to db.t"
    assert (
        message(*added(snapshot(1, 1, summary={"operation": "delete", "deleted-records": "3"})))
        == "delete 3 rows from db.t"
    )
    assert message(*added(snapshot(1, 1, summary={"operation": "delete"}))) == "delete from db.t"
    assert message(*added(snapshot(1, 1, summary={"operation": "overwrite"}))) == "overwrite db.t"
    assert message(*added(snapshot(1, 1, summary={"operation": "replace"}))) == "rewrite db.t"
    assert message(is_new=True) == "create table db.t"
    assert message({"action": "set-properties"}) == "set properties of db.t"
    assert message({"action": "add-schema"}) == "change the schema of db.t"
    assert message({"action": "add-spec"}) == "change the layout of db.t"
    assert message({"action": "set-snapshot-ref"}) == "change db.t"
