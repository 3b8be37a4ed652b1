"""Having a shard's changes decided by a service, so that the swaps of one shard come from one place.

Clients that swap directly lose to each other the more of them there are. A service decides their commands together:
one swap carries many. It keeps nothing that is not in the stores, so any copy can decide any command at any time, and
so can every client: safety never rests on which process decides.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec
from blake3 import blake3

from strandline import errors
from strandline.clock import Clock, Microseconds, backoff_s
from strandline.envelope import decode, encode
from strandline.errors import (
    Contention,
    FormatError,
    InvalidSettings,
    NotAllowed,
    OutcomeUnknown,
    StoreUnavailable,
    StrandlineError,
)
from strandline.forks import survives_forks
from strandline.operations import warning
from strandline.shards.deciding.commands import Answer, Outcome, Routed
from strandline.shards.log.consensus import Versioned
from strandline.shards.state.state import ShardId

if TYPE_CHECKING:
    import urllib3

DECIDE_PATH = "/v1/decide"
MAINTAIN_PATH = "/v1/maintain"
HEALTH_PATH = "/v1/health"
TOKEN_VARIABLE = "STRANDLINE_SERVICE_TOKEN"
DECIDE_WITHIN_S = 5.0
"""How long one attempt may take, so that a client soon learns that a copy of the service hangs."""
ANSWER_WITHIN_S = 2.0
"""How much longer its answer may take to come."""
CONNECT_WITHIN_S = 1.0
ASKED_AGAIN_AFTER_S = 5.0
"""How long a copy that failed is left alone."""
CONNECTIONS_MAX = 64


class Request(msgspec.Struct, frozen=True):
    """One command of one shard.

    Attributes:
        shard: the id, which the shard of the name must have.
        known: the newest sequence number that the sender has.
    """

    repository: str
    name: str
    shard: ShardId
    known: int
    timeout_s: float
    command: Routed


class Upkeep(msgspec.Struct, frozen=True):
    """A shard that may want upkeep."""

    repository: str
    name: str
    shard: ShardId


class Decided(msgspec.Struct, frozen=True, tag=True):
    """What a command came to."""

    outcome: Outcome
    records: list[tuple[int, bytes]]


class Refused(msgspec.Struct, frozen=True, tag=True):
    """An error, in the words of the process that met it."""

    kind: str
    what: str
    safe: str
    next: str
    happened: str = ""


def refusal(error: StrandlineError) -> Refused:
    happened = error.happened if isinstance(error, StoreUnavailable) else ""
    return Refused(type(error).__name__, error.what, error.safe, error.next, happened)


def as_error(refused: Refused) -> StrandlineError:
    """The error of a service, as if it had been met here; of a kind that is not known here, its nearest."""
    words = {"safe": refused.safe, "next": refused.next}
    if refused.kind == "OutcomeUnknown" or refused.happened == "unknown":
        return OutcomeUnknown(refused.what, **words)
    if refused.happened:
        return StoreUnavailable(refused.what, happened="no", **words)
    kind = getattr(errors, refused.kind, None)
    if isinstance(kind, type) and issubclass(kind, StrandlineError) and kind.__init__ is StrandlineError.__init__:
        return kind(refused.what, **words)
    return StrandlineError(refused.what, **words)


class ShardService:
    """Copies of a shard service, as its clients see them. Safe to share between threads.

    All clients ask the same copy about a shard as long as it answers (rendezvous hashing, Thaler and Ravishankar 1996),
    then the next one.

    Args:
        urls: of the copies.
    """

    def __init__(self, urls: Sequence[str], clock: Clock) -> None:
        self.urls = tuple(urls)
        self._clock = clock
        self._until_us: dict[str, Microseconds] = {}
        self._forked()
        survives_forks(self)

    def _forked(self) -> None:
        self._lock = threading.Lock()
        self._pool: urllib3.PoolManager | None = None

    def order(self, shard: ShardId) -> list[str]:
        """The copies to ask about a shard, those first that did not fail lately."""
        now_us = self._clock.now_us()
        ranked = sorted(self.urls, key=lambda url: blake3(f"{url} {shard}".encode()).digest())
        return [url for url in ranked if self._until_us.get(url, 0) <= now_us]

    def decide(self, request: Request) -> Answer | None:
        """Have a command decided by the first copy that can be reached; None if none can.

        Raises:
            OutcomeUnknown: a copy was reached, and did not answer.
            StrandlineError: what deciding it came to.
        """
        until_us = self._clock.now_us() + int(request.timeout_s * 1_000_000)
        attempts = 0
        while True:
            left_s = max(0.0, (until_us - self._clock.now_us()) / 1_000_000)
            attempt = msgspec.structs.replace(request, timeout_s=min(left_s, DECIDE_WITHIN_S))
            for url in self.order(request.shard):
                raw = self._post(url, DECIDE_PATH, encode(attempt), attempt.timeout_s + ANSWER_WITHIN_S)
                if raw is None:
                    continue
                try:
                    found = decode(Decided | Refused, raw, "an answer of the shard service")
                except FormatError as error:
                    self._leave_alone(url, "its answer cannot be read")
                    raise _no_answer(f"cannot be read: {error.what}") from error
                if isinstance(found, Decided):
                    return Answer(found.outcome, [Versioned(*record) for record in found.records])
                refused = as_error(found)
                if isinstance(refused, Contention) and self._clock.now_us() < until_us:
                    self._clock.sleep(backoff_s(attempts := attempts + 1))
                    break  # it was given less time than there is
                raise refused
            else:
                return None

    def maintain(self, upkeep: Upkeep) -> bool:
        """Tell a copy that a shard wants upkeep; whether one took it."""
        for url in self.order(upkeep.shard):
            try:
                raw = self._post(url, MAINTAIN_PATH, encode(upkeep), ANSWER_WITHIN_S)
                if raw is not None:
                    return isinstance(decode(Decided | Refused, raw, "an answer of the shard service"), Decided)
            except StrandlineError as error:
                warning("shard %s: the service for upkeep failed: %s", upkeep.name, error)
                return False
        return False

    def _leave_alone(self, url: str, why: str) -> None:
        warning("the shard service %s is left alone for %g s: %s", url, ASKED_AGAIN_AFTER_S, why)
        self._until_us[url] = self._clock.now_us() + int(ASKED_AGAIN_AFTER_S * 1_000_000)

    def _post(self, url: str, path: str, body: bytes, answer_s: float) -> bytes | None:
        """Send one request, once; None if it surely was not taken.

        Raises:
            OutcomeUnknown: it may have been taken.
            NotAllowed: the token is not the service's.
        """
        import urllib3  # noqa: PLC0415 - only clients of a service need it

        headers = {"Content-Type": "application/msgpack"}
        token = service_token()
        if token:
            headers["Authorization"] = f"Bearer {token}"
        timeout = urllib3.Timeout(connect=CONNECT_WITHIN_S, read=answer_s)
        try:
            # never repeated by the pool: a command may be sent once, and then it is unknown what became of it
            reply = self._connections().request(
                "POST", url + path, body=body, headers=headers, timeout=timeout, retries=False, redirect=False
            )
        except (urllib3.exceptions.NewConnectionError, urllib3.exceptions.ConnectTimeoutError):
            self._leave_alone(url, "it cannot be reached")
            return None
        except urllib3.exceptions.HTTPError as error:
            self._leave_alone(url, "it does not answer")
            raise _no_answer(f"did not come: {error}") from error
        if reply.status == 200:
            return reply.data
        if reply.status in (401, 403):
            raise NotAllowed(
                f"The shard service at {url} does not take the token of {TOKEN_VARIABLE}.",
                next=f"Set {TOKEN_VARIABLE} to what the service was started with.",
            )
        self._leave_alone(url, f"its status is {reply.status}")
        if reply.status in (404, 405, 413):  # nobody there decides commands, or this one is too large
            return None
        raise _no_answer(f"has status {reply.status}")

    def close(self) -> None:
        """Let go of the connections; the next request makes new ones."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.clear()

    def _connections(self) -> urllib3.PoolManager:
        with self._lock:
            if self._pool is None:
                import urllib3  # noqa: PLC0415 - only clients of a service need it

                self._pool = urllib3.PoolManager(num_pools=8, maxsize=CONNECTIONS_MAX, block=False)
            return self._pool


def _no_answer(what: str) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"The answer of the shard service {what}.", next="Repeat the call with the same token: it is not done twice."
    )


def service_token() -> str:
    """The secret of the service and its clients, from the environment; "" for none.

    Raises:
        InvalidSettings: it cannot travel in a header.
    """
    token = os.environ.get(TOKEN_VARIABLE, "")
    if not all("!" <= character <= "~" for character in token):
        raise InvalidSettings(
            f"{TOKEN_VARIABLE} has blanks, line ends or letters beyond ASCII in it.",
            next="Take letters, digits and signs only; `openssl rand -hex 32` makes one.",
        )
    return token


class ServiceRoute:
    """The way of one shard's commands to a service."""

    def __init__(self, service: ShardService, repository: str, name: str) -> None:
        self._service = service
        self._repository = repository
        self._name = name

    def decide(self, shard: ShardId, command: Routed, known: int, timeout_s: float) -> Answer | None:
        return self._service.decide(Request(self._repository, self._name, shard, known, timeout_s, command))


def service_urls(text: str) -> tuple[str, ...]:
    """The addresses of the copies, from a setting with commas between them.

    Raises:
        InvalidSettings: an address is not one of http(s), or the package that speaks HTTP is not installed.
    """
    urls = tuple(url.strip().rstrip("/") for url in text.split(",") if url.strip())
    for url in urls:
        if not _is_address(url):
            raise InvalidSettings(
                f"{url!r} is not the address of a shard service.", next="Write http://host:port, with commas between."
            )
    if urls:
        try:
            import urllib3  # noqa: F401, PLC0415
        except ImportError as error:
            raise InvalidSettings(
                "Shard services are reached through the package urllib3, which is not installed.",
                next="pip install 'strandline[service]'.",
            ) from error
    return urls


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and "@" not in url
    except ValueError:  # a port that is none
        return False
