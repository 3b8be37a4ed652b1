"""The table of operations as an OpenAPI document."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from strandline import __version__
from strandline.server.operation import Operation
from strandline.server.rest.shapes import Error

REF = "#/components/schemas/{name}"
_PARAMETER = re.compile(r"\{(\w+)\}")


def document(operations: Iterable[Operation], address: str) -> dict[str, Any]:
    """An OpenAPI 3.1 document of the operations.

    Args:
        address: of the server.
    """
    rows = list(operations)
    kinds: list[Any] = [Error]
    for row in rows:
        kinds += [kind for kind in (row.body, *row.replies.values()) if kind not in (None, bytes, str)]
        kinds.append(row.query)
    shapes, components = msgspec.json.schema_components(kinds, ref_template=REF)
    schemas = dict(zip(map(str, kinds), shapes, strict=True))
    paths: dict[str, Any] = {}
    for row in rows:
        paths.setdefault(row.path, {})[row.method.lower()] = _operation(row, schemas, components)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "strandline",
            "version": __version__,
            "description": "Branches, commits, merges and objects of a lake. Operations and shapes are those of "
            "lakeFS; those that only strandline has are marked so.",
        },
        "servers": [{"url": f"{address}/api/v1"}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic"},
                "bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"},
                "cookie": {"type": "apiKey", "in": "cookie", "name": "internal_auth_session"},
            },
        },
        "security": [{"basic": []}, {"bearer": []}, {"cookie": []}],
    }


def _operation(row: Operation, schemas: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in _PARAMETER.findall(row.path)
    ]
    query = components[schemas[str(row.query)]["$ref"].rpartition("/")[2]]
    for name, shape in query.get("properties", {}).items():
        parameters.append({"name": name, "in": "query", "required": name in query.get("required", ()), "schema": shape})
    error = {"application/json": {"schema": schemas[str(Error)]}}
    replies: dict[str, Any] = {}
    for status, kind in row.replies.items():
        replies[str(status)] = {"description": row.summary, **_content(kind, schemas)}
    replies.setdefault("default", {"description": "What is wrong, and what to do next", "content": error})
    made: dict[str, Any] = {
        "operationId": row.id,
        "summary": row.summary,
        "tags": [row.tag],
        "parameters": parameters,
        "responses": replies,
    }
    if row.body is not None:
        made["requestBody"] = {"required": not row.is_body_optional, **_content(row.body, schemas)}
    if row.needs is None:
        made["security"] = []
    if row.is_ours:
        made["x-strandline-only"] = True
    return made


def _content(kind: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    if kind is None:
        return {}
    if kind is bytes:
        return {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}
    if kind is str:
        return {"content": {"text/html": {"schema": {"type": "string"}}}}
    return {"content": {"application/json": {"schema": schemas[str(kind)]}}}
