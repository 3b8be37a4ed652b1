"""The application of a worker without sockets and processes, for tests that look inside."""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO

import strandline
from strandline.iam.directory import Directory
from strandline.iam.sealing import Sealer
from strandline.lake import Lake
from strandline.redaction import Secret
from strandline.server.app import App
from strandline.server.auth.tokens import Tokens
from strandline.server.auth.verifier import Verifier
from strandline.server.links import Links
from strandline.server.messages import Exchange, FileBody, Request, Response
from strandline.server.services import Options, Services

BASE = "/api/v1"


class Asked(Exchange):
    """A request whose body is there already."""

    __slots__ = ("answer", "body", "collected")

    def __init__(self, request: Request, body: bytes) -> None:
        super().__init__(request)
        self.body = body
        self.collected = False
        self.answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()

    def collect(self, most: int, then: Callable[[bytes], None], more: Callable[[BinaryIO], None] | None = None) -> None:
        self.collected = True
        if len(self.body) > most and more is not None:
            more(io.BytesIO(self.body))
        else:
            then(self.body)

    def reply(self, response: Response) -> None:
        if not self.answer.done():
            self.answer.set_result(response)


class Inside:
    """A lake in memory with a server's application over it.

    Attributes:
        key, secret: of the admin.
    """

    def __init__(self, lake: Lake, options: Options | None = None) -> None:
        sealer = Sealer([Secret("a secret key for tests, long enough")])
        self.directory = Directory(lake._kv, lake._clock, sealer)
        credential, secret = self.directory.set_up("admin")
        self.key, self.secret = credential.id, secret.reveal()
        self.lake = lake
        verifier = Verifier(self.directory, Tokens(sealer.derive("tokens")), lake._clock)
        tokens = Tokens(sealer.derive("tokens"))
        links = Links(sealer.derive("links"))
        self.services = Services(lake, self.directory, verifier, tokens, links, options or Options())
        self.app = App(self.services)

    async def ask(
        self,
        method: str,
        target: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        login: tuple[str, str] | bool | None = True,
    ) -> Response:
        """Make a request.

        Args:
            login: an access key and its secret; True for the admin's, None for nobody's.
        """
        given = {b"host": b"localhost", b"content-length": str(len(body)).encode()}
        if login is not None:
            pair = (self.key, self.secret) if isinstance(login, bool) else login
            given[b"authorization"] = b"Basic " + base64.b64encode(":".join(pair).encode())
        given |= {name.lower().encode(): value.encode() for name, value in (headers or {}).items()}
        exchange = Asked(Request(method, target.encode(), given, "127.0.0.1"), body)
        self.app.begin(exchange)
        return await asyncio.wait_for(exchange.answer, 30)

    async def sign(
        self, method: str, target: str, body: bytes = b"", login: tuple[str, str] | None = None, **headers: str
    ) -> Response:
        """Make a request that botocore signs, as S3's clients do."""
        import botocore.auth
        from botocore.awsrequest import AWSRequest
        from botocore.credentials import Credentials

        key, secret = login or (self.key, self.secret)
        request = AWSRequest(method, f"http://localhost{target}", dict(headers), body)
        botocore.auth.S3SigV4Auth(Credentials(key, secret), "s3", "us-east-1").add_auth(request)
        prepared = request.prepare()
        sent = {str(name).lower().encode(): _bytes(value) for name, value in prepared.headers.items()}
        sent |= {b"host": b"localhost", b"content-length": str(len(body)).encode()}
        exchange = Asked(Request(method, target.encode(), sent, "127.0.0.1"), body)
        self.app.begin(exchange)
        return await asyncio.wait_for(exchange.answer, 30)

    def user(self, name: str, *policies: str) -> tuple[str, str]:
        """A new user with policies; returns its access key and secret."""
        self.directory.create_user(name)
        for policy in policies:
            self.directory.attach(policy, "user", name)
        credential, secret = self.directory.create_credential(name)
        self.services.verifier.look()
        return credential.id, secret.reveal()


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def body_of(response: Response) -> bytes:
    """All of a response's body."""
    if isinstance(response.body, FileBody):
        with response.body.file as file:
            return file.read(response.body.size)
    return response.body


@contextmanager
def inside(options: Options | None = None, lake: Lake | None = None) -> Iterator[Inside]:
    """A server's application over a lake in memory."""
    made = lake or strandline.open("memory://", create=True)
    server = Inside(made, options)
    try:
        yield server
    finally:
        server.services.close()
        made.close()


def run(test: Coroutine[Any, Any, None]) -> None:
    """Run a test in an event loop."""
    asyncio.run(test)
