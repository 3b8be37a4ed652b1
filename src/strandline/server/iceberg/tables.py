"""Tables: made, read, changed alone or together, renamed, dropped."""

from __future__ import annotations

import os
from typing import Any, Literal

import msgspec
from blake3 import blake3

from strandline.errors import StrandlineError
from strandline.iceberg import names
from strandline.iceberg.entities import Loaded
from strandline.iceberg.shapes import encoded
from strandline.iceberg.tables import TableChange, Tables
from strandline.server.etags import matches
from strandline.server.iceberg.credentials import DELEGATION, access_of
from strandline.server.iceberg.operation import (
    IcebergCall,
    IcebergOperation,
    Rename,
    identifier_in,
    pointer_path,
)
from strandline.server.iceberg.pages import Paged, page
from strandline.server.iceberg.replies import JSON, NO_STORE, json, nothing
from strandline.server.iceberg.warehouses import catalog_of
from strandline.server.messages import Response
from strandline.server.operation import KNOWN, object_arn, repository_need
from strandline.server.refusals import BadRequest
from strandline.server.services import Services

FOLDERS_KEPT = 10_000
METRICS_MAX_BYTES = 8 << 20


class Shown(msgspec.Struct, frozen=True):
    """How much of a table is wanted."""

    snapshots: Literal["all", "refs", "ALL", "REFS"] = "all"


class Drop(msgspec.Struct, frozen=True, rename="camel"):
    """Whether the files are to go as well: they go when nobody needs them any more, whatever is asked."""

    purge_requested: str = "false"


class Changes(msgspec.Struct, frozen=True):
    """What is asked of one table."""

    requirements: list[Any]
    updates: list[Any]
    identifier: dict[str, Any] | None = None


class Together(msgspec.Struct, frozen=True, rename="kebab"):
    """What is asked of several tables."""

    table_changes: list[Changes]


class Registration(msgspec.Struct, frozen=True, rename="kebab"):
    """Metadata that lies in the lake already."""

    name: str
    metadata_location: str
    overwrite: bool = False


def list_tables(call: IcebergCall) -> Response:
    rows, token = page(catalog_of(call, Tables).all_in(call.namespace), call.query)
    return json({"identifiers": [_named(row) for row in rows], "next-page-token": token})


def _named(identifier: names.Identifier) -> dict[str, Any]:
    return {"namespace": identifier[:-1], "name": identifier[-1]}


def create(call: IcebergCall) -> Response:
    given = call.body
    table = (*call.namespace, given.get("name"))
    call.permit_write(pointer_path(table))
    stages = given.get("stage-create", False)
    if not isinstance(stages, bool):
        raise BadRequest("stage-create is true or false.")
    tables = catalog_of(call, Tables)
    loaded = tables.create(table, given, stages=stages)
    _make_folders(call.services, tables, loaded.metadata["location"])
    return _answer(call, tables, loaded, is_new=True)


def load(call: IcebergCall) -> Response:
    path = pointer_path(call.identifier)
    call.permit_object("fs:ReadObject", path)
    tables, table = catalog_of(call, Tables), call.identifier
    mode = call.query.snapshots.lower()
    found = tables.pointer(table)
    tag = _etag(call, tables, found.physical_address, mode)
    if matches(call.request.header(b"if-none-match"), tag, weak=True):
        return Response(304, b"", [(b"ETag", b'"%s"' % tag.encode())])
    kept = call.services.tables.get(tag)
    if kept is not None:
        return Response(200, kept, _headers(tag))
    loaded = tables.load(table)
    if tables.files_part and call.may("fs:WriteObject", object_arn(call.repository, path)):
        _make_folders(call.services, tables, loaded.metadata["location"])
    answer = _answer(call, tables, loaded, mode)
    assert isinstance(answer.body, bytes)
    is_shared = NO_STORE not in answer.headers
    if is_shared and tables.location_of(found) == loaded.location:  # else another commit came between the two reads
        call.services.tables.put(tag, answer.body, len(answer.body))
    return answer


def exists(call: IcebergCall) -> Response:
    call.permit_object("fs:ReadObject", pointer_path(call.identifier))
    catalog_of(call, Tables).pointer(call.identifier)
    return nothing()


def commit(call: IcebergCall) -> Response:
    call.permit_object("fs:ReadObject", pointer_path(call.identifier))  # the answer has all of the table
    call.permit_write(pointer_path(call.identifier))
    tables = catalog_of(call, Tables)
    (loaded,) = tables.commit([_change(call.identifier, call.body)])
    return _answer(call, tables, loaded, is_new=True)


def commit_together(call: IcebergCall) -> Response:
    given: Together = call.body
    changes = [_change(identifier_in(one.identifier, "table"), one) for one in given.table_changes]
    call.permit_write(*(pointer_path(one.identifier) for one in changes))
    catalog_of(call, Tables).commit(changes)
    return nothing()


def _change(identifier: names.Identifier, given: Changes) -> TableChange:
    return TableChange(identifier, given.requirements, given.updates)


def drop(call: IcebergCall) -> Response:
    call.permit_object("fs:DeleteObject", pointer_path(call.identifier))
    call.permit_commit()
    catalog_of(call, Tables).drop(call.identifier)
    return nothing()


def rename(call: IcebergCall) -> Response:
    source = identifier_in(call.body.source, "table")
    target = identifier_in(call.body.destination, "table")
    call.permit_object("fs:ReadObject", pointer_path(source))
    call.permit_object("fs:DeleteObject", pointer_path(source))
    call.permit_write(pointer_path(target))
    catalog_of(call, Tables).rename(source, target)
    return nothing()


def register(call: IcebergCall) -> Response:
    given: Registration = call.body
    table = (*call.namespace, given.name)
    call.permit_write(pointer_path(table))
    # what was dropped may have been another's: its metadata is shown only to those that may read all objects
    call.permit("fs:ReadObject", object_arn(call.repository, ""), is_prefix=True)
    tables = catalog_of(call, Tables)
    loaded = tables.register(table, given.metadata_location, overwrite=given.overwrite)
    return _answer(call, tables, loaded, is_new=True)


def report(call: IcebergCall) -> Response:
    """What a client measured of a scan or a commit; nothing reads it."""
    call.permit_object("fs:ReadObject", pointer_path(call.identifier))
    return nothing()


def _answer(call: IcebergCall, tables: Tables, loaded: Loaded, mode: str = "all", *, is_new: bool = False) -> Response:
    """What is said of a table.

    Args:
        is_new: it was changed just now: what fails from here on must not look as if it was not.
    """
    metadata = loaded.metadata
    if mode == "refs":
        named = {one["snapshot-id"] for one in (metadata.get("refs") or {}).values()}
        shown = [one for one in metadata.get("snapshots") or [] if one["snapshot-id"] in named]
        metadata = {**metadata, "snapshots": shown}
    writes = call.may("fs:WriteObject", object_arn(call.repository, _path(call))) and call.may_commit()
    try:
        access = access_of(call, tables, metadata["location"], writes=writes)
    except StrandlineError:
        if not is_new:
            raise
        access = {"config": {}}  # the client loads the table again for the rights that it lacks
    secret = [NO_STORE] if "storage-credentials" in access else []
    if not loaded.location:
        return Response(200, encoded({"metadata": metadata, **access}), [JSON, *secret])
    tag = _etag(call, tables, tables.key_of(loaded.location), mode)
    body = encoded({"metadata-location": loaded.location, "metadata": metadata, **access})
    return Response(200, body, [*_headers(tag), *secret])


def _path(call: IcebergCall) -> str:
    return pointer_path(call.body_identifier or call.identifier)


def _headers(tag: str) -> list[tuple[bytes, bytes]]:
    return [JSON, (b"ETag", b'"%s"' % tag.encode())]


def _etag(call: IcebergCall, tables: Tables, address: str, mode: str) -> str:
    """Differs for whatever is answered differently: the file of the metadata, the part of it, the place that shows, and
    how files are reached.
    """
    access = call.request.header(DELEGATION) or "" if call.services.options.iceberg_credentials != "none" else ""
    name = call.request.path if access or call.services.options.iceberg_credentials == "signed" else ""
    text = "\0".join((tables.repository_id, address, mode, tables.files_part, access, name))
    return blake3(text.encode()).hexdigest(length=16)


def _make_folders(services: Services, tables: Tables, location: str) -> None:
    """Make the folders that some clients write to and do not make, if the lake is one on this machine."""
    place = tables.local_path(location)
    if place is None or place in services.folders:
        return
    for name in ("data", "metadata"):
        os.makedirs(os.path.join(place, name), exist_ok=True)
    if len(services.folders) >= FOLDERS_KEPT:
        services.folders.clear()
    services.folders.add(place)


_LISTING = repository_need("fs:ListObjects")
_EVERY, _ONE = (
    "{repository}/{ref}/namespaces/{namespace}/tables",
    "{repository}/{ref}/namespaces/{namespace}/tables/{name}",
)
OPERATIONS = (
    IcebergOperation("listTables", "GET", _EVERY, list_tables, _LISTING, query=Paged),
    IcebergOperation("createTable", "POST", _EVERY, create, KNOWN, body=dict[str, Any]),
    IcebergOperation("loadTable", "GET", _ONE, load, KNOWN, query=Shown),
    IcebergOperation("tableExists", "HEAD", _ONE, exists, KNOWN),
    IcebergOperation("updateTable", "POST", _ONE, commit, KNOWN, body=Changes, waits=True),
    IcebergOperation("dropTable", "DELETE", _ONE, drop, KNOWN, query=Drop),
    IcebergOperation(
        "commitTransaction",
        "POST",
        "{repository}/{ref}/transactions/commit",
        commit_together,
        KNOWN,
        body=Together,
        waits=True,
    ),
    IcebergOperation("renameTable", "POST", "{repository}/{ref}/tables/rename", rename, KNOWN, body=Rename),
    IcebergOperation(
        "registerTable",
        "POST",
        "{repository}/{ref}/namespaces/{namespace}/register",
        register,
        KNOWN,
        body=Registration,
    ),
    IcebergOperation("reportMetrics", "POST", f"{_ONE}/metrics", report, KNOWN, body=bytes, body_max=METRICS_MAX_BYTES),
)
