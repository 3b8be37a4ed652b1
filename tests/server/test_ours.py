"""What only strandline has, over REST: locks, transactions, shards, the plan of a collection; and what is not here."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import StrandlineError
from strandline.server.refusals import BadRequest, TooLarge
from strandline.server.rest.arrow_streams import read_rows
from strandline.server.rest.unsupported import OPERATIONS as UNSUPPORTED
from tests.server.inside import BASE, Inside, body_of, inside, run
from tests.server.test_permissions import target_of

REPO = f"{BASE}/repositories/repo"
MAIN = f"{REPO}/branches/main"


@pytest.fixture
def server() -> Iterator[Inside]:
    with inside() as made:
        made.lake.create_repository("repo").branch("main").put("x", b"content")
        yield made


async def ask(server: Inside, method: str, target: str, body: Any = None, status: int = 200) -> Any:
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    response = await server.ask(method, target, data)
    assert response.status == status, (response.status, body_of(response))
    shown = body_of(response)
    return json.loads(shown) if shown[:1] in (b"{", b"[") else shown


def test_a_range_is_frozen_and_freed(server: Inside) -> None:
    async def test() -> None:
        await ask(server, "POST", f"{MAIN}/locks", {"owner": "repair", "prefixes": ["raw/"]}, 400)
        owner = {"name": "repair", "description": "repairs what a job broke"}
        await ask(server, "PUT", f"{REPO}/lock_owners/repair", owner)
        await ask(server, "PUT", f"{REPO}/lock_owners/other", owner, 400)
        assert (await ask(server, "GET", f"{REPO}/lock_owners"))["results"] == [owner]
        taken = await ask(server, "POST", f"{MAIN}/locks", {"owner": "repair", "prefixes": ["raw/"]}, 201)
        assert taken["ranges"] == [{"start": "raw/", "end": "raw0"}]
        refused = await ask(server, "POST", f"{MAIN}/objects?path=raw/a", b"1", 423)
        assert "repairs what a job broke" in refused["message"]
        await ask(server, "POST", f"{MAIN}/objects?path=other/a", b"1", 201)
        more = {"owner": "repair", "ranges": [{"start": "a", "end": "b"}, {"start": "z", "end": None}]}
        both = await ask(server, "POST", f"{MAIN}/locks", more, 201)
        page = await ask(server, "GET", f"{MAIN}/locks?amount=1")
        assert page["pagination"]["has_more"]
        rest = await ask(server, "GET", f"{MAIN}/locks?after={page['pagination']['next_offset']}")
        assert {one["id"] for one in page["results"] + rest["results"]} == {taken["id"], both["id"]}
        await ask(server, "DELETE", f"{REPO}/lock_owners/repair", status=409)
        for one in (taken, both):
            await ask(server, "DELETE", f"{MAIN}/locks/{one['id']}", status=204)
        await ask(server, "DELETE", f"{MAIN}/locks/{taken['id']}", status=404)
        await ask(server, "POST", f"{MAIN}/objects?path=raw/a", b"1", 201)
        whole = await ask(server, "POST", f"{MAIN}/locks", {"owner": "repair", "on_dirty": "commit"}, 201)
        assert whole["is_whole"]
        await ask(server, "POST", f"{MAIN}/objects?path=x", b"1", 423)
        for wrong in ({"owner": "repair", "mode": "half"}, {"owner": "repair", "ranges": [{"start": "b", "end": "a"}]}):
            await ask(server, "POST", f"{MAIN}/locks", wrong, 400)

    run(test())


def test_an_operator_ends_transactions(server: Inside) -> None:
    main = server.lake.repository("repo").branch("main")
    with main.transaction("nightly", "first", position="7") as tx:
        tx.put("a", b"1")
    zombie = main.transaction("nightly").begin()

    async def test() -> None:
        listed = (await ask(server, "GET", f"{MAIN}/transactions"))["results"]
        assert [(one["writer"], one["state"]) for one in listed] == [("nightly", "committed"), ("nightly", "open")]
        (writer,) = (await ask(server, "GET", f"{MAIN}/writers"))["results"]
        assert (writer["open"], writer["position"]) == (zombie.id, "7")
        assert (await ask(server, "GET", f"{MAIN}/transactions/{zombie.id}"))["state"] == "open"
        await ask(server, "DELETE", f"{MAIN}/transactions/{zombie.id}", status=204)
        with pytest.raises(StrandlineError, match="aborted from elsewhere"):
            zombie.put("b", b"2")
            zombie.commit()
        await ask(server, "POST", f"{MAIN}/transactions/{zombie.id}/acknowledge", status=204)
        await ask(server, "POST", f"{MAIN}/transactions/{zombie.id}/recover")
        await ask(server, "DELETE", f"{MAIN}/transactions/{listed[0]['id']}", status=400)
        await ask(server, "GET", f"{MAIN}/transactions/77", status=404)
        await ask(server, "GET", f"{MAIN}/transactions/x", status=400)
        assert (await ask(server, "PUT", f"{MAIN}/writers/nightly", {"node": "host-1"}))["node"] == "host-1"
        await ask(server, "DELETE", f"{MAIN}/writers/nightly", status=204)
        await ask(server, "DELETE", f"{MAIN}/writers/nobody", status=404)

    run(test())


@given(st.data())
def test_a_damaged_stream_is_read_or_refused(data: st.DataObject) -> None:
    rows = pa.table({"id": [1, 2, 3], "name": ["a", None, "c"], "many": [[1], [], [2, 3]]})
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, rows.schema) as out:
        out.write_table(rows, max_chunksize=2)
    whole = bytearray(sink.getvalue())
    assert read_rows(bytes(whole)).equals(rows)
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(whole)) | st.just(len(whole)))
    with suppress(BadRequest, TooLarge):
        assert read_rows(bytes(whole[:cut])).num_columns <= 3


def test_a_shard_is_appended_to_and_read(server: Inside) -> None:
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    server.lake.repository("repo").shard("events", schema, key=["id"])

    def stream(rows: pa.Table, options: Any = None) -> bytes:
        sink = io.BytesIO()
        with pa.ipc.new_stream(sink, rows.schema, options=options) as out:
            out.write_table(rows)
        return sink.getvalue()

    async def test() -> None:
        assert (await ask(server, "GET", f"{REPO}/shards"))["results"] == ["events"]
        shown = await ask(server, "GET", f"{REPO}/shards/events")
        assert (shown["upper"], shown["key"], [one["name"] for one in shown["columns"]]) == (0, ["id"], ["id", "name"])
        rows = pa.table({"id": [1, 2], "name": ["a", "b"]}, schema=schema)
        at = f"{REPO}/shards/events/append?writer=w&token=t&expected_upper="
        assert await ask(server, "POST", f"{at}0&new_upper=1", stream(rows)) == {"rows": 2, "upper": 1}
        await ask(server, "POST", f"{at}0&new_upper=1", stream(rows))  # a repetition
        await ask(server, "POST", f"{REPO}/shards/events/append?expected_upper=0&new_upper=1", stream(rows), 409)
        await ask(server, "POST", f"{at}1&new_upper=2&", b"no arrow", 400)
        await ask(server, "POST", f"{at}x&new_upper=2", stream(rows), 400)
        # what would take more memory than was sent, or could hide it
        names = pa.array(["a", "b"])
        for strange in (names.dictionary_encode(), pa.nulls(2), names.cast(pa.string_view())):
            table = pa.Table.from_arrays([pa.array([1, 2]), strange], ["id", "name"])
            await ask(server, "POST", f"{at}1&new_upper=2", stream(table), 400)
        many = pa.table({"id": pa.array([0] * 1_000_000, pa.int64()), "name": [""] * 1_000_000}, schema=schema)
        for codec in ("zstd", "lz4"):
            packed = stream(many, pa.ipc.IpcWriteOptions(compression=codec))
            refused = await ask(server, "POST", f"{at}1&new_upper=2", packed, 400)
            assert "compressed" in refused["message"]
        found = await ask(server, "GET", f"{REPO}/shards/events/snapshot")
        with pa.ipc.open_stream(found) as read:
            assert read.read_all().select(["id", "name"]).equals(rows)
        await ask(server, "GET", f"{REPO}/shards/nothing", status=404)

    run(test())


def test_what_a_collection_would_delete(server: Inside) -> None:
    async def test() -> None:
        plan = await ask(server, "GET", f"{REPO}/gc/plan")
        assert (plan["files"], plan["unknown"]) == (0, 0)
        await ask(server, "GET", f"{REPO}/gc/plan?grace_days=-1", status=400)

    run(test())


def test_what_is_not_here_says_so(server: Inside) -> None:
    async def test() -> None:
        for operation in UNSUPPORTED:
            response = await server.ask(operation.method, target_of(operation), b"{}")
            assert response.status == 501, operation.id
            assert json.loads(body_of(response))["message"].startswith(operation.unsupported)

    run(test())
