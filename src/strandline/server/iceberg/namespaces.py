"""Namespaces: folders with properties."""

from __future__ import annotations

import msgspec

from strandline.iceberg.tables import Tables
from strandline.server.iceberg.operation import IcebergCall, IcebergOperation, levels_of, pointer_path
from strandline.server.iceberg.pages import PagedBelow, page
from strandline.server.iceberg.replies import json, nothing
from strandline.server.iceberg.warehouses import catalog_of
from strandline.server.messages import Response
from strandline.server.operation import KNOWN, repository_need

BODY_MAX_BYTES = 1 << 20


class Creation(msgspec.Struct, frozen=True):
    """A namespace to be made."""

    namespace: list[str]
    properties: dict[str, str] | None = None


class Properties(msgspec.Struct, frozen=True):
    """Changes of a namespace's properties."""

    removals: list[str] | None = None
    updates: dict[str, str] | None = None


def list_namespaces(call: IcebergCall) -> Response:
    found = catalog_of(call, Tables).namespaces(levels_of(call.query.parent) if call.query.parent else ())
    rows, token = page(found, call.query)
    return json({"namespaces": rows, "next-page-token": token})


def create(call: IcebergCall) -> Response:
    given: Creation = call.body
    call.permit_write(pointer_path(tuple(given.namespace), "namespace"))
    catalog_of(call, Tables).create_namespace(given.namespace, given.properties or {})
    return json({"namespace": given.namespace, "properties": given.properties or {}})


def load(call: IcebergCall) -> Response:
    call.permit_object("fs:ReadObject", pointer_path(call.namespace, "namespace"))
    return json({"namespace": call.namespace, "properties": catalog_of(call, Tables).namespace(call.namespace)})


def exists(call: IcebergCall) -> Response:
    load(call)
    return nothing()


def drop(call: IcebergCall) -> Response:
    call.permit_object("fs:DeleteObject", pointer_path(call.namespace, "namespace"))
    call.permit_commit()
    catalog_of(call, Tables).drop_namespace(call.namespace)
    return nothing()


def update(call: IcebergCall) -> Response:
    given: Properties = call.body
    call.permit_write(pointer_path(call.namespace, "namespace"))
    removals, updates = given.removals or [], given.updates or {}
    before = catalog_of(call, Tables).update_namespace(call.namespace, removals, updates)
    gone = list(dict.fromkeys(removals))
    return json(
        {
            "updated": sorted(updates),
            "removed": [name for name in gone if name in before],
            "missing": [name for name in gone if name not in before],
        }
    )


_LISTING = repository_need("fs:ListObjects")
_EVERY, _ONE = "{repository}/{ref}/namespaces", "{repository}/{ref}/namespaces/{namespace}"
OPERATIONS = (
    IcebergOperation("listNamespaces", "GET", _EVERY, list_namespaces, _LISTING, query=PagedBelow),
    IcebergOperation("createNamespace", "POST", _EVERY, create, KNOWN, body=Creation, body_max=BODY_MAX_BYTES),
    IcebergOperation("loadNamespaceMetadata", "GET", _ONE, load, KNOWN),
    IcebergOperation("namespaceExists", "HEAD", _ONE, exists, KNOWN),
    IcebergOperation("dropNamespace", "DELETE", _ONE, drop, KNOWN),
    IcebergOperation(
        "updateProperties",
        "POST",
        f"{_ONE}/properties",
        update,
        KNOWN,
        body=Properties,
        body_max=BODY_MAX_BYTES,
    ),
)
