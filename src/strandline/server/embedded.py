"""Iceberg's catalog over a lake that is open in this process, for engines that it starts: Spark, DuckDB, pipelines.

It listens on loopback in a thread, and only those who know its token are answered. Since it shares the lake's handles,
the open transactions of this process are warehouses as well.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import threading
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import uvicorn
import uvloop

from strandline import forks
from strandline.errors import StoreUnavailable
from strandline.iam.directory import Directory
from strandline.iam.sealing import Sealer
from strandline.lake import Lake
from strandline.redaction import Secret
from strandline.server.app import App
from strandline.server.asgi import AsgiApp
from strandline.server.auth.one_user import OneUser
from strandline.server.auth.tokens import Tokens
from strandline.server.http1 import Http1
from strandline.server.iceberg.face import MOUNT
from strandline.server.links import Links
from strandline.server.serve import bound
from strandline.server.services import Options, Services

STARTS_WITHIN_S = 30.0
ENDS_WITHIN_S = 10.0


@dataclass(frozen=True, slots=True)
class Catalog:
    """A catalog that is served.

    Attributes:
        uri: for its clients.
        token: that they have to show.
        pid: of the process that serves it: a copy of it does not.
    """

    uri: str
    token: Secret
    pid: int


_served: WeakKeyDictionary[Lake, Catalog] = WeakKeyDictionary()
_lock = forks.lock()


def serve_catalog(lake: Lake) -> Catalog:
    """Serve the catalog of a lake until it is closed; the same one for each call.

    Raises:
        StoreUnavailable: this machine gives out no port.
    """
    with _lock:
        found = _served.get(lake)
        if found is None or found.pid != os.getpid():
            found = _served[lake] = _started(lake)
    return found


def _started(lake: Lake) -> Catalog:
    listening = bound("127.0.0.1", 0)
    address = f"http://127.0.0.1:{listening.getsockname()[1]}"
    token = Secret(secrets.token_urlsafe(32))
    server = _Server(lake, listening, address, token)
    server.start()
    lake.at_close(server.stop)
    return Catalog(address + MOUNT, token, os.getpid())


class _Server:
    def __init__(self, lake: Lake, listening: socket.socket, address: str, token: Secret) -> None:
        application = AsgiApp(lambda: App(_services(lake, address, token), only_catalog=True, ends_lake=False))

        def protocol(*, server_state: Any, **_: Any) -> Http1:
            assert application.app is not None
            return Http1(application.app.connections, server_state)

        config = uvicorn.Config(
            application,
            http=protocol,  # type: ignore[arg-type]
            interface="asgi3",
            lifespan="on",
            proxy_headers=False,
            server_header=False,
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=1,
        )
        self._listening = listening
        self._server = uvicorn.Server(config)
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="strandline-catalog", daemon=True)

    def start(self) -> None:
        self._thread.start()
        if not self._ready.wait(STARTS_WITHIN_S) or not self._server.started:
            self.stop()
            raise StoreUnavailable("The catalog could not be served on this machine.", happened="no")

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._serve())
        finally:
            self._ready.set()
            self._listening.close()

    async def _serve(self) -> None:
        task = asyncio.ensure_future(self._server.serve(sockets=[self._listening]))
        while not self._server.started and not task.done():
            await asyncio.sleep(0.005)
        self._ready.set()
        await task

    def stop(self) -> None:
        self._server.should_exit = True
        if self._thread is not threading.current_thread():
            self._thread.join(ENDS_WITHIN_S)


def _services(lake: Lake, address: str, token: Secret) -> Services:
    sealer = Sealer([Secret(secrets.token_urlsafe(32))])  # nothing is sealed: this server has no users on record
    directory = Directory(lake._kv, lake._clock, sealer)
    tokens = Tokens(sealer.derive("tokens"))
    verifier = OneUser(directory, tokens, lake._clock, token, lake._settings.committer)
    hosts = frozenset({"127.0.0.1", "localhost"})
    return Services(
        lake, directory, verifier, tokens, Links(sealer.derive("links")), Options(address=address, hosts=hosts)
    )
