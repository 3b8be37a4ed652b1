"""A store that fails at each call of a request, once: success or 500, never a refusal of what happened."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from strandline.testing.faults import FaultyStore, Outcome
from tests.harness.clients import Client as Process
from tests.harness.clients import Shared, failing_at
from tests.server.iceberg_client import SCHEMA, Client
from tests.server.inside import Inside, inside, run

pytestmark = pytest.mark.server
CALLS = 40
OUTCOMES = (Outcome.DONE_BUT_LOST, Outcome.NOT_DONE, Outcome.LATE)


@pytest.fixture
def process() -> Process:
    found = Process(Shared(), create=True)
    assert isinstance(found.store, FaultyStore)
    return found


@pytest.fixture
def failing(process: Process) -> Iterator[Inside]:
    process.lake.repository("repo", create=True)
    with inside(lake=process.lake) as server:
        yield server


@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize("prefix", ["repo/main", "repo/main+staged", "repo/main@tx=job"])
def test_commits_and_creations(prefix: str, outcome: Outcome, process: Process, failing: Inside) -> None:
    """A 4xx means that nothing happened, so that a client may delete its files; a 200 that all of it did."""

    async def snapshots(client: Client) -> list[int]:
        held = (await client.ask("GET", "namespaces/db/tables/t"))[1]["metadata"]
        return [one["snapshot-id"] for one in held.get("snapshots", [])]

    async def test() -> None:
        await Client(failing).table()
        main = failing.services.branch("repo", "main")
        tx = main.transaction("job", shared=True).begin() if "@tx" in prefix else None
        client = Client(failing, prefix)
        met: set[int] = set()
        for number in range(1, CALLS):
            body = client.appending((await client.ask("GET", "namespaces/db/tables/t"))[1]["metadata"], number)
            process.next = failing_at(number, outcome)
            status, answer, _ = await client.ask("POST", "namespaces/db/tables/t", body)
            process.connect()
            there = await snapshots(client)
            met.add(status)
            assert status in (200, 500, 503), answer
            assert status != 200 or number in there
            assert status != 503 or number not in there, answer  # 503 says that it surely did not happen
            assert len(set(there)) == len(there)
            # sent again, as clients do when they do not know, it is there once and acknowledged
            if status == 500:
                assert (await client.ask("POST", "namespaces/db/tables/t", body))[0] == 200
                assert (await snapshots(client)).count(number) == 1
        assert met & {500, 503}
        assert 200 in met or "+staged" in prefix  # which reads what is staged, in more calls than are tried
        for number in range(1, CALLS // 2):
            name = f"made{number}"
            process.next = failing_at(number, outcome)
            status, answer, _ = await client.ask(
                "POST", "namespaces/db/tables", {"name": name, "schema": SCHEMA}, headers={}
            )
            process.connect()
            is_there = (await client.ask("HEAD", f"namespaces/db/tables/{name}"))[0] == 204
            assert status in (200, 500, 503), answer
            assert status == 500 or is_there is (status == 200), (status, is_there)
        if tx is not None:
            wanted = set(await snapshots(client))
            tx.commit()
            assert set(await snapshots(Client(failing))) == wanted

    run(test())


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_a_key_makes_a_repetition_harmless(outcome: Outcome, process: Process, failing: Inside) -> None:
    """Creations with an Idempotency-Key: sent until they are acknowledged, they are made once."""

    async def test() -> None:
        await Client(failing).table()
        client = Client(failing)
        for number in range(1, CALLS // 2):
            name, key = f"made{number}", {"Idempotency-Key": f"0199c1a0-0000-7000-8000-{number:012}"}
            answers: list[Any] = []
            process.next = failing_at(number, outcome)
            for _ in range(3):
                status, answer, _ = await client.ask(
                    "POST", "namespaces/db/tables", {"name": name, "schema": SCHEMA}, headers=key
                )
                process.connect()
                answers.append((status, answer))
                if status == 200:
                    break
            assert answers[-1][0] == 200, answers
            held = (await client.ask("GET", f"namespaces/db/tables/{name}"))[1]
            assert held["metadata-location"] == answers[-1][1]["metadata-location"]

    run(test())
