"""The edge of HTTP: what no client should send, limits, slow and broken clients, and uvicorn as the oracle."""

from __future__ import annotations

import base64
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.lake import Lake
from strandline.server.http1_exchange import STREAMED_FROM, Http1Exchange
from strandline.server.incoming import HIGH_BYTES
from strandline.server.messages import Request
from tests.harness.serving import Served, serving

pytestmark = pytest.mark.server
SILENCE_S = 0.2


def connected(served: Served) -> socket.socket:
    host, _, port = served.host.partition(":")
    return socket.create_connection((host, int(port)), timeout=20)


def exchange(served: Served, raw: bytes, *, half_close: bool = False, count: int = 1) -> bytes:
    """All that comes back for some bytes: so many answers, and what follows them for a while."""
    with connected(served) as sock:
        sock.sendall(raw)
        if half_close:
            sock.shutdown(socket.SHUT_WR)
        return received(sock, count)


def received(sock: socket.socket, count: int = 1) -> bytes:
    """So many answers, however long they take, and what follows them until there is silence."""
    held = b""
    try:
        while True:
            sock.settimeout(30 if answers(held) < count else SILENCE_S)
            data = sock.recv(1 << 16)
            if not data:
                break
            held += data
    except (TimeoutError, ConnectionResetError):
        pass
    return held


def answers(held: bytes) -> int:
    """How many whole answers there are."""
    found = at = 0
    while (end := held.find(b"\r\n\r\n", at)) >= 0:
        length = re.search(rb"\r\nContent-Length: (\d+)", held[at:end])
        at = end + 4 + (int(length[1]) if length else 0)
        found += at <= len(held)
    return found


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else 0


def auth(served: Served) -> bytes:
    return b"Authorization: Basic " + base64.b64encode(f"{served.key}:{served.secret}".encode()) + b"\r\n"


HEAD = b"GET /api/v1/healthcheck HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (HEAD + b"\r\n", 204),
        (b"GET http://x/api/v1/healthcheck HTTP/1.1\r\nHost: localhost\r\n\r\n", 204),
        (b"GET /api/v1/healthcheck HTTP/1.1\r\n\r\n", 400),
        (HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello", 400),
        (HEAD + b"Content-Length: -1\r\n\r\n", 400),
        (HEAD + b"Content-Length: 5 5\r\n\r\nhello", 400),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (HEAD + b"Transfer-Encoding: gzip, chunked, identity\r\n\r\n", 400),
        (HEAD + b"X-A: b\r\n folded\r\n\r\n", 400),
        (HEAD + b"X A: b\r\n\r\n", 400),
        (HEAD + b"X-A: \x00\r\n\r\n", 400),
        (HEAD + b"Host: y\r\n\r\n", 400),
        (HEAD + b"Authorization: a\r\nAuthorization: b\r\n\r\n", 400),
        (HEAD.replace(b"\r\n", b"\n") + b"\n", 400),
        (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 414),
        (HEAD + b"X-A: " + b"a" * 30_000 + b"\r\n\r\n", 431),
        (HEAD + b"".join(b"X-%d: a\r\n" % n for n in range(300)) + b"\r\n", 431),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"GET /api/v1/%ff HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
        (b"GET /api/v1/repositories/%ff HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
        (b"DELETE /api/v1/healthcheck HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
        (b"GET /api/v1/nothing HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
        (b"GET /bucket/key HTTP/1.1\r\nHost: localhost\r\n\r\n", 403),
        (HEAD + b"Connection: Upgrade\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n", 204),
    ],
)
def test_odd_requests(served: Served, raw: bytes, expected: int) -> None:
    answer = exchange(served, raw)
    assert status(answer) == expected, answer[:300]
    assert answer.count(b"HTTP/1.1 ") == 1


def test_requests_of_one_connection_are_answered_in_their_order(served: Served, lake: Lake) -> None:
    lake.repository("edge", create=True)
    put = (
        b"POST /api/v1/repositories/edge/branches/main/objects?path=p%d HTTP/1.1\r\nHost: localhost\r\n"
        + auth(served).replace(b"%", b"%%")
        + b"Content-Length: 1\r\n\r\nx"
    )
    stat = b"GET /api/v1/repositories/edge/refs/main/objects/stat?path=p%d HTTP/1.1\r\nHost: localhost\r\n" + auth(
        served
    )
    raw = b"".join((put % n) + (stat % n) + b"\r\n" for n in range(10))
    answer = exchange(served, raw, count=20)
    assert answer.count(b"HTTP/1.1 201 ") == answer.count(b"HTTP/1.1 200 ") == 10
    assert [answer.find(b'"path":"p%d"' % n) for n in range(10)] == sorted(
        answer.find(b'"path":"p%d"' % n) for n in range(10)
    )


def test_a_body_is_asked_for_after_the_request_was_judged(served: Served, lake: Lake) -> None:
    lake.repository("edge", create=True)
    head = b"POST /api/v1/repositories/edge/branches/%s/objects?path=x HTTP/1.1\r\nHost: localhost\r\n%s"
    head += b"Expect: 100-continue\r\nContent-Length: 100000\r\n\r\n"
    with connected(served) as sock:
        sock.sendall(head % (b"main", auth(served)))
        assert received(sock) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.settimeout(10)
        sock.sendall(b"x" * 100_000)
        assert status(received(sock)) == 201
    for branch, login, expected in ((b"main", b"", 401), (b"missing", auth(served), 404)):
        with connected(served) as sock:
            sock.sendall(head % (branch, login))
            answer = received(sock)
            assert status(answer) == expected, answer
            assert b"100 Continue" not in answer
            assert b"Connection: close" in answer


def test_an_upload_that_is_cut_leaves_nothing(served: Served, lake: Lake) -> None:
    main = lake.repository("edge", create=True).branch("main")
    head = b"POST /api/v1/repositories/edge/branches/main/objects?path=cut%d HTTP/1.1\r\nHost: localhost\r\n" + auth(
        served
    ).replace(b"%", b"%%")
    for size in (10, 100_000, 3_000_000):
        exchange(served, head % size + b"Content-Length: %d\r\n\r\n" % size + b"x" * (size // 2), half_close=True)
        chunked = head % size + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % size + b"x" * (size // 2)
        exchange(served, chunked, half_close=True)
        assert not main.exists(f"cut{size}")
    answer = exchange(served, head % 1 + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n")
    assert status(answer) == 201
    assert main.read("cut1") == b"hello"


class Connection:
    """What an exchange uses of its connection; the client's bytes come from the test."""

    def __init__(self) -> None:
        self.shared = self
        self.collected = [0, 0]
        self._is_reading = True

    def reads(self) -> bool:
        return self._is_reading

    def time(self) -> float:
        return 0.0

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True

    def call(self, function: Callable[[], None]) -> None:
        function()


@pytest.mark.parametrize("begins_early", [True, False])
def test_a_body_that_nobody_reads_yet_stops_its_client(begins_early: bool) -> None:
    connection, bodies = Connection(), list[BinaryIO]()
    one = Http1Exchange(connection, Request("PUT", b"/", {b"transfer-encoding": b"chunked"}))  # type: ignore[arg-type]

    def collect() -> None:
        one.collect(STREAMED_FROM, lambda _: None, bodies.append)

    if begins_early:
        collect()
    sent = 0
    while connection.reads():
        one.feed(bytes(1 << 18))
        sent += 1 << 18
        assert sent < 4 * HIGH_BYTES
    if not begins_early:
        collect()
    assert not connection.reads()
    (body,) = bodies
    taken = 0
    while not connection.reads():
        taken += len(body.read(1 << 16))
    assert 0 < taken < sent


def test_slow_and_broken_clients_do_not_hold_up_others(served: Served, lake: Lake) -> None:
    """A thousand connections that send little or nothing, while others are served."""
    lake.repository("edge", create=True)
    held = []
    head = b"POST /api/v1/repositories/edge/branches/main/objects?path=slow HTTP/1.1\r\nHost: localhost\r\n" + auth(
        served
    )
    try:
        for n in range(1000):
            sock = connected(served)
            sock.sendall((HEAD, b"GET", head + b"Content-Length: 9000000\r\n\r\nx", head + b"Content-")[n % 4])
            held.append(sock)
        slowest = 0.0
        for n in range(50):
            began = time.monotonic()
            raw = head.replace(b"path=slow", b"path=fast%d" % n) + b"Content-Length: 1\r\nConnection: close\r\n\r\nx"
            assert status(exchange(served, raw)) == 201
            slowest = max(slowest, time.monotonic() - began)
        assert slowest < 5.0  # a server that waited for one of them would not answer at all
    finally:
        for sock in held:
            sock.close()


def test_too_slow_heads_are_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the watch over connections decides, at the times that it is given."""
    from strandline.server import connections, http1

    class Transport:
        closed = 0

        def get_extra_info(self, _: str) -> None:
            return None

        def close(self) -> None:
            self.closed += 1

        abort = close

        def write(self, data: bytes) -> None: ...
        def resume_reading(self) -> None: ...
        def can_write_eof(self) -> bool:
            return False

    class State:
        def __init__(self) -> None:
            self.connections: set[object] = set()

    import asyncio

    async def test() -> None:
        shared = connections.Connections(app=None)
        loop = asyncio.get_running_loop()
        for raw, limit in ((b"GET / HT", connections.HEAD_WITHIN_S), (b"", connections.IDLE_S)):
            transport = Transport()
            connection = http1.Http1(shared, State())
            connection.connection_made(transport)  # type: ignore[arg-type]
            connection.data_received(raw) if raw else None
            now = loop.time()
            shared.watch(now + limit - 1)
            closed = [transport.closed]
            shared.watch(now + limit + 1)
            assert [*closed, bool(transport.closed)] == [0, True]
            connection.connection_lost(None)

    asyncio.run(test())


# --- the same request through uvicorn's own protocol ------------------------------------------------------------------


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("plain"), "lake", "--http", "plain") as server:
        yield server


TOKENS = st.sampled_from([b"GET", b"HEAD", b"POST", b"PUT", b"DELETE"])
PATHS = st.sampled_from(
    [
        b"/api/v1/healthcheck",
        b"/api/v1/config",
        b"/api/v1/repositories/none",
        b"/_health",
        b"/x/y?z=%41",
        b"/api/v1/a%2Fb",
        b"/",
    ]
)
HEADERS = st.lists(
    st.sampled_from(
        [
            b"Accept: */*",
            b"X-Request-ID: abc",
            b"Range: bytes=0-1",
            b"If-None-Match: *",
            b"X-Odd: \xff\xfe",
            b"Cookie: a=b",
            b"Content-Type: text/plain",
        ]
    ),
    max_size=4,
    unique=True,
)
BODIES = st.sampled_from([None, b"", b"x", b"{}", b"x" * 5000])


def named(answer: bytes) -> dict[bytes, bytes]:
    """The headers of an answer, but for those that differ with the time and the request."""
    pairs = (line.partition(b":") for line in answer.partition(b"\r\n\r\n")[0].split(b"\r\n")[1:])
    found = {name.strip().lower(): value.strip() for name, _, value in pairs}
    assert found.pop(b"x-request-id")
    for name in (b"date", b"connection", b"server", b"x-amz-request-id"):
        found.pop(name, None)
    if (b"content-length" in found and b"request_id" in answer) or b"RequestId" in answer:
        found.pop(b"content-length", None)
    return found


@settings(max_examples=60)
@given(method=TOKENS, path=PATHS, headers=HEADERS, body=BODIES, chunked=st.booleans())
def test_both_protocols_answer_the_same(
    served: Served, plain: Served, method: bytes, path: bytes, headers: list[bytes], body: bytes | None, chunked: bool
) -> None:
    lines = [method + b" " + path + b" HTTP/1.1", b"Host: localhost", b"Connection: close", *headers]
    sent = b""
    if body is not None and chunked:
        lines.append(b"Transfer-Encoding: chunked")
        sent = (b"%x\r\n%s\r\n" % (len(body), body) if body else b"") + b"0\r\n\r\n"
    elif body is not None:
        lines.append(b"Content-Length: %d" % len(body))
        sent = body
    raw = b"\r\n".join(lines) + b"\r\n\r\n" + sent
    ours, theirs = (exchange(one, raw) for one in (served, plain))
    assert status(ours) == status(theirs) != 0, (raw, ours, theirs)
    strip = lambda answer: answer.partition(b"\r\n\r\n")[2].partition(b"request_id")[0].partition(b"<RequestId>")[0]  # noqa: E731
    assert strip(ours) == strip(theirs)
    assert named(ours) == named(theirs)


@settings(max_examples=150)
@given(raw=st.binary(max_size=400))
def test_any_bytes_are_survived(served: Served, raw: bytes) -> None:
    answer = exchange(served, raw + b"\r\n\r\n", half_close=True)
    assert answer == b"" or status(answer) >= 100
    assert b" 500 " not in answer[:20]


def test_the_server_still_answers(served: Served) -> None:
    assert served.process.poll() is None
    assert status(exchange(served, HEAD + b"\r\n")) == 204
    assert threading.active_count() < 50


def test_a_client_that_sends_no_more_gets_its_answers(served: Served) -> None:
    """Whole requests are answered; one that was cut is not, and the connection ends."""
    head = b"GET /api/v1/user HTTP/1.1\r\nHost: localhost\r\n" + auth(served) + b"\r\n"
    for requests, answers in ((head, 1), (head * 3, 3), (b"", 0), (head[:-4], 0)):
        with connected(served) as sock:
            sock.sendall(requests)
            sock.shutdown(socket.SHUT_WR)
            found = b""
            while data := sock.recv(1 << 16):
                found += data
        assert found.count(b"HTTP/1.1 200") == answers, found
