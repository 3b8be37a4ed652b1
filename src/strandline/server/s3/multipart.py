"""Multipart uploads, as S3's clients speak of them."""

from __future__ import annotations

import re

from strandline.core.texts import check_metadata
from strandline.ids import BranchId, check_path
from strandline.server.conditions import of_write
from strandline.server.messages import Response
from strandline.server.operation import object_need, repository_need
from strandline.server.refusals import BadRequest, Refusal
from strandline.server.s3.bodies import user_metadata
from strandline.server.s3.names import ref_and_path
from strandline.server.s3.objects import content_type_of, refuse_unkept, source_of
from strandline.server.s3.operation import S3Call, S3Operation
from strandline.server.s3.whole_checksums import whole_checksum
from strandline.server.s3.xml import answer, document, element, encoder, malformed, moment, parse, text
from strandline.server.uploads import PARTS_MAX, Said, Uploads, no_such_upload

LIST_MAX = 1_000
COMPLETE_MAX_BYTES = 4 << 20
"""A list of 10,000 parts with their checksums has 1.4 MB."""
_SOURCE_RANGE = re.compile(r"bytes=(\d{1,15})-(\d{1,15})", re.ASCII)
_NUMBER = re.compile(r"\d{1,10}", re.ASCII)


def _uploads(call: S3Call) -> Uploads:
    return Uploads(call.services.lake._kv)


def create(call: S3Call) -> Response:
    branch = call.services.branch(call.bucket, call.ref)
    check_path(call.path)
    refuse_unkept(call)
    branch._refuse_early(call.path)
    metadata = check_metadata(user_metadata(call.request.headers) or None)
    upload = _uploads(call).begin(branch, call.path, call.principal.user, content_type_of(call), metadata)
    names = text("Bucket", call.bucket) + text("Key", call.key_of(call.ref, call.path))
    return answer(document("InitiateMultipartUploadResult", names, text("UploadId", upload.id)))


def _part_number(call: S3Call) -> int:
    given = call.query["partNumber"]
    if not _NUMBER.fullmatch(given) or not 1 <= int(given) <= PARTS_MAX:
        raise BadRequest(f"Part numbers are 1 to {PARTS_MAX:,}.", s3_code="InvalidArgument")
    return int(given)


def refuse_part(call: S3Call) -> None:
    """Raise what is wrong with a part whatever its bytes are."""
    branch = call.services.branch(call.bucket, call.ref)
    _part_number(call)
    branch._refuse_early(call.path)
    if _uploads(call).get(branch, call.path, call.query["uploadId"]).state != "open":
        raise no_such_upload()


def upload_part(call: S3Call) -> Response:
    branch = call.services.branch(call.bucket, call.ref)
    number = _part_number(call)
    part = _uploads(call).put(branch, call.path, call.query["uploadId"], number, call.body, call.length, call.still)
    checksums = [(b"x-amz-checksum-" + name.encode(), value.encode()) for name, value in call.body.checksums.items()]
    return Response(200, b"", [(b"ETag", f'"{part.md5}"'.encode()), *checksums])


def upload_part_copy(call: S3Call) -> Response:
    branch = call.services.branch(call.bucket, call.ref)
    number = _part_number(call)
    _, ref, info = source_of(call)
    start, end = 0, info.size
    wanted = call.request.header(b"x-amz-copy-source-range")
    if wanted:
        found = _SOURCE_RANGE.fullmatch(wanted)
        if not found or not int(found[1]) <= int(found[2]) < info.size:
            raise BadRequest("The range is not one of the source.", s3_code="InvalidArgument")
        start, end = int(found[1]), int(found[2]) + 1
    with ref._open_whole(info) as file:
        file.seek(start)
        limited = _Limited(file, end - start)
        part = _uploads(call).put(
            branch,
            call.path,
            call.query["uploadId"],
            number,
            limited,  # type: ignore[arg-type]
            end - start,
            call.still,
        )
    return answer(
        document("CopyPartResult", text("LastModified", moment(part.written_at)), text("ETag", f'"{part.md5}"'))
    )


class _Limited:
    """The next bytes of a file, and no more."""

    def __init__(self, file: object, left: int) -> None:
        self._file = file
        self._left = left

    def read(self, size: int = -1) -> bytes:
        data: bytes = self._file.read(self._left if size < 0 else min(size, self._left))  # type: ignore[attr-defined]
        self._left -= len(data)
        return data


def complete(call: S3Call) -> Response:
    branch = call.services.branch(call.bucket, call.ref)
    root = parse(call.body, "CompleteMultipartUpload")
    wanted = []
    for one in root.findall("Part"):
        number, etag = (one.findtext("PartNumber") or "").strip(), (one.findtext("ETag") or "").strip()
        if not number or not etag:
            raise malformed()
        if not _NUMBER.fullmatch(number) or int(number) < 1:
            raise BadRequest(f"Part numbers are 1 to {PARTS_MAX:,}.", s3_code="InvalidArgument")
        wanted.append((int(number), etag))
    if not 1 <= len(wanted) <= PARTS_MAX:
        raise malformed()
    only_new, only_as = of_write(call.request)
    if only_as and branch.find(call.path) is None:
        raise Refusal("There is no such key.", status=404, s3_code="NoSuchKey")
    size = call.request.header(b"x-amz-mp-object-size")
    if size and not _NUMBER.fullmatch(size):
        raise BadRequest("x-amz-mp-object-size is a number.", s3_code="InvalidArgument")
    checksum = whole_checksum(call.request)
    done = _uploads(call).complete(
        branch,
        call.path,
        call.query["uploadId"],
        wanted,
        only_new=only_new,
        only_as=only_as,
        said=Said(int(size) if size else None, checksum.check if checksum else None),
        still=call.still,
    )
    key = call.key_of(call.ref, call.path)
    names = text("Bucket", call.bucket) + text("Key", key) + text("ETag", f'"{done.etag}"')
    place = text("Location", f"{call.services.options.address}/{call.bucket}/{key}")
    return answer(document("CompleteMultipartUploadResult", place, names))


def abort(call: S3Call) -> Response:
    branch = call.services.branch(call.bucket, call.ref)
    _uploads(call).abort(branch, call.path, call.query["uploadId"])
    return Response(204)


def list_parts(call: S3Call) -> Response:
    branch = call.services.branch(call.bucket, call.ref)
    uploads = _uploads(call)
    upload = uploads.get(branch, call.path, call.query["uploadId"])
    if upload.state in ("done", "aborted"):
        raise no_such_upload()
    after, most = _number(call, "part-number-marker", 0), min(_number(call, "max-parts", LIST_MAX), LIST_MAX)
    parts = []
    for part in uploads.parts(branch, upload.id, after):
        parts.append(part)
        if len(parts) > most:
            break
    has_more, parts = len(parts) > most > 0, parts[:most]
    head = [
        text("Bucket", call.bucket),
        text("Key", call.key_of(call.ref, call.path)),
        text("UploadId", upload.id),
        text("StorageClass", "STANDARD"),
        text("PartNumberMarker", after),
        text("NextPartNumberMarker", parts[-1].number) if parts else "",
        text("MaxParts", most),
        text("IsTruncated", str(has_more).lower()),
    ]
    shown = [
        element(
            "Part",
            text("PartNumber", part.number),
            text("LastModified", moment(part.written_at)),
            text("ETag", f'"{part.md5}"'),
            text("Size", part.size),
        )
        for part in parts
    ]
    return answer(document("ListPartsResult", *head, *shown))


def _number(call: S3Call, name: str, default: int) -> int:
    given = call.query.get(name, "")
    if not given:
        return default
    if not _NUMBER.fullmatch(given):
        raise BadRequest(f"{name} is a number.", s3_code="InvalidArgument")
    return int(given)


def list_uploads(call: S3Call) -> Response:
    query = call.query
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    key_marker, id_marker = query.get("key-marker", ""), query.get("upload-id-marker", "")
    most, encode = min(_number(call, "max-uploads", LIST_MAX), LIST_MAX), encoder(query.get("encoding-type", ""))
    repository = call.services.repository(call.bucket)
    ref, _ = ref_and_path(prefix, call.services.options.s3_flat)
    found: list[tuple[str, str, int]] = []
    names = {}
    for one in repository.branches("" if call.services.options.s3_flat else ref, hidden=True):
        if call.may("fs:ListObjects", f"arn:lakefs:fs:::repository/{call.bucket}", branch=one.name):
            names[repository.branch(one.name).branch_id] = one.name
    for upload in _uploads(call).of_repository(repository._core.stores.repository_id):
        name = names.get(BranchId(upload.branch_id))
        key = call.key_of(name, upload.path) if name else ""
        if name and upload.state == "open" and key.startswith(prefix):
            found.append((key, upload.id, upload.begun_at))
    found.sort()
    rows: list[str] = []
    folders: set[str] = set()
    last = ("", "")
    has_more = False
    for key, id, begun_at in found:
        if (key, id) <= (key_marker, id_marker or "\U0010ffff") and key_marker:
            continue
        at = key.find(delimiter, len(prefix)) if delimiter else -1
        folder = key[: at + len(delimiter)] if at >= 0 else ""
        if folder and (folder in folders or (key_marker and folder <= key_marker)):
            continue
        if len(rows) == most:
            has_more = most > 0
            break
        if folder:
            folders.add(folder)
            rows.append(element("CommonPrefixes", text("Prefix", encode(folder))))
            last = folder, ""
        else:
            rows.append(
                element(
                    "Upload",
                    text("Key", encode(key)),
                    text("UploadId", id),
                    text("StorageClass", "STANDARD"),
                    text("Initiated", moment(begun_at)),
                )
            )
            last = key, id
    head = [
        text("Bucket", call.bucket),
        text("KeyMarker", encode(key_marker)),
        text("UploadIdMarker", id_marker),
        text("Prefix", encode(prefix)),
        text("Delimiter", encode(delimiter)) if delimiter else "",
        text("EncodingType", "url") if query.get("encoding-type") else "",
        text("MaxUploads", most),
        text("IsTruncated", str(has_more).lower()),
        text("NextKeyMarker", encode(last[0])) + text("NextUploadIdMarker", last[1]) if has_more else "",
    ]
    return answer(document("ListMultipartUploadsResult", *head, *rows))


_WRITE = object_need("fs:WriteObject")

OPERATIONS = (
    S3Operation("CreateMultipartUpload", "POST", "object", _WRITE, create, ("uploads",)),
    S3Operation(
        "UploadPart",
        "PUT",
        "object",
        _WRITE,
        upload_part,
        ("partNumber", "uploadId"),
        body="content",
        early=refuse_part,
    ),
    S3Operation(
        "UploadPartCopy",
        "PUT",
        "object",
        _WRITE,
        upload_part_copy,
        ("partNumber", "uploadId"),
        header=b"x-amz-copy-source",
        cost="long",
    ),
    S3Operation(
        "CompleteMultipartUpload",
        "POST",
        "object",
        _WRITE,
        complete,
        ("uploadId",),
        body="document",
        body_max=COMPLETE_MAX_BYTES,
        is_checksum_anothers=True,
        cost="long",
    ),
    S3Operation("AbortMultipartUpload", "DELETE", "object", _WRITE, abort, ("uploadId",)),
    S3Operation("ListParts", "GET", "object", object_need("fs:ListObjects"), list_parts, ("uploadId",)),
    S3Operation("ListMultipartUploads", "GET", "bucket", repository_need("fs:ListObjects"), list_uploads, ("uploads",)),
)
