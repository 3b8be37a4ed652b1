"""Refs: history, differences, merges."""

from __future__ import annotations

from typing import Literal

import msgspec

from strandline.errors import NotFound, UsageError
from strandline.repository.refs.ref import Ref
from strandline.server.messages import Response
from strandline.server.operation import Call, Operation, branch_need, branch_to_write, repository_need
from strandline.server.refusals import BadRequest
from strandline.server.rest import shapes
from strandline.server.rest.branches import diff_page
from strandline.server.rest.commits import shape_of
from strandline.server.rest.replies import amount_of, json, page

STRATEGIES = ("source-wins", "dest-wins", "")


class Log(msgspec.Struct, frozen=True):
    """The parameters of a page of history."""

    after: str = ""
    amount: shapes.Amount = shapes.PAGE_DEFAULT
    objects: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    limit: bool = False
    first_parent: bool = False
    since: str = ""
    stop_at: str = ""


class DiffRefs(msgspec.Struct, frozen=True):
    """The parameters of a page of differences of two refs."""

    after: str = ""
    amount: shapes.Amount = shapes.PAGE_DEFAULT
    prefix: str = ""
    delimiter: str = ""
    type: Literal["two_dot", "three_dot"] = "three_dot"
    include_right_stats: bool = False


def log_commits(call: Call) -> Response:
    query = call.query
    ref = call.services.ref(call.path["repository"], call.path["ref"])
    amount = amount_of(query.amount)
    rows = ref.log(
        amount=amount + 1,
        first_parent=query.first_parent,
        paths=query.objects,
        prefixes=query.prefixes,
        since=query.since or None,
        after=query.after or None,
        stop_at=query.stop_at or None,
    )
    kept, pagination = page(rows, amount, lambda record: record.id)
    if query.limit and pagination.has_more:
        # the caller wants so many and no list to go on with
        pagination = shapes.Pagination(has_more=False, next_offset="", results=len(kept))
    return json(200, shapes.CommitList(pagination, [shape_of(record) for record in kept]))


def diff_refs(call: Call) -> Response:
    query, services, name = call.query, call.services, call.path["repository"]
    left, right = services.ref(name, call.path["left"]), services.ref(name, call.path["right"])
    amount = amount_of(query.amount)
    theirs: Ref | None = None
    if query.type == "three_dot":
        base = services.repository(name).merge_base(left, right)
        if base is None:
            raise NotFound("The refs have no common ancestor.", next="Ask for type=two_dot.")
        theirs = services.repository(name).ref(left.commit_id)
        start = services.repository(name).ref(base.id)
    else:
        start = left
    rows = start.diff(right, query.prefix, delimiter=query.delimiter, after=query.after, amount=amount + 1)
    return diff_page(rows, amount, with_right=query.include_right_stats, theirs=theirs)


def find_merge_base(call: Call) -> Response:
    services, name = call.services, call.path["repository"]
    source, target = services.ref(name, call.path["source"]), services.ref(name, call.path["destination"])
    base = services.repository(name).merge_base(source, target)
    if base is None:
        raise NotFound("The refs have no common ancestor.", next="Compare refs of one history.")
    return json(200, shapes.FindMergeBaseResult(source.commit_id, target.commit_id, base.id))


def merge_into_branch(call: Call) -> Response:
    given: shapes.Merge = call.body or shapes.Merge()
    services, name = call.services, call.path["repository"]
    if given.strategy not in STRATEGIES:
        raise BadRequest(f"{given.strategy[:80]!r} is not a strategy.", next="Give source-wins or dest-wins.")
    source = services.ref(name, call.path["source"])
    if call.path["source"] == call.path["destination"]:
        raise UsageError("A branch cannot be merged into itself.", next="Name another source.")
    target = branch_to_write(call, "destination")
    made = target.merge(
        source.commit_id,
        given.message or f"Merge '{call.path['source']}' into '{target.name}'",
        strategy=given.strategy or None,  # type: ignore[arg-type]
        squash=given.squash_merge,
        metadata={**given.metadata, ".lakefs.merge.strategy": given.strategy or "default"},
        committer=call.principal.user,
        allow_empty=given.allow_empty or given.force,
    )
    return json(200, shapes.MergedCommit(made.id))


_REF = "/repositories/{repository}/refs/"

OPERATIONS = (
    Operation(
        "logCommits",
        "GET",
        _REF + "{ref}/commits",
        repository_need("fs:ReadCommit"),
        log_commits,
        "The history of a ref",
        {200: shapes.CommitList},
        "refs",
        query=Log,
        lists=frozenset(("objects", "prefixes")),
    ),
    Operation(
        "diffRefs",
        "GET",
        _REF + "{left}/diff/{right}",
        repository_need("fs:ListObjects"),
        diff_refs,
        "What differs between two refs",
        {200: shapes.DiffList},
        "refs",
        query=DiffRefs,
    ),
    Operation(
        "findMergeBase",
        "GET",
        _REF + "{source}/merge/{destination}",
        repository_need("fs:ListCommits"),
        find_merge_base,
        "The best common ancestor",
        {200: shapes.FindMergeBaseResult},
        "refs",
    ),
    Operation(
        "mergeIntoBranch",
        "POST",
        _REF + "{source}/merge/{destination}",
        branch_need("fs:CreateCommit", "{destination}"),
        merge_into_branch,
        "Merge a ref into a branch",
        {200: shapes.MergedCommit, 409: shapes.MergeResult},
        "refs",
        body=shapes.Merge,
        is_body_optional=True,
    ),
)
