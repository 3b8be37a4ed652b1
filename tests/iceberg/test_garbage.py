"""Collections, checks and backups follow the metadata of tables: what a kept commit needs stays, all else goes."""

from __future__ import annotations

import itertools
import json
import os
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import StaticTable

import strandline
import strandline.iceberg
from strandline.core.iceberg_files import Reach, is_metadata, key_in, read_avro
from strandline.core.retention import Retention
from strandline.errors import Corrupted, NothingToMerge, ObjectMissing
from strandline.iceberg import Catalog
from strandline.iceberg.refusals import BadUpdate, Stale
from strandline.iceberg.tables import TableChange, Tables
from strandline.lake import Lake
from strandline.repository.repository import Repository
from strandline.repository.upkeep.files import Files
from strandline.repository.upkeep.garbage import Collector
from strandline.results.rows import ObjectInfo
from tests.harness.clients import Client, Shared, at_each_call
from tests.iceberg.keeping import ROWS, collect, files, key_of
from tests.iceberg.making import added, field, listed, schema, snapshot


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
            found |= {key_of(blobs, entry.metadata_file) for entry in table.metadata.metadata_log}
            for version in table.metadata.snapshots:
                found.add(key_of(blobs, version.manifest_list))
                for manifest in version.manifests(PyArrowFileIO()):
                    found.add(key_of(blobs, manifest.manifest_path))
                    entries = manifest.fetch_manifest_entry(PyArrowFileIO(), discard_deleted=True)
                    found |= {key_of(blobs, entry.data_file.file_path) for entry in entries}
    return found


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
    key = key_of(blobs, table.location()) + "/data/on-its-way.parquet"
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

    monkeypatch.setattr("strandline.repository.upkeep.judging.Files", Late)
    collect(repository)
    assert next(turns) > 1
    assert key_of(repository._core.resolver.namespace, manifests["manifest-list"]) in files(repository)


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


# --- a commit of files that are older than the grace ---------------------------------------------------------------


class Slow:
    """A client that wrote the files of an append long before it commits them, beside a collection."""

    def __init__(self, folder: Path) -> None:
        shared = Shared(blob=folder)
        self.writer, self.collector = Client(shared, create=True), Client(shared)
        catalog = Catalog(self.writer.main)
        catalog.create_namespace("db")
        catalog.create_table("db.t", ROWS.schema)
        self.refused = 0

    def prepare(self) -> None:
        """Write the files of an append, and let them become old: the grace begins afterwards."""
        catalog = Catalog(self.writer.main)
        asked: list[Any] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Tables, "commit", lambda _, changes: asked.extend(changes) or [])
            with suppress(Exception):
                catalog.load_table("db.t").append(ROWS)
        (self.change,) = asked
        blobs = self.writer.repo._core.resolver.namespace
        for key in blobs.list_keys("ice/"):
            place = blobs.local_path(key)
            assert place is not None
            os.utime(place, (1_000, 1_000))
        self.before_us = 2_000 * 10**6

    def commit(self) -> None:
        try:
            Tables(self.writer.main).commit([self.change])
        except (Stale, BadUpdate):
            self.refused += 1

    def collect(self) -> None:
        core = self.collector.repo._core
        Collector(core, Retention(), before_us=self.before_us, links_before_us=self.before_us).run()

    def check(self) -> int:
        """All that the table refers to is there; how many rows it has."""
        return int(Catalog(self.writer.main).load_table("db.t").scan().to_arrow().num_rows)


@pytest.mark.parametrize("acts", ["commit", "collect"])
def test_a_commit_of_old_files_is_whole_or_refused(acts: str, tmp_path: Path) -> None:
    """One of the two before each call of the other."""
    slow = Slow(tmp_path / "lake")
    slow.prepare()
    rows = rounds = 0
    if acts == "collect":
        calls = at_each_call(slow.writer, slow.commit, slow.collect)
    else:
        calls = at_each_call(slow.collector, slow.collect, slow.commit)
    for _ in calls:
        now = slow.check()
        assert now - rows in (0, ROWS.num_rows)
        rows, rounds = now, rounds + 1
        slow.prepare()
    assert 0 < slow.refused < rounds
