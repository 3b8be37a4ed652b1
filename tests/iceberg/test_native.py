"""Native tables as Iceberg tables and back: the same rows, no data copied, and what cannot be is said before anything
is changed."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.expressions import EqualTo
from pyiceberg.types import LongType, UUIDType

import strandline
from strandline.cli import run
from strandline.errors import (
    AlreadyExists,
    Conflict,
    InvalidName,
    NotAllowed,
    NotFound,
    ObjectMissing,
    StrandlineError,
    TableNotFound,
    UsageError,
)
from strandline.iceberg import Catalog
from strandline.iceberg.from_iceberg import Release
from strandline.iceberg.native_types import bound_of, plain_value, value_bytes
from strandline.lake import Lake
from strandline.repository.branch import Branch
from strandline.repository.repository import Repository
from strandline.tables.record import TableRecord, encode_record
from strandline.tables.table import Table

D = Decimal
DAY = dt.date(2024, 2, 29)
MOMENT = dt.datetime(2024, 2, 29, 1, 2, 3, 456, tzinfo=dt.UTC)
ALL_TYPES = pa.table(
    {
        "byte": pa.array([1, -2, None], pa.int8()),
        "short": pa.array([1, -2, None], pa.int16()),
        "int": pa.array([1, -2, None], pa.int32()),
        "long": pa.array([1, -(2**60), None], pa.int64()),
        "float": pa.array([1.5, -2.5, None], pa.float32()),
        "double": pa.array([1.5, float("nan"), None], pa.float64()),
        "decimal": pa.array([D("12345678901234567890.12"), D("-0.01"), None], pa.decimal128(38, 2)),
        "text": pa.array(["a", "ü" * 40, None]),
        "bytes": pa.array([b"a", b"\xff\x00", None]),
        "day": pa.array([DAY, dt.date(1969, 12, 31), None]),
        "moment": pa.array([MOMENT, MOMENT, None], pa.timestamp("us", "UTC")),
        "local": pa.array([MOMENT.replace(tzinfo=None)] * 2 + [None], pa.timestamp("us")),
        "truth": pa.array([True, False, None]),
        "nested": pa.array([{"a": 1, "l": [1, 2]}, {"a": None, "l": []}, None]),
        "pairs": pa.array([[("x", 1)], [], None], pa.map_(pa.string(), pa.int64())),
        "list": pa.array([["a", None], [], None]),
    }
)
PARTITIONED = pa.table(
    {
        "k": pa.array(range(6), pa.int64()),
        "city": ["a", "a", "b/=%", None, " ", "ü"],
        "n": pa.array([1, 2, None, -3, 4, 5], pa.int32()),
        "day": pa.array([DAY, None, DAY, DAY, DAY, DAY]),
        "d": pa.array([D("1.20"), D("-0.05"), None, D("0.00"), D("9.99"), D("1.20")], pa.decimal128(5, 2)),
        "t": pa.array([MOMENT] * 5 + [None], pa.timestamp("us", "UTC")),
        "b": [True, False, None, True, True, True],
    }
)


@pytest.fixture
def repo(lake: Lake) -> Repository:
    return lake.create_repository("nyc")


@pytest.fixture
def main(repo: Repository) -> Branch:
    return repo.branch("main")


def native(main: Branch, rows: pa.Table, path: str = "tables/db/n", **options: Any) -> Table:
    table = main.table(path)
    table.write(rows, message="write", **options)
    return table


def sorted_rows(rows: pa.Table) -> list[str]:
    return sorted(map(repr, rows.to_pylist()))


def blobs(main: Branch) -> set[str]:
    return set(main._core.resolver.namespace.list_keys(""))


def parquet(main: Branch) -> set[str]:
    return {key for key in blobs(main) if key.endswith(".parquet") and not key.startswith("_strandline")}


# --- to Iceberg -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_place", [True, False])
def test_an_iceberg_table_has_the_rows_of_the_native_one(in_place: bool, main: Branch) -> None:
    table = native(main, ALL_TYPES)
    table.write(ALL_TYPES.slice(0, 1), message="more")
    before = parquet(main)
    wanted = table.to_arrow()
    done = table.to_iceberg(None if in_place else "db.ice")
    assert (done.files, done.rows) == (2, 4)
    assert done.name == ("db.n" if in_place else "db.ice")
    assert parquet(main) == before
    found = Catalog(main).load_table(done.name)
    rows = found.scan().to_arrow()
    wide = rows.schema.field("byte").type
    assert wide == pa.int32()
    narrow = [wanted.schema.field(name).with_type(rows.schema.field(name).type) for name in wanted.column_names]
    assert sorted_rows(rows) == sorted_rows(wanted.cast(pa.schema(narrow)))
    assert table.exists() is not in_place
    assert main.get_commit().message == f"make table tables/db/n the Iceberg table {done.name}"
    # both are written apart from each other
    found.append(found.scan().to_arrow().slice(0, 1))
    found.delete("long = 1")
    if not in_place:
        assert table.count() == 4
        table.delete("true")
        assert table.count() == 0
        assert found.refresh().scan().to_arrow().num_rows >= 1


def test_partition_values_come_from_folders(main: Branch) -> None:
    """They are not in the files: readers take them from the manifests."""
    by = ("city", "n", "day", "d", "t", "b")
    table = native(main, PARTITIONED, partition_by=by)
    wanted = table.to_arrow()
    table.to_iceberg("db.ice")
    found = Catalog(main).load_table("db.ice")
    assert [one.name for one in found.spec().fields] == list(by)
    assert sorted_rows(found.scan().to_arrow()) == sorted_rows(wanted)
    some = found.scan(row_filter="d = 1.20")
    assert len(list(some.plan_files())) == 2
    assert sorted(some.to_arrow()["k"].to_pylist()) == [0, 5]


@pytest.mark.parametrize("name", ["event-date", "2x", "a b", "größe", "_ok"])
def test_partition_columns_of_any_name(name: str, main: Branch) -> None:
    """DuckDB, for one, reads no manifest in which a field has a name that Avro does not allow."""
    table = native(main, pa.table({"k": [1, 2], name: ["a", "b"]}), partition_by=name)
    table.to_iceberg("db.ice")
    found = Catalog(main).load_table("db.ice")
    assert sorted_rows(found.scan().to_arrow()) == sorted_rows(table.to_arrow())
    is_b: Any = EqualTo
    assert found.scan(row_filter=is_b(name, "b")).to_arrow()["k"].to_pylist() == [2]
    (manifest,) = found.current_snapshot().manifests(found.io)
    with found.io.new_input(manifest.manifest_path).open() as opened:
        reader = fastavro.reader(opened)
        (fields,) = [one["type"] for one in reader.writer_schema["fields"] if one["name"] == "data_file"]
    (partition,) = [one["type"]["fields"] for one in fields["fields"] if one["name"] == "partition"]
    assert [re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", one["name"]) is not None for one in partition] == [True]
    found.append(pa.table({"k": [3], name: ["b"]}))
    assert sorted(Catalog(main).load_table("db.ice").scan().to_arrow()["k"].to_pylist()) == [1, 2, 3]


def test_bounds_exclude_files(main: Branch) -> None:
    table = native(main, ALL_TYPES.slice(0, 1))
    table.write(ALL_TYPES.slice(1, 1), message="more")
    table.to_iceberg("db.ice")
    found = Catalog(main).load_table("db.ice")
    for condition in ("`int` = 1", "`long` < 0", "day > '2000-01-01'", "`decimal` > 0", "text = 'a'", "truth = false"):
        assert len(list(found.scan(row_filter=condition.replace("`", '"')).plan_files())) == 1, condition


def test_files_that_were_written_before_a_widening_are_read(main: Branch) -> None:
    table = native(main, pa.table({"i": pa.array([1], pa.int32()), "f": pa.array([1.5], pa.float32())}))
    wider = pa.table({"i": pa.array([2**40], pa.int64()), "f": pa.array([2.25]), "new": ["x"]})
    table.write(wider, message="wider", schema="merge")
    table.to_iceberg()
    rows = Catalog(main).load_table("db.n").scan().to_arrow().to_pylist()
    assert sorted((row["i"], row["f"], row["new"]) for row in rows) == [(1, 1.5, None), (2**40, 2.25, "x")]


def test_a_widening_that_iceberg_does_not_know_is_refused(main: Branch) -> None:
    table = native(main, pa.table({"i": pa.array([1], pa.int32())}))
    table.write(pa.table({"i": pa.array([2.5])}), message="wider", schema="merge")
    with pytest.raises(UsageError, match="written as integer"):
        table.to_iceberg()
    table.write(table.to_arrow(), "overwrite", message="anew")
    assert table.to_iceberg().rows == 2


def test_in_a_transaction_all_of_it_lands_together(main: Branch, repo: Repository) -> None:
    with main.transaction("job") as tx:
        tx.table("tables/db/n").write(ALL_TYPES)
        done = tx.table("tables/db/n").to_iceberg()
        beside = tx.table("other")
        beside.write(PARTITIONED, partition_by="b")
        beside.to_iceberg("db.beside")
        Catalog(tx).load_table("db.beside").delete("k = 1")
        assert not main.exists("tables/db/n/_iceberg.metadata.json")
    assert done.rows == 3
    repo.gc.run(grace_days=0)
    assert Catalog(main).load_table("db.n").scan().to_arrow().num_rows == 3
    assert Catalog(main).load_table("db.beside").scan().to_arrow().num_rows == 5
    assert main.table("other").count() == 6


def test_what_only_one_of_them_needs_stays(main: Branch, repo: Repository) -> None:
    table = native(main, ALL_TYPES)
    table.to_iceberg("db.ice")
    table.delete("true", message="none")
    main.delete_prefix("tables/db/n/")
    main.commit("dropped")
    repo.gc.set_retention(days=1)
    for _ in range(3):
        repo.gc.run(grace_days=0)
    assert repo.fsck().is_sound
    assert Catalog(main).load_table("db.ice").scan().to_arrow().num_rows == 3


def test_a_tag_is_not_changed(main: Branch, repo: Repository) -> None:
    native(main, ALL_TYPES)
    repo.create_tag("v1", main)
    with pytest.raises(NotAllowed, match="cannot be changed"):
        repo.ref("v1").table("tables/db/n").to_iceberg()


def test_an_empty_table_has_no_snapshot(main: Branch) -> None:
    table = native(main, ALL_TYPES.slice(0, 0))
    assert table.to_iceberg().rows == 0
    Catalog(main).load_table("db.n").append(Catalog(main).load_table("db.n").scan().to_arrow())


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        (lambda table: table.to_iceberg("db"), InvalidName, "not the name"),
        (lambda table: table.to_iceberg("db..x"), InvalidName, "cannot be a part"),
        (lambda table: table.to_iceberg("db._strandline_x"), InvalidName, "strandline's own"),
        (lambda table: table.to_iceberg("nowhere.x"), NotFound, "Namespace does not exist"),
        (lambda table: table.to_iceberg("db.taken"), AlreadyExists, "already exists"),
        (lambda table: table.to_iceberg("db.n.x"), NotFound, "Namespace does not exist"),
        (lambda table: table.ref.table("tables/db/none").to_iceberg(), TableNotFound, "no table record"),
        (lambda table: table.ref.table("elsewhere").to_iceberg(), UsageError, "lie below 'tables/'"),
    ],
)
def test_what_cannot_become_one_is_left_alone(
    change: Callable[[Any], object], error: type[StrandlineError], match: str, main: Branch
) -> None:
    table = native(main, ALL_TYPES)
    native(main, ALL_TYPES, "tables/db/taken")
    before, head = blobs(main), main.commit_id
    with pytest.raises(error, match=match):
        change(table)
    assert main.commit_id == head
    assert blobs(main) == before


def test_other_formats_types_and_objects_are_refused(main: Branch) -> None:
    table = main.table("tables/db/orc")
    fields = ({"name": "k", "type": "long", "nullable": True, "metadata": {}},)
    main.put(table.record_path, encode_record(TableRecord(fields=fields, file_format="orc")))
    main.commit("as Spark would write it")
    with pytest.raises(UsageError, match="orc files"):
        table.to_iceberg()
    staged = main.table("tables/db/staged")
    staged.write(PARTITIONED)
    with pytest.raises(UsageError, match="only staged"):
        staged.to_iceberg()
    main.discard()
    table = native(main, PARTITIONED)
    main.put("tables/db/n/README", b"x")
    main.commit("beside")
    with pytest.raises(NotAllowed, match="README"):
        table.to_iceberg()
    assert table.to_iceberg("db.ice").rows == 6  # elsewhere it may be
    table.write(PARTITIONED.slice(0, 1), "overwrite", message="all that lay there goes, and a mark comes")
    assert table.to_iceberg().rows == 1
    assert [info.path for info in main.list("tables/db/n/")] == ["tables/db/n/_iceberg.metadata.json"]


def test_a_broken_file_and_a_folder_that_means_nothing(main: Branch) -> None:
    table = native(main, PARTITIONED, partition_by="n")
    (file, *_) = [file for file in table.files() if file.partition["n"] is not None]
    main.rename(file.info.path, "tables/db/n/n=seven/part-0.parquet")
    main.commit("renamed")
    with pytest.raises(UsageError, match="partition value 'seven'"):
        table.to_iceberg()
    local = main._core.resolver.namespace.local_path(file.info.physical_address)
    assert local is not None
    Path(local).write_bytes(b"x" * file.info.size)
    with pytest.raises(StrandlineError, match="cannot be read"):
        table.to_iceberg()
    Path(local).unlink()
    with pytest.raises(ObjectMissing):
        table.to_iceberg()


def test_a_change_that_comes_between_is_in_it(main: Branch, repo: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files were read on a head that is not the head any more: it is decided anew."""
    table = native(main, ALL_TYPES)
    other = repo.branch("main")
    from strandline.iceberg.to_iceberg import Adoption

    real = Adoption._expect
    acts = [lambda: native(other, ALL_TYPES), lambda: native(other, ALL_TYPES.slice(0, 1), mode="overwrite")]

    def late(self: Any, *rest: Any) -> None:
        real(self, *rest)
        if acts:
            acts.pop(0)()

    monkeypatch.setattr(Adoption, "_expect", late)
    assert table.to_iceberg().rows == 1
    assert Catalog(main).load_table("db.n").scan().to_arrow().num_rows == 1
    assert not table.exists()


# --- from Iceberg -----------------------------------------------------------------------------------------------------


def iceberg(main: Branch, rows: pa.Table, name: str = "db.i", **options: Any) -> Any:
    catalog = Catalog(main)
    catalog.create_namespace_if_not_exists("db")
    table = catalog.create_table(name, rows.schema, **options)
    table.append(rows)
    return table


SOME_TYPES = ALL_TYPES.drop_columns(["byte", "short"])


@pytest.mark.parametrize("in_place", [True, False])
def test_a_native_table_has_the_rows_of_the_iceberg_one(in_place: bool, main: Branch) -> None:
    table = iceberg(main, SOME_TYPES)
    table.append(SOME_TYPES.slice(0, 1))
    before = parquet(main)
    wanted = table.scan().to_arrow()
    target = main.table("tables/db/i" if in_place else "plain")
    done = target.from_iceberg(None if in_place else "db.i")
    assert (done.name, done.files, done.rows) == (target.path, 2, 4)
    assert parquet(main) == before
    assert target.count() == 4
    assert sorted_rows(target.to_arrow()) == sorted_rows(wanted.cast(target.to_arrow().schema))
    assert Catalog(main).table_exists("db.i") is not in_place
    # statistics came along, and are true
    assert len(target.files("`long` < 0")) == 1
    assert target.count("`long` < 0") == 1
    assert len(target.files("text = 'A'")) == 0
    assert len(target.files("day < date '1970-01-01'")) == 1
    assert len(target.files("`double` > 100")) >= 1  # not a number hides in one
    assert target.count("truth") == 2
    target.delete("`long` = 1")
    assert target.count() == 2


def test_there_and_back_again(main: Branch, repo: Repository) -> None:
    table = native(main, SOME_TYPES)
    wanted = sorted_rows(table.to_arrow())
    for _ in range(2):
        table.to_iceberg()
        table.from_iceberg()
        assert sorted_rows(table.to_arrow()) == wanted
    repo.gc.run(grace_days=0)
    assert repo.fsck().is_sound
    assert sorted_rows(table.to_arrow()) == wanted


def test_the_old_job_does_not_write_a_second_table_over_the_first(main: Branch) -> None:
    """As a nightly job that nobody changed would, after its table became an Iceberg table where it lay."""
    table = main.table("tables/db/t")
    table.write(pa.table({"k": [1, 2]}), message="first")
    table.to_iceberg()
    for write in (lambda: table.write(pa.table({"k": [3]})), lambda: table.write(pa.table({"k": [3]}), message="n")):
        with pytest.raises(UsageError, match="is an Iceberg table"):
            write()
    with pytest.raises(TableNotFound, match="is an Iceberg table"):
        table.count()
    assert list(main.uncommitted()) == []
    assert Catalog(main).load_table("db.t").scan().to_arrow()["k"].to_pylist() == [1, 2]


def test_partitions_that_were_folders_do_not_come_back(main: Branch) -> None:
    """Their values are in no file."""
    table = native(main, PARTITIONED, partition_by="city")
    table.to_iceberg("db.ice")
    with pytest.raises(UsageError, match="has no column 'city'"):
        main.table("back").from_iceberg("db.ice")
    assert not main.exists("back/_strandline_table.json")


def test_partitions_of_engines_are_in_the_files(main: Branch) -> None:
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.transforms import IdentityTransform
    from pyiceberg.types import NestedField, StringType

    rows = PARTITIONED.select(["k", "city"])
    columns = NestedField(1, "k", LongType(), required=False), NestedField(2, "city", StringType(), required=False)
    spec = PartitionSpec(PartitionField(source_id=2, field_id=1000, transform=IdentityTransform(), name="city"))
    catalog = Catalog(main)
    catalog.create_namespace("db")
    catalog.create_table("db.i", Schema(*columns), partition_spec=spec).append(rows)
    target = main.table("plain")
    target.from_iceberg("db.i")
    assert sorted_rows(target.to_arrow()) == sorted_rows(rows)
    assert len(target.files("city = 'a'")) == 1


def test_what_native_tables_do_not_know_is_refused(main: Branch) -> None:
    rows = pa.table({"k": pa.array([1, 2, 3], pa.int64()), "s": ["a", "b", "c"]})
    renamed = iceberg(main, rows, "db.renamed")
    with renamed.update_schema() as update:
        update.rename_column("s", "t")
    again = iceberg(main, rows, "db.again")
    with again.update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("s")
    with again.update_schema() as update:
        update.add_column("s", LongType())
    strange = iceberg(main, rows, "db.strange")
    with strange.update_schema() as update:
        update.add_column("u", UUIDType())
    before, head = blobs(main), main.commit_id
    for name, match in (
        ("db.renamed", "had another name"),
        ("db.again", "had another name"),
        ("db.strange", "type uuid"),
    ):
        with pytest.raises(UsageError, match=match):
            main.table("plain").from_iceberg(name)
    with pytest.raises(NotFound, match="db.nothing"):
        main.table("plain").from_iceberg("db.nothing")
    with pytest.raises(NotFound):
        main.table("tables/db/nothing").from_iceberg()
    assert (blobs(main), main.commit_id) == (before, head)


def test_a_path_that_is_taken_is_refused(main: Branch) -> None:
    iceberg(main, SOME_TYPES)
    main.put("plain/x", b"x")
    main.put("object", b"x")
    main.commit("taken")
    native(main, SOME_TYPES, "tables/db/n")
    for path in ("plain", "object", "tables/db/n"):
        with pytest.raises(AlreadyExists, match="lies at"):
            main.table(path).from_iceberg("db.i")


def test_what_comes_to_lie_there_meanwhile_is_a_refusal(
    main: Branch, repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    iceberg(main, SOME_TYPES)
    other = repo.branch("main")
    acts = [lambda: native(other, SOME_TYPES, "plain")]
    real = Release._expect_alone

    def late(self: Any, *rest: Any) -> None:
        real(self, *rest)
        if acts:
            acts.pop(0)()

    monkeypatch.setattr(Release, "_expect_alone", late)
    with pytest.raises((AlreadyExists, Conflict)):
        main.table("plain").from_iceberg("db.i")
    assert main.table("plain").count() == 3


def test_in_a_transaction_it_is_published_with_the_rest(main: Branch, repo: Repository) -> None:
    iceberg(main, SOME_TYPES)
    with main.transaction("job") as tx:
        assert tx.table("plain").from_iceberg("db.i").rows == 3
        tx.table("plain").delete("`long` = 1")
        assert not main.exists("plain/_strandline_table.json")
    assert main.table("plain").count() == 2
    repo.gc.run(grace_days=0)
    assert main.table("plain").count() == 2
    assert Catalog(main).load_table("db.i").scan().to_arrow().num_rows == 3


# --- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (0, "int"),
        (-1, "int"),
        (2**31 - 1, "int"),
        (-(2**63), "long"),
        (1.5, "float"),
        (-0.25, "double"),
        (True, "boolean"),
        ("ü", "string"),
        (DAY, "date"),
        (MOMENT, "timestamptz"),
        (D("0"), "decimal(5, 2)"),
        (D("1.27"), "decimal(5, 2)"),
        (D("1.28"), "decimal(5, 2)"),
        (D("-1.28"), "decimal(5, 2)"),
        (D("-1.29"), "decimal(5, 2)"),
        (D("-99999999999999999999999999999999999999"), "decimal(38, 0)"),
    ],
)
def test_bounds_are_those_of_iceberg(value: Any, kind: str) -> None:
    from pyiceberg.conversions import from_bytes, to_bytes
    from pyiceberg.schema import Schema
    from pyiceberg.types import PrimitiveType

    fields = [{"id": 1, "name": "c", "type": kind, "required": False}]
    its_type = Schema.model_validate({"type": "struct", "fields": fields}).fields[0].field_type
    assert isinstance(its_type, PrimitiveType)
    plain = plain_value(value, kind)
    data = value_bytes(plain, kind)
    assert data == to_bytes(its_type, plain)
    assert from_bytes(its_type, data) == plain
    assert bound_of(data, kind) == value


def test_a_bound_that_is_none_is_of_no_use() -> None:
    for data, kind in ((b"", "boolean"), (b"\xff", "string"), (b"123", "double"), (b"1", "date"), (b"x", "binary")):
        assert bound_of(data, kind) is None


def test_int96_is_read(main: Branch, tmp_path: Path) -> None:
    """As Spark writes moments unless it is told otherwise; such files come by imports."""
    rows = pa.table({"moment": pa.array([MOMENT], pa.timestamp("us", "UTC"))})
    table = native(main, rows)
    pq.write_table(rows, tmp_path / "old.parquet", use_deprecated_int96_timestamps=True)
    main.put("tables/db/n/old.parquet", (tmp_path / "old.parquet").read_bytes())
    main.commit("an old file")
    assert table.to_iceberg().rows == 2


def test_moved_lakes_find_the_files_of_both(tmp_path: Path) -> None:
    with strandline.open(tmp_path / "lake", create=True, synced=False) as lake:
        main = lake.create_repository("nyc").branch("main")
        native(main, SOME_TYPES).to_iceberg()
    (tmp_path / "lake").rename(tmp_path / "moved")
    with strandline.open(tmp_path / "moved", synced=False) as lake:
        main = lake.repository("nyc").branch("main")
        strandline.iceberg.relocate(lake.repository("nyc"))
        assert Catalog(main).load_table("db.n").scan().to_arrow().num_rows == 3
        main.table("tables/db/n").from_iceberg()
        assert main.table("tables/db/n").count() == 3


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    at = ["--lake", str(tmp_path / "lake")]
    with strandline.open(tmp_path / "lake", create=True, synced=False) as lake:
        native(lake.create_repository("nyc").branch("main"), SOME_TYPES)
    assert run(["table", "to-iceberg", "nyc/main/tables/db/n", "db.ice", *at]) == 0
    assert "db.ice of 1 file of tables/db/n" in capsys.readouterr().out
    assert run(["table", "from-iceberg", "nyc/main/plain", "db.ice", "--json", *at]) == 0
    assert '"rows": 3' in capsys.readouterr().out
    assert run(["table", "from-iceberg", "nyc/main/plain", "db.ice", *at]) != 0
    assert "lies at 'plain'" in capsys.readouterr().err
    assert run(["table", "to-iceberg", "nyc/main", "db.ice", *at]) != 0
    assert "names no table" in capsys.readouterr().err
