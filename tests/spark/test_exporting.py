"""An export by Spark's executors is that of one process."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import strandline
from strandline.errors import StorageError, UsageError
from strandline.iceberg import Catalog

pytestmark = [pytest.mark.spark]


def test_executors_export_what_one_process_does(spark: SparkSession, tmp_path: Path) -> None:
    with strandline.open(tmp_path / "lake", create=True, synced=False) as lake:
        main = lake.create_repository("nyc").branch("main")
        main.put_many({f"t/{n}/x": f"object {n}" for n in range(30)})
        catalog = Catalog(main)
        catalog.create_namespace("db")
        catalog.create_table("db.t", pa.schema([("k", pa.int64())])).append(pa.table({"k": [7]}))
        main.commit("all")
        places = {}
        for name, session in (("here", None), ("there", spark)):
            folder = tmp_path / name
            assert main.export(f"file://{folder}", spark=session) > 30
            files = (path for path in folder.rglob("*") if path.is_file())
            places[name] = {str(path.relative_to(folder)): path.read_bytes() for path in files}
        assert places["here"].keys() == places["there"].keys()
        assert [path for path in places["here"] if "t/" in path[:2]] != []
        for path, body in places["here"].items():
            assert places["there"][path] == body or path.endswith((".json", ".avro"))  # these name their places
        with pytest.raises(UsageError, match="cannot make a folder appear whole"):
            main.export(tmp_path / "folder", spark=spark)
        main._core.stores.trees.blobs.delete_many([main.stat("t/7/x").physical_address])
        with pytest.raises(StorageError, match="'t/7/x' are gone"):
            main.export(f"file://{tmp_path}/broken", "t/", spark=spark)
        assert (tmp_path / "broken" / ".strandline-export").exists()


def test_executors_that_write_elsewhere_are_noticed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store in memory is to each process what a folder is to machines without a mount."""
    with (
        strandline.open(tmp_path / "lake", create=True, synced=False) as lake,
        strandline.open(tmp_path / "other", create=True, synced=False) as other,
    ):
        main = lake.create_repository("nyc").branch("main")
        main.put_many({f"t/{n}": f"object {n}" for n in range(9)})
        main.commit("all")
        with pytest.raises(StorageError, match="does not see what the driver has put"):
            main.export("memory://elsewhere/place", spark=spark)
        with pytest.raises(StorageError, match="does not see what the driver has put"):
            lake.backup("memory://elsewhere/saved", spark=spark)
        lake.copy_repository("nyc", other, spark=spark)
        assert not [path for path in (tmp_path / "other").rglob("*") if "seen" in path.name]
