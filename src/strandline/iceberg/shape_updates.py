"""Updates of what a table is like: its schemas, partition specs and sort orders. Pure.

Source: `TableMetadata.Builder` of Iceberg is the reference that catalogs are held to.
"""

from __future__ import annotations

from strandline.iceberg.building import Building, chosen, field_of, numbers_of
from strandline.iceberg.partitions import (
    FIRST_ORDER_ID,
    UNSORTED_ID,
    check_fits,
    check_names,
    order_content,
    spec_content,
    spec_with_ids,
)
from strandline.iceberg.refusals import BadUpdate
from strandline.iceberg.schemas import FIRST_SCHEMA_ID, Json, check, content, highest_id


def add_schema(table: Building, update: Json) -> None:
    """An equal schema keeps its id; what the request says of the last column is not believed."""
    schema = field_of(update, "schema", dict)
    check(schema, table.version)
    highest = max(table.data["last-column-id"], highest_id(schema))
    same = next((one for one in table.items("schemas") if content(one) == content(schema)), None)
    table.data["last-column-id"] = highest
    if same is not None:
        table.note_known("schemas", same["schema-id"])
        return
    number = max((one["schema-id"] for one in table.items("schemas")), default=FIRST_SCHEMA_ID - 1) + 1
    table.add_numbered("schemas", "schema-id", {**schema, "schema-id": number})


def set_current_schema(table: Building, update: Json) -> None:
    known = table.by_id("schemas", "schema-id")
    given = field_of(update, "schema-id", int)
    id = chosen(given, table.last["schemas"], "schema")
    if id not in known:
        raise BadUpdate(f"The table has no schema {id}.")
    table.data["current-schema-id"] = id


def remove_schemas(table: Building, update: Json) -> None:
    gone = set(numbers_of(update, "schema-ids"))
    if table.data.get("current-schema-id") in gone:
        raise BadUpdate("The current schema cannot be removed.")
    table.keep("schemas", lambda one: one["schema-id"] not in gone)


def add_spec(table: Building, update: Json) -> None:
    spec = field_of(update, "spec", dict)
    check_fits(spec, table.schema, "partition spec")
    check_names(spec, table.schema)
    specs = table.items("partition-specs")
    same = next((one for one in specs if spec_content(one) == spec_content(spec)), None)
    if same is not None:
        table.note_known("partition-specs", same["spec-id"])
        return
    made = spec_with_ids(spec, specs, table.version, table.data["last-partition-id"])
    number = max((one["spec-id"] for one in specs), default=-1) + 1
    table.add_numbered("partition-specs", "spec-id", {**made, "spec-id": number})
    highest = max((field["field-id"] for field in made["fields"]), default=0)
    table.data["last-partition-id"] = max(table.data["last-partition-id"], highest)


def set_default_spec(table: Building, update: Json) -> None:
    given = field_of(update, "spec-id", int)
    table.data["default-spec-id"] = chosen(given, table.last["partition-specs"], "partition spec")


def remove_specs(table: Building, update: Json) -> None:
    gone = set(numbers_of(update, "spec-ids"))
    if table.data.get("default-spec-id") in gone:
        raise BadUpdate("The default partition spec cannot be removed.")
    table.keep("partition-specs", lambda one: one["spec-id"] not in gone)


def add_sort_order(table: Building, update: Json) -> None:
    order = field_of(update, "sort-order", dict)
    check_fits(order, table.schema, "sort order")
    orders = table.items("sort-orders")
    same = next((one for one in orders if order_content(one) == order_content(order)), None)
    if same is not None:
        table.note_known("sort-orders", same["order-id"])
        return
    highest = max((one["order-id"] for one in orders), default=UNSORTED_ID)
    number = max(highest + 1, FIRST_ORDER_ID) if order["fields"] else UNSORTED_ID
    table.add_numbered("sort-orders", "order-id", {**order, "order-id": number})


def set_default_sort_order(table: Building, update: Json) -> None:
    given = field_of(update, "sort-order-id", int)
    table.data["default-sort-order-id"] = chosen(given, table.last["sort-orders"], "sort order")


def refuse_unbound(table: Building, before: Json | None) -> None:
    """Raise `BadUpdate` if the default spec or order does not fit the current schema any more."""
    keys = ("current-schema-id", "default-spec-id", "default-sort-order-id")
    if before is not None and all(before.get(key) == table.data.get(key) for key in keys):
        return
    spec = table.by_id("partition-specs", "spec-id").get(table.data.get("default-spec-id", -1))
    order = table.by_id("sort-orders", "order-id").get(table.data.get("default-sort-order-id", -1))
    for given, what, id in (
        (spec, "partition spec", "default-spec-id"),
        (order, "sort order", "default-sort-order-id"),
    ):
        if given is None:  # looked for at the end: a request may name one before it adds it
            raise BadUpdate(f"The table has no {what} {table.data.get(id)}, which would be its default one.")
        check_fits(given, table.schema, what)
