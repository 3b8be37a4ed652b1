"""Tags."""

from __future__ import annotations

import msgspec

from strandline.errors import RefNotFound
from strandline.server.messages import Response
from strandline.server.operation import Call, Need, Operation, repository_need, tag_need
from strandline.server.refusals import BadRequest
from strandline.server.rest import shapes
from strandline.server.rest.replies import amount_of, json, nothing, refs_page


class Force(msgspec.Struct, frozen=True):
    """Whether a read-only repository is no reason to refuse."""

    force: bool = False


def list_tags(call: Call) -> Response:
    query = call.query
    amount = amount_of(query.amount)
    repository = call.services.repository(call.path["repository"])
    rows = repository.tags(query.prefix, after=query.after, amount=amount + 1)
    return refs_page(rows, amount)


def create_tag(call: Call) -> Response:
    given: shapes.TagCreation = call.body
    repository = call.services.repository(call.path["repository"])
    if given.ref.endswith("$"):
        raise BadRequest("A tag names a commit, not what is staged.", next="Leave the $ out.")
    made = repository.create_tag(given.id, given.ref, force=given.force)
    return json(201, shapes.Ref(given.id, made.commit_id))


def get_tag(call: Call) -> Response:
    name = call.path["tag"]
    repository = call.services.repository(call.path["repository"])
    row = repository.tags(name, amount=1).first()
    if row is None or row.name != name:
        raise RefNotFound(f"There is no tag {name!r}.", next="List the tags.")
    return json(200, shapes.Ref(row.name, row.commit))


def delete_tag(call: Call) -> Response:
    call.services.repository(call.path["repository"]).delete_tag(call.path["tag"], force=call.query.force)
    return nothing()


_ALL = "/repositories/{repository}/tags"
_ONE = _ALL + "/{tag}"

OPERATIONS = (
    Operation(
        "listTags",
        "GET",
        _ALL,
        repository_need("fs:ListTags"),
        list_tags,
        "Tags by name",
        {200: shapes.RefList},
        "tags",
        query=shapes.Page,
    ),
    Operation(
        "createTag",
        "POST",
        _ALL,
        Need("fs:CreateTag", "arn:lakefs:fs:::repository/{repository}/tag/{id}"),
        create_tag,
        "Name a commit",
        {201: shapes.Ref},
        "tags",
        body=shapes.TagCreation,
        needs_body=True,
    ),
    Operation(
        "getTag", "GET", _ONE, tag_need("fs:ReadTag"), get_tag, "A tag and its commit", {200: shapes.Ref}, "tags"
    ),
    Operation(
        "deleteTag",
        "DELETE",
        _ONE,
        tag_need("fs:DeleteTag"),
        delete_tag,
        "Delete a tag; its commit stays",
        {204: None},
        "tags",
        query=Force,
    ),
)
