"""`strandline://` in pandas, PyArrow, Polars and DuckDB; transactions, forks, pickles, and errors as those of files."""

from __future__ import annotations

import json
import multiprocessing
import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import fsspec
import pandas
import polars
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import strandline
from strandline import errors
from strandline.fs import StrandlineFileSystem
from strandline.repository.branch import Branch


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A lake that the environment names, as users have it."""
    where = tmp_path / "lake"
    with strandline.open(where, create=True, synced=False) as lake:
        lake.repository("nyc", create=True)
        monkeypatch.setenv("STRANDLINE_LAKE", str(where))
        StrandlineFileSystem.clear_instance_cache()
        yield where
        StrandlineFileSystem.clear_instance_cache()


@pytest.fixture
def fs(place: Path) -> StrandlineFileSystem:
    made = fsspec.filesystem("strandline")
    assert isinstance(made, StrandlineFileSystem)
    return made


@pytest.fixture
def main(fs: StrandlineFileSystem) -> Branch:
    return fs.lake.repository("nyc").branch("main")


ROWS = {"n": [1, 2, 3], "s": ["a", "b", None]}


def test_pandas_reads_and_writes(main: Branch) -> None:
    frame = pandas.DataFrame(ROWS)
    frame.to_csv("strandline://nyc/main/a.csv", index=False)
    frame.to_parquet("strandline://nyc/main/a.parquet")
    frame.to_json("strandline://nyc/main/a.json.gz", orient="records", lines=True, compression="gzip")
    commit = main.commit("pandas")
    for ref in ("main", commit.id, "main~0"):
        assert pandas.read_csv(f"strandline://nyc/{ref}/a.csv")["n"].tolist() == [1, 2, 3]
        assert pandas.read_parquet(f"strandline://nyc/{ref}/a.parquet")["s"].tolist()[:2] == ["a", "b"]
    found = pandas.read_json("strandline://nyc/main/a.json.gz", lines=True, compression="gzip")
    assert found["n"].tolist() == [1, 2, 3]


def test_pyarrow_reads_and_writes_files_and_datasets(fs: StrandlineFileSystem) -> None:
    table = pa.table(ROWS)
    pq.write_table(table, "nyc/main/t.parquet", filesystem=fs)
    assert pq.read_table("nyc/main/t.parquet", filesystem=fs).equals(table)
    ds.write_dataset(
        table, "nyc/main/d", format="parquet", partitioning=["n"], partitioning_flavor="hive", filesystem=fs
    )
    found = ds.dataset("nyc/main/d", filesystem=fs, partitioning="hive")
    assert sorted(found.to_table()["n"].to_pylist()) == [1, 2, 3]
    assert len(list(found.get_fragments(ds.field("n") == 2))) == 1


def test_polars_reads_and_writes(fs: StrandlineFileSystem) -> None:
    frame = polars.DataFrame(ROWS)
    with fs.open("nyc/main/p.parquet", "wb") as file:
        frame.write_parquet(file)
    with fs.open("nyc/main/p.parquet") as file:
        assert polars.read_parquet(file).equals(frame)
    with fsspec.open("strandline://nyc/main/p.csv", "wb") as file:
        frame.write_csv(file)
    with fsspec.open("strandline://nyc/main/p.csv", "rb") as file:
        assert polars.read_csv(file)["n"].to_list() == [1, 2, 3]
    lazy = polars.scan_pyarrow_dataset(ds.dataset("nyc/main/p.parquet", filesystem=fs))
    assert lazy.filter(polars.col("n") > 1).collect()["s"].to_list() == ["b", None]


def test_duckdb_reads_and_writes(fs: StrandlineFileSystem) -> None:
    with duckdb.connect() as connection:
        connection.register_filesystem(fs)
        connection.sql("copy (select range as n from range(10)) to 'strandline://nyc/main/d/x.parquet'")
        connection.sql("copy (select 10 as n) to 'strandline://nyc/main/d/y.parquet'")
        query = "select count(*), sum(n) from read_parquet('strandline://nyc/main/d/*.parquet')"
        assert connection.sql(query).fetchall() == [(11, 55)]


def test_folders_are_repositories_refs_and_prefixes(fs: StrandlineFileSystem, main: Branch) -> None:
    main.put_many({"a/1": b"x", "a/b/2": b"yy", "c": b""})
    main.commit("abc")
    main.create_branch("work")
    assert fs.ls("strandline://", detail=False) == ["nyc"]
    assert fs.ls("nyc", detail=False) == ["nyc/main", "nyc/work"]
    assert fs.ls("nyc/work", detail=False) == ["nyc/work/a", "nyc/work/c"]
    assert fs.find("nyc/main") == ["nyc/main/a/1", "nyc/main/a/b/2", "nyc/main/c"]
    assert fs.glob("nyc/main/**/2") == ["nyc/main/a/b/2"]
    assert fs.info("nyc/main/a/b/2")["size"] == 2
    assert (fs.isdir("nyc/main/a"), fs.isfile("nyc/main/c"), fs.exists("nyc/main/d")) == (True, True, False)
    assert fs.checksum("nyc/main/a/1") == main.stat("a/1").checksum
    assert fs.cat_file("nyc/main/a/b/2", start=-1) == b"y"
    assert fs.cat("nyc/main/a", recursive=True) == {"nyc/main/a/1": b"x", "nyc/main/a/b/2": b"yy"}
    assert fs.du("nyc/main") == 3
    assert [path for path, _, _ in fs.walk("nyc/main")] == ["nyc/main", "nyc/main/a", "nyc/main/a/b"]


def test_copies_and_renames_move_no_bytes(fs: StrandlineFileSystem, main: Branch) -> None:
    main.put_many({"a/1": b"x", "a/2": b"y"})
    address = main.stat("a/1").physical_address
    fs.cp("nyc/main/a/1", "nyc/main/copy")
    assert main.stat("copy").physical_address == address
    fs.mv("nyc/main/a", "nyc/main/b", recursive=True)
    assert fs.find("nyc/main") == ["nyc/main/b/1", "nyc/main/b/2", "nyc/main/copy"]
    assert main.stat("b/1").physical_address == address
    fs.rm("nyc/main/b", recursive=True)
    assert fs.find("nyc/main") == ["nyc/main/copy"]


def test_files_of_a_transaction_appear_together_or_not_at_all(fs: StrandlineFileSystem, main: Branch) -> None:
    with fs.transaction:
        for name in "abc":
            with fs.open(f"nyc/main/{name}", "wb") as file:
                file.write(name.encode())
        assert fs.find("nyc/main") == []
    assert main.read("b") == b"b"
    with pytest.raises(RuntimeError), fs.transaction:
        with fs.open("nyc/main/d", "wb") as file:
            file.write(b"d")
        raise RuntimeError
    assert not fs.exists("nyc/main/d")
    with fs.open("nyc/main/e", "wb") as file:  # afterwards all is as before
        file.write(b"e")
    assert main.read("e") == b"e"


def test_a_writer_that_fails_leaves_no_object(fs: StrandlineFileSystem) -> None:
    with pytest.raises(RuntimeError), fs.open("nyc/main/half", "wb") as file:
        file.write(b"half")
        raise RuntimeError
    with pytest.raises(RuntimeError), fs.open("nyc/main/half", "w") as text:
        text.write("half")
        raise RuntimeError
    with pytest.raises(RuntimeError), fsspec.open("strandline://nyc/main/half", "wb") as file:
        file.write(b"half")
        raise RuntimeError
    forgotten = fs.open("nyc/main/half", "wb")
    forgotten.write(b"half")
    del forgotten
    assert not fs.exists("nyc/main/half")
    try:
        raise RuntimeError
    except RuntimeError:  # an error that was there before is none of the file's
        with fs.open("nyc/main/whole", "w") as text:
            text.write("whole")
    assert fs.cat_file("nyc/main/whole") == b"whole"


def test_errors_are_those_of_files(fs: StrandlineFileSystem, main: Branch) -> None:
    main.put("a", b"x")
    main.commit("a")
    fs.lake.repository("nyc").create_tag("v1", "main")
    for path in ("nyc/main/nope", "nyc/nope/a", "nope/main/a"):
        with pytest.raises(FileNotFoundError):
            fs.open(path)
        with pytest.raises(FileNotFoundError):
            fs.info(path)
    for path in ("nyc/v1/a", "nyc/main~0/a"):
        with pytest.raises(PermissionError, match="not a branch"):
            fs.open(path, "wb")
    with pytest.raises(IsADirectoryError):
        fs.open("nyc/main", "rb")
    with pytest.raises(IsADirectoryError):
        fs.rm("nyc/main/", recursive=False)
    with pytest.raises(ValueError, match="mode 'ab'"):
        fs.open("nyc/main/a", "ab")
    with pytest.raises(FileExistsError):
        fs.open("nyc/main/a", "xb")
    with pytest.raises(FileNotFoundError):
        fs.rm("nyc/main/nope")
    fs.lake.repository("nyc").protect("main")
    with pytest.raises(PermissionError, match="protected"):
        fs.open("nyc/main/a", "wb")
    with pytest.raises(FileNotFoundError, match="no lake"):
        StrandlineFileSystem("/nowhere/at/all", skip_instance_cache=True).ls("")


def _read(fs: StrandlineFileSystem, out: multiprocessing.queues.Queue[bytes]) -> None:
    out.put(fs.cat_file("nyc/main/a"))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_it_works_in_threads_after_a_fork_and_in_a_pickle(fs: StrandlineFileSystem, main: Branch) -> None:
    main.put("a", b"x")
    assert fs.cat_file("nyc/main/a") == b"x"
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(fs.cat_file, ["nyc/main/a"] * 64)) == {b"x"}
    for method in ("fork", "spawn"):
        context = multiprocessing.get_context(method)
        queue = context.Queue()
        process = context.Process(target=_read, args=(fs, queue))  # type: ignore[attr-defined]
        process.start()
        assert queue.get(timeout=60) == b"x"
        process.join(60)
    assert pickle.loads(pickle.dumps(fs)).cat_file("nyc/main/a") == b"x"


def test_no_secret_travels(place: Path) -> None:
    fs = StrandlineFileSystem(
        kv="postgresql://me:s3cret@nowhere/db", blob=str(place), tenant="team", skip_instance_cache=True
    )
    for text in (pickle.dumps(fs).decode("latin-1"), fs.to_json(), json.dumps(fs.to_dict()), repr(fs)):
        assert "s3cret" not in text
    assert "nowhere" in fs.to_json()


def test_an_option_that_the_file_system_does_not_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidSettings, match="no option 'bogus'"):
        fsspec.filesystem("strandline", lake=tmp_path, bogus=1)
    assert not list(tmp_path.iterdir())
    fsspec.filesystem("strandline", lake=tmp_path, use_listings_cache=False, skip_instance_cache=True)
