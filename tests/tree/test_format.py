"""What is on disk: ids that never change, files that others can read, and refusals of what is broken."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strandline.blob import open_store
from strandline.errors import Corrupted, NewerFormat, ObjectMissing
from strandline.tree.cache import ByteBoundedCache
from strandline.tree.range_file import VERSION_KEY
from strandline.tree.rows import SCHEMA, Entry, user_metadata_json
from strandline.tree.store import EMPTY, RANGES_FOLDER, OpenRange, Tree, TreeStore
from tests.tree.trees import entry, make, memory_trees, ranges

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GOLDEN = Path(__file__).parent / "golden_ids.json"


def golden_trees(store: TreeStore) -> dict[str, Tree]:
    odd = {
        "ünï/cödé": Entry("a", 2**53, "x:1", -1, "text/plain", user_metadata_json({"b": "2", "a": "é"})),
        "日本/語": Entry("s3://b/k", 0, "x:2", 0, None, None),
        "a b": Entry("", 1, "", 1, "", None),
    }
    many = {f"dir/{i:06d}": entry(i % 1000) for i in range(30_000)}
    return {"empty": EMPTY, "one": make(store, {"a": entry(1)}), "odd": make(store, odd), "many": make(store, many)}


def golden_ids(store: TreeStore) -> dict[str, object]:
    return {name: [tree.id, *(info.id for info in ranges(store, tree))] for name, tree in golden_trees(store).items()}


def test_ids_are_those_of_the_first_version(tmp_path: Path) -> None:
    assert golden_ids(TreeStore(open_store(str(tmp_path)))) == json.loads(GOLDEN.read_text())


def test_ids_are_the_same_under_another_hash_seed_and_locale(tmp_path: Path) -> None:
    script = (
        "import json, sys; from pathlib import Path; from strandline.blob import open_store;"
        "from strandline.tree.store import TreeStore; from tests.tree.test_format import golden_ids;"
        "print(json.dumps(golden_ids(TreeStore(open_store(sys.argv[1])))))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "4711", "LC_ALL": "tr_TR.UTF-8", "TZ": "Pacific/Chatham"}
    command = [sys.executable, "-c", script, str(tmp_path)]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=root, check=True)
    assert json.loads(done.stdout) == json.loads(GOLDEN.read_text())


@pytest.fixture
def written(tmp_path: Path) -> tuple[Path, TreeStore, Tree]:
    store = TreeStore(open_store(str(tmp_path)))
    model = {f"k{i:02d}": entry(i, metadata='{"a":"b"}' if i % 2 else None) for i in range(40)}
    return tmp_path, store, make(store, model)


def test_duckdb_reads_ranges_and_metaranges(written: tuple[Path, TreeStore, Tree]) -> None:
    import duckdb

    folder, store, tree = written
    files = f"{folder}/{RANGES_FOLDER}/*.parquet"
    count, paths = duckdb.execute(f"select count(*), count(distinct path) from '{files}' where size = 1").fetchall()[0]
    assert (count, paths) == (40, 40)
    top = duckdb.execute(f"select range_id, count from '{folder}/_strandline/metaranges/*.parquet'").fetchall()
    assert top == [(info.id, info.count) for info in ranges(store, tree)]


def test_polars_reads_ranges(written: tuple[Path, TreeStore, Tree]) -> None:
    import polars

    frame = polars.read_parquet(f"{written[0]}/{RANGES_FOLDER}/*.parquet")
    assert frame["path"].to_list() == [f"k{i:02d}" for i in range(40)]
    assert frame["user_metadata"].null_count() == 20


@pytest.mark.spark
def test_spark_reads_ranges(written: tuple[Path, TreeStore, Tree], spark: SparkSession) -> None:
    frame = spark.read.parquet(f"{written[0]}/{RANGES_FOLDER}")
    assert sorted(row["path"] for row in frame.collect()) == [f"k{i:02d}" for i in range(40)]
    assert frame.where("user_metadata is null").count() == 20


def rewrite(folder: Path, tree: Tree, change: object) -> TreeStore:
    """Replace the only range's file; a fresh store has nothing cached."""
    (file,) = (folder / RANGES_FOLDER).glob("*.parquet")
    file.write_bytes(change(file.read_bytes()))  # type: ignore[operator]
    return TreeStore(open_store(str(folder)))


def parquet(table: pa.Table, version: bytes = b"1") -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table.replace_schema_metadata({VERSION_KEY: version}), sink)
    return bytes(sink.getvalue().to_pybytes())


def test_a_range_with_another_row_is_corrupted(written: tuple[Path, TreeStore, Tree]) -> None:
    folder, _, tree = written
    store = rewrite(folder, tree, lambda data: parquet(pq.read_table(pa.BufferReader(data)).slice(1)))
    with pytest.raises(Corrupted, match="holds other rows"):
        store.find(store.tree(tree.ref), "k07")


def test_a_range_that_is_no_parquet_file_is_corrupted(written: tuple[Path, TreeStore, Tree]) -> None:
    folder, _, tree = written
    for broken in (lambda data: data[: len(data) // 2], lambda data: b"", lambda data: b"PAR1" + bytes(100)):
        store = rewrite(folder, tree, broken)
        with pytest.raises(Corrupted):
            store.find(store.tree(tree.ref), "k07")


def test_a_file_of_somebody_else_is_corrupted(written: tuple[Path, TreeStore, Tree]) -> None:
    folder, _, tree = written
    store = rewrite(folder, tree, lambda data: parquet(pa.table({"x": [1]})))
    with pytest.raises(Corrupted, match="not a file that strandline wrote"):
        store.find(store.tree(tree.ref), "k07")


def test_a_range_of_a_newer_format_is_refused(written: tuple[Path, TreeStore, Tree]) -> None:
    folder, _, tree = written
    store = rewrite(folder, tree, lambda data: parquet(SCHEMA.empty_table(), b"3"))
    with pytest.raises(NewerFormat, match="Upgrade"):
        store.find(store.tree(tree.ref), "k07")


def test_a_missing_range_or_metarange_is_named(written: tuple[Path, TreeStore, Tree]) -> None:
    folder, store, tree = written
    store.blobs.delete_many([ranges(store, tree)[0].address])
    fresh = TreeStore(open_store(str(folder)))
    with pytest.raises(ObjectMissing, match="range"):
        fresh.find(fresh.tree(tree.ref), "k07")
    store.blobs.delete_many([f"_strandline/metaranges/{tree.ref}.parquet"])
    with pytest.raises(ObjectMissing, match="metarange"):
        TreeStore(open_store(str(folder))).tree(tree.ref)


def test_a_corrupted_metarange_is_refused(written: tuple[Path, TreeStore, Tree]) -> None:
    folder, _, tree = written
    file = folder / "_strandline" / "metaranges" / f"{tree.ref}.parquet"
    table = pq.read_table(file)
    counts = pa.array([1] * table.num_rows, pa.int64())
    file.write_bytes(parquet(table.set_column(4, table.schema.field(4), counts)))
    with pytest.raises(Corrupted, match="other parts"):
        TreeStore(open_store(str(folder))).tree(tree.ref)


def test_the_cache_is_bounded_in_bytes_and_forgets_what_was_used_longest_ago() -> None:
    cache: ByteBoundedCache[str] = ByteBoundedCache(100)
    cache.put("a", "A", 40)
    cache.put("b", "B", 40)
    assert cache.get("a") == "A"
    cache.put("c", "C", 40)
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == ("A", None, "C")
    cache.put("a", "A2", 10)
    assert cache.held_bytes == 50
    cache.put("huge", "H", 101)
    assert cache.get("huge") is None
    assert cache.held_bytes == 50


def test_every_path_of_a_range_is_found() -> None:
    """Single paths are searched in Arrow's buffers: bytes above 0x7f among them, and slices that begin elsewhere."""
    names = ["", "a", "z", "é", "ü\x07\x9b", "\u202e", "漢字", "😀", "a/é"]
    store = memory_trees()
    tree = make(store, {f"{name}{number}": entry(number) for name in names for number in range(7)})
    rows = store.rows(ranges(store, tree)[0])
    for part in (rows, rows.slice(5, 40)):
        opened = OpenRange(part)
        for path in part.column("path").to_pylist():
            assert opened.find(path) is not None
            assert opened.find(path + "x") is None
    assert OpenRange(rows.slice(0, 0)).find("a") is None
