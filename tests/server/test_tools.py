"""The tools that people have against `strandline serve`, unpatched. What a tool did is looked at by the library."""

from __future__ import annotations

import hashlib
import json
import os
import urllib.request
import uuid
from pathlib import Path
from typing import Any

import pytest

from strandline.lake import Lake
from strandline.repository.branch import Branch
from tests.harness.serving import Served
from tests.server.tools import MIB, Tool, cells

pytestmark = [pytest.mark.server, pytest.mark.filterwarnings("ignore")]
REPOSITORY = "tools"


@pytest.fixture(scope="session")
def opened() -> dict[type[Tool], Any]:
    return {}


@pytest.fixture(scope="session")
def main(lake: Lake) -> Branch:
    return lake.repository(REPOSITORY, create=True).branch("main")


@pytest.mark.parametrize(("kind", "operation"), cells(), ids=[f"{kind.__name__}-{name}" for kind, name in cells()])
def test_a_tool_does_what_it_does_elsewhere(
    kind: type[Tool], operation: str, served: Served, main: Branch, opened: dict[type[Tool], Any]
) -> None:
    tool = opened.get(kind) or opened.setdefault(kind, kind(served, REPOSITORY))
    at = f"{kind.__name__}/{operation}/{uuid.uuid4().hex[:6]}"
    if operation == "write":
        for data in (b"", b"x", os.urandom(300_000)):
            tool.write(f"{at}/new file+ü.bin", data)
            assert main.read(f"{at}/new file+ü.bin") == data
    elif operation == "read":
        for data in (b"", b"x", os.urandom(700_000)):
            main.put(f"{at}/a b", data)
            assert tool.read(f"{at}/a b") == data
    elif operation == "read_part":
        data = os.urandom(700_000)
        main.put(f"{at}/x", data)
        assert tool.read_part(f"{at}/x", 10, 20) == data[10:20]
        assert tool.read_part(f"{at}/x", 0, 500_000) == data[:500_000]
    elif operation == "size":
        main.put(f"{at}/x", b"12345")
        assert tool.size(f"{at}/x") == 5
    elif operation == "list":
        paths = [f"{at}/{name}" for name in ("a", "b/c", "b/d e", "é", "z")]
        for path in paths:
            main.put(path, b"x")
        assert sorted(tool.list(f"{at}/")) == sorted(paths)
    elif operation == "delete":
        main.put(f"{at}/x", b"x")
        main.put(f"{at}/y", b"y")
        tool.delete(f"{at}/x")
        assert _objects(main, at) == [f"{at}/y"]
    elif operation == "delete_many":
        for name in "abc":
            main.put(f"{at}/{name}", b"x")
        tool.delete_many([f"{at}/a", f"{at}/b"])
        assert [one.path for one in main.list(f"{at}/")] == [f"{at}/c"]
    elif operation == "copy":
        main.put(f"{at}/x", b"copied", metadata={"k": "v"})
        tool.copy(f"{at}/x", f"{at}/y")
        assert main.read(f"{at}/y") == b"copied"
        assert main.stat(f"{at}/y").physical_address == main.stat(f"{at}/x").physical_address
    elif operation == "rename":
        main.put(f"{at}/x", b"renamed")
        tool.rename(f"{at}/x", f"{at}/y")
        assert _objects(main, at) == [f"{at}/y"]
    elif operation == "create":
        assert tool.create(f"{at}/x", b"first")
        assert not tool.create(f"{at}/x", b"second")
        assert main.read(f"{at}/x") == b"first"
    else:
        data = os.urandom(12 * MIB + 17)
        tool.write_in_parts(f"{at}/x", data)
        assert main.read(f"{at}/x") == data


def _objects(main: Branch, folder: str) -> list[str]:
    """What lies in a folder, without the markers that some tools leave for the folder itself."""
    return [one.path for one in main.list(f"{folder}/") if not one.path.endswith("/")]


def test_delta_tables_are_committed_without_a_lock(served: Served, main: Branch) -> None:
    """Several writers append at once; each commit is a put that demands that nobody was first."""
    import deltalake
    import pyarrow as pa

    place = f"s3://{REPOSITORY}/main/delta"
    options = {
        "AWS_ENDPOINT_URL": served.address,
        "AWS_ACCESS_KEY_ID": served.key,
        "AWS_SECRET_ACCESS_KEY": served.secret,
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
        "AWS_CONDITIONAL_PUT": "etag",
    }
    deltalake.write_deltalake(place, pa.table({"a": [0]}), storage_options=options)
    from concurrent.futures import ThreadPoolExecutor

    def append(n: int) -> None:
        deltalake.write_deltalake(place, pa.table({"a": [n]}), mode="append", storage_options=options)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(append, range(1, 17)))
    rows = deltalake.DeltaTable(place, storage_options=options).to_pyarrow_table()
    assert sorted(rows.column("a").to_pylist()) == list(range(17))


def test_polars_writes_and_scans(served: Served, main: Branch) -> None:
    import polars as pl

    options = {
        "aws_endpoint_url": served.address,
        "aws_access_key_id": served.key,
        "aws_secret_access_key": served.secret,
        "aws_region": "us-east-1",
        "aws_allow_http": "true",
    }
    frame = pl.DataFrame({"a": range(1000), "b": ["x"] * 1000})
    frame.write_parquet(f"s3://{REPOSITORY}/main/polars/one.parquet", storage_options=options)
    frame.write_parquet(f"s3://{REPOSITORY}/main/polars/two.parquet", storage_options=options)
    found = pl.scan_parquet(f"s3://{REPOSITORY}/main/polars/*.parquet", storage_options=options)
    assert found.select(pl.col("a").sum()).collect().item() == 2 * sum(range(1000))


def test_duckdb_reads_and_writes(served: Served, main: Branch) -> None:
    from tests.server.tools import DuckDb

    tool = DuckDb(served, REPOSITORY)
    tool.write_table("duckdb/one.parquet", 1000)
    tool.write_table("duckdb/two.parquet", 10)
    assert [one.path for one in main.list("duckdb/")] == ["duckdb/one.parquet", "duckdb/two.parquet"]
    for scheme, pattern, rows in (("s3", "duckdb/*.parquet", 1010), ("lakefs", "duckdb/one.parquet", 1000)):
        assert tool.scan(scheme, pattern)[0] == rows


def test_the_aws_command_line_syncs_folders_and_signs_links(served: Served, main: Branch, tmp_path: Path) -> None:
    from tests.server.tools import AwsCli

    tool = AwsCli(served, REPOSITORY)
    for name in ("a.txt", "b/c.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    tool.run("s3", "sync", str(tmp_path), f"{tool.root}/synced")
    assert [one.path for one in main.list("synced/")] == ["synced/a.txt", "synced/b/c.txt"]
    assert b"a.txt" in tool.run("s3", "ls", f"{tool.root}/synced/")
    url = tool.run("s3", "presign", f"{tool.root}/synced/a.txt").decode().strip()
    with urllib.request.urlopen(url) as response:
        assert response.read() == b"a.txt"
    assert tool.run("s3", "sync", str(tmp_path), f"{tool.root}/synced") == b""  # nothing has changed
    tool.run("s3", "rm", "--recursive", f"{tool.root}/synced/")
    assert main.list("synced/").first() is None


def test_lakefs_spec_knows_what_it_has_already(served: Served, main: Branch, tmp_path: Path) -> None:
    """It compares an object's checksum with the MD5 of a file, and transfers nothing if they are equal."""
    from tests.server.tools import LakefsSpec

    fs = LakefsSpec(served, REPOSITORY).fs
    (tmp_path / "x").write_bytes(b"content")
    place = f"lakefs://{REPOSITORY}/main/spec/x"
    fs.put_file(str(tmp_path / "x"), place)
    before = main.stat("spec/x")
    assert before.etag == hashlib.md5(b"content").hexdigest()
    fs.put_file(str(tmp_path / "x"), place)
    assert main.stat("spec/x").physical_address == before.physical_address
    fs.get_file(place, str(tmp_path / "y"))
    assert (tmp_path / "y").read_bytes() == b"content"
    fs.rm(f"lakefs://{REPOSITORY}/main/spec/", recursive=True)
    assert main.list("spec/").first() is None


def test_pyarrow_reads_a_folder_as_one_table(served: Served, main: Branch) -> None:
    import pyarrow as pa
    import pyarrow.dataset as ds

    from tests.server.tools import Pyarrow

    fs = Pyarrow(served, REPOSITORY).fs
    table = pa.table({"k": ["a", "b", "a"], "v": [1, 2, 3]})
    ds.write_dataset(table, f"{REPOSITORY}/main/dataset", filesystem=fs, format="parquet", partitioning=["k"])
    found = ds.dataset(f"{REPOSITORY}/main/dataset", filesystem=fs, partitioning=["k"]).to_table()
    assert sorted(found.column("v").to_pylist()) == [1, 2, 3]


def test_lakefs_transactions_and_branches(served: Served, lake: Lake) -> None:
    import lakefs
    from lakefs.client import Client

    client = Client(host=served.address, username=served.key, password=served.secret)
    repository = lakefs.Repository("high-level", client=client).create(storage_namespace="local://high-level")
    main = repository.branch("main")
    with main.transact(commit_message="in one") as tx:
        tx.object("a").upload(data=b"1")
        tx.object("b").upload(data=b"2")
        assert [one.id for one in repository.branches()] == ["main"]  # the transaction's own one is hidden
    assert main.head.get_commit().message.startswith("Merge")
    assert sorted(one.path for one in main.objects()) == ["a", "b"]
    dev = repository.branch("dev").create(source_reference="main")
    dev.object("c").upload(data=b"3")
    assert [(one.type, one.path) for one in dev.uncommitted()] == [("added", "c")]
    dev.commit("c", metadata={"by": "test"})
    assert [(one.type, one.path) for one in main.diff(dev)] == [("added", "c")]
    dev.merge_into(main)
    assert [one.message for one in main.log(max_amount=2)] == ["Merge 'dev' into 'main'", "c"]
    main.revert("main", parent_number=1)
    assert sorted(one.path for one in main.objects()) == ["a", "b"]
    tag = lakefs.Tag("high-level", "v1", client=client).create(dev)
    assert tag.get_commit().message == "c"
    picked = main.cherry_pick("dev")
    assert (picked.metadata or {})["cherry-pick-origin"] == dev.get_commit().id
    main.object("gone").upload(data=b"x")
    main.reset_changes()
    assert not main.object("gone").exists()
    assert lake.repository("high-level").settings.namespace.endswith("/high-level")
    repository.delete()
    assert "high-level" not in [one.id for one in lakefs.repositories(client=client)]


def test_a_conflict_names_its_paths(served: Served, lake: Lake) -> None:
    from tests.server.tools import LakefsSdk

    repository = lake.repository("conflicts", create=True)
    main = repository.branch("main")
    dev = repository.create_branch("dev")
    for branch, text in ((main, "ours"), (dev, "theirs")):
        branch.put("same.txt", text)
        branch.commit(text)
    tool = LakefsSdk(served, "conflicts")
    api = tool.client.refs_api
    shown = api.diff_refs("conflicts", "main", "dev")
    assert [(one.type, one.path) for one in shown.results] == [("conflict", "same.txt")]
    with pytest.raises(tool.sdk.exceptions.ApiException) as caught:
        api.merge_into_branch("conflicts", "dev", "main")
    assert caught.value.status == 409
    body = json.loads(caught.value.body)
    assert body["reference"] == ""
    assert [one["path"] for one in body["conflicts"]] == ["same.txt"]
    api.merge_into_branch("conflicts", "dev", "main", merge=tool.sdk.Merge(strategy="source-wins"))
    assert main.read("same.txt") == b"theirs"
