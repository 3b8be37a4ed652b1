"""Clients without rights in the object store: requests that the server signs for them, and credentials of an STS."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.utils.concurrent import ExecutorFactory

import strandline
from strandline.iceberg import Catalog
from strandline.lake import Lake
from strandline.repository.branch import Branch
from strandline.server.lending.lender import Lender
from strandline.server.services import Options
from tests.harness import servers
from tests.harness.serving import Served, serving
from tests.server.iceberg_client import SCHEMA, Client, kind_of, statement
from tests.server.inside import Inside, inside, run

pytestmark = pytest.mark.server
ROWS = pa.table({"k": pa.array([1, 2, 3], pa.int64()), "s": ["a", "b", "c"]})
ROLE = "arn:aws:iam::123456789012:role/lake"


@pytest.fixture
def url(s3_endpoint: str, tmp_path: Path) -> str:
    return f"s3://lake/{tmp_path.name}?endpoint={s3_endpoint}&region=us-east-1"


@pytest.fixture
def lake(url: str, tmp_path: Path) -> Iterator[Lake]:
    with strandline.open(kv=f"memory://{tmp_path.name}", blob=url, create=True) as made:
        yield made


def server_of(lake: Lake, mode: str) -> Any:
    return inside(Options(iceberg_credentials=mode), lake)


def main_of(server: Inside) -> Branch:
    return server.lake.repository("repo", create=True).branch("main")


class Sts(BaseHTTPRequestHandler):
    """A stand-in for an STS, which gives what the store takes, and remembers what it was asked for."""

    asked: list[dict[str, str]] = []  # noqa: RUF012 - of all handlers
    fails = False
    session = ""

    def do_POST(self) -> None:
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        self.asked.append({name: values[0] for name, values in form.items()})
        ends = (datetime.now(UTC) + timedelta(seconds=int(form["DurationSeconds"][0]))).strftime("%Y-%m-%dT%H:%M:%SZ")
        body = (
            '<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult><Credentials>'
            f"<AccessKeyId>{servers.ACCESS_KEY}</AccessKeyId><SecretAccessKey>{servers.SECRET_KEY}</SecretAccessKey>"
            f"<SessionToken>{self.session}</SessionToken><Expiration>{ends}</Expiration>"
            "</Credentials></AssumeRoleResult></AssumeRoleResponse>"
        ).encode()
        self.send_response(403 if self.fails else 200)
        self.send_header("Content-Type", "text/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def sts() -> Iterator[str]:
    Sts.asked.clear()
    Sts.fails, Sts.session = False, ""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Sts)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def sent(signed: Any, method: str, data: bytes | None = None) -> tuple[int, bytes]:
    """What the store answers to a request as it was signed."""
    request = urllib.request.Request(signed["uri"], data=data, method=method)
    for name, values in signed["headers"].items():
        request.add_header(name, ", ".join(values))
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


# --- signed requests --------------------------------------------------------------------------------------------------


def test_the_store_takes_what_the_server_signs(lake: Lake, s3_endpoint: str) -> None:
    with server_of(lake, "signed") as server:

        async def test() -> None:
            main_of(server)
            client = Client(server)
            made = await client.table()
            assert made["config"]["s3.remote-signing-enabled"] == "true"
            assert made["config"]["s3.signer.endpoint"] == "v1/repo/main/namespaces/db/tables/t/sign"
            held = (await client.ask("GET", "namespaces/db/tables/t"))[1]
            assert held["config"] == made["config"]
            base = held["metadata"]["location"].replace("s3://", f"{s3_endpoint}/")
            place = held["metadata-location"].replace("s3://", f"{s3_endpoint}/")

            async def sign(method: str, uri: str, **headers: str) -> tuple[int, Any, dict[str, str]]:
                given = {"method": method, "uri": uri, "region": "us-east-1"}
                return await client.ask(
                    "POST",
                    "namespaces/db/tables/t/sign",
                    {**given, "headers": {name.replace("_", "-"): [value] for name, value in headers.items()}},
                )

            status, signed, headers = await sign("GET", place, Range="bytes=0-0")
            assert (status, headers["Cache-Control"]) == (200, "private")
            assert sent(signed, "GET") == (206, b"{")
            status, signed, headers = await sign(
                "PUT", f"{base}/data/new.parquet", x_amz_content_sha256="UNSIGNED-PAYLOAD"
            )
            assert (status, headers["Cache-Control"]) == (200, "no-cache")
            assert sent(signed, "PUT", b"rows")[0] == 200
            status, signed, _ = await sign("GET", f"{base}/data/new.parquet")
            assert sent(signed, "GET") == (200, b"rows")
            # the signature is of this request alone
            assert sent({**signed, "uri": place}, "GET")[0] == 403
            for method, uri in (
                ("DELETE", f"{base}/data/new.parquet"),
                ("GET", place.replace("/ice/", "/ice/../")),
                ("GET", f"{s3_endpoint}/lake/other"),
                ("PUT", place.replace("/metadata/", "/../metadata/")),
            ):
                assert kind_of(await sign(method, uri)) == (403, "ForbiddenException"), uri
            assert kind_of(await sign("PUT", f"{base}/data/x", x_amz_acl="public-read")) == (403, "ForbiddenException")
            assert kind_of(await client.ask("POST", "namespaces/db/tables/t/sign", {"method": "GET"}))[0] == 400
            answer = await client.ask("POST", "namespaces/db/tables/none/sign", {"method": "GET", "uri": place})
            assert kind_of(answer) == (403, "ForbiddenException")

        run(test())


def test_a_reader_has_no_writes_signed(lake: Lake, s3_endpoint: str) -> None:
    with server_of(lake, "signed") as server:

        async def test() -> None:
            main_of(server)
            made = await Client(server).table()
            other = await Client(server).table("other")
            server.directory.create_policy(
                "reads", (statement(("fs:ReadObject", "tables/db/t/_iceberg.metadata.json")),)
            )
            reader = Client(server, login=server.user("reader", "reads"))
            place, elsewhere = (one["metadata-location"].replace("s3://", f"{s3_endpoint}/") for one in (made, other))

            async def sign(method: str, uri: str, name: str = "t", prefix: str = "repo/main") -> int:
                client = Client(server, prefix, reader.login)
                return (await client.ask("POST", f"namespaces/db/tables/{name}/sign", {"method": method, "uri": uri}))[
                    0
                ]

            assert await sign("GET", place) == 200
            assert await sign("PUT", place) == 403
            assert await sign("GET", elsewhere) == 403
            assert await sign("GET", elsewhere, "other") == 403
            server.lake.repository("repo").create_tag("v1", "main")
            admin = Client(server, "repo/v1")
            body = {"method": "PUT", "uri": place}
            assert (await admin.ask("POST", "namespaces/db/tables/t/sign", body))[0] == 403  # a tag is not written
            assert (await admin.ask("POST", "namespaces/db/tables/t/sign", {**body, "method": "GET"}))[0] == 200

        run(test())


def test_files_of_a_table_that_is_only_staged(lake: Lake, s3_endpoint: str) -> None:
    """As CREATE TABLE … AS SELECT writes them; nobody else's key gets a signature, and no other table's."""
    with server_of(lake, "signed") as server:

        async def test() -> None:
            main_of(server)
            client = Client(server)
            other = await client.table("other")
            body = {"name": "fresh", "schema": SCHEMA, "stage-create": True}
            _, staged, _ = await client.ask("POST", "namespaces/db/tables", body)
            assert staged["config"]["s3.signer.endpoint"].endswith("/tables/fresh/sign")
            base = staged["metadata"]["location"].replace("s3://", f"{s3_endpoint}/")

            async def sign(uri: str, name: str = "fresh", login: Any = True) -> int:
                asking = Client(server, login=login)
                answer = await asking.ask("POST", f"namespaces/db/tables/{name}/sign", {"method": "PUT", "uri": uri})
                return answer[0]

            assert await sign(f"{base}/data/a.parquet") == 200
            assert await sign(f"{base}/data/a.parquet", "another") == 403
            assert await sign(f"{base}/data/a.parquet", login=server.user("second", "FSFullAccess")) == 403
            assert await sign(other["metadata"]["location"].replace("s3://", f"{s3_endpoint}/") + "/data/a") == 403
            # the table is made with that key, and with no other table's
            for location, is_kept in (
                (staged["metadata"]["location"], True),
                (other["metadata"]["location"], False),
            ):
                name = "fresh" if is_kept else "thief"
                updates = [
                    {"action": "assign-uuid", "uuid": staged["metadata"]["table-uuid"]},
                    {"action": "upgrade-format-version", "format-version": 2},
                    {"action": "add-schema", "schema": staged["metadata"]["schemas"][0]},
                    {"action": "set-current-schema", "schema-id": -1},
                    {"action": "add-spec", "spec": {"spec-id": 0, "fields": []}},
                    {"action": "set-default-spec", "spec-id": -1},
                    {"action": "add-sort-order", "sort-order": {"order-id": 0, "fields": []}},
                    {"action": "set-default-sort-order", "sort-order-id": -1},
                    {"action": "set-location", "location": location},
                ]
                made = {"requirements": [{"type": "assert-create"}], "updates": updates}
                status, held, _ = await client.ask("POST", f"namespaces/db/tables/{name}", made)
                assert status == 200, held
                assert (held["metadata"]["location"] == location) is is_kept

        run(test())


def test_files_of_native_tables_that_a_table_was_made_of(lake: Lake, s3_endpoint: str) -> None:
    with server_of(lake, "signed") as server:

        async def test() -> None:
            main = main_of(server)
            main.table("plain").write(ROWS, message="native")
            main.table("secret").write(ROWS, message="native")
            Catalog(main).create_namespace("db")
            main.table("plain").to_iceberg("db.t")
            urls = {}
            for name in ("plain", "secret"):
                (file,) = main.table(name).files()
                urls[name] = main._core.resolver.namespace.spark_url(file.info.physical_address)
            client = Client(server)
            for name, expected in (("plain", 200), ("secret", 403)):
                uri = urls[name].replace("s3a://", f"{s3_endpoint}/")
                asked = {"method": "GET", "uri": uri}
                status, signed, _ = await client.ask("POST", "namespaces/db/tables/t/sign", asked)
                assert status == expected
                if status == 200:
                    assert sent(signed, "GET")[0] == 200
                put = await client.ask("POST", "namespaces/db/tables/t/sign", {**asked, "method": "PUT"})
                assert put[0] == 403

        run(test())


@pytest.mark.parametrize("mode", ["none", "vended"])
def test_nothing_is_signed_unless_the_server_does(mode: str, lake: Lake) -> None:
    with server_of(lake, mode) as server:

        async def test() -> None:
            main_of(server)
            client = Client(server)
            made = await client.table()
            assert made["config"] == {}
            body = {"method": "GET", "uri": "http://x/y"}
            answer = await client.ask("POST", "namespaces/db/tables/t/sign", body)
            assert kind_of(answer) == (406, "UnsupportedOperationException")
            listed = (await client.config())[1]["endpoints"]
            assert any(one.endswith("/credentials") for one in listed) is (mode == "vended")

        run(test())


def test_a_lake_in_a_folder_needs_none(tmp_path: Path) -> None:
    made = strandline.open(tmp_path / "lake", create=True, synced=False)
    with inside(Options(iceberg_credentials="signed"), made) as server:

        async def test() -> None:
            main_of(server)
            assert (await Client(server).table())["config"] == {}
            body = {"method": "GET", "uri": "http://x/y"}
            answer = await Client(server).ask("POST", "namespaces/db/tables/t/sign", body)
            assert kind_of(answer) == (406, "UnsupportedOperationException")

        run(test())


# --- credentials of an STS --------------------------------------------------------------------------------------------


def test_a_change_that_was_made_is_never_answered_as_if_it_was_not(lake: Lake) -> None:
    """Though the STS is away, of which the answer would have credentials."""
    with server_of(lake, "vended") as server:
        server.services.lender = Lender(ROLE, "http://127.0.0.1:1", 900)

        async def test() -> None:
            main_of(server)
            client = Client(server)
            wanted = {"X-Iceberg-Access-Delegation": "vended-credentials"}
            await client.ask("POST", "namespaces", {"namespace": ["db"]})
            schema = {"type": "struct", "fields": [{"id": 1, "name": "k", "required": False, "type": "long"}]}
            body = {"name": "t", "schema": schema}
            made = await client.ask("POST", "namespaces/db/tables", body, headers=wanted)
            assert made[0] == 200
            assert "storage-credentials" not in made[1]
            changes = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"x": "1"}}]}
            changed = await client.ask("POST", "namespaces/db/tables/t", changes, headers=wanted)
            assert changed[0] == 200
            assert changed[1]["metadata"]["properties"]["x"] == "1"
            # reading needs them, and changes nothing
            assert (await client.ask("GET", "namespaces/db/tables/t", headers=wanted))[0] == 503

        run(test())


def test_credentials_are_lent_for_a_table(lake: Lake, sts: str) -> None:
    with server_of(lake, "vended") as server:
        server.services.lender = Lender(ROLE, sts, 900)
        Sts.session = "session"

        async def test() -> None:
            main_of(server)
            client = Client(server)
            await client.table()
            wanted = {"X-Iceberg-Access-Delegation": "vended-credentials"}
            status, held, headers = await client.ask("GET", "namespaces/db/tables/t", headers=wanted)
            assert status == 200
            assert headers["Cache-Control"] == "no-store"
            (lent,) = held["storage-credentials"]
            key = held["metadata"]["location"].partition("/ice/")[2].partition("/")[0]
            assert lent["prefix"].endswith(f"/ice/{key}/")
            assert lent["config"]["s3.access-key-id"] == servers.ACCESS_KEY
            assert lent["config"]["s3.session-token"] == "session"
            assert held["config"]["client.refresh-credentials-endpoint"].endswith("/tables/t/credentials")
            (asked,) = Sts.asked
            assert (asked["RoleArn"], asked["DurationSeconds"]) == (ROLE, "900")
            assert asked["RoleSessionName"] == "strandline-admin"
            given = json.loads(asked["Policy"])["Statement"]
            assert [one["Action"] for one in given[:2]] == ["s3:GetObject", "s3:ListBucket"]
            assert given[2]["Resource"].endswith(f"{held['metadata']['location'].partition('/ice/')[2]}/*")
            # the same for the same, until half of their time is over
            again = (await client.ask("GET", "namespaces/db/tables/t", headers=wanted))[1]
            assert again["storage-credentials"] == held["storage-credentials"]
            fresh = (await client.ask("GET", "namespaces/db/tables/t/credentials"))[1]
            assert fresh["storage-credentials"] == held["storage-credentials"]
            assert len(Sts.asked) == 1
            # none unless the client takes them
            for headers_ in ({}, {"X-Iceberg-Access-Delegation": "client-managed, vended-credentials"}):
                plain = (await client.ask("GET", "namespaces/db/tables/t", headers=headers_))[1]
                assert "storage-credentials" not in plain
                assert plain["config"] == {}
            # another user's are others, and a reader's write nothing
            need = statement(("fs:ReadObject", "tables/db/t/_iceberg.metadata.json"))
            server.directory.create_policy("reads", (need,))
            reader = Client(server, login=server.user("reader", "reads"))
            assert (await reader.ask("GET", "namespaces/db/tables/t", headers=wanted))[0] == 200
            assert "s3:PutObject" not in Sts.asked[-1]["Policy"]
            stranger = Client(server, login=server.user("stranger"))
            assert (await stranger.ask("GET", "namespaces/db/tables/t/credentials"))[0] == 403
            assert len(Sts.asked) == 2

        run(test())


def test_an_sts_that_gives_none_is_a_refusal_without_secrets(lake: Lake, sts: str) -> None:
    with server_of(lake, "vended") as server:
        server.services.lender = Lender(ROLE, sts, 900)
        Sts.fails = True

        async def test() -> None:
            main_of(server)
            client = Client(server)
            await client.table()
            wanted = {"X-Iceberg-Access-Delegation": "vended-credentials"}
            status, answer, _ = await client.ask("GET", "namespaces/db/tables/t", headers=wanted)
            assert status == 503
            assert servers.SECRET_KEY not in json.dumps(answer)
            assert servers.SECRET_KEY not in repr(server.services.lender)

        run(test())


# --- PyIceberg in a process without rights --------------------------------------------------------------------------


@pytest.fixture(params=["signed", "vended"])
def served(request: pytest.FixtureRequest, url: str, sts: str, tmp_path: Path) -> Iterator[Served]:
    more = ["--iceberg-role", ROLE, "--iceberg-sts", sts] if request.param == "vended" else []
    kv = f"sqlite://{tmp_path}/lake.db"
    options = ["--kv", kv, "--blob", url, "--iceberg-credentials", request.param, *more]
    with strandline.open(kv=kv, blob=url, create=True) as lake:
        lake.create_repository("nyc")
    environment = {"STRANDLINE_SECRET_KEY": "a long enough secret key for tests"}
    with serving(tmp_path, *options, environment=environment) as server:
        yield server


@pytest.mark.timeout(120)
def test_pyiceberg_reads_and_writes_with_no_rights_of_its_own(
    served: Served, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, s3_endpoint: str
) -> None:
    # PyIceberg 0.12 takes its signer off a client of s3fs, and puts it back, for each of its threads: requests of the
    # others go unsigned in between (docs/iceberg.md)
    monkeypatch.setenv("PYICEBERG_MAX_WORKERS", "1")
    monkeypatch.setattr(ExecutorFactory, "_instance", None)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    base = f"{served.address}/iceberg"
    catalog = load_catalog(
        "c",
        type="rest",
        uri=base,
        warehouse="nyc/main",
        credential=f"{served.key}:{served.secret}",
        **{"oauth2-server-uri": f"{base}/v1/oauth/tokens", "header.X-Iceberg-Access-Delegation": "vended-credentials"},
    )
    catalog.create_namespace("db")
    table = catalog.create_table("db.t", ROWS.schema)
    table.append(ROWS)
    table.append(ROWS)
    assert catalog.load_table("db.t").scan().to_arrow().num_rows == 6
    table = catalog.load_table("db.t")
    table.delete("k = 1")
    assert sorted(catalog.load_table("db.t").scan().to_arrow()["k"].to_pylist()) == [2, 2, 3, 3]
