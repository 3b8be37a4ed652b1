"""Iceberg's REST catalog: tokens, and who may do what."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlencode

import pytest

from strandline.server.auth.tokens import Tokens
from strandline.server.iceberg.operation import IcebergOperation
from strandline.server.iceberg.table import OPERATIONS
from strandline.server.operation import KNOWN
from tests.server.iceberg_client import MAIN, SCHEMA, Client, answer_of, kind_of, statement, view
from tests.server.inside import Inside, body_of, run
from tests.server.test_permissions import writes

pytestmark = pytest.mark.server


# --- tokens -------------------------------------------------------------------------------------------------------


async def token_of(server: Inside, headers: Mapping[str, str] | None = None, /, **form: str) -> tuple[int, Any]:
    got = await server.ask("POST", "/iceberg/v1/oauth/tokens", urlencode(form).encode(), headers=headers, login=None)
    return answer_of(got)[:2]


def test_tokens_for_access_keys(server: Inside) -> None:
    async def test() -> None:
        client = {"grant_type": "client_credentials", "client_id": server.key, "client_secret": server.secret}
        status, got = await token_of(server, None, **client, scope="catalog")
        assert status == 200
        assert (got["token_type"], got["expires_in"]) == ("bearer", 3_600)
        basic = "Basic " + base64.b64encode(f"{server.key}:{server.secret}".encode()).decode()
        assert (await token_of(server, {"Authorization": basic}, grant_type="client_credentials"))[0] == 200
        bearer = {"Authorization": f"Bearer {got['access_token']}"}
        shown = await server.ask("GET", "/iceberg/v1/repo/main/namespaces", headers=bearer, login=None)
        assert shown.status == 200
        exchange = {
            "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
            "subject_token": got["access_token"],
            "subject_token_type": "urn:ietf:params:oauth:token-type:access_token",
        }
        status, second = await token_of(server, bearer, **exchange)
        assert (status, second["access_token"] != got["access_token"]) == (200, True)
        for wrong, expected in (
            ({**client, "client_secret": "wrong"}, (401, "invalid_client")),
            ({**client, "client_id": "AKIANOBODY"}, (401, "invalid_client")),
            ({"grant_type": "client_credentials"}, (401, "invalid_client")),
            ({**client, "grant_type": "password"}, (400, "unsupported_grant_type")),
            ({}, (400, "unsupported_grant_type")),
            ({**exchange, "subject_token": "x.y.z"}, (400, "invalid_grant")),
            ({**exchange, "subject_token_type": "saml"}, (400, "invalid_request")),
        ):
            status, answer = await token_of(server, None, **wrong)
            assert (status, answer["error"]) == expected, wrong
            assert server.secret not in json.dumps(answer)

    run(test())


def test_tokens_that_are_void(server: Inside) -> None:
    async def test() -> None:
        key, secret = server.user("somebody", "FSFullAccess")
        form = {"grant_type": "client_credentials", "client_id": key, "client_secret": secret}
        _, got = await token_of(server, None, **form)
        bearer = {"Authorization": f"Bearer {got['access_token']}"}

        async def ask(headers: Mapping[str, str]) -> tuple[int, str] | int:
            shown = await server.ask("GET", "/iceberg/v1/repo/main/namespaces", headers=headers, login=None)
            return 200 if shown.status == 200 else kind_of(answer_of(shown))

        assert await ask(bearer) == 200
        foreign, _ = Tokens(b"x" * 32).issue("admin", server.key, server.lake._clock.now_us())
        assert await ask({"Authorization": f"Bearer {foreign}"}) == (401, "NotAuthorizedException")
        old, _ = server.services.tokens.issue("somebody", key, server.lake._clock.now_us() - 10**12, 60)
        assert await ask({"Authorization": f"Bearer {old}"}) == (419, "AuthenticationTimeoutException")
        assert await ask({"Cookie": f"internal_auth_session={got['access_token']}"}) == (401, "NotAuthorizedException")
        server.directory.delete_user("somebody")
        server.services.verifier.look()
        assert await ask(bearer) == (401, "NotAuthorizedException")

    run(test())


# --- permissions --------------------------------------------------------------------------------------------------

CASES: dict[str, tuple[list[tuple[str, str]], Any]] = {
    "listNamespaces": ([("fs:ListObjects", "")], None),
    "createNamespace": ([("fs:WriteObject", "tables/new/_namespace.json"), ("commit", "")], {"namespace": ["new"]}),
    "loadNamespaceMetadata": ([("fs:ReadObject", "tables/db/_namespace.json")], None),
    "namespaceExists": ([("fs:ReadObject", "tables/db/_namespace.json")], None),
    "dropNamespace": ([("fs:DeleteObject", "tables/db/_namespace.json"), ("commit", "")], None),
    "updateProperties": (
        [("fs:WriteObject", "tables/db/_namespace.json"), ("commit", "")],
        {"updates": {"x": "1"}},
    ),
    "listTables": ([("fs:ListObjects", "")], None),
    "createTable": (
        [("fs:WriteObject", "tables/db/new/_iceberg.metadata.json"), ("commit", "")],
        {"name": "new", "schema": SCHEMA},
    ),
    "loadTable": ([("fs:ReadObject", "tables/db/t/_iceberg.metadata.json")], None),
    "tableExists": ([("fs:ReadObject", "tables/db/t/_iceberg.metadata.json")], None),
    "updateTable": (
        [
            ("fs:ReadObject", "tables/db/t/_iceberg.metadata.json"),
            ("fs:WriteObject", "tables/db/t/_iceberg.metadata.json"),
            ("commit", ""),
        ],
        {"requirements": [], "updates": [{"action": "set-properties", "updates": {"x": "1"}}]},
    ),
    "dropTable": ([("fs:DeleteObject", "tables/db/t/_iceberg.metadata.json"), ("commit", "")], None),
    "commitTransaction": (
        [("fs:WriteObject", "tables/db/t/_iceberg.metadata.json"), ("commit", "")],
        {
            "table-changes": [
                {
                    "identifier": {"namespace": ["db"], "name": "t"},
                    "requirements": [],
                    "updates": [{"action": "set-properties", "updates": {"x": "1"}}],
                }
            ]
        },
    ),
    "renameTable": (
        [
            ("fs:ReadObject", "tables/db/t/_iceberg.metadata.json"),
            ("fs:DeleteObject", "tables/db/t/_iceberg.metadata.json"),
            ("fs:WriteObject", "tables/db/new/_iceberg.metadata.json"),
            ("commit", ""),
        ],
        {"source": {"namespace": ["db"], "name": "t"}, "destination": {"namespace": ["db"], "name": "new"}},
    ),
    "registerTable": (
        [("fs:WriteObject", "tables/db/new/_iceberg.metadata.json"), ("fs:ReadObject", "*"), ("commit", "")],
        {"name": "new", "metadata-location": "file:///x"},
    ),
    "loadCredentials": ([("fs:ReadObject", "tables/db/t/_iceberg.metadata.json")], None),
    "signRequest": (
        [("fs:ReadObject", "tables/db/t/_iceberg.metadata.json")],
        {"method": "GET", "uri": "https://lake.s3.amazonaws.com/x", "region": "us-east-1", "headers": {}},
    ),
    "reportMetrics": ([("fs:ReadObject", "tables/db/t/_iceberg.metadata.json")], {}),
    "listViews": ([("fs:ListObjects", "")], None),
    "createView": (
        [("fs:WriteObject", "tables/db/new/_iceberg.view.json"), ("commit", "")],
        {"name": "new", **view(SCHEMA)},
    ),
    "loadView": ([("fs:ReadObject", "tables/db/t/_iceberg.view.json")], None),
    "viewExists": ([("fs:ReadObject", "tables/db/t/_iceberg.view.json")], None),
    "replaceView": (
        [
            ("fs:ReadObject", "tables/db/t/_iceberg.view.json"),
            ("fs:WriteObject", "tables/db/t/_iceberg.view.json"),
            ("commit", ""),
        ],
        {"updates": [{"action": "set-properties", "updates": {"x": "1"}}]},
    ),
    "dropView": ([("fs:DeleteObject", "tables/db/t/_iceberg.view.json"), ("commit", "")], None),
    "renameView": (
        [
            ("fs:ReadObject", "tables/db/t/_iceberg.view.json"),
            ("fs:DeleteObject", "tables/db/t/_iceberg.view.json"),
            ("fs:WriteObject", "tables/db/new/_iceberg.view.json"),
            ("commit", ""),
        ],
        {"source": {"namespace": ["db"], "name": "t"}, "destination": {"namespace": ["db"], "name": "new"}},
    ),
    "registerView": (
        [("fs:WriteObject", "tables/db/new/_iceberg.view.json"), ("fs:ReadObject", "*"), ("commit", "")],
        {"name": "new", "metadata-location": "file:///x"},
    ),
    "getConfig": ([("fs:ReadRepository", "")], None),
}
"""By operation, what its caller needs, action and object, and a body."""
OPEN_OPERATIONS = ("getToken",)


def test_each_operation_has_a_case() -> None:
    assert {one.id for one in OPERATIONS} == {*CASES, *OPEN_OPERATIONS}
    assert {one.id for one in OPERATIONS if one.needs is None} == set(OPEN_OPERATIONS)
    assert all(one.needs == KNOWN or one.id.startswith("list") for one in OPERATIONS if one.needs is not None)


@pytest.mark.parametrize("operation", [one for one in OPERATIONS if one.id in CASES], ids=lambda one: one.id)
def test_who_may_do_what(operation: IcebergOperation, server: Inside) -> None:
    """Refused without one of the needs, with a denial on the branch, and to strangers; nothing is written then."""
    needs, body = CASES[operation.id]
    path = operation.path.format(repository="repo", ref="main", namespace="db", name="t")
    target = f"/iceberg/v1/{path}" + ("?warehouse=repo/main" if operation.id == "getConfig" else "")
    data = b"" if body is None else json.dumps(body).encode()

    def logins() -> Iterator[tuple[str, Any, int]]:
        server.directory.create_policy("all", tuple(statement(need) for need in needs))
        yield "nobody", None, 401
        yield "a wrong secret", (server.key, "wrong"), 401
        yield "no policy", server.user("stranger"), 403
        for number, need in enumerate(needs):
            rest = tuple(statement(one) for one in needs if one != need)
            server.directory.create_policy(f"but-{number}", rest or (statement(("fs:ReadTag", "")),))
            yield f"all but {need}", server.user(f"lacks-{number}", f"but-{number}"), 403
            denial = statement(need, "deny", branch="main")
            server.directory.create_policy(f"not-{number}", (denial,))
            yield f"denied {need} here", server.user(f"denied-{number}", "FSFullAccess", f"not-{number}"), 403
        elsewhere = tuple(statement(need, branch="dev") for need in needs)
        server.directory.create_policy("elsewhere", elsewhere)
        yield "elsewhere only", server.user("elsewhere", "elsewhere"), 403
        yield "all", server.user("may", "all"), 0

    async def test() -> None:
        await Client(server).table()
        for who, login, expected in logins():
            before = writes(server)
            got = await server.ask(operation.method, target, data, login=login)
            if expected:
                assert got.status == expected, (who, got.status, body_of(got))
                assert writes(server) == before
            else:
                assert got.status not in (401, 403), (who, body_of(got))

    run(test())


@pytest.mark.parametrize("end", ["", "+staged", "%2Bstaged", "%20staged"])
def test_a_branch_is_judged_however_its_warehouse_is_written(end: str, server: Inside) -> None:
    async def test() -> None:
        await Client(server).table()
        denial = statement(("fs:WriteObject", "*"), "deny", branch="main")
        server.directory.create_policy("not-main", (denial,))
        login = server.user("elsewhere", "FSFullAccess", "not-main")
        before = writes(server)
        body = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"x": "1"}}]}
        got = await Client(server, f"repo/main{end}", login).ask("POST", "namespaces/db/tables/t", body)
        assert got[0] == 403
        assert writes(server) == before

    run(test())


def test_a_staged_change_needs_no_right_to_commit(server: Inside) -> None:
    async def test() -> None:
        await Client(server).table()
        write = statement(("fs:WriteObject", "tables/db/t/_iceberg.metadata.json"))
        read = statement(("fs:ReadObject", "tables/db/t/_iceberg.metadata.json"))
        server.directory.create_policy("staging", (write, read))
        login = server.user("stager", "staging")
        assert (await Client(server, "repo/main%2Bstaged", login).append(1))[0] == 200
        assert (await Client(server, MAIN, login).append(2))[0] == 403

    run(test())
