"""Collections, checks and backups follow the metadata of tables: what a kept commit needs stays, all else goes."""

from __future__ import annotations

import io
import itertools
import json
import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import StaticTable

import strandline
import strandline.iceberg
from strandline.core.iceberg_files import Reach, is_metadata, key_in, read_avro
from strandline.errors import Corrupted, NothingToMerge, ObjectMissing, StoreUnavailable
from strandline.iceberg import Catalog
from strandline.iceberg.refusals import BadUpdate
from strandline.iceberg.tables import TableChange, Tables
from strandline.lake import Lake
from strandline.repository.repository import Repository
from strandline.repository.upkeep.files import Files
from strandline.results.rows import ObjectInfo
from tests.iceberg.making import added, field, listed, schema, snapshot

ROWS = pa.table({"k": pa.array([1, 2], pa.int64()), "s": ["a", "b"]})


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    with strandline.open(tmp_path / "lake", create=True, synced=False) as made:
        made.create_repository("nyc")
        yield made


@pytest.fixture
def repository(lake: Lake) -> Repository:
    found = lake.repository("nyc")
    Catalog(found.branch("main")).create_namespace("db")
    return found


def files(repository: Repository) -> set[str]:
    return set(repository._core.resolver.namespace.list_keys("ice/"))


def collect(repository: Repository) -> None:
    """Collect until what nothing leads to has been seen, has expired, and has gone."""
    for _ in range(4):
        repository.gc.run(grace_days=0)


def needed(repository: Repository) -> set[str]:
    """What the tables of all commits of all branches and tags refer to, as PyIceberg reads them."""
    found: set[str] = set()
    blobs = repository._core.resolver.namespace
    refs = [ref.name for ref in (*repository.branches(), *repository.tags())]
    for commit in {one.id for ref in refs for one in repository.ref(ref).log()}:
        for row in repository.ref(commit).list("tables/"):
            if not isinstance(row, ObjectInfo) or not is_metadata(row.physical_address):
                continue
            found.add(row.physical_address)
            location = f"file://{blobs.local_path(row.physical_address)}"
            table = StaticTable.from_metadata(location)
            found |= {_key(blobs, entry.metadata_file) for entry in table.metadata.metadata_log}
            for version in table.metadata.snapshots:
                found.add(_key(blobs, version.manifest_list))
                for manifest in version.manifests(PyArrowFileIO()):
                    found.add(_key(blobs, manifest.manifest_path))
                    entries = manifest.fetch_manifest_entry(PyArrowFileIO(), discard_deleted=True)
                    found |= {_key(blobs, entry.data_file.file_path) for entry in entries}
    return found


def _key(blobs: Any, location: str) -> str:
    key = key_in(blobs, location)
    assert key is not None
    return key


@pytest.mark.filterwarnings("ignore:Delete operation did not match any records")
@pytest.mark.parametrize("seed", range(6))
def test_what_stays_is_what_a_kept_commit_needs(seed: int, repository: Repository) -> None:
    """Random histories on several branches, some deleted: the files that stay are those that a reader finds."""
    chance = random.Random(seed)
    main = repository.branch("main")
    branches = {"main": main}
    names = ("db.a", "db.b", "db.c")
    for step in range(40):
        name = chance.choice(sorted(branches))
        catalog, table = Catalog(branches[name]), chance.choice(names)
        kind = chance.choice(
            ["append", "append", "append", "delete", "drop", "branch", "merge", "unbranch", "tag", "gc"]
        )
        if kind == "append" and not catalog.table_exists(table):
            catalog.create_table(table, ROWS.schema).append(ROWS)
        elif kind == "append":
            catalog.load_table(table).append(ROWS)
        elif kind == "delete" and catalog.table_exists(table):
            catalog.load_table(table).delete("k = 1")
        elif kind == "drop" and catalog.table_exists(table):
            catalog.drop_table(table)
        elif kind == "branch":
            branches[f"b{step}"] = branches[name].create_branch(f"b{step}")
        elif kind == "merge" and name != "main":
            with suppress(NothingToMerge):
                main.merge(name, strategy="source-wins")
        elif kind == "unbranch" and name != "main":
            repository.delete_branch(name)
            del branches[name]
        elif kind == "tag":
            repository.create_tag(f"t{step}", name)
        elif kind == "gc":
            repository.gc.run(grace_days=0)
    for name in sorted(branches):
        if name != "main" and chance.random() < 0.5:
            repository.delete_branch(name)
    collect(repository)
    assert files(repository) == needed(repository)
    assert repository.fsck().is_sound


def test_tables_of_a_deleted_branch_go_and_what_others_share_stays(repository: Repository) -> None:
    main = repository.branch("main")
    catalog = Catalog(main)
    catalog.create_table("db.t", ROWS.schema).append(ROWS)
    kept = files(repository)
    dev = main.create_branch("dev")
    Catalog(dev).load_table("db.t").delete("k = 1")
    Catalog(dev).create_table("db.own", ROWS.schema).append(ROWS)
    plan = repository.gc.plan(grace_days=0)
    assert plan.files == 0
    repository.delete_branch("dev")
    collect(repository)
    assert files(repository) == kept
    assert catalog.load_table("db.t").scan().to_arrow().num_rows == 2
    young = repository.gc.plan()
    assert young.files == 0


def test_what_nothing_refers_to_is_kept_for_the_grace(repository: Repository) -> None:
    """A client writes its files first and commits later."""
    catalog = Catalog(repository.branch("main"))
    table = catalog.create_table("db.t", ROWS.schema)
    blobs = repository._core.resolver.namespace
    key = _key(blobs, table.location()) + "/data/on-its-way.parquet"
    blobs.put(key, b"x")
    blobs.put("ice/not-ours", b"x")
    repository.gc.run()
    assert {key, "ice/not-ours"} <= files(repository)
    repository.gc.run(grace_days=0)
    assert key not in files(repository)
    assert "ice/not-ours" in files(repository)


def test_a_transaction_keeps_its_files_and_an_aborted_one_does_not(repository: Repository) -> None:
    main = repository.branch("main")
    Catalog(main).create_table("db.t", ROWS.schema)
    before = files(repository)
    tx = main.transaction("job").begin()
    Catalog(tx).load_table("db.t").append(ROWS)
    Catalog(tx).create_table("db.n", ROWS.schema).append(ROWS)
    written = files(repository)
    collect(repository)
    assert files(repository) == written
    tx.commit()
    collect(repository)
    assert files(repository) == needed(repository)
    assert Catalog(main).load_table("db.n").scan().to_arrow().num_rows == 2
    after = files(repository)
    second = main.transaction("job").begin()
    Catalog(second).load_table("db.t").append(ROWS)
    assert files(repository) > after
    second.abort()
    repository.gc.run()  # at once: nothing of it is ever published
    assert files(repository) == after
    assert before <= after


def test_a_table_that_changes_while_files_are_listed_keeps_what_it_refers_to(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its metadata is replaced on the staging area each time, so none of it is in the list of the collection."""
    main = repository.branch("main")
    tables = Tables(main, stages=True)
    tables.create(["db", "t"], {"schema": schema(field(1, "k"))})
    manifests = listed(tables, 7)
    tables.commit([TableChange(("db", "t"), [], added(snapshot(7, 1, None, **manifests)))])
    turns = itertools.count()

    class Late(Files):
        def __init__(self, blobs: Any) -> None:
            super().__init__(blobs)
            change = {"action": "set-properties", "updates": {"turn": str(next(turns))}}
            tables.commit([TableChange(("db", "t"), [], [change])])

    monkeypatch.setattr("strandline.repository.upkeep.garbage.Files", Late)
    collect(repository)
    assert next(turns) > 1
    assert _key(repository._core.resolver.namespace, manifests["manifest-list"]) in files(repository)


def _damage(repository: Repository, end: str, data: bytes | None) -> str:
    blobs = repository._core.resolver.namespace
    (key, *_) = sorted(key for key in files(repository) if key.endswith(end))
    if data is None:
        blobs.delete_many([key])
    else:
        place = blobs.local_path(key)
        assert place is not None
        Path(place).write_bytes(data)
    return key


@pytest.mark.parametrize(
    "data", [None, b"", b"Obj\x01broken", b"not avro at all"], ids=["gone", "empty", "cut", "text"]
)
@pytest.mark.parametrize("end", ["-m0.avro", "snap"], ids=["manifest", "list"])
def test_a_broken_manifest_stops_a_collection(
    end: str, data: bytes | None, repository: Repository, tmp_path: Path, lake: Lake
) -> None:
    catalog = Catalog(repository.branch("main"))
    catalog.create_table("db.t", ROWS.schema).append(ROWS)
    catalog.create_table("db.u", ROWS.schema).append(ROWS)
    blobs = repository._core.resolver.namespace
    ends = {key for key in files(repository) if "/snap-" in key} if end == "snap" else set()
    key = _damage(repository, sorted(ends)[0] if ends else end, data)
    orphan = f"data/{'0' * 20}/{'1' * 20}"
    blobs.put(orphan, b"x")
    before = files(repository)
    with pytest.raises(Corrupted, match="Nothing was deleted") as caught:
        repository.gc.run(grace_days=0)
    assert key in str(caught.value)
    assert files(repository) == before
    assert orphan in set(blobs.list_keys("data/"))
    found = repository.fsck()
    assert any(key in problem for problem in found.problems)
    assert not found.is_complete
    with pytest.raises(Corrupted):
        lake.backup(tmp_path / "backup")


def test_a_lost_data_file_is_found(repository: Repository) -> None:
    catalog = Catalog(repository.branch("main"))
    catalog.create_table("db.t", ROWS.schema).append(ROWS)
    key = _damage(repository, ".parquet", None)
    found = repository.fsck()
    assert (found.problem_count, found.is_complete) == (1, True)
    assert key in found.problems[0]


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
            assert one["manifest_length"] == blobs.head(_key(blobs, one["manifest_path"])).size
        assert Catalog(found.branch("main")).load_table("db.t").scan().to_arrow().num_rows == 2


def test_position_deletes_move_with_their_table(repository: Repository, lake: Lake, tmp_path: Path) -> None:
    """DuckDB writes them; they name data files in their rows, and their manifests hold bounds of these names."""
    blobs = repository._core.resolver.namespace
    catalog = Catalog(repository.branch("main"))
    table = catalog.create_table("db.t", ROWS.schema)
    table.append(ROWS)
    (data,) = (key for key in files(repository) if key.endswith(".parquet"))
    name = Tables(repository.branch("main")).url_of(data)
    out = io.BytesIO()
    pq.write_table(pa.table({"file_path": [name], "pos": pa.array([0], pa.int64())}), out)
    folder = data.rpartition("/")[0]
    deletes = f"{folder}/deletes.parquet"
    blobs.put(deletes, out.getvalue())
    (manifest,) = (key for key in files(repository) if key.endswith("-m0.avro"))
    found = fastavro.reader(io.BytesIO(blobs.get(manifest)))
    entry: Any = next(found)
    entry["data_file"] |= {
        "content": 1,
        "file_path": Tables(repository.branch("main")).url_of(deletes),
        "file_size_in_bytes": out.tell(),
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
        strandline.iceberg.relocate(here)
        blobs = here._core.resolver.namespace
        (entry,) = read_avro(blobs.get(manifest))
        new = Tables(here.branch("main")).url_of(data)
        rows = pq.read_table(io.BytesIO(blobs.get(deletes)))
        assert rows.column("file_path").to_pylist() == [new]
        held = entry["data_file"]
        assert held["file_size_in_bytes"] == blobs.head(deletes).size
        assert held["lower_bounds"] == [{"key": 2147483546, "value": new.encode()}]
        read = fastavro.reader(io.BytesIO(blobs.get(manifest)))
        assert {key: value for key, value in read.metadata.items() if not key.startswith("avro.")} == kept


def test_a_table_that_is_registered_again_is_whole(repository: Repository) -> None:
    main = repository.branch("main")
    dev = main.create_branch("dev")
    catalog = Catalog(dev)
    table = catalog.create_table("db.t", ROWS.schema)
    table.append(ROWS)
    location = table.metadata_location
    repository.delete_branch("dev")
    repository.gc.run(grace_days=0)
    again = Catalog(main).register_table("db.t", location)
    collect(repository)
    assert again.scan().to_arrow().num_rows == 2
    assert files(repository) == needed(repository) | {key for key in files(repository) if is_metadata(key)}
    gone = main.create_branch("dev2")
    table = Catalog(gone).create_table("db.u", ROWS.schema)
    table.append(ROWS)
    repository.delete_branch("dev2")
    collect(repository)
    with pytest.raises((ObjectMissing, Corrupted)):
        Tables(main).register(["db", "u"], table.metadata_location)


def test_a_backup_has_all_that_tables_need(repository: Repository, lake: Lake, tmp_path: Path) -> None:
    catalog = Catalog(repository.branch("main"))
    catalog.create_table("db.t", ROWS.schema).append(ROWS)
    catalog.load_table("db.t").delete("k = 1")
    catalog.create_table("db.gone", ROWS.schema).append(ROWS)
    catalog.drop_table("db.gone")
    lake.backup(tmp_path / "backup")
    with strandline.open(tmp_path / "other", create=True, synced=False) as other:
        (restored,) = other.restore(tmp_path / "backup")
        assert files(restored) == files(repository)
        assert Catalog(restored.branch("main")).load_table("db.t").scan().to_arrow().num_rows == 1
        earlier = Catalog(restored.ref("main~1")).load_table("db.gone")
        assert earlier.scan().to_arrow().num_rows == 2


# --- the walk itself ----------------------------------------------------------------------------------------------


class Places:
    """A namespace, as far as locations are judged."""

    def __init__(self, url: str, spark: str = "", local: str | None = None) -> None:
        self.url = url
        self._spark = spark or url
        self._local = local

    def local_path(self, key: str) -> str | None:
        return None if self._local is None else self._local + key

    def spark_url(self, key: str) -> str:
        return f"{self._spark}/{key}"


@pytest.mark.parametrize(
    ("location", "key"),
    [
        ("file:///lake/data/x/ice/a", "ice/a"),
        ("file:/lake/data/x/ice/a b%20c", "ice/a b%20c"),
        ("/lake/data/x/ice/a", "ice/a"),
        ("file:///lake/data/x", None),
        ("file:///lake/data/x/", None),
        ("file:///lake/data/xy/ice/a", None),
        ("file:///lake/data/x/ice/../../y", None),
        ("file:///lake/data/x/ice//a", None),
        ("s3://lake/data/x/ice/a", None),
        ("", None),
    ],
)
def test_locations_in_a_folder(location: str, key: str | None) -> None:
    blobs: Any = Places("file:///lake/data/x", local="/lake/data/x/")
    assert key_in(blobs, location) == key


@pytest.mark.parametrize(
    ("location", "key"),
    [
        ("s3://bucket/nyc/ice/a", "ice/a"),
        ("s3a://bucket/nyc/ice/a", "ice/a"),
        ("S3N://bucket/nyc/ice/a", "ice/a"),
        ("s3://other/nyc/ice/a", None),
        ("s3://bucket/nycc/ice/a", None),
        ("file:///bucket/nyc/ice/a", None),
    ],
)
def test_locations_in_a_bucket(location: str, key: str | None) -> None:
    blobs: Any = Places("s3://bucket/nyc?region=x", spark="s3a://bucket/nyc")
    assert key_in(blobs, location) == key


def test_each_manifest_is_read_once(repository: Repository) -> None:
    catalog = Catalog(repository.branch("main"))
    table = catalog.create_table("db.t", ROWS.schema)
    for _ in range(4):
        table.append(ROWS)
    blobs = repository._core.resolver.namespace
    read: list[str] = []

    class Counting:
        url, local_path, spark_url = blobs.url, blobs.local_path, blobs.spark_url

        def get(self, key: str) -> bytes:
            read.append(key)
            return blobs.get(key)

    reach = Reach(Counting())  # type: ignore[arg-type]
    metadata = [key for key in files(repository) if is_metadata(key)]
    found = {key for part in reach.from_metadata(metadata) for key in part}
    assert found == files(repository)
    assert len(read) == len(set(read))
    assert sorted(read) == sorted(key for key in files(repository) if not key.endswith(".parquet"))


def test_only_what_is_wanted_is_decoded(repository: Repository) -> None:
    catalog = Catalog(repository.branch("main"))
    catalog.create_table("db.t", ROWS.schema).append(ROWS)
    blobs = repository._core.resolver.namespace
    (manifest,) = (key for key in files(repository) if key.endswith("-m0.avro"))
    (entry,) = read_avro(blobs.get(manifest), {"status", "data_file", "file_path"})
    assert (entry["status"], set(entry), set(entry["data_file"])) == (1, {"status", "data_file"}, {"file_path"})
    (whole,) = read_avro(blobs.get(manifest))
    assert whole["data_file"]["record_count"] == 2


def test_a_snapshot_without_its_manifest_list_is_refused(repository: Repository) -> None:
    """A collection that could not read it would stop for everybody."""
    main = repository.branch("main")
    catalog = Catalog(main)
    table = catalog.create_table("db.t", ROWS.schema)
    table.append(ROWS)
    tables = Tables(main)
    held = tables.load(("db", "t")).metadata
    good = listed(tables, 9)["manifest-list"]
    for wrong in (good + "x", "file:///etc/passwd", "s3://elsewhere/list.avro", good.replace("snap-", "../snap-")):
        more = {"timestamp-ms": held["last-updated-ms"] + 1, "manifest-list": wrong}
        change = TableChange(("db", "t"), [], added(snapshot(7, 2, held["current-snapshot-id"], **more)))
        with pytest.raises(BadUpdate):
            tables.commit([change])
    statistics = {"snapshot-id": held["current-snapshot-id"], "statistics-path": "/etc/passwd", "file-size-in-bytes": 1}
    more = {**statistics, "file-footer-size-in-bytes": 1, "blob-metadata": []}
    with pytest.raises(BadUpdate):
        tables.commit([TableChange(("db", "t"), [], [{"action": "set-statistics", "statistics": more}])])
    assert json.dumps(tables.load(("db", "t")).metadata) == json.dumps(held)
