"""Commits: making and reading them."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from strandline.branch.commits import Commit
from strandline.errors import UsageError
from strandline.server.messages import Response
from strandline.server.operation import Call, Operation, branch_need, branch_to_write, repository_need
from strandline.server.refusals import BadRequest, NotSupported
from strandline.server.rest import shapes
from strandline.server.rest.replies import json


class CommitQuery(msgspec.Struct, frozen=True):
    """What a commit is made of, besides what is staged."""

    source_metarange: str = ""


def shape_of(record: Commit) -> shapes.Commit:
    """A commit in the shape of the interface."""
    return shapes.Commit(
        id=record.id,
        parents=list(record.parents),
        committer=record.committer,
        message=record.message,
        creation_date=record.date_us // 1_000_000,
        meta_range_id=record.tree_id,
        metadata=dict(record.metadata),
        generation=record.generation,
    )


def moment(seconds: int | None) -> datetime | None:
    """A date from seconds since 1970 UTC."""
    if seconds is None:
        return None
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        raise UsageError(f"{seconds} is not a date.", next="Give seconds since 1970 UTC.") from None


def commit(call: Call) -> Response:
    if call.query.source_metarange:
        raise NotSupported("Metaranges of clients are not read here.")
    given: shapes.CommitCreation = call.body
    branch = branch_to_write(call)
    made = branch.commit(
        given.message,
        metadata=given.metadata,
        committer=call.principal.user,
        date=moment(given.date),
        allow_empty=given.allow_empty,
        allow_empty_message=True,
    )
    return json(201, shape_of(made))


def get_commit(call: Call) -> Response:
    expression = call.path["commit"]
    if expression.endswith("$"):
        raise BadRequest("What is staged is not a commit.", next="Leave the $ out.")
    return json(200, shape_of(call.services.ref(call.path["repository"], expression).get_commit()))


OPERATIONS = (
    Operation(
        "commit",
        "POST",
        "/repositories/{repository}/branches/{branch}/commits",
        branch_need("fs:CreateCommit"),
        commit,
        "Commit what is staged",
        {201: shapes.Commit},
        "commits",
        query=CommitQuery,
        body=shapes.CommitCreation,
    ),
    Operation(
        "getCommit",
        "GET",
        "/repositories/{repository}/commits/{commit}",
        repository_need("fs:ReadCommit"),
        get_commit,
        "A commit",
        {200: shapes.Commit},
        "commits",
        cost="quick",
    ),
)
