"""Views: made, read, changed, renamed, dropped."""

from __future__ import annotations

from typing import Any

import msgspec

from strandline.iceberg.entities import Loaded
from strandline.iceberg.views import Views
from strandline.server.iceberg.operation import (
    IcebergCall,
    IcebergOperation,
    Rename,
    identifier_in,
    pointer_path,
)
from strandline.server.iceberg.pages import Paged, page
from strandline.server.iceberg.replies import json, nothing
from strandline.server.iceberg.warehouses import catalog_of
from strandline.server.messages import Response
from strandline.server.operation import KNOWN, object_arn, repository_need


class Changes(msgspec.Struct, frozen=True):
    """What is asked of a view."""

    updates: list[Any]
    requirements: list[Any] | None = None


class Registration(msgspec.Struct, frozen=True, rename="kebab"):
    """Metadata that lies in the lake already."""

    name: str
    metadata_location: str


def list_views(call: IcebergCall) -> Response:
    rows, token = page(catalog_of(call, Views).all_in(call.namespace), call.query)
    shown = [{"namespace": row[:-1], "name": row[-1]} for row in rows]
    return json({"identifiers": shown, "next-page-token": token})


def create(call: IcebergCall) -> Response:
    view = (*call.namespace, call.body.get("name"))
    call.permit_write(pointer_path(view, "view"))
    return _answer(catalog_of(call, Views).create(view, call.body))


def load(call: IcebergCall) -> Response:
    call.permit_object("fs:ReadObject", pointer_path(call.identifier, "view"))
    return _answer(catalog_of(call, Views).load(call.identifier))


def exists(call: IcebergCall) -> Response:
    call.permit_object("fs:ReadObject", pointer_path(call.identifier, "view"))
    catalog_of(call, Views).pointer(call.identifier)
    return nothing()


def replace(call: IcebergCall) -> Response:
    given: Changes = call.body
    call.permit_object("fs:ReadObject", pointer_path(call.identifier, "view"))  # the answer has all of the view
    call.permit_write(pointer_path(call.identifier, "view"))
    loaded = catalog_of(call, Views).commit(call.identifier, given.requirements or [], given.updates)
    return _answer(loaded)


def drop(call: IcebergCall) -> Response:
    call.permit_object("fs:DeleteObject", pointer_path(call.identifier, "view"))
    call.permit_commit()
    catalog_of(call, Views).drop(call.identifier)
    return nothing()


def rename(call: IcebergCall) -> Response:
    source = identifier_in(call.body.source, "view")
    target = identifier_in(call.body.destination, "view")
    call.permit_object("fs:ReadObject", pointer_path(source, "view"))
    call.permit_object("fs:DeleteObject", pointer_path(source, "view"))
    call.permit_write(pointer_path(target, "view"))
    catalog_of(call, Views).rename(source, target)
    return nothing()


def register(call: IcebergCall) -> Response:
    given: Registration = call.body
    view = (*call.namespace, given.name)
    call.permit_write(pointer_path(view, "view"))
    call.permit("fs:ReadObject", object_arn(call.repository, ""), is_prefix=True)  # as for tables
    return _answer(catalog_of(call, Views).register(view, given.metadata_location))


def _answer(loaded: Loaded) -> Response:
    return json({"metadata-location": loaded.location, "metadata": loaded.metadata, "config": {}})


_LISTING = repository_need("fs:ListObjects")
_NAMESPACE = "{repository}/{ref}/namespaces/{namespace}"
_EVERY, _ONE = f"{_NAMESPACE}/views", f"{_NAMESPACE}/views/{{name}}"
OPERATIONS = (
    IcebergOperation("listViews", "GET", _EVERY, list_views, _LISTING, query=Paged),
    IcebergOperation("createView", "POST", _EVERY, create, KNOWN, body=dict[str, Any]),
    IcebergOperation("loadView", "GET", _ONE, load, KNOWN),
    IcebergOperation("viewExists", "HEAD", _ONE, exists, KNOWN),
    IcebergOperation("replaceView", "POST", _ONE, replace, KNOWN, body=Changes, waits=True),
    IcebergOperation("dropView", "DELETE", _ONE, drop, KNOWN),
    IcebergOperation("renameView", "POST", "{repository}/{ref}/views/rename", rename, KNOWN, body=Rename),
    IcebergOperation("registerView", "POST", f"{_NAMESPACE}/register-view", register, KNOWN, body=Registration),
)
