"""Tables that are exported: other catalogs read them where they are then, at their current snapshot."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import duckdb
import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import StaticTable

from strandline.blob import open_store
from strandline.errors import Corrupted, UsageError
from strandline.iceberg import Catalog
from strandline.iceberg.live import read_file
from strandline.iceberg.position_deletes import SCHEMA
from strandline.iceberg.tables import Tables
from strandline.lake import Lake
from strandline.repository.branch import Branch

ROWS = pa.table({"k": pa.array([1, 2, 3], pa.int64()), "s": ["a", "b", "c"]})


@pytest.fixture
def main(lake: Lake) -> Branch:
    branch = lake.create_repository("nyc").branch("main")
    Catalog(branch).create_namespace("db")
    return branch


def static(folder: Path) -> Any:
    assert (folder / "metadata" / "version-hint.text").read_text() == "1"
    return StaticTable.from_metadata(str(folder / "metadata" / "v1.metadata.json"))


@pytest.mark.parametrize("version", ["1", "2"])
def test_an_exported_table_is_read_with_the_lake_gone(version: str, main: Branch, lake: Lake, tmp_path: Path) -> None:
    table = Catalog(main).create_table("db.t", ROWS.schema, properties={"format-version": version, "owner": "ann"})
    table.append(ROWS)
    table.append(ROWS)
    table.delete("k = 1")
    main.table("tables/db/plain").write(ROWS, message="native")
    main.put("tables/db/note.txt", b"x")
    main.commit("beside")
    count = main.export(tmp_path / "out", "tables/")
    assert count == sum(1 for place in (tmp_path / "out").rglob("*") if place.is_file())
    lake.close()
    (tmp_path / "lake").rename(tmp_path / "gone")
    found = static(tmp_path / "out" / "db" / "t")
    assert sorted(found.scan().to_arrow()["k"].to_pylist()) == [2, 2, 3, 3]
    assert len(found.metadata.snapshots) == 1
    assert found.properties["owner"] == "ann"
    assert "gc.enabled" not in found.properties
    assert (tmp_path / "out" / "db" / "note.txt").read_bytes() == b"x"
    assert pq.read_table(tmp_path / "out" / "db" / "plain").num_rows == 3


def test_a_single_table_an_empty_one_and_one_of_an_earlier_commit(main: Branch, tmp_path: Path) -> None:
    catalog = Catalog(main)
    catalog.create_table("db.empty", ROWS.schema)
    table = catalog.create_table("db.t", ROWS.schema)
    table.append(ROWS)
    before = main.commit_id
    table.append(ROWS)
    main.export(tmp_path / "one", "tables/db/t/")
    assert static(tmp_path / "one").scan().to_arrow().num_rows == 6
    assert main._other(before).export(tmp_path / "before", "tables/db/") > 0
    assert static(tmp_path / "before" / "t").scan().to_arrow().num_rows == 3
    assert static(tmp_path / "before" / "empty").scan().to_arrow().num_rows == 0


def test_one_that_was_a_native_table(main: Branch, tmp_path: Path) -> None:
    main.table("plain").write(ROWS, partition_by="s", message="native")
    main.table("plain").to_iceberg("db.t")
    main.export(tmp_path / "out", "tables/")
    found = static(tmp_path / "out" / "db" / "t").scan().to_arrow()
    assert sorted(zip(found["k"].to_pylist(), found["s"].to_pylist(), strict=True)) == [(1, "a"), (2, "b"), (3, "c")]


def test_position_deletes_name_the_files_where_they_are_then(main: Branch, tmp_path: Path) -> None:
    """One file of deletes that is of two data files, as engines write them for a partition."""
    table = Catalog(main).create_table("db.t", ROWS.schema)
    table.append(ROWS)
    table.append(ROWS)
    blobs, tables = main._core.resolver.namespace, Tables(main)
    held = tables.load(["db", "t"]).metadata
    names = [entry["data_file"]["file_path"] for entry in entries(blobs, held)]
    out = io.BytesIO()
    pq.write_table(pa.table({"file_path": names, "pos": [0, 1]}, SCHEMA), out)
    _attach(main, held, out.getvalue())
    assert sorted(Catalog(main).load_table("db.t").scan().to_arrow()["k"].to_pylist()) == [1, 2, 3, 3]
    main.export(tmp_path / "out", "tables/")
    folder = tmp_path / "out" / "db" / "t"
    assert sorted(static(folder).scan().to_arrow()["k"].to_pylist()) == [1, 2, 3, 3]
    (deletes,) = folder.rglob("*-deletes.parquet")
    named = pq.read_table(deletes)["file_path"].to_pylist()
    assert sorted(Path(name.removeprefix("file://")).parent for name in named) == [folder / "data"] * 2


def entries(blobs: Any, table: Any) -> list[Any]:
    manifests = read_file(blobs, table["snapshots"][-1]["manifest-list"]).records
    return [entry for one in manifests for entry in read_file(blobs, one["manifest_path"]).records]


def _attach(main: Branch, held: Any, data: bytes) -> None:
    """Commit a file of position deletes, as a client would."""
    from strandline.iceberg.tables import TableChange

    tables, blobs = Tables(main), main._core.resolver.namespace
    folder = tables.key_of(held["location"])
    last = held["snapshots"][-1]
    listing = read_file(blobs, last["manifest-list"])
    source = read_file(blobs, listing.records[0]["manifest_path"])
    blobs.put(f"{folder}/data/d.parquet", data)
    entry = source.records[0]
    entry["data_file"] |= {"content": 1, "file_path": tables.url_of(f"{folder}/data/d.parquet"), "record_count": 2}
    entry["data_file"] |= {"file_size_in_bytes": len(data), "lower_bounds": None, "upper_bounds": None}
    entry |= {"status": 1, "snapshot_id": 77, "sequence_number": None, "file_sequence_number": None}

    def avro(records: list[Any], like: Any, name: str, **more: str) -> tuple[str, int]:
        out = io.BytesIO()
        plain = {key: value for key, value in like.schema.items() if not key.startswith("__")}
        fastavro.writer(out, plain, records, metadata={**like.metadata, **more})
        blobs.put(f"{folder}/metadata/{name}", out.getvalue())
        return tables.url_of(f"{folder}/metadata/{name}"), out.tell()

    path, size = avro([entry], source, "d-m0.avro", content="deletes")
    row = {**listing.records[0], "manifest_path": path, "manifest_length": size, "content": 1, "added_snapshot_id": 77}
    row |= {
        "sequence_number": held["last-sequence-number"] + 1,
        "min_sequence_number": held["last-sequence-number"] + 1,
    }
    place, _ = avro([*listing.records, row], listing, "snap-77.avro")
    made = {**last, "snapshot-id": 77, "parent-snapshot-id": last["snapshot-id"], "manifest-list": place}
    made |= {"sequence-number": held["last-sequence-number"] + 1, "summary": {"operation": "delete"}}
    move = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 77}
    tables.commit([TableChange(("db", "t"), [], [{"action": "add-snapshot", "snapshot": made}, move])])


def test_duckdb_reads_the_folder(main: Branch, tmp_path: Path) -> None:
    import importlib

    Catalog(main).create_table("db.t", ROWS.schema).append(ROWS)
    main.export(tmp_path / "out", "tables/")
    with duckdb.connect() as session:
        for name in ("avro", "iceberg"):
            package = Path(str(importlib.import_module(f"duckdb_extension_{name}").__file__)).parent
            session.execute(f"LOAD '{next(package.rglob('*.duckdb_extension'))}'")
        assert session.execute(f"SELECT sum(k) FROM iceberg_scan('{tmp_path}/out/db/t')").fetchone() == (6,)


@pytest.mark.server
def test_to_an_object_store(main: Branch, s3_endpoint: str, tmp_path: Path) -> None:
    Catalog(main).create_table("db.t", ROWS.schema).append(ROWS)
    url = f"s3://lake/{tmp_path.name}?endpoint={s3_endpoint}&region=us-east-1"
    main.export(url, "tables/")
    store = open_store(url)
    (name,) = (key for key in store.list_keys() if "snap-" in key)
    assert name.startswith("db/t/metadata/")
    assert f'"s3://lake/{tmp_path.name}/db/t/metadata/snap-'.encode() in store.get("db/t/metadata/v1.metadata.json")
    options = {"s3.endpoint": s3_endpoint, "s3.region": "us-east-1", "s3.path-style-access": "true"}
    found = StaticTable.from_metadata(f"s3://lake/{tmp_path.name}/db/t/metadata/v1.metadata.json", options)
    assert found.scan().to_arrow().num_rows == 3


def test_what_cannot_be_exported_leaves_nothing(main: Branch, tmp_path: Path) -> None:
    table = Catalog(main).create_table("db.t", ROWS.schema)
    table.append(ROWS)
    place = Path(table.inspect.manifests()["path"].to_pylist()[0].removeprefix("file://"))
    place.write_bytes(b"broken")
    with pytest.raises(Corrupted, match="cannot be read"):
        main.export(tmp_path / "out", "tables/")
    assert not (tmp_path / "out").exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_bytes(b"")
    with pytest.raises((UsageError, Corrupted)):
        main.export(tmp_path / "full", "tables/")
