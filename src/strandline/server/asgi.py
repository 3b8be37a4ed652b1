"""The same application beneath ASGI: the other side of differential tests, and `--http plain`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, BinaryIO

from strandline.server.app import App
from strandline.server.connections import (
    HEAD_MAX_BYTES,
    HEADERS_MAX,
    SINGLE,
    TARGET_MAX_BYTES,
    address_shown,
    allow_origin,
    forwarded,
)
from strandline.server.incoming import Incoming
from strandline.server.messages import Exchange, FileBody, Request, Response
from strandline.server.refusals import BadRequest, BrokenBody, Refusal, TooLarge

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
CHUNK_BYTES = 1 << 20


class AsgiApp:
    """An ASGI application, whose lifespan starts and stops the application of a worker.

    Args:
        make: makes it, once, in the worker.

    Attributes:
        app: the application, from its start on.
    """

    def __init__(self, make: Callable[[], App]) -> None:
        self._make = make
        self.app: App | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        self.app = self._make()
        self.app.start()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.app.stop()
        await send({"type": "lifespan.shutdown.complete"})

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self.app is not None
        headers: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            headers[name] = headers[name] + b"," + value if name in headers else value
        target = scope.get("raw_path") or scope["path"].encode()
        if scope["query_string"]:
            target += b"?" + scope["query_string"]
        peer = address_shown(scope["client"][0] if scope.get("client") else "")
        is_secure = scope["scheme"] == "https"
        if self.app.connections.trusts(peer):
            peer, is_secure = forwarded(headers, peer)
        request = Request(scope["method"], target, headers, peer, is_secure)
        exchange = _AsgiExchange(request, self.app, receive)
        began = time.perf_counter()
        refused = _refusal(scope, target)
        if refused is None:
            self.app.begin(exchange)
        else:
            self.app.refuse(exchange, refused)
        response = await exchange.answer
        allow_origin(self.app.connections.origins, request, response)
        await _send(self.app, send, request, response)
        self.app.finished(exchange, response.status, time.perf_counter() - began)


def _refusal(scope: Scope, target: bytes) -> Refusal | None:
    """What is too large, or there twice, in a head that uvicorn has taken."""
    if len(target) > TARGET_MAX_BYTES:
        return TooLarge("The address of the request is too long.", status=414)
    names = [name for name, _ in scope["headers"]]
    if len(names) > HEADERS_MAX or sum(len(name) + len(value) for name, value in scope["headers"]) > HEAD_MAX_BYTES:
        return TooLarge("The head of the request is too large.", status=431)
    twice = next((name for name in SINGLE if names.count(name) > 1), None)
    return None if twice is None else BadRequest(f"The header {twice.decode()} is there twice.")


async def _send(app: App, send: Send, request: Request, response: Response) -> None:
    body = response.body
    length = body.size if isinstance(body, FileBody) else len(body) if response.length is None else response.length
    headers = [(name.lower(), value) for name, value in response.headers if not set(value) & set(b"\r\n")]
    headers.append((b"x-request-id", request.id.encode()))
    if response.status not in (204, 304):
        headers.append((b"content-length", b"%d" % length))
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    if isinstance(body, FileBody):
        loop, left = asyncio.get_running_loop(), body.size
        try:
            while left:
                chunk = await loop.run_in_executor(app.readers, body.file.read, min(left, CHUNK_BYTES))
                if not chunk:
                    raise BrokenBody("The object is shorter than it was said to be.")
                left -= len(chunk)
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        finally:
            body.file.close()
        body = b""
    await send({"type": "http.response.body", "body": b"" if request.method == "HEAD" else body})


class _AsgiExchange(Exchange):
    __slots__ = ("_app", "_receive", "_task", "answer")

    def __init__(self, request: Request, app: App, receive: Receive) -> None:
        super().__init__(request)
        self._app = app
        self._receive = receive
        self._task: asyncio.Task[None] | None = None
        self.answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()

    def collect(self, most: int, then: Callable[[bytes], None], more: Callable[[BinaryIO], None] | None = None) -> None:
        self._task = asyncio.create_task(self._collect(most, then, more))

    async def _collect(self, most: int, then: Callable[[bytes], None], more: Callable[[BinaryIO], None] | None) -> None:
        parts: list[bytes] = []
        size = 0
        incoming: Incoming | None = None
        flowing = asyncio.Event()
        flowing.set()
        loop = asyncio.get_running_loop()
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                if incoming is not None:
                    incoming.abort("The client left before the body was complete.")
                if not self.answer.done():
                    self.answer.set_result(Response(400))
                return
            data = message.get("body", b"")
            size += len(data)
            if incoming is not None:
                incoming.feed(data)
                await flowing.wait()
            else:
                parts.append(data)
                if size > most:
                    if more is None:
                        self._app.refuse(self, TooLarge(f"The body has more than {most:,} bytes."))
                        return
                    incoming = Incoming(flowing.clear, flowing.set, loop.call_soon_threadsafe)
                    incoming.feed(b"".join(parts))
                    more(incoming)  # type: ignore[arg-type]
            if not message.get("more_body", False):
                break
        if incoming is not None:
            incoming.end()
        else:
            then(b"".join(parts))

    def reply(self, response: Response) -> None:
        if not self.answer.done():
            self.answer.set_result(response)
