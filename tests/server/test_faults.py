"""What reviewers broke: each of these was a fault once."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import socket
import threading
import time
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from strandline.errors import StrandlineError
from strandline.iam.records import Statement
from strandline.lake import Lake
from strandline.redaction import Secret
from strandline.repository.branch import Branch
from strandline.server.auth.login_limit import FEW, MANY, shown_address
from strandline.server.auth.tokens import Tokens
from strandline.server.auth.verifier import Verifier
from strandline.server.messages import Request
from strandline.server.refusals import NotAuthenticated
from strandline.server.rest.table import OPERATIONS
from tests.harness.serving import Served, serving, stop
from tests.server.inside import BASE, Asked, body_of, inside, run
from tests.server.test_http1 import HEAD, auth, connected, exchange, received, status
from tests.server.test_lanes import Sent, entry
from tests.server.test_lanes import run as in_lanes

pytestmark = pytest.mark.server
OBJECTS = b"/api/v1/repositories/faults/branches/main/objects"


@pytest.fixture
def main(lake: Lake) -> Branch:
    return lake.repository("faults", create=True).branch("main")


def test_a_body_that_nobody_asked_for_does_not_eat_the_answer(served: Served, main: Branch) -> None:
    raw = b"GET /api/v1/repositories/faults/refs/main/objects/stat?path=nope HTTP/1.1\r\nHost: localhost\r\n" + auth(
        served
    )
    assert status(exchange(served, raw + b"Content-Length: 2\r\n\r\n{}")) == 404


def test_large_bodies_from_callers_that_are_not_remembered(served: Served, main: Branch) -> None:
    body = json.dumps({"access_key_id": served.key, "secret_access_key": served.secret}).encode()
    login = urllib.request.Request(
        f"{served.address}/api/v1/auth/login", body, {"Content-Type": "application/json"}, method="POST"
    )
    with urllib.request.urlopen(login) as response:
        token = json.load(response)["token"]
    data = bytes(20 << 20)
    for n in range(4):
        request = urllib.request.Request(
            f"{served.address}{OBJECTS.decode()}?path=large{n}",
            data,
            {"Authorization": f"Bearer {token}"},
            method="POST",
        )
        with urllib.request.urlopen(request, timeout=20) as response:
            assert response.status == 201


def test_a_client_that_reads_nothing_fills_no_memory(served: Served) -> None:
    def rss() -> int:
        return int(Path(f"/proc/{served.process.pid}/statm").read_text().split()[1]) * 4096

    before = rss()
    with connected(served) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(1)
        request = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
        try:
            for _ in range(2_000):
                sock.sendall(request)
        except TimeoutError:
            pass  # the server reads no more
        time.sleep(0.5)
        assert rss() - before < 60 << 20
    assert status(exchange(served, HEAD + b"\r\n")) == 204


def test_what_others_wrote_is_no_header(served: Served, main: Branch) -> None:
    for checksum in ("x\r\nX-Injected: 1", 'x"y', "ü", "", "x" * 500):
        given = {"staging": {"physical_address": "s3://b/k"}, "checksum": checksum, "size_bytes": 1}
        raw = json.dumps(given).encode()
        place = b"PUT /api/v1/repositories/faults/branches/main/staging/backing?path=h HTTP/1.1\r\nHost: localhost\r\n"
        answer = exchange(served, place + auth(served) + b"Content-Length: %d\r\n\r\n" % len(raw) + raw)
        assert status(answer) == 400, answer
    # and what came by the library stands in no header of its own either
    import msgspec

    entry = msgspec.structs.replace(
        entry_of(main), checksum="etag:x\r\nX-Injected: 1", user_metadata='{"a":"b\\r\\nX: 1"}'
    )
    main.stage("odd", entry)
    raw = b"HEAD /api/v1/repositories/faults/refs/main/objects?path=odd HTTP/1.1\r\nHost: localhost\r\n" + auth(served)
    answer = exchange(served, raw + b"Connection: close\r\n\r\n")
    assert status(answer) == 200
    assert b"\nX" not in answer.replace(b"\nX-Request-ID", b"").replace(b"\nX-Content-Type", b"")


def entry_of(main: Branch) -> Any:
    from strandline.tree.rows import Entry

    info = main.put("plain", b"plain")
    return Entry(info.physical_address, info.size, info.checksum, info.modified_at_us)


def test_a_fault_does_not_stop_a_lane(main: Branch, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Branch.stage_each
    calls: list[int] = []

    def fail_once(self: Branch, rows: Any) -> int:
        calls.append(1)
        if len(calls) == 1:
            raise OSError("a fault")
        return plain(self, rows)

    monkeypatch.setattr(Branch, "stage_each", fail_once)

    async def test(sent: Sent) -> None:
        sent.send(0, "p0")
        await sent.settled(1)
        sent.send(1, "p1")
        await sent.settled(2)

    for inline in (True, False):
        calls.clear()
        outcomes = in_lanes(test, main, inline=inline).outcomes
        assert isinstance(outcomes[0], OSError)
        assert outcomes[1] is None
    assert entry().size == 0


def test_a_late_body_is_judged_by_what_holds_then() -> None:
    """The head comes from a user that may; the end of its body from one that was deleted."""

    class Late(Asked):
        __slots__ = ("then",)

        def collect(self, most: int, then: Any, more: Any = None) -> None:
            self.then = then

    async def test() -> None:
        with inside() as server:
            server.lake.create_repository("repo")
            for path, body in (
                (f"{BASE}/auth/users", b'{"id": "new"}'),
                (f"{BASE}/repositories/repo/branches/main/objects?path=x", b"x"),
            ):
                for headers in ({}, {b"if-none-match": b"*"}):
                    login = server.user("bob", "AuthFullAccess", "FSFullAccess")
                    token = b"Basic " + base64.b64encode(":".join(login).encode())
                    given = {b"host": b"x", b"authorization": token, b"content-length": b"5", **headers}
                    exchange = Late(Request("POST", path.encode(), given, "127.0.0.1"), body)
                    server.app.begin(exchange)
                    while not hasattr(exchange, "then"):
                        await asyncio.sleep(0.01)
                    server.directory.delete_user("bob")
                    server.services.verifier.look()
                    exchange.then(body)
                    response = await asyncio.wait_for(exchange.answer, 10)
                    assert response.status == 401, (path, response.body)
            assert not server.lake.repository("repo").branch("main").exists("x")

    run(test())


def test_a_body_that_is_read_late_is_judged_by_what_holds_then() -> None:
    """A large body reaches its handler while it comes: its sender was deleted before the end of it."""
    rows = pa.table({"id": pa.array(range(200_000), pa.int64())})
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    bodies = {"uploadObject": b"x" * (2 << 20), "appendToShard": sink.getvalue()}
    assert {one.id for one in OPERATIONS if one.body is bytes} == set(bodies)

    class Halfway(io.BytesIO):
        def __init__(self, data: bytes, then: Any) -> None:
            super().__init__(data)
            self.then = then

        def read(self, size: int | None = -1) -> bytes:
            data = super().read(size)
            if not data:
                self.then()
            return data

    class Streamed(Asked):
        __slots__ = ("then",)
        then: Callable[[], None]

        def collect(self, most: int, then: Any, more: Any = None) -> None:
            more(Halfway(self.body, self.then))

    async def test() -> None:
        with inside() as server:
            repository = server.lake.create_repository("repo")
            repository.shard("events", rows.schema, key=["id"])
            targets = {
                "uploadObject": "/branches/main/objects?path=x",
                "appendToShard": "/shards/events/append?expected_upper=0&new_upper=1",
            }
            writes = Statement("allow", ("fs:WriteObject", "strandline:AppendToShard"), "*")
            server.directory.create_policy("writes", (writes,))
            for name, target in targets.items():
                login = server.user("bob", "writes")
                token = b"Basic " + base64.b64encode(":".join(login).encode())
                given = {b"host": b"x", b"authorization": token, b"transfer-encoding": b"chunked"}
                path = f"{BASE}/repositories/repo{target}".encode()
                exchange = Streamed(Request("POST", path, given, "127.0.0.1"), bodies[name])

                deleted: list[None] = []

                def gone(deleted: list[None] = deleted) -> None:
                    if not deleted:
                        deleted.append(server.directory.delete_user("bob"))
                        server.services.verifier.look()

                exchange.then = gone
                server.app.begin(exchange)
                response = await asyncio.wait_for(exchange.answer, 30)
                assert response.status == 401, (name, response.body)
            assert not repository.branch("main").exists("x")
            assert repository.shard("events").upper.time == 0

    run(test())


def test_tokens_are_of_one_user_and_one_key() -> None:
    async def test() -> None:
        with inside() as server:

            async def asks(token: str) -> int:
                response = await server.ask(
                    "GET", f"{BASE}/user", headers={"Authorization": f"Bearer {token}"}, login=None
                )
                return response.status

            async def logs_in(login: tuple[str, str]) -> str:
                given = json.dumps({"access_key_id": login[0], "secret_access_key": login[1]}).encode()
                response = await server.ask("POST", f"{BASE}/auth/login", given, login=None)
                return str(json.loads(body_of(response))["token"])

            login = server.user("bob", "AuthManageOwnCredentials")
            token = await logs_in(login)
            assert await asks(token) == 200
            server.directory.delete_user("bob")
            assert await asks(token) == 401
            again = server.user("bob", "AuthManageOwnCredentials")  # another one, with the name of the first
            assert await asks(token) == 401
            token = await logs_in(again)
            assert await asks(token) == 200
            server.directory.delete_credential("bob", again[0])
            assert await asks(token) == 401

    run(test())


def test_a_list_gives_out_links_only_to_what_may_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        with inside() as server:
            main = server.lake.create_repository("repo").branch("main")
            main.put("a/open", b"1")
            main.put("secret", b"2")
            place = "arn:lakefs:fs:::repository/repo"
            statements = (
                Statement("allow", ("fs:ListObjects",), place),
                Statement("allow", ("fs:ReadObject",), f"{place}/object/a/*"),
            )
            server.directory.create_policy("lists", statements)
            login = server.user("lister", "lists")
            response = await server.ask(
                "GET", f"{BASE}/repositories/repo/refs/main/objects/ls?presign=true", login=login
            )
            rows = {one["path"]: one["physical_address"] for one in json.loads(body_of(response))["results"]}
            assert "/links/" in rows["a/open"]
            assert rows["secret"].startswith("mem://")

    run(test())


def test_addresses_that_no_client_may_name(served: Served, main: Branch) -> None:
    wrong = (
        "file:///etc/passwd",
        "FILE:///etc/passwd",
        "File://localhost/etc/passwd",
        "s3://b/k?endpoint=http://127.0.0.1:1",
        "s3://user:word@b/k",
        "s3://b/k#x",
        "http://127.0.0.1:1/x",
        "memory://x/y",
        "S3://b/k",
        "s3://",
        "/etc/passwd",
    )
    for address in wrong:
        one = {"physical_address": address, "checksum": "x", "size_bytes": 1}
        for method, path, body in (
            (b"PUT", OBJECTS + b"?path=x", one),
            (b"PUT", OBJECTS.replace(b"objects", b"staging/backing") + b"?path=x", {**one, "staging": one}),
            (b"POST", OBJECTS + b"/stage", {"objects": [{**one, "path": "x"}]}),
        ):
            raw = json.dumps(body).encode()
            head = method + b" " + path + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + auth(served)
            answer = exchange(served, head + b"Content-Length: %d\r\n\r\n" % len(raw) + raw)
            assert status(answer) == 400, (address, answer)
    assert not main.exists("x")


def test_odd_times_break_no_list(served: Served, main: Branch) -> None:
    import msgspec

    raw = b'{"objects": [{"path": "t", "physical_address": "s3://b/k", "checksum": "x", "size_bytes": 1, "mtime": %d}]}'
    for moment in (-1, 9_000_000_000_000):
        body = raw % moment
        head = b"POST " + OBJECTS + b"/stage HTTP/1.1\r\nHost: localhost\r\n" + auth(served)
        assert status(exchange(served, head + b"Content-Length: %d\r\n\r\n" % len(body) + body)) == 400
    from tests.server.tools import boto_client

    s3 = boto_client(served)
    for moment in (-(10**15), 9 * 10**18):
        main.stage("times/odd", msgspec.structs.replace(entry_of(main), modified_at=moment))
        assert s3.list_objects_v2(Bucket="faults", Prefix="main/times/")["KeyCount"] == 1
        assert s3.head_object(Bucket="faults", Key="main/times/odd")["ContentLength"] == 5
        stat = (
            b"GET /api/v1/repositories/faults/refs/main/objects?path=times/odd HTTP/1.1\r\nHost: localhost\r\n"
            + auth(served)
        )
        assert status(exchange(served, stat + b"\r\n")) == 200


def test_a_stranger_locks_nobody_out() -> None:
    with inside() as server:
        verifier = server.services.verifier

        def shows(secret: str, peer: str) -> str:
            token = b"Basic " + base64.b64encode(f"{server.key}:{secret}".encode())
            try:
                return verifier.verify(Request("GET", b"/", {b"authorization": token}, peer)).user
            except StrandlineError as error:
                return str(getattr(error, "status", ""))

        assert [shows("wrong" * 8, "10.0.0.1") for _ in range(12)][-1] == "429"
        assert shows(server.secret, "10.0.0.2") == "admin"
        assert [shows("wrong" * 8, f"10.0.1.{n}") for n in range(120)][-1] == "429"
        assert Secret("x") == Secret("x")


def test_trailers_are_no_headers(served: Served, main: Branch) -> None:
    head = b"POST " + OBJECTS + b"?path=trailer HTTP/1.1\r\nHost: localhost\r\n" + auth(served)
    raw = head + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nX-Lakefs-Meta-Trailer: no\r\n\r\n"
    assert status(exchange(served, raw)) == 201
    assert main.stat("trailer").metadata == {}


def test_a_bad_request_behind_a_good_one_keeps_its_answer(served: Served, main: Branch) -> None:
    head = (
        b"POST "
        + OBJECTS
        + b"?path=good HTTP/1.1\r\nHost: localhost\r\n"
        + auth(served)
        + b"Content-Length: 1\r\n\r\nx"
    )
    for bad in (b"garbage\r\n\r\n", HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n"):
        answer = exchange(served, head + bad)
        assert status(answer) == 201, answer
    many = exchange(served, (HEAD + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n") * 50, count=50)
    assert many.count(b"HTTP/1.1 204") == 50


def test_a_server_ends_although_a_body_is_still_coming(tmp_path: Path) -> None:
    with serving(tmp_path, "lake") as served:
        import strandline

        with strandline.open(served.folder, synced=False) as lake:
            lake.create_repository("faults")
        with connected(served) as sock:
            head = b"POST " + OBJECTS + b"?path=x HTTP/1.1\r\nHost: localhost\r\n" + auth(served)
            sock.sendall(head + b"Content-Length: 50000000\r\n\r\n" + bytes(5 << 20))
            time.sleep(0.3)
            began = time.monotonic()
            assert stop(served) == 0
            assert time.monotonic() - began < 25


def test_idle_heads_hold_no_threads(served: Served, main: Branch) -> None:
    head = b"POST " + OBJECTS + b"?path=idle HTTP/1.1\r\nHost: localhost\r\n" + auth(served)
    held = []
    try:
        for _ in range(140):
            sock = connected(served)
            sock.sendall(head + b"Content-Length: 100000000\r\n\r\n")
            held.append(sock)
        data = bytes(3 << 20)
        raw = head.replace(b"path=idle", b"path=through") + b"Content-Length: %d\r\n\r\n" % len(data) + data
        with connected(served) as sock:
            threading.Thread(target=sock.sendall, args=(raw,), daemon=True).start()
            assert status(received(sock)) == 201
    finally:
        for sock in held:
            sock.close()


def test_what_is_not_done_is_not_accepted(served: Served, main: Branch) -> None:
    """A write that asks for encryption, tags or a lock is refused: nobody must believe that it has them."""
    from botocore.exceptions import ClientError

    from tests.server.tools import boto_client

    s3 = boto_client(served)
    main.put("unkept/source", b"x")
    asked: list[dict[str, Any]] = [
        {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "k"},
        {"Tagging": "a=b"},
        {"ObjectLockMode": "GOVERNANCE", "ObjectLockRetainUntilDate": "2030-01-01"},
        {"ACL": "public-read"},
    ]
    for more in asked:
        for call in (
            lambda more=more: s3.put_object(Bucket="faults", Key="main/unkept/x", Body=b"x", **more),
            lambda more=more: s3.create_multipart_upload(Bucket="faults", Key="main/unkept/x", **more),
            lambda more=more: s3.copy_object(
                Bucket="faults", Key="main/unkept/x", CopySource="faults/main/unkept/source", **more
            ),
        ):
            with pytest.raises(ClientError, match="NotImplemented"):
                call()
    assert [one.path for one in main.list("unkept/")] == ["unkept/source"]
    s3.put_object(Bucket="faults", Key="main/unkept/x", Body=b"x", ACL="private")


def test_the_checksum_of_a_whole_upload_is_compared(served: Served, main: Branch) -> None:
    """Before the object is staged; a wrong one leaves the upload as it was."""
    from botocore.exceptions import ClientError

    from tests.server.tools import boto_client

    s3 = boto_client(served)
    data = [b"a" * (5 << 20), b"the end"]
    crcs = [zlib.crc32(one) for one in data]
    right = {"FULL_OBJECT": text_of(zlib.crc32(data[1], crcs[0])), "COMPOSITE": f"{text_of(crc_of_crcs(crcs))}-2"}
    for kind, checksum in right.items():
        at = {"Bucket": "faults", "Key": f"main/whole/{kind}"}
        id = s3.create_multipart_upload(**at, ChecksumAlgorithm="CRC32", ChecksumType=kind)["UploadId"]
        parts = [
            {"PartNumber": n, "ETag": s3.upload_part(**at, UploadId=id, PartNumber=n, Body=one)["ETag"]}
            for n, one in enumerate(data, 1)
        ]
        given = {**at, "UploadId": id, "MultipartUpload": {"Parts": parts}, "ChecksumType": kind}
        number = "-2" if kind == "COMPOSITE" else ""
        for wrong in (text_of(7) + number, "AAAA" + number, text_of(7) + ("" if number else "-2")):
            with pytest.raises(ClientError, match="BadDigest|InvalidRequest"):
                s3.complete_multipart_upload(**given, ChecksumCRC32=wrong)
            assert main.find(f"whole/{kind}") is None
        s3.complete_multipart_upload(**given, ChecksumCRC32=checksum)
        assert main.read(f"whole/{kind}") == b"".join(data)
        assert s3.complete_multipart_upload(**given, ChecksumCRC32=checksum)["ETag"]


def text_of(crc: int) -> str:
    return base64.b64encode(crc.to_bytes(4, "big")).decode()


def crc_of_crcs(crcs: list[int]) -> int:
    return zlib.crc32(b"".join(one.to_bytes(4, "big") for one in crcs))


def test_a_caller_that_is_known_is_not_locked_out_by_others_behind_its_address() -> None:
    async def test() -> None:
        with inside() as server:
            assert (await server.ask("GET", f"{BASE}/config")).status == 200
            for number in range(MANY + 10):
                await server.ask("GET", f"{BASE}/config", login=(f"AKIAUNKNOWN{number:05d}", "x" * 30))
            server.services.verifier._principals.clear()  # so that the secret is looked at again
            assert (await server.ask("GET", f"{BASE}/config")).status == 200
            stranger = server.user("stranger", "FSReadAll")
            assert (await server.ask("GET", f"{BASE}/config", login=stranger)).status == 429

    run(test())


def test_workers_count_wrong_secrets_together() -> None:
    async def test() -> None:
        with inside() as one:
            sealer = one.directory._sealer
            other = Verifier(one.directory, Tokens(sealer.derive("tokens")), one.lake._clock)
            wrong = (one.key, "x" * 30)
            for _ in range(FEW):
                assert (await one.ask("GET", f"{BASE}/config", login=wrong)).status == 401
            attempts: list[int] = []
            with pytest.raises(NotAuthenticated) as refused:
                for number in range(FEW):
                    attempts.append(number)
                    with suppress_status(401):
                        other.log_in(one.key, "x" * 30, "127.0.0.1")
            assert refused.value.status == 429
            assert len(attempts) < FEW  # each worker by itself would let all of these through

    run(test())


@contextmanager
def suppress_status(status: int) -> Iterator[None]:
    try:
        yield
    except NotAuthenticated as error:
        if error.status != status:
            raise


def test_addresses_of_one_network_are_one() -> None:
    assert shown_address("2001:db8::1") == shown_address("2001:db8::ffff:2") != shown_address("2001:db8:0:1::1")
    assert shown_address("10.0.0.1") != shown_address("10.0.0.2")
    assert shown_address("nonsense") == "nonsense"


def test_links_end_with_the_key_that_they_were_made_with() -> None:
    async def test() -> None:
        with inside() as server:
            repository = server.lake.create_repository("repo")
            repository.branch("main").put("x", b"content")
            login = server.user("ann", "FSReadAll")
            stat = f"{BASE}/repositories/repo/refs/main/objects/stat?path=x&presign=true"

            async def link() -> str:
                answer = await server.ask("GET", stat, login=login)
                return str(json.loads(body_of(answer))["physical_address"]).partition(":8000")[2]

            first = await link()
            assert (await server.ask("GET", first, login=None)).status == 200
            server.directory.end_sessions("ann")
            assert (await server.ask("GET", first, login=None)).status == 401
            second = await link()
            repository.create_branch("other")
            server.directory.delete_credential("ann", login[0])
            assert (await server.ask("GET", second, login=None)).status == 401
            mine = await server.ask("GET", stat)
            url = str(json.loads(body_of(mine))["physical_address"]).partition(":8000")[2]
            server.lake.delete_repository("repo")
            again = server.lake.create_repository("repo")
            again.branch("main").put("x", b"another one's")
            assert (await server.ask("GET", url, login=None)).status == 404  # the name is another repository's

    run(test())


def test_an_upload_to_a_branch_that_was_made_anew_is_staged_there(main: Branch) -> None:
    async def test() -> None:
        with inside() as server:
            repository = server.lake.create_repository("repo")
            repository.create_branch("dev")
            target = f"{BASE}/repositories/repo/branches/dev/objects?path="
            assert (await server.ask("POST", target + "a", b"1")).status == 201
            repository.delete_branch("dev")
            repository.create_branch("dev")
            assert (await server.ask("POST", target + "b", b"2")).status == 201
            assert repository.branch("dev").read("b") == b"2"
            repository.delete_branch("dev")
            repository.create_branch("dev")
            assert (await server.sign("PUT", "/repo/dev/c", b"3")).status == 200
            assert repository.branch("dev").read("c") == b"3"

    run(test())
