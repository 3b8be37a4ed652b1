"""Objects: reading, writing, listing, deleting, copying."""

from __future__ import annotations

import io
from collections.abc import Mapping
from email.message import Message
from email.parser import BytesHeaderParser
from typing import Any

import msgspec

from strandline.blob import is_absolute
from strandline.core.upload import upload
from strandline.errors import NotAllowed, RangeLocked, StrandlineError
from strandline.ids import check_path
from strandline.repository.refs.ref import Ref
from strandline.results.rows import CommonPrefix, ObjectInfo, as_info
from strandline.server.bodies import FormContent, WithMd5
from strandline.server.conditions import if_range, of_write, outcome, refuse_write, stage_conditionally
from strandline.server.content import body_of, header_text, is_shown_inline, is_token
from strandline.server.etags import etag_of, http_date
from strandline.server.messages import Response
from strandline.server.namespaces import shown_address
from strandline.server.operation import (
    Call,
    Content,
    Operation,
    Staging,
    branch_to_write,
    object_arn,
    object_need,
    repository_need,
)
from strandline.server.ranges import NotSatisfiable, wanted_range
from strandline.server.refusals import BadRequest, NotSupported, TooLarge
from strandline.server.rest import shapes
from strandline.server.rest.replies import JSON, amount_of, json, nothing, page, status_of

PUT_MAX_BYTES = 5 << 30
DELETE_MAX = 1_000
UNKNOWN_TYPE = "application/octet-stream"
"""Never guessed from a name: the type is a part of what an object is."""
META = b"x-lakefs-meta-"
INTERNAL_META = b"x-lakefs-internal-"
_stats = msgspec.json.Encoder().encode


class At(msgspec.Struct, frozen=True):
    """A path."""

    path: str


class Stat(msgspec.Struct, frozen=True):
    """A path, and what is shown of it."""

    path: str
    user_metadata: bool = True
    presign: bool = False


class Get(msgspec.Struct, frozen=True):
    """A path, and how its bytes come."""

    path: str
    presign: bool = False


class List(msgspec.Struct, frozen=True):
    """The parameters of a listing."""

    prefix: str = ""
    after: str = ""
    delimiter: str = ""
    amount: shapes.Amount = shapes.PAGE_DEFAULT
    user_metadata: bool = True
    presign: bool = False


class Upload(msgspec.Struct, frozen=True):
    """A path to be written."""

    path: str
    storageClass: str = ""  # noqa: N815 - lakeFS's spelling
    force: bool = False


class Delete(msgspec.Struct, frozen=True):
    """A path to be deleted."""

    path: str
    force: bool = False
    no_tombstone: bool = False


class DeleteMany(msgspec.Struct, frozen=True):
    """What else is said of a deletion; tombstones are left out wherever none is needed, asked or not."""

    force: bool = False
    no_tombstone: bool = False


class Copy(msgspec.Struct, frozen=True):
    """Where a copy goes."""

    dest_path: str


def stats_of(call: Call, repository: str, info: ObjectInfo, *, metadata: bool = True) -> shapes.ObjectStats:
    """An object in the shape of the interface."""
    return shapes.ObjectStats(
        path=info.path,
        path_type="object",
        physical_address=shown_address(call.services.namespace_shown(repository), info.physical_address),
        checksum=etag_of(info),
        mtime=info.modified_at_us // 1_000_000,
        size_bytes=info.size,
        metadata=info.metadata if metadata else {},
        content_type=info.content_type or "application/octet-stream",
    )


def stat_object(call: Call) -> Response:
    ref = call.services.ref(call.path["repository"], call.path["ref"])
    info = ref.stat(call.query.path)
    stats = stats_of(call, call.path["repository"], info, metadata=call.query.user_metadata)
    if call.query.presign:
        stats.physical_address, stats.physical_address_expiry = call.services.presigned_read(
            call.principal, call.path["repository"], ref, info
        )
    return json(200, stats)


def list_objects(call: Call) -> Response:
    ref = call.services.ref(call.path["repository"], call.path["ref"])
    query, repository = call.query, call.path["repository"]
    amount = amount_of(query.amount)
    rows = ref.list(query.prefix, delimiter=query.delimiter, after=query.after, amount=amount + 1)
    kept, pagination = page(rows, amount, lambda row: row.path)
    results = [
        shapes.ObjectStats(row.path, "common_prefix", "", "", 0)
        if isinstance(row, CommonPrefix)
        else stats_of(call, repository, row, metadata=query.user_metadata)
        for row in kept
    ]
    if query.presign:
        for stats, row in zip(results, kept, strict=True):
            # to list names is one permission, to read what they name is another
            if isinstance(row, ObjectInfo) and call.may("fs:ReadObject", object_arn(repository, row.path)):
                stats.physical_address, stats.physical_address_expiry = call.services.presigned_read(
                    call.principal, repository, ref, row
                )
    return json(200, shapes.ObjectStatsList(pagination, results))


def get_object(call: Call) -> Response:
    ref = call.services.ref(call.path["repository"], call.path["ref"])
    info = ref.stat(call.query.path)
    if call.query.presign:
        url, _ = call.services.presigned_read(call.principal, call.path["repository"], ref, info)
        return Response(302, b"", [(b"Location", url.encode())])
    return serve_object(call, ref, info)


def head_object(call: Call) -> Response:
    ref = call.services.ref(call.path["repository"], call.path["ref"])
    return serve_object(call, ref, ref.stat(call.query.path), is_head=True)


def serve_object(call: Call, ref: Ref, info: ObjectInfo, *, is_head: bool = False) -> Response:
    """An object's bytes, or the part that is asked for, with what is known of it in headers."""
    etag = etag_of(info)
    headers = [
        (b"ETag", header_text(f'"{etag}"')),
        (b"Last-Modified", http_date(info.modified_at_us)),
        (b"Content-Type", header_text(info.content_type or "application/octet-stream")),
        (b"Accept-Ranges", b"bytes"),
        # what users put here is not a page of this server
        (b"Content-Disposition", b"inline" if is_shown_inline(info.content_type) else b"attachment"),
        (b"X-Content-Type-Options", b"nosniff"),
        (b"Content-Security-Policy", b"sandbox"),
    ]
    headers += [
        (b"x-lakefs-meta-" + name.encode(), header_text(value))
        for name, value in info.metadata.items()
        if is_token(name)
    ]
    modified_s = info.modified_at_us // 1_000_000
    refused = outcome(call.request, etag, modified_s)
    if refused == 304:
        return Response(304, b"", headers)
    if refused:
        raise BadRequest("A condition of the request does not hold.", status=412)
    try:
        wanted = wanted_range(if_range(call.request, etag, modified_s), info.size)
    except NotSatisfiable:
        text = f"The object has {info.size:,} bytes; the range lies behind them."
        return Response(
            416,
            _stats(shapes.Error(text, "not-satisfiable", call.request.id)),
            [JSON, (b"Content-Range", b"bytes */%d" % info.size)],
        )
    start, end = wanted or (0, info.size)
    if wanted is not None:
        headers.append((b"Content-Range", b"bytes %d-%d/%d" % (start, end - 1, info.size)))
    status = 206 if wanted is not None else 200
    if is_head:
        return Response(status, b"", headers, length=end - start)
    if is_absolute(info.physical_address):
        call.elsewhere()  # its bytes are in another store, behind a network
    return Response(status, body_of(ref, info, start, end), headers)


def metadata_of(headers: Mapping[bytes, bytes]) -> dict[str, str]:
    """The user metadata that came in headers."""
    found = {}
    for name, value in headers.items():
        if name.startswith(META):
            found[name[len(META) :].decode("latin-1")] = value.decode("utf-8", "replace")
        elif name.startswith(INTERNAL_META):
            found["::lakefs::" + name[len(INTERNAL_META) :].decode("latin-1")] = value.decode("utf-8", "replace")
    return found


def refuse_upload(call: Call) -> None:
    """Raise what is wrong with an upload whatever its bytes are."""
    branch = branch_to_write(call)
    check_path(call.query.path)
    refuse_write(call.request, branch, call.query.path)


def upload_object(call: Call) -> Response | Staging:
    branch = branch_to_write(call)
    request, path = call.request, call.query.path
    check_path(path)
    only_new, only_as = of_write(request)
    branch._refuse_early(path)
    content, content_type = _content(call.body, request.header(b"content-type"))
    md5 = request.header(b"content-md5")
    if md5:
        file = io.BytesIO(content) if isinstance(content, bytes) else content
        content = WithMd5(file, md5)
    key, metadata = branch._new_key(path), metadata_of(request.headers)
    entry = upload(branch._core, key, path, content, content_type, metadata, with_etag=branch._core.keeps_etags)
    info = as_info(path, entry)
    repository = call.path["repository"]
    if only_new or only_as:
        call.still()
        stage_conditionally(branch, path, entry, only_new=only_new, only_as=only_as)
        return json(201, stats_of(call, repository, info))
    return Staging(branch, path, entry, lambda: json(201, stats_of(call, repository, info)))


def _content(body: Content, content_type: str) -> tuple[Any, str | None]:
    """The bytes of an object, and their type: the body itself, or the field `content` of a form."""
    if not content_type.lower().startswith("multipart/form-data"):
        return body, content_type or UNKNOWN_TYPE
    boundary = _parameter(content_type, "boundary")
    if not boundary:
        raise BadRequest("The form has no boundary.")
    file = io.BytesIO(body) if isinstance(body, bytes) else body
    form = FormContent(file, boundary, "content")
    return form, form.content_type or UNKNOWN_TYPE


def _parameter(header: str, name: str) -> str:
    message: Message = BytesHeaderParser().parsebytes(b"Content-Type: " + header.encode("latin-1", "replace") + b"\n\n")
    found = message.get_param(name)
    return found if isinstance(found, str) else ""


def delete_object(call: Call) -> Response:
    branch = branch_to_write(call)
    branch.delete(call.query.path)
    return nothing()


def delete_objects(call: Call) -> Response:
    branch = branch_to_write(call)
    paths = call.body.paths
    if not 1 <= len(paths) <= DELETE_MAX:
        raise TooLarge(f"Give 1 to {DELETE_MAX:,} paths.", status=400)
    good, errors = [], []
    for path in dict.fromkeys(paths):
        try:
            check_path(path)
            call.permit("fs:DeleteObject", object_arn(call.path["repository"], path))
            good.append(path)
        except StrandlineError as error:
            errors.append(shapes.ObjectError(status_of(error), str(error), path))
    if good:
        try:
            branch.delete_many(good)
        except (NotAllowed, RangeLocked) as error:
            errors += [shapes.ObjectError(status_of(error), str(error), path) for path in good]
    return json(200, shapes.ObjectErrorList(errors))


def copy_object(call: Call) -> Response:
    if call.body.shallow:
        raise NotSupported("Copies here never copy bytes, so there are no shallow ones.")
    repository, target = call.path["repository"], call.query.dest_path
    branch = branch_to_write(call)
    at = call.body.src_ref or call.path["branch"]
    call.permit("fs:ReadObject", object_arn(repository, call.body.src_path), branch=at)
    source = call.services.ref(repository, at)
    if source == branch and call.body.src_path == target:
        return json(201, stats_of(call, repository, branch.stat(target)))
    return json(
        201, stats_of(call, repository, branch.copy_object(source.stat(call.body.src_path), target, ref=source))
    )


def underlying_properties(call: Call) -> Response:
    call.services.ref(call.path["repository"], call.path["ref"]).stat(call.query.path)
    return json(200, shapes.UnderlyingObjectProperties())


def stage_allowed(call: Call) -> Response:
    branch = branch_to_write(call)
    branch._refuse_early(check_path(call.query.path).decode())
    return nothing()


_OBJECT = "/repositories/{repository}/refs/{ref}/objects"
_WRITTEN = "/repositories/{repository}/branches/{branch}/objects"

OPERATIONS = (
    Operation(
        "getObject",
        "GET",
        _OBJECT,
        object_need("fs:ReadObject"),
        get_object,
        "The bytes of an object",
        {200: bytes, 206: bytes, 302: None, 304: None, 416: shapes.Error},
        "objects",
        query=Get,
        cost="quick",
    ),
    Operation(
        "headObject",
        "HEAD",
        _OBJECT,
        object_need("fs:ReadObject"),
        head_object,
        "What is known of an object, in headers",
        {200: None, 206: None, 304: None, 416: None},
        "objects",
        query=At,
        cost="quick",
    ),
    Operation(
        "statObject",
        "GET",
        _OBJECT + "/stat",
        object_need("fs:ReadObject"),
        stat_object,
        "What is known of an object",
        {200: shapes.ObjectStats},
        "objects",
        query=Stat,
        cost="quick",
    ),
    Operation(
        "listObjects",
        "GET",
        _OBJECT + "/ls",
        repository_need("fs:ListObjects"),
        list_objects,
        "The objects below a prefix",
        {200: shapes.ObjectStatsList},
        "objects",
        query=List,
        cost="quick",
    ),
    Operation(
        "getUnderlyingProperties",
        "GET",
        _OBJECT + "/underlyingProperties",
        object_need("fs:ReadObject"),
        underlying_properties,
        "What the object store says of an object",
        {200: shapes.UnderlyingObjectProperties},
        "objects",
        query=At,
        cost="quick",
    ),
    Operation(
        "uploadObject",
        "POST",
        _WRITTEN,
        object_need("fs:WriteObject"),
        upload_object,
        "Write an object",
        {201: shapes.ObjectStats, 412: shapes.Error},
        "objects",
        query=Upload,
        body=bytes,
        body_max=PUT_MAX_BYTES,
        early=refuse_upload,
        cost="upload",
    ),
    Operation(
        "uploadObjectPreflight",
        "GET",
        _WRITTEN + "/stage_allowed",
        object_need("fs:WriteObject"),
        stage_allowed,
        "Whether an object may be written",
        {204: None},
        "objects",
        query=At,
    ),
    Operation(
        "deleteObject",
        "DELETE",
        _WRITTEN,
        object_need("fs:DeleteObject"),
        delete_object,
        "Delete an object, if it is there",
        {204: None},
        "objects",
        query=Delete,
    ),
    Operation(
        "deleteObjects",
        "POST",
        _WRITTEN + "/delete",
        object_need("fs:DeleteObject", "{paths}"),
        delete_objects,
        "Delete several objects",
        {200: shapes.ObjectErrorList},
        "objects",
        query=DeleteMany,
        body=shapes.PathList,
        body_max=4 << 20,
        judges_each=True,
    ),
    Operation(
        "copyObject",
        "POST",
        _WRITTEN + "/copy",
        object_need("fs:WriteObject", "{dest_path}"),
        copy_object,
        "Copy an object without its bytes",
        {201: shapes.ObjectStats},
        "objects",
        query=Copy,
        body=shapes.ObjectCopyCreation,
    ),
)
