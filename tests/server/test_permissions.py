"""The permission matrix: every operation of both interfaces, with every kind of caller.

A row of the table without a case here fails. What is refused has changed nothing: no store saw a write.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from strandline.iam.policy import Need, Needs
from strandline.iam.records import Condition, Effect, Statement
from strandline.kv.memory import MemoryStore
from strandline.server.messages import Response
from strandline.server.operation import KNOWN, Operation
from strandline.server.rest.table import OPERATIONS
from strandline.server.s3.operation import S3Operation
from strandline.server.s3.table import OPERATIONS as S3_OPERATIONS
from tests.server.inside import BASE, Inside, body_of, inside, run

VALUES = {
    "repository": "repo",
    "branch": "dev",
    "ref": "main",
    "tag": "v1",
    "commit": "main",
    "left": "main",
    "right": "main",
    "source": "main",
    "destination": "main",
    "user": "somebody",
    "group": "crew",
    "policy": "rules",
    "credential": "AKIANOBODY",
    "lock": "x",
    "owner": "crew",
    "transaction": "1",
    "writer": "nightly",
    "shard": "events",
    "run": "1",
    "hook_run": "1",
    "upload": "1",
    "part": "1",
    "pull": "1",
    "type": "commit",
    "object": "1",
    "meta_range": "1",
    "range": "1",
}
BODY = {"name": "made", "id": "made", "paths": ["x"], "objects": [], "keys": ["x"], "source": "main", "ref": "main"}
"""Fields of bodies, as far as needs name them."""
QUERIES = {"id": "x", "path": "x", "dest_path": "y", "ref": "main", "expected_upper": "0", "new_upper": "1"}
OPEN = [one for one in OPERATIONS if one.needs is None]
GUARDED = [one for one in OPERATIONS if one.needs is not None and one.needs != KNOWN]
FOR_USERS = [one for one in OPERATIONS if one.needs == KNOWN]
REFUSED = (401, 403)


def target_of(operation: Operation, **others: str) -> str:
    """An address of an operation, with all that it requires."""
    path = operation.path
    for name, value in (VALUES | others).items():
        path = path.replace(f"{{{name}}}", value)
    fields = operation.query.__struct_fields__
    query = "&".join(f"{name}={others.get(name, value)}" for name, value in QUERIES.items() if name in fields)
    return f"{BASE}{path}" + (f"?{query}" if query else "")


def needs_of(needs: Needs) -> list[Need]:
    """The single needs of a tree of them."""
    return [needs] if isinstance(needs, Need) else [one for need in needs.needs for one in needs_of(need)]


def allowing(needs: Needs) -> tuple[Statement, ...]:
    """Statements that allow exactly what is needed, on exactly the resources of `target_of`."""
    values = VALUES | QUERIES | {"user_name": "caller"}
    values |= {name: "x" if isinstance(value, list) else value for name, value in BODY.items() if name != "ref"}
    return tuple(Statement("allow", (need.action,), need.resource.format_map(values)) for need in needs_of(needs))


def denying(needs: Needs) -> tuple[Statement, ...]:
    return tuple(Statement("deny", (need.action,), "*") for need in needs_of(needs))


def named_branch(operation: Operation) -> str:
    """The branch, or the ref, that a request of `target_of` names; "" if it names none."""
    made = {"createBranch": "made", "createTag": "main"}
    names = ("branch", "destination", "ref", "right", "commit")
    on_path = next((VALUES[name] for name in names if f"{{{name}}}" in operation.path), "")
    return made.get(operation.id, on_path)


def on_branch(effect: Effect, needs: Needs, branch: str) -> tuple[Statement, ...]:
    """Statements about what is needed, on one branch."""
    condition: Condition = {"StringLike": {"fs:branch": (branch,)}}
    return tuple(Statement(effect, (need.action,), "*", condition) for need in needs_of(needs))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("strandline.server.rest.face.REVOKED_AFTER_S", 0.0)  # how long is tested elsewhere
    with inside() as made:
        repository = made.lake.create_repository("repo")
        main = repository.branch("main")
        main.put("x", b"content")
        main.commit("first")
        repository.create_tag("v1", "main")
        repository.create_branch("dev")
        made.lake.create_repository("other").branch("main").put("x", b"content")
        made.directory.create_user("somebody")
        made.directory.create_group("crew")
        made.directory.create_policy("rules", (Statement("allow", ("fs:ReadObject",), "*"),))
        yield made


def is_refused(response: Response) -> bool:
    return response.status in REFUSED


def writes(server: Inside) -> dict[Any, Any]:
    """All that the stores hold, but for what time alone changes."""
    store: Any = server.lake._kv
    while hasattr(store, "_store"):
        store = store._store
    assert isinstance(store, MemoryStore)
    found: dict[Any, Any] = {name: dict(partition.values) for name, partition in store._partitions.items()}
    for record in server.lake.repositories():
        found[record.name] = sorted(server.lake.repository(record.name)._core.resolver.namespace.list_keys())
    return found


def body_for(operation: Operation) -> bytes:
    """A body that names what is made, or what is to be judged one by one."""
    if operation.id == "stageObjects":
        one = {"path": "x", "physical_address": "s3://b/x", "checksum": "1", "size_bytes": 1}
        return json.dumps({"objects": [one]}).encode()
    if not (operation.needs_body or operation.judges_each):
        return b"{}"
    more = {"storage_namespace": "mem://made", "statement": []} if operation.needs_body else {}
    return json.dumps({**BODY, **more}).encode()


async def refused_without_a_trace(
    server: Inside, operation: Operation, target: str, login: Any, *, is_somebody: bool = True
) -> None:
    """Ask, and look that nothing was done and nothing written, in either store."""
    before = writes(server)
    response = await server.ask(operation.method, target, body_for(operation), login=login)
    if operation.id == "deleteObjects" and is_somebody:  # the answer says it for each path
        assert {one["status_code"] for one in json.loads(body_of(response))["errors"]} <= set(REFUSED) | {404}
    else:
        assert is_refused(response), (operation.id, target, response.status)
    assert writes(server) == before


@pytest.mark.parametrize("operation", GUARDED, ids=lambda one: one.id)
def test_who_may_call_an_operation(operation: Operation, server: Inside) -> None:
    assert operation.needs is not None
    needs = operation.needs

    async def test() -> None:
        target = target_of(operation)
        server.directory.create_policy("just-this", allowing(needs))
        server.directory.create_policy("not-this", denying(needs))
        may = server.user("caller", "just-this")
        may_not = server.user("nobody")
        denied = server.user("denied", "FSFullAccess", "AuthFullAccess", "RepoManagementFullAccess", "not-this")

        # anonymous, a wrong secret, a token that is none, a key without policies, a denial over an allowance
        await refused_without_a_trace(server, operation, target, None, is_somebody=False)
        await refused_without_a_trace(server, operation, target, (server.key, "wrong" * 8), is_somebody=False)
        await refused_without_a_trace(server, operation, target, may_not)
        await refused_without_a_trace(server, operation, target, denied)
        garbage = await server.ask(operation.method, target, b"{}", {"Authorization": "Bearer x.y.z"}, login=None)
        assert is_refused(garbage)

        # allowed on one resource, and so not on another
        if any("{repository}" in need.resource for need in needs_of(needs)) and operation.id != "deleteObjects":
            await refused_without_a_trace(server, operation, target_of(operation, repository="other"), may)
        if any("{path}" in need.resource for need in needs_of(needs)):
            await refused_without_a_trace(server, operation, target_of(operation, path="elsewhere"), may)
        allowed = await server.ask(operation.method, target, body_for(operation), login=may)
        if operation.id not in ("createRepository", "stageObjects"):  # these need more, as their bodies say
            assert not is_refused(allowed), (operation.id, allowed.status, allowed.body)

        # denied on the branch that the request names, and allowed on another one only
        if branch := named_branch(operation):
            server.directory.create_policy("not-there", on_branch("deny", needs, branch))
            server.directory.create_policy("only-elsewhere", on_branch("allow", needs, "elsewhere"))
            barred = server.user("barred", "FSFullAccess", "AuthFullAccess", "RepoManagementFullAccess", "not-there")
            await refused_without_a_trace(server, operation, target, barred)
            await refused_without_a_trace(server, operation, target, server.user("stray", "only-elsewhere"))

        # a key that was made void, a user that was deleted
        server.directory.delete_credential("caller", may[0])
        server.services.verifier.look()
        await refused_without_a_trace(server, operation, target, may, is_somebody=False)
        server.directory.delete_user("denied")
        server.services.verifier.look()
        await refused_without_a_trace(server, operation, target, denied, is_somebody=False)

    run(test())


def test_operations_that_anybody_may_call_are_few() -> None:
    assert {one.id for one in OPEN} == {"healthCheck", "getSetupState", "setup", "getAuthCapabilities", "login"}


def test_operations_that_any_user_may_call(server: Inside) -> None:
    assert {one.id for one in FOR_USERS} == {"getConfig", "getCurrentUser", "postStatsEvents"}

    async def test() -> None:
        nobody = server.user("nobody")
        for operation in FOR_USERS:
            target = target_of(operation)
            await refused_without_a_trace(server, operation, target, None, is_somebody=False)
            wrong = await server.ask(operation.method, target, login=(server.key, "wrong" * 8))
            assert is_refused(wrong)
            body = b'{"events": []}' if operation.body is not None else b""
            answer = await server.ask(operation.method, target, body, login=nobody)
            assert answer.status in (200, 204), (operation.id, answer.body)
        place = f"{BASE}/config"
        own, all_of_it = [
            json.loads(body_of(await server.ask("GET", place, login=login)))["storage_config"]
            for login in (nobody, (server.key, server.secret))
        ]
        assert own["blockstore_type"] == ""
        assert all_of_it["blockstore_type"]
        server.directory.delete_user("nobody")
        server.services.verifier.look()
        assert is_refused(await server.ask("GET", place, login=nobody))

    run(test())


def test_a_page_of_another_site_changes_nothing(server: Inside) -> None:
    """Browsers send the cookie of a login to every port of a host, and say where a request comes from."""

    async def test() -> None:
        login = json.dumps({"access_key_id": server.key, "secret_access_key": server.secret}).encode()
        answer = await server.ask("POST", f"{BASE}/auth/login", login, login=None)
        cookie = dict(answer.headers)[b"Set-Cookie"].decode().partition(";")[0]
        for origin, status in (
            ("http://localhost:3000", 401),
            ("https://evil.example", 401),
            ("null", 401),
            ("http://localhost", 201),
            ("", 201),
        ):
            headers = {"Cookie": cookie, "Content-Type": "text/plain"} | ({"Origin": origin} if origin else {})
            body = json.dumps({"id": f"user-{len(origin)}"}).encode()
            answer = await server.ask("POST", f"{BASE}/auth/users", body, headers, login=None)
            assert answer.status == status, (origin, answer.body)
            assert (await server.ask("GET", f"{BASE}/user", b"", headers, login=None)).status == 200

    run(test())


def test_bodies_are_judged_too(server: Inside) -> None:
    """What a body names needs its own permission: a branch, a tag, a namespace, each path of many."""

    async def test() -> None:
        statements = (Statement("allow", ("fs:Read*", "fs:List*", "fs:CreateRepository"), "*"),)
        server.directory.create_policy("reads", statements)
        login = server.user("reader", "reads")
        cases = {
            "branches": {"name": "new", "source": "main"},
            "tags": {"id": "new", "ref": "main"},
        }
        # what is made is judged by its own name
        own = (
            Statement("allow", ("fs:*", "auth:*"), "*"),
            Statement("deny", ("fs:Create*",), "arn:lakefs:fs:::repository/prod*"),
            Statement("deny", ("auth:CreateUser",), "arn:lakefs:auth:::user/root*"),
        )
        server.directory.create_policy("not-prod", own)
        careful = server.user("careful", "not-prod")
        for target, made in (
            ("/repositories", {"name": "prod-1", "storage_namespace": "mem://p"}),
            ("/auth/users", {"id": "root-2"}),
        ):
            response = await server.ask("POST", BASE + target, json.dumps(made).encode(), login=careful)
            assert is_refused(response), target
        response = await server.ask("POST", f"{BASE}/auth/users", b'{"id": "carla"}', login=careful)
        assert response.status == 201
        for noun, body in cases.items():
            response = await server.ask(
                "POST", f"{BASE}/repositories/repo/{noun}", json.dumps(body).encode(), login=login
            )
            assert is_refused(response), noun
        made = {"name": "new-repo", "storage_namespace": "mem://new"}
        response = await server.ask("POST", f"{BASE}/repositories", json.dumps(made).encode(), login=login)
        assert is_refused(response)
        paths = json.dumps({"paths": ["x"]}).encode()
        place = f"{BASE}/repositories/repo/branches/main/objects"
        response = await server.ask("POST", f"{place}/delete", paths, login=login)
        assert json.loads(body_of(response))["errors"][0]["status_code"] == 401
        assert server.lake.repository("repo").branch("main").exists("x")
        foreign = {"physical_address": "s3://secret/x", "checksum": "1", "size_bytes": 1}
        server.directory.create_policy("writes", (Statement("allow", ("fs:WriteObject",), "*"),))
        server.directory.attach("writes", "user", "reader")
        server.services.verifier.look()
        response = await server.ask("PUT", f"{place}?path=stolen", json.dumps(foreign).encode(), login=login)
        assert is_refused(response), "whoever may write an object may not read what the server can"

    run(test())


def test_a_copy_reads_where_its_source_lies(server: Inside) -> None:
    """A caller that may use one branch only gets nothing of another one by a copy."""

    async def test() -> None:
        actions = ("fs:ReadObject", "fs:WriteObject", "fs:ListObjects")
        only = (Statement("allow", actions, "*", {"StringLike": {"fs:branch": ("dev",)}}),)
        server.directory.create_policy("only-dev", only)
        login = server.user("caller", "only-dev")
        before = writes(server)
        copied = json.dumps({"src_path": "x", "src_ref": "main"}).encode()
        place = f"{BASE}/repositories/repo/branches/dev/objects/copy?dest_path=stolen"
        assert is_refused(await server.ask("POST", place, copied, login=login))
        begun = await server.sign("POST", "/repo/dev/parts?uploads=", b"", login)
        id = body_of(begun).split(b"<UploadId>")[1].split(b"<")[0].decode()
        before = writes(server)
        for target in ("/repo/dev/stolen", f"/repo/dev/parts?partNumber=1&uploadId={id}"):
            answer = await server.sign("PUT", target, b"", login, **{"x-amz-copy-source": "/repo/main/x"})
            assert answer.status == 403
        assert writes(server) == before
        own = json.dumps({"src_path": "x"}).encode()
        assert (await server.ask("POST", place, own, login=login)).status == 201
        for source, status in (("/repo/dev/x", 200), ("/repo/dev/x?versionId=abc", 400)):
            answer = await server.sign("PUT", "/repo/dev/y", b"", login, **{"x-amz-copy-source": source})
            assert answer.status == status

    run(test())


def test_a_list_of_a_bucket_shows_the_branches_that_may_be_listed(server: Inside) -> None:
    async def test() -> None:
        statements = (
            Statement("allow", ("fs:ListObjects",), "*"),
            Statement("deny", ("fs:ListObjects",), "*", {"StringLike": {"fs:branch": ("main",)}}),
        )
        server.directory.create_policy("not-main", statements)
        login = server.user("caller", "not-main")
        for query in ("?list-type=2", "?list-type=2&delimiter=%2F", ""):
            shown = body_of(await server.sign("GET", f"/repo{query}", b"", login))
            assert b"dev/" in shown
            assert b"main/" not in shown

    run(test())


S3_TARGETS = {"service": "/", "bucket": "/repo", "object": "/repo/main/x"}


@pytest.mark.parametrize("operation", S3_OPERATIONS, ids=lambda one: one.id)
def test_who_may_call_an_operation_of_s3(operation: S3Operation, server: Inside) -> None:
    async def test() -> None:
        query = "&".join(f"{name}=1" if name in ("partNumber",) else f"{name}=" for name in operation.asks)
        target = S3_TARGETS[operation.level] + (f"?{query}" if query else "")
        headers = {"x-amz-copy-source": "/repo/main/x"} if operation.header else {}
        before = writes(server)
        nobody = server.user("nobody")
        server.directory.create_policy("not-this", denying(operation.needs))
        denied = server.user("denied", "FSFullAccess", "RepoManagementFullAccess", "not-this")
        elsewhere = tuple(
            Statement("allow", (need.action,), "arn:lakefs:fs:::repository/other*")
            for need in needs_of(operation.needs)
        )
        server.directory.create_policy("elsewhere", elsewhere)
        other = server.user("other", "elsewhere")
        server.directory.create_policy("not-there", on_branch("deny", operation.needs, "main"))
        server.directory.create_policy("only-there", on_branch("allow", operation.needs, "elsewhere"))
        barred = server.user("barred", "FSFullAccess", "RepoManagementFullAccess", "not-there")
        stray = server.user("stray", "only-there")
        deleted = server.user("deleted", "FSFullAccess", "RepoManagementFullAccess")
        server.directory.delete_user("deleted")
        server.services.verifier.look()
        lists = operation.id in ("ListObjects", "ListObjectsV2", "ListMultipartUploads")
        if lists:
            target += f"{'&' if query else '?'}prefix=main%2F"
        if operation.level == "object" or operation.judges_each or lists:
            known = [nobody, denied, other, barred, stray]
        else:
            known = [nobody, denied, other]
        before = writes(server)
        for login in (*known, deleted, (server.key, "wrong" * 8), ("AKIAUNKNOWN", "x" * 20)):
            response = await server.sign(operation.method, target, b"", login, **headers)
            if operation.judges_each and login in known:
                document = b"<Delete><Object><Key>main/x</Key></Object></Delete>"
                response = await server.sign(operation.method, target, document, login, **headers)
                assert b"<Code>AccessDenied</Code>" in body_of(response)
                continue
            assert response.status == 403, (operation.id, login[0], response.status)
        anonymous = await server.ask(operation.method, target, headers=headers, login=None)
        assert anonymous.status == 403
        assert writes(server) == before
        server.directory.create_policy("just-this", allowing(operation.needs))
        may = server.user("caller", "just-this")
        response = await server.sign(operation.method, target, b"", may, **headers)
        if not operation.header:  # a copy reads as well
            assert response.status != 403, (operation.id, response.body)

    run(test())


def test_each_row_of_both_tables_says_what_it_needs() -> None:
    for operation in GUARDED:
        assert operation.needs is not None
        for need in needs_of(operation.needs):
            assert need.action.partition(":")[0] in ("fs", "auth", "branches", "ci", "pr", "retention", "strandline")
            need.resource.format_map(BODY | VALUES | QUERIES | {"user_name": "x"})
    for row in S3_OPERATIONS:
        assert needs_of(row.needs)
