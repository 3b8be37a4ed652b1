"""A repository is copied into another lake, by one process or by Spark's executors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import strandline
from strandline import Lake
from strandline.errors import AlreadyExists, Conflict, Corrupted, InvalidName, NotFound, ObjectMissing, UsageError
from strandline.iceberg import Catalog
from strandline.repository.names.repositories import read_record


@pytest.fixture(params=["here", pytest.param("spark", marks=pytest.mark.spark)])
def session(request: pytest.FixtureRequest) -> Any:
    return None if request.param == "here" else request.getfixturevalue("spark")


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    with strandline.open(tmp_path / "lake", create=True, synced=False) as lake:
        yield lake


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Lake]:
    with strandline.open(tmp_path / "other", create=True, synced=False) as lake:
        yield lake


def filled(lake: Lake, tmp_path: Path) -> None:
    repo = lake.create_repository("nyc")
    main = repo.branch("main")
    main.put_many({f"a/{n:02}": f"object {n}" for n in range(40)})
    main.commit("objects")
    main.delete("a/00")
    main.table("plain").write(pa.table({"k": [1, 2]}), message="a table")
    catalog = Catalog(main)
    catalog.create_namespace("db")
    catalog.create_table("db.t", pa.schema([("k", pa.int64())])).append(pa.table({"k": [7]}))
    repo.create_tag("v1", "main~1")
    dev = main.create_branch("dev")
    dev.put("only staged", b"on dev")
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "x").write_bytes(b"imported")
    main.import_objects(folder, "in/")


def test_a_copy_has_all_of_it(lake: Lake, other: Lake, tmp_path: Path, session: Any) -> None:
    filled(lake, tmp_path)
    made = lake.copy_repository("nyc", other, spark=session)
    held = lake.repository("nyc")
    assert [(ref.name, ref.commit) for ref in made.branches()] == [(ref.name, ref.commit) for ref in held.branches()]
    assert [commit.id for commit in made.ref("main").log()] == [commit.id for commit in held.ref("main").log()]
    main, dev = made.branch("main"), made.branch("dev")
    for info in held.branch("main").list("a/"):
        assert main.read(info.path) == held.branch("main").read(info.path)
    assert dev.read("only staged") == b"on dev"
    assert main.read("in/x") == b"imported"
    assert main.table("plain").to_arrow().num_rows == 2
    assert Catalog(main).load_table("db.t").scan().to_arrow().to_pylist() == [{"k": 7}]
    assert str(tmp_path / "other") in Catalog(main).load_table("db.t").metadata_location
    assert made.fsck(content=True).is_sound
    lake.delete_repository("nyc")
    assert main.read("a/07") == b"object 7"
    main.put("new", b"x")
    main.commit("it lives on")


def test_a_copy_that_died_is_gone_on_with(
    lake: Lake, other: Lake, tmp_path: Path, session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(lake, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("strandline.backup.load.read_record", Dying(2))  # after the refs
        with pytest.raises(KeyboardInterrupt):
            lake.copy_repository("nyc", other, spark=session)
    assert [record.name for record in other.repositories()] == []
    place = next((tmp_path / "other" / "data").iterdir())
    before = {path: path.stat().st_mtime_ns for path in (place / "data").rglob("*") if path.is_file()}
    assert before
    repo = lake.repository("nyc")  # meanwhile work goes on
    repo.branch("main").put("later", b"x")
    repo.branch("main").commit("later")
    repo.delete_branch("dev")
    repo.create_tag("v2", "main")
    made = lake.copy_repository("nyc", other, spark=session)
    assert made.branch("main").read("later") == b"x"
    assert [ref.name for ref in made.branches()] == ["main"]
    assert sorted(ref.name for ref in made.tags()) == ["v1", "v2"]
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert made.fsck(content=True).is_sound


class Dying:
    """Reads the record of a repository, as often as it may."""

    def __init__(self, times: int) -> None:
        self._left = times

    def __call__(self, *arguments: Any) -> Any:
        self._left -= 1
        if self._left < 0:
            raise KeyboardInterrupt
        return read_record(*arguments)


def test_a_copy_gets_its_name_when_all_of_it_is_there(
    lake: Lake, other: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(lake, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("strandline.iceberg.upkeep.relocate_in", dies)
        with pytest.raises(KeyboardInterrupt):
            lake.copy_repository("nyc", other)
    assert list(other.repositories()) == []
    with monkeypatch.context() as patch:
        patch.setattr("strandline.lake._refuse_damaged", dies)
        with pytest.raises(KeyboardInterrupt):
            lake.copy_repository("nyc", other)
    other.repository("nyc").branch("main").put("mine", b"somebody uses it")
    made = lake.copy_repository("nyc", other)  # goes on with what it died in
    assert made.branch("main").read("mine") == b"somebody uses it"
    assert str(tmp_path / "other") in Catalog(made.branch("main")).load_table("db.t").metadata_location
    with pytest.raises(AlreadyExists):
        lake.copy_repository("nyc", other)


def dies(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_copy_meets_a_restore_that_was_interrupted(
    lake: Lake, other: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(lake, tmp_path)
    lake.backup(tmp_path / "saved")
    with monkeypatch.context() as patch:
        patch.setattr("strandline.backup.load._ref", dies)
        with pytest.raises(KeyboardInterrupt):
            other.restore(tmp_path / "saved")
    before = sorted((tmp_path / "other").rglob("*"))
    with pytest.raises(Conflict, match="is being restored as 'nyc'"):
        lake.copy_repository("nyc", other)
    assert sorted((tmp_path / "other").rglob("*")) == before
    (made,) = other.restore(tmp_path / "saved")
    assert made.fsck(content=True).is_sound


def test_a_copy_that_was_deleted_is_made_again(lake: Lake, other: Lake, tmp_path: Path) -> None:
    filled(lake, tmp_path)
    lake.copy_repository("nyc", other)
    other.delete_repository("nyc")
    made = lake.copy_repository("nyc", other)
    assert made.branch("main").read("a/07") == b"object 7"


def test_of_two_copies_the_first_says_that_it_was_overtaken(
    lake: Lake, other: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from strandline.backup import load

    filled(lake, tmp_path)
    write = load._ref
    done: list[str] = []

    def overtaken(*arguments: Any) -> None:
        if not done:
            done.append("begun")
            lake.copy_repository("nyc", other, name="second")
        write(*arguments)

    monkeypatch.setattr(load, "_ref", overtaken)
    with pytest.raises(Conflict, match="goes on instead"):
        lake.copy_repository("nyc", other, name="first")
    assert [record.name for record in other.repositories()] == ["second"]
    assert other.repository("second").fsck(content=True).is_sound


def test_damage_at_the_source_is_said(lake: Lake, other: Lake, tmp_path: Path, session: Any) -> None:
    filled(lake, tmp_path)
    repo = lake.repository("nyc")
    blobs = repo._core.stores.trees.blobs
    address = repo.branch("main").stat("a/07").physical_address
    blobs.put(address, b"cut")
    with pytest.raises(Corrupted, match="has 3 bytes instead of 8"):
        lake.copy_repository("nyc", other, spark=session)
    blobs.delete_many([address])
    with pytest.raises(ObjectMissing, match="nothing at"):
        lake.copy_repository("nyc", other, spark=session)
    assert list(other.repositories()) == []


def test_what_cannot_be_copied_is_refused(lake: Lake, other: Lake, tmp_path: Path) -> None:
    filled(lake, tmp_path)
    with pytest.raises(AlreadyExists, match="This repository is in this lake"):
        lake.copy_repository("nyc", lake, name="again")
    with pytest.raises(NotFound):
        lake.copy_repository("none", other)
    with pytest.raises(InvalidName):
        lake.copy_repository("nyc", other, name="No Name")
    with pytest.raises(UsageError, match="not a Spark session"):
        lake.copy_repository("nyc", other, spark="no")  # type: ignore[arg-type]
    other.create_repository("nyc")
    with pytest.raises(AlreadyExists, match="There is a repository"):
        lake.copy_repository("nyc", other)
    assert lake.copy_repository("nyc", other, name="copied").name == "copied"


@pytest.mark.spark
def test_a_backup_by_executors_is_that_of_one_process(lake: Lake, other: Lake, tmp_path: Path, spark: Any) -> None:
    filled(lake, tmp_path)
    here, there = (lake.backup(tmp_path / name, spark=one) for name, one in (("here", None), ("there", spark)))
    counts = [[(one.files, one.bytes, one.commits) for one in saved.repositories] for saved in (here, there)]
    assert counts[0] == counts[1]
    (made,) = other.restore(tmp_path / "there")
    assert made.branch("main").read("a/07") == b"object 7"
