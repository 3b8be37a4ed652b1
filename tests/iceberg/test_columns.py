"""Which column of a file is which, when native tables become Iceberg's and back: by id, by name, or not at all."""

from __future__ import annotations

import pyarrow as pa
import pytest

from strandline.errors import UsageError
from strandline.iceberg import Catalog
from strandline.iceberg.tables import TableChange, Tables
from strandline.lake import Lake
from strandline.repository.branch import Branch


@pytest.fixture
def main(lake: Lake) -> Branch:
    return lake.create_repository("nyc").branch("main")


def test_files_that_know_their_columns_by_id_are_not_read_by_name(main: Branch) -> None:
    """An Iceberg table left them, one of whose columns was dropped: by their ids c would show what b was."""
    catalog = Catalog(main)
    catalog.create_namespace("db")
    table = catalog.create_table("db.x", pa.schema([(name, pa.int64()) for name in "abc"]))
    table.append(pa.table({"a": [1], "b": [10], "c": [100]}))
    with table.update_schema() as update:
        update.delete_column("b")
    main.table("n").from_iceberg("db.x")
    assert main.table("n").to_arrow().to_pylist() == [{"a": 1, "c": 100}]
    before = main.commit_id
    with pytest.raises(UsageError, match="id 2 of another Iceberg table"):
        main.table("n").to_iceberg("db.y")
    assert main.commit_id == before
    main.table("n").write(main.table("n").to_arrow(), mode="overwrite", message="anew")
    main.table("n").to_iceberg("db.y")
    assert catalog.load_table("db.y").scan().to_arrow().to_pylist() == [{"a": 1, "c": 100}]


def test_a_renamed_column_is_found_after_its_schema_is_gone(main: Branch) -> None:
    catalog = Catalog(main)
    catalog.create_namespace("db")
    table = catalog.create_table("db.x", pa.schema([(name, pa.int64()) for name in "ab"]))
    table.append(pa.table({"a": [1], "b": [10]}))
    with table.update_schema() as update:
        update.rename_column("b", "z")
    removal = {"action": "remove-schemas", "schema-ids": [0]}
    Tables(main).commit([TableChange(("db", "x"), (), (removal,))])
    assert len(catalog.load_table("db.x").metadata.schemas) == 1
    with pytest.raises(UsageError, match="another name"):
        main.table("n").from_iceberg("db.x")
    assert not main.exists("n/_strandline_table.json")


@pytest.mark.parametrize("mapping", ["renamed", "not JSON", '[{"field-id": 1, "names": ["k"]}]', '[{"names": 5}]'])
def test_files_without_ids_are_judged_by_the_name_mapping(mapping: str, main: Branch) -> None:
    """Which finds a renamed column by its old name; without one, readers make of such files what they like."""
    Catalog(main).create_namespace("db")
    table = main.table("n")
    table.write(pa.table({"k": [1], "s": ["a"]}), message="write")
    table.to_iceberg("db.t")
    held = Catalog(main).load_table("db.t")
    if mapping == "renamed":
        with held.update_schema() as update:
            update.rename_column("s", "t")
        removal = {"action": "remove-schemas", "schema-ids": [0]}
        Tables(main).commit([TableChange(("db", "t"), (), (removal,))])
    else:
        held.transaction().set_properties({"schema.name-mapping.default": mapping}).commit_transaction()
    before = main.commit_id
    with pytest.raises(UsageError, match="has another name" if mapping == "renamed" else "has no id"):
        main.table("back").from_iceberg("db.t")
    assert main.commit_id == before
