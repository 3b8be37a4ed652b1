"""Serializable merges: what the source changed is what it would be after the branch's changes, or a conflict."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.transforms import IdentityTransform

from strandline.errors import MergeConflict, UsageError
from strandline.iceberg import Catalog
from strandline.lake import Lake
from strandline.repository.branch import Branch
from tests.iceberg.branches import SCHEMA, T, keys, some, started
from tests.iceberg.deletes import compact


def partitioned(lake: Lake) -> Branch:
    """A table by `s`."""
    main = lake.create_repository("nyc").branch("main")
    catalog = Catalog(main)
    catalog.create_namespace("db")
    table = catalog.create_table(T, SCHEMA)
    with table.update_spec() as update:
        update.add_identity("s")
    table.append(pa.table({"k": [1, 2, 11, 12], "s": ["a", "a", "b", "b"]}, SCHEMA))
    return main


def test_a_serializable_merge_refuses_rows_that_the_source_had_not_seen(lake: Lake) -> None:
    """The source deleted rows by a condition, which rows that came to main meanwhile may fulfil as well."""
    repository, main = started(lake, 2)
    dev = main.create_branch("dev")
    Catalog(main).load_table(T).append(some(21))
    Catalog(dev).load_table(T).append(some(31))
    main.merge("dev", strategy="serializable")  # rows that are only added are seen by nobody
    assert keys(main) == [1, 2, 3, 11, 12, 13, 21, 31]
    repository.delete_branch("dev")
    dev = main.create_branch("dev")
    Catalog(dev).load_table(T).delete("k = 12")
    Catalog(main).load_table(T).append(some(41))
    before = main.commit_id
    for strategy in ("serializable", {"tables/db/": "serializable"}, {"": "source-wins", "tables/": "serializable"}):
        with pytest.raises(MergeConflict) as caught:
            main.merge("dev", strategy=strategy)  # type: ignore[arg-type]
        assert "had not seen them" in caught.value.reasons["tables/db/t"]
    for misspelled in ("tables/db/tt/", "db.t"):
        with pytest.raises(UsageError, match="no side of the merge has anything there"):
            main.merge("dev", strategy={misspelled: "serializable"})
    assert main.commit_id == before
    found = main.preview_merge("dev", strategy={"tables/db/t/": "serializable"})
    assert list(found.conflicts) == ["tables/db/t"]
    main.merge("dev", strategy={"": "serializable", "tables/db/t/": "dest-wins"})  # which decides nothing: it joins
    assert keys(main) == [1, 2, 3, 11, 13, 21, 31, 41]


def test_a_serializable_merge_goes_by_partitions(lake: Lake) -> None:
    main = partitioned(lake)
    catalog = Catalog(main)
    dev = main.create_branch("dev")
    Catalog(dev).load_table(T).delete("k = 1")
    Catalog(main).load_table(T).append(pa.table({"k": [13], "s": ["b"]}, SCHEMA))
    main.merge("dev", strategy="serializable")
    assert keys(main) == [2, 11, 12, 13]
    again = main.create_branch("again")
    Catalog(again).load_table(T).delete("k = 11")
    Catalog(main).load_table(T).append(pa.table({"k": [14], "s": ["b"]}, SCHEMA))
    with pytest.raises(MergeConflict, match="tables/db/t"):
        main.merge("again", strategy="serializable")
    with catalog.load_table(T).update_spec() as update:
        update.remove_field("s")
    other = main.create_branch("other")
    Catalog(other).load_table(T).delete("k = 2")
    catalog.load_table(T).append(some(99))  # of another spec: it may be of any partition
    with pytest.raises(MergeConflict, match="tables/db/t"):
        main.merge("other", strategy="serializable")
    main.merge("other")
    assert keys(main) == [11, 12, 13, 14, 99]


def test_rows_that_a_statement_put_somewhere_are_read_there_as_well(lake: Lake) -> None:
    """As a MERGE does that found no match."""
    main = partitioned(lake)
    for at, clashes in (("c", True), ("d", False)):
        dev = main.create_branch(f"dev-{at}")
        table = Catalog(dev).load_table(T)
        put = pa.table({"k": [50], "s": ["c"]}, SCHEMA)
        with table.transaction() as tx, tx.update_snapshot().overwrite() as snapshot:
            for task in table.scan(row_filter="s = 'a'").plan_files():
                snapshot.delete_data_file(task.file)
            for file in _dataframe_to_data_files(tx.table_metadata, put, table.io):
                snapshot.append_data_file(file)
        Catalog(main).load_table(T).append(pa.table({"k": [60], "s": [at]}, SCHEMA))
        if clashes:
            with pytest.raises(MergeConflict, match="tables/db/t"):
                main.merge(dev.name, strategy="serializable")
        else:
            main.merge(dev.name, strategy="serializable")
    assert keys(main) == [11, 12, 50, 60, 60]


def test_fields_of_one_name_and_different_specs_are_not_one(lake: Lake) -> None:
    main = partitioned(lake)
    table = Catalog(main).load_table(T)
    with table.update_spec() as update:
        update.remove_field("s").add_field("k", IdentityTransform(), "p")
    table.append(some(20))
    with table.update_spec() as update:
        update.remove_field("p")
    dev = main.create_branch("dev")
    Catalog(dev).load_table(T).delete("k = 20")
    with table.update_spec() as update:
        update.add_field("s", IdentityTransform(), "p")
    Catalog(main).load_table(T).append(some(21))
    with pytest.raises(MergeConflict, match="tables/db/t"):
        main.merge("dev", strategy="serializable")


def test_compactions_bring_no_rows_and_read_none(lake: Lake) -> None:
    main = partitioned(lake)
    dev = main.create_branch("dev")
    compact(dev)
    Catalog(main).load_table(T).append(pa.table({"k": [20], "s": ["a"]}, SCHEMA))
    main.merge("dev", strategy="serializable")
    other = main.create_branch("other")
    Catalog(other).load_table(T).append(pa.table({"k": [30], "s": ["c"]}, SCHEMA))
    Catalog(other).load_table(T).delete("k = 30")
    compact(main)
    main.merge("other", strategy="serializable")
    assert keys(main) == [1, 2, 11, 12, 20]
