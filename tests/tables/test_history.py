"""What the history of a table says of each commit: the operation, and the rows that really came and went."""

from __future__ import annotations

import pyarrow as pa
import pytest

from strandline.errors import TableNotFound
from strandline.repository.branch import Branch
from strandline.tables.history import Files, Mark, decode_mark, digest_of, encode_mark, operation_of, really_changed
from strandline.tables.table import Table
from strandline.testing.clock import ManualClock
from strandline.tree.rows import user_metadata_json


def rows(*numbers: int) -> pa.Table:
    parts = pa.array([f"p{number % 2}" for number in numbers], pa.string())
    return pa.table({"id": pa.array(numbers, pa.int64()), "part": parts})


@pytest.fixture
def table(main: Branch) -> Table:
    made = main.table("t")
    made.write(rows(*range(10)), partition_by="part")
    main.commit("made")
    return made


def last(table: Table) -> tuple[str, int | None, int | None]:
    change = next(iter(table.history()))
    return change.operation, change.inserted_rows, change.deleted_rows


def test_each_operation_has_its_name_and_its_rows(main: Branch, table: Table) -> None:
    assert last(table) == ("create", 10, 0)
    table.write(rows(10, 11, 12))
    main.commit("more")
    assert last(table) == ("append", 3, 0)
    table.write(rows(20), mode="overwrite_partitions")
    main.commit("a partition")
    assert last(table) == ("overwrite_partitions", 1, 7)
    table.write(rows(3), mode="overwrite", where="id = 3")
    main.commit("a row")
    assert last(table) == ("overwrite where id = 3", 1, 1)
    table.write(rows(), mode="overwrite", where="id > 4 and part = 'p1'")
    main.commit("without some")
    assert last(table) == ("overwrite where id > 4 and part = 'p1'", 0, 4)
    table.write(rows(1, 2), mode="overwrite")
    main.commit("all")
    assert last(table) == ("overwrite", 2, 3)
    table.set_schema_default("merge")
    main.commit("a default")
    assert last(table) == ("schema", 0, 0)
    for path in [info.path for info in main.list("t/")]:
        main.delete(path)
    main.commit("gone")
    assert last(table) == ("drop", 0, 2)


def test_a_merge_of_branches_is_a_merge(main: Branch, table: Table) -> None:
    work = main.create_branch("work")
    work.table("t").write(rows(30))
    work.commit("there")
    main.put("x", b"x")
    main.commit("here")
    main.merge(work)
    assert last(table) == ("merge", 1, 0)
    main.revert(main.commit_id, parent=1)
    assert last(table) == ("change", 0, 1)


def test_two_writes_of_the_same_rows_in_one_commit_are_not_counted(main: Branch, table: Table) -> None:
    """Rows that the first one brought would be taken for old ones that the second only wrote again."""
    table.write(rows(2, 4, 100), mode="overwrite", where="id in (2, 4, 100)")
    table.write(rows(2), mode="overwrite", where="id = 2")
    main.commit("twice")
    assert last(table) == ("overwrite where id = 2", None, None)


def test_writes_of_several_kinds_in_one_commit(main: Branch, table: Table) -> None:
    table.write(rows(40), mode="overwrite_partitions")
    table.write(rows(41))
    main.commit("both")
    assert last(table) == ("overwrite_partitions, append", 2, 5)


def test_a_long_condition_is_cut(main: Branch, table: Table) -> None:
    where = " or ".join(f"id = {number}" for number in range(100))
    table.write(rows(5), mode="overwrite", where=where)
    main.commit("long")
    assert last(table)[0] == f"overwrite where {where[:200]}"
    assert last(table)[1:] == (1, 10)


@pytest.mark.parametrize("metadata", [None, "{}", '{"strandline.overwrite": "5"}', '{"strandline.overwrite": 5}', "["])
def test_a_mark_of_an_earlier_version_or_of_nobody_says_little(metadata: str | None) -> None:
    assert decode_mark(metadata, is_whole=True) == Mark("", "overwrite")
    assert decode_mark(metadata, is_whole=False) == Mark("", "overwrite_partitions")
    old = Files(frozenset({"x"}), 1, 5, digest_of(["x"]))
    assert really_changed([decode_mark(metadata, is_whole=True)], old, old) == (None, None)


def test_a_mark_is_read_as_it_was_written() -> None:
    gone = Files(frozenset(), 1, 7, digest_of(["b", "a"]))
    mark = Mark("w", "overwrite", "a = 'ä\n'", 5, digest_of(["a", "b"]))
    assert decode_mark(user_metadata_json(encode_mark(mark)), is_whole=False) == mark
    added = Files(frozenset({"w"}), 1, 8, digest_of(["c"]))
    assert really_changed([mark], added, gone) == (5, 4)
    assert really_changed([mark], Files(frozenset({"w", ""}), 2, 8, ""), gone) == (None, None)
    assert really_changed([mark], added, Files(frozenset(), 1, 7, digest_of(["a", "d"]))) == (None, None)
    name = operation_of([mark], added, added, came=False, went=False, is_merge=False, schema_changed=False)
    assert name == "overwrite where a = 'ä\n'"


def test_writes_of_other_rows_in_one_commit_are_not_counted(main: Branch, table: Table) -> None:
    """Three upserts, and as many rows taken away as each of them says: only which files went tells them apart."""
    for number in (0, 2, 4):
        table.write(rows(number), mode="overwrite", where=f"id = {number}")
    main.commit("three")
    assert last(table)[1:] == (None, None)
    table.write(rows(*range(5)), mode="overwrite", where="id < 5")
    table.write(rows(*range(5, 10)), mode="overwrite", where="id >= 5")
    main.commit("two")
    assert last(table)[1:] == (None, None)


def test_a_revert_does_not_tell_what_an_older_write_did(main: Branch, table: Table, clock: ManualClock) -> None:
    clock.advance_s(1)
    table.write(rows(*range(9)), mode="overwrite", where="id < 9")
    main.commit("nine")
    table.write(rows(0), mode="overwrite", where="id = 0")
    clock.advance_s(1)
    main.commit("one")
    clock.advance_s(1)
    main.revert("main~0")
    assert last(table) == ("change", None, None)


def test_a_history_of_nothing_says_so_and_that_of_a_dropped_table_does_not(main: Branch, table: Table) -> None:
    with pytest.raises(TableNotFound):
        list(main.table("tables/nope").history())
    for info in list(main.list("t/")):
        main.delete(info.path)
    main.commit("gone")
    assert [change.operation for change in table.history()] == ["drop", "create"]
    assert list(main.table("tables/nope").history(amount=0)) == []


def test_a_history_of_the_first_parents_adds_up(main: Branch, table: Table) -> None:
    work = main.create_branch("work")
    for number in (30, 31):
        work.table("t").write(rows(number))
        work.commit("there")
    main.put("x", b"x")
    main.commit("here")
    main.merge(work)
    found = [(change.operation, change.inserted_rows) for change in table.history(first_parent=True)]
    assert found == [("merge", 2), ("create", 10)]
    assert len(list(table.history())) == 4
