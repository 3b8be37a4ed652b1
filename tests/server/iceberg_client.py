"""What clients of Iceberg's REST catalog send, to a server that is inside this process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from strandline.iam.records import Effect, Statement
from strandline.iceberg.tables import Tables
from strandline.server.messages import Response
from tests.iceberg.making import added, field, listed, schema, snapshot
from tests.server.inside import Inside, body_of

SCHEMA = schema(field(1, "k"), field(2, "s", "string"))
MAIN = "repo/main"


class Client:
    """What clients of the catalog send."""

    def __init__(self, server: Inside, prefix: str = MAIN, login: Any = True) -> None:
        self.server = server
        self.prefix = prefix
        self.login = login

    async def ask(
        self, method: str, path: str, body: Any = None, *, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any, dict[str, str]]:
        """The status, what the JSON of the body says, and the headers."""
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        got = await self.server.ask(
            method, f"/iceberg/v1/{self.prefix}/{path}", data, headers=headers, login=self.login
        )
        return answer_of(got)

    async def config(self) -> tuple[int, Any, dict[str, str]]:
        """What a client asks first, of this one's warehouse."""
        got = await self.server.ask("GET", f"/iceberg/v1/config?warehouse={quote(self.prefix)}", login=self.login)
        return answer_of(got)

    async def table(self, name: str = "t", **more: Any) -> Any:
        """Make a table in `db`, and `db` if need be."""
        await self.ask("POST", "namespaces", {"namespace": ["db"]})
        status, made, _ = await self.ask("POST", "namespaces/db/tables", {"name": name, "schema": SCHEMA, **more})
        assert status == 200, made
        return made

    async def append(self, id: int, name: str = "t", **headers: str) -> tuple[int, Any, dict[str, str]]:
        _, held, _ = await self.ask("GET", f"namespaces/db/tables/{name}")
        return await self.ask(
            "POST", f"namespaces/db/tables/{name}", self.appending(held["metadata"], id), headers=headers
        )

    def appending(self, metadata: Any, id: int) -> Any:
        """The body of an append, whose manifest list is there."""
        tables = Tables(self.server.services.branch("repo", "main"))
        current = metadata["current-snapshot-id"]
        parent = None if current == -1 else current
        lists = listed(tables, id, tables.key_of(metadata["location"]))
        more = {"timestamp-ms": metadata["last-updated-ms"] + 1, **lists}
        return {
            "requirements": [
                {"type": "assert-table-uuid", "uuid": metadata["table-uuid"]},
                {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": parent},
            ],
            "updates": added(snapshot(id, metadata["last-sequence-number"] + 1, parent, **more)),
        }


def answer_of(response: Response) -> tuple[int, Any, dict[str, str]]:
    """The status, what the JSON of the body says, and the headers."""
    data = body_of(response)
    return response.status, json.loads(data) if data else None, {k.decode(): v.decode() for k, v in response.headers}


def kind_of(answer: tuple[int, Any, Any]) -> tuple[int, str]:
    """The status of an error, and its type."""
    return answer[0], answer[1]["error"]["type"]


def view(columns: Any, *dialects: str, **more: Any) -> dict[str, Any]:
    """The body that makes a view."""
    queries = [{"type": "sql", "sql": "SELECT 1", "dialect": one} for one in dialects or ("spark",)]
    version = {
        "version-id": 1,
        "timestamp-ms": 1,
        "schema-id": 0,
        "summary": {},
        "representations": queries,
        "default-namespace": ["db"],
    }
    return {"schema": columns, "view-version": version, "properties": {}, **more}


def statement(need: tuple[str, str], effect: Effect = "allow", **condition: str) -> Statement:
    """A statement of a policy about an action on a path of `repo`, on every branch or on one."""
    action, path = need
    if action == "commit":
        return Statement(effect, ("fs:CreateCommit",), "arn:lakefs:fs:::repository/repo/branch/main", **_on(condition))
    resource = f"arn:lakefs:fs:::repository/repo/object/{path}" if path else "arn:lakefs:fs:::repository/repo"
    return Statement(effect, (action,), resource, **_on(condition))


def _on(condition: Mapping[str, str]) -> dict[str, Any]:
    return {"condition": {"StringLike": {"fs:branch": (condition["branch"],)}}} if condition else {}
