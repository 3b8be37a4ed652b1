"""Imports: objects that are in an object store already, committed without copying them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from strandline.branch.rules.writers import refuse_publisher
from strandline.ids import CommitId
from strandline.repository.commits.drafts import make_draft
from strandline.repository.commits.listing import ImportSource
from strandline.server.imports import WRITER
from strandline.server.messages import Response
from strandline.server.namespaces import in_reach
from strandline.server.operation import Call, Operation, branch_need, branch_to_write, object_arn
from strandline.server.refusals import BadRequest
from strandline.server.rest import shapes
from strandline.server.rest.commits import moment, shape_of
from strandline.server.rest.replies import json, nothing
from strandline.server.rest.staging import NAMESPACE_ARN, foreign_place

SOURCES_MAX = 1_000
DEFAULT_MESSAGE = "Import objects"


class ImportLocation(msgspec.Struct, frozen=True):
    """What is imported to where.

    Attributes:
        path: of an object its URL; of a prefix that of a folder of a bucket.
        destination: of an object its path; of a prefix the folder, whose other objects go.
    """

    type: Literal["object", "common_prefix"]
    path: Annotated[str, Meta(min_length=1, max_length=4_096)]
    destination: str


class ImportCreation(msgspec.Struct, frozen=True):
    """Sources that one commit takes in, and the commit."""

    paths: Annotated[list[ImportLocation], Meta(min_length=1, max_length=SOURCES_MAX)]
    commit: shapes.CommitCreation = msgspec.field(default_factory=shapes.CommitCreation)
    force: bool = False


class ImportCreationResponse(msgspec.Struct):
    """By which id to ask for the import."""

    id: str


class ImportStatus(msgspec.Struct, omit_defaults=True):
    """How far an import is; one that failed has an error, and is not completed."""

    completed: bool = msgspec.field()
    update_time: str = msgspec.field()
    ingested_objects: int | None = None
    metarange_id: str | None = None
    commit: shapes.Commit | None = None
    error: shapes.Error | None = None


class ImportId(msgspec.Struct, frozen=True):
    """The id that the start of the import has given."""

    id: str


def start_import(call: Call) -> Response:
    given: ImportCreation = call.body
    repository = call.path["repository"]
    sources = [_source(call, repository, one) for one in given.paths]
    branch = branch_to_write(call)
    message = given.commit.message or DEFAULT_MESSAGE
    date = moment(given.commit.date)
    draft = make_draft(branch._core, message, given.commit.metadata, call.principal.user, date)
    refuse_publisher(branch._at.read().branch, WRITER, branch.name)
    record = call.services.imports.begin(branch, sources, draft)
    return json(202, ImportCreationResponse(record.id))


def _source(call: Call, repository: str, given: ImportLocation) -> ImportSource:
    place = foreign_place(given.path)
    is_object = given.type == "object"
    source = ImportSource(in_reach(call.services.lake, place), given.destination, is_object)
    source.check_destination()
    if is_object and (place.endswith("/") or place.count("/") < 3):
        raise BadRequest(f"{place[:200]!r} is a prefix, not an object.", next="Say common_prefix.")
    folder = place if is_object or place.endswith("/") else place + "/"
    if f"{folder}/".startswith(call.services.namespace_shown(repository) + "/"):
        raise BadRequest(
            f"{place[:200]!r} belongs to the repository itself.", next="Within a repository copy the objects."
        )
    call.permit("fs:ImportFromStorage", NAMESPACE_ARN + folder, is_prefix=not is_object)
    # what else lies at the destination of a prefix goes
    for action in ("fs:WriteObject",) if is_object else ("fs:WriteObject", "fs:DeleteObject"):
        call.permit(action, object_arn(repository, source.below), is_prefix=not is_object)
    return source


def get_import(call: Call) -> Response:
    branch = branch_to_write(call)
    record = call.services.imports.get(branch, call.query.id)
    commit = None if not record.commit else shape_of(branch._core.commits.get(CommitId(record.commit)))
    updated = datetime.fromtimestamp(record.updated_at / 1_000_000, UTC)
    return json(
        200,
        ImportStatus(
            completed=record.state == "completed",
            update_time=updated.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            ingested_objects=record.objects,
            metarange_id=None if commit is None else commit.meta_range_id,
            commit=commit,
            error=shapes.Error(record.error) if record.error else None,
        ),
    )


def cancel_import(call: Call) -> Response:
    call.services.imports.cancel(branch_to_write(call), call.query.id)
    return nothing()


_IMPORT = "/repositories/{repository}/branches/{branch}/import"

OPERATIONS = (
    Operation(
        "importStart",
        "POST",
        _IMPORT,
        branch_need("fs:CreateCommit"),
        start_import,
        "Commit references to objects that are in an object store",
        {202: ImportCreationResponse},
        "import",
        body=ImportCreation,
    ),
    Operation(
        "importStatus",
        "GET",
        _IMPORT,
        branch_need("fs:ReadBranch"),
        get_import,
        "How far an import is",
        {200: ImportStatus},
        "import",
        query=ImportId,
    ),
    Operation(
        "importCancel",
        "DELETE",
        _IMPORT,
        branch_need("fs:ImportCancel"),
        cancel_import,
        "Make sure that an import changes nothing",
        {204: None, 409: shapes.Error},
        "import",
        query=ImportId,
    ),
)
