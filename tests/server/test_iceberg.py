"""Iceberg's REST catalog, request by request: addresses, pages, tags, keys, errors, bad input."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest

from strandline.branch.rules.record import ONE_SHOT_FORMAT
from strandline.errors import Conflict, Contention, OutcomeUnknown, RangeLocked, StoreUnavailable
from strandline.iceberg.tables import Tables
from strandline.server.iceberg import face
from strandline.server.iceberg.prefixes import Warehouse, warehouse_at, warehouse_of
from strandline.server.iceberg.replies import status_and_type
from strandline.server.refusals import BadRequest
from tests.iceberg.making import field, schema
from tests.server.iceberg_client import SCHEMA, Client, answer_of, kind_of, view
from tests.server.inside import Inside, run
from tests.server.test_permissions import writes

pytestmark = pytest.mark.server
UUID7 = "0199c1a0-0000-7000-8000-000000000001"


# --- warehouses ---------------------------------------------------------------------------------------------------


def test_what_a_warehouse_means() -> None:
    assert warehouse_of("nyc/main") == Warehouse("nyc", "main")
    assert warehouse_of("nyc/main~1").prefix == "nyc/main~1"
    assert warehouse_of("nyc/main@{2026-01-01 10:00}").prefix == "nyc/main@%7B2026-01-01%2010:00%7D"
    assert warehouse_of("nyc/main+staged") == Warehouse("nyc", "main", stages=True)
    assert warehouse_of("nyc/main+staged").prefix == "nyc/main%2Bstaged"
    assert warehouse_at("nyc", "main staged") == Warehouse("nyc", "main", stages=True)  # as some clients decode it
    assert warehouse_of("nyc/main@tx=nightly") == Warehouse("nyc", "main", writer="nightly")
    assert warehouse_of("nyc/main@tx=nightly").prefix == "nyc/main@tx=nightly"
    assert warehouse_of("nyc/main@tx=a/b@id=7") == Warehouse("nyc", "main", writer="a/b", number=7)
    assert warehouse_of("nyc/main@tx=a/b@id=7").prefix == "nyc/main@tx=a%2Fb@id=7"
    wrongs = ("", "nyc", "/", "nyc/", "a/b/c", "nyc/@tx=x", "nyc/main@tx=", "nyc/main@tx=x@id=", "nyc/main@tx=x@id=-1")
    for wrong in wrongs:
        with pytest.raises(BadRequest):
            warehouse_of(wrong)


def test_the_configuration(server: Inside) -> None:
    async def test() -> None:
        status, got, _ = answer_of(await server.ask("GET", "/iceberg/v1/config?warehouse=repo/main"))
        assert status == 200
        assert got["overrides"] == {"prefix": "repo/main"}
        assert got["idempotency-key-lifetime"] == "PT24H"
        assert "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}" in got["endpoints"]
        assert "HEAD /v1/{prefix}/namespaces/{namespace}/views/{view}" in got["endpoints"]
        assert "POST /v1/{prefix}/transactions/commit" in got["endpoints"]
        assert not [one for one in got["endpoints"] if "oauth" in one or "{repository}" in one or "{name}" in one]
        status, got, _ = answer_of(await server.ask("GET", "/iceberg/v1/config?warehouse=repo/main%2Bstaged"))
        assert status == 200
        assert "idempotency-key-lifetime" not in got  # repetitions of what is staged are not recognised
        for wrong, expected in (
            ("repo/nothing", (404, "NoSuchWarehouseException")),
            ("nothing/main", (404, "NoSuchWarehouseException")),
            ("repo/main@tx=nobody", (404, "NoSuchWarehouseException")),
            ("repo", (400, "BadRequestException")),
            ("repo/main~1+staged", (404, "NoSuchWarehouseException")),
            ("", (400, "BadRequestException")),
        ):
            answer = answer_of(await server.ask("GET", f"/iceberg/v1/config?warehouse={quote(wrong)}"))
            assert kind_of(answer) == expected, wrong

    run(test())


def test_a_repository_may_have_the_name_of_an_address(server: Inside) -> None:
    server.lake.repository("config", create=True)
    server.lake.repository("oauth", create=True)

    async def test() -> None:
        for name in ("config", "oauth"):
            client = Client(server, f"{name}/main")
            assert (await client.ask("POST", "namespaces", {"namespace": ["a"]}))[0] == 200
            assert (await client.ask("GET", "namespaces"))[1]["namespaces"] == [["a"]]
        wrong = Client(server)
        assert kind_of(await wrong.ask("GET", "nothing")) == (404, "NotFoundException")
        assert kind_of(await wrong.ask("PUT", "namespaces")) == (405, "UnsupportedOperationException")

    run(test())


def test_names_of_every_kind_pass(server: Inside) -> None:
    """Levels are parted by 0x1F; a space may come as a plus sign, and everything else is percent-encoded."""

    async def test() -> None:
        client = Client(server)
        names = ["a b", "c+d", "ä%ö", "x.y", "q\"uo'te", "tr;il", "UPPER", "e=f&g"]
        for name in names:
            assert (await client.ask("POST", "namespaces", {"namespace": [name]}))[0] == 200
            shown = quote(name, safe="").replace("%20", "+")
            made = await client.ask("POST", f"namespaces/{shown}/tables", {"name": name, "schema": SCHEMA})
            assert made[0] == 200, made
            assert (await client.ask("HEAD", f"namespaces/{shown}/tables/{shown}"))[0] == 204
            _, listed, _ = await client.ask("GET", f"namespaces/{shown}/tables")
            assert listed["identifiers"] == [{"namespace": [name], "name": name}]
        await client.ask("POST", "namespaces", {"namespace": ["a b", "below"]})
        _, listed, _ = await client.ask("GET", "namespaces?parent=a+b")
        assert listed["namespaces"] == [["a b", "below"]]
        assert (await client.ask("GET", "namespaces/a+b%1Fbelow"))[1]["namespace"] == ["a b", "below"]
        for wrong in ("..", ".", "_strandline", "a/b", "a\0b", "\x07", "x" * 1_025, "_iceberg.view.json"):
            answer = await client.ask("POST", "namespaces", {"namespace": [wrong]})
            assert kind_of(answer) == (400, "BadRequestException"), wrong
            answer = await client.ask("POST", "namespaces/UPPER/tables", {"name": wrong, "schema": SCHEMA})
            assert kind_of(answer) == (400, "BadRequestException"), wrong
            answer = await client.ask("POST", "namespaces/UPPER/views", {"name": wrong, **view(SCHEMA)})
            assert kind_of(answer) == (400, "BadRequestException"), wrong
        for wrong in ("%2E%2E", "%00", "a%2Fb"):
            assert (await client.ask("GET", f"namespaces/{wrong}/tables"))[0] == 400
        assert kind_of(await client.ask("GET", "namespaces/%FF")) == (400, "BadRequestException")

    run(test())


def test_a_warehouse_that_stages_leaves_commits_to_others(server: Inside) -> None:
    main = server.lake.repository("repo").branch("main")

    async def test() -> None:
        client = Client(server, "repo/main%2Bstaged")
        before = main.commit_id
        await client.table()
        assert (await client.append(7))[0] == 200
        assert main.commit_id == before
        _, held, _ = await client.ask("GET", "namespaces/db/tables/t")
        assert held["metadata"]["current-snapshot-id"] == 7
        assert (await Client(server).ask("HEAD", "namespaces/db/tables/t"))[0] == 404
        body = client.appending(held["metadata"], 8)
        assert (await client.ask("POST", "namespaces/db/tables/t", body))[0] == 200
        other = client.appending(held["metadata"], 9)
        assert kind_of(await client.ask("POST", "namespaces/db/tables/t", other)) == (409, "CommitFailedException")
        assert kind_of(await client.ask("DELETE", "namespaces/db")) == (409, "NamespaceNotEmptyException")
        main.commit("all that is staged")
        _, held, _ = await Client(server).ask("GET", "namespaces/db/tables/t")
        assert held["metadata"]["current-snapshot-id"] == 8

    run(test())


# --- pages and tags -----------------------------------------------------------------------------------------------


def test_pages_stay_good_while_names_come_and_go(server: Inside) -> None:
    async def test() -> None:
        client = Client(server)
        for name in ("a", "b", "c", "d"):
            await client.table(name)
        _, every, _ = await client.ask("GET", "namespaces/db/tables")
        assert [one["name"] for one in every["identifiers"]] == ["a", "b", "c", "d"]
        assert every["next-page-token"] is None
        _, first, _ = await client.ask("GET", "namespaces/db/tables?pageToken=&pageSize=2")
        assert [one["name"] for one in first["identifiers"]] == ["a", "b"]
        await client.ask("DELETE", "namespaces/db/tables/b?purgeRequested=True")
        await client.table("aa")
        token = first["next-page-token"]
        _, second, _ = await client.ask("GET", f"namespaces/db/tables?pageToken={token}&pageSize=2")
        assert [one["name"] for one in second["identifiers"]] == ["c", "d"]
        assert second["next-page-token"] is None
        for wrong in ("pageToken=%21", "pageToken=YWJj", "pageSize=0", "pageSize=x", "pageToken=&pageToken="):
            assert kind_of(await client.ask("GET", f"namespaces/db/tables?{wrong}")) == (400, "BadRequestException")
        _, spaces, _ = await client.ask("GET", "namespaces?pageToken=&pageSize=1")
        assert (spaces["namespaces"], spaces["next-page-token"]) == ([["db"]], None)
        assert kind_of(await client.ask("GET", "namespaces?parent=no")) == (404, "NoSuchNamespaceException")

    run(test())


def test_a_table_that_is_known_is_not_sent_again(server: Inside) -> None:
    async def test() -> None:
        client = Client(server)
        await client.table()
        await client.append(1)
        path = "namespaces/db/tables/t"
        _, held, headers = await client.ask("GET", path)
        tag = headers["ETag"]
        again = await client.ask("GET", path, headers={"If-None-Match": tag})
        assert (again[0], again[1], again[2]["ETag"]) == (304, None, tag)
        _, refs, other = await client.ask("GET", f"{path}?snapshots=refs", headers={"If-None-Match": tag})
        assert other["ETag"] != tag
        assert [one["snapshot-id"] for one in refs["metadata"]["snapshots"]] == [1]
        elsewhere = Client(server, "repo/dev")
        server.lake.repository("repo").branch("dev").merge("main")
        status, shown, third = await elsewhere.ask("GET", path, headers={"If-None-Match": tag})
        assert (status, third["ETag"] != tag) == (200, True)  # whose location is another one
        assert shown["metadata"]["location"] != held["metadata"]["location"]
        status, changed, headers = await client.append(2)
        assert (status, headers["ETag"] != tag) == (200, True)
        _, held, now = await client.ask("GET", path, headers={"If-None-Match": tag})
        assert (held["metadata"], now["ETag"]) == (changed["metadata"], headers["ETag"])
        refs = [{"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 1}]
        await client.ask("POST", path, {"requirements": [], "updates": refs})
        _, few, _ = await client.ask("GET", f"{path}?snapshots=REFS")
        assert [one["snapshot-id"] for one in few["metadata"]["snapshots"]] == [1]

    run(test())


# --- repetitions --------------------------------------------------------------------------------------------------


def test_a_request_with_a_key_is_carried_out_once(server: Inside) -> None:
    main = server.lake.repository("repo").branch("main")
    key = {"Idempotency-Key": UUID7}

    async def test() -> None:
        client = Client(server)
        await client.ask("POST", "namespaces", {"namespace": ["db"]})
        asked = {"name": "t", "schema": SCHEMA}
        first = await client.ask("POST", "namespaces/db/tables", asked, headers=key)
        head = main.commit_id
        again = await client.ask("POST", "namespaces/db/tables", asked, headers=key)
        assert (first[0], again[1], main.commit_id) == (200, first[1], head)
        other = await client.ask("POST", "namespaces/db/tables", {**asked, "name": "u"}, headers=key)
        assert kind_of(other) == (400, "BadRequestException")
        assert "idempotency key" in other[1]["error"]["message"]
        # the key of another address, and of another user, is another key
        renamed = {"source": {"namespace": ["db"], "name": "t"}, "destination": {"namespace": ["db"], "name": "v"}}
        assert (await client.ask("POST", "tables/rename", renamed, headers=key))[0] == 204
        assert (await client.ask("POST", "tables/rename", renamed, headers=key))[0] == 204
        assert (await client.ask("POST", "tables/rename", renamed))[0] == 404
        for_drop = {"Idempotency-Key": UUID7.replace("1", "2")}
        assert (await client.ask("DELETE", "namespaces/db/tables/v", headers=for_drop))[0] == 204
        assert (await client.ask("DELETE", "namespaces/db/tables/v", headers=for_drop))[0] == 204
        assert (await client.ask("DELETE", "namespaces/db/tables/v"))[0] == 404
        changed = {"removals": ["x"], "updates": {"a": "1"}}
        path = "namespaces/db/properties"
        first = await client.ask("POST", path, changed, headers=key)
        await client.ask("POST", path, {"updates": {"x": "later"}})
        assert (await client.ask("POST", path, changed, headers=key))[1] == first[1]
        assert (await client.ask("GET", "namespaces/db"))[1]["properties"] == {"a": "1", "x": "later"}
        for wrong in ("x" * 200, "ä"):
            answer = await client.ask("POST", path, changed, headers={"Idempotency-Key": wrong})
            assert answer[0] == 400

    run(test())


def test_a_key_is_good_though_the_table_went_on(server: Inside) -> None:
    async def test() -> None:
        client = Client(server)
        made = await client.table()
        body = client.appending(made["metadata"], 1)
        key = {"Idempotency-Key": UUID7}
        first = await client.ask("POST", "namespaces/db/tables/t", body, headers=key)
        await client.append(2)
        again = await client.ask("POST", "namespaces/db/tables/t", body, headers=key)
        assert (again[0], again[1]) == (200, first[1])  # what it was when it was done
        without = await client.ask("POST", "namespaces/db/tables/t", body)
        assert (without[0], without[1]["metadata"]["current-snapshot-id"]) == (200, 2)  # its snapshot is there

    run(test())
    assert ONE_SHOT_FORMAT == 8


def test_what_failed_is_tried_again_under_its_key(server: Inside) -> None:
    async def test() -> None:
        client = Client(server)
        key = {"Idempotency-Key": UUID7}
        asked = {"name": "t", "schema": SCHEMA}
        assert (await client.ask("POST", "namespaces/db/tables", asked, headers=key))[0] == 404
        await client.ask("POST", "namespaces", {"namespace": ["db"]})
        assert (await client.ask("POST", "namespaces/db/tables", asked, headers=key))[0] == 200

    run(test())


# --- outcomes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OutcomeUnknown("x"), (500, "CommitStateUnknownException")),
        (StoreUnavailable("x", happened="unknown"), (500, "CommitStateUnknownException")),
        (StoreUnavailable("x", happened="no"), (503, "ServiceUnavailableException")),
        (Contention("x"), (503, "ServiceUnavailableException")),
        (Conflict("x"), (409, "CommitFailedException")),
    ],
    ids=str,
)
def test_a_refusal_says_that_nothing_happened_and_only_then(error: Any, expected: tuple[int, str]) -> None:
    assert status_and_type(error, is_commit=True, changes=True) == expected
    if expected[0] == 500:
        assert status_and_type(error, is_commit=False, changes=False) == (503, "ServiceUnavailableException")


def test_what_is_published_and_cannot_be_read_back_keeps_its_files(
    server: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the swap the branch names the metadata: an error from then on must not lead to its deletion."""

    async def test() -> None:
        client = Client(server)
        await client.table()

        def lost(*_: Any) -> Any:
            raise StoreUnavailable("The store does not answer.", happened="no")

        with monkeypatch.context() as patched:
            patched.setattr("strandline.iceberg.landing._holds", lost)
            headers = {"Idempotency-Key": "01234567-89ab-7def-8123-456789abcdef"}
            body = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"x": "1"}}]}
            answer = await client.ask("POST", "namespaces/db/tables/t", body, headers=headers)
            assert kind_of(answer) == (500, "CommitStateUnknownException")
        again = await client.ask("POST", "namespaces/db/tables/t", body, headers=headers)
        assert again[0] == 200
        assert again[1]["metadata"]["properties"]["x"] == "1"
        assert server.lake.repository("repo").fsck().is_sound

    run(test())


def test_a_lost_reply_is_never_a_conflict(server: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        client = Client(server)
        await client.table()

        def lost(*_: Any, **__: Any) -> Any:
            raise OutcomeUnknown("The store's answer was lost.")

        with monkeypatch.context() as patched:
            patched.setattr(Tables, "_publish", lost)
            answer = await client.append(3)
            assert kind_of(answer) == (500, "CommitStateUnknownException")
            made = await client.ask("POST", "namespaces/db/tables", {"name": "u", "schema": SCHEMA})
            assert made[0] == 500

        def broken(*_: Any, **__: Any) -> Any:
            raise RuntimeError("a fault of ours")

        with monkeypatch.context() as patched:
            patched.setattr(Tables, "_publish", broken)
            assert kind_of(await client.append(3)) == (500, "CommitStateUnknownException")

    run(test())


def test_a_commit_waits_for_a_lock_and_no_thread_does(server: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(face, "LOCK_PATIENCE_S", 0.3)
    monkeypatch.setattr(face, "LOCK_TRIED_EACH_S", 0.05)
    repository = server.lake.repository("repo")
    main = repository.branch("main")
    repository.lock_owners.register("repair", "repairs")

    async def test() -> None:
        client = Client(server)
        await client.table()
        lock = main.locks.take("tables/db/t/", owner="repair")
        tried = 0
        publish = Tables._publish

        def counted(self: Tables, *rest: Any) -> Any:
            nonlocal tried
            tried += 1
            assert server.services.work.under_way <= 1
            if tried == 8:
                main.locks.release(lock.id)
            return publish(self, *rest)

        answer = await client.append(1)
        assert kind_of(answer) == (409, "CommitFailedException")
        assert "repair" in answer[1]["error"]["message"]
        dropped = await client.ask("DELETE", "namespaces/db/tables/t")
        assert kind_of(dropped) == (423, "RangeLockedException")
        monkeypatch.setattr(face, "LOCK_PATIENCE_S", 10.0)
        monkeypatch.setattr(Tables, "_publish", counted)
        assert (await client.append(2))[0] == 200
        assert tried >= 8

    run(test())
    assert status_and_type(RangeLocked("x"), is_commit=False, changes=False)[0] == 423


def test_what_others_have_staged_or_protected(server: Inside) -> None:
    repository = server.lake.repository("repo")
    main = repository.branch("main")

    async def test() -> None:
        client = Client(server)
        await client.table()
        main.put("tables/db/t/_iceberg.metadata.json", b"{}")
        answer = await client.append(1)
        assert kind_of(answer) == (409, "CommitFailedException")
        assert "tables/db/t/" in answer[1]["error"]["message"]
        main.discard()
        repository.protect("main")
        assert kind_of(await client.append(1)) == (403, "ForbiddenException")
        repository.protect("main", writers=["iceberg"])
        assert (await client.append(1))[0] == 200
        repository.create_tag("v1", "main")
        at_tag = Client(server, "repo/v1")
        assert (await at_tag.ask("GET", "namespaces/db/tables/t"))[0] == 200
        assert kind_of(await at_tag.append(2)) == (403, "ForbiddenException")
        assert (await Client(server, "repo/main~1").ask("GET", "namespaces/db/tables/t"))[0] == 200

    run(test())


# --- views --------------------------------------------------------------------------------------------------------


def test_views_and_tables_share_their_names(server: Inside) -> None:
    main = server.lake.repository("repo").branch("main")

    async def test() -> None:
        client = Client(server)
        await client.table()
        made = await client.ask("POST", "namespaces/db/views", {"name": "v", **view(SCHEMA)})
        assert made[0] == 200
        assert made[1]["metadata"]["versions"][0]["schema-id"] == 0
        taken = (409, "AlreadyExistsException")
        assert kind_of(await client.ask("POST", "namespaces/db/views", {"name": "t", **view(SCHEMA)})) == taken
        assert kind_of(await client.ask("POST", "namespaces/db/tables", {"name": "v", "schema": SCHEMA})) == taken
        pair = {"source": {"namespace": ["db"], "name": "v"}, "destination": {"namespace": ["db"], "name": "t"}}
        assert kind_of(await client.ask("POST", "views/rename", pair)) == taken
        pair["destination"]["name"] = "w"
        assert (await client.ask("POST", "views/rename", pair))[0] == 204
        assert kind_of(await client.ask("GET", "namespaces/db/views/v")) == (404, "NoSuchViewException")
        assert kind_of(await client.ask("GET", "namespaces/db/tables/w")) == (404, "NoSuchTableException")
        assert (await client.ask("GET", "namespaces/db/views"))[1]["identifiers"] == [
            {"namespace": ["db"], "name": "w"}
        ]
        _, held, _ = await client.ask("GET", "namespaces/db/views/w")
        new = view(SCHEMA, "spark", "trino")["view-version"]
        asked = {
            "requirements": [{"type": "assert-view-uuid", "uuid": held["metadata"]["view-uuid"]}],
            "updates": [
                {"action": "add-view-version", "view-version": new},
                {"action": "set-current-view-version", "view-version-id": -1},
            ],
        }
        _, changed, _ = await client.ask("POST", "namespaces/db/views/w", asked)
        assert changed["metadata"]["current-version-id"] == 2
        asked["updates"][0]["view-version"] = view(SCHEMA, "duckdb")["view-version"]
        lost = await client.ask("POST", "namespaces/db/views/w", asked)
        assert kind_of(lost) == (400, "IllegalArgumentException")
        assert "spark, trino" in lost[1]["error"]["message"]
        location = changed["metadata-location"]
        assert (await client.ask("DELETE", "namespaces/db/views/w"))[0] == 204
        back = {"name": "x", "metadata-location": location}
        assert (await client.ask("POST", "namespaces/db/register-view", back))[1]["metadata"] == changed["metadata"]
        assert kind_of(await client.ask("DELETE", "namespaces/db")) == (409, "NamespaceNotEmptyException")
        assert main.get_commit().message == "register view db.x"

    run(test())


# --- bad input ----------------------------------------------------------------------------------------------------


def _deep(depth: int) -> Any:
    kind: Any = "int"
    for number in range(depth):
        kind = {"type": "list", "element-id": number + 10, "element": kind, "element-required": False}
    return schema(field(1, "k", kind))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b'{"name": 1}',
        b'{"name": "t"}',
        b'{"name": "t", "schema": {}}',
        b'{"name": "t", "schema": ' + b"[" * 100_000,
        json.dumps({"name": "t", "schema": _deep(200)}).encode(),
        json.dumps({"name": "t", "schema": SCHEMA, "stage-create": "yes"}).encode(),
        json.dumps({"name": "t", "schema": SCHEMA, "properties": {"write.data.path": "/etc"}}).encode(),
        json.dumps({"name": "t", "schema": SCHEMA, "properties": {"format-version": "4"}}).encode(),
        json.dumps({"name": "t", "schema": SCHEMA, "properties": {"a": 1}}).encode(),
    ],
    ids=lambda data: data[:30].decode("latin-1"),
)
def test_bodies_that_make_no_table(server: Inside, body: bytes) -> None:
    async def test() -> None:
        client = Client(server)
        await client.ask("POST", "namespaces", {"namespace": ["db"]})
        before = writes(server)
        answer = await client.ask("POST", "namespaces/db/tables", body)
        assert kind_of(answer) == (400, "BadRequestException")
        assert writes(server) == before

    run(test())


@pytest.mark.parametrize(
    "body",
    [
        {"requirements": [{"type": "assert-nothing"}], "updates": []},
        {"requirements": "x", "updates": []},
        {"updates": []},
        {"requirements": [], "updates": [{"action": "explode"}]},
        {"requirements": [], "updates": [{"action": "set-properties", "updates": {"x": "1"}}] * 100_000},
        {"requirements": [], "updates": [{"action": "assign-uuid", "uuid": UUID7}]},
        {"requirements": [], "updates": [{"action": "set-properties", "updates": {"gc.enabled": "true"}}]},
        {"requirements": [{"type": "assert-create"}, {"type": "assert-table-uuid", "uuid": UUID7}], "updates": []},
    ],
    ids=lambda body: json.dumps(body)[:50],
)
def test_commits_that_mean_nothing(server: Inside, body: Any) -> None:
    async def test() -> None:
        client = Client(server)
        await client.table()
        before = writes(server)
        answer = await client.ask("POST", "namespaces/db/tables/t", body)
        assert kind_of(answer) == (400, "BadRequestException")
        wrong = [{"type": "assert-table-uuid", "uuid": UUID7}]
        stale = await client.ask("POST", "namespaces/db/tables/t", {"requirements": wrong, "updates": []})
        assert kind_of(stale) == (409, "CommitFailedException")
        gone = await client.ask("POST", "namespaces/db/tables/no", {"requirements": wrong, "updates": []})
        assert kind_of(gone) == (404, "NoSuchTableException")
        assert writes(server) == before

    run(test())


def test_a_body_that_is_too_large(server: Inside) -> None:
    async def test() -> None:
        client = Client(server)
        await client.table()
        wide = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"x": "1" * (10 << 20)}}]}
        assert (await client.ask("POST", "namespaces/db/tables/t", wide))[0] == 200  # 10 MiB are taken
        several = {"table-changes": [{"requirements": [], "updates": [], "identifier": "x"}]}
        assert kind_of(await client.ask("POST", "transactions/commit", several)) == (400, "BadRequestException")
        several = {"table-changes": []}
        assert kind_of(await client.ask("POST", "transactions/commit", several)) == (400, "BadRequestException")

    run(test())


def test_register_takes_nothing_from_elsewhere(server: Inside) -> None:
    async def test() -> None:
        client = Client(server)
        made = await client.table()
        own = made["metadata-location"]
        for wrong in ("file:///etc/passwd", own + "/../x.metadata.json", own.replace("/ice/", "/ice/../ice/"), "", "x"):
            body = {"name": "stolen", "metadata-location": wrong}
            assert kind_of(await client.ask("POST", "namespaces/db/register", body)) == (400, "BadRequestException")
        taken = {"name": "t", "metadata-location": own}
        assert kind_of(await client.ask("POST", "namespaces/db/register", taken)) == (409, "AlreadyExistsException")
        assert (await client.ask("POST", "namespaces/db/register", {**taken, "overwrite": True}))[0] == 200
        assert (await client.ask("POST", "namespaces/db/register", {**taken, "name": "u"}))[0] == 200

    run(test())
