"""The table as an OpenAPI document: true to lakeFS's clients, and a source of requests that none may fail at."""

from __future__ import annotations

import base64
import importlib
import inspect
import os
import re
import warnings
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from strandline.lake import Lake
from strandline.server.openapi import document
from strandline.server.rest.table import OPERATIONS
from tests.harness.serving import Served

DOCUMENT = document(OPERATIONS, "http://127.0.0.1:8000")
EXAMPLES = int(os.environ.get("STRANDLINE_TEST_REQUESTS", "3"))
"""Requests for each operation; `make requests` makes many."""
NOT_LEFT_TO_CHANCE = {"deleteRepository", "endSessions", "deleteUser", "deleteCredentials", "setup"}


def test_every_operation_is_described_once() -> None:
    ids = [one["operationId"] for path in DOCUMENT["paths"].values() for one in path.values()]
    assert sorted(ids) == sorted({one.id for one in OPERATIONS}) == sorted(one.id for one in OPERATIONS)
    for path in DOCUMENT["paths"].values():
        for operation in path.values():
            assert operation["summary"]
            assert "default" in operation["responses"]


def test_every_parameter_is_described() -> None:
    described = {
        one["operationId"]: {given["name"] for given in one["parameters"] if given["in"] == "query"}
        for path in DOCUMENT["paths"].values()
        for one in path.values()
    }
    for row in OPERATIONS:
        assert described[row.id] == {one.encode_name for one in msgspec.structs.fields(row.query)}, row.id


def test_operations_are_those_of_lakefs() -> None:
    """Names, methods, paths and parameters as lakeFS's own client has them."""
    found: dict[str, tuple[str, str, set[str]]] = {}
    package = importlib.import_module("lakefs_sdk.api")
    for name in dir(package):
        kind = getattr(package, name)
        if not inspect.isclass(kind) or not name.endswith("Api"):
            continue
        for method in dir(kind):
            if not method.endswith("_with_http_info"):
                continue
            source = inspect.getsource(getattr(kind, method))
            called = re.search(r"call_api\(\s*'([^']+)', '([A-Z]+)'", source)
            assert called
            query = set(re.findall(r"_query_params\.append\(\(\s*'([^']+)'", source))
            found[method.removesuffix("_with_http_info")] = called[2], called[1], query
    ours = {one.id: one for one in OPERATIONS if not one.is_ours}
    renamed = {"get_lake_fs_version": "getLakeFSVersion"}
    theirs = {renamed.get(name, _camel(name)): row for name, row in found.items()}
    known = {one.lower() for one in theirs}
    # not in every version of the client: what only lakeFS's pages ask
    assert {name for name in ours if name.lower() not in known} <= {"getAuthCapabilities"}
    assert known - {name.lower() for name in ours} == set(), "a row for each, if only one that says why not"
    unknown: set[tuple[str, str]] = set()
    for name, (method, path, query) in theirs.items():
        row = next(one for one in ours.values() if one.id.lower() == name.lower())
        plain = re.sub(r"\{\w+\}", "{}", path)
        assert (row.method, re.sub(r"\{\w+\}", "{}", row.path)) == (method, plain), name
        taken = {one.encode_name for one in msgspec.structs.fields(row.query)}
        unknown |= set() if row.unsupported else {(name, one) for one in query - taken}
    assert unknown == set()


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.title() for word in rest)


@pytest.mark.server
@pytest.mark.filterwarnings("ignore")
def test_no_request_that_is_described_fails_the_server(served: Served, lake: Lake) -> None:
    schemathesis = importlib.import_module("schemathesis")
    lake.repository("requests", create=True)
    schema = schemathesis.openapi.from_dict(document(OPERATIONS, served.address))
    token = base64.b64encode(f"{served.key}:{served.secret}".encode()).decode()
    tried: list[int] = []
    for result in schema.get_all_operations():
        operation = result.ok()
        if operation.definition.raw["operationId"] in NOT_LEFT_TO_CHANCE:
            continue

        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
            derandomize=True,
        )
        @given(case=operation.as_strategy())
        def test(case: Any) -> None:
            if "repository" in (case.path_parameters or {}):
                case.path_parameters["repository"] = "requests"
            if "branch" in (case.path_parameters or {}):
                case.path_parameters["branch"] = "main"
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                response = case.call(base_url=f"{served.address}/api/v1", headers={"Authorization": f"Basic {token}"})
            assert response.status_code < 500 or response.status_code == 501, (case, response.text)
            tried.append(response.status_code)

        test()
    assert len(tried) > 50 * min(EXAMPLES, 3)
    assert {200, 400, 404} <= set(tried)
