"""Lists of what a collection deletes in parts: who is refused what they name, and until when they count."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

import strandline
from strandline import Repository
from strandline.core import promises
from strandline.core.condemned import ListPart, decode_keys, write_part
from strandline.core.namespace import MARKER, read_marker, renew
from strandline.core.promises import Condemned
from strandline.envelope import encode, version_of
from strandline.errors import Contention, Corrupted, ObjectMissing
from strandline.ids import new_id
from strandline.repository.upkeep import judging
from strandline.repository.upkeep.judging import Round, delete_listed


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    with strandline.open(tmp_path / "lake", create=True, synced=False) as lake:
        yield lake.create_repository("nyc")


def condemned(repo: Repository, *, at: int = 0) -> tuple[Condemned, list[str]]:
    """Garbage, and a run that condemned it in three parts and died."""
    stores = repo._core.stores
    blobs = stores.trees.blobs
    run = new_id()
    keys = sorted(f"data/{new_id()}/{new_id()}" for _ in range(30))
    for key in keys:
        blobs.put(key, b"garbage")
    folder = f"{promises.GC_FOLDER}/{run}/"
    parts = [write_part(blobs, folder, pa.array(keys[first : first + 10]), pa.array([7] * 10)) for first in (0, 10, 20)]
    record = Condemned(run, 30, 210, at, in_parts=True)
    promises.write_condemned_parts(stores, record, parts)
    return record, keys


def test_a_linker_is_refused_what_a_part_lists(repo: Repository) -> None:
    stores = repo._core.stores
    _, keys = condemned(repo)
    for key in (keys[0], keys[9], keys[10], keys[29]):
        with pytest.raises(ObjectMissing, match="being collected"):
            promises.announce_links(stores, ["data/!", key])  # the other one lies in no part
    promises.announce_links(stores, [f"data/{new_id()}/{new_id()}", "data/", "e"])


def test_the_next_run_deletes_what_parts_list_but_what_is_linked(repo: Repository) -> None:
    stores = repo._core.stores
    record, keys = condemned(repo)
    spared = [keys[3], *keys[10:20]]  # a whole part of them
    key = promises.LINK + new_id().encode()
    stores.kv.set(stores.records, key, encode(promises.Link(tuple(spared))))  # read by nobody yet
    done = repo.gc.run()
    assert done.resumed == 19
    left = [key for key in keys if stores.trees.blobs.exists(key)]
    assert left == spared
    (held,) = promises.condemned(stores)
    assert (held.run, held.count, held.bytes, held.is_over) == (record.run, 19, 133, True)
    listed = [
        key
        for part in promises.condemned_parts(stores, held)
        for key in decode_keys(stores.trees.blobs.get(part.file), part.file).to_pylist()
    ]
    assert listed == [key for key in keys if key not in spared]


def test_a_record_stays_until_no_attempt_can_delete(repo: Repository) -> None:
    stores = repo._core.stores
    condemned(repo)
    repo.gc.run()
    (left,) = promises.condemned(stores)
    assert left.until > stores.clock.now_us()
    repo.gc.run()  # it is over, and nobody's wait
    assert promises.condemned(stores) == [left]
    raw = encode(msgspec.structs.replace(left, until=1))
    stores.kv.set(stores.records, promises.CONDEMNED + left.run.encode(), raw)
    repo.gc.run()
    assert promises.condemned(stores) == []
    assert not list(stores.trees.blobs.list_keys(promises.GC_FOLDER))


@pytest.mark.parametrize("lost", ["list", "parts"])
def test_a_record_whose_lists_are_gone_stays_as_long(repo: Repository, lost: str) -> None:
    stores = repo._core.stores
    record, _ = condemned(repo)
    key = promises.CONDEMNED + record.run.encode()
    parts = promises.condemned_parts(stores, record)
    stores.trees.blobs.delete_many([record.file] if lost == "list" else [part.file for part in parts])
    for late in (-60_000_000, 3_000_000):  # a request that began in time may be sent again
        until = stores.clock.now_us() - late
        stores.kv.set(stores.records, key, encode(msgspec.structs.replace(record, until=until)))
        repo.gc.run()
        assert [one.run for one in promises.condemned(stores)] == [record.run]
    stores.kv.set(stores.records, key, encode(msgspec.structs.replace(record, until=1)))
    repo.gc.run()
    assert promises.condemned(stores) == []


def test_a_run_that_works_is_not_taken_over(repo: Repository) -> None:
    _, keys = condemned(repo, at=repo._core.stores.clock.now_us())
    with pytest.raises(Contention, match="Another run"):
        repo.gc.run()
    assert all(repo._core.stores.trees.blobs.exists(key) for key in keys)


def test_lists_that_cannot_be_read_delete_nothing(repo: Repository) -> None:
    blobs = repo._core.stores.trees.blobs
    record, keys = condemned(repo)
    blobs.put(record.file, b"[{]")
    with pytest.raises(Corrupted, match="not a list"):
        repo.gc.run()
    assert all(blobs.exists(key) for key in keys)


@pytest.mark.parametrize("damage", [b"PAR1", b""])
def test_a_part_that_cannot_be_read_deletes_nothing_and_is_named(repo: Repository, damage: bytes) -> None:
    stores = repo._core.stores
    record, keys = condemned(repo)
    part = promises.condemned_parts(stores, record)[1]
    stores.trees.blobs.put(part.file, damage)
    for call in (repo.gc.run, lambda: promises.announce_links(stores, [keys[15]])):
        with pytest.raises(Corrupted, match=part.file):
            call()
    assert all(stores.trees.blobs.exists(key) for key in keys)


def test_an_attempt_stops_in_the_middle(repo: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request is sent only after a look at the clock and at the marker."""
    blobs = repo._core.stores.trees.blobs
    monkeypatch.setattr(judging, "DELETE_FILES", 2)
    keys = sorted(f"data/{new_id()}/{new_id()}" for _ in range(6))
    for key in keys:
        blobs.put(key, b"garbage")
    run = new_id()
    part = write_part(blobs, f"{promises.GC_FOLDER}/{run}/", pa.array(keys), pa.array([7] * 6))
    marker = read_marker(blobs)
    assert marker is not None
    delete = blobs.delete_many

    def overtaken(some: list[str]) -> None:
        delete(some)
        renew(repo._core.stores, repo._core.stores.repository_id, "nyc", marker.lake)

    monkeypatch.setattr(blobs, "delete_many", overtaken)
    assert not delete_listed(blobs, Round(run, marker.stamp, time.time_ns() // 1000 + 60_000_000), part)
    assert [blobs.exists(key) for key in keys] == [False, False, True, True, True, True]


def test_what_a_run_lists_is_not_unknown(repo: Repository) -> None:
    condemned(repo)
    assert repo.gc.plan().unknown == 0


def test_only_lists_in_parts_need_a_newer_format(repo: Repository) -> None:
    record, _ = condemned(repo)
    raw = repo._core.stores.kv.get(repo._core.stores.records, promises.CONDEMNED + record.run.encode())
    assert raw is not None
    assert version_of(raw) == 9
    assert version_of(encode(msgspec.structs.replace(record, in_parts=False))) == 5


def test_an_attempt_deletes_nothing_after_its_round(repo: Repository) -> None:
    blobs = repo._core.stores.trees.blobs
    key = f"data/{new_id()}/{new_id()}"
    blobs.put(key, b"garbage")
    run = new_id()
    part = write_part(blobs, f"{promises.GC_FOLDER}/{run}/", pa.array([key]), pa.array([7]))
    marker = read_marker(blobs)
    assert marker is not None
    soon = time.time_ns() // 1000 + 60_000_000
    assert not delete_listed(blobs, Round(run, marker.stamp, 1), part)
    assert not delete_listed(blobs, Round(run, new_id(), soon), part)  # another run has begun
    blobs.delete_many([MARKER])
    assert not delete_listed(blobs, Round(run, marker.stamp, soon), part)
    assert blobs.exists(key)
    renew(repo._core.stores, repo._core.stores.repository_id, "nyc", marker.lake)
    renewed = read_marker(blobs)
    assert renewed is not None
    assert delete_listed(blobs, Round(run, renewed.stamp, soon), part)
    assert not blobs.exists(key)


def test_a_round_that_ends_nothing_is_an_error(repo: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    condemned(repo)

    def late(*_: object) -> list[ListPart]:
        return []

    monkeypatch.setattr("strandline.repository.upkeep.judging.SurveyorHere.delete", late)
    with pytest.raises(strandline.errors.StorageError, match="None of 3 lists"):
        repo.gc.run()
