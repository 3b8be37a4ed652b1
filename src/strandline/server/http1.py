"""HTTP/1.1 on httptools, beneath uvicorn, which owns sockets, TLS, signals and workers.

Written here because of what a request costs: no task and no scope for each, and answers of quick calls are written in
the callback that parsed them. One connection answers in the order of its requests. What a client may send, how much of
it and how slowly, is bounded here, whatever is above.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, cast

import httptools

from strandline.server.connections import (
    HEAD_MAX_BYTES,
    HEADERS_MAX,
    SINGLE,
    TARGET_MAX_BYTES,
    Connections,
    address_shown,
    allow_origin,
    forwarded,
)
from strandline.server.http1_exchange import Http1Exchange, close_file
from strandline.server.messages import FileBody, Request, Response
from strandline.server.refusals import BadRequest, Refusal, TooLarge

UNREAD_S = 60.0
"""How long a client may leave an answer unread."""
LINGER_S = 2.0
"""How long what a client still sends is read after an answer that did not wait for it: a reset would eat the answer."""
QUEUED_MAX = 64
"""Requests of one connection that wait for the ones before."""
CHUNK_BYTES = 1 << 20

_REASONS = {one.value: f"HTTP/1.1 {one.value} {one.phrase}\r\n".encode() for one in HTTPStatus}
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_NO_BODY = (204, 304)


class Http1(asyncio.Protocol):
    """A connection.

    Args:
        connections: what the connections of the worker share.
        server_state: of uvicorn: it ends the connections that are in its set.
    """

    def __init__(self, connections: Connections, server_state: Any) -> None:
        self.shared = connections
        self._server_state = server_state
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport = cast("asyncio.Transport", None)
        self._peer = ""
        self._is_secure = False
        self._begin_head()
        self._receiving: Http1Exchange | None = None
        self._current: Http1Exchange | None = None
        self._queued: deque[Http1Exchange] = deque()
        self._closing = False
        self._since = self._loop.time()
        self._can_write = asyncio.Event()
        self._can_write.set()
        self._unread_since = 0.0
        self._unread_bytes = 0
        self._unparsed_bytes = 0
        self._is_behind_proxy = False
        self._pauses: set[str] = set()
        self._is_broken = False
        self._begins_here = False
        self._lost = False

    def _begin_head(self) -> None:
        self._target = b""
        self._headers: dict[bytes, bytes] = {}
        self._head_bytes = 0
        self._is_in_head = False
        self._header_count = 0

    # --- asyncio -----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if len(self.shared.open) >= self.shared.most:
            self._lost = True
            transport.close()
            return
        self.shared.open.add(self)
        self._server_state.connections.add(self)
        peer = transport.get_extra_info("peername")
        self._peer = address_shown(str(peer[0])) if isinstance(peer, tuple) and peer else ""
        self._is_behind_proxy = self.shared.trusts(self._peer)
        self._is_secure = transport.get_extra_info("sslcontext") is not None

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self.shared.open.discard(self)
        self._server_state.connections.discard(self)
        self._can_write.set()
        for one in (self._receiving, self._current, *self._queued):
            if one is not None:
                one.broken("The client left before the body was complete.")

    def pause_writing(self) -> None:
        """The client does not read its answers: nothing more is read from it, and no other request begun."""
        self._can_write.clear()
        self._unread_since = self._loop.time()
        self.pause_reading("answers")

    def resume_writing(self) -> None:
        self._can_write.set()
        self.resume_reading("answers")
        if self._current is None and self._queued:
            self._begin(self._queued.popleft())

    def eof_received(self) -> bool:
        """The client sends no more, and may wait for answers still: to all that came whole."""
        last = self._queued[-1] if self._queued else self._current
        if last is None or last is self._receiving or self._is_secure or self._lost or self._closing:
            return False
        last.keeps_alive = False
        return True

    def data_received(self, data: bytes) -> None:
        if self._lost or self._closing or self._is_broken:
            return  # read and forgotten
        self._begins_here = False
        self._unparsed_bytes += len(data)
        try:
            while data:
                try:
                    self._parser.feed_data(data)
                    break
                except httptools.HttpParserUpgrade as offered:
                    # to stay with HTTP/1.1 is a full answer to an offer of another protocol
                    self._parser = httptools.HttpRequestParser(self)
                    data = data[offered.args[0] :]
        except httptools.HttpParserCallbackError as error:
            self._refuse(_cause(error))
        except httptools.HttpParserError:
            self._refuse(BadRequest("This is not a request of HTTP/1.1."))
        if self._is_in_head and not self._begins_here:  # what the parser holds back counts as well
            self._head_bytes += len(data)
            if self._head_bytes > TARGET_MAX_BYTES + HEAD_MAX_BYTES:
                self._refuse(TooLarge("The head of the request is too large.", status=431))
        elif self._receiving is not None and self._unparsed_bytes > HEAD_MAX_BYTES:
            # neither head nor body: trailers, or what clients write behind the length of a chunk
            self._refuse(TooLarge("The body has too much that is not content.", status=431))

    # --- httptools ---------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._begin_head()
        self._is_in_head = self._begins_here = True
        self._since = self._loop.time()

    def on_url(self, url: bytes) -> None:
        self._target += url
        if len(self._target) > TARGET_MAX_BYTES:
            raise TooLarge("The address of the request is too long.", status=414)

    def on_header(self, name: bytes, value: bytes | None) -> None:
        if not self._is_in_head:
            return  # a trailer: nobody signed it, and it is no header
        name, value = name.lower(), value or b""
        self._header_count += 1
        self._head_bytes += len(name) + len(value)
        if self._header_count > HEADERS_MAX or self._head_bytes > HEAD_MAX_BYTES:
            raise TooLarge("The head of the request is too large.", status=431)
        held = self._headers.get(name)
        if held is not None:
            if name in SINGLE:
                raise BadRequest(f"The header {name.decode('latin-1')} is there twice.")
            value = held + b"," + value
        self._headers[name] = value

    def on_headers_complete(self) -> None:
        if self._closing or self._lost:
            return
        method = self._parser.get_method().decode("ascii")
        target = self._target
        if not target.startswith(b"/"):
            target = _path_of(target) if target != b"*" else b"/"
        if self._parser.get_http_version() == "1.1" and not self._headers.get(b"host"):
            raise BadRequest("The request names no host.")
        self._unparsed_bytes = 0
        peer, is_secure = self._peer, self._is_secure
        if self._is_behind_proxy:
            peer, is_secure = forwarded(self._headers, peer)
        exchange = Http1Exchange(self, Request(method, target, self._headers, peer, is_secure))
        exchange.keeps_alive = self._parser.should_keep_alive()
        exchange.expects = self._headers.get(b"expect", b"").lower() == b"100-continue"
        self._is_in_head = False
        exchange.has_ended = exchange.request.content_length == 0
        if not exchange.has_ended:
            self._receiving = exchange
        if self._current is None and self._can_write.is_set():
            self._begin(exchange)
        else:
            if len(self._queued) >= QUEUED_MAX:
                raise TooLarge("Too many requests wait for their answers on one connection.", status=429)
            self._queued.append(exchange)

    def on_body(self, data: bytes) -> None:
        self._unparsed_bytes = 0
        if self._receiving is not None:
            self._receiving.feed(data)

    def on_message_complete(self) -> None:
        self._unparsed_bytes = 0
        receiving, self._receiving = self._receiving, None
        self._since = self._loop.time()
        if receiving is not None:
            receiving.end()

    # --- requests and answers ----------------------------------------------------------------------------------------

    def _begin(self, exchange: Http1Exchange) -> None:
        self._current = exchange
        exchange.began = time.perf_counter()  # the loop's own time stands still while a callback runs
        exchange.has_begun = True
        self.shared.app.begin(exchange)

    def _refuse(self, error: Refusal) -> None:
        """Answer what cannot be understood, and end the connection: nobody knows where the next request begins."""
        if self._closing or self._lost:
            return
        if self._queued or (self._current is not None and self._current is not self._receiving):
            self._is_broken = True  # the answers to what came before are still owed
            if self._receiving is not None and self._receiving is not self._current:
                self._receiving.broken(error.what)
            return
        response = Response(
            error.status, f'{{"message":"{error.what}"}}'.encode(), [(b"Content-Type", b"application/json")]
        )
        response.closes = True
        self._write(response, "", is_head=False)
        if self._receiving is not None:
            self._receiving.broken(error.what)
        self._linger()

    def answered(self, exchange: Http1Exchange, response: Response) -> None:
        """Write the answer to the current request, and go on with the next one."""
        if self._lost or self._closing:
            close_file(response.body)
            return
        if self.shared.origins:
            allow_origin(self.shared.origins, exchange.request, response)
        is_unread = exchange is self._receiving
        if is_unread or not exchange.keeps_alive or (self._is_broken and not self._queued):
            response.closes = True
        if isinstance(response.body, FileBody):
            self._loop.create_task(self._send_file(exchange, response))
            return
        self._write(response, exchange.request.id, is_head=exchange.request.method == "HEAD")
        self._finished(exchange, response)

    def _finished(self, exchange: Http1Exchange, response: Response) -> None:
        self._current = None
        self._since = self._loop.time()
        self.shared.app.finished(exchange, response.status, time.perf_counter() - exchange.began)
        if response.closes:
            if exchange is self._receiving:
                self._linger()
            else:
                self._closing = True
                self._transport.close()
            return
        if self._queued and self._can_write.is_set():
            self._begin(self._queued.popleft())

    def _linger(self) -> None:
        self._closing = True
        self._pauses.clear()
        self._transport.resume_reading()
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._loop.call_later(LINGER_S, self._transport.close)

    def _write(self, response: Response, id: str, *, is_head: bool) -> None:
        body = response.body
        assert isinstance(body, bytes)
        parts = self._head(response, len(body) if response.length is None else response.length, id)
        if body and not is_head and response.status not in _NO_BODY:
            parts.append(body)
        self._transport.write(b"".join(parts))

    def _head(self, response: Response, length: int, id: str) -> list[bytes]:
        parts = [_REASONS[response.status], self.shared.date(), b"X-Request-ID: ", id.encode(), b"\r\n"]
        for name, value in response.headers:
            if b"\n" in value or b"\r" in value:
                continue  # whatever put it there, it is not a header of its own
            parts += (name, b": ", value, b"\r\n")
        if response.status not in _NO_BODY:
            parts.append(b"Content-Length: %d\r\n" % length)
        parts.append(b"Connection: close\r\n\r\n" if response.closes else b"\r\n")
        return parts

    async def _send_file(self, exchange: Http1Exchange, response: Response) -> None:
        body = cast("FileBody", response.body)
        left = body.size
        try:
            self._transport.write(b"".join(self._head(response, left, exchange.request.id)))
            while left and not self._lost:
                chunk = await self._loop.run_in_executor(
                    self.shared.app.readers, body.file.read, min(left, CHUNK_BYTES)
                )
                if not chunk:
                    break
                left -= len(chunk)
                await self._can_write.wait()
                if not self._lost:
                    self._transport.write(chunk)
        except Exception:
            left = max(left, 1)
        finally:
            body.file.close()
        if self._lost:
            return
        if left:
            self._transport.abort()
        else:
            self._finished(exchange, response)

    def time(self) -> float:
        """Seconds by the loop's clock."""
        return self._loop.time()

    def say_continue(self) -> None:
        """Let the client send the body."""
        self._transport.write(_CONTINUE)

    def call(self, function: Callable[[], None]) -> None:
        """Run something in the loop's thread; called from others."""
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:
            pass  # the loop has ended, and with it the connection

    def pause_reading(self, why: str = "a body") -> None:
        """Read nothing from the client until every reason for that is gone."""
        self._pauses.add(why)
        if not self._lost:
            self._transport.pause_reading()

    @property
    def is_paused(self) -> bool:
        """Whether it is the server that reads nothing now."""
        return bool(self._pauses)

    def resume_reading(self, why: str = "a body") -> None:
        """One reason is gone."""
        self._pauses.discard(why)
        if not self._lost and not self._pauses:
            self._transport.resume_reading()

    # --- slow clients, and the end -----------------------------------------------------------------------------------

    def check(self, now: float) -> None:
        """Close if the client is idle, or slower than any honest one."""
        waited = now - self._since
        if not self._can_write.is_set():
            left, before = self._transport.get_write_buffer_size(), self._unread_bytes
            self._unread_bytes = left
            if left < before:
                self._unread_since = now  # slow, but it reads
            elif now - self._unread_since > UNREAD_S:
                self._transport.abort()
        elif self._receiving is not None:
            if self._receiving.is_slow(now):
                self._refuse_slow()
        elif self._current is None and waited > (self.shared.head_s if self._is_in_head else self.shared.idle_s):
            self._closing = True
            self._transport.close()

    def _refuse_slow(self) -> None:
        receiving = self._receiving
        if receiving is None:
            return
        receiving.broken("The body came too slowly.")
        if receiving is self._current and not receiving.has_answer:
            response = Response(
                408, b'{"message":"The body came too slowly."}', [(b"Content-Type", b"application/json")]
            )
            receiving.reply(response)
        else:
            self._transport.abort()

    def give_up(self) -> None:
        """End what does not end by itself: bodies that are still coming, answers that nobody reads."""
        if self._receiving is not None:
            self._receiving.broken("The server stops.")
        self._transport.abort()

    def shutdown(self) -> None:
        """End after the request that is under way; uvicorn calls it when it stops."""
        if self._current is None:
            self._closing = True
            self._transport.close()
        else:
            for one in (self._current, *self._queued):
                one.keeps_alive = False


def _cause(error: BaseException) -> Refusal:
    """The refusal that a callback of the parser raised."""
    found = error.__context__ or error.__cause__
    if isinstance(found, Refusal):
        return found
    return BadRequest("This is not a request of HTTP/1.1.")


def _path_of(target: bytes) -> bytes:
    """The path and query of an address in absolute form, as clients of proxies send it."""
    try:
        url = httptools.parse_url(target)
    except httptools.HttpParserInvalidURLError:
        raise BadRequest("The address of the request is not one.") from None
    path = url.path or b"/"
    return path + b"?" + url.query if url.query else path
