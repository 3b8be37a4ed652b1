"""What a client asks first: which endpoints there are, and which prefix a warehouse has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec

from strandline.errors import Fenced, RefNotFound
from strandline.iceberg.publishing import store_properties
from strandline.repository.transactions.transaction import Transaction
from strandline.server.iceberg.operation import IcebergCall, IcebergOperation
from strandline.server.iceberg.prefixes import warehouse_of
from strandline.server.iceberg.replies import json
from strandline.server.iceberg.warehouses import knows_repetitions, place_of
from strandline.server.messages import Response
from strandline.server.operation import KNOWN

KEYS_KEPT = "PT24H"
"""For how long a repetition is recognised, as clients are assured; it is longer here (`repeats.KEPT_US`)."""
DEFAULTS = {"rest-metrics-reporting-enabled": "false"}
"""Nothing reads what clients would report after each scan and each commit."""
LENDS = "loadCredentials"


class Wanted(msgspec.Struct, frozen=True):
    """What the client is to work with."""

    warehouse: str = ""


def config_of(rows: Callable[[], Sequence[IcebergOperation]]) -> IcebergOperation:
    """The operation that lists all others.

    Args:
        rows: the operations, when they are all there.
    """

    def config(call: IcebergCall) -> Response:
        warehouse = warehouse_of(call.query.warehouse)
        resource = f"arn:lakefs:fs:::repository/{warehouse.repository}"
        call.permit("fs:ReadRepository", resource, branch=warehouse.ref)
        try:
            place = place_of(call.services, warehouse)
        except Fenced as error:  # there is nothing to attach any more
            raise RefNotFound(error.what, safe=error.safe, next=error.next) from error
        if isinstance(place, Transaction):
            # a client stays with the transaction that it attached, and never meets the writer's next one
            warehouse = replace(warehouse, number=place.id)
        lends = call.services.options.iceberg_credentials == "vended"
        body = {
            "defaults": {**DEFAULTS, **store_properties(place._core)},
            "overrides": {"prefix": warehouse.prefix},
            "endpoints": [row.endpoint for row in rows() if row.is_listed and (lends or row.id != LENDS)],
        }
        return json(body | ({"idempotency-key-lifetime": KEYS_KEPT} if knows_repetitions(warehouse, place) else {}))

    return IcebergOperation("getConfig", "GET", "config", config, KNOWN, query=Wanted, is_listed=False)
