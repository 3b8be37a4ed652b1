"""Backups: made while the lake is in use, brought back into other stores with equal commit ids."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import msgspec
import pytest

import strandline
from strandline.backup.layout import MANIFEST
from strandline.blob.local import LocalBlobStore
from strandline.errors import (
    AlreadyExists,
    Corrupted,
    NewerFormat,
    NotFound,
    ObjectMissing,
    StrandlineError,
    UsageError,
)
from strandline.lake import Lake
from strandline.repository.branch import Branch
from strandline.repository.refs.ref import Ref
from strandline.repository.repository import Repository


def contents(ref: Ref) -> dict[str, bytes]:
    return {info.path: ref.read(info.path) for info in ref.list()}


def everything(repo: Repository) -> object:
    """All that a user can see of a repository."""
    branches = {
        ref.name: (
            ref.commit,
            contents(repo.branch(ref.name)),
            [(change.kind, change.path) for change in repo.branch(ref.name).uncommitted()],
            [(move.verb, move.after) for move in repo.branch(ref.name).reflog()],
        )
        for ref in repo.branches()
    }
    tags = {ref.name: contents(repo.ref(ref.name)) for ref in repo.tags()}
    history = [(c.id, c.message, c.tree_id, c.metadata, contents(repo.ref(c.id))) for c in repo.branch("main").log()]
    return branches, tags, history, repo.protections


@pytest.fixture
def filled(repo: Repository, main: Branch) -> Repository:
    main.put_many({f"a/{i:03d}": f"{i}" for i in range(60)})
    main.commit("base", metadata={"job": "1"})
    for n in range(20):  # more moves than the record keeps
        main.put("n", f"{n}")
        main.commit(f"{n}")
    work = main.create_branch("work")
    work.delete("a/001")
    work.commit("on work")
    main.merge("work")
    repo.create_tag("v1", "main~3")
    main.put("committed by nobody", "x")
    main.hard_reset("main~1", force=True)
    main.put("staged", "x", metadata={"k": "ü"})
    main.delete("a/000")
    main.compact()
    main.put("staged too", "y")
    main.rename("a/002", "renamed")
    repo.protect("release-*")
    return repo


def test_a_backup_comes_back_in_other_stores(filled: Repository, lake: Lake, tmp_path: Path, postgres_url: str) -> None:
    manifest = lake.backup(tmp_path / "backup")
    (saved,) = manifest.repositories
    assert saved.branches[0].head == filled.branch("main").commit_id
    with strandline.open(kv=postgres_url, blob="memory://restored", tenant="restored", create=True) as other:
        (restored,) = other.restore(tmp_path / "backup")
        assert everything(restored) == everything(filled)
        main = restored.branch("main")
        main.commit("goes on")
        assert restored.fsck(content=True).is_sound


def test_metadata_alone_comes_back_to_bytes_that_are_still_there(
    filled: Repository, lake: Lake, tmp_path: Path
) -> None:
    before = everything(filled)
    lake.backup(tmp_path / "backup", data=False)
    copied = {path for path in (tmp_path / "backup").rglob("*") if "/files/data/" in str(path)}
    assert not copied
    with strandline.open(kv="memory://lost", blob=str(tmp_path / "elsewhere"), create=True) as other:
        (restored,) = other.restore(tmp_path / "backup")
        assert everything(restored) == before


def test_a_second_backup_copies_only_what_is_new(filled: Repository, lake: Lake, tmp_path: Path) -> None:
    lake.backup(tmp_path / "backup")
    filled.branch("main").put("new", "new")
    filled.branch("main").commit("new")
    steps: list[tuple[int, int | None]] = []
    lake.backup(tmp_path / "backup", progress=lambda doing, done, total: steps.append((done, total)))
    assert 3 <= len(steps) <= 6  # the object, a range, a metarange or two
    assert steps[-1][0] == steps[-1][1]
    with strandline.open("memory://", create=True) as other:
        (restored,) = other.restore(tmp_path / "backup")
        assert everything(restored) == everything(filled)


def test_what_only_an_old_reflog_entry_leads_to_is_saved(
    repo: Repository, main: Branch, lake: Lake, tmp_path: Path
) -> None:
    base = main.commit_id
    main.put("lost", "1")
    lost = main.commit("lost")
    main.hard_reset(base)
    for n in range(30):
        main.put("n", f"{n}")
        main.commit(f"{n}")
    lake.backup(tmp_path / "backup")
    with strandline.open("memory://", create=True) as other:
        (restored,) = other.restore(tmp_path / "backup")
        assert restored.ref(lost.id).read("lost") == b"1"


def test_a_backup_of_one_repository_leaves_the_others_in_the_backup(
    filled: Repository, lake: Lake, tmp_path: Path
) -> None:
    lake.create_repository("second").branch("main").put("x", "y")
    lake.backup(tmp_path / "backup")
    lake.backup(tmp_path / "backup", ["nyc"])
    with strandline.open("memory://", create=True) as other:
        assert sorted(one.name for one in other.restore(tmp_path / "backup")) == ["nyc", "second"]
        with pytest.raises(AlreadyExists, match="another lake"):
            other.backup(tmp_path / "backup")


def test_a_restore_never_writes_over_what_another_one_brought_back(
    filled: Repository, lake: Lake, tmp_path: Path
) -> None:
    lake.backup(tmp_path / "backup")
    with strandline.open("memory://", create=True) as other:
        set_if = other._kv.set_if
        done: list[int] = []

        def later(partition: bytes, key: bytes, *arguments: object) -> None:
            if key == b"nyc" and not done:
                done.append(1)
                (first,) = other.restore(tmp_path / "backup", check=False)
                first.branch("main").commit("goes on")
            set_if(partition, key, *arguments)  # type: ignore[arg-type]

        with pytest.MonkeyPatch.context() as patch, pytest.raises(StrandlineError, match="Somebody else"):
            patch.setattr(other._kv, "set_if", later)
            other.restore(tmp_path / "backup")
        repo = other.repository("nyc")
        assert repo.branch("main").get_commit().message == "goes on"
        assert repo.branch("main").read("staged") == b"x"
    with strandline.open("memory://", create=True) as other:
        other.restore(tmp_path / "backup", name="one", check=False)
        with pytest.raises(AlreadyExists):
            other.restore(tmp_path / "backup", name="two")


def test_an_interrupted_backup_leaves_the_last_one_whole(
    filled: Repository, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.backup(tmp_path / "backup")
    before = everything(filled)
    main = filled.branch("main")
    main.put_many({f"new/{i}": f"{i}" for i in range(10)})
    main.commit("new")
    main.put("staged", "later")
    put, left = LocalBlobStore.put, [3]

    def die(store: LocalBlobStore, key: str, *arguments: object) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        put(store, key, *arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(LocalBlobStore, "put", die)
        lake.backup(tmp_path / "backup")
    with strandline.open("memory://", create=True) as other:
        assert everything(other.restore(tmp_path / "backup")[0]) == before


def test_an_interrupted_restore_goes_on(
    filled: Repository, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.backup(tmp_path / "backup")
    put, left = LocalBlobStore.put, [20]

    def die(store: LocalBlobStore, key: str, *arguments: object) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        put(store, key, *arguments)  # type: ignore[arg-type]

    with strandline.open(tmp_path / "other", create=True) as other:
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(LocalBlobStore, "put", die)
            other.restore(tmp_path / "backup")
        assert list(other.repositories()) == []
        (restored,) = other.restore(tmp_path / "backup")
        assert everything(restored) == everything(filled)


def test_a_backup_of_a_lake_in_use_is_one_instant_of_each_branch(lake: Lake, main: Branch, tmp_path: Path) -> None:
    """A writer keeps two objects equal, a committer commits them: no backup may have them different in a commit."""
    main.put_many({"left": "0", "right": "0"})
    main.commit("0")
    stop = threading.Event()
    failed: list[BaseException] = []

    def work() -> None:
        try:
            for n in range(1, 100_000):
                if stop.is_set():
                    return
                main.put_many({"left": f"{n}", "right": f"{n}"})
                main.commit(f"{n}")
                main.put_many({"left": f"{n}s", "right": f"{n}s"})
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for turn in range(5):
            lake.backup(tmp_path / "backup")
            with strandline.open("memory://", create=True) as other:
                (restored,) = other.restore(tmp_path / "backup")
                for commit in restored.branch("main").log(amount=20):
                    found = contents(restored.ref(commit.id))
                    assert found.get("left") == found.get("right")
                staged = contents(restored.branch("main"))
                assert staged["left"] == staged["right"], turn
    finally:
        stop.set()
        thread.join()
    assert not failed


def test_a_deleted_repository_is_brought_back_into_its_own_lake(filled: Repository, lake: Lake, tmp_path: Path) -> None:
    before = everything(filled)
    lake.backup(tmp_path / "backup")
    with pytest.raises(AlreadyExists, match="is in this lake, as"):
        lake.restore(tmp_path / "backup")
    with pytest.raises(AlreadyExists, match="is in this lake, as 'nyc'"):
        lake.restore(tmp_path / "backup", name="again")
    lake.delete_repository("nyc")
    (restored,) = lake.restore(tmp_path / "backup", "nyc")
    assert everything(restored) == before


def test_a_restore_under_another_name(filled: Repository, lake: Lake, tmp_path: Path) -> None:
    lake.create_repository("second").branch("main").put("x", "y")
    lake.backup(tmp_path / "backup")
    with strandline.open("memory://", create=True) as other:
        with pytest.raises(UsageError, match="cannot have one name"):
            other.restore(tmp_path / "backup", name="one")
        (restored,) = other.restore(tmp_path / "backup", "nyc", name="other")
        assert restored.name == "other"
        assert [record.name for record in other.repositories()] == ["other"]
        assert everything(restored) == everything(filled)


def test_imported_objects_stay_references(main: Branch, lake: Lake, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "x").write_bytes(b"elsewhere")
    main.import_objects(tmp_path / "in", "in/")
    lake.backup(tmp_path / "backup")
    with strandline.open("memory://", create=True) as other:
        assert other.restore(tmp_path / "backup")[0].branch("main").read("in/x") == b"elsewhere"


def test_what_is_wrong_with_a_backup_is_said(filled: Repository, lake: Lake, tmp_path: Path) -> None:
    place = tmp_path / "backup"
    with pytest.raises(NotFound, match="no complete backup"):
        lake.restore(place)
    lake.backup(place)
    with strandline.open("memory://", create=True) as other:
        with pytest.raises(NotFound, match="It holds nyc"):
            other.restore(place, "nope")
    for damage, expected in (("records", Corrupted), ("refs", Corrupted), ("staged", Corrupted), ("ranges", Corrupted)):
        copy = tmp_path / damage
        shutil.copytree(place, copy)
        for path in copy.rglob("*"):
            if path.is_file() and damage in str(path.relative_to(copy)) and "metaranges" not in str(path):
                path.unlink()
        with strandline.open("memory://", create=True) as other, pytest.raises(expected):
            other.restore(copy)
    manifest = msgspec.json.decode((place / MANIFEST).read_bytes())
    (place / MANIFEST).write_bytes(msgspec.json.encode({**manifest, "format": 99}))
    with pytest.raises(NewerFormat):
        lake.restore(place)
    (place / MANIFEST).write_bytes(b"{")
    with pytest.raises(Corrupted):
        lake.restore(place)


def test_a_backup_of_a_damaged_lake_says_what_is_missing(filled: Repository, lake: Lake, tmp_path: Path) -> None:
    main = filled.branch("main")
    filled._core.resolver.namespace.delete_many([main.stat("a/010").physical_address])
    with pytest.raises(ObjectMissing, match="fsck"):
        lake.backup(tmp_path / "backup")
    with pytest.raises(StrandlineError, match="no complete backup"):
        lake.restore(tmp_path / "backup")


def test_transactions_are_recognised_after_a_restore(tmp_path: Path) -> None:
    """Tokens, positions and names that were forgotten come along; expired commits stay expired."""
    with strandline.open(tmp_path / "one", create=True, synced=False) as lake:
        main = lake.repository("nyc", create=True).branch("main")
        with main.transaction("stream", token="7", position="seven") as tx:
            tx.put("a", b"1")
        lake.backup(tmp_path / "saved")
    with strandline.open(tmp_path / "two", create=True, synced=False) as other:
        other.restore(tmp_path / "saved")
        main = other.repository("nyc").branch("main")
        assert main.writers["stream"].position == "seven"
        with main.transaction("stream", token="7") as again:
            again.put("a", b"2")
        assert again.result.is_repeat
        assert again.result.commit == tx.result.commit
        with main.transaction("stream", token="8") as later:
            later.put("a", b"2")
        assert later.id > tx.id + 1_000
        assert main.read("a") == b"2"


def test_locks_stay_with_the_lake_that_they_are_of(tmp_path: Path) -> None:
    with (
        strandline.open(tmp_path / "lake", create=True) as lake,
        strandline.open(tmp_path / "other", create=True) as other,
    ):
        repo = lake.repository("nyc", create=True)
        repo.lock_owners.register("ops", "repairs")
        main = repo.branch("main")
        main.put("t/1", b"1")
        main.commit("content")
        main.locks.take("t/", owner="ops", mode="quarantine")
        with repo.lock_repository(owner="ops"):
            lake.backup(tmp_path / "backup")
        other.restore(tmp_path / "backup")
        found = other.repository("nyc")
        assert found.current_lock is None
        assert [one.name for one in found.lock_owners] == ["ops"]
        assert not list(found.branch("main").locks)
        assert found.branch("main").read("t/1") == b"1"
        found.branch("main").put("t/1", b"2")
        assert len(list(main.locks)) == 1
