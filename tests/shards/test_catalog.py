"""Shards of a repository: names, schemas, processes, and what runs beside the callers."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

import strandline
from strandline import (
    Antichain,
    BeforeSince,
    InvalidName,
    SchemaMismatch,
    ShardNotFound,
    UpperMismatch,
    UsageError,
)
from strandline.lake import Lake
from strandline.repository.repository import Repository
from strandline.shards.shard import Shard
from tests.shards.stage import update

SCHEMA = pa.schema([("key", pa.string()), ("value", pa.int64())])


@pytest.fixture
def repo(lake: Lake) -> Repository:
    return lake.repository("nyc", create=True)


def filled(repo: Repository, count: int = 3) -> Shard:
    shard = repo.shard("s", SCHEMA, key=["key"])
    with shard.writer() as writer:
        for time_ in range(count):
            writer.compare_and_append([update("k", time_, time_)], time_, time_ + 1)
    return shard


def test_a_shard_is_made_with_its_schema_and_found_without(repo: Repository) -> None:
    with pytest.raises(ShardNotFound, match="no shard"):
        repo.shard("s")
    made = repo.shard("s", SCHEMA, key=["key"])
    assert repo.shard("s") is made
    assert repo.shard("s", SCHEMA, key="key") is made
    assert repo.shards() == ["s"]
    assert (made.upper, made.since, made.key) == (Antichain(0), Antichain(0), ("key",))


@pytest.mark.parametrize("name", ["", "a/b", ".hidden", "é", "x" * 129, None])
def test_names_that_are_none(repo: Repository, name: str) -> None:
    with pytest.raises(InvalidName):
        repo.shard(name, SCHEMA)
    assert repo.shards() == []


def test_another_schema_is_refused_and_an_older_one_is_not(repo: Repository) -> None:
    shard = repo.shard("s", SCHEMA, key=["key"])
    wider = pa.schema([*SCHEMA, pa.field("note", pa.string())])
    with pytest.raises(SchemaMismatch, match="another schema"):
        repo.shard("s", wider, key=["key"])
    shard.evolve(wider)
    assert repo.shard("s", wider, key=["key"]) is repo.shard("s", SCHEMA, key=["key"])
    with pytest.raises(SchemaMismatch, match="codec"):
        repo.shard("s", codec="json")
    with pytest.raises(UsageError, match="not a codec"):
        repo.shard("other", SCHEMA, codec="pickle")


@pytest.mark.parametrize(
    ("schema", "key"),
    [
        (pa.schema([]), None),
        (SCHEMA, ["nothing"]),
        (pa.schema([("_time", pa.int64())]), None),
        (pa.schema([("deep", pa.list_(pa.int64()))]), None),
        (pa.schema([("a", pa.int64()), ("a", pa.int64())]), None),
    ],
)
def test_schemas_that_cannot_be(repo: Repository, schema: pa.Schema, key: list[str] | None) -> None:
    with pytest.raises(SchemaMismatch):
        repo.shard("s", schema, key=key)
    with pytest.raises(UsageError):
        repo.shard("s", {"a": "int"})


def test_a_deleted_shard_leaves_nothing_and_frees_its_name(lake: Lake, repo: Repository) -> None:
    shard = filled(repo)
    writer = shard.writer()
    blobs = repo._core.stores.trees.blobs
    repo.delete_shard("s")
    assert repo.shards() == []
    with pytest.raises(UpperMismatch, match="finished"):
        writer.compare_and_append([], 3, 4)
    with pytest.raises(BeforeSince, match="is over"):
        shard.snapshot(2, timeout_s=0)
    assert [key for key in blobs.list_keys("shards/") if key.endswith(".parquet")] == []
    again = repo.shard("s", SCHEMA)
    assert again.id != shard.id
    assert again.upper == Antichain(0)
    with pytest.raises(ShardNotFound):
        repo.delete_shard("nothing")


def test_a_repository_that_is_deleted_takes_the_names_along(lake: Lake, repo: Repository) -> None:
    filled(repo)
    lake.delete_repository("nyc")
    assert lake.repository("nyc", create=True).shards() == []


def test_changes_may_be_decided_in_the_object_store_alone(tmp_path: Path) -> None:
    with strandline.open(tmp_path / "lake", create=True, synced=False) as lake:
        repo = lake.repository("nyc", create=True)
        shard = repo.shard("s", SCHEMA, key=["key"], consensus="blob")
        threads = [threading.Thread(target=_append_next, args=(shard, f"t{number}", 10)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        shard.compact(full=True)
        shard.collect()
        found = Counter(key for (key, _), _, _ in shard.snapshot().to_list())
        assert found == {f"t{number}": 10 for number in range(4)}
    with strandline.open(tmp_path / "lake") as again:
        assert again.repository("nyc").shard("s").upper == Antichain(40)


def _append_next(shard: Shard, key: str, count: int) -> None:
    with shard.writer() as writer:
        for number in range(count):
            writer.append_next([((key, number), 0, 1)])


def _in_another_process(raw: bytes, key: str, count: int) -> None:
    _append_next(pickle.loads(raw), key, count)


def test_handles_pickle_and_processes_share_a_shard(tmp_path: Path) -> None:
    with strandline.open(tmp_path / "lake", create=True, synced=False) as lake:
        shard = lake.repository("nyc", create=True).shard("s", SCHEMA, key=["key"])
        raw = pickle.dumps(shard)
        spawn = multiprocessing.get_context("spawn")
        processes = [spawn.Process(target=_in_another_process, args=(raw, f"p{number}", 40)) for number in range(3)]
        for process in processes:
            process.start()
        told: Counter[str] = Counter()
        listen = shard.listen(0, timeout_s=60)
        shard.writer().append_next([(("first", 0), 0, 1)])
        while listen.as_of < 120:
            told.update(key for (key, _), _, _ in listen.next().to_list())
        for process in processes:
            process.join()
            assert process.exitcode == 0
        rows = Counter(key for (key, _), _, _ in shard.snapshot().to_list())
        assert rows == {"first": 1, "p0": 40, "p1": 40, "p2": 40}
        assert sum(told.values()) in (120, 121)  # the row at time 0 is none of the changes after it
        assert len(shard.state.batches) < 60  # somebody compacted


def test_a_handle_works_in_a_forked_child(tmp_path: Path) -> None:
    with strandline.open(tmp_path / "lake", create=True, synced=False) as lake:
        shard = lake.repository("nyc", create=True).shard("s", SCHEMA, key=["key"])
        reader = shard.reader(lease_s=1)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                shard.writer().append_next([(("child", 1), 0, 1)])
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        assert status == 0
        assert shard.snapshot(timeout_s=20).to_list() == [(("child", 1), 0, 1)]
        reader.close()


def test_a_lease_is_renewed_beside_the_caller(tmp_path: Path) -> None:
    with strandline.open(tmp_path / "lake", create=True, synced=False) as lake:
        shard = lake.repository("nyc", create=True).shard("s", SCHEMA, key=["key"])
        writer = shard.writer()
        reader = shard.reader(lease_s=1)
        until = time.monotonic() + 3
        while time.monotonic() < until:
            writer.append_next([(("k", 1), 0, 1)])
            time.sleep(0.05)
        assert reader.id in shard.state.readers
        assert reader.downgrade_since(3) == Antichain(3)
        reader.close()
        assert shard.state.readers == {}


def test_upkeep_runs_beside_writers_and_bounds_what_is_left(tmp_path: Path) -> None:
    with strandline.open(tmp_path / "lake", create=True, synced=False) as lake:
        shard = lake.repository("nyc", create=True).shard("s", SCHEMA, key=["key"])
        writer = shard.writer()
        for number in range(1_500):
            writer.compare_and_append([update("k", number, number)] if number % 3 else [], number, number + 1)
    with strandline.open(tmp_path / "lake") as again:
        shard = again.repository("nyc").shard("s")
        place = shard._machine.place
        assert len(place.consensus.scan(place.shard, 1, 10_000)) < 600
        assert len(shard.state.batches) < 100
        assert len(list(place.blobs.list_keys(place.folder + "/"))) < 60
        assert shard.snapshot().to_arrow().num_rows == 1_000


def test_an_idle_lake_ends_without_waiting_for_leases(tmp_path: Path) -> None:
    code = (
        "import strandline, pyarrow as pa\n"
        f"lake = strandline.open({str(tmp_path / 'lake')!r}, create=True)\n"
        "shard = lake.repository('nyc', create=True).shard('s', pa.schema([('k', pa.int64())]))\n"
        "reader = shard.reader()\n"
        "print(shard.upper)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "[0]\n")


def test_requests_and_bytes_are_counted(repo: Repository) -> None:
    shard = filled(repo)
    before = shard.counts["consensus append"].requests
    shard.writer().append_next([(("k", 1), 0, 1)])
    assert shard.counts["consensus append"].requests == before + 1
    assert shard.counts["consensus append"].bytes > 0


def test_a_slow_deletion_does_not_take_the_name_of_a_newer_shard(
    lake: Lake, repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = filled(repo)
    retire = Shard.retire

    def slow(self: Shard) -> None:
        monkeypatch.setattr(Shard, "retire", retire)
        retire(self)
        repo.delete_shard("s")
        filled(repo)

    monkeypatch.setattr(Shard, "retire", slow)
    repo.delete_shard("s")
    assert repo.shards() == ["s"]
    assert repo.shard("s").id != shard.id
    assert repo.shard("s").upper == Antichain(3)


def test_a_short_lease_is_renewed_beside_a_long_one(tmp_path: Path) -> None:
    with strandline.open(tmp_path / "lake", create=True, synced=False) as lake:
        shard = lake.repository("nyc", create=True).shard("s", SCHEMA, key=["key"])
        long = shard.reader()
        time.sleep(0.3)
        short = shard.reader(lease_s=1)
        time.sleep(2.5)
        shard.writer().append_next([(("k", 1), 0, 1)])
        assert {long.id, short.id} <= set(shard.state.readers)
