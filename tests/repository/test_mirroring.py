"""Tables of files that somebody else writes: what a mirror commits, follows, and refuses."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import strandline
from strandline import Branch
from strandline.blob.local import LocalBlobStore
from strandline.errors import Contention, Corrupted, NotFound, SchemaMismatch, UncommittedChanges, UsageError
from strandline.repository.commits import slices
from strandline.repository.commits.resuming import Cut
from strandline.tables import mirroring


@pytest.fixture
def main(tmp_path: Path) -> Iterator[Branch]:
    with strandline.open(tmp_path / "lake", create=True, synced=False) as lake:
        yield lake.create_repository("nyc").branch("main")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "rides"
    folder.mkdir()
    return folder


def put(folder: Path, name: str, **columns: Any) -> None:
    place = folder / name
    place.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), place)


def rows(branch: Branch) -> list[dict[str, Any]]:
    found = branch.table("t").to_arrow().to_pylist()
    return sorted(found, key=lambda row: sorted(map(str, row.items())))


def test_a_plain_folder_is_a_table_and_is_followed(main: Branch, source: Path) -> None:
    put(source, "a.parquet", id=[1, 2], x=["a", "b"])
    put(source, "b.parquet", id=[3], x=["c"])
    (source / "_SUCCESS").write_text("")
    (source / ".part.crc").write_text("")
    done = main.mirror_table(source, "t")
    assert done.objects == 2
    assert done.commit is not None
    assert rows(main) == [{"id": 1, "x": "a"}, {"id": 2, "x": "b"}, {"id": 3, "x": "c"}]
    table = main.table("t")
    assert [file.relative for file in table.files("id = 3")] == ["b.parquet"]  # by the statistics of the footers
    assert table.count() == 3
    assert main.mirror_table(source, "t").commit is None  # nothing has changed
    put(source, "b.parquet", id=[3, 4], x=["c", "d"])
    (source / "a.parquet").unlink()
    put(source, "c.parquet", id=[5], x=["e"])
    again = main.mirror_table(source, "t", "the next day", metadata={"day": "2"})
    assert again.commit is not None
    assert (again.commit.message, again.commit.metadata) == ("the next day", {"day": "2"})
    assert [row["id"] for row in rows(main)] == [3, 4, 5]
    kinds = {change.path: change.kind for change in main.diff("main~1")}
    assert kinds == {"t/a.parquet": "added", "t/b.parquet": "changed", "t/c.parquet": "removed"}
    assert list(main.uncommitted()) == []


def test_folders_name_the_values_of_partitions(main: Branch, source: Path) -> None:
    for month in range(1, 4):
        put(source, f"year=2026/month={month}/part.parquet", id=[month, month + 10])
    put(source, "year=__HIVE_DEFAULT_PARTITION__/month=5/part.parquet", id=[99])
    main.mirror_table(source, "t", partition_types={"year": "integer", "month": "integer"})
    table = main.table("t")
    assert table.record.partition_by == ("year", "month")
    assert table.count("month = 2") == 2
    assert {row["year"] for row in rows(main)} == {2026, None}
    put(source, "year=2027/month=1/part.parquet", id=[7])
    main.mirror_table(source, "t")  # types are on record by now
    assert table.count("year = 2027") == 1
    put(source, "year=soon/month=1/part.parquet", id=[7])
    with pytest.raises(UsageError, match="'soon' for 'year'"):
        main.mirror_table(source, "t")
    assert table.count("year = 2027") == 1


def test_only_new_files_are_opened(main: Branch, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(20):
        put(source, f"{n:02}.parquet", id=[n])
    main.mirror_table(source, "t")
    opened: list[str] = []
    read = LocalBlobStore.open_read

    def noted(store: LocalBlobStore, key: str) -> Any:
        opened.append(key)
        return read(store, key)

    monkeypatch.setattr(LocalBlobStore, "open_read", noted)
    put(source, "07.parquet", id=[70, 71])
    put(source, "20.parquet", id=[20])
    main.mirror_table(source, "t")
    assert sorted(Path(key).name for key in opened) == ["07.parquet", "20.parquet"]


def test_a_mirror_that_died_is_gone_on_with(main: Branch, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(40):
        put(source, f"{n:02}.parquet", id=[n], **({"late": [n]} if n == 13 else {}))
    opened: list[str] = []
    footer_of = mirroring.footer_of

    def noted(resolver: Any, address: str) -> Any:
        opened.append(address.rpartition("/")[2])
        return footer_of(resolver, address)

    cut, left = slices.cut, [2]

    def dying(one: slices.Slice) -> Cut:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return cut(one)

    monkeypatch.setattr(mirroring, "footer_of", noted)
    with monkeypatch.context() as patched:
        patched.setattr(slices, "cut", dying)
        with pytest.raises(KeyboardInterrupt):
            main.mirror_table(source, "t", job="rides")
    assert not main.table("t").exists()
    before = set(opened)
    assert 10 < len(before) < 30
    opened.clear()
    put(source, "01.parquet", id=[100])  # of a slice that was done
    assert main.mirror_table(source, "t", job="rides").objects == 40
    assert len(opened) < 40
    assert "01.parquet" in opened
    assert set(opened) < {f"{n:02}.parquet" for n in range(40)}
    assert sorted(row["id"] for row in rows(main)) == [0, *range(2, 40), 100]
    assert main.table("t").record.names == ("id", "late")
    assert list(main._core.stores.trees.blobs.list_keys("_strandline/txn/")) == []


def test_a_file_that_is_written_over_in_as_many_bytes(main: Branch, source: Path) -> None:
    put(source, "a.parquet", id=[3])
    size = (source / "a.parquet").stat().st_size
    main.mirror_table(source, "t")
    put(source, "a.parquet", id=[7])
    assert (source / "a.parquet").stat().st_size == size
    with pytest.raises(Corrupted, match="written over"):
        main.table("t").to_arrow()
    main.mirror_table(source, "t")
    assert main.table("t").count("id = 7") == 1
    assert rows(main) == [{"id": 7}]
    with pytest.raises(Corrupted, match="written over"):  # statistics and rows are those of two files
        main._core.open("main~1").table("t").to_arrow("id = 3")


def test_columns_come_and_get_wider(main: Branch, source: Path) -> None:
    put(source, "a.parquet", id=pa.array([1], pa.int32()))
    main.mirror_table(source, "t")
    put(source, "b.parquet", id=pa.array([1 << 40], pa.int64()), more=["x"])
    main.mirror_table(source, "t")
    assert rows(main) == [{"id": 1, "more": None}, {"id": 1 << 40, "more": "x"}]
    put(source, "c.parquet", id=["a text"])
    head = main.commit_id
    with pytest.raises(SchemaMismatch, match=r"'c.parquet' does not fit.* id is long, not string") as refused:
        main.mirror_table(source, "t")
    assert "another one" in str(refused.value)
    assert main.commit_id == head


def test_the_types_of_spark_are_taken_from_its_footers(main: Branch, source: Path) -> None:
    fields = [{"name": "c", "type": "char(3)", "nullable": True, "metadata": {"comment": "a code"}}]
    noted = {"org.apache.spark.sql.parquet.row.metadata": json.dumps({"type": "struct", "fields": fields})}
    table = pa.table({"c": ["abc"]}).replace_schema_metadata(noted)
    pq.write_table(table, source / "a.parquet")
    main.mirror_table(source, "t")
    assert main.table("t").record.fields[0]["type"] == "char(3)"
    assert main.table("t").record.fields[0]["metadata"] == {"comment": "a code"}


def test_other_formats_need_their_columns(main: Branch, source: Path) -> None:
    pa.csv.write_csv(pa.table({"id": [1, 2], "x": ["a", "b"]}), source / "a.csv")
    with pytest.raises(UsageError, match="do not say which columns"):
        main.mirror_table(source, "t")
    columns = pa.schema([("id", pa.int64()), ("x", pa.string())])
    with pytest.raises(UsageError, match="whether their first lines are names"):
        main.mirror_table(source, "t", columns=columns)
    main.mirror_table(source, "t", columns=columns, options={"header": True})
    with pytest.raises(UsageError, match="has the options"):
        main.mirror_table(source, "t", options={"header": True, "sep": ";"})
    assert main.table("t").record.file_format == "csv"
    assert rows(main) == [{"id": 1, "x": "a"}, {"id": 2, "x": "b"}]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("notes.txt", "other formats than parquet"),
        ("b.csv", "other formats than parquet"),
        ("month=1/b.parquet", r"name the columns \['month'\]|partitioned by \['month'\]"),
    ],
)
def test_a_folder_that_is_not_one_table_is_refused(main: Branch, source: Path, name: str, expected: str) -> None:
    put(source, "a.parquet", id=[1])
    main.mirror_table(source, "t")
    put(source, name, id=[1])
    head = main.commit_id
    with pytest.raises(UsageError, match=expected):
        main.mirror_table(source, "t")
    assert main.commit_id == head
    assert main.table("t").count() == 1


def test_a_file_that_is_half_written_is_named(main: Branch, source: Path) -> None:
    put(source, "a.parquet", id=[1])
    (source / "b.parquet").write_bytes(b"PAR1 and so on")
    with pytest.raises(UsageError, match=r"b\.parquet.* is not a Parquet file"):
        main.mirror_table(source, "t")
    assert not main.table("t").exists()


def test_a_source_that_changes_while_it_is_listed(main: Branch, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(source, "a.parquet", id=[1])
    put(source, "b.parquet", id=[2])
    pages = slices._Listed._next_page

    def changing(listed: slices._Listed) -> pa.Table:
        found = pages(listed)
        (source / "b.parquet").unlink(missing_ok=True)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(slices._Listed, "_next_page", changing)
        with pytest.raises(Contention, match="listed and is gone"):
            main.mirror_table(source, "t")
    assert not main.table("t").exists()
    main.mirror_table(source, "t")
    assert main.table("t").count() == 1


def test_a_writer_that_has_just_deleted_its_files(main: Branch, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(source, "a.parquet", id=[1])
    main.mirror_table(source, "t")
    head = main.commit_id
    put(source, "_temporary/0/a.parquet", id=[2])
    pages = slices._Listed._next_page

    def changing(listed: slices._Listed) -> pa.Table:
        (source / "a.parquet").unlink(missing_ok=True)
        return pages(listed)

    monkeypatch.setattr(slices._Listed, "_next_page", changing)
    with pytest.raises(Contention, match="Every data file was listed and is gone"):
        main.mirror_table(source, "t")
    assert main.commit_id == head


@pytest.mark.parametrize("folder", ["_delta_log", ".hoodie", "_spark_metadata"])
def test_a_table_with_a_log_is_refused(main: Branch, source: Path, folder: str) -> None:
    put(source, "a.parquet", id=[1])
    (source / folder).mkdir()
    (source / folder / "00000000000000000000.json").write_text("{}")
    with pytest.raises(UsageError, match="its log says which of its files count"):
        main.mirror_table(source, "t")
    assert list(main.uncommitted()) == []


def test_the_format_of_a_mirror_is_known(main: Branch, source: Path) -> None:
    put(source, "b.parquet", id=[1])
    main.mirror_table(source, "t")
    (source / "a.json").write_text("{}")  # listed first
    with pytest.raises(UsageError, match=r"files of other formats than parquet: 'a.json'"):
        main.mirror_table(source, "t")


def test_a_mirror_lies_where_a_table_can(main: Branch, source: Path) -> None:
    put(source, "a.parquet", id=[1])
    with pytest.raises(UsageError, match="without a '/' at its beginning"):
        main.mirror_table(source, "/t")
    main.mirror_table(source, "deep/t/")
    assert main.table("deep/t").count() == 1


def test_files_of_the_table_itself_are_not_lost(main: Branch, source: Path) -> None:
    main.table("t").write(pa.table({"id": [1]}), message="written here")
    put(source, "a.parquet", id=[2])
    with pytest.raises(UsageError, match="files of its own"):
        main.mirror_table(source, "t")
    assert rows(main) == [{"id": 1}]


def test_a_mirror_does_not_lie_in_another_table(main: Branch, source: Path) -> None:
    put(source, "a.parquet", id=[1])
    main.table("own").write(pa.table({"id": [1]}), message="a table")
    with pytest.raises(UsageError, match="one in the other"):
        main.mirror_table(source, "own/sub/deeper")
    with pytest.raises(UsageError, match=r"Objects lie at|one in the other|of its own"):
        main.table("up/inner").write(pa.table({"id": [1]}), message="a table")
        main.mirror_table(source, "up")
    assert main.table("own").to_arrow().num_rows == 1


def test_what_is_wrong_is_said_before_anything_is_written(main: Branch, source: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no data file"):
        main.mirror_table(source, "t")
    with pytest.raises(NotFound, match="no folder"):
        main.mirror_table(tmp_path / "nothing", "t")
    put(source, "a.parquet", id=[1])
    with pytest.raises(NotFound, match="no data file in orc"):
        main.mirror_table(source, "t", file_format="orc")
    with pytest.raises(UsageError, match="No folder names the column 'day'"):
        main.mirror_table(source, "t", partition_types={"day": "date"})
    with pytest.raises(UsageError):
        main.mirror_table(source, "t", file_format="xml")  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        main.mirror_table(source, "")
    lake = tmp_path / "lake" / "data"
    with pytest.raises((UsageError, NotFound)):
        main.mirror_table(next(lake.iterdir()), "t")
    main.put("t/staged", b"x")
    with pytest.raises(UncommittedChanges):
        main.mirror_table(source, "t")
    main.delete("t/staged")
    main.mirror_table(source, "t")


def test_a_column_that_files_and_folders_have(main: Branch, source: Path) -> None:
    put(source, "id=1/a.parquet", id=[1], x=[2])
    with pytest.raises(UsageError, match="'id' is in the files"):
        main.mirror_table(source, "t")


def test_changes_of_others_stay(main: Branch, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(source, "a.parquet", id=[1])
    main.put("beside", b"x")
    main.commit("beside")
    cut = slices.cut
    done: list[object] = []

    def meanwhile(slice: slices.Slice) -> Cut:
        if not done:
            done.append(main.put("other", b"x"))
            main.commit("meanwhile")
        return cut(slice)

    monkeypatch.setattr(slices, "cut", meanwhile)
    main.mirror_table(source, "t")
    assert [info.path for info in main.list()] == ["beside", "other", "t/_strandline_table.json", "t/a.parquet"]


def test_many_mirrors_follow_a_folder(main: Branch, source: Path) -> None:
    """Random changes of a partitioned folder; after each mirror the table has the rows of the folder."""
    draw = random.Random(3)
    held: dict[str, list[int]] = {}
    for _ in range(12):
        for _ in range(draw.randint(1, 5)):
            name = f"m={draw.randrange(3)}/{draw.randrange(6)}.parquet"
            if name in held and draw.random() < 0.4 and len(held) > 1:
                del held[name]
                (source / name).unlink()
            else:
                held[name] = [draw.randrange(1000) for _ in range(draw.randint(0, 3))]
                put(source, name, id=pa.array(held[name], pa.int64()))
        main.mirror_table(source, "t", partition_types={"m": "integer"})
        found = sorted((row["m"], row["id"]) for row in main.table("t").to_arrow().to_pylist())
        assert found == sorted((int(name[2]), id) for name, ids in held.items() for id in ids)
        assert main.table("t").count("id >= 500") == sum(id >= 500 for ids in held.values() for id in ids)
        assert main.mirror_table(source, "t").commit is None


def test_columns_are_added_where_footers_do_not_have_them(main: Branch, source: Path) -> None:
    (source / "a.csv").write_text("id\n1\n")
    main.mirror_table(source, "t", columns=pa.schema([("id", pa.int64())]), options={"header": True})
    (source / "b.csv").write_text("id,more\n2,x\n")
    main.mirror_table(source, "t", columns=pa.schema([("id", pa.int64()), ("more", pa.string())]))
    assert main.table("t").record.names == ("id", "more")


def test_names_of_folders_are_escaped(main: Branch, source: Path) -> None:
    put(source, "a%3Ab=1/x.parquet", id=[1])
    put(source, "a%3Ab=2%2F/x.parquet", id=[2])
    main.mirror_table(source, "t")
    assert rows(main) == [{"id": 1, "a:b": "1"}, {"id": 2, "a:b": "2/"}]


def test_markers_of_folders_are_no_files(main: Branch, source: Path) -> None:
    put(source, "m=1/a.parquet", id=[1])
    (source / "m=1_$folder$").touch()
    (source / "m=1" / "marker").touch()
    main.mirror_table(source, "t")
    assert rows(main) == [{"id": 1, "m": "1"}]
    (source / "b.parquet").touch()  # this one says that it is a table's file
    with pytest.raises(UsageError, match="name the columns|not a Parquet file|partitioned by"):
        main.mirror_table(source, "t")


def test_objects_that_lie_there_stay(main: Branch, source: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "keep.bin").write_bytes(b"x")
    main.import_objects(other, "t/")
    put(source, "a.parquet", id=[1])
    with pytest.raises(UsageError, match="Objects lie at 't' already"):
        main.mirror_table(source, "t")
    assert main.read("t/keep.bin") == b"x"


@pytest.mark.parametrize(
    ("held", "comes"),
    [
        (pa.date32(), pa.string()),
        (pa.string(), pa.int32()),
        (pa.float64(), pa.string()),
        (pa.timestamp("us"), pa.date32()),
        (pa.decimal128(9, 2), pa.string()),
    ],
)
def test_types_that_do_not_fit_are_named(main: Branch, source: Path, held: pa.DataType, comes: pa.DataType) -> None:
    values = {pa.string(): "x", pa.int32(): 3, pa.date32(): 5}
    pq.write_table(pa.table({"k": pa.array([None], held)}), source / "a.parquet")
    main.mirror_table(source, "t")
    pq.write_table(pa.table({"k": pa.array([values[comes]], comes)}), source / "b.parquet")
    with pytest.raises(SchemaMismatch, match="'b.parquet' does not fit"):
        main.mirror_table(source, "t")


def test_a_column_of_nulls_gets_a_type_when_it_has_values(main: Branch, source: Path) -> None:
    put(source, "a.parquet", id=[1], x=pa.nulls(1))
    main.mirror_table(source, "t")
    assert main.table("t").record.names == ("id",)
    put(source, "b.parquet", id=[2], x=["text"])
    main.mirror_table(source, "t")
    assert rows(main) == [{"id": 1, "x": None}, {"id": 2, "x": "text"}]


def test_a_note_of_spark_that_is_stale_is_not_believed(main: Branch, source: Path) -> None:
    fields = [{"name": "c", "type": "char(3)", "nullable": True, "metadata": {}}]
    for name, noted in (("a", json.dumps({"type": "struct", "fields": fields})), ("b", "{")):
        key = "org.apache.spark.sql.parquet.row.metadata"
        table = pa.table({"c": ["abc"], "later": [1]}).replace_schema_metadata({key: noted})
        pq.write_table(table, source / f"{name}.parquet")
    main.mirror_table(source, "t")
    assert main.table("t").record.names == ("c", "later")


@pytest.mark.parametrize(
    ("noted", "values", "expected"),
    [
        ("long", ["100", "20"], "string"),
        ("long", pa.array([1, 2], pa.int32()), "integer"),
        ("varchar(9)", ["a", "b"], "varchar(9)"),
        ("timestamp_ntz", pa.array([1, 2], pa.timestamp("us")), "timestamp_ntz"),
        ({"type": "array", "elementType": "long", "containsNull": True}, [["a"], ["b"]], "array"),
        ({"type": "array", "elementType": "char(1)", "containsNull": True}, [["a"], ["b"]], "char"),
        ({"type": "struct", "fields": [{"name": "x", "type": "date"}]}, [{"x": "a"}, {"x": "b"}], "string"),
        ({"type": "map", "keyType": "string", "valueType": "long"}, [1, 2], "long"),
        ({"type": "nothing that is known"}, [1, 2], "long"),
    ],
)
def test_a_note_of_other_types_is_not_believed(
    main: Branch, source: Path, noted: Any, values: Any, expected: str
) -> None:
    fields = [{"name": "c", "type": noted, "nullable": True, "metadata": {}}]
    key = "org.apache.spark.sql.parquet.row.metadata"
    note = json.dumps({"type": "struct", "fields": fields})
    pq.write_table(pa.table({"c": values}).replace_schema_metadata({key: note}), source / "a.parquet")
    main.mirror_table(source, "t")
    found = main.table("t").record.fields[0]["type"]
    assert expected in json.dumps(found)
    assert main.table("t").to_arrow().num_rows == 2
    if noted == "long" and expected == "string":
        assert main.table("t").count("c = '100'") == 1


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("integer", "99999999999", "which is of type integer"),
        ("decimal(4,1)", "12345.6", "which is of type decimal"),
        ("bigint", "1", "not a type of partition columns"),
        ("", "1", "not a type of partition columns"),
        ("binary", "1", "not a type of partition columns"),
        ("date", "soon", "which is of type date"),
    ],
)
def test_types_of_partitions_are_checked(main: Branch, source: Path, kind: str, value: str, expected: str) -> None:
    put(source, f"y={value}/a.parquet", id=[1])
    with pytest.raises(UsageError, match=expected):
        main.mirror_table(source, "t", partition_types={"y": kind})
    put(source, "y=__HIVE_DEFAULT_PARTITION__/a.parquet", id=[1])
    assert not main.table("t").exists()
    main.mirror_table(source, "t")
    with pytest.raises(UsageError, match="is of type string, not integer"):
        main.mirror_table(source, "t", partition_types={"y": "integer"})
    with pytest.raises(UsageError, match="'nothing' of the table is of type None"):
        main.mirror_table(source, "t", partition_types={"nothing": "date"})


def test_columns_are_an_arrow_schema(main: Branch, source: Path) -> None:
    put(source, "a.parquet", id=[1])
    with pytest.raises(UsageError, match="expects a Schema"):
        main.mirror_table(source, "t", columns=["id"])
