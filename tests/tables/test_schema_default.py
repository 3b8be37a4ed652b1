"""A table's own default for other columns, and types in the sentences of a mismatch."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import strandline
from strandline.core.upload import upload
from strandline.errors import Conflict, MergeConflict, NewerFormat, SchemaMismatch, TableNotFound, UsageError
from strandline.repository.branch import Branch
from strandline.repository.repository import Repository
from strandline.tables.record import FORMAT_VERSION, RECORD_NAME, TableRecord, decode_record, encode_record
from strandline.tables.table import Table
from tests.cli.test_cli import Run, cli, lake_cli

ONE = pa.table({"id": [1]})
MORE = pa.table({"id": [2], "name": ["x"]})
GOLDEN = Path(__file__).parent / "golden_tables"
__all__ = ["cli", "lake_cli"]


@pytest.fixture
def table(main: Branch) -> Table:
    made = main.table("t")
    made.write(ONE)
    return made


def test_a_table_that_merges_by_default_takes_more_columns_and_fewer(table: Table) -> None:
    with pytest.raises(SchemaMismatch):
        table.write(MORE)
    table.set_schema_default("merge")
    table.write(MORE)
    table.write(ONE)
    assert table.record.names == ("id", "name")
    assert table.count() == 3
    with pytest.raises(SchemaMismatch):
        table.write(pa.table({"id": [2], "other": [1]}), schema="refuse")
    table.write(ONE, mode="overwrite", schema="replace")
    assert table.record.schema_default == "merge"
    table.set_schema_default("refuse")
    with pytest.raises(SchemaMismatch):
        table.write(MORE)


def test_only_a_record_with_a_default_has_the_newer_format(main: Branch, table: Table) -> None:
    """What earlier versions can read stays as they wrote it, byte for byte; what they cannot has another number."""
    before = main.read(table.record_path)
    assert json.loads(before)["format"] == 2
    assert "schema_default" not in json.loads(before)
    table.set_schema_default("merge")
    assert json.loads(main.read(table.record_path))["format"] == 3
    table.set_schema_default("refuse")
    assert main.read(table.record_path) == before
    newer = before.replace(b'"format": 2', f'"format": {FORMAT_VERSION + 1}'.encode())
    with pytest.raises(NewerFormat):
        decode_record(newer, "t")


@pytest.mark.parametrize("wanted", ["replace", "", "MERGE", None, 5])
def test_another_default_is_refused(main: Branch, table: Table, wanted: object) -> None:
    before = main.read(table.record_path)
    with pytest.raises(UsageError):
        table.set_schema_default(wanted)  # type: ignore[arg-type]
    assert main.read(table.record_path) == before


def test_a_default_needs_a_table_that_can_be_written(repo: Repository, main: Branch, table: Table) -> None:
    with pytest.raises(TableNotFound):
        main.table("nope").set_schema_default("merge")
    main.commit("made")
    with pytest.raises(UsageError, match="cannot be written"):
        repo.ref("main@").table("t").set_schema_default("merge")


def test_a_default_is_published_with_its_transaction_and_clashes_with_another_change(main: Branch) -> None:
    main.table("t").write(ONE)
    main.commit("made")
    with pytest.raises(Conflict), main.transaction("nightly", "a default") as tx:
        tx.table("t").set_schema_default("merge")
        main.table("t").write(MORE, schema="merge")
        main.commit("a column")
    with main.transaction("nightly", "a default") as tx:
        tx.table("t").set_schema_default("merge")
    assert main.table("t").record.schema_default == "merge"


def test_a_default_is_not_set_over_another_change(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    def beside(*arguments: Any) -> Any:
        monkeypatch.undo()
        table.write(MORE, schema="merge")
        return upload(*arguments)

    monkeypatch.setattr("strandline.tables.writing.upload", beside)
    with pytest.raises(Conflict):
        table.set_schema_default("merge")
    assert (table.record.names, table.record.schema_default) == (("id", "name"), None)


def test_defaults_merge_like_columns(main: Branch, table: Table) -> None:
    """A default on one side, a column on the other: both. Both sides set one and take it back: nothing to settle."""
    main.commit("made")
    work = main.create_branch("work")
    work.table("t").set_schema_default("merge")
    work.commit("a default")
    table.write(MORE, schema="merge")
    main.commit("a column")
    main.merge(work)
    assert (table.record.schema_default, table.record.names) == ("merge", ("id", "name"))
    new = main.create_branch("new")
    for branch, wanted in ((main, "merge"), (new, "refuse")):
        branch.table("made twice").write(ONE)
        branch.table("made twice").set_schema_default(wanted)  # type: ignore[arg-type]
        branch.commit("made")
    with pytest.raises(MergeConflict, match="defaults for changes of the schema"):
        main.merge(new)


def test_the_command_line_sets_a_default(lake_cli: Run) -> None:
    lake_cli("repo", "create", "nyc")
    assert lake_cli("table", "set", "nyc/main/t", "--schema", "merge")[0] != 0
    with strandline.open() as lake:
        lake.repository("nyc").branch("main").table("t").write(ONE)
    code, out, _ = lake_cli("table", "set", "nyc/main/t", "--schema", "merge")
    assert (code, out) == (0, "Writes of t with other columns add them and widen types; staged.\n")
    assert "writes add columns by default" in lake_cli("table", "show", "nyc/main/t")[1]
    assert json.loads(lake_cli("table", "show", "nyc/main/t", "--json")[1])["schema_default"] == "merge"
    assert lake_cli("table", "set", "nyc/main/t", "--schema", "replace")[0] == 2


def test_a_mismatch_names_the_field_of_a_struct(main: Branch) -> None:
    def nested(kind: pa.DataType) -> pa.Table:
        return pa.table({"a": pa.array([None], pa.struct([("b", pa.struct([("c", kind), ("d", pa.string())]))]))})

    main.table("t").write(nested(pa.int64()))
    with pytest.raises(SchemaMismatch, match=r"other column types: a\.b\.c is long, not string\."):
        main.table("t").write(nested(pa.string()))
    with pytest.raises(SchemaMismatch, match=r"a is struct<b: struct<c: long, d: string>>, not array<integer>"):
        main.table("t").write(pa.table({"a": pa.array([None], pa.list_(pa.int32()))}))


def test_golden_tables(tmp_path: Path) -> None:
    """Tables that this version and the one before it wrote: never write them anew; add others."""
    folder = tmp_path / "lake"
    shutil.copytree(GOLDEN, folder)
    with strandline.open(folder, synced=False) as lake:
        main = lake.repository("golden").branch("main")
        older, newer = main.table("format 2"), main.table("format 3")
        assert (older.record.format, newer.record.format) == (2, 3)
        assert [change.operation for change in older.history()] == ["overwrite", "append", "create"]
        told = [(one.operation, one.inserted_rows, one.deleted_rows) for one in newer.history()]
        assert told == [("overwrite where id among 1 keys", 1, 1), ("schema", 0, 0), ("create", 3, 0)]
        newer.write(MORE)
        assert newer.count() == 4
        with pytest.raises(SchemaMismatch):
            older.write(MORE)
        assert lake.repository("golden").fsck(content=True).is_sound


def test_a_record_without_a_default_is_written_as_before() -> None:
    record = TableRecord(fields=({"name": "id", "type": "long", "nullable": True, "metadata": {}},))
    assert decode_record(encode_record(record), RECORD_NAME) == record
    assert "schema_default" not in encode_record(record).decode()


def test_a_merged_record_has_the_format_of_what_it_says(main: Branch, table: Table) -> None:
    table.set_schema_default("merge")
    main.commit("made")
    work = main.create_branch("work")
    work.table("t").set_schema_default("refuse")
    work.commit("no default")
    table.write(MORE)
    main.commit("a column")
    main.merge(work)
    assert (table.record.schema_default, table.record.format) == (None, 2)
    assert table.record.names == ("id", "name")


def test_a_default_that_is_there_already_changes_nothing(main: Branch, table: Table) -> None:
    old = main.read(table.record_path).replace(b'"format": 2', b'"format": 1')
    main.put(table.record_path, old)
    main.commit("of the first format")
    table.set_schema_default("refuse")
    assert not list(main.uncommitted())
