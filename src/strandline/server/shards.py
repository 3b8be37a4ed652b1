"""The shard service: decides commands for clients that share shards, and does their upkeep. See `shards.service`.

The one place where a server's event loop meets the core, which is synchronous: a command waits in a thread.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import uvicorn

from strandline.envelope import decode, encode
from strandline.errors import (
    Contention,
    Corrupted,
    InvalidSettings,
    ShardNotFound,
    StoreUnavailable,
    StrandlineError,
    UsageError,
)
from strandline.lake import Lake
from strandline.operations import warning
from strandline.redaction import Secret
from strandline.shards.deciding.machine import MAX_COMMANDS_TOGETHER
from strandline.shards.deciding.recent import Recent
from strandline.shards.deciding.service import (
    DECIDE_PATH,
    DECIDE_WITHIN_S,
    HEALTH_PATH,
    MAINTAIN_PATH,
    Decided,
    Request,
    Upkeep,
    refusal,
)
from strandline.shards.shard import Shard
from strandline.shards.state.state import ShardId

BODY_MAX_BYTES = 64 << 20
"""A command describes what was written; the rows of small batches lie in it."""
BODY_WITHIN_S = 10.0
HEALTH_PATHS = frozenset((HEALTH_PATH, "/health", "/healthz", "/livez", "/readyz"))
"""Ours, and those that load balancers and orchestrators try."""
THREADS = 4 * MAX_COMMANDS_TOGETHER
KEEP_ALIVE_S = 75
BACKLOG = 1024
STOP_WITHIN_S = 10

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class ShardApp:
    """The service as an ASGI application.

    Args:
        token: that clients must show; "" for none.
    """

    def __init__(self, lake: Lake, token: str = "") -> None:
        self._lake = lake
        self._authorization = Secret(f"Bearer {token}" if token else "")
        self._shards: dict[tuple[str, ShardId], Shard] = {}
        self._under_way: Counter[ShardId] = Counter()
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="strandline-service")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
        if scope["type"] != "http":
            return
        status, answer = await self._answer(scope, receive)
        headers = [(b"content-type", b"application/msgpack"), (b"content-length", str(len(answer)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    async def _answer(self, scope: Scope, receive: Receive) -> tuple[int, bytes]:
        work = {DECIDE_PATH: self.decide, MAINTAIN_PATH: self.maintain}.get(scope["path"])
        if scope["path"] in HEALTH_PATHS:
            return 200, b""
        if work is None:
            return 404, b""
        if scope["method"] != "POST":
            return 405, b""
        given = dict(scope["headers"]).get(b"authorization", b"")
        wanted = self._authorization.reveal().encode()
        if wanted and not hmac.compare_digest(given, wanted):
            return 401, b""
        try:
            body = await asyncio.wait_for(_body(receive), BODY_WITHIN_S)
        except TimeoutError:
            return 408, b""
        if body is None:
            return 413, b""
        until = time.monotonic() + DECIDE_WITHIN_S  # of waiting for a thread, too
        try:
            return 200, await asyncio.get_running_loop().run_in_executor(self._threads, work, body, until)
        except Exception as error:  # a fault of ours: the client is told that it is unknown what happened
            warning("the shard service failed: %r", error)
            return 500, b""

    def decide(self, body: bytes, until: float) -> bytes:
        """Decide a command, together with those that others ask for at the same time.

        Args:
            until: when the client will not wait any more, on the monotonic clock: then nothing is decided.
        """
        try:
            request: Request = _decoded(Request, body)
            shard = self._shard(request.repository, request.name, request.shard)
            with self._turn(request.shard):
                left_s = min(until - time.monotonic(), request.timeout_s)
                if not left_s >= 0:
                    raise Contention("The shard service has more to do than it can.", next="Start another copy.")
                outcome = shard._machine.ask(request.command, left_s)
        except StrandlineError as error:
            return encode(refusal(error))
        if shard._machine.state.is_tombstone:
            with self._lock:
                self._shards.pop((request.repository, request.shard), None)
        recent = shard._machine.recent
        told = recent.after(request.known) if recent is not None else []
        return encode(Decided(outcome, [(record.seqno, record.data) for record in told]))

    @contextmanager
    def _turn(self, shard: ShardId) -> Iterator[None]:
        """How many commands of one shard may wait at once; beyond that, others would get no thread."""
        with self._lock:
            if self._under_way[shard] >= MAX_COMMANDS_TOGETHER:
                raise Contention("Too many want to change this shard at once.", next="Repeat the call.")
            self._under_way[shard] += 1
        try:
            yield
        finally:
            with self._lock:
                self._under_way[shard] -= 1
                if not self._under_way[shard]:
                    del self._under_way[shard]

    def close(self) -> None:
        """End the commands under way; those that wait are not begun."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    def maintain(self, body: bytes, _until: float) -> bytes:
        """Begin the upkeep of a shard, beside the caller."""
        try:
            request: Upkeep = _decoded(Upkeep, body)
            self._shard(request.repository, request.name, request.shard)._begin_upkeep()
        except StrandlineError as error:
            return encode(refusal(error))
        return encode(Decided(None, []))

    def _shard(self, repository: str, name: str, id: ShardId) -> Shard:
        key = (repository, id)
        with self._lock:
            shard = self._shards.get(key)
        if shard is None:
            shard = self._lake.repository(repository).shard(name)
            if shard.id != id:
                raise ShardNotFound(
                    f"The shard {name!r} is not the one that was opened.",
                    next="Open it again; or see whether the service serves another lake.",
                )
            with self._lock:
                shard = self._shards.setdefault(key, shard)
            shard._machine.recent = shard._machine.recent or Recent()
        return shard


def _decoded(kind: type, body: bytes) -> Any:
    try:
        return decode(kind, body, "a request")
    except Corrupted as error:
        raise UsageError(
            "This is not a request of a strandline client.", next="See that clients and service have the same version."
        ) from error


async def _lifespan(receive: Receive, send: Send) -> None:
    for kind in ("startup", "shutdown"):
        await receive()
        await send({"type": f"lifespan.{kind}.complete"})


async def _body(receive: Receive) -> bytes | None:
    """What was sent; None if it is too much, or its sender left."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > BODY_MAX_BYTES:
            return None
        if not message.get("more_body", False):
            return b"".join(parts)


def serve(lake: Lake, host: str, port: int, token: str, ready: Callable[[str], None]) -> None:
    """Serve until the process is told to stop; commands under way are ended first.

    Args:
        port: 0 for a free one.
        ready: told the address, when requests are taken.

    Raises:
        InvalidSettings: other machines can reach the address, and there is no token.
        StoreUnavailable: the address is taken.
    """
    with _bound(host, port) as listening:
        address, taken, *_ = listening.getsockname()
        if not token and not ipaddress.ip_address(address).is_loopback:
            raise InvalidSettings(
                f"{host} can be reached from other machines, and any program there could write to every shard.",
                next="Set STRANDLINE_SERVICE_TOKEN for it and its clients, or serve on 127.0.0.1.",
            )
        app = ShardApp(lake, token)
        config = uvicorn.Config(
            app,
            loop="asyncio",
            log_level="warning",
            access_log=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=STOP_WITHIN_S,
        )
        # the server raises the signal that ended it once more: by then it shall not end the process, which cleans up
        before = {one: signal.signal(one, lambda *_: None) for one in (signal.SIGTERM, signal.SIGINT)}
        try:
            listening.listen(BACKLOG)
            shown = f"[{host}]" if ":" in host else host
            ready(f"http://{shown}:{taken}")
            uvicorn.Server(config).run(sockets=[listening])
        finally:
            app.close()
            for one, handler in before.items():
                signal.signal(one, handler)


def _bound(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except (OSError, OverflowError) as error:
        raise StoreUnavailable(
            f"Nobody can listen on {host}:{port}: {error}.", happened="no", next="Choose another --port."
        ) from error
    return listening
