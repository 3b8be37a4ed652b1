"""The collector deletes nothing that is not this repository's: not another lake's, not a user's, not behind a link."""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import strandline
from strandline.blob.local import INCOMING, LocalBlobStore
from strandline.core import namespace as namespaces
from strandline.core import promises
from strandline.core.namespace import MARKER, READERS, read_marker
from strandline.core.promises import Condemned
from strandline.envelope import encode
from strandline.errors import AlreadyExists, Contention, LakeNotFound, NotAllowed, ObjectMissing, UsageError
from strandline.ids import new_id
from strandline.lake import Lake
from strandline.opening import LAKES
from strandline.repository.repository import Repository
from strandline.repository.upkeep.garbage import Collector


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    with strandline.open(tmp_path / "lake", create=True, synced=False) as lake:
        yield lake


@pytest.fixture
def repo(lake: Lake) -> Repository:
    repo = lake.repository("nyc", create=True)
    repo.branch("main").put("kept", b"kept")
    repo.branch("main").commit("kept")
    return repo


def namespace(repo: Repository) -> Path:
    path = repo._core.stores.trees.blobs.own.local_path(MARKER)
    assert path is not None
    return Path(path).parents[1]


def with_garbage(repo: Repository) -> str:
    """An object that nothing refers to any more; its key."""
    main = repo.branch("main")
    address = main.put("gone", b"gone").physical_address
    main.discard("gone")
    return address


def age(folder: Path, days: float = 30.0) -> None:
    then = time.time() - days * 86_400
    for path in folder.rglob("*"):
        os.utime(path, (then, then), follow_symlinks=False)


def is_whole(repo: Repository) -> bool:
    return repo.fsck(content=True).is_sound and repo.branch("main").read("kept") == b"kept"


# --- whose the namespace is


def test_a_lake_restored_without_bytes_cannot_destroy_the_original(
    lake: Lake, repo: Repository, tmp_path: Path
) -> None:
    lake.backup(tmp_path / "saved", data=False)
    with strandline.open(tmp_path / "other", create=True, synced=False) as other:
        (copy,) = other.restore(tmp_path / "saved")
        assert is_whole(copy)  # it reads the bytes where they are
        copy.branch("main").put("new", b"in its own place")
        later = repo.branch("main").put("later", b"only the original refers to it").physical_address
        repo.branch("main").commit("later")
        age(namespace(repo))
        copy.gc.run(grace_days=0)
        copy.gc.run(grace_days=0)
        assert (namespace(repo) / later).exists()
        assert is_whole(repo)
        assert is_whole(copy)
        # and the other way round: the original does not collect as long as it is read
        with pytest.raises(NotAllowed, match="read by another lake") as refused:
            repo.gc.run(grace_days=0)
        assert "despite_readers" in refused.value.next
        assert {path.stem for path in (namespace(repo) / READERS).iterdir()} == {other.id}
        repo.gc.plan(grace_days=0, despite_readers=True)
        other.delete_repository("nyc")
        repo.gc.run(grace_days=0)
        assert is_whole(repo)


def test_a_restore_takes_a_namespace_over_only_when_told(lake: Lake, repo: Repository, tmp_path: Path) -> None:
    lake.backup(tmp_path / "saved", data=False)
    place, garbage = namespace(repo), with_garbage(repo)
    lake.close()
    os.unlink(tmp_path / "lake" / "metadata.db")  # the original is gone
    with strandline.open(tmp_path / "other", create=True, synced=False) as other:
        (copy,) = other.restore(tmp_path / "saved", take_over=True)
        assert namespace(copy) == place
        assert is_whole(copy)
        marker = read_marker(copy._core.stores.trees.blobs)
        assert marker is not None
        assert marker.lake == other.id
        age(place)
        copy.gc.run()
        assert not (place / garbage).exists()
        assert is_whole(copy)


def test_the_lake_that_was_taken_over_from_collects_no_more(lake: Lake, repo: Repository, tmp_path: Path) -> None:
    lake.backup(tmp_path / "saved", data=False)
    with strandline.open(tmp_path / "other", create=True, synced=False) as other:
        other.restore(tmp_path / "saved", take_over=True)
        with pytest.raises(NotAllowed, match="of lake"):
            repo.gc.run()
        assert is_whole(repo)


def test_a_folder_that_was_moved_is_collected(lake: Lake, repo: Repository, tmp_path: Path) -> None:
    garbage = with_garbage(repo)
    lake.close()
    shutil.move(tmp_path / "lake", tmp_path / "moved")
    age(tmp_path / "moved")
    with strandline.open(tmp_path / "moved") as moved:
        repo = moved.repository("nyc")
        assert repo.gc.run().files >= 1
        assert not (namespace(repo) / garbage).exists()
        assert is_whole(repo)


def test_both_copies_of_a_folder_collect_their_own(lake: Lake, repo: Repository, tmp_path: Path) -> None:
    garbage = with_garbage(repo)
    lake.close()
    shutil.copytree(tmp_path / "lake", tmp_path / "copy")
    for name in ("lake", "copy"):
        age(tmp_path / name)
        with strandline.open(tmp_path / name) as one:
            held = one.repository("nyc")
            held.gc.run()
            held.gc.run()
            assert not (namespace(held) / garbage).exists()
            assert is_whole(held)


@pytest.mark.parametrize("first", ["original", "copy"])
def test_a_copied_key_value_store_on_a_shared_namespace_is_found_out(first: str, tmp_path: Path) -> None:
    def opened(name: str) -> Lake:
        return strandline.open(
            kv=f"sqlite://{tmp_path}/{name}.db", blob=str(tmp_path / "shared"), create=True, synced=False
        )

    with opened("original") as lake:
        repo = lake.repository("nyc", create=True)
        repo.branch("main").put("kept", b"kept")
        repo.branch("main").commit("kept")
    source, target = sqlite3.connect(tmp_path / "original.db"), sqlite3.connect(tmp_path / "copy.db")
    source.backup(target)
    source.close()
    target.close()
    second = "copy" if first == "original" else "original"
    with opened(first) as one, opened(second) as two:
        one.repository("nyc").gc.run(grace_days=0)
        one.repository("nyc").gc.run(grace_days=0)
        two.repository("nyc").branch("main").put("new", b"x")
        with pytest.raises(NotAllowed, match="marked as repository 'nyc' of lake") as refused:
            two.repository("nyc").gc.run(grace_days=0)
        assert "copied" in refused.value.next
        one.repository("nyc").gc.run(grace_days=0)  # the one that went on may go on


def test_a_copy_that_takes_over_in_the_middle_of_a_run_stops_it(repo: Repository) -> None:
    keys = []
    for _ in range(3):
        key = f"data/{repo.branch('main').branch_id}/{new_id()}"
        repo._core.resolver.namespace.put(key, b"x")
        keys.append(key)
    age(namespace(repo))
    collector = Collector(repo._core, repo.gc.retention, grace_days=0)
    other = Collector(repo._core, repo.gc.retention, grace_days=0)

    def progress(doing: str, *_: object) -> None:
        if doing == "deleting":
            other._owner.begin()

    collector._progress = progress
    with pytest.raises(Contention, match="Another run has begun"):
        collector.run()
    assert all((namespace(repo) / key).exists() for key in keys)
    assert is_whole(repo)


def test_two_tenants_do_not_share_a_namespace(tmp_path: Path) -> None:
    where: dict[str, Any] = {"kv": f"sqlite://{tmp_path}/kv.db", "blob": str(tmp_path / "blob")}
    url = str(tmp_path / "one place")
    with (
        strandline.open(**where, tenant="one", create=True) as one,
        strandline.open(**where, tenant="two", create=True) as two,
    ):
        one.create_repository("nyc", namespace=url)
        with pytest.raises(AlreadyExists):
            two.create_repository("nyc", namespace=url)
        assert one.repository("nyc").gc.run().unknown == 0


def test_a_new_lake_over_old_bytes_collects_nothing_of_them(lake: Lake, repo: Repository, tmp_path: Path) -> None:
    """The key-value store is lost; another one is made over the same objects."""
    place = namespace(repo)
    lake.close()
    where: dict[str, Any] = {"kv": f"sqlite://{tmp_path}/new.db", "blob": str(tmp_path / "lake" / "data")}
    with pytest.raises(LakeNotFound, match="metadata of a lake are gone"):
        strandline.open(**where, create=True)
    with strandline.open(**where, create=True, new=True, synced=False) as new:
        other = new.repository("nyc", create=True)
        age(tmp_path / "lake")
        other.gc.run()
        assert list(place.rglob("data/*/*"))


@pytest.mark.parametrize("body", [None, b"", b'{"format":2', b"[]"], ids=["missing", "empty", "cut", "none"])
def test_a_marker_that_is_missing_or_cut_stops_the_collector(lake: Lake, repo: Repository, body: bytes | None) -> None:
    marker = namespace(repo) / MARKER
    if body is None:
        marker.unlink()
    else:
        marker.write_bytes(body)
    for collect in (repo.gc.run, repo.gc.plan):
        with pytest.raises(NotAllowed, match="missing, or cut") as refused:
            collect()
        assert "--repair" in refused.value.next
    lake.upgrade()
    with pytest.raises(NotAllowed):
        repo.gc.run()
    (mended,) = lake.repair(dry_run=True)
    assert "written anew" in mended.fields[0]
    with pytest.raises(NotAllowed):
        repo.gc.run()
    lake.repair()
    repo.gc.run()
    assert is_whole(repo)


def test_a_marker_of_another_lake_is_not_adopted(lake: Lake, repo: Repository) -> None:
    marker = namespace(repo) / MARKER
    held = msgspec.json.decode(marker.read_bytes())
    marker.write_bytes(msgspec.json.encode({**held, "lake": "somebody else"}))
    lake.upgrade()
    lake.repair()
    with pytest.raises(NotAllowed, match="of lake somebody else"):
        repo.gc.run()


# --- what is in it


FOREIGN = (
    "data/readme.txt",
    "data/mine/keep.csv",
    "data/sl_branch=mine/part.parquet",
    "data/sl_branch=0123456789abcdef0123/notes.txt",
    "data/0123456789abcdef0123/not-an-id.csv",
    "_strandline/ranges/foo.parquet",
    "_strandline/metaranges/foo.parquet",
    "_strandline/txn/notes",
    "_strandline/gc/notes",
    "elsewhere/x.parquet",
    "shards/mine",
)


def test_what_others_put_there_stays(repo: Repository) -> None:
    place = namespace(repo)
    for key in FOREIGN:
        (place / key).parent.mkdir(parents=True, exist_ok=True)
        (place / key).write_text("mine")
    garbage = with_garbage(repo)
    age(place)
    found = repo.gc.plan()
    assert found.unknown == len(FOREIGN) - 1  # what lies with the shards is their own collector's to judge
    repo.gc.run()
    repo.gc.run()
    assert [key for key in FOREIGN if not (place / key).exists()] == []
    assert not (place / garbage).exists()


def test_what_strandline_wrote_goes_whatever_branches_are_on_record(repo: Repository) -> None:
    place = namespace(repo)
    gone = new_id()
    keys = [
        f"data/{gone}/{new_id()}.csv.gz",
        f"data/{gone}/{new_id()}",
        f"data/sl_branch={gone}/sl_write={new_id()}/month=1/part-0.parquet",
        f"data/sl_branch={gone}.txn-{7:016d}/sl_write={new_id()}/part-0.parquet",
        f"data/sl_branch={gone}.txn-{7:016d}/{new_id()}.json",
        f"_strandline/ranges/{'0' * 40}-{new_id()}.parquet",
        f"_strandline/metaranges/{'0' * 40}-{new_id()}.parquet",
        f"_strandline/txn/{gone}/{7:016d}/manifest-{'0' * 20}.parquet",
        f"_strandline/gc/{new_id()}/condemned.parquet",  # of a run that died before it was on record
        f"_strandline/gc/{new_id()}/started",
    ]
    for key in keys:
        repo._core.resolver.namespace.put(key, b"x")
    age(place)
    found = repo.gc.plan()
    assert found.orphans == len(keys)
    assert {one.prefix for one in found.places} >= {f"data/{gone}/", "_strandline/ranges/", "_strandline/gc/"}
    assert {one.why for one in found.places} == {"nothing refers to it"}
    assert sum(one.files for one in found.places) == found.files
    repo.gc.run()
    assert [key for key in keys if (place / key).exists()] == []
    assert is_whole(repo)


def test_half_written_files_of_dead_puts_go_after_the_grace(repo: Repository) -> None:
    incoming = namespace(repo) / ".strandline-incoming"
    old, young = sorted((new_id(), new_id()))
    (incoming / old).write_bytes(b"x")
    age(incoming)
    (incoming / young).write_bytes(b"x")
    assert repo.gc.plan().half_written == 1
    assert sorted(os.listdir(incoming)) == [old, young]
    repo.gc.run()
    assert os.listdir(incoming) == [young]


def test_nothing_behind_a_link_is_deleted(repo: Repository, tmp_path: Path) -> None:
    place, branch = namespace(repo), repo.branch("main").branch_id
    theirs = tmp_path / "somebody's folder"
    theirs.mkdir()
    (theirs / new_id()).write_text("theirs")
    (theirs / "note.txt").write_text("theirs")
    single = tmp_path / "file"
    single.write_text("theirs")
    (place / "data" / new_id()).symlink_to(theirs)  # a folder
    (place / "data" / branch / new_id()).symlink_to(single)  # a file
    (place / "data" / "loop").symlink_to(place / "data")  # and around in a circle
    age(place)
    age(theirs)
    os.utime(single, (0, 0))
    found = repo.gc.plan()
    assert found.linked == 2
    repo.gc.run()
    repo.gc.run()
    assert single.read_text() == "theirs"
    assert sorted(path.read_text() for path in theirs.iterdir()) == ["theirs", "theirs"]
    assert repo.fsck().orphans >= 2
    assert is_whole(repo)


def test_a_namespace_that_is_itself_behind_a_link_is_collected(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "lake").symlink_to(tmp_path / "disk")
    with strandline.open(tmp_path / "lake", create=True, synced=False) as lake:
        repo = lake.repository("nyc", create=True)
        garbage = with_garbage(repo)
        age(namespace(repo))
        repo.gc.run()
        assert not (namespace(repo) / garbage).exists()


# --- imports


def test_nothing_is_imported_from_a_namespace(lake: Lake, repo: Repository, tmp_path: Path) -> None:
    """Its collector knows nothing of a reference by URL: the bytes of a committed object would go."""
    other = lake.repository("other", create=True).branch("main")
    place = namespace(repo)
    (tmp_path / "link").symlink_to(place / "data")
    for source in (
        place,
        place / "data",
        place / "data" / repo.branch("main").branch_id,
        place.parent,
        tmp_path / "link",
    ):
        for branch in (repo.branch("main"), other):
            with pytest.raises(UsageError, match="belongs to a repository"):
                branch.import_objects(source, "again")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a.csv").write_text("x")
    assert other.import_objects(outside, "ok").objects == 1


# --- what a review found


def test_a_link_to_bytes_that_a_run_has_just_deleted_is_refused(
    repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run decides before the link is announced, and ends between the linker's two reads."""
    stores = repo._core.stores
    address = with_garbage(repo)
    record = Condemned(new_id(), count=1, bytes=4, at=stores.clock.now_us())
    raw = promises.write_condemned(stores, record, pa.array([address], pa.string()))
    read = promises.condemned_among

    def ends_first(*arguments: Any) -> Any:
        monkeypatch.setattr(promises, "condemned_among", read)
        decided = promises.decide(stores, raw, record)
        assert decided is not None
        stores.trees.blobs.own.delete_many([address])
        promises.end_condemned(stores, decided[1])
        return read(*arguments)

    monkeypatch.setattr(promises, "linked", lambda stores: pa.array([], pa.string()))  # it was read before
    monkeypatch.setattr(promises, "condemned_among", ends_first)
    with pytest.raises(ObjectMissing, match="collected"):
        promises.announce_links(stores, [address])


def test_what_an_earlier_version_condemned_is_judged_anew(repo: Repository) -> None:
    """Version 4 condemned whatever nothing referred to; its run died, and this version goes on with it."""
    stores = repo._core.stores
    address = with_garbage(repo)
    (namespace(repo) / "data/readme.txt").write_bytes(b"somebody's")
    record = Condemned(new_id(), count=2, bytes=14, at=stores.clock.now_us())
    raw = promises.write_condemned(stores, record, pa.array(["data/readme.txt", address], pa.string()))
    decided = promises.decide(stores, raw, record)
    assert decided is not None
    assert promises.condemned_keys(stores, decided[1]).to_pylist() == [address]


def test_a_plan_beside_a_run_that_begins_is_not_taken_for_a_copy(
    repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = repo._core
    read = namespaces.read_marker
    begun: list[int] = []

    def another_begins(*arguments: Any) -> Any:
        if not begun:
            begun.append(1)
            namespaces.Ownership(core.stores, core.stores.repository_id, core.name).begin()
        return read(*arguments)

    monkeypatch.setattr(namespaces, "read_marker", another_begins)
    repo.gc.plan()
    assert begun


def test_a_run_that_others_bring_to_an_end_still_knows_the_time(
    repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by the simulator at seed 581 of links: the file that asks for the time went with the run's folder."""
    with_garbage(repo)
    age(namespace(repo))
    collector = Collector(repo._core, repo.gc.retention, grace_days=0.0)
    folder = f"{promises.GC_FOLDER}/{collector._run}/"
    put = LocalBlobStore.put

    def put_then_ended(self: LocalBlobStore, key: str, *arguments: Any) -> None:
        put(self, key, *arguments)
        if key.endswith("/started"):
            self.delete_many(list(self.list_keys(folder)))

    monkeypatch.setattr(LocalBlobStore, "put", put_then_ended)
    assert collector.run().files == 1


def test_an_upgrade_that_died_between_record_and_marker_goes_on(lake: Lake, repo: Repository) -> None:
    core = repo._core
    blobs = core.stores.trees.blobs.own
    marker = namespaces.read_marker(blobs)
    assert marker is not None
    held = namespaces.Namespace(lake=lake.id, stamp=new_id(), before=("",))
    core.stores.kv.set(core.stores.records, namespaces.KEY, encode(held))
    blobs.put(
        MARKER, msgspec.json.encode({"format": 1, "repository_id": core.stores.repository_id, "repository": "nyc"})
    )
    with pytest.raises(NotAllowed):
        repo.gc.run()
    assert lake.upgrade(dry_run=True).written["namespace"] == 1
    lake.upgrade()
    repo.gc.run()
    assert lake.upgrade().written["namespace"] == 0


def test_a_lake_of_an_earlier_version_is_listed_by_its_upgrade(tmp_path: Path) -> None:
    kv, blob = f"sqlite://{tmp_path}/kv.db", str(tmp_path / "objects")
    with strandline.open(kv=kv, blob=blob, create=True) as first:
        first.repository("nyc", create=True)
        shared = first._kv.shared  # type: ignore[attr-defined]
        shared.delete(LAKES, first.id.encode())  # as an earlier version left it
        first.upgrade()
    with strandline.open(kv=kv, blob=blob, tenant="other", create=True) as second:
        assert list(second.repositories()) == []


def test_a_backup_without_bytes_of_a_lake_without_bytes_is_not_restored(
    lake: Lake, repo: Repository, tmp_path: Path
) -> None:
    lake.backup(tmp_path / "saved", data=False)
    with strandline.open(tmp_path / "second", create=True, synced=False) as second:
        second.restore(tmp_path / "saved")
        second.backup(tmp_path / "again", data=False)
    with strandline.open(tmp_path / "third", create=True, synced=False) as third:
        with pytest.raises(UsageError, match="another place"):
            third.restore(tmp_path / "again")
        assert list(third.repositories()) == []


def test_a_link_whose_name_begins_like_the_folder_is_no_circle(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "x").write_bytes(b"1")
    store = LocalBlobStore(tmp_path / "data")
    store.put("own", b"2")
    os.symlink(tmp_path / "d", tmp_path / "data" / "linked")
    assert sorted(store.list_keys()) == ["linked/x", "own"]


def test_half_written_files_are_only_those_of_puts(tmp_path: Path) -> None:
    store = LocalBlobStore(tmp_path / "data")
    folder = tmp_path / "data" / INCOMING
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "notes.txt").write_bytes(b"somebody's")
    (folder / new_id()).write_bytes(b"half")
    assert len(store.half_written(2**62)) == 1
    shutil.rmtree(folder)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / new_id()).write_bytes(b"somebody's")
    os.symlink(tmp_path / "elsewhere", folder)
    assert store.half_written(2**62) == []


def test_a_link_announced_while_a_run_condemns_is_spared(repo: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    """The linker finds nothing condemned yet, so the run has to find its link."""
    stores = repo._core.stores
    address = with_garbage(repo)
    record = Condemned(new_id(), count=1, bytes=4, at=stores.clock.now_us())
    write = promises._write_keys

    def announced(*arguments: Any) -> None:
        monkeypatch.setattr(promises, "_write_keys", write)
        write(*arguments)
        promises.announce_links(stores, [address])

    monkeypatch.setattr(promises, "_write_keys", announced)
    decided = promises.decide(
        stores, promises.write_condemned(stores, record, pa.array([address], pa.string())), record
    )
    assert decided is not None
    assert promises.condemned_keys(stores, decided[1]).to_pylist() == []
