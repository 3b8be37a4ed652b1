"""Imports over REST: many sources in one commit, each place judged; how they end: test_import_endings.py."""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import strandline
from strandline.blob import open_store
from strandline.iam.records import Statement
from strandline.repository.branch import Branch
from tests.harness.serving import serving
from tests.server.inside import BASE, Inside, body_of, inside, run

MAIN = f"{BASE}/repositories/repo/branches/main"
SOURCE = "s3://lake/for-imports"
OBJECTS = {f"a/{n}.txt": b"%d" % n for n in range(5)} | {"b/one file%20.txt": b"b"}


@pytest.fixture(scope="module")
def bucket(s3_endpoint: str) -> str:
    """The options of a store with `OBJECTS` at `SOURCE`."""
    options = f"?endpoint={s3_endpoint}&region=us-east-1"
    store = open_store(SOURCE + options)
    for key, data in OBJECTS.items():
        store.put(key, data)
    return options


@pytest.fixture
def server(bucket: str, tmp_path: Path) -> Iterator[Inside]:
    lake = strandline.open(kv=f"memory://{tmp_path.name}", blob=f"s3://lake/{tmp_path.name}{bucket}", create=True)
    with inside(lake=lake) as made:
        made.lake.create_repository("repo").branch("main")
        yield made


async def ask(server: Inside, method: str, query: str = "", body: Any = None, **more: Any) -> tuple[int, Any]:
    response = await server.ask(
        method, f"{MAIN}/import{query}", b"" if body is None else json.dumps(body).encode(), **more
    )
    shown = body_of(response)
    return response.status, json.loads(shown) if shown else None


async def ended(server: Inside, id: str) -> Any:
    for _ in range(600):
        status, shown = await ask(server, "GET", f"?id={id}")
        assert status == 200
        if shown["completed"] or "error" in shown:
            return shown
        time.sleep(0.02)
    raise AssertionError("It does not end.")


def prefix(path: str, destination: str) -> dict[str, str]:
    return {"type": "common_prefix", "path": path, "destination": destination}


def single(path: str, destination: str) -> dict[str, str]:
    return {"type": "object", "path": path, "destination": destination}


def branch_of(server: Inside) -> Branch:
    return server.lake.repository("repo").branch("main")


def shown_paths(branch: Branch) -> list[str]:
    return [row.path for row in branch.list()]


@pytest.mark.server
def test_many_sources_are_one_commit_that_replaces(server: Inside) -> None:
    branch = branch_of(server)
    branch.put_many({"in/old": b"goes", "in2": b"stays", "single": b"replaced"})
    branch.commit("before")

    async def test() -> None:
        paths = [prefix(f"{SOURCE}/a/", "in/"), single(f"{SOURCE}/b/one file%20.txt", "single")]
        body = {"paths": paths, "commit": {"message": "", "metadata": {"by": "me"}}}
        status, shown = await ask(server, "POST", body=body)
        assert (status, list(shown)) == (202, ["id"])
        done = await ended(server, shown["id"])
        assert done["ingested_objects"] == 6
        assert done["commit"]["message"] == "Import objects"
        assert done["commit"]["metadata"] == {"by": "me"}
        assert done["commit"]["committer"] == "admin"
        assert done["metarange_id"] == done["commit"]["meta_range_id"]
        assert done["update_time"].endswith("Z")
        assert shown_paths(branch) == [*(f"in/{n}.txt" for n in range(5)), "in2", "single"]
        assert branch.read("in/3.txt") == b"3"
        assert branch.read("single") == b"b"
        assert branch.commit_id == done["commit"]["id"]
        assert (await ask(server, "DELETE", f"?id={shown['id']}"))[0] == 409
        # the same once more changes nothing, and says so
        status, shown = await ask(server, "POST", body=body)
        again = await ended(server, shown["id"])
        assert again["completed"]
        assert "commit" not in again
        assert not list(branch.uncommitted())

    run(test())


@pytest.mark.server
def test_what_cannot_be_imported_is_refused(server: Inside) -> None:
    branch = branch_of(server)
    branch.put("x", b"1")
    branch.commit("first")
    own = server.services.namespace_shown("repo")

    async def test() -> None:
        good = prefix(f"{SOURCE}/a/", "in/")
        for paths in (
            [],
            [prefix("/etc", "in/")],
            [prefix("file:///etc", "in/")],
            [prefix("local://x/", "in/")],
            [prefix("http://127.0.0.1/x", "in/")],
            [prefix(f"{SOURCE}/a/?endpoint=http://127.0.0.1:1", "in/")],
            [prefix("s3://user:secret@lake/a", "in/")],
            [prefix("s3:///secret/", "in/")],
            [prefix("s3://[lake/a/", "in/")],
            [prefix("s3://\u2100/a/", "in/")],
            [prefix("s3://lake//for-imports/a/", "in/")],
            [prefix("s3://lake/for-\timports/a/", "in/")],
            [prefix("s3://lake/x/../for-imports/a/", "in/")],
            [single("s3://lake", "x")],
            [prefix(own, "in/")],
            [prefix(f"{own}/data/", "in/")],
            [single(f"{own}/data/x", "in/x")],
            [single(f"{SOURCE}/a/", "x")],
            [single(f"{SOURCE}/a/1.txt", "")],
            [single(f"{SOURCE}/a/1.txt", "a\0")],
            [good] * 1_001,
            [{**good, "type": "folder"}],
        ):
            status, shown = await ask(server, "POST", body={"paths": paths})
            assert status == 400, (paths[:1], status, shown)
        for commit in ({"message": "x" * 100_000}, {"metadata": {"a": "x" * 100_000}}):
            assert (await ask(server, "POST", body={"paths": [good], "commit": commit}))[0] == 400
        for paths in (
            [prefix(f"{SOURCE}/nothing/", "in/")],
            [single(f"{SOURCE}/a/9.txt", "x")],
            [prefix(f"{SOURCE}/a", "in/"), single(f"{SOURCE}/a/1.txt", "in/1.txt")],
        ):
            status, shown = await ask(server, "POST", body={"paths": paths})
            assert status == 202
            done = await ended(server, shown["id"])
            assert not done["completed"]
            assert done["error"]["message"], paths
        branch.put("in/0.txt", b"staged")
        status, shown = await ask(server, "POST", body={"paths": [good]})
        assert "uncommitted changes in the way" in (await ended(server, shown["id"]))["error"]["message"]
        for id in ("x", "", "0" * 20, "../../x", "é"):
            for method in ("GET", "DELETE"):
                assert (await ask(server, method, f"?id={id.encode().hex() if id == 'é' else id}"))[0] == 404
        assert (await ask(server, "GET"))[0] == 400

        assert next(iter(branch.log())).message == "first"
        server.lake.repository("repo").protect("main")
        assert (await ask(server, "POST", body={"paths": [good]}))[0] == 403

    run(test())


@pytest.mark.server
def test_every_place_of_an_import_is_judged(server: Inside) -> None:
    """A source, a destination, and what a destination's replacement deletes."""

    async def test() -> None:
        allowed = {
            "fs:CreateCommit": "arn:lakefs:fs:::repository/repo/branch/main",
            "fs:ImportFromStorage": "arn:lakefs:fs:::namespace/s3://lake/for-imports/*",
            "fs:WriteObject": "arn:lakefs:fs:::repository/repo/object/in/*",
            "fs:DeleteObject": "arn:lakefs:fs:::repository/repo/object/in/*",
        }
        for missing in (None, *allowed):
            rows = tuple(Statement("allow", (action,), on) for action, on in allowed.items() if action != missing)
            name = f"all-but-{(missing or 'none').partition(':')[2] or 'none'}"
            server.directory.create_policy(name, rows)
            login = server.user(name, name)
            body = {"paths": [prefix(f"{SOURCE}/a/", "in/")]}
            status, shown = await ask(server, "POST", body=body, login=login)
            assert status == (202 if missing is None else 401), (missing, shown)
            if missing is None:
                await ended(server, shown["id"])
                for path, destination in ((f"{SOURCE}/a/", "other/"), ("s3://lake/x/", "in/"), (f"{SOURCE}/a/", "")):
                    other = {"paths": [prefix(path, destination)]}
                    assert (await ask(server, "POST", body=other, login=login))[0] == 401
                assert (await ask(server, "GET", f"?id={shown['id']}", login=login))[0] == 401
                assert (await ask(server, "DELETE", f"?id={shown['id']}", login=login))[0] == 401

    run(test())


@pytest.mark.server
def test_a_denial_holds_however_a_place_is_written(server: Inside) -> None:
    """Of a part of a source, of a part of a destination, and of a source in another spelling."""

    async def test() -> None:
        secret = "arn:lakefs:fs:::namespace/s3://lake/for-imports/b/*"
        kept = "arn:lakefs:fs:::repository/repo/object/in/keep/*"
        rows = (
            Statement("allow", ("fs:*",), "*"),
            Statement("deny", ("fs:ImportFromStorage",), secret),
            Statement("deny", ("fs:DeleteObject",), kept),
        )
        server.directory.create_policy("some", rows)
        login = server.user("some", "some")
        for path, destination, status in (
            (f"{SOURCE}/b/", "out/", 401),
            (f"{SOURCE}/b", "out/", 401),
            (f"{SOURCE}/", "out/", 401),
            ("s3://lake", "out/", 401),
            (f"{SOURCE}//b/", "out/", 400),
            (f"{SOURCE}/a/", "in/", 401),
            (f"{SOURCE}/a/", "", 401),
            (f"{SOURCE}/a/", "in/keep/x/", 401),
            (f"{SOURCE}/a/", "in/other/", 202),
        ):
            body = {"paths": [prefix(path, destination)]}
            assert (await ask(server, "POST", body=body, login=login))[0] == status, (path, destination)
        one = {"path": "linked", "checksum": "x", "size_bytes": 1}
        for address, status in (
            (f"{SOURCE}/a/x", 200),
            (f"{SOURCE}/b/x", 401),
            (f"{SOURCE}/%62/x", 401),
            (f"{SOURCE}/a/%2e%2e/b/x", 400),
            (f"{SOURCE}//b/x", 400),
        ):
            given = json.dumps({"objects": [{**one, "physical_address": address}]}).encode()
            response = await server.ask("POST", f"{MAIN}/objects/stage", given, login=login)
            assert response.status == status, (address, body_of(response))

    run(test())


@pytest.mark.server
def test_lakefs_imports(bucket: str, tmp_path: Path) -> None:
    """lakeFS's own package, against a server as a process."""
    lakefs: Any = importlib.import_module("lakefs")
    client_of: Any = importlib.import_module("lakefs.client").Client
    kv, blob = f"sqlite://{tmp_path}/meta.db", f"s3://lake/{tmp_path.name}{bucket}"
    strandline.open(kv=kv, blob=blob, create=True).close()
    secret = {"STRANDLINE_SECRET_KEY": "a long secret key for tests"}
    with serving(tmp_path, "--kv", kv, "--blob", blob, environment=secret) as at:
        client = client_of(host=at.address, username=at.key, password=at.secret)
        repository = lakefs.Repository("repo", client=client).create(
            storage_namespace=f"s3://lake/{tmp_path.name}/repo"
        )
        branch = repository.branch("main")
        manager = branch.import_data(commit_message="from the bucket", metadata={"a": "b"})
        manager.prefix(f"{SOURCE}/a/", "in/").object(f"{SOURCE}/b/one file%20.txt", "one")
        done = manager.run(poll_interval=timedelta(milliseconds=50))
        assert (done.completed, done.ingested_objects, done.commit.message) == (True, 6, "from the bucket")
        assert branch.object("in/4.txt").reader(mode="rb").read() == b"4"
        assert branch.object("one").reader(mode="rb").read() == b"b"
        with pytest.raises(lakefs.exceptions.ConflictException):
            manager.cancel()
        nothing = branch.import_data().prefix(f"{SOURCE}/nothing/", "x/")
        with pytest.raises(lakefs.exceptions.LakeFSException, match="no object"):
            nothing.run(poll_interval=timedelta(milliseconds=50))
