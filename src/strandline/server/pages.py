"""Addresses beside the interfaces: health, metrics, the OpenAPI document."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import prometheus_client

from strandline.server.auth.verifier import COOKIE
from strandline.server.messages import Exchange, Response
from strandline.server.observing import all_metrics
from strandline.server.openapi import document
from strandline.server.rest.table import OPERATIONS
from strandline.server.services import Services

JSON = (b"Content-Type", b"application/json")
METRICS = (b"Content-Type", b"text/plain; version=0.0.4; charset=utf-8")


def plain_pages(services: Services, shared_metrics: Path | None = None) -> dict[bytes, Callable[[Exchange], None]]:
    """What answers at each address.

    Args:
        shared_metrics: where the workers leave their metrics; None for one worker.
    """
    described: list[bytes] = []

    def health(exchange: Exchange) -> None:
        exchange.operation = "health"
        exchange.reply(Response(200, b'{"alive":true}', [JSON]))

    def metrics(exchange: Exchange) -> None:
        exchange.operation = "metrics"
        if shared_metrics is None:
            exchange.reply(Response(200, prometheus_client.generate_latest(), [METRICS]))
            return

        def done(found: bytes | None, error: BaseException | None) -> None:
            exchange.reply(Response(200 if error is None else 500, found or b"", [METRICS]))

        services.looking.run(lambda: all_metrics(shared_metrics), done)

    def openapi(exchange: Exchange) -> None:
        exchange.operation = "openapi"
        if not described:
            described.append(msgspec.json.encode(document(OPERATIONS, services.options.address)))
        exchange.reply(Response(200, described[0], [JSON]))

    def logout(exchange: Exchange) -> None:
        exchange.operation = "logout"
        void = (b"Set-Cookie", f"{COOKIE}=; Path=/; HttpOnly; SameSite=Lax; Max-Age=0".encode())
        exchange.reply(Response(303, b"", [(b"Location", b"/"), void]))

    return {
        b"/logout": logout,
        b"/_health": health,
        b"/healthcheck": health,
        b"/metrics": metrics,
        b"/openapi.json": openapi,
    }
