"""The shard service: decides commands for clients that share shards, and does their upkeep. See `shards.service`.

The one place where a server's event loop meets the core, which is synchronous: a command waits in a thread.
"""

from __future__ import annotations

import asyncio
import hmac
import socket
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import uvicorn

from strandline.envelope import decode, encode
from strandline.errors import InvalidSettings, ShardNotFound, StoreUnavailable, StrandlineError
from strandline.lake import Lake
from strandline.operations import warning
from strandline.shards.machine import MAX_COMMANDS_TOGETHER
from strandline.shards.service import (
    DECIDE_PATH,
    HEALTH_PATH,
    MAINTAIN_PATH,
    Decided,
    Request,
    Upkeep,
    refusal,
)
from strandline.shards.shard import Shard
from strandline.shards.state import ShardId

BODY_MAX_BYTES = 64 << 20
"""A command describes what was written; the rows of small batches lie in it."""
RECORDS_MAX = 64
KEEP_ALIVE_S = 75
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
        self._authorization = f"Bearer {token}".encode() if token else b""
        self._shards: dict[tuple[str, ShardId], Shard] = {}
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(MAX_COMMANDS_TOGETHER, thread_name_prefix="strandline-service")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await _lifespan(receive, send) if scope["type"] == "lifespan" else None
            return
        status, answer = await self._answer(scope, receive)
        headers = [(b"content-type", b"application/msgpack"), (b"content-length", str(len(answer)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    async def _answer(self, scope: Scope, receive: Receive) -> tuple[int, bytes]:
        work = {DECIDE_PATH: self.decide, MAINTAIN_PATH: self.maintain}.get(scope["path"])
        if scope["path"] == HEALTH_PATH:
            return 200, b""
        if work is None:
            return 404, b""
        if scope["method"] != "POST":
            return 405, b""
        given = dict(scope["headers"]).get(b"authorization", b"")
        if self._authorization and not hmac.compare_digest(given, self._authorization):
            return 401, b""
        body = await _body(receive)
        if body is None:
            return 413, b""
        try:
            return 200, await asyncio.get_running_loop().run_in_executor(self._threads, work, body)
        except Exception as error:  # a fault of ours: the client is told that it is unknown what happened
            warning("the shard service failed: %r", error)
            return 500, b""

    def decide(self, body: bytes) -> bytes:
        """Decide a command, together with those that others ask for at the same time."""
        try:
            request: Request = decode(Request, body, "a command")
            machine = self._shard(request.repository, request.name, request.shard)._machine
            outcome = machine.ask(request.command, request.timeout_s)
        except StrandlineError as error:
            return encode(refusal(error))
        records = machine.recent(request.known)[:RECORDS_MAX]
        return encode(Decided(outcome, [(record.seqno, record.data) for record in records]))

    def maintain(self, body: bytes) -> bytes:
        """Begin the upkeep of a shard, beside the caller."""
        try:
            request: Upkeep = decode(Upkeep, body, "a request for upkeep")
            self._shard(request.repository, request.name, request.shard).begin_upkeep()
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
                raise ShardNotFound(f"The shard {name!r} is not the one that was opened.", next="Open it again.")
            with self._lock:
                shard = self._shards.setdefault(key, shard)
        return shard


async def _lifespan(receive: Receive, send: Send) -> None:
    for kind in ("startup", "shutdown"):
        await receive()
        await send({"type": f"lifespan.{kind}.complete"})


async def _body(receive: Receive) -> bytes | None:
    """What was sent; None if it is too much."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
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
    if not token and not _is_loopback(host):
        raise InvalidSettings(
            f"{host} can be reached from other machines, and whoever reaches the service can write to every shard.",
            next="Set STRANDLINE_SERVICE_TOKEN for it and its clients, or serve on 127.0.0.1.",
        )
    app = ShardApp(lake, token)
    with _bound(host, port) as listening:
        config = uvicorn.Config(
            app,
            loop="asyncio",
            log_level="warning",
            access_log=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=STOP_WITHIN_S,
        )
        shown = f"[{host}]" if ":" in host else host
        ready(f"http://{shown}:{listening.getsockname()[1]}")
        uvicorn.Server(config).run(sockets=[listening])


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


def _bound(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(1024)
    except (OSError, OverflowError) as error:
        raise StoreUnavailable(
            f"Nobody can listen on {host}:{port}: {error}.", happened="no", next="Choose another --port."
        ) from error
    return listening
