"""Lists of a bucket's objects, in both of S3's versions."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from itertools import islice

from strandline.errors import RefNotFound
from strandline.ids import prefix_end
from strandline.results.rows import CommonPrefix, ObjectInfo
from strandline.server.etags import etag_of
from strandline.server.messages import Response
from strandline.server.operation import repository_need
from strandline.server.refusals import BadRequest
from strandline.server.s3.names import ref_and_path
from strandline.server.s3.operation import S3Call, S3Operation
from strandline.server.s3.xml import answer, document, element, encoder, moment, text

KEYS_MAX = 1_000
Row = ObjectInfo | CommonPrefix


def rows_of(call: S3Call, prefix: str, delimiter: str, after: str, amount: int) -> list[tuple[str, Row]]:
    """Keys with their objects, or folders, in the order of S3.

    Args:
        prefix, after: keys as the client knows them.
    """
    if not call.services.options.s3_flat and "/" not in prefix:
        call.elsewhere()  # several branches, and perhaps all that is on them
        return list(islice(_refs(call, prefix, delimiter, after), amount))
    ref_name, below = ref_and_path(prefix, call.services.options.s3_flat)
    after_ref, after_path = ref_and_path(after, call.services.options.s3_flat)
    if after and after_ref != ref_name:
        if after > prefix:
            return []  # all that has the prefix comes before
        after_path = ""
    try:
        ref = call.services.ref(call.bucket, ref_name)
    except RefNotFound:
        call.services.repository(call.bucket)
        return []
    found = ref.list(below, delimiter=delimiter, after=after_path, amount=amount)
    return [(call.key_of(ref_name, row.path), row) for row in found]


def _refs(call: S3Call, prefix: str, delimiter: str, after: str) -> Iterator[tuple[str, Row]]:
    """What lies in a bucket as a whole: its branches as folders or, without a delimiter, all that is on them."""
    repository = call.services.repository(call.bucket)
    passed_ref, slash, passed_path = after.partition("/")
    arn = f"arn:lakefs:fs:::repository/{call.bucket}"
    # keys are in the order of "name/", in which "a-b" comes before "a": "-" and "." come before "/"
    for branch in sorted(repository.branches(prefix), key=lambda one: f"{one.name}/"):
        below = f"{branch.name}/"
        if not call.may("fs:ListObjects", arn, branch=branch.name):
            continue
        if delimiter == "/":
            if below > after:
                yield below, CommonPrefix(below)
            continue
        is_passed = slash and branch.name == passed_ref
        if not is_passed and below < after:
            continue
        start = passed_path if is_passed else ""
        for row in repository.ref(branch.name).list(after=start):
            key = f"{branch.name}/{row.path}"
            folder = _folder(key, prefix, delimiter)
            if folder is None:
                yield key, row
            elif folder > after:
                yield folder, CommonPrefix(folder)
                after = prefix_end(folder) or folder


def _folder(key: str, prefix: str, delimiter: str) -> str | None:
    at = key.find(delimiter, len(prefix)) if delimiter else -1
    return key[: at + len(delimiter)] if at >= 0 else None


def _limit(call: S3Call) -> int:
    given = call.query.get("max-keys", "")
    if not given:
        return KEYS_MAX
    if not (given.isascii() and given.isdigit() and len(given) < 10):
        raise BadRequest("max-keys is a number.", s3_code="InvalidArgument")
    return min(int(given), KEYS_MAX)


def _elements(rows: list[tuple[str, Row]], encode: object, owner: str) -> list[str]:
    shown = []
    for key, row in rows:
        name = encode(key)  # type: ignore[operator]
        if isinstance(row, CommonPrefix):
            shown.append(element("CommonPrefixes", text("Prefix", name)))
            continue
        shown.append(
            element(
                "Contents",
                text("Key", name),
                text("LastModified", moment(row.modified_at_us)),
                text("ETag", f'"{etag_of(row)}"'),
                text("Size", row.size),
                element("Owner", text("ID", owner), text("DisplayName", owner)) if owner else "",
                text("StorageClass", "STANDARD"),
            )
        )
    return shown


def list_objects(call: S3Call) -> Response:
    """Version 1: a page goes on behind a key that the client names."""
    query = call.query
    prefix, delimiter, after = query.get("prefix", ""), query.get("delimiter", ""), query.get("marker", "")
    most, encode = _limit(call), encoder(query.get("encoding-type", ""))
    call.services.repository(call.bucket)
    rows = rows_of(call, prefix, delimiter, after, most + 1) if most else []
    has_more = len(rows) > most
    rows = rows[:most]
    head = [
        text("Name", call.bucket),
        text("Prefix", encode(prefix)),
        text("Marker", encode(after)),
        text("MaxKeys", most),
        text("Delimiter", encode(delimiter)) if delimiter else "",
        text("EncodingType", "url") if query.get("encoding-type") else "",
        text("IsTruncated", str(has_more).lower()),
        text("NextMarker", encode(rows[-1][0])) if has_more else "",
    ]
    return answer(document("ListBucketResult", *head, *_elements(rows, encode, call.principal.user)))


def list_objects_v2(call: S3Call) -> Response:
    """Version 2: a page goes on with a token."""
    query = call.query
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    token = query.get("continuation-token", "")
    start_after = query.get("start-after", "")
    if "continuation-token" in query and not token:
        raise BadRequest("The continuation token is empty.", s3_code="InvalidArgument")
    after = _after_of(token) if token else start_after
    most, encode = _limit(call), encoder(query.get("encoding-type", ""))
    call.services.repository(call.bucket)
    rows = rows_of(call, prefix, delimiter, after, most + 1) if most else []
    has_more = len(rows) > most
    rows = rows[:most]
    owner = call.principal.user if query.get("fetch-owner") == "true" else ""
    head = [
        text("Name", call.bucket),
        text("Prefix", encode(prefix)),
        text("MaxKeys", most),
        text("KeyCount", len(rows)),
        text("Delimiter", encode(delimiter)) if delimiter else "",
        text("EncodingType", "url") if query.get("encoding-type") else "",
        text("IsTruncated", str(has_more).lower()),
        text("StartAfter", encode(start_after)) if start_after and not token else "",
        text("ContinuationToken", token) if token else "",
        text("NextContinuationToken", _token_of(rows[-1][0])) if has_more else "",
    ]
    return answer(document("ListBucketResult", *head, *_elements(rows, encode, owner)))


def _token_of(key: str) -> str:
    return base64.urlsafe_b64encode(key.encode()).decode()


def _after_of(token: str) -> str:
    try:
        return base64.b64decode(token, altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        raise BadRequest("The continuation token is not one of this server.", s3_code="InvalidArgument") from None


OPERATIONS = (
    S3Operation("ListObjects", "GET", "bucket", repository_need("fs:ListObjects"), list_objects, cost="quick"),
    S3Operation(
        "ListObjectsV2",
        "GET",
        "bucket",
        repository_need("fs:ListObjects"),
        list_objects_v2,
        ("list-type",),
        cost="quick",
    ),
)
