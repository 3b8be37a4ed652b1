"""How clients reach the files of a table: with credentials of their own, by signatures of the server, or lent ones."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

import msgspec

from strandline.core.iceberg_files import Reach
from strandline.core.physical import ICEBERG_ROOT, PHYSICAL_ROOT
from strandline.errors import NotFound
from strandline.iceberg import names
from strandline.iceberg.tables import Tables
from strandline.server.iceberg.operation import SEPARATOR, IcebergCall, IcebergOperation, pointer_path
from strandline.server.iceberg.replies import json, secret_json
from strandline.server.iceberg.warehouses import catalog_of
from strandline.server.lending.scope import Scope, StorePlace, judge, normal
from strandline.server.messages import Response
from strandline.server.operation import KNOWN, object_arn
from strandline.server.refusals import BadRequest, Forbidden, NotSupported
from strandline.server.services import Services

DELEGATION = b"x-iceberg-access-delegation"
VENDED, CLIENTS_OWN = "vended-credentials", "client-managed"
SIGN_MAX_BYTES = 64 << 10
FOREIGN_MAX = 100_000
_WIDENING = frozenset("*?$")
"""Signs that mean more than themselves in a policy of Amazon's."""


class Unsigned(msgspec.Struct, frozen=True):
    """A request that a client would send to the object store."""

    method: str
    uri: str
    region: str = ""
    headers: dict[str, list[str]] = {}
    properties: dict[str, str] = {}
    body: str | None = None


def store_place(tables: Tables) -> StorePlace | None:
    """Where the repository lies; None if that is not in S3, or if a policy could not spell its name."""
    parts = urlsplit(tables.namespace_url)
    given = dict(parse_qsl(parts.query))
    root = parts.path.strip("/")
    if parts.scheme not in ("s3", "s3a") or not parts.netloc or _WIDENING & set(root):
        return None
    host = urlsplit(given["endpoint"]).netloc.lower() if "endpoint" in given else ""
    return StorePlace(parts.netloc, f"{root}/" if root else "", host, given.get("region", "us-east-1"))


def access_of(call: IcebergCall, tables: Tables, location: str, *, writes: bool) -> dict[str, Any]:
    """What an answer about a table says of how its files are reached: `config`, and perhaps `storage-credentials`.

    Args:
        location: of the table, below which this ref writes.
        writes: whether the caller may change the table.
    """
    options = call.services.options
    place = store_place(tables) if options.iceberg_credentials != "none" else None
    asked = call.request.header(DELEGATION) or ""
    if place is None or CLIENTS_OWN in asked:
        return {"config": {}}
    if options.iceberg_credentials == "signed":
        return {"config": _signer(call)}
    if VENDED not in asked:
        return {"config": {}}
    return _lent(call, _scope(tables, place, location, writes=writes))


def _signer(call: IcebergCall) -> dict[str, str]:
    """By which names clients know that the server signs: those of Java, and those of PyIceberg."""
    return {
        "s3.remote-signing-enabled": "true",
        "s3.signer.uri": f"{call.services.options.address}/iceberg",
        "s3.signer.endpoint": f"{_address(call)}/sign",
        "s3.signer": "S3V4RestSigner",
        "py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO",
        "s3.delete-enabled": "false",
    }


def _address(call: IcebergCall) -> str:
    """Of the table that a request is about, below the catalog's base."""
    *levels, name = call.body_identifier or call.identifier
    namespace = quote(SEPARATOR.join(levels), safe="")
    return f"v1/{call.warehouse.prefix}/namespaces/{namespace}/tables/{quote(name, safe='')}"


def _lent(call: IcebergCall, scope: Scope) -> dict[str, Any]:
    lent = call.services.lender.lent(scope, call.principal_name)
    held = {
        "s3.access-key-id": lent.key_id,
        "s3.secret-access-key": lent.secret.reveal(),
        "s3.session-token-expires-at-ms": str(int(lent.ends_at * 1_000)),
    }
    if session := lent.session.reveal():
        held["s3.session-token"] = session
    config = {
        **held,
        "s3.delete-enabled": "false",
        "client.refresh-credentials-enabled": "true",
        "client.refresh-credentials-endpoint": f"{_address(call)}/credentials",
    }
    prefix = f"s3://{scope.place.bucket}/{scope.place.root}{scope.reads}"
    return {"config": config, "storage-credentials": [{"prefix": prefix, "config": held}]}


def _scope(tables: Tables, place: StorePlace, location: str, *, writes: bool) -> Scope:
    own = tables.key_of(location) + "/"
    key = names.table_key_of(own)
    if key is None:
        raise Forbidden("The table's files do not lie where tables' files lie.")
    return Scope(place, names.files_of(key), own if writes and tables.files_part else "", is_referred=lambda _: False)


def _scope_here(call: IcebergCall, tables: Tables, place: StorePlace, uri: str) -> Scope:
    """What the caller may reach of the table that the path names, made already or staged."""
    path = pointer_path(call.identifier)
    may_write = call.may("fs:WriteObject", object_arn(call.repository, path)) and call.may_commit()
    try:
        found = tables.pointer(call.identifier)
    except NotFound:
        return _scope_of_staged(call, tables, place, uri, may_write=may_write)
    loaded = tables.load(call.identifier)
    scope = _scope(tables, place, loaded.metadata["location"], writes=may_write)

    def is_referred(key: str) -> bool:
        return key.startswith(PHYSICAL_ROOT + "/") and key in _foreign(call.services, tables, found.physical_address)

    return Scope(place, scope.reads, scope.writes, is_referred)


def _scope_of_staged(call: IcebergCall, tables: Tables, place: StorePlace, uri: str, *, may_write: bool) -> Scope:
    """Of a table that is not there yet: its key is in the address that is to be signed, and on record."""
    path = urlsplit(uri).path
    at = path.find(f"/{ICEBERG_ROOT}/")
    key = names.table_key_of(path[at + 1 :]) if at >= 0 else None
    if key is None or not may_write or not tables.is_staged(key, call.identifier):
        raise Forbidden("There is no such table, and this client has not staged one of that name.")
    own = names.files_below(key, tables.files_part) + "/"
    return Scope(place, own, own, is_referred=lambda _: False)


def _foreign(services: Services, tables: Tables, metadata: str) -> frozenset[str]:
    """The files of native tables that a table was made of: its manifests say which."""
    kept = services.foreign.get(metadata)
    if kept is None:
        found = set()
        for keys in Reach(tables.blobs).from_metadata([metadata]):
            found |= {key for key in keys if key.startswith(PHYSICAL_ROOT + "/")}
            if len(found) > FOREIGN_MAX:
                raise NotSupported("The table has too many files of native tables for signed requests.")
        kept = frozenset(found)
        services.foreign.put(metadata, kept, sum(map(len, kept)) + 64)
    return kept


def sign(call: IcebergCall) -> Response:
    """Sign a request to the object store, if it stays within the table."""
    call.permit_object("fs:ReadObject", pointer_path(call.identifier))
    if call.services.options.iceberg_credentials != "signed":
        raise NotSupported("This server signs no requests.", next="Use credentials of your own.")
    given: Unsigned = call.body
    tables = catalog_of(call, Tables)
    place = store_place(tables)
    if place is None:
        raise NotSupported("The files of this repository lie in no store whose requests are signed.")
    if any(len(values) > 10 for values in given.headers.values()) or len(given.headers) > 100:
        raise BadRequest("The request has too many headers.")
    judge(_scope_here(call, tables, place, given.uri), given.method, given.uri, given.headers)
    uri = normal(given.uri)
    headers = call.services.lender.signed(place, given.method, uri, given.headers)
    # a client may use the signature of a read again for as long as it holds
    cached = b"private" if given.method in ("GET", "HEAD") else b"no-cache"
    return json({"uri": uri, "headers": headers}, (b"Cache-Control", cached))


def credentials(call: IcebergCall) -> Response:
    """Lend credentials anew, before the last ones end."""
    path = pointer_path(call.identifier)
    call.permit_object("fs:ReadObject", path)
    tables = catalog_of(call, Tables)
    place = store_place(tables)
    if call.services.options.iceberg_credentials != "vended" or place is None:
        return secret_json({"storage-credentials": []})
    writes = call.may("fs:WriteObject", object_arn(call.repository, path)) and call.may_commit()
    loaded = tables.load(call.identifier)
    lent = _lent(call, _scope(tables, place, loaded.metadata["location"], writes=writes))
    return secret_json({"storage-credentials": lent["storage-credentials"]})


_ONE = "{repository}/{ref}/namespaces/{namespace}/tables/{name}"
OPERATIONS = (
    IcebergOperation(
        "signRequest", "POST", f"{_ONE}/sign", sign, KNOWN, body=Unsigned, body_max=SIGN_MAX_BYTES, is_listed=False
    ),
    IcebergOperation("loadCredentials", "GET", f"{_ONE}/credentials", credentials, KNOWN),
)
