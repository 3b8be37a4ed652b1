"""PyIceberg itself on branches of a lake in a folder, without a server."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg import exceptions as theirs
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, StringType

import strandline
import strandline.iceberg
from strandline.errors import StoreUnavailable, UsageError
from strandline.iceberg import Catalog
from strandline.iceberg.tables import Tables
from strandline.lake import Lake

PATIENT = {"commit.retry.num-retries": "30", "commit.retry.min-wait-ms": "1", "commit.retry.max-wait-ms": "20"}
ROWS = pa.table({"k": [1, 2], "s": ["a", "b"]})


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    with strandline.open(tmp_path / "lake", create=True, synced=False) as made:
        made.create_repository("nyc")
        yield made


@pytest.fixture
def catalog(lake: Lake) -> Catalog:
    made = Catalog(lake.repository("nyc").branch("main"), committer="ann")
    made.create_namespace("db")
    return made


def rows(catalog: Catalog, name: str = "db.t") -> list[dict[str, Any]]:
    return sorted(catalog.load_table(name).scan().to_arrow().to_pylist(), key=lambda row: row["k"])


def test_a_table_grows_changes_and_is_read_on_each_branch(lake: Lake, catalog: Catalog) -> None:
    main = lake.repository("nyc").branch("main")
    table = catalog.create_table("db.t", ROWS.schema)
    table.append(ROWS)
    dev = main.create_branch("dev")
    on_dev = Catalog(dev)
    other = on_dev.load_table("db.t")
    with other.update_schema() as update:
        update.add_column("n", LongType())
    with other.update_spec() as spec:
        spec.add_field("s", IdentityTransform(), "by_s")
    other.append(pa.table({"k": [3], "s": ["c"], "n": [9]}))
    other.delete("k = 1")
    assert rows(catalog) == ROWS.to_pylist()
    assert rows(on_dev) == [{"k": 2, "s": "b", "n": None}, {"k": 3, "s": "c", "n": 9}]
    assert rows(Catalog(lake.repository("nyc").ref("main"))) == ROWS.to_pylist()
    main.merge("dev")
    assert rows(catalog) == rows(on_dev)
    messages = [commit.message for commit in main.log()]
    assert messages[0] == "Merge dev into main"
    assert {"append 2 rows to db.t", "create table db.t", "create namespace db"} <= set(messages)
    appended = next(commit for commit in main.log() if commit.message == "append 2 rows to db.t")
    assert (appended.committer, appended.metadata["iceberg.table"]) == ("ann", "db.t")
    lake.repository("nyc").create_tag("v1", "main")
    at_tag = Catalog(lake.repository("nyc").ref("v1"))
    assert rows(at_tag) == rows(catalog)
    with pytest.raises(strandline.errors.NotAllowed):
        at_tag.load_table("db.t").append(pa.table({"k": [9], "s": ["x"], "n": [1]}))


def test_a_creation_in_a_transaction_appears_whole(catalog: Catalog) -> None:
    with catalog.create_table_transaction("db.u", ROWS.schema) as transaction:
        transaction.append(ROWS)
        assert not catalog.table_exists("db.u")
    assert rows(catalog, "db.u") == ROWS.to_pylist()


def test_files_lie_below_the_table_and_the_branch(lake: Lake, catalog: Catalog, tmp_path: Path) -> None:
    main = lake.repository("nyc").branch("main")
    table = catalog.create_table("db.t", ROWS.schema, location="file:///elsewhere")
    table.append(ROWS)
    below = table.location()
    assert below.startswith("file://")
    assert "/ice/" in below
    assert below.endswith(main.branch_id)
    (file,) = table.scan().plan_files()
    assert file.file.file_path.startswith(below)
    assert not Path("/elsewhere").exists()


@pytest.mark.parametrize("name", ["a lake", "läke", "50%", "a%20b"])
def test_a_lake_may_lie_in_a_folder_with_odd_characters(tmp_path: Path, name: str) -> None:
    with strandline.open(tmp_path / name, create=True, synced=False) as lake:
        catalog = Catalog(lake.create_repository("nyc").branch("main"))
        catalog.create_namespace("db")
        catalog.create_table("db.t", ROWS.schema).append(ROWS)
        assert rows(catalog) == ROWS.to_pylist()
        location = catalog.load_table("db.t").metadata_location
        catalog.drop_table("db.t")
        catalog.register_table("db.t", location)
        assert rows(catalog) == ROWS.to_pylist()
    assert [found.name for found in tmp_path.iterdir()] == [name]
    with strandline.open(tmp_path / f"{name}#?", create=True, synced=False) as lake:
        with pytest.raises(UsageError, match="Move the lake"):
            Catalog(lake.create_repository("nyc").branch("main"))


def test_names_and_errors_are_those_of_pyiceberg(catalog: Catalog) -> None:
    catalog.create_namespace(("db", "inner"), {"a": 1})
    assert catalog.list_namespaces() == [("db",)]
    assert catalog.list_namespaces("db") == [("db", "inner")]
    assert catalog.load_namespace_properties(("db", "inner")) == {"a": "1"}
    summary = catalog.update_namespace_properties(("db", "inner"), {"a", "z"}, {"b": "2"})
    assert (summary.removed, summary.updated, summary.missing) == (["a"], ["b"], ["z"])
    catalog.create_table("db.t", ROWS.schema)
    catalog.rename_table("db.t", "db.inner.u")
    assert (catalog.list_tables("db"), catalog.list_tables(("db", "inner"))) == ([], [("db", "inner", "u")])
    location = catalog.load_table("db.inner.u").metadata_location
    for error, call in (
        (theirs.NamespaceAlreadyExistsError, lambda: catalog.create_namespace("db")),
        (theirs.NamespaceNotEmptyError, lambda: catalog.drop_namespace("db")),
        (theirs.NoSuchNamespaceError, lambda: catalog.drop_namespace("nothing")),
        (theirs.NoSuchNamespaceError, lambda: catalog.list_tables("nothing")),
        (theirs.NoSuchNamespaceError, lambda: catalog.create_table("nothing.t", ROWS.schema)),
        (theirs.NoSuchTableError, lambda: catalog.load_table("db.nothing")),
        (theirs.NoSuchTableError, lambda: catalog.drop_table("db.nothing")),
        (theirs.TableAlreadyExistsError, lambda: catalog.create_table("db.inner.u", ROWS.schema)),
        (theirs.ValidationError, lambda: catalog.create_table("db.../t", ROWS.schema)),
        (theirs.ValidationError, lambda: catalog.register_table("db.x", "file:///etc/passwd")),
        (theirs.ValidationError, lambda: catalog.register_table("db.x", None)),
        (theirs.NoSuchViewError, lambda: catalog.load_view("db.v")),
        (theirs.NoSuchViewError, lambda: catalog.drop_view("db.v")),
        (UsageError, lambda: catalog.register_view("db.v", "x")),
        (theirs.NamespaceAlreadyExistsError, lambda: catalog.create_namespace(("db", "inner"))),
        (theirs.ValidationError, lambda: catalog.table_exists("db.a/b")),
        (ValueError, lambda: catalog.update_namespace_properties("db", {"a"}, {"a": "1"})),
    ):
        with pytest.raises(error):
            call()
    assert (catalog.list_views("db"), catalog.view_exists("db.v")) == ([], False)
    catalog.purge_table("db.inner.u")  # deletes nothing that others may need
    assert catalog.register_table("db.back", location).schema().find_type("s") == StringType()
    catalog.create_table("db.other", pa.schema([("x", pa.int64())]))
    other = catalog.register_table("db.other", location, overwrite=True)
    assert other.schema().find_type("s") == StringType()
    again = catalog.register_table("db.other", location, overwrite=True)  # its first reply may have been lost
    assert again.metadata_location == other.metadata_location
    catalog.drop_namespace(("db", "inner"))


def test_an_unknown_outcome_is_one_for_pyiceberg_too(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    table = catalog.create_table("db.t", ROWS.schema)

    def lost(*_: Any) -> Any:
        raise StoreUnavailable("No answer came.", happened="unknown")

    with monkeypatch.context() as patched:
        patched.setattr(Tables, "commit", lost)
        with pytest.raises(theirs.CommitStateUnknownException, match="No answer"):
            table.append(ROWS)
    catalog.load_table("db.t").append(ROWS)
    assert rows(catalog) == ROWS.to_pylist()


def test_several_writers_lose_no_row(lake: Lake, catalog: Catalog) -> None:
    """PyIceberg begins a commit anew that came too late; of those that were acknowledged each row is there once."""
    catalog.create_table("db.t", ROWS.schema, properties=PATIENT)
    lock, acknowledged = threading.Lock(), list[int]()

    def work(worker: int) -> None:
        own = Catalog(lake.repository("nyc").branch("main"))
        for turn in range(4):
            number = 100 * worker + turn
            while True:
                try:
                    own.load_table("db.t").append(pa.table({"k": [number], "s": ["x"]}))
                except theirs.CommitFailedException:
                    continue
                break
            with lock:
                acknowledged.append(number)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, range(3)))
    assert [row["k"] for row in rows(catalog)] == sorted(acknowledged)
    assert len(acknowledged) == 12


def test_only_a_ref_has_tables(lake: Lake) -> None:
    for wrong in ("nyc/main", lake, None):
        with pytest.raises(UsageError, match="has no tables"):
            Catalog(wrong)


def test_without_pyiceberg_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "strandline.iceberg.catalog")
    monkeypatch.setitem(sys.modules, "pyiceberg", None)
    with pytest.raises(UsageError, match=r"strandline\[iceberg\]"):
        _ = strandline.iceberg.Catalog
