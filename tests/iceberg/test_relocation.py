"""A lake that moves takes its Iceberg tables along: `relocate` puts the addresses in their files right."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

import strandline
import strandline.iceberg
from strandline.core.iceberg_files import read_avro
from strandline.errors import StoreUnavailable
from strandline.iceberg import Catalog
from strandline.iceberg.tables import Tables
from strandline.lake import Lake
from strandline.repository.repository import Repository
from tests.iceberg.keeping import ROWS, collect, files, key_of


def test_a_lake_that_was_moved_is_collected_rightly(repository: Repository, lake: Lake, tmp_path: Path) -> None:
    """Its metadata names the old place; what it means is known by its keys."""
    main = repository.branch("main")
    Catalog(main).create_table("db.t", ROWS.schema).append(ROWS)
    Catalog(main).load_table("db.t").delete("k = 1")
    before = files(repository)
    lake.close()
    (tmp_path / "lake").rename(tmp_path / "moved")
    checksums = [path.with_name(f".{path.name}.crc") for path in (tmp_path / "moved").rglob("metadata/*.avro")]
    with strandline.open(tmp_path / "moved", synced=False) as moved:
        found = moved.repository("nyc")
        collect(found)
        assert files(found) == before
        for checksum in checksums:  # as Hadoop leaves them, by which it would refuse what is written anew
            checksum.write_bytes(b"crc")
        assert found.fsck().is_sound
        done = strandline.iceberg.relocate(found)
        assert (done.read, done.files) == (5, 5)
        assert not [path for path in checksums if path.exists()]
        assert strandline.iceberg.relocate(found).files == 0
        catalog = Catalog(found.branch("main"))
        assert catalog.load_table("db.t").scan().to_arrow().column("k").to_pylist() == [2]
        earlier = Catalog(found.ref("main~1")).load_table("db.t")
        assert earlier.scan().to_arrow().num_rows == 2  # a commit from before the move
        catalog.load_table("db.t").append(ROWS)
        assert catalog.load_table("db.t").scan().to_arrow().num_rows == 3
        assert str(tmp_path / "lake") not in json.dumps(Tables(found.branch("main")).load(("db", "t")).metadata)


def test_a_move_that_broke_off_is_gone_on_with(repository: Repository, lake: Lake, tmp_path: Path) -> None:
    catalog = Catalog(repository.branch("main"))
    catalog.create_table("db.t", ROWS.schema).append(ROWS)
    lake.close()
    (tmp_path / "lake").rename(tmp_path / "a much longer name of the folder")
    with strandline.open(tmp_path / "a much longer name of the folder", synced=False) as moved:
        found = moved.repository("nyc")
        blobs = found._core.stores.trees.blobs.own
        put, written = blobs.put, 0

        def once(*rest: Any, **more: Any) -> Any:
            nonlocal written
            written += 1
            if written == 2:
                raise StoreUnavailable("The store is away.", happened="no")
            return put(*rest, **more)

        blobs.put = once  # type: ignore[method-assign]
        with pytest.raises(StoreUnavailable):
            strandline.iceberg.relocate(found)
        blobs.put = put  # type: ignore[method-assign]
        strandline.iceberg.relocate(found)
        (manifests,) = (read_avro(blobs.get(key)) for key in files(found) if key.rpartition("/")[2].startswith("snap-"))
        for one in manifests:
            assert one["manifest_length"] == blobs.head(key_of(blobs, one["manifest_path"])).size
        assert Catalog(found.branch("main")).load_table("db.t").scan().to_arrow().num_rows == 2


def deletes_in(kind: str, name: str) -> bytes:
    """Position deletes of a row, in a format."""
    rows, out = pa.table({"file_path": [name], "pos": pa.array([0], pa.int64())}), io.BytesIO()
    if kind == "PARQUET":
        pq.write_table(rows, out)
    elif kind == "ORC":
        orc.write_table(rows, out)
    else:
        fields = [{"name": "file_path", "type": "string"}, {"name": "pos", "type": "long"}]
        fastavro.writer(out, {"type": "record", "name": "deletes", "fields": fields}, rows.to_pylist())
    return out.getvalue()


@pytest.mark.parametrize("breaks_off", [False, True])
@pytest.mark.parametrize("kind", ["PARQUET", "ORC", "AVRO"])
def test_position_deletes_move_with_their_table(
    kind: str, breaks_off: bool, repository: Repository, lake: Lake, tmp_path: Path
) -> None:
    """Engines write them; they name data files in their rows, and their manifests hold bounds of these names."""
    blobs = repository._core.resolver.namespace
    catalog = Catalog(repository.branch("main"))
    table = catalog.create_table("db.t", ROWS.schema)
    table.append(ROWS)
    (data,) = (key for key in files(repository) if key.endswith(".parquet"))
    name = Tables(repository.branch("main")).url_of(data)
    made = deletes_in(kind, name)
    folder = data.rpartition("/")[0]
    deletes = f"{folder}/deletes.{kind.lower()}"
    blobs.put(deletes, made)
    (manifest,) = (key for key in files(repository) if key.endswith("-m0.avro"))
    found = fastavro.reader(io.BytesIO(blobs.get(manifest)))
    entry: Any = next(found)
    entry["data_file"] |= {
        "content": 1,
        "file_path": Tables(repository.branch("main")).url_of(deletes),
        "file_size_in_bytes": len(made),
        "file_format": kind,
        "lower_bounds": [{"key": 2147483546, "value": name.encode()}],
        "upper_bounds": [{"key": 2147483546, "value": name.encode()}],
    }
    again = io.BytesIO()
    kept = {key: value for key, value in found.metadata.items() if not key.startswith("avro.")}
    fastavro.writer(again, found.writer_schema, [entry], metadata=dict(kept))
    blobs.put(manifest, again.getvalue())
    lake.close()
    (tmp_path / "lake").rename(tmp_path / "moved")
    with strandline.open(tmp_path / "moved", synced=False) as moved:
        here = moved.repository("nyc")
        blobs = here._core.resolver.namespace
        if breaks_off:
            put = blobs.put
            written: list[str] = []

            def once(key: str, *rest: Any, **more: Any) -> Any:
                written.append(key)
                if len(written) == 2:  # the deletes are there, and their manifest is not
                    raise StoreUnavailable("The store is away.", happened="no")
                return put(key, *rest, **more)

            blobs.put = once  # type: ignore[method-assign]
            with pytest.raises(StoreUnavailable):
                strandline.iceberg.relocate(here)
            blobs.put = put  # type: ignore[method-assign]
            assert written[0] == deletes
        strandline.iceberg.relocate(here)
        (entry,) = read_avro(blobs.get(manifest))
        new = Tables(here.branch("main")).url_of(data)
        rows = pq.read_table(io.BytesIO(blobs.get(deletes)))
        assert rows.column("file_path").to_pylist() == [new]
        if kind != "PARQUET":  # whose own ids would have stayed
            fields = pq.read_schema(io.BytesIO(blobs.get(deletes)))
            assert [one.metadata[b"PARQUET:field_id"] for one in fields] == [b"2147483546", b"2147483545"]
        held = entry["data_file"]
        assert held["file_format"] == "PARQUET"
        assert held["file_size_in_bytes"] == blobs.head(deletes).size
        assert held["lower_bounds"] == [{"key": 2147483546, "value": new.encode()}]
        read = fastavro.reader(io.BytesIO(blobs.get(manifest)))
        assert {key: value for key, value in read.metadata.items() if not key.startswith("avro.")} == kept
