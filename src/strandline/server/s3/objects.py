"""Objects: reading, writing, copying, deleting."""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

from strandline.blob import is_absolute
from strandline.core.upload import upload
from strandline.errors import ObjectNotFound, StrandlineError
from strandline.ids import check_path
from strandline.repository.branch import Branch
from strandline.repository.refs.ref import Ref
from strandline.results.rows import ObjectInfo
from strandline.server.conditions import if_range, of_write, outcome, refuse_write, stage_conditionally
from strandline.server.content import body_of, header_text, is_shown_inline, is_token
from strandline.server.etags import etag_of, http_date
from strandline.server.messages import Response
from strandline.server.operation import SMALL_BYTES, Staging, object_arn, object_need
from strandline.server.ranges import NotSatisfiable, wanted_range
from strandline.server.refusals import BadRequest, NotSupported, Refusal
from strandline.server.s3.bodies import KEPT_HEADERS, KEPT_PREFIX, user_metadata
from strandline.server.s3.errors import failed, status_and_code
from strandline.server.s3.names import ref_and_path
from strandline.server.s3.operation import S3Call, S3Operation
from strandline.server.s3.xml import answer, document, element, malformed, moment, parse, text
from strandline.tree.rows import Entry

UNKEPT = (b"x-amz-server-side-encryption", b"x-amz-tagging", b"x-amz-object-lock-", b"x-amz-grant-")
HARMLESS_ACLS = (b"private", b"bucket-owner-full-control")
DELETE_MAX = 1_000
DELETE_MAX_BYTES = 2 << 20
_OVERRIDES = {
    "response-content-type": b"Content-Type",
    "response-content-disposition": b"Content-Disposition",
    "response-content-language": b"Content-Language",
    "response-content-encoding": b"Content-Encoding",
    "response-cache-control": b"Cache-Control",
    "response-expires": b"Expires",
}


def refuse_version(call: S3Call) -> None:
    """Raise if a request is about a version of an object: versions here are commits."""
    _refuse_version_id(call.query.get("versionId", "null"))


def _refuse_version_id(given: str) -> None:
    if given != "null":
        raise Refusal("There are no versions of objects but commits.", status=400, s3_code="InvalidArgument")


def found(call: S3Call) -> tuple[Ref, ObjectInfo]:
    """The object of a request; raises `ObjectNotFound` for a marker of a ref as well."""
    refuse_version(call)
    ref = call.services.ref(call.bucket, call.ref)
    if not call.path:
        raise ObjectNotFound("The key names a ref and no object.", next="Write ref/path.")
    return ref, ref.stat(call.path)


def headers_of(info: ObjectInfo) -> list[tuple[bytes, bytes]]:
    """What is known of an object, in headers."""
    headers = [
        (b"ETag", header_text(f'"{etag_of(info)}"')),
        (b"Last-Modified", http_date(info.modified_at_us)),
        (b"Content-Type", header_text(info.content_type or "binary/octet-stream")),
        (b"Accept-Ranges", b"bytes"),
    ]
    has_disposition = False
    for name, value in info.metadata.items():
        has_disposition |= name == KEPT_PREFIX + "content-disposition"
        kept = name.removeprefix(KEPT_PREFIX)
        if kept in KEPT_HEADERS and kept != name:
            headers.append((kept.title().encode(), header_text(value)))
        elif is_token(name):
            headers.append((b"x-amz-meta-" + name.encode(), header_text(value)))
    # what users put here is not a page of this server, whose cookies a browser would send with it
    headers += [(b"X-Content-Type-Options", b"nosniff"), (b"Content-Security-Policy", b"sandbox")]
    if not has_disposition and not is_shown_inline(info.content_type):
        headers.append((b"Content-Disposition", b"attachment"))
    return headers


def get_object(call: S3Call) -> Response:
    return _serve(call, is_head=False)


def head_object(call: S3Call) -> Response:
    return _serve(call, is_head=True)


def _serve(call: S3Call, *, is_head: bool) -> Response:
    ref, info = found(call)
    headers = headers_of(info)
    refused = outcome(call.request, etag_of(info), info.modified_at_us // 1_000_000)
    if refused == 304:
        return Response(304, b"", headers)
    if refused:
        raise Refusal("A condition of the request does not hold.", status=412, s3_code="PreconditionFailed")
    if "partNumber" in call.query and call.query["partNumber"] != "1":
        raise Refusal("The object has one part.", status=416, s3_code="InvalidPartNumber")
    try:
        wanted = wanted_range(if_range(call.request, etag_of(info), info.modified_at_us // 1_000_000), info.size)
    except NotSatisfiable:
        text = f"The object has {info.size:,} bytes; the range lies behind them."
        answer = failed(call.request, 416, "InvalidRange", text)
        answer.headers = [*answer.headers, (b"Content-Range", b"bytes */%d" % info.size)]
        return answer
    if wanted is None and "partNumber" in call.query and info.size:
        wanted = 0, info.size  # the one part, as S3 answers it
    start, end = wanted or (0, info.size)
    if wanted is not None:
        headers.append((b"Content-Range", b"bytes %d-%d/%d" % (start, end - 1, info.size)))
    status = 206 if wanted is not None else 200
    overridden = {header: header_text(call.query[name]) for name, header in _OVERRIDES.items() if call.query.get(name)}
    if overridden:
        headers = [pair for pair in headers if pair[0] not in overridden] + list(overridden.items())
    if is_head:
        return Response(status, b"", headers, length=end - start)
    if is_absolute(info.physical_address):
        call.elsewhere()  # its bytes are in another store, behind a network
    return Response(status, body_of(ref, info, start, end), headers)


def refuse_put(call: S3Call) -> None:
    """Raise what is wrong with a put whatever its bytes are."""
    branch = call.services.branch(call.bucket, call.ref)
    refuse_unkept(call)
    if call.path:
        check_path(call.path)
        refuse_write(call.request, branch, call.path)


def put_object(call: S3Call) -> Response | Staging:
    branch = call.services.branch(call.bucket, call.ref)
    request = call.request
    refuse_unkept(call)
    only_new, only_as = of_write(call.request)
    if not call.path:
        # clients mark "folders" down to the ref itself; there is nothing to remember
        if call.body.read(1):
            raise BadRequest("The key names a ref and no object.", s3_code="InvalidArgument")
        return Response(200, b"", [(b"ETag", b'"d41d8cd98f00b204e9800998ecf8427e"')])
    check_path(call.path)
    branch._refuse_early(call.path)
    key = branch._new_key(call.path)
    metadata = user_metadata(request.headers)
    content = call.body.whole() if call.length is not None and call.length <= SMALL_BYTES else call.body
    entry = upload(
        branch._core, key, call.path, content, content_type_of(call), metadata, with_etag=branch._core.keeps_etags
    )
    headers = [(b"ETag", f'"{etag_of(entry)}"'.encode())]
    headers += [(b"x-amz-checksum-" + name.encode(), value.encode()) for name, value in call.body.checksums.items()]
    if only_new or only_as:
        stage_if_allowed(call, branch, entry, only_new=only_new, only_as=only_as)
        return Response(200, b"", headers)
    return Staging(branch, call.path, entry, lambda: Response(200, b"", headers))


def content_type_of(call: S3Call) -> str:
    """The media type of an object that is written; never guessed from its name."""
    return call.request.header(b"content-type") or "binary/octet-stream"


def refuse_unkept(call: S3Call) -> None:
    """Raise if a write asks for something that would not be done: encryption, tags, locks, rights of others."""
    for name, value in call.request.headers.items():
        if name.startswith(UNKEPT) or (name == b"x-amz-acl" and value not in HARMLESS_ACLS):
            shown = name.decode("latin-1")[:80]
            raise NotSupported(f"The header {shown} asks for something that this server does not do.")


def stage_if_allowed(call: S3Call, branch: Branch, entry: Entry, *, only_new: bool, only_as: str) -> None:
    """Stage an object on a condition; what is not there matches no tag, and S3 says so in words of its own."""
    if only_as and branch.find(call.path) is None:
        raise Refusal("There is no such key.", status=404, s3_code="NoSuchKey")
    call.still()
    stage_conditionally(branch, call.path, entry, only_new=only_new, only_as=only_as)


def source_of(call: S3Call) -> tuple[str, Ref, ObjectInfo]:
    """The bucket, the ref and the object that a copy is made of, which the caller may read.

    Raises:
        Refusal: the conditions on the source do not hold.
    """
    raw = call.request.headers[b"x-amz-copy-source"]
    try:
        place, _, query = raw.partition(b"?")
        name = unquote_to_bytes(place).decode().lstrip("/")
    except UnicodeDecodeError:
        raise BadRequest("The source is not UTF-8.", s3_code="InvalidArgument") from None
    bucket, slash, key = name.partition("/")
    if not slash or not key:
        raise BadRequest("The source is not bucket/key.", s3_code="InvalidArgument")
    expression, path = ref_and_path(key, call.services.options.s3_flat)
    call.permit("fs:ReadObject", object_arn(bucket, path), branch=expression)
    _refuse_version_id(query.partition(b"=")[2].decode("latin-1") if query.startswith(b"versionId=") else "null")
    ref = call.services.ref(bucket, expression)
    info = ref.stat(path)
    if outcome(call.request, etag_of(info), info.modified_at_us // 1_000_000, b"x-amz-copy-source-"):
        raise Refusal("A condition on the source does not hold.", status=412, s3_code="PreconditionFailed")
    return bucket, ref, info


def copy_object(call: S3Call) -> Response:
    branch = call.services.branch(call.bucket, call.ref)
    check_path(call.path)
    refuse_unkept(call)
    bucket, ref, info = source_of(call)
    directive = call.request.header(b"x-amz-metadata-directive").upper()
    if directive not in ("", "COPY", "REPLACE"):
        raise BadRequest("The metadata directive is COPY or REPLACE.", s3_code="InvalidArgument")
    replaces = directive == "REPLACE"
    if bucket == call.bucket and ref == branch and info.path == call.path and not replaces:
        raise BadRequest("An object cannot be copied onto itself unchanged.", s3_code="InvalidRequest")
    only_new, only_as = of_write(call.request)
    metadata = user_metadata(call.request.headers) if replaces else info.metadata
    kind = content_type_of(call) if replaces else info.content_type
    if bucket == call.bucket and not (only_new or only_as):
        made = branch.copy_object(
            info, call.path, ref=ref, content_type=kind, metadata=metadata or None, replaces=replaces
        )
    else:
        with ref._open_whole(info) as file:
            key, keeps = branch._new_key(call.path), branch._core.keeps_etags
            entry = upload(branch._core, key, call.path, file, kind, metadata, with_etag=keeps)
        if only_new or only_as:
            stage_if_allowed(call, branch, entry, only_new=only_new, only_as=only_as)
        else:
            call.still()
            branch.stage(call.path, entry)
        made = branch.stat(call.path)
    etag = text("ETag", f'"{etag_of(made)}"')
    return answer(document("CopyObjectResult", text("LastModified", moment(made.modified_at_us)), etag))


def delete_object(call: S3Call) -> Response:
    refuse_version(call)
    branch = call.services.branch(call.bucket, call.ref)
    if call.request.header(b"if-match"):
        raise NotSupported("A delete takes no condition here.")
    if call.path:
        branch.delete(call.path)
    return Response(204)


def delete_objects(call: S3Call) -> Response:
    root = parse(call.body, "Delete")
    keys = [one.findtext("Key") for one in root.findall("Object")]
    is_quiet = (root.findtext("Quiet") or "").strip().lower() == "true"
    if not 1 <= len(keys) <= DELETE_MAX or any(key is None for key in keys):
        raise malformed()
    by_ref: dict[str, dict[str, str]] = {}
    results: list[str] = []
    for key in dict.fromkeys(str(key) for key in keys):
        ref, path = ref_and_path(key, call.services.options.s3_flat)
        if not path:
            results += [] if is_quiet else [element("Deleted", text("Key", key))]
            continue
        try:
            check_path(path)
            call.permit("fs:DeleteObject", object_arn(call.bucket, path), branch=ref)
        except StrandlineError as error:
            results.append(_failed(key, error))
            continue
        by_ref.setdefault(ref, {})[path] = key
    for ref, paths in by_ref.items():
        try:
            call.services.branch(call.bucket, ref).delete_many(list(paths))
        except StrandlineError as error:
            results += [_failed(key, error) for key in paths.values()]
        else:
            results += [] if is_quiet else [element("Deleted", text("Key", key)) for key in paths.values()]
    return answer(document("DeleteResult", *results))


def _failed(key: str, error: StrandlineError) -> str:
    _, code = status_and_code(error, "DELETE")
    return element("Error", text("Key", key), text("Code", code), text("Message", error.what))


def no_tags(call: S3Call) -> Response:
    found(call)
    return answer(document("Tagging", element("TagSet")))


_READ = object_need("fs:ReadObject")
_WRITE = object_need("fs:WriteObject")

OPERATIONS = (
    S3Operation("GetObject", "GET", "object", _READ, get_object, cost="quick"),
    S3Operation("HeadObject", "HEAD", "object", _READ, head_object, cost="quick"),
    S3Operation("GetObjectTagging", "GET", "object", _READ, no_tags, ("tagging",)),
    S3Operation("PutObject", "PUT", "object", _WRITE, put_object, body="content", early=refuse_put, cost="upload"),
    S3Operation("CopyObject", "PUT", "object", _WRITE, copy_object, header=b"x-amz-copy-source", cost="long"),
    S3Operation("DeleteObject", "DELETE", "object", object_need("fs:DeleteObject"), delete_object),
    S3Operation(
        "DeleteObjects",
        "POST",
        "bucket",
        object_need("fs:DeleteObject", "{keys}"),
        delete_objects,
        ("delete",),
        body="document",
        body_max=DELETE_MAX_BYTES,
        judges_each=True,
    ),
)
