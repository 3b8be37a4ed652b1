"""Buckets, which are repositories."""

from __future__ import annotations

import re

from strandline.errors import AlreadyExists, NotFound
from strandline.server.messages import Response
from strandline.server.operation import everything, repository_need
from strandline.server.refusals import NotSupported, Refusal
from strandline.server.s3.operation import S3Call, S3Operation
from strandline.server.s3.xml import answer, document, element, moment, text

BUCKETS_MAX = 10_000
_NUMBER = re.compile(r"\d{1,6}", re.ASCII)


def list_buckets(call: S3Call) -> Response:
    given = call.query.get("max-buckets") or str(BUCKETS_MAX)
    most = int(given) if _NUMBER.fullmatch(given) else 0
    if not 1 <= most <= BUCKETS_MAX:
        raise Refusal("max-buckets is 1 to 10,000.", status=400, s3_code="InvalidArgument")
    after = call.query.get("continuation-token", "")
    rows = list(call.services.lake.repositories(call.query.get("prefix", ""), after=after, amount=most + 1))
    buckets = [
        element("Bucket", text("Name", row.name), text("CreationDate", moment(row.created_at))) for row in rows[:most]
    ]
    owner = element("Owner", text("ID", call.principal.user), text("DisplayName", call.principal.user))
    more = [text("ContinuationToken", rows[most - 1].name)] if len(rows) > most else []
    return answer(document("ListAllMyBucketsResult", owner, element("Buckets", *buckets), *more))


def head_bucket(call: S3Call) -> Response:
    call.services.repository(call.bucket)
    return Response(200, b"", [(b"x-amz-bucket-region", call.services.options.s3_region.encode())])


def get_location(call: S3Call) -> Response:
    call.services.repository(call.bucket)
    region = call.services.options.s3_region
    shown = "" if region == "us-east-1" else region
    return answer(document("LocationConstraint", shown))


def get_versioning(call: S3Call) -> Response:
    call.services.repository(call.bucket)
    return answer(document("VersioningConfiguration"))


def create_bucket(call: S3Call) -> Response:
    if not call.services.options.s3_flat:
        try:
            call.services.repository(call.bucket)
        except NotFound:
            raise NotSupported("Repositories are made by the REST interface, or the command line.") from None
        raise Refusal("The bucket exists.", status=409, s3_code="BucketAlreadyExists")
    try:
        call.services.lake.create_repository(call.bucket, default_branch=call.services.options.s3_flat)
    except AlreadyExists:
        raise Refusal("The bucket exists.", status=409, s3_code="BucketAlreadyOwnedByYou") from None
    return Response(200, b"", [(b"Location", f"/{call.bucket}".encode())])


def delete_bucket(call: S3Call) -> Response:
    if not call.services.options.s3_flat:
        raise Refusal("Repositories are not deleted by S3.", status=405, s3_code="MethodNotAllowed")
    flat, repository = call.services.options.s3_flat, call.services.repository(call.bucket)
    others = [one.name for one in repository.branches(amount=2, hidden=True) if one.name != flat]
    if others or repository.tags(amount=1).first() is not None:
        raise Refusal("The bucket has other branches, or tags.", status=409, s3_code="BucketNotEmpty")
    if repository.settings.read_only:
        raise Refusal("The bucket is read-only.", status=403, s3_code="AccessDenied")
    _refuse_full(call, flat)
    # nothing that is acknowledged after the last look may be lost: nobody may write while it is looked at
    repository.set_read_only()
    try:
        _refuse_full(call, flat)
    except Refusal:
        repository.set_read_only(False)
        raise
    call.services.lake.delete_repository(call.bucket, force=True)
    call.services.forget(call.bucket)
    return Response(204)


def _refuse_full(call: S3Call, flat: str) -> None:
    """Raise unless a bucket holds nothing and never did; uploads that are under way go with it, as in S3."""
    branch = call.services.repository(call.bucket).branch(flat)
    if branch.list(amount=1).first() is not None or len(list(branch.log(amount=2))) > 1:
        raise Refusal("The bucket holds objects, or commits.", status=409, s3_code="BucketNotEmpty")


OPERATIONS = (
    S3Operation("ListBuckets", "GET", "service", everything("fs:ListRepositories"), list_buckets),
    S3Operation("HeadBucket", "HEAD", "bucket", repository_need("fs:ReadRepository"), head_bucket),
    S3Operation(
        "GetBucketLocation", "GET", "bucket", repository_need("fs:ReadRepository"), get_location, ("location",)
    ),
    S3Operation(
        "GetBucketVersioning", "GET", "bucket", repository_need("fs:ReadRepository"), get_versioning, ("versioning",)
    ),
    S3Operation(
        "CreateBucket", "PUT", "bucket", repository_need("fs:CreateRepository"), create_bucket, body="document"
    ),
    S3Operation("DeleteBucket", "DELETE", "bucket", repository_need("fs:DeleteRepository"), delete_bucket),
)
