"""Objects: in, out, copies, renames, imports, exports, listings."""

from __future__ import annotations

import io
import os
import pickle
import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import strandline
from strandline.errors import (
    InvalidName,
    NotFound,
    ObjectMissing,
    ObjectNotFound,
    PreconditionFailed,
    UncommittedChanges,
    UsageError,
)
from strandline.lake import Lake
from strandline.repository.branch import Branch
from strandline.repository.commits.listing import ImportSource
from strandline.repository.repository import Repository
from strandline.results.rows import CommonPrefix
from strandline.tree.rows import Entry
from tests.conftest import names
from tests.harness.clients import entry


def test_content_comes_in_many_forms(main: Branch, tmp_path: Path) -> None:
    file = tmp_path / "local.bin"
    file.write_bytes(b"from a file" * 1000)
    read_end, write_end = os.pipe()
    os.write(write_end, b"from a pipe")
    os.close(write_end)
    main.put("bytes", b"b")
    main.put("text", "é")
    main.put("view", memoryview(b"v"))
    main.put("path", file)
    main.put("file", io.BytesIO(b"f"))
    with os.fdopen(read_end, "rb") as pipe:
        main.put("pipe", pipe)
    main.put("uploaded", file)
    assert [main.read(path) for path in ("bytes", "text", "view", "file", "pipe")] == [
        b"b",
        "é".encode(),
        b"v",
        b"f",
        b"from a pipe",
    ]
    assert main.read("path") == main.read("uploaded") == file.read_bytes()
    with pytest.raises(NotFound, match="cannot be read"):
        main.put("x", tmp_path / "nothing")
    with pytest.raises(UsageError, match="binary"):
        main.put("x", io.StringIO("text"))  # type: ignore[arg-type]
    for content in (5, None, [b"x"]):
        with pytest.raises(UsageError, match="is not content"):
            main.put("x", content)  # type: ignore[arg-type]


def test_an_object_tells_what_it_is(main: Branch) -> None:
    made = main.put("a.csv", b"1,2\n", metadata={"k": "v"})
    found = main.stat("a.csv")
    assert found == made
    assert (found.size, found.content_type, found.metadata) == (4, "text/csv", {"k": "v"})
    assert found.checksum.startswith("blake3:")
    assert found.physical_address.endswith(".csv")
    assert found.modified_at.tzinfo is not None
    assert main.put("x", b"", content_type="a/b").content_type == "a/b"
    assert main.read("a.csv", 2, 3) == b"2"
    with pytest.raises(ObjectNotFound, match="There is no object 'nope'"):
        main.stat("nope")
    assert main.exists("a.csv")
    assert not main.exists("nope")


def test_objects_are_files(main: Branch) -> None:
    with main.open("a.bin", "wb") as file:
        file.write(b"12")
        file.write(b"345")
    with main.open("a.txt", "w") as text:
        text.write("zwölf\n")
    with main.open("a.bin") as file:
        file.seek(1)
        assert file.read(2) == b"23"
    with main.open("a.txt", "r") as text:
        assert text.read() == "zwölf\n"
    with pytest.raises(ZeroDivisionError), main.open("never", "wb") as file:
        file.write(b"half")
        1 / 0
    with pytest.raises(ZeroDivisionError), main.open("never", "w") as text:
        text.write("half")
        1 / 0
    assert names(main) == ["a.bin", "a.txt"]
    main.commit("c")
    with pytest.raises(UsageError, match="Only branches"):
        strandline.Ref.open(main, "a.bin", "x")
    with pytest.raises(UsageError, match="Only branches"):
        main._other("main@").open("a.bin", "wb")


def test_a_download_replaces_the_file_only_when_it_is_whole(main: Branch, tmp_path: Path) -> None:
    main.put("a", b"new")
    target = tmp_path / "a"
    target.write_bytes(b"old")
    main._core.resolver.namespace.delete_many([main.put("gone", b"x").physical_address])
    with pytest.raises(ObjectMissing):
        main.download("gone", target)
    assert target.read_bytes() == b"old"
    main.download("a", target)
    assert target.read_bytes() == b"new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "lake"]
    with pytest.raises(UsageError, match="cannot be written"):
        main.download("a", tmp_path / "no" / "folder")


def test_an_object_whose_bytes_are_missing_is_named(main: Branch) -> None:
    info = main.put("a", b"x")
    main._core.resolver.namespace.delete_many([info.physical_address])
    for call in (lambda: main.read("a"), lambda: main.open("a")):
        with pytest.raises(ObjectMissing, match="'a' in nyc/main are gone"):
            call()


def test_a_copy_shares_the_bytes_and_a_rename_moves_at_one_instant(repo: Repository, main: Branch) -> None:
    main.put_many({"d/1": b"1", "d/2": b"2", "e": b"e"})
    assert main.copy("d/1", "f") == 1
    assert main.copy("d/", "g/h/") == 2
    assert main.stat("f").physical_address == main.stat("d/1").physical_address
    assert main.rename("d/", "z/") == 2
    assert main.rename("e", "d/e") == 1
    main.commit("c")
    assert names(main) == ["d/e", "f", "g/h/1", "g/h/2", "z/1", "z/2"]
    main.delete("f")
    assert main.copy("f", "back", ref="main@") == 1
    assert main.read("back") == b"1"
    for call in (
        lambda: main.rename("nope", "x"),
        lambda: main.copy("nope/", "x/"),
        lambda: main.copy("f", "x", ref="main"),
    ):
        with pytest.raises(ObjectNotFound):
            call()
    for source, target in (("z/", "z/y/"), ("z/", "y"), ("z", "y/"), ("z/1", "z/1"), ("z/y/", "z/")):
        with pytest.raises(UsageError):
            main.rename(source, target)


def test_a_rename_onto_an_existing_path_replaces_it(main: Branch) -> None:
    main.put_many({"a": b"a", "b": b"b"})
    main.rename("a", "b")
    assert (names(main), main.read("b")) == (["b"], b"a")


def test_an_atomic_bulk_put_is_all_or_nothing(main: Branch) -> None:
    with pytest.raises(NotFound):
        main.put_many([("a", b"1"), ("b", Path("/nonexistent/file"))])
    assert names(main) == []
    assert main.put_many([("a", b"1"), ("b", "2")]) == 2
    assert main.put_many({}) == 0
    assert names(main) == ["a", "b"]


def test_deletes_in_bulk_and_by_prefix(main: Branch) -> None:
    main.stage_each([(f"d/{i}", entry(i)) for i in range(20)])
    assert main.delete_many(["d/1", "d/2", "never"]) == 3
    assert main.delete_prefix("d/1") == 10
    assert main.delete_prefix("nope/") == 0
    assert names(main) == ["d/0", "d/3", "d/4", "d/5", "d/6", "d/7", "d/8", "d/9"]


# --- listings


def test_a_listing_takes_prefix_delimiter_after_and_amount(main: Branch) -> None:
    paths = ["a", "b/1", "b/2/x", "b/2/y", "b/3", "b0", "c/1"]
    main.stage_each([(path, entry(path)) for path in paths[::2]])
    main.commit("half")
    main.stage_each([(path, entry(path)) for path in paths[1::2]])
    for ref in (main, main._other("main")):
        assert names(ref) == paths
        assert [info.path for info in ref.list("b/")] == paths[1:5]
        assert [info.path for info in ref.list(delimiter="/")] == ["a", "b/", "b0", "c/"]
        assert [info.path for info in ref.list("b/", delimiter="/")] == ["b/1", "b/2/", "b/3"]
        assert [info.path for info in ref.list(after="b/2/x")] == ["b/2/y", "b/3", "b0", "c/1"]
        assert [info.path for info in ref.list(after="b/", delimiter="/")] == ["b0", "c/"]
        assert [info.path for info in ref.list(amount=2)] == ["a", "b/1"]
        assert [info.path for info in ref.list(amount=2, delimiter="/")] == ["a", "b/"]
        assert [info.path for info in ref.list("b/", after="b/2/", delimiter="/")] == ["b/3"]
        assert list(ref.list(amount=0)) == []
        assert [info.path for info in ref.list("b/2/y")] == ["b/2/y"]
        assert isinstance(next(iter(ref.list("b/2", delimiter="/"))), CommonPrefix)
    with pytest.raises(UsageError):
        main.list(amount=-1)


def test_a_listing_over_many_windows_equals_a_sorted_list(main: Branch, monkeypatch: pytest.MonkeyPatch) -> None:
    from strandline.results import listing

    monkeypatch.setattr(listing, "WINDOW_ROWS", 7)
    monkeypatch.setattr(listing, "FIRST_WINDOW_ROWS", 3)
    rnd = random.Random(5)
    model: set[str] = set()
    for step in range(6):
        new = {f"{rnd.randrange(6)}/{rnd.randrange(6)}/{rnd.randrange(9)}" for _ in range(60)}
        main.stage_each([(path, entry(f"{step}{path}")) for path in new])
        gone = {path for path in model | new if rnd.random() < 0.3}
        main.delete_many(gone)
        model = (model | new) - gone
        assert names(main) == sorted(model)
        for prefix in ("", "3", "3/", "3/2/"):
            below = {path for path in model if path.startswith(prefix)}
            assert names(main, prefix) == sorted(below)
            folders = {
                path[: path.index("/", len(prefix)) + 1] if "/" in path[len(prefix) :] else path for path in below
            }
            assert [found.path for found in main.list(prefix, delimiter="/")] == sorted(folders)
        if step % 2:
            main.commit(str(step))
        elif step:
            main.put_many({f"x{step}": b""})
            model.add(f"x{step}")


# --- import and export


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "files"
    for name in ("a.txt", "sub dir/b.txt", "sub dir/ü%20.txt", "sub/c.txt"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"content of {name}")
    return root


def test_an_import_refers_to_files_where_they_are(main: Branch, folder: Path) -> None:
    main.put("imported/old", b"stays")
    main.commit("before")
    done = main.import_objects(folder, "imported/", "import files")
    assert done.objects == 4
    assert done.commit is not None
    assert done.commit.message == "import files"
    assert names(main) == [
        "imported/a.txt",
        "imported/old",
        "imported/sub dir/b.txt",
        "imported/sub dir/ü%20.txt",
        "imported/sub/c.txt",
    ]
    assert main.read("imported/sub dir/ü%20.txt") == "content of sub dir/ü%20.txt".encode()
    assert main.import_objects(folder, "imported/").commit is None
    (folder / "a.txt").write_text("other")
    for call in (lambda: main.read("imported/a.txt"), lambda: main.open("imported/a.txt")):
        with pytest.raises(ObjectMissing, match="changed since it was imported"):
            call()
    assert main.import_objects(folder, "imported/").commit is not None
    (folder / "a.txt").unlink()
    with pytest.raises(ObjectMissing):
        main.read("imported/a.txt")


def test_an_import_takes_its_destination_as_a_folder(main: Branch, folder: Path) -> None:
    main.import_objects(folder / "sub", "raw")
    assert names(main) == ["raw/c.txt"]


def test_an_import_over_staged_changes_is_refused_and_keeps_others_staged(main: Branch, folder: Path) -> None:
    main.put("imported/x", b"1")
    with pytest.raises(UncommittedChanges):
        main.import_objects(folder, "imported/")
    main.discard()
    main.put("elsewhere", b"1")
    main.import_objects(folder, "imported/")
    assert [change.path for change in main.uncommitted()] == ["elsewhere"]
    assert main.read("elsewhere") == b"1"
    main.commit("rest")
    assert len(names(main)) == 5
    with pytest.raises(NotFound):
        main.import_objects(folder / "nothing")


@pytest.mark.server
def test_an_import_from_a_bucket(main: Branch, s3_endpoint: str) -> None:
    from strandline.blob import open_store

    bucket = open_store(f"s3://lake/import-me?endpoint={s3_endpoint}&region=us-east-1")
    for i in range(3):
        bucket.put(f"x/{i}.txt", b"%d" % i)
    done = main.import_objects(f"s3://lake/import-me/x/?endpoint={s3_endpoint}&region=us-east-1", "in/")
    assert done.objects == 3
    assert names(main) == ["in/0.txt", "in/1.txt", "in/2.txt"]


def test_an_import_of_several_sources_is_one_commit(main: Branch, folder: Path) -> None:
    (folder / "one%20file").write_text("x")
    sources = [
        ImportSource(str(folder / "sub"), "raw"),
        ImportSource(str(folder / "sub dir"), "other/"),
        ImportSource(str(folder / "one%20file"), "single", is_object=True),
        ImportSource((folder / "a.txt").as_uri(), "uri", is_object=True),
    ]
    done = main.import_objects(sources, message="all of it")
    assert done.objects == 5
    assert names(main) == ["other/b.txt", "other/ü%20.txt", "raw/c.txt", "single", "uri"]
    assert main.read("single") == b"x"
    assert main.read("uri") == b"content of a.txt"
    assert next(iter(main.log())).message == "all of it"


@pytest.mark.parametrize("prefixes", [("raw/",), ("raw/", "raw/deep/"), ("",)])
def test_an_import_replaces_its_destinations_and_nothing_else(
    main: Branch, folder: Path, prefixes: tuple[str, ...]
) -> None:
    """Against a dictionary: what lay below a destination goes, neighbours of its name stay."""
    before = ["raw", "raw!", "raw/a", "raw/c.txt", "raw/deep/x", "raw/z/deeper", "raw0", "rawer/x", "z"]
    main.put_many(dict.fromkeys(before, b"old"))
    main.commit("before")
    wanted = {path for path in before if not path.startswith(prefixes)}
    wanted |= {f"{prefix}c.txt" for prefix in prefixes}
    done = main.import_objects([ImportSource(str(folder / "sub"), prefix) for prefix in prefixes], replace=True)
    assert done.commit is not None
    assert names(main) == sorted(wanted)
    again = main.import_objects([ImportSource(str(folder / "sub"), prefix) for prefix in prefixes], replace=True)
    assert again.commit is None
    main.put("z", b"staged elsewhere") if prefixes != ("",) else None
    main.put("rawer/x", b"staged elsewhere") if prefixes != ("",) else None
    main.import_objects(folder / "sub", prefixes[0], replace=True)


def test_sources_that_clash_are_refused(main: Branch, folder: Path, tmp_path: Path) -> None:
    clash = [ImportSource(str(folder / "sub"), "x"), ImportSource(str(folder / "a.txt"), "x/c.txt", is_object=True)]
    with pytest.raises(UsageError, match=r"same paths: 'x/c\.txt'"):
        main.import_objects(clash)
    for wrong, error in (
        (ImportSource(str(folder / "nope"), "x", is_object=True), NotFound),
        (ImportSource(str(folder) + "/", "x", is_object=True), UsageError),
        (ImportSource(str(folder / "a.txt"), "", is_object=True), InvalidName),
        (ImportSource(str(folder), "a\0"), InvalidName),
    ):
        with pytest.raises(error):
            main.import_objects([wrong])
    with pytest.raises(UsageError):
        main.import_objects([])
    with pytest.raises(UsageError):
        main.import_objects([ImportSource(str(folder))], "x")
    assert names(main) == []


def test_an_export_is_a_plain_folder(main: Branch, tmp_path: Path) -> None:
    main.put_many({"t/m=1/a.txt": b"1", "t/m=2/b.txt": b"2", "u": b"3"})
    main.commit("c")
    assert main.export(tmp_path / "all") == 3
    assert main._other("main@").export(tmp_path / "part", "t/") == 2
    assert (tmp_path / "part" / "m=2" / "b.txt").read_bytes() == b"2"
    assert (tmp_path / "all" / "u").read_bytes() == b"3"
    with pytest.raises(UsageError, match="not an empty folder"):
        main.export(tmp_path / "all")
    with pytest.raises(ObjectNotFound, match="nothing below 'misspelt/'"):
        main.export(tmp_path / "misspelt", "misspelt/")
    main.put("../evil.txt", b"x")
    with pytest.raises(UsageError, match="'..' parts"):
        main.export(tmp_path / "evil")
    assert not (tmp_path / "evil.txt").exists()
    main.discard()
    main.put("u/below a file", b"x")
    with pytest.raises(UsageError, match="needs a folder of that name"):
        main.export(tmp_path / "clash")
    assert not (tmp_path / "clash").exists()


# --- handles


def test_handles_pickle_and_work_in_another_place(main: Branch, repo: Repository, lake: Lake) -> None:
    main.put("a", b"1")
    main.commit("c")
    again = pickle.loads(pickle.dumps(main))
    assert again.read("a") == b"1"
    again.put("b", b"2")
    assert main.read("b") == b"2"
    assert pickle.loads(pickle.dumps(repo)).name == "nyc"
    assert pickle.loads(pickle.dumps(repo.ref("main~0"))).read("a") == b"1"
    assert [record.name for record in pickle.loads(pickle.dumps(lake)).repositories()] == ["nyc"]


@pytest.mark.server
def test_handles_that_were_pickled_before_the_rooms_open_still(main: Branch, repo: Repository) -> None:
    main.put("a", b"1")
    shard = repo.shard("s", pa.schema([("k", pa.string())]))
    moved = {
        "strandline.repository.refs.ref": "strandline.repository.ref",
        "strandline.repository.refs.expressions": "strandline.repository.expressions",
        "strandline.core.repository_core": "strandline.repository.core",
    }

    def old(handle: object) -> bytes:
        raw = pickle.dumps(handle, protocol=0)  # in which names are lines
        for now, then in moved.items():
            raw = raw.replace(f"c{now}\n".encode(), f"c{then}\n".encode())
        assert raw != pickle.dumps(handle, protocol=0)
        return raw

    assert pickle.loads(old(main)).read("a") == b"1"
    assert pickle.loads(old(shard)).name == "s"


def test_a_pickled_handle_holds_no_secret(postgres_url: str, tmp_path: Path) -> None:
    url = postgres_url.replace("test@", "test:planted-secret@")
    with strandline.open(kv=f"{url}?table=secrets", blob=str(tmp_path / "d"), create=True) as lake:
        main = lake.repository("nyc", create=True).branch("main")
        for handle in (lake, main, main._other("main@")):
            assert b"planted-secret" not in pickle.dumps(handle)
            assert "planted-secret" not in repr(handle)


def test_a_conditional_put_by_checksum(main: Branch) -> None:
    made = main.put("a", b"1")
    main.put("a", b"2", if_match=made.checksum)
    with pytest.raises(PreconditionFailed):
        main.put("a", b"3", if_match=made.checksum)


@pytest.mark.server
def test_a_lake_on_postgres_and_s3(postgres_url: str, s3_endpoint: str, tmp_path: Path) -> None:
    blob = f"s3://lake/a-lake?endpoint={s3_endpoint}&region=us-east-1"
    with strandline.open(kv=f"{postgres_url}?table=s3lake", blob=blob, create=True) as lake:
        main = lake.repository("nyc", create=True).branch("main")
        main.put_many({f"k{i}": f"{i}" for i in range(20)})
        main.put("large", io.BytesIO(b"x" * 12_000_000))
        main.commit("c")
        work = main.create_branch("work")
        work.rename("k1", "r1")
        work.commit("r")
        main.merge(work)
        assert main.read("r1") == b"1"
        assert main.read("large", 5, 8) == b"xxx"
        with main.open("large") as file:
            assert len(file.read()) == 12_000_000
        assert main.export(tmp_path / "out") == 21
        ranges = list(main._core.resolver.namespace.list("_strandline/ranges/"))
        assert ranges
        assert pq.read_table(io.BytesIO(main._core.resolver.namespace.get(ranges[0].key))).num_rows > 0


def test_no_text_of_an_object_is_without_end(main: Branch) -> None:
    long = "x" * 10_000
    put = main.put("a", b"1")
    calls: list[Callable[[], object]] = [
        lambda: main.put("b", b"1", content_type=long),
        lambda: main.put("b", b"1", metadata={"k": long}),
        lambda: main.link("b", put.physical_address, size=1, checksum=long),
        lambda: main.link("b", long, size=1, checksum="x"),
        lambda: main.link("b", put.physical_address, size=1, checksum="x", content_type=long),
        lambda: main.link_many([("b", Entry(long, 1, "x", 1))]),
        lambda: main.commit("m", committer=long),
        lambda: main.commit(long + "y"),
    ]
    for call in calls:
        with pytest.raises(UsageError):
            call()
    with main.transaction("writer") as tx, pytest.raises(UsageError):
        tx.link_many([("b", Entry(tx.data_prefix + long, 1, "x", 1))])
    assert [change.path for change in main.uncommitted()] == ["a"]


def test_handles_of_the_same_thing_are_equal(lake: Lake, repo: Repository, main: Branch) -> None:
    main.put("a", b"1")
    first = main.commit("one").id
    tag = repo.create_tag("v1", "main")
    other = repo.create_branch("other", "main")
    assert main == repo.branch("main") == lake.repository(repo.name).branch("main")
    assert main != other
    assert repo.ref(first) == repo.ref("main~0") == repo.ref("v1") == tag
    assert main != repo.ref(first)
    assert repo == lake.repository(repo.name)
    assert repo != lake.repository("another", create=True)
    assert len({main, repo.branch("main"), repo.ref("v1"), repo.ref(first)}) == 2
    repo.delete_branch("other")
    assert other != repo.create_branch("other", "main"), "a name that was used again is another branch"
    assert main != "main"
