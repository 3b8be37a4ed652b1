"""Bytes are what is on record, or an error: on every way out of a lake, and into it; and places are what they say."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import strandline
from strandline.blob import open_store
from strandline.blob.local import LocalBlobStore
from strandline.errors import Corrupted, LakeNotFound, StrandlineError, UsageError
from strandline.fs import StrandlineFileSystem
from strandline.lake import Lake
from strandline.repository.branch import Branch
from tests.repository.test_fsck import files

READS: dict[str, Callable[[Branch, Path], object]] = {
    "read": lambda main, folder: main.read("a"),
    "read a part": lambda main, folder: main.read("a", 2, 8),
    "open": lambda main, folder: main.open("a").read(),
    "open as text": lambda main, folder: main.open("a", "r").read(),
    "download": lambda main, folder: main.download("a", folder / "a"),
    "export": lambda main, folder: main.export(folder / "out"),
    "backup": lambda main, folder: main._core.reopen[0](*main._core.reopen[1]) and None,
}


def damage(lake: Lake, main: Branch, how: str) -> None:
    place = files(lake, main.stat("a").physical_address)[0]
    place.chmod(0o644)
    body = place.read_bytes()
    place.write_bytes(body[:5] if how == "cut" else body + b"more")


@pytest.mark.parametrize("how", ["cut", "longer"])
@pytest.mark.parametrize("read", [name for name in READS if name != "backup"])
def test_an_object_of_another_size_is_not_served(lake: Lake, main: Branch, tmp_path: Path, read: str, how: str) -> None:
    main.put("a", b"0123456789")
    main.commit("a")
    damage(lake, main, how)
    if (read, how) == ("read a part", "longer"):
        assert main.read("a", 2, 8) == b"234567"  # these bytes are there
        return
    with pytest.raises(Corrupted, match="instead of 10"):
        READS[read](main, tmp_path)
    assert not (tmp_path / "a").exists()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("how", ["cut", "longer"])
def test_a_damaged_object_is_not_backed_up_in_silence(lake: Lake, main: Branch, tmp_path: Path, how: str) -> None:
    main.put("a", b"0123456789")
    main.commit("a")
    damage(lake, main, how)
    with pytest.raises(Corrupted, match="instead of 10") as refused:
        lake.backup(tmp_path / "saved")
    assert "not complete" in refused.value.safe
    filesystem = StrandlineFileSystem(tmp_path / "lake")
    with pytest.raises(OSError, match="instead of 10"):
        filesystem.cat_file("strandline://nyc/main/a")


def test_a_part_that_is_none_is_refused(main: Branch) -> None:
    main.put("a", b"0123456789")
    for start, end in ((-1, None), (0, -1)):
        with pytest.raises(UsageError, match="not a valid part of an object"):
            main.read("a", start, end)
    assert main.read("a", 20) == b""
    assert main.read("a", 8, 20) == b"89"
    assert main.read("a", 5, 2) == b""


def test_a_link_says_the_size_that_there_is(main: Branch) -> None:
    held = main.put("a", b"0123456789")
    with pytest.raises(UsageError, match="has 10 bytes, not 9"):
        main.link("b", held.physical_address, size=9, checksum=held.checksum)
    assert not main.exists("b")


# --- what is not a file of bytes


class Waits(io.RawIOBase):
    """A file that gives five bytes, and then has none yet."""

    def __init__(self) -> None:
        self._parts: list[Any] = [b"12345", None, b"67890", b""]

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> Any:
        return self._parts.pop(0)


def test_a_file_that_has_nothing_yet_is_not_at_its_end(main: Branch) -> None:
    with pytest.raises(UsageError, match="read\\(\\) gave None"):
        main.put("a", Waits())  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="not binary"):
        main.put("a", io.StringIO("text"))  # type: ignore[arg-type]
    assert not main.exists("a")


def test_a_single_path_of_a_log_is_a_path(main: Branch) -> None:
    main.put("ok", b"1")
    made = main.commit("ok")
    main.put("k", b"1")
    main.commit("k")
    assert [commit.id for commit in main.log(paths="ok")] == [made.id]


@pytest.mark.parametrize(
    "call",
    [
        lambda main: main.delete_many("xy"),
        lambda main: main.put_many("xy"),
        lambda main: main.link_many("xy"),
        lambda main: main._core.reopen[0](*main._core.reopen[1]).protect("main", writers="nightly"),
        lambda main: main._core.reopen[0](*main._core.reopen[1]).protect("main", "stage"),
        lambda main: main.locks.end("xy"),
    ],
)
def test_a_text_is_no_list_of_its_letters(main: Branch, call: Callable[[Branch], object]) -> None:
    main.put_many({"x": b"1", "y": b"2"})
    with pytest.raises(UsageError, match="list"):
        call(main)
    assert [info.path for info in main.list()] == ["x", "y"]


# --- exports


@pytest.mark.parametrize("bad", ["../x", "a//b", "./a", "a"])
def test_what_cannot_be_exported_is_found_before_anything_is_written(main: Branch, tmp_path: Path, bad: str) -> None:
    main.put_many({"a/b": b"1", "z": b"2", bad: b"3"})
    with pytest.raises(UsageError) as refused:
        main.export(tmp_path / "out")
    assert "Nothing was written" in refused.value.safe
    assert list(tmp_path.glob("*out*")) == []


def test_an_export_that_fails_in_the_middle_leaves_nothing_and_can_be_repeated(main: Branch, tmp_path: Path) -> None:
    main.put_many({f"{n:03d}": b"x" for n in range(50)})

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        main.export(tmp_path / "out", progress=interrupt)
    assert list(tmp_path.glob("*out*")) == []
    (tmp_path / "out").mkdir()
    assert main.export(tmp_path / "out") == 50
    assert len(list((tmp_path / "out").iterdir())) == 50


@pytest.mark.server
def test_an_export_to_an_object_store_lies_in_the_object_store(
    main: Branch, s3_endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from strandline.blob import open_store

    monkeypatch.chdir(tmp_path)
    main.put_many({f"t/m={n}/x.txt": b"%d" % n for n in range(12)})
    url = f"s3://lake/exported-{tmp_path.name}?endpoint={s3_endpoint}&region=us-east-1"

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        main.export(url, "t/", progress=interrupt)
    assert ".strandline-export" in set(open_store(url).list_keys())
    assert main.export(url, "t/") == 12  # it goes on
    assert sorted(open_store(url).list_keys()) == sorted(f"m={n}/x.txt" for n in range(12))
    assert open_store(url).get("m=7/x.txt") == b"7"
    with pytest.raises(UsageError, match="lies at"):
        main.export(url, "t/")
    assert os.listdir(tmp_path) == ["lake"]


def test_a_url_is_refused_where_only_a_local_path_makes_sense(
    main: Branch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    main.put("a", b"1")
    main._core.reopen[0](*main._core.reopen[1]).lock_owners.register("ops", "for this test")
    for call in (
        lambda: main.download("a", "s3://bucket/x"),
        lambda: main.range_jobs.export("a", "s3://bucket/x", job="j", owner="ops"),
    ):
        with pytest.raises(UsageError, match="local path"):
            call()
    assert os.listdir(tmp_path) == ["lake"]


# --- the command line


def command(*arguments: str, lake: Path) -> subprocess.CompletedProcess[str]:
    full = [sys.executable, "-m", "strandline.cli", *arguments]
    environment = {**os.environ, "STRANDLINE_LAKE": str(lake)}
    return subprocess.run(full, capture_output=True, text=True, cwd=lake.parent, env=environment)


def test_a_path_on_the_command_line_is_itself_and_what_is_below_it(lake: Lake, main: Branch, tmp_path: Path) -> None:
    main.put_many({"d/1": b"1", "d2/2": b"2", "d3": b"3", "e": b"4", "e/5": b"5"})
    main.commit("c")
    place = tmp_path / "lake"
    assert command("export", "nyc/main/d", "out", lake=place).returncode == 0
    assert [path.name for path in (tmp_path / "out").rglob("*") if path.is_file()] == ["1"]
    assert command("ls", "nyc/main/d", lake=place).stdout.split()[0::3][:1] == ["d/1"]
    assert "d2" not in command("ls", "nyc/main/d", lake=place).stdout
    assert {line.split()[0] for line in command("ls", "nyc/main/e", lake=place).stdout.splitlines()} == {"e", "e/5"}
    refused = command("export", "nyc/main/e", "both", lake=place)
    assert refused.returncode == 2
    assert "no folder holds both" in refused.stderr
    assert not (tmp_path / "both").exists()
    assert command("get", "nyc/main/d3", "s3://bucket/x", lake=place).returncode == 2
    assert not (tmp_path / "s3:").exists()


@pytest.mark.parametrize("noun", ["branch", "tag"])
def test_deleting_a_path_deletes_no_branch_and_no_tag(lake: Lake, main: Branch, tmp_path: Path, noun: str) -> None:
    repo = lake.repository("nyc")
    repo.create_branch("tmp")
    repo.create_tag("v9")
    name = "tmp" if noun == "branch" else "v9"
    for place in (f"nyc/{name}/x", f"nyc/{name}/"):
        done = command(noun, "delete", place, lake=tmp_path / "lake")
        assert done.returncode == 2
        assert "names a path" in done.stderr
    assert [ref.name for ref in repo.branches()] == ["main", "tmp"]
    assert [ref.name for ref in repo.tags()] == ["v9"]


# --- lakes and backups


@pytest.mark.parametrize("what", ["gone", "empty", "truncated"])
def test_a_lake_whose_metadata_are_gone_is_not_hidden_by_a_new_one(
    lake: Lake, main: Branch, tmp_path: Path, what: str
) -> None:
    main.put("a", b"1")
    main.commit("a")
    lake.close()
    place = tmp_path / "lake"
    metadata = place / "metadata.db"
    if what == "gone":
        metadata.unlink()
    else:
        metadata.write_bytes(b"" if what == "empty" else metadata.read_bytes()[:100])
    with pytest.raises(StrandlineError) as refused:
        strandline.open(place, create=True)
    done = command("init", str(place), lake=place)
    assert done.returncode != 0
    if what != "truncated":
        assert isinstance(refused.value, LakeNotFound)
        assert "metadata of a lake are gone" in done.stderr
        made = command("init", str(place), "--new", lake=place)
        assert "Made a lake" in made.stdout
        assert "Found the lake" in command("init", str(place), lake=place).stdout


def test_init_makes_no_lake_without_a_folder(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    done = command("init", "", lake=tmp_path / "here")
    assert done.returncode == 2
    assert os.listdir(tmp_path) == ["here"]


def test_another_tenant_and_another_repository_are_no_hidden_lake(tmp_path: Path) -> None:
    where: dict[str, Any] = {"kv": f"sqlite://{tmp_path}/kv.db", "blob": str(tmp_path / "data")}
    with strandline.open(**where, create=True) as one:
        one.create_repository("nyc")
    with strandline.open(**where, tenant="two", create=True) as two:
        two.create_repository("nyc")
    with strandline.open(**where, tenant="three", create=True) as three:
        assert list(three.repositories()) == []


@pytest.mark.parametrize("field", ["id", "run"])
def test_a_backup_that_was_tampered_with_makes_no_folder_elsewhere(
    lake: Lake, main: Branch, tmp_path: Path, field: str
) -> None:
    main.put("a", b"1")
    lake.backup(tmp_path / "saved")
    manifest = tmp_path / "saved" / "strandline-backup.json"
    held = msgspec.json.decode(manifest.read_bytes())
    (held["repositories"][0]["record"] if field == "id" else held["repositories"][0])[field] = "../../evil"
    manifest.write_bytes(msgspec.json.encode(held))
    before = sorted(tmp_path.rglob("*"))
    with strandline.open(tmp_path / "other", create=True) as other, pytest.raises(Corrupted, match="needs an id"):
        other.restore(tmp_path / "saved")
    after = [path for path in sorted(tmp_path.rglob("*")) if (tmp_path / "other") not in (path, *path.parents)]
    assert after == before


def test_a_backup_does_not_lie_in_the_lake(lake: Lake, main: Branch, tmp_path: Path) -> None:
    main.put("a", b"1")
    place = tmp_path / "lake"
    for target in (place, place / "saved", place / "data" / "saved", tmp_path):
        with pytest.raises(UsageError, match="lie in each other"):
            lake.backup(target)
    assert lake.backup(tmp_path / "saved").repositories


def test_an_export_to_a_store_deletes_only_what_an_earlier_one_wrote(main: Branch, tmp_path: Path) -> None:
    main.put_many({"t/a": b"1", "t/b": b"2", "u/c": b"3"})
    url = f"file://{tmp_path}/place"

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        main.export(url, "t/", progress=interrupt)
    (tmp_path / "place" / "mine").write_bytes(b"somebody put it there")
    with pytest.raises(UsageError, match="'mine'"):
        main.export(url, "t/")
    assert (tmp_path / "place" / "mine").read_bytes() == b"somebody put it there"
    (tmp_path / "place" / "mine").unlink()
    assert main.export(url, "u/") == 1  # of another part of the lake: what the first one left goes
    assert os.listdir(tmp_path / "place") == ["c"] or sorted(os.listdir(tmp_path / "place"))[-1] == "c"
    assert not (tmp_path / "place" / "a").exists()


def test_an_export_goes_on_with_one_of_the_same_objects(main: Branch, tmp_path: Path) -> None:
    main.put_many({f"t/{n}": f"{n}" for n in range(9)} | {f"u/{n}": f"{9 - n}" for n in range(9)})
    url = f"file://{tmp_path}/place"

    def interrupt(_: str, done: int, __: object) -> None:
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        main.export(url, "t/", progress=interrupt)
    place = tmp_path / "place"
    before = {path.name: path.stat().st_mtime_ns for path in place.iterdir() if not path.name.startswith(".")}
    assert len(before) >= 4
    assert main.export(url, "t/") == 9
    assert {name: (place / name).stat().st_mtime_ns for name in before} == before
    assert {path.name: path.read_text() for path in place.iterdir() if path.is_file()} == {
        str(n): str(n) for n in range(9)
    }
    shutil.rmtree(place)
    with pytest.raises(KeyboardInterrupt):
        main.export(url, "t/", progress=interrupt)
    main.export(url, "u/")  # other objects of as many bytes, under the same names
    assert {path.name: path.read_text() for path in place.iterdir() if path.is_file()} == {
        str(n): str(9 - n) for n in range(9)
    }


def test_a_path_that_no_object_store_takes_is_refused_first(main: Branch) -> None:
    main.put_many({"t/a": b"1", "t/new\nline": b"2"})
    with pytest.raises(UsageError, match="no control characters, which 'new"):
        main.export("memory://odd/place", "t/")
    assert list(open_store("memory://odd/place").list_keys()) == []


def test_what_another_export_left_is_never_taken_for_what_a_third_call_goes_on_with(
    main: Branch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main.put_many({f"t/{n}": f"{n}" for n in range(9)} | {f"u/{n}": f"{9 - n}" for n in range(9)})
    url = f"file://{tmp_path}/place"
    whole = {str(n): str(9 - n) for n in range(9)}

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    for moment in range(1, 5):  # the second export breaks off before one of its requests
        with pytest.raises(KeyboardInterrupt):
            main.export(url, "t/", progress=interrupt)
        with monkeypatch.context() as patched:
            left = [moment]
            for name in ("put", "delete_many"):
                real = getattr(LocalBlobStore, name)

                def counted(
                    store: LocalBlobStore, *given: Any, _real: Any = real, _left: list[int] = left, **named: Any
                ) -> Any:
                    _left[0] -= 1
                    if _left[0] == 0:
                        raise KeyboardInterrupt
                    return _real(store, *given, **named)

                patched.setattr(LocalBlobStore, name, counted)
            with pytest.raises(KeyboardInterrupt):
                main.export(url, "u/")
        assert main.export(url, "u/") == 9
        place = tmp_path / "place"
        assert {path.name: path.read_text() for path in place.iterdir() if path.is_file()} == whole
        shutil.rmtree(place)


def test_of_two_exports_to_one_place_the_first_says_that_it_was_overtaken(main: Branch, tmp_path: Path) -> None:
    main.put_many({"t/a": b"1", "u/c": b"3"})
    url = f"file://{tmp_path}/place"
    begun: list[object] = []

    def overtake(*told: object) -> None:
        if not begun:
            begun.append(told)
            main.export(url, "u/")

    with pytest.raises(StrandlineError, match="Another export"):
        main.export(url, "t/", progress=overtake)
    assert (tmp_path / "place" / "c").read_bytes() == b"3"


def test_an_export_into_an_empty_folder_keeps_the_folder(main: Branch, tmp_path: Path) -> None:
    main.put_many({"d/a": b"1", "b": b"2"})
    (tmp_path / "out").mkdir()
    before = (tmp_path / "out").stat().st_ino
    assert main.export(tmp_path / "out") == 2
    assert (tmp_path / "out").stat().st_ino == before
    assert sorted(os.listdir(tmp_path / "out")) == ["b", "d"]
