"""A request of HTTP/1.1 whose body is still coming: collected in memory, or passed to the thread that reads it."""

from __future__ import annotations

from collections.abc import Callable
from typing import BinaryIO, Protocol, cast

from strandline.server.connections import Connections
from strandline.server.incoming import Incoming
from strandline.server.messages import Exchange, FileBody, Request, Response
from strandline.server.refusals import Refusal, TooLarge

BODY_BYTES_A_S = 1 << 10
LARGE_BODY_BYTES_A_S = 16 << 10
"""Of bodies of more than 1 MiB, which hold a thread, or much memory."""
BODY_WINDOW_S = 10.0
"""The pace of a body is measured over this time, again and again: a fast beginning does not pay for a slow end."""
STREAMED_FROM = 1 << 20
"""Larger bodies get a thread; smaller ones are collected, however slowly they come."""
COLLECTED_MAX_BYTES = 64 << 20
"""What all bodies that are being collected may hold together, those that may be larger than 1 MiB excepted: one of
these must not keep all others out."""
LARGE_MAX_BYTES = 128 << 20
"""What these may hold together."""


class Link(Protocol):
    """What a request needs of its connection."""

    @property
    def shared(self) -> Connections:
        """What all connections share."""

    @property
    def is_paused(self) -> bool:
        """Whether it is the server that reads nothing now."""

    def time(self) -> float:
        """Seconds by the loop's clock."""

    def say_continue(self) -> None:
        """Let the client send the body."""

    def pause_reading(self, why: str = "a body") -> None:
        """Read nothing from the client until every reason for that is gone."""

    def resume_reading(self, why: str = "a body") -> None:
        """One reason is gone."""

    def call(self, function: Callable[[], None]) -> None:
        """Run something in the loop's thread; called from others."""

    def answered(self, exchange: Http1Exchange, response: Response) -> None:
        """The request has its answer."""


class Http1Exchange(Exchange):
    """A request whose head is there, and its body, as it comes."""

    __slots__ = (
        "_connection",
        "_counted",
        "_held",
        "_incoming",
        "_more",
        "_most",
        "_received",
        "_then",
        "_window",
        "expects",
        "has_answer",
        "has_begun",
        "has_ended",
        "keeps_alive",
    )

    def __init__(self, connection: Link, request: Request) -> None:
        super().__init__(request)
        self._connection = connection
        self._held: list[bytes] = []
        self._received = 0
        self._window = connection.time(), 0
        self._most = 0
        self._counted = 0
        self._then: Callable[[bytes], None] | None = None
        self._more: Callable[[BinaryIO], None] | None = None
        self._incoming: Incoming | None = None
        self.expects = False
        self.keeps_alive = True
        self.has_begun = False
        self.has_ended = False
        self.has_answer = False

    def collect(self, most: int, then: Callable[[bytes], None], more: Callable[[BinaryIO], None] | None = None) -> None:
        self._most, self._then, self._more = most, then, more
        if most > STREAMED_FROM and more is None:
            held = sum(map(len, self._held))
            self._connection.shared.collected[0] -= held
            self._connection.shared.collected[1] += held
            self._counted = 1
        length = self.request.content_length
        if length is not None and length > most and more is None:
            self._refuse(TooLarge(f"The body has more than {most:,} bytes."))
            return
        if self.expects and not self._received and not self.has_ended:
            self._connection.say_continue()
        if self.has_ended:
            self._complete()
        elif self._received > most and more is not None:
            self._stream()
        else:  # a large body gets its thread when much of it has come: an idle client holds none
            self._connection.resume_reading()

    def feed(self, data: bytes) -> None:
        self._received += len(data)
        if self.has_answer:
            return
        if self._incoming is not None:
            self._incoming.feed(data)
            return
        self._held.append(data)
        shared, kind = self._connection.shared, self._counted
        shared.collected[kind] += len(data)
        if self._then is None:
            if self._received > STREAMED_FROM:
                self._connection.pause_reading()
        elif self._received > self._most:
            if self._more is not None:
                self._stream()
            else:
                self._refuse(TooLarge(f"The body has more than {self._most:,} bytes."))
        elif shared.collected[kind] > (LARGE_MAX_BYTES if kind else COLLECTED_MAX_BYTES):
            self._refuse(Refusal("Too many bodies are on their way.", status=503, s3_code="SlowDown", retry_after_s=1))

    def _refuse(self, error: Refusal) -> None:
        self._drop()
        self._connection.shared.app.refuse(self, error)

    def _drop(self) -> None:
        size = sum(map(len, self._held))
        self._held = []
        if size:
            self._connection.shared.collected[self._counted] -= size

    def _stream(self) -> None:
        connection = self._connection
        self._incoming = Incoming(connection.pause_reading, connection.resume_reading, connection.call)
        held = self._held
        self._drop()
        connection.resume_reading()  # before the body is fed: what is held already may be enough to stop again
        for part in held:
            self._incoming.feed(part)
        assert self._more is not None
        self._more(cast("BinaryIO", self._incoming))

    def end(self) -> None:
        self.has_ended = True
        if self._incoming is not None:
            self._incoming.end()
        elif self._then is not None and not self.has_answer:
            self._complete()

    def _complete(self) -> None:
        then, held = self._then, self._held
        self._drop()
        self._then = None
        if self._received > self._most and self._more is not None:
            self._held = []
            self._incoming = Incoming(lambda: None, lambda: None, lambda _: None)
            self._incoming.feed(b"".join(held))
            self._incoming.end()
            self._more(cast("BinaryIO", self._incoming))
            return
        assert then is not None
        then(held[0] if len(held) == 1 else b"".join(held))

    def broken(self, why: str) -> None:
        """No more of the body will come."""
        self._drop()
        if self._incoming is not None:
            self._incoming.abort(why)
        if not self.has_ended:
            self._then = None

    def is_slow(self, now: float) -> bool:
        """Whether less has come than an honest client sends."""
        if (self._then is None and self._incoming is None) or self._connection.is_paused:
            self._window = now, self._received
            return False  # it is the server that does not take it yet
        since, before = self._window
        if now - since < BODY_WINDOW_S:
            return False
        self._window = now, self._received
        pace = BODY_BYTES_A_S if self._received <= STREAMED_FROM else LARGE_BODY_BYTES_A_S
        return self._received - before < pace * BODY_WINDOW_S

    def reply(self, response: Response) -> None:
        if self.has_answer:
            close_file(response.body)
            return
        self.has_answer = True
        self._drop()
        if self._incoming is not None and not self.has_ended:
            self._incoming.abort("The request was answered before its body was complete.")
        self._connection.answered(self, response)


def close_file(body: bytes | FileBody) -> None:
    """Close the file that an answer would have been read from, if it is one."""
    if isinstance(body, FileBody):
        body.file.close()
