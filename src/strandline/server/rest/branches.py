"""Branches: making, deleting, resetting, undoing commits and doing them again."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from strandline.repository.refs.ref import Ref
from strandline.results.differences import Change
from strandline.results.rows import ObjectInfo
from strandline.server.etags import etag_of
from strandline.server.messages import Response
from strandline.server.operation import Call, Operation, branch_need, branch_to_write, repository_need
from strandline.server.refusals import BadRequest, NotSupported
from strandline.server.rest import shapes
from strandline.server.rest.commits import shape_of as commit_shape
from strandline.server.rest.replies import amount_of, json, nothing, page, refs_page


class Branches(msgspec.Struct, frozen=True):
    """The parameters of a list of branches."""

    prefix: str = ""
    after: str = ""
    amount: shapes.Amount = shapes.PAGE_DEFAULT
    show_hidden: bool = False


class Diff(msgspec.Struct, frozen=True):
    """The parameters of a page of differences."""

    after: str = ""
    amount: shapes.Amount = shapes.PAGE_DEFAULT
    prefix: str = ""
    delimiter: str = ""
    include_right_stats: bool = False


class HardReset(msgspec.Struct, frozen=True):
    """Where the head goes."""

    ref: str
    force: bool = False


class Force(msgspec.Struct, frozen=True):
    """Whether a read-only repository is no reason to refuse."""

    force: bool = False


def list_branches(call: Call) -> Response:
    query = call.query
    amount = amount_of(query.amount)
    repository = call.services.repository(call.path["repository"])
    rows = repository.branches(query.prefix, after=query.after, amount=amount + 1, hidden=query.show_hidden)
    return refs_page(rows, amount)


def create_branch(call: Call) -> Response:
    given: shapes.BranchCreation = call.body
    repository = call.services.repository(call.path["repository"])
    if given.source.endswith("$"):
        raise BadRequest("A branch begins at a commit, not at what is staged.", next="Leave the $ out.")
    made = repository.create_branch(given.name, given.source, hidden=given.hidden, force=given.force)
    return Response(201, str(made.commit_id).encode(), [(b"Content-Type", b"text/html")])


def get_branch(call: Call) -> Response:
    branch = branch_to_write(call)
    return json(200, shapes.Ref(branch.name, branch.commit_id))


def delete_branch(call: Call) -> Response:
    repository = call.services.repository(call.path["repository"])
    repository.delete_branch(call.path["branch"], force=call.query.force)
    call.services.forget()
    return nothing()


def reset_branch(call: Call) -> Response:
    branch, given = branch_to_write(call), call.body
    if given.type == "reset":
        branch.discard()
    elif given.type == "prepared_commit":
        raise NotSupported("There are no prepared commits here.")
    elif not given.path:
        raise BadRequest(f"A reset of the type {given.type} needs a path.")
    elif given.type == "object":
        branch.discard(given.path)
    else:
        branch.discard(prefix=given.path)
    return nothing()


def hard_reset_branch(call: Call) -> Response:
    branch_to_write(call).hard_reset(call.query.ref)
    return nothing()


def revert_branch(call: Call) -> Response:
    given: shapes.RevertCreation = call.body
    undone = call.services.ref(call.path["repository"], given.ref).get_commit()
    if len(undone.parents) > 1 and not given.parent_number:
        raise BadRequest(
            "A merge has several parents.", status=409, next="Give parent_number: 1 is what was merged into."
        )
    said = given.commit_overrides or shapes.CommitOverrides()
    branch_to_write(call).revert(
        given.ref,
        said.message or f"Revert {given.ref}",
        parent=given.parent_number or None,
        metadata=said.metadata,
        committer=call.principal.user,
        allow_empty=given.allow_empty,
    )
    return nothing()


def cherry_pick(call: Call) -> Response:
    given: shapes.CherryPickCreation = call.body
    branch = branch_to_write(call)
    picked = call.services.ref(call.path["repository"], given.ref).get_commit()
    said = given.commit_overrides or shapes.CommitOverrides()
    made = branch.cherry_pick(
        picked.id,
        said.message or None,
        parent=given.parent_number or None,
        metadata={
            **(said.metadata or picked.metadata),
            "cherry-pick-origin": picked.id,
            "cherry-pick-committer": call.principal.user,
        },
        committer=picked.committer,
    )
    return json(201, commit_shape(made))


def diff_branch(call: Call) -> Response:
    query = call.query
    amount = amount_of(query.amount)
    rows = branch_to_write(call).uncommitted(
        query.prefix, delimiter=query.delimiter, after=query.after, amount=amount + 1
    )
    return diff_page(rows, amount, with_right=query.include_right_stats)


def diff_page(rows: Iterable[Change], amount: int, *, with_right: bool, theirs: Ref | None = None) -> Response:
    """A page of differences.

    Args:
        theirs: the other side of a merge, which may have changed the same objects since the base.
    """
    kept, pagination = page(rows, amount, lambda row: row.path)
    return json(200, shapes.DiffList(pagination, [_diff(row, with_right, theirs) for row in kept]))


def _identity(info: ObjectInfo | None) -> object:
    return None if info is None else (info.checksum, info.size, info.user_metadata, info.content_type)


def _clashes(row: Change, theirs: Ref) -> bool:
    """Whether the other side changed an object as well, and differently."""
    found = _identity(theirs.find(row.path))
    return found not in (_identity(row.before), _identity(row.after))


def _diff(row: Change, with_right: bool, theirs: Ref | None) -> shapes.Diff:
    shown = row.after or row.before
    if shown is None:
        return shapes.Diff("prefix_changed", row.path, "common_prefix")
    kind = "conflict" if theirs is not None and _clashes(row, theirs) else row.kind
    made = shapes.Diff(kind, row.path, "object", size_bytes=shown.size)
    if with_right and row.after is not None:
        after = row.after
        made.right = shapes.DiffObjectStat(
            etag_of(after), after.modified_at_us // 1_000_000, after.content_type or "", after.metadata
        )
    return made


_ALL = "/repositories/{repository}/branches"
_ONE = _ALL + "/{branch}"

OPERATIONS = (
    Operation(
        "listBranches",
        "GET",
        _ALL,
        repository_need("fs:ListBranches"),
        list_branches,
        "Branches by name",
        {200: shapes.RefList},
        "branches",
        query=Branches,
    ),
    Operation(
        "createBranch",
        "POST",
        _ALL,
        branch_need("fs:CreateBranch", "{name}"),
        create_branch,
        "Make a branch",
        {201: str},
        "branches",
        body=shapes.BranchCreation,
        needs_body=True,
        makes_branch="name",
    ),
    Operation(
        "getBranch",
        "GET",
        _ONE,
        branch_need("fs:ReadBranch"),
        get_branch,
        "A branch and its commit",
        {200: shapes.Ref},
        "branches",
        cost="quick",
    ),
    Operation(
        "deleteBranch",
        "DELETE",
        _ONE,
        branch_need("fs:DeleteBranch"),
        delete_branch,
        "Delete a branch",
        {204: None},
        "branches",
        query=Force,
    ),
    Operation(
        "resetBranch",
        "PUT",
        _ONE,
        branch_need("fs:RevertBranch"),
        reset_branch,
        "Throw staged changes away",
        {204: None},
        "branches",
        body=shapes.ResetCreation,
    ),
    Operation(
        "hardResetBranch",
        "PUT",
        _ONE + "/hard_reset",
        branch_need("fs:RevertBranch"),
        hard_reset_branch,
        "Move the head of a branch",
        {204: None},
        "branches",
        query=HardReset,
    ),
    Operation(
        "revertBranch",
        "POST",
        _ONE + "/revert",
        branch_need("fs:RevertBranch"),
        revert_branch,
        "Undo what a commit did",
        {204: None},
        "branches",
        body=shapes.RevertCreation,
    ),
    Operation(
        "cherryPick",
        "POST",
        _ONE + "/cherry-pick",
        branch_need("fs:CreateCommit"),
        cherry_pick,
        "Do again what a commit did elsewhere",
        {201: shapes.Commit},
        "branches",
        body=shapes.CherryPickCreation,
    ),
    Operation(
        "diffBranch",
        "GET",
        _ONE + "/diff",
        repository_need("fs:ListObjects"),
        diff_branch,
        "What a commit would change",
        {200: shapes.DiffList},
        "branches",
        query=Diff,
    ),
)
