"""Addresses beside the interfaces: health, metrics, the OpenAPI document."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import prometheus_client

from strandline.server.messages import Exchange, Response
from strandline.server.openapi import document
from strandline.server.rest.table import OPERATIONS
from strandline.server.services import Services

JSON = (b"Content-Type", b"application/json")
METRICS = (b"Content-Type", b"text/plain; version=0.0.4; charset=utf-8")


def plain_pages(services: Services) -> dict[bytes, Callable[[Exchange], None]]:
    """What answers at each address."""
    described: list[bytes] = []

    def health(exchange: Exchange) -> None:
        exchange.operation = "health"
        exchange.reply(Response(200, b'{"alive":true}', [JSON]))

    def metrics(exchange: Exchange) -> None:
        exchange.operation = "metrics"
        exchange.reply(Response(200, prometheus_client.generate_latest(), [METRICS]))

    def openapi(exchange: Exchange) -> None:
        exchange.operation = "openapi"
        if not described:
            described.append(msgspec.json.encode(document(OPERATIONS, services.options.address)))
        exchange.reply(Response(200, described[0], [JSON]))

    return {b"/_health": health, b"/healthcheck": health, b"/metrics": metrics, b"/openapi.json": openapi}
