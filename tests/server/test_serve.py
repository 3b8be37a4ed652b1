"""`strandline serve` as a process: its first start, its configuration, its ends, and what it prints."""

from __future__ import annotations

import base64
import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

import strandline
from strandline.cli import run
from strandline.errors import InvalidSettings, UsageError
from strandline.server.configuration import configure
from tests.harness import servers
from tests.harness.serving import Served, serving, start, stop
from tests.server.tools import boto_client

pytestmark = pytest.mark.server


def api(served: Served, method: str, path: str, body: Any = None, login: tuple[str, str] | None = None) -> Any:
    key, secret = login or (served.key, served.secret)
    headers = {"Authorization": "Basic " + base64.b64encode(f"{key}:{secret}".encode()).decode()}
    data = None
    if body is not None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers["Content-Type"] = "application/json"
    request = urllib.request.Request(f"{served.address}/api/v1{path}", data, headers, method=method)
    with urllib.request.urlopen(request, timeout=30) as response:
        raw = response.read()
    return json.loads(raw) if raw[:1] in (b"{", b"[") else raw


def code_of(call: Any) -> int:
    with pytest.raises(urllib.error.HTTPError) as caught:
        call()
    return int(caught.value.code)


def test_the_first_start_makes_a_lake_and_an_admin(folder: Path) -> None:
    with serving(folder, "lake") as served:
        assert stat.S_IMODE((folder / "lake" / "server.key").stat().st_mode) == 0o600
        assert api(served, "GET", "/user")["user"]["id"] == "admin"
        assert api(served, "GET", "/setup_lakefs")["state"] == "initialized"
        assert code_of(lambda: api(served, "POST", "/setup_lakefs", {"username": "second"})) == 409
        api(served, "POST", "/repositories", {"name": "nyc", "storage_namespace": "local://nyc"})
        assert stop(served) == 0
    with strandline.open(folder / "lake") as lake:
        assert [one.name for one in lake.repositories()] == ["nyc"]
        lake.repository("nyc").gc.plan(grace_days=1.05)
        with pytest.raises(UsageError, match="served"):  # addresses that were given out are written to for a day
            lake.repository("nyc").gc.run(grace_days=0.5)
        lake.repository("nyc").branch("main").put("beside", b"the server")
    with serving(folder, "lake") as again:
        assert api(again, "GET", "/repositories/nyc/refs/main/objects?path=beside") == b"the server"


def test_the_server_says_how_to_connect(folder: Path) -> None:
    command = [sys.executable, "-m", "strandline.cli", "serve", "lake", "--port", "0", "--no-sync"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder)
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("Objects are at"):
            break
    told = "".join(lines)
    address = told.split(" at ", 1)[1].split()[0]
    key = told.split("access key id")[1].split()[0]
    secret = told.split("secret access key")[1].split()[0]
    for client in ("lakefs.Client", "boto3.client", "storage_options", "CREATE SECRET", "/iceberg", "s3a.endpoint"):
        assert client in told
    ready = next(one for one in lines if "boto3.client" in one).split("boto3    ")[1].replace("SECRET", secret)
    assert f'"{address}"' in ready
    import boto3

    client = eval(ready, {"boto3": boto3})
    assert client.list_buckets()["Buckets"] == []
    assert key in ready
    process.terminate()
    assert process.wait(20) == 0
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()


def test_many_users_and_what_they_may(served: Served) -> None:
    api(served, "POST", "/repositories", {"name": "users", "storage_namespace": "local://users"})
    api(served, "POST", "/auth/users", {"id": "ann"})
    api(served, "PUT", "/auth/groups/Viewers/members/ann")
    keys = api(served, "POST", "/auth/users/ann/credentials")
    ann = (keys["access_key_id"], keys["secret_access_key"])
    assert api(served, "GET", "/repositories/users", login=ann)["id"] == "users"
    assert code_of(lambda: api(served, "POST", "/repositories/users/branches/main/objects?path=x", b"x", ann)) == 401
    s3 = boto_client(served, key=ann[0], secret=ann[1])
    assert s3.list_objects_v2(Bucket="users", Prefix="main/")["KeyCount"] == 0
    with pytest.raises(Exception, match="AccessDenied"):
        s3.put_object(Bucket="users", Key="main/x", Body=b"x")
    other = api(served, "POST", "/auth/users/ann/credentials")
    shown = {name: other[name] for name in ("access_key_id", "secret_access_key")}
    token = json.loads(_raw(served, "/auth/login", shown))["token"]
    request = urllib.request.Request(f"{served.address}/api/v1/user", headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request) as response:
        assert json.load(response)["user"]["id"] == "ann"
    # what was revoked is void when the call returns, remembered or not
    api(served, "DELETE", f"/auth/users/ann/credentials/{ann[0]}")
    assert code_of(lambda: api(served, "GET", "/user", login=ann)) == 401
    with pytest.raises(Exception, match="InvalidAccessKeyId"):
        s3.list_objects_v2(Bucket="users", Prefix="main/")
    with urllib.request.urlopen(request) as response:  # its token is of another key
        assert response.status == 200
    api(served, "DELETE", "/auth/users/ann/sessions")
    assert code_of(lambda: urllib.request.urlopen(request)) == 401


def _raw(served: Served, path: str, body: Any) -> bytes:
    request = urllib.request.Request(
        f"{served.address}/api/v1{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as response:
        found: bytes = response.read()
    return found


def test_wrong_secrets_are_slowed_down(folder: Path) -> None:
    with serving(folder, "lake") as served:
        codes = [code_of(lambda: api(served, "GET", "/user", login=(served.key, "wrong" * 8))) for _ in range(15)]
        assert codes[:10] == [401] * 10
        assert 429 in codes


def test_links_for_stores_that_sign_none(served: Served) -> None:
    api(served, "POST", "/repositories", {"name": "links", "storage_namespace": "local://links"})
    place = "/repositories/links/branches/main"
    api(served, "POST", f"{place}/objects?path=a%20b", b"content")
    shown = api(served, "GET", "/repositories/links/refs/main/objects/stat?path=a%20b&presign=true")
    url = shown["physical_address"]
    assert shown["physical_address_expiry"] > time.time()
    with urllib.request.urlopen(url) as response:  # without any key
        assert response.read() == b"content"
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert response.headers["Content-Disposition"] == "attachment"
    assert code_of(lambda: urllib.request.urlopen(url[:-2] + "xx")) == 403
    assert code_of(lambda: urllib.request.urlopen(urllib.request.Request(url, b"x", method="PUT"))) == 405
    # writing: an address with a link, the bytes, then the object
    backing = api(served, "GET", f"{place}/staging/backing?path=new&presign=true")
    put = urllib.request.Request(backing["presigned_url"], b"written", method="PUT")
    with urllib.request.urlopen(put) as response:
        etag = response.headers["ETag"].strip('"')
    assert code_of(lambda: urllib.request.urlopen(put)) == 409
    body = {"staging": {"physical_address": backing["physical_address"]}, "checksum": etag, "size_bytes": 7}
    assert code_of(lambda: api(served, "PUT", f"{place}/staging/backing?path=other", body)) == 400
    assert code_of(lambda: api(served, "PUT", f"{place}/staging/backing?path=new", body | {"size_bytes": 8})) == 400
    assert api(served, "PUT", f"{place}/staging/backing?path=new", body)["size_bytes"] == 7
    assert api(served, "GET", "/repositories/links/refs/main/objects?path=new") == b"written"
    for forged in ("local://links/data/x", "local://other/data/x", "local://links/../x", "data/x"):
        forgery = body | {"staging": {"physical_address": forged}}
        answered = code_of(lambda given=forgery: api(served, "PUT", f"{place}/staging/backing?path=new", given))
        assert answered in (400, 404, 410), forged


def test_metrics_and_health(served: Served) -> None:
    for path in ("/_health", "/healthcheck"):
        with urllib.request.urlopen(served.address + path) as response:
            assert response.status == 200
    api(served, "GET", "/config")
    with urllib.request.urlopen(served.address + "/metrics") as response:
        text = response.read().decode()
    assert 'strandline_requests_total{operation="getConfig",status="200"}' in text
    with urllib.request.urlopen(served.address + "/openapi.json") as response:
        assert json.load(response)["openapi"].startswith("3.1")


def test_lines_of_the_access_log_hold_no_secrets(folder: Path) -> None:
    served = start(folder, "lake", "--no-sync", "--access-log")
    request = urllib.request.Request(f"{served.address}/api/v1/user?secret=hidden", headers={"X-Request-ID": "my-id"})
    assert code_of(lambda: urllib.request.urlopen(request)) == 401
    api(served, "GET", "/user")
    served.process.send_signal(signal.SIGTERM)
    _, told = served.process.communicate(timeout=20)
    lines = [json.loads(line) for line in told.splitlines() if line.startswith("{")]
    assert [(one["operation"], one["status"], one["user"]) for one in lines] == [
        ("getCurrentUser", 401, ""),
        ("getCurrentUser", 200, "admin"),
    ]
    assert lines[0]["id"] == "my-id"
    assert "hidden" not in told
    assert served.secret not in told


def test_what_is_under_way_ends_before_the_server(folder: Path) -> None:
    """SIGTERM in the middle of an upload: it is answered, and it is there."""
    with serving(folder, "lake") as served:
        api(served, "POST", "/repositories", {"name": "stop", "storage_namespace": "local://stop"})
        from tests.server.test_http1 import auth, connected, received, status

        with connected(served) as sock:
            head = (
                b"POST /api/v1/repositories/stop/branches/main/objects?path=x HTTP/1.1\r\nHost: localhost\r\n"
                + auth(served)
            )
            sock.sendall(head + b"Content-Length: 100000\r\n\r\n" + b"x" * 50_000)
            time.sleep(0.3)
            served.process.terminate()
            time.sleep(0.3)
            sock.sendall(b"x" * 50_000)
            answer = received(sock)
        assert status(answer) == 201
        assert b"Connection: close" in answer
        assert served.process.wait(20) == 0
    with strandline.open(folder / "lake") as lake:
        assert lake.repository("stop").branch("main").read("x") == b"x" * 100_000


def test_a_killed_server_loses_nothing_that_it_acknowledged(folder: Path) -> None:
    """kill -9 under load, several times: every write that was answered with 201 is there."""
    from tests.server.test_http1 import auth, connected, status

    acknowledged: set[str] = set()
    for round in range(3):
        served = start(folder, "lake", "--no-sync")
        if not round:
            api(served, "POST", "/repositories", {"name": "kill", "storage_namespace": "local://kill"})
        over = threading.Event()

        def load(n: int, round: int = round, served: Served = served, over: threading.Event = over) -> None:
            head = b"POST /api/v1/repositories/kill/branches/main/objects?path=%s HTTP/1.1\r\nHost: localhost\r\n"
            try:
                with connected(served) as sock:
                    for i in range(100_000):
                        path = f"{round}/{n}/{i}"
                        sock.sendall(head % path.encode() + auth(served) + b"Content-Length: 3\r\n\r\nabc")
                        answer = sock.recv(65536)
                        if status(answer) != 201:
                            return
                        acknowledged.add(path)
            except OSError:
                return

        threads = [threading.Thread(target=load, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        time.sleep(0.5)
        served.process.kill()
        served.process.communicate()
        over.set()
        for thread in threads:
            thread.join()
    assert len(acknowledged) > 100
    with strandline.open(folder / "lake") as lake:
        main = lake.repository("kill").branch("main")
        there = {one.path for one in main.list()}
        assert acknowledged <= there
        assert main.read(max(acknowledged)) == b"abc"
        assert lake.repository("kill").fsck().is_sound


@pytest.mark.parametrize("damage", ["a worker is killed", "all are stopped"])
def test_workers_on_postgresql(folder: Path, damage: str, request: pytest.FixtureRequest) -> None:
    """Two workers: each write is seen by both, and a worker that dies is started anew."""
    with servers.postgres() as url:
        options = ("--kv", url, "--blob", str(folder / "data"), "--workers", "2")
        with strandline.open(kv=url, blob=str(folder / "data"), create=True, synced=False):
            pass
        secret = {"STRANDLINE_SECRET_KEY": "a long secret key for tests"}
        served = start(folder, *options, environment=secret)
        try:
            api(served, "POST", "/repositories", {"name": "many", "storage_namespace": "local://many"})
            for n in range(40):
                api(served, "POST", f"/repositories/many/branches/main/objects?path={n:03d}", b"x")
                assert api(served, "GET", f"/repositories/many/refs/main/objects?path={n:03d}") == b"x"
            workers = _children(served.process.pid)
            assert len(workers) == 2
            if damage == "a worker is killed":
                os.kill(workers[0], signal.SIGKILL)
                until = time.monotonic() + 20
                while len(set(_children(served.process.pid)) - {workers[0]}) < 2 and time.monotonic() < until:
                    time.sleep(0.1)
                assert len(set(_children(served.process.pid)) - {workers[0]}) == 2
                for _ in range(10):
                    assert len(api(served, "GET", "/repositories/many/refs/main/objects/ls")["results"]) == 40
            # a key that was made void by one worker is void in the other one as well
            api(served, "POST", "/auth/users", {"id": "ann"})
            api(served, "PUT", "/auth/groups/Viewers/members/ann")
            keys = api(served, "POST", "/auth/users/ann/credentials")
            ann = (keys["access_key_id"], keys["secret_access_key"])
            for _ in range(10):
                api(served, "GET", "/repositories/many", login=ann)
            api(served, "DELETE", "/auth/users/ann")
            for _ in range(10):
                assert code_of(lambda: api(served, "GET", "/repositories/many", login=ann)) == 401
        finally:
            assert stop(served) == 0
        assert not [pid for pid in workers if Path(f"/proc/{pid}").exists() and pid != os.getpid()]


def _children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--workers", "2"), "one worker"),
        (("--workers", "0"), "workers is 0"),
        (("--port", "70000"), "port is 70000"),
        (("--host", "0.0.0.0"), "other machines"),
        (("--host", "256.1.1.1"), "other machines"),
        (("--cert", "x"), "belong together"),
        (("--cert", "x", "--key", "y"), "cannot be used"),
        (("--http", "fast"), "own or plain"),
        (("--public-url", "lake.example"), "http"),
        (("--public-url", "http://"), "http"),
        (("--public-url", "http://lake.example/path"), "http"),
        (("--trusted-proxies", "10.0.0.0/8,nonsense"), "nonsense"),
        (("--s3-domain", "http://x"), "s3_domain"),
        (("--s3-flat", "a/b"), "s3_flat"),
        (("--cors", "*"), "cors"),
        (("--idle-s", "0"), "idle_s is 0"),
        (("--iceberg-credentials", "some"), "expected 'none'"),
        (("--iceberg-credentials", "signed"), "not in S3"),
        (("--iceberg-credentials", "vended"), "needs iceberg_role"),
        (("--iceberg-role", "arn:aws:iam::1:role/x"), "only if iceberg_credentials is vended"),
        (
            ("--kv", "memory://x", "--blob", "s3://bucket/lake", "--iceberg-credentials", "signed"),
            "credentials of its own",
        ),
        (("--object-max-bytes", "1"), "object_max_bytes is 1"),
        (("--config", "missing.toml"), "cannot be read"),
        (("--kv", "postgresql://127.0.0.1:1/x", "--blob", "data"), ""),
        (("--kv", "sqlite:///x/y"), "which object store"),
    ],
)
def test_configurations_that_cannot_be_served(
    options: tuple[str, ...],
    said: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("STRANDLINE_SECRET_KEY", "a long secret key for tests")
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    place = () if "--kv" in options else ("lake",)
    for more in ((), ("--check",)):
        assert run(["serve", *place, *options, *more]) in (2, 9)
        told = capsys.readouterr()
        assert said in told.err, told
        assert "Traceback" not in told.err
    assert not (folder / "lake").exists()


def test_check_says_where_each_value_comes_from(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    (folder / "server.toml").write_text('s3_region = "eu-north-1"\nport = 9001\n[lake]\nfolder = "here"\n')
    monkeypatch.setenv("STRANDLINE_SERVE_PORT", "0")
    monkeypatch.setenv("STRANDLINE_SECRET_KEY", "a long secret key for tests")
    assert run(["serve", "--config", "server.toml", "--check", "--access-log", "--json"]) == 0
    rows = {one["name"]: one for one in map(json.loads, capsys.readouterr().out.splitlines()) if "name" in one}
    assert (rows["port"]["value"], rows["port"]["origin"]) == ("0", "STRANDLINE_SERVE_PORT")
    assert (rows["s3_region"]["value"], rows["s3_region"]["origin"]) == ("eu-north-1", "server.toml")
    assert rows["access_log"]["origin"] == "--access-log"
    assert rows["host"]["origin"] == "the default"
    assert rows["lake"]["value"].endswith("here")
    assert not any("long secret" in str(row) for row in rows.values())
    assert run(["serve", "--config", "server.toml", "--check"]) == 0
    assert "iceberg_credentials: none  (the default)" in capsys.readouterr().out  # which is not a secret
    (folder / "server.toml").write_text("prot = 1\n")
    assert run(["serve", "--config", "server.toml", "--check"]) == 2
    assert "prot" in capsys.readouterr().err


def test_a_secret_key_that_was_lost_is_noticed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(folder, "lake"):
        pass
    file = folder / "lake" / "server.key"
    monkeypatch.chdir(folder)
    for lose in (file.unlink, lambda: file.write_text("another secret key of a server")):
        lose()
        held = file.exists()
        for more in ((), ("--check",)):
            assert run(["serve", "lake", "--port", "0", *more]) == 2
            assert "secret key" in capsys.readouterr().err
            assert file.exists() == held  # a new one would only hide it
        file.touch(0o600)
    file.unlink()
    (folder / "keys").unlink()
    with serving(folder, "lake", "--new-admin-key") as served:  # the way out
        assert api(served, "GET", "/user")["user"]["id"] == "admin"


@pytest.mark.parametrize(
    ("variable", "value"), [("PORT", "many"), ("BEHIND_PROXY", "perhaps"), ("WORKERS", "1.5"), ("PROT", "1")]
)
def test_wrong_values_in_the_environment(variable: str, value: str) -> None:
    with pytest.raises(InvalidSettings, match=f"STRANDLINE_SERVE_{variable}"):
        configure("lake", environment={f"STRANDLINE_SERVE_{variable}": value})


def test_secrets_do_not_print() -> None:
    made = configure(
        "lake", environment={"STRANDLINE_SECRET_KEY": "hidden-away-1234567", "STRANDLINE_SETUP_TOKEN": "hidden-too"}
    )
    assert "hidden" not in repr(made)
