"""Logging under one logger, with the ids of operations and without secrets; spans where OpenTelemetry is installed."""

from __future__ import annotations

import logging
import pickle
import re
from contextlib import suppress

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import strandline
from strandline.errors import NothingToCommit, StoreUnavailable
from strandline.operations import operation
from strandline.repository.branch import Branch
from strandline.testing.faults import Outcome
from tests.harness.clients import Client, Shared, link


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, "strandline")
    return caplog


def test_an_operation_says_when_it_begins_and_how_it_ends(main: Branch, lines: pytest.LogCaptureFixture) -> None:
    main.put("a", b"x")
    main.commit("first")
    with pytest.raises(NothingToCommit):
        main.commit("again")
    told = [re.sub(r"\d+\.\d+", "0", r.getMessage()) for r in lines.records if r.name == "strandline"]
    ids = {line.split(" ")[0] for line in told}
    assert len(ids) == 2
    assert all(re.fullmatch("[0-9a-f]{8}", id) for id in ids)
    assert [line.partition(" ")[2] for line in told] == [
        "commit nyc/main begins",
        "commit nyc/main is done in 0 s",
        "commit nyc/main begins",
        "commit nyc/main ends with nothing-to-commit after 0 s",
    ]


def test_lines_within_an_operation_carry_its_id(lines: pytest.LogCaptureFixture) -> None:
    shared = Shared()
    one, two = Client(shared, create=True), Client(shared)
    link(one.main, "a", 1)
    link(two.main, "b", 1)
    lines.clear()
    one.before("set_if", 2, lambda: two.main.put("c", b""))
    one.before("set_if", 2, lambda: two.main.commit("other"))
    with operation("job", "night"), suppress(NothingToCommit):
        one.main.commit("mine")
    told = [record.getMessage() for record in lines.records]
    (outer,) = {line.split(" ")[0] for line in told if " job night" in line}
    (lost,) = [line for line in told if "somebody else was first" in line]
    assert re.match(f"{outer}/[0-9a-f]{{8}} commit of main", lost)


def test_a_lost_reply_is_a_warning(lines: pytest.LogCaptureFixture) -> None:
    client = Client(Shared(), create=True)
    link(client.main, "a", 1)
    client.meet("set_if", 2, Outcome.DONE_BUT_LOST)
    client.main.commit("mine")
    (told,) = [record for record in lines.records if record.levelno == logging.WARNING]
    assert re.fullmatch("[0-9a-f]{8} the reply to a change of branch main was lost: .*", told.getMessage())


def test_secrets_are_not_logged(lines: pytest.LogCaptureFixture) -> None:
    url = "postgresql://me:s3cret@127.0.0.1:1/db?password=s3cret"
    with pytest.raises(StoreUnavailable) as error:
        strandline.open(kv=url, blob="memory://x", create=True)
    assert "s3cret" not in str(error.value) + lines.text
    assert b"s3cret" not in pickle.dumps(error.value)


def test_spans_are_made_where_opentelemetry_is(main: Branch) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace, "get_tracer", provider.get_tracer)
        main.put("a", b"x")
        main.commit("first")
        with pytest.raises(NothingToCommit):
            main.commit("again")
    first, second = exporter.get_finished_spans()
    assert (first.name, second.name) == ("strandline commit", "strandline commit")
    assert dict(first.attributes or {})["strandline.place"] == "nyc/main"
    assert dict(second.attributes or {})["error.type"] == "nothing-to-commit"
    assert second.status.status_code is trace.StatusCode.ERROR
    assert not second.events  # a message may name what is the user's own
