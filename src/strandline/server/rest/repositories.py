"""Repositories and their settings."""

from __future__ import annotations

import re
from glob import escape
from hashlib import blake2b

import msgspec

from strandline.core.record import MAX_PROTECTIONS, Protection, RepositoryRecord, check_protection
from strandline.errors import AlreadyExists, NotAllowed, NotFound
from strandline.ids import check_repository_name
from strandline.repository.repository import Repository
from strandline.server.etags import matches
from strandline.server.messages import Response
from strandline.server.namespaces import namespace_of, shown_namespace
from strandline.server.operation import Call, Need, Operation, everything, repository_need
from strandline.server.refusals import BadRequest, NotSupported
from strandline.server.rest import shapes
from strandline.server.rest.replies import amount_of, json, nothing, page

PROTECTED = ("stage", "commit")
"""What a protection that was made here blocks: as in lakeFS, its branches change by merges."""


class Search(shapes.Page, frozen=True):
    """The parameters of a list of repositories.

    Attributes:
        search: what the names have to hold somewhere.
    """

    search: str = ""


class Bare(msgspec.Struct, frozen=True):
    """Whether a repository begins without a branch."""

    bare: bool = False


class Force(msgspec.Struct, frozen=True):
    """Whether a read-only repository is no reason to refuse."""

    force: bool = False


def shape_of(call: Call, record: RepositoryRecord) -> shapes.Repository:
    """A repository in the shape of the interface."""
    return shapes.Repository(
        id=record.name,
        creation_date=record.created_at // 1_000_000,
        default_branch=record.default_branch,
        storage_namespace=shown_namespace(call.services.lake, record),
        read_only=record.read_only,
    )


def list_repositories(call: Call) -> Response:
    query = call.query
    amount = amount_of(query.amount)
    most = None if query.search else amount + 1
    rows = call.services.lake.repositories(query.prefix, after=query.after, amount=most)
    found = (record for record in rows if query.search in record.name)
    kept, pagination = page(found, amount, lambda record: record.name)
    return json(200, shapes.RepositoryList(pagination, [shape_of(call, record) for record in kept]))


def create_repository(call: Call) -> Response:
    given: shapes.RepositoryCreation = call.body
    if call.query.bare:
        raise NotSupported("Repositories without a branch are not made here.")
    if given.storage_id:
        raise BadRequest("This server has one object store, which has no id.", next="Leave storage_id out.")
    check_repository_name(given.name)
    namespace = namespace_of(call.services.lake, given.storage_namespace)
    call.permit("fs:AttachStorageNamespace", f"arn:lakefs:fs:::namespace/{given.storage_namespace}")
    lake = call.services.lake
    try:
        made = lake.create_repository(given.name, namespace=namespace, default_branch=given.default_branch)
    except AlreadyExists as error:
        if next((one for one in lake.repositories(given.name, amount=1) if one.name == given.name), None) is None:
            raise BadRequest(str(error)) from None  # its namespace is in use
        raise
    except NotAllowed as error:
        raise BadRequest(str(error)) from None
    if given.read_only:
        made.set_read_only()
    call.services.forget(given.name)
    headers = [(b"X-Strandline-Warning", b"sample_data is not made here")] if given.sample_data else []
    return json(201, shape_of(call, made.settings), *headers)


def opened(call: Call) -> Repository:
    """The repository of a call."""
    return call.services.repository(call.path["repository"])


def get_repository(call: Call) -> Response:
    return json(200, shape_of(call, opened(call).settings))


def delete_repository(call: Call) -> Response:
    name = call.path["repository"]
    if opened(call).settings.read_only and not call.query.force:
        raise NotAllowed(f"Repository {name!r} is read-only.", next="Give force=true to delete it all the same.")
    call.services.lake.delete_repository(name, force=call.query.force)
    call.services.forget(name)
    return nothing()


def get_metadata(call: Call) -> Response:
    opened(call)
    return json(200, {})


def without_braces(pattern: str) -> list[str]:
    """The globs that a glob with alternatives such as `{dev,test}-*` stands for."""
    before, brace, rest = pattern.partition("{")
    inner, closing, behind = rest.partition("}")
    if not brace or not closing:
        return [pattern]
    if "{" in inner:
        raise BadRequest(f"{pattern!r} has braces in braces.", next="Write several patterns.")
    found = [before + one + more for one in inner.split(",") for more in without_braces(behind)]
    if len(found) > MAX_PROTECTIONS:
        raise BadRequest(f"{pattern[:80]!r} stands for too many patterns.", next="Use wider ones.")
    return found


def _rules(rules: tuple[Protection, ...]) -> tuple[list[shapes.BranchProtectionRule], str]:
    etag = blake2b(msgspec.msgpack.encode(rules), digest_size=16).hexdigest()
    return [shapes.BranchProtectionRule(rule.pattern) for rule in rules], etag


def allowed(call: Call) -> Response:
    opened(call)
    return nothing()


def get_protection(call: Call) -> Response:
    rules, etag = _rules(opened(call).protections)
    return json(200, rules, (b"ETag", f'"{etag}"'.encode()))


def set_protection(call: Call) -> Response:
    repository = opened(call)
    only_as = call.request.header(b"if-match")
    patterns = dict.fromkeys(pattern for rule in call.body for pattern in without_braces(rule.pattern))
    wanted = [check_protection(pattern, PROTECTED) for pattern in patterns]
    held = repository.protections
    if only_as and not matches(only_as, _rules(held)[1], weak=True):
        raise BadRequest("The rules were changed by somebody else.", status=412, next="Read them again.")
    repository.set_protections(wanted, expected=held if only_as else None)
    return nothing()


def get_gc_rules(call: Call) -> Response:
    retention = opened(call).gc.retention
    if retention.days is None:
        raise NotFound("The repository has no rules for its garbage: all commits are kept.", next="Set some.")
    exact = {_unescaped(pattern): days for pattern, days in retention.branches.items()}
    branches = [shapes.RetentionOfBranch(name, int(days)) for name, days in exact.items() if days is not None]
    return json(200, shapes.GarbageCollectionRules(int(retention.days), branches))


def set_gc_rules(call: Call) -> Response:
    branches = {escape(rule.branch_id): float(rule.retention_days) for rule in call.body.branches}
    opened(call).gc.set_retention(float(call.body.default_retention_days), branches)
    return nothing()


def delete_gc_rules(call: Call) -> Response:
    opened(call).gc.set_retention(None, {})
    return nothing()


def _unescaped(pattern: str) -> str:
    return re.sub(r"\[([*?[])\]", r"\1", pattern)


_ONE = "/repositories/{repository}"

OPERATIONS = (
    Operation(
        "listRepositories",
        "GET",
        "/repositories",
        everything("fs:ListRepositories"),
        list_repositories,
        "Repositories by name",
        {200: shapes.RepositoryList},
        "repositories",
        query=Search,
    ),
    Operation(
        "createRepository",
        "POST",
        "/repositories",
        Need("fs:CreateRepository", "arn:lakefs:fs:::repository/{name}"),
        create_repository,
        "Make a repository",
        {201: shapes.Repository},
        "repositories",
        query=Bare,
        body=shapes.RepositoryCreation,
        needs_body=True,
    ),
    Operation(
        "getRepository",
        "GET",
        _ONE,
        repository_need("fs:ReadRepository"),
        get_repository,
        "A repository",
        {200: shapes.Repository},
        "repositories",
        cost="quick",
    ),
    Operation(
        "deleteRepository",
        "DELETE",
        _ONE,
        repository_need("fs:DeleteRepository"),
        delete_repository,
        "Delete a repository",
        {204: None},
        "repositories",
        query=Force,
    ),
    Operation(
        "getRepositoryMetadata",
        "GET",
        _ONE + "/metadata",
        repository_need("fs:ReadRepository"),
        get_metadata,
        "Metadata of a repository, which has none",
        {200: dict},
        "repositories",
    ),
    Operation(
        "getBranchProtectionRules",
        "GET",
        _ONE + "/settings/branch_protection",
        repository_need("branches:GetBranchProtectionRules"),
        get_protection,
        "Branches that change by merges only",
        {200: list[shapes.BranchProtectionRule]},
        "repositories",
    ),
    Operation(
        "setBranchProtectionRules",
        "PUT",
        _ONE + "/settings/branch_protection",
        repository_need("branches:SetBranchProtectionRules"),
        set_protection,
        "Replace the rules",
        {204: None, 412: shapes.Error},
        "repositories",
        body=list[shapes.BranchProtectionRule],
    ),
    Operation(
        "createBranchProtectionRulePreflight",
        "GET",
        _ONE + "/branch_protection/set_allowed",
        repository_need("branches:SetBranchProtectionRules"),
        allowed,
        "Whether rules may be set",
        {204: None},
        "repositories",
    ),
    Operation(
        "getGCRules",
        "GET",
        _ONE + "/settings/gc_rules",
        repository_need("retention:GetGarbageCollectionRules"),
        get_gc_rules,
        "For how long commits are kept",
        {200: shapes.GarbageCollectionRules},
        "repositories",
    ),
    Operation(
        "setGCRules",
        "PUT",
        _ONE + "/settings/gc_rules",
        repository_need("retention:SetGarbageCollectionRules"),
        set_gc_rules,
        "Set for how long commits are kept",
        {204: None},
        "repositories",
        body=shapes.GarbageCollectionRules,
    ),
    Operation(
        "deleteGCRules",
        "DELETE",
        _ONE + "/settings/gc_rules",
        repository_need("retention:SetGarbageCollectionRules"),
        delete_gc_rules,
        "Keep all commits",
        {204: None},
        "repositories",
    ),
    Operation(
        "setGarbageCollectionRulesPreflight",
        "GET",
        _ONE + "/gc/rules/set_allowed",
        repository_need("retention:SetGarbageCollectionRules"),
        allowed,
        "Whether rules may be set",
        {204: None},
        "repositories",
    ),
)
