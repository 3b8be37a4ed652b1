"""What differs between two refs by table, beside what PyIceberg reads on both."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from strandline.cli import run
from strandline.errors import Corrupted, InvalidName, NotFound, UsageError
from strandline.iceberg import Catalog, diff, live
from strandline.lake import Lake
from strandline.repository.branch import Branch

SCHEMA = pa.schema([("k", pa.int64())])
pytestmark = pytest.mark.filterwarnings("ignore:Delete operation did not match any records")


@pytest.fixture
def main(lake: Lake) -> Branch:
    branch = lake.create_repository("nyc").branch("main")
    catalog = Catalog(branch)
    catalog.create_namespace("db")
    catalog.create_table("db.t", SCHEMA).append(some(range(10)))
    catalog.create_table("db.same", SCHEMA).append(some(range(10)))
    return branch


def some(keys: Any) -> pa.Table:
    return pa.table({"k": list(keys)}, SCHEMA)


def test_each_table_that_differs_is_told(main: Branch) -> None:
    dev = main.create_branch("dev")
    catalog = Catalog(dev)
    table = catalog.load_table("db.t")
    table.append(some([20, 21]))
    table.delete("k = 3")  # the file is written again without the row
    catalog.create_table("db.new", SCHEMA).append(some([1]))
    catalog.drop_table("db.same")
    (new, same, changed) = diff(main, dev)
    assert (new.table, new.change, new.added_rows, new.removed_rows, new.added_files) == ("db.new", "created", 1, 0, 1)
    assert (same.table, same.change, same.added_rows, same.removed_rows) == ("db.same", "dropped", 0, 10)
    assert [one.operation for one in changed.snapshots] == ["append", "overwrite"]
    assert (changed.change, changed.added_files, changed.removed_files) == ("changed", 2, 1)
    assert (changed.added_rows, changed.removed_rows) == (11, 10)
    assert not changed.shape_changed
    back = {one.table: one for one in diff(dev, main)}
    assert (back["db.t"].added_rows, back["db.t"].removed_rows, back["db.t"].gone_snapshots) == (10, 11, 2)
    assert (back["db.new"].change, back["db.same"].change) == ("dropped", "created")
    assert diff(main, main) == []
    assert [one.table for one in diff(main, dev, "db.t")] == ["db.t"]
    with pytest.raises(NotFound, match=r"db\.nothing"):
        diff(main, dev, "db.nothing")
    with pytest.raises(UsageError, match="not a ref"):
        diff(main, "dev")
    with dev.transaction("job") as tx:
        tx.put("a", b"x")
        for left, right in ((main, tx), (tx, main)):
            with pytest.raises(UsageError, match="is not published"):
                diff(left, right)
            with pytest.raises(UsageError, match="is not published"):
                left.diff(right)
    assert next(iter(main.diff(tx))).path == "a"  # published
    with pytest.raises(InvalidName):
        diff(main, dev, "db")


def test_a_table_of_the_same_name_and_another_shape(main: Branch) -> None:
    dev = main.create_branch("dev")
    catalog = Catalog(dev)
    catalog.drop_table("db.t")
    catalog.create_table("db.t", SCHEMA)
    with catalog.load_table("db.same").update_schema() as update:
        update.add_column("more", catalog.load_table("db.same").schema().find_type("k"))
    same, replaced = diff(main, dev)
    assert (replaced.change, replaced.removed_rows, replaced.shape_changed) == ("replaced", 10, False)
    assert (same.change, same.shape_changed, same.added_rows, same.snapshots) == ("changed", True, 0, ())


@pytest.mark.parametrize("seed", range(6))
def test_rows_are_those_of_the_files_that_differ(seed: int, main: Branch) -> None:
    """Beside a count of what PyIceberg reads, where no row is written again unchanged."""
    chance = random.Random(seed)
    dev = main.create_branch("dev")
    table = Catalog(dev).load_table("db.t")
    following = 100
    for _ in range(6):
        if chance.random() < 0.6:
            count = chance.randint(1, 5)
            table.append(some(range(following, following + count)))
            following += count
        else:
            lowest = chance.choice(sorted(keys(dev))) if keys(dev) else 0
            table.overwrite(some([following]), f"k <= {lowest}")
            following += 1
    before, after = keys(main), keys(dev)
    (found,) = diff(main, dev)
    assert found.added_rows is not None
    assert found.removed_rows is not None
    assert found.added_rows - found.removed_rows == len(after) - len(before)
    assert found.added_rows >= len(after - before)
    assert found.removed_rows >= len(before - after)
    files = [set(Catalog(ref).load_table("db.t").inspect.files()["file_path"].to_pylist()) for ref in (main, dev)]
    assert (found.added_files, found.removed_files) == (len(files[1] - files[0]), len(files[0] - files[1]))


def keys(ref: Branch) -> set[int]:
    return set(Catalog(ref).load_table("db.t").scan().to_arrow()["k"].to_pylist())


def test_the_cost_follows_the_change(main: Branch, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Catalog(main).load_table("db.t")
    for number in range(20):
        table.append(some([number]))
    dev = main.create_branch("dev")
    Catalog(dev).load_table("db.t").append(some([99]))
    read: Counter[str] = Counter()
    real = live.read_file

    def counted(blobs: Any, location: str) -> Any:
        read[location] += 1
        return real(blobs, location)

    monkeypatch.setattr(live, "read_file", counted)
    (found,) = diff(main, dev)
    assert (found.added_rows, found.removed_rows) == (1, 0)
    assert len(read) == 3  # two lists, and the one manifest that is new


def test_a_broken_manifest_is_named(main: Branch) -> None:
    dev = main.create_branch("dev")
    table = Catalog(dev).load_table("db.t")
    table.append(some([1]))
    manifest = table.inspect.manifests()["path"].to_pylist()[0]
    Path(manifest.removeprefix("file://")).write_bytes(b"broken")
    with pytest.raises(Corrupted, match="cannot be read"):
        diff(main, dev)


def test_the_commands_of_namespaces(main: Branch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    at = ["--lake", str(tmp_path / "lake")]
    assert run(["iceberg", "create-namespace", "nyc/main", "raw", *at]) == 0
    assert run(["iceberg", "create-namespace", "nyc/main", "raw.inner", "--json", *at]) == 0
    capsys.readouterr()
    assert Catalog(main).list_namespaces("raw") == [("raw", "inner")]
    assert main.get_commit().message == "create namespace raw.inner"
    for command, name, said in (
        ("create-namespace", "raw", "exists"),
        ("create-namespace", "a/b", "cannot be a part of a namespace's name"),
        ("drop-namespace", "raw", "not empty"),
        ("drop-namespace", "nothing", "nothing to drop"),
    ):
        before = main.commit_id
        assert run(["iceberg", command, "nyc/main", name, *at]) != 0, name
        assert said in capsys.readouterr().err
        assert main.commit_id == before
    assert run(["iceberg", "drop-namespace", "nyc/main", "raw.inner", *at]) == 0
    assert run(["iceberg", "drop-namespace", "nyc/main", "raw", *at]) == 0
    assert ("raw",) not in Catalog(main).list_namespaces()


def test_the_command(main: Branch, tmp_path: Path, lake: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    dev = main.create_branch("dev")
    Catalog(dev).load_table("db.t").append(some([1, 2]))
    other = lake.create_repository("other").branch("main")
    with pytest.raises(UsageError, match="repositor"):
        diff(main, other)
    at = ["--lake", str(tmp_path / "lake")]
    assert run(["iceberg", "diff", "nyc/main", "nyc/dev", *at]) == 0
    assert capsys.readouterr().out.split() == ["db.t", "changed", "2", "0", "1", "0", "1"]
    assert run(["iceberg", "diff", "nyc/main", "nyc/main", *at]) == 0
    assert capsys.readouterr().out == ""  # the sentence about it is for people at a terminal
    assert run(["iceberg", "diff", "nyc/main", "nyc/dev", "--json", *at]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["table"], found["added_rows"], found["gone_snapshots"]) == ("db.t", 2, 0)
    assert found["snapshots"][0]["operation"] == "append"
    assert run(["iceberg", "diff", "nyc/main", "nyc/dev", "--table", "x", *at]) != 0
    assert "not the name of a table" in capsys.readouterr().err
