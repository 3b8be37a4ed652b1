"""Transactions as warehouses of Iceberg's REST catalog: those of the serving process, and those of others."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from strandline.errors import Fenced
from strandline.iceberg.tables import Tables
from strandline.lake import Lake
from strandline.repository.branch import Branch
from tests.iceberg.making import added, listed, snapshot
from tests.server.iceberg_client import Client, kind_of
from tests.server.inside import Inside, run

pytestmark = pytest.mark.server


@pytest.fixture
def elsewhere(server: Inside) -> Iterator[Branch]:
    """The branch as another process sees it: a driver, which shares nothing with the server but the stores."""
    lake = Lake(server.lake._settings, server.lake._kv, server.lake._clock)
    yield lake.repository("repo").branch("main")


def test_an_open_transaction_is_a_warehouse(server: Inside) -> None:
    main = server.services.branch("repo", "main")

    async def test() -> None:
        plain = Client(server)
        await plain.table()
        tx = main.transaction("nightly").begin()
        client = Client(server, "repo/main@tx=nightly")
        assert (await client.append(5))[0] == 200
        await client.table("fresh")
        assert f".txn-{tx.id:016d}/" in (await client.ask("GET", "namespaces/db/tables/fresh"))[1]["metadata-location"]
        assert (await plain.ask("HEAD", "namespaces/db/tables/fresh"))[0] == 404
        tx.put("other", b"x")
        tx.commit()
        assert main.read("other") == b"x"
        assert (await plain.ask("GET", "namespaces/db/tables/t"))[1]["metadata"]["current-snapshot-id"] == 5
        assert (await plain.ask("HEAD", "namespaces/db/tables/fresh"))[0] == 204
        # published: it is read, and not written
        assert (await client.ask("HEAD", "namespaces/db/tables/fresh"))[0] == 204
        assert kind_of(await client.append(6)) == (403, "ForbiddenException")
        # fenced by a successor
        first = main.transaction("job").begin()
        fenced = Client(server, "repo/main@tx=job")
        assert (await fenced.ask("HEAD", "namespaces/db/tables/t"))[0] == 204
        # another process begins: here the same one, which has forgotten the first
        del main._core.transactions[main.branch_id, "job"]
        second = main.transaction("job").begin()
        main._core.transactions[main.branch_id, "job"] = first
        answer = await fenced.ask("GET", "namespaces/db/tables/t")
        assert kind_of(answer) == (403, "ForbiddenException")
        assert "replaced by" in answer[1]["error"]["message"]
        second.abort()

    run(test())


def test_a_session_of_a_replaced_transaction_does_not_write_into_its_successor(server: Inside) -> None:
    """Both in one process, as in a notebook whose cell is run again while its Spark session still goes on."""

    async def test() -> None:
        await Client(server).table()
        main = server.services.branch("repo", "main")
        first = main.transaction("team/job").begin()
        zombie = Client(server, f"repo/main@tx=team%2Fjob@id={first.id}")
        assert (await zombie.append(1))[0] == 200
        first.abort()
        second = main.transaction("team/job").begin()
        body = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"x": "1"}}]}
        answer = await zombie.ask("POST", "namespaces/db/tables/t", body)
        assert kind_of(answer) == (403, "ForbiddenException")
        assert "replaced by" in answer[1]["error"]["message"]
        assert (await Client(server, "repo/main@tx=team%2Fjob").append(2))[0] == 200  # the newest
        second.commit()
        _, held, _ = await Client(server).ask("GET", "namespaces/db/tables/t")
        assert [one["snapshot-id"] for one in held["metadata"]["snapshots"]] == [2]

    run(test())


# --- of another process -------------------------------------------------------------------------------------------


def test_the_transaction_of_a_driver_elsewhere_is_a_warehouse(server: Inside, elsewhere: Branch) -> None:
    async def test() -> None:
        plain = Client(server)
        await plain.table()
        tx = elsewhere.transaction("nightly", shared=True).begin()
        client = Client(server, "repo/main@tx=nightly")
        status, said, _ = await client.config()
        assert (status, said["overrides"]["prefix"]) == (200, f"repo/main@tx=nightly@id={tx.id}")
        assert (await client.append(5))[0] == 200
        await client.table("fresh")
        made = (await client.ask("GET", "namespaces/db/tables/fresh"))[1]
        assert f".txn-{tx.id:016d}/" in made["metadata-location"]
        assert (await plain.ask("HEAD", "namespaces/db/tables/fresh"))[0] == 404
        # the driver sees it, and adds what is its own
        assert tx.exists("tables/db/fresh/_iceberg.metadata.json")
        tx.put("files/a", b"x")
        tx.commit()
        assert elsewhere.read("files/a") == b"x"
        assert elsewhere.get_commit().message == "Transaction of nightly"
        assert (await plain.ask("GET", "namespaces/db/tables/t"))[1]["metadata"]["current-snapshot-id"] == 5
        assert (await plain.ask("HEAD", "namespaces/db/tables/fresh"))[0] == 204
        # published: it is read, and not written
        assert (await client.ask("HEAD", "namespaces/db/tables/fresh"))[0] == 204
        assert (await client.config())[0] == 200
        answer = await client.append(6)
        assert kind_of(answer) == (403, "ForbiddenException")
        assert "is committed" in answer[1]["error"]["message"]

    run(test())


@pytest.mark.parametrize("end", ["replaced", "aborted"])
def test_a_transaction_that_ended_elsewhere_answers_with_the_sentence(
    end: str, server: Inside, elsewhere: Branch
) -> None:
    async def test() -> None:
        await Client(server).table()
        tx = elsewhere.transaction("job", shared=True).begin()
        for prefix in ("repo/main@tx=job", f"repo/main@tx=job@id={tx.id}"):
            assert (await Client(server, prefix).ask("HEAD", "namespaces/db/tables/t"))[0] == 204
        named = Client(server, f"repo/main@tx=job@id={tx.id}")
        attached = Client(server, (await Client(server, "repo/main@tx=job").config())[1]["overrides"]["prefix"])
        successor = tx
        if end == "replaced":
            del elsewhere._core.transactions[elsewhere.branch_id, "job"]
            successor = elsewhere.transaction("job", shared=True).begin()
        else:
            tx.abort()
        body = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"x": "1"}}]}
        for answer in (
            await named.ask("GET", "namespaces/db/tables/t"),
            await named.ask("GET", "namespaces"),
            await named.ask("POST", "namespaces/db/tables/t", body),
            await named.ask("DELETE", "namespaces/db/tables/t"),
        ):
            assert kind_of(answer) == (403, "ForbiddenException")
            assert (f"replaced by {successor.id}" if end == "replaced" else "aborted") in answer[1]["error"]["message"]
        assert kind_of(await named.config()) == (404, "NoSuchWarehouseException")
        # a client that attached it without a number has that of then
        answer = await attached.ask("POST", "namespaces/db/tables/t", body)
        assert kind_of(answer) == (403, "ForbiddenException")
        with pytest.raises(Fenced):
            server.services.joined(elsewhere, "job", tx.id)
        assert tx.id not in {number for _, _, number in server.services._joined}  # nor what it has followed
        if end == "replaced":  # without a number it is the newest
            assert (await Client(server, "repo/main@tx=job").append(2))[0] == 200
            successor.commit()

    run(test())


def test_a_transaction_that_ended_here_does_not_hide_one_that_is_open_elsewhere(
    server: Inside, elsewhere: Branch
) -> None:
    async def test() -> None:
        await Client(server).table()
        own = server.services.branch("repo", "main").transaction("job").begin()
        assert (await Client(server, "repo/main@tx=job").append(1))[0] == 200
        own.commit()
        tx = elsewhere.transaction("job", shared=True).begin()
        assert (await Client(server, "repo/main@tx=job").append(2))[0] == 200
        assert (await Client(server, f"repo/main@tx=job@id={own.id}").ask("HEAD", "namespaces/db/tables/t"))[0] == 204
        tx.commit()
        held = (await Client(server).ask("GET", "namespaces/db/tables/t"))[1]["metadata"]
        assert sorted(one["snapshot-id"] for one in held["snapshots"]) == [1, 2]

    run(test())


def test_a_transaction_adds_no_files_that_others_wrote(server: Inside) -> None:
    """They may be older than the grace, and nothing keeps them until its commit."""

    async def test() -> None:
        main = server.services.branch("repo", "main")
        await Client(server).table()
        tx = main.transaction("job").begin()
        client = Client(server, "repo/main@tx=job")
        held = (await client.ask("GET", "namespaces/db/tables/t"))[1]["metadata"]
        lists = listed(Tables(main), 9)
        adds = added(snapshot(9, 1, **{"timestamp-ms": held["last-updated-ms"] + 1}, **lists))
        answer = await client.ask("POST", "namespaces/db/tables/t", {"requirements": [], "updates": adds})
        assert kind_of(answer) == (400, "BadRequestException")
        assert f"was not written in transaction {tx.id}" in answer[1]["error"]["message"]
        adds[0]["snapshot"]["manifest-list"] = f"{held['location']}/metadata/nothing.avro"
        answer = await client.ask("POST", "namespaces/db/tables/t", {"requirements": [], "updates": adds})
        assert kind_of(answer) == (400, "BadRequestException")
        assert (await client.append(9))[0] == 200
        tx.commit()
        # of a snapshot that was there when it was begun, though main has left it, as with staged snapshots
        old = (await Client(server).ask("GET", "namespaces/db/tables/t"))[1]["metadata"]["snapshots"][0]
        move = {"action": "remove-snapshot-ref", "ref-name": "main"}
        body = {"requirements": [], "updates": [move]}
        assert (await Client(server).ask("POST", "namespaces/db/tables/t", body))[0] == 200
        again = main.transaction("job").begin()
        client = Client(server, "repo/main@tx=job")
        held = (await client.ask("GET", "namespaces/db/tables/t"))[1]["metadata"]
        more = {"timestamp-ms": held["last-updated-ms"] + 1, "manifest-list": old["manifest-list"]}
        body = {"requirements": [], "updates": added(snapshot(10, 2, **more))}
        assert (await client.ask("POST", "namespaces/db/tables/t", body))[0] == 200
        again.commit()

    run(test())


def test_what_cannot_be_joined_is_not_found(server: Inside, elsewhere: Branch) -> None:
    async def test() -> None:
        tx = elsewhere.transaction("private").begin()
        answer = await Client(server, "repo/main@tx=private").config()
        assert kind_of(answer) == (404, "NoSuchWarehouseException")
        assert "not shared" in answer[1]["error"]["message"]
        tx.abort()
        for prefix in ("repo/main@tx=private@id=999", "repo/main@tx=nobody", "repo/main~0@tx=private"):
            assert (await Client(server, prefix).ask("GET", "namespaces"))[0] in (400, 404)

    run(test())


def test_requests_at_once_are_each_in_the_transaction_or_refused(server: Inside, elsewhere: Branch) -> None:
    """Appends to one table at the same time: those that were acknowledged are in it, each once."""

    async def test() -> None:
        await Client(server).table()
        tx = elsewhere.transaction("job", shared=True).begin()
        client = Client(server, "repo/main@tx=job")
        done: list[int] = []

        async def append(id: int) -> None:
            for _ in range(50):
                if (await client.append(id))[0] == 200:
                    done.append(id)
                    return

        await asyncio.gather(*(append(id) for id in range(1, 9)))
        assert sorted(done) == list(range(1, 9))
        tx.commit()
        held = (await Client(server).ask("GET", "namespaces/db/tables/t"))[1]
        assert sorted(one["snapshot-id"] for one in held["metadata"]["snapshots"]) == sorted(done)
        assert sum(1 for _ in elsewhere.log()) <= 5  # one commit for all of them

    run(test())
