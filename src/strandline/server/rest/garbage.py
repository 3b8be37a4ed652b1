"""What a collection of garbage would delete: ours, in lakeFS's style. It is run by the library or the command line."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from strandline.core.retention import GRACE_DAYS
from strandline.server.messages import Response
from strandline.server.operation import Call, Operation, repository_need
from strandline.server.rest.replies import json


class Plan(msgspec.Struct, frozen=True):
    """How young a file must be to stay although nothing refers to it."""

    grace_days: Annotated[float, Meta(ge=0, le=36_500)] = GRACE_DAYS


class GarbagePlan(msgspec.Struct):
    """Files and commits that a run would delete now, and some of them by name."""

    files: int
    bytes: int
    young: int
    young_bytes: int
    unknown: int
    linked: int
    expiring_commits: int
    expired_commits: int
    kept_commits: int
    examples: list[str]


def plan_garbage(call: Call) -> Response:
    found = call.services.repository(call.path["repository"]).gc.plan(grace_days=call.query.grace_days)
    return json(
        200,
        GarbagePlan(
            files=found.files,
            bytes=found.bytes,
            young=found.young,
            young_bytes=found.young_bytes,
            unknown=found.unknown,
            linked=found.linked,
            expiring_commits=found.expiring,
            expired_commits=found.expired,
            kept_commits=found.kept,
            examples=list(found.examples),
        ),
    )


OPERATIONS = (
    Operation(
        "planGarbageCollection",
        "GET",
        "/repositories/{repository}/gc/plan",
        repository_need("strandline:ReadGarbage"),
        plan_garbage,
        "What a collection of garbage would delete now",
        {200: GarbagePlan},
        "retention",
        query=Plan,
        cost="long",
        is_ours=True,
    ),
)
