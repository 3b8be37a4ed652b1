"""The application of a worker: which interface a request is for. It knows no sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from strandline.errors import StrandlineError
from strandline.operations import warning
from strandline.server.auth.sigv4 import is_signed
from strandline.server.auth.verifier import LOOK_EACH_S
from strandline.server.connections import Connections
from strandline.server.iceberg.face import BASE as ICEBERG_BASE
from strandline.server.iceberg.face import IcebergFace
from strandline.server.iceberg.table import OPERATIONS as ICEBERG_OPERATIONS
from strandline.server.messages import Exchange, Response
from strandline.server.observing import Measures, leave_metrics, log_request
from strandline.server.pages import plain_pages
from strandline.server.refusals import Refusal
from strandline.server.rest.face import BASE, RestFace
from strandline.server.rest.links import LINKS_BASE, LinkFace
from strandline.server.rest.table import OPERATIONS
from strandline.server.s3.face import S3Face
from strandline.server.s3.names import bucket_of_host
from strandline.server.s3.table import OPERATIONS as S3_OPERATIONS
from strandline.server.services import Services
from strandline.server.uploads import Uploads

WATCH_EACH_S = 1.0
NOT_HERE = 501
"""What is answered for what the server does not do: clients ask for that again and again, and nothing is wrong."""
HOSTS_MAX = 64
PREFLIGHT = (
    (b"Access-Control-Allow-Methods", b"GET, HEAD, PUT, POST, DELETE, PATCH"),
    (b"Access-Control-Allow-Headers", b"*, Authorization"),
    (b"Access-Control-Max-Age", b"600"),
)
SWEEP_EACH_S = 3_600.0
_REST_BASE = BASE.encode()
_ICEBERG_BASE = ICEBERG_BASE.encode()


class App:
    """Answers requests. All but its construction happens in the event loop of its worker.

    Args:
        only_catalog: serve nothing but Iceberg's catalog.
        ends_lake: close the lake at the end: it is this application's own.

    Attributes:
        services: what operations share.
        access_log: whether there is a line for each request.
        connections: of the worker.
    """

    def __init__(
        self,
        services: Services,
        shared_metrics: Path | None = None,
        *,
        only_catalog: bool = False,
        ends_lake: bool = True,
    ) -> None:
        self.services = services
        self._only_catalog = only_catalog
        self._ends_lake = ends_lake
        self._hosts: set[bytes] = set()
        self.rest = RestFace(services, OPERATIONS)
        self.s3 = S3Face(services, S3_OPERATIONS)
        self.iceberg = IcebergFace(services, ICEBERG_OPERATIONS)
        self.links = LinkFace(services)
        self.plain = plain_pages(services, shared_metrics)
        self._shared_metrics = shared_metrics
        self.connections = Connections(self)
        self.access_log = False
        self._measures = Measures()
        self._timers: list[asyncio.Task[None]] = []

    @property
    def readers(self) -> ThreadPoolExecutor:
        """The threads that read what is sent."""
        return self.services.readers

    def begin(self, exchange: Exchange) -> None:
        """Take a request whose head is there: of S3 if it is signed so, or if no other interface has its address."""
        request = exchange.request
        host = request.headers.get(b"host", b"")
        if host not in self._hosts and not self._is_known(host):
            self.refuse(
                exchange,
                Refusal(
                    "The Host header names another host than this server's.",
                    status=421,
                    next="Use the address that the server shows; --public-url names another one.",
                ),
            )
            return
        if self._only_catalog:
            self.iceberg.begin(exchange)
            return
        if request.method == "OPTIONS" and request.headers.get(b"origin", b"") in self.connections.origins:
            exchange.reply(Response(204, b"", PREFLIGHT))
            return
        is_bucket = bucket_of_host(request.header(b"host"), self.services.options.s3_domain)
        if not is_signed(request) and not is_bucket:
            if request.raw_path.startswith(_REST_BASE):
                self.rest.begin(exchange)
                return
            if request.raw_path.startswith(_ICEBERG_BASE):
                self.iceberg.begin(exchange)
                return
            if request.raw_path.startswith(LINKS_BASE):
                self.links.begin(exchange)
                return
            if request.raw_path in self.plain and request.method in ("GET", "HEAD"):
                self.plain[request.raw_path](exchange)
                return
        self.s3.begin(exchange)

    def _is_known(self, host: bytes) -> bool:
        """Whether the server has a name; what it is called again and again is remembered."""
        options = self.services.options
        if not options.hosts:
            return True
        name = host.decode("latin-1").lower()
        name = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]
        if name not in options.hosts and not bucket_of_host(name, options.s3_domain) and name != options.s3_domain:
            return False
        if len(self._hosts) < HOSTS_MAX:
            self._hosts.add(host)
        return True

    def refuse(self, exchange: Exchange, error: StrandlineError) -> None:
        """Answer with an error that was met outside of an interface, such as a body that is too large."""
        path = exchange.request.raw_path
        face = self.rest if path.startswith(_REST_BASE) else self.iceberg if path.startswith(_ICEBERG_BASE) else self.s3
        face.refuse(exchange, error)

    def finished(self, exchange: Exchange, status: int, seconds: float) -> None:
        """Count a request that was answered, and perhaps write a line about it."""
        self._measures.observe(exchange.operation, status, seconds)
        if self.access_log or (status >= 500 and status != NOT_HERE):
            log_request(exchange, status, seconds)

    def start(self) -> None:
        """Begin what happens each second."""
        self._timers = [
            asyncio.create_task(_each(WATCH_EACH_S, self._watch)),
            asyncio.create_task(_each(LOOK_EACH_S, self._look)),
            *([] if self._only_catalog else [asyncio.create_task(_each(SWEEP_EACH_S, self._sweep))]),
            *([asyncio.create_task(_each(WATCH_EACH_S, self._leave_metrics))] if self._shared_metrics else []),
        ]

    def _leave_metrics(self) -> None:
        if self._shared_metrics is not None:
            leave_metrics(self._shared_metrics)

    def _watch(self) -> None:
        self.connections.watch(asyncio.get_running_loop().time())

    def _look(self) -> None:
        def done(_: None, error: BaseException | None) -> None:
            if error is not None:
                warning("the directory of users cannot be read: %r", error)

        self.services.looking.run(self.services.verifier.look, done)

    def _sweep(self) -> None:
        def done(_: int | None, error: BaseException | None) -> None:
            if error is not None:
                warning("old uploads and imports cannot be swept: %r", error)

        uploads, clock = Uploads(self.services.lake._kv), self.services.clock
        imports = self.services.imports
        self.services.work.run(lambda: uploads.sweep(clock.now_us()) + imports.sweep(clock.now_us()), done)

    async def stop(self) -> None:
        """End, after what was promised is done: lanes are drained first."""
        for timer in self._timers:
            timer.cancel()
        for one in list(self.connections.open):
            one.give_up()  # their time to end by themselves is over
        for _ in range(1_000):
            if self.services.lanes.is_empty:
                break
            await asyncio.sleep(0.01)
        # in a thread: those that are closed may still ask this loop for something
        await asyncio.get_running_loop().run_in_executor(None, self.services.close)
        if self._ends_lake:
            self.services.lake.close()


async def _each(seconds: float, work: Callable[[], None]) -> None:
    while True:
        try:
            work()
        except Exception as error:
            warning("a timer of the server failed: %r", error)
        await asyncio.sleep(seconds)
