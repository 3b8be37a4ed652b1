"""Requests and responses without a socket: what protocols bring, and what applications answer."""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import count
from typing import BinaryIO
from urllib.parse import parse_qsl, unquote_to_bytes

from strandline.server.refusals import BadRequest

Headers = Sequence[tuple[bytes, bytes]]
QUERY_FIELDS_MAX = 100
_PROCESS = os.urandom(6).hex()
_numbers = count()
_PLAIN_QUERY = re.compile(rb"[A-Za-z0-9/._=~*:,!$-]+(?:&[A-Za-z0-9/._=~*:,!$-]+){0,50}")
"""Without anything that would have to be decoded."""
_REQUEST_ID = re.compile(rb"[\w-]{1,64}", re.ASCII)


class Request:
    """The head of a request.

    Attributes:
        method: in capitals.
        raw_path: as it was sent, percent-encoded, without the query.
        raw_query: without the question mark.
        headers: by name in small letters; several of one name are joined by commas.
        peer: the address of the client, without a port.
    """

    __slots__ = ("_id", "_path", "_query", "headers", "is_secure", "method", "peer", "raw_path", "raw_query")

    def __init__(
        self, method: str, target: bytes, headers: dict[bytes, bytes], peer: str = "", is_secure: bool = False
    ) -> None:
        self.method = method
        self.raw_path, _, self.raw_query = target.partition(b"?")
        self.headers = headers
        self.peer = peer
        self.is_secure = is_secure
        self._id = ""
        self._path: str | None = None
        self._query: list[tuple[str, str]] | None = None

    @property
    def id(self) -> str:
        """What the client calls the request, or a new name for it."""
        if not self._id:
            given = self.headers.get(b"x-request-id", b"")
            self._id = given.decode() if given and _REQUEST_ID.fullmatch(given) else f"{_PROCESS}{next(_numbers):08x}"
        return self._id

    @property
    def path(self) -> str:
        """The path, decoded once.

        Raises:
            BadRequest: it is not UTF-8.
        """
        if self._path is None:
            raw = unquote_to_bytes(self.raw_path) if b"%" in self.raw_path else self.raw_path
            try:
                self._path = raw.decode()
            except UnicodeDecodeError:
                raise BadRequest("The path of the request is not UTF-8.", s3_code="InvalidURI") from None
        return self._path

    @property
    def query(self) -> list[tuple[str, str]]:
        """The pairs of the query, in their order.

        Raises:
            BadRequest: they are not UTF-8, or too many.
        """
        if self._query is None and not self.raw_query:
            self._query = []
        elif self._query is None and _PLAIN_QUERY.fullmatch(self.raw_query):
            pairs = self.raw_query.decode().split("&", QUERY_FIELDS_MAX)
            self._query = [(name, value) for name, _, value in (pair.partition("=") for pair in pairs)]
        elif self._query is None:
            try:
                self._query = parse_qsl(
                    self.raw_query.decode("ascii"),
                    keep_blank_values=True,
                    errors="strict",
                    max_num_fields=QUERY_FIELDS_MAX,
                )
            except ValueError:
                raise BadRequest("The query of the request is not UTF-8, or has too many fields.") from None
        return self._query

    @property
    def signed_query(self) -> list[tuple[str, str]]:
        """The pairs of the query as those who sign it mean them: a plus sign is one, and no space.

        Raises:
            BadRequest: they are not UTF-8, or too many.
        """
        if b"+" not in self.raw_query:
            return self.query
        return Request(self.method, b"/?" + self.raw_query.replace(b"+", b"%2B"), {}).query

    def header(self, name: bytes) -> str:
        """A header as a text; "" if it was not sent."""
        found = self.headers.get(name)
        if found is None:
            return ""
        try:
            return found.decode()
        except UnicodeDecodeError:
            return found.decode("latin-1")

    @property
    def content_length(self) -> int | None:
        """What the client says of the body's size; None if it comes in chunks."""
        if b"transfer-encoding" in self.headers:
            return None
        return int(self.headers.get(b"content-length", b"0"))


class FileBody:
    """Bytes of a file, sent as they are read.

    Attributes:
        size: how many are sent, from where the file stands.
    """

    __slots__ = ("file", "size")

    def __init__(self, file: BinaryIO, size: int) -> None:
        self.file = file
        self.size = size


class Response:
    """What is answered. A response to HEAD has the length of a body that is not sent.

    Attributes:
        length: what Content-Length says if there is no body, for HEAD.
        closes: whether the connection ends with it.
    """

    __slots__ = ("body", "closes", "headers", "length", "status")

    def __init__(
        self, status: int, body: bytes | FileBody = b"", headers: Headers = (), *, length: int | None = None
    ) -> None:
        self.status = status
        self.body = body
        self.headers = headers
        self.length = length
        self.closes = False


class Exchange(ABC):
    """A request whose body may still be coming, and the place for its response. Belongs to the event loop's thread.

    Attributes:
        operation: what it turned out to be, for metrics and logs.
        user: whose request it is; "" before that is known.
    """

    __slots__ = ("began", "operation", "request", "user")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.operation = "unknown"
        self.user = ""
        self.began = 0.0

    @abstractmethod
    def collect(self, most: int, then: Callable[[bytes], None], more: Callable[[BinaryIO], None] | None = None) -> None:
        """Take the body.

        Args:
            most: up to so many bytes, `then` gets all of it when it is there.
            more: gets a larger one as a file to read in a thread; without it, a larger one is refused.
        """

    @abstractmethod
    def reply(self, response: Response) -> None:
        """Answer, once."""
