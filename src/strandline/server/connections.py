"""What the connections of a worker share, and how much a client may send, whichever protocol takes it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from email.utils import formatdate
from typing import Any, Protocol

from strandline.iam.policy import Network, plain_address
from strandline.server.messages import Request, Response

TARGET_MAX_BYTES = 8 << 10
HEAD_MAX_BYTES = 16 << 10
HEADERS_MAX = 200
HEAD_WITHIN_S = 10.0
IDLE_S = 75.0
CONNECTIONS_MAX = 10_000
SINGLE = frozenset((b"host", b"authorization", b"content-length", b"content-type", b"x-amz-date", b"range"))
"""A second one of these would let two readers of a request understand two things."""


class Watched(Protocol):
    """A connection, as far as the watch over all of them needs it."""

    def check(self, now: float) -> None:
        """Close if the client is idle, or slower than any honest one."""

    def give_up(self) -> None:
        """End what does not end by itself."""


class Connections:
    """All connections of a worker: what they share, and the watch over slow ones.

    Attributes:
        app: answers requests.
        collected: how many bytes of bodies are being collected; the second number is of those that may be large.
        most: how many connections there may be.
        idle_s, head_s: seconds for a connection without a request, and for the head of one.
        origins: whose pages may read answers.
        trusted_proxies: networks whose word about the client counts.
    """

    def __init__(self, app: Any, trusted_proxies: Sequence[Network] = ()) -> None:
        self.app = app
        self.open: set[Watched] = set()
        self.collected = [0, 0]
        self.most = CONNECTIONS_MAX
        self.idle_s, self.head_s = IDLE_S, HEAD_WITHIN_S
        self.origins: frozenset[bytes] = frozenset()
        self.trusted_proxies = trusted_proxies
        self._date = b""
        self._date_at = 0

    def date(self) -> bytes:
        """The Date header, made once a second."""
        now = int(time.time())
        if now != self._date_at:
            self._date = f"Date: {formatdate(now, usegmt=True)}\r\n".encode()
            self._date_at = now
        return self._date

    def trusts(self, peer: str) -> bool:
        """Whether an address is that of a proxy that is trusted."""
        if not self.trusted_proxies:
            return False
        try:
            address = plain_address(peer)
        except ValueError:
            return False
        return any(address in network for network in self.trusted_proxies)

    def watch(self, now: float) -> None:
        """Close the connections that are idle, or too slow; called every second."""
        for one in list(self.open):
            one.check(now)


def allow_origin(origins: frozenset[bytes], request: Request, response: Response) -> None:
    """Let pages of some origins read an answer. Cookies are never a part of that."""
    origin = request.headers.get(b"origin", b"")
    if origin in origins:
        shown = (b"Access-Control-Allow-Origin", origin), (b"Vary", b"Origin"), (b"Access-Control-Expose-Headers", b"*")
        response.headers = [*response.headers, *shown]


def address_shown(text: str) -> str:
    """An address as policies and logs know it; a text that is not an address comes back unchanged."""
    try:
        return str(plain_address(text))
    except ValueError:
        return text


def forwarded(headers: Mapping[bytes, bytes], peer: str) -> tuple[str, bool]:
    """The client that a trusted proxy names, and whether it came by TLS."""
    named = headers.get(b"x-forwarded-for", b"").rpartition(b",")[2].strip().decode("latin-1")
    return address_shown(named) if named else peer, headers.get(b"x-forwarded-proto") == b"https"
