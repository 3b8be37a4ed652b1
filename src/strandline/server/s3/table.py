"""All operations of the S3 interface, in one table."""

from __future__ import annotations

from strandline.server.operation import object_need, repository_need
from strandline.server.s3 import buckets, listing, multipart, objects
from strandline.server.s3.operation import S3Operation, refused

_BUCKET = (
    "accelerate",
    "acl",
    "analytics",
    "cors",
    "encryption",
    "intelligent-tiering",
    "inventory",
    "lifecycle",
    "logging",
    "metrics",
    "notification",
    "object-lock",
    "ownershipControls",
    "policy",
    "policyStatus",
    "publicAccessBlock",
    "replication",
    "requestPayment",
    "tagging",
    "website",
)
_OBJECT = ("acl", "attributes", "legal-hold", "restore", "retention", "select", "torrent")


def _refused() -> tuple[S3Operation, ...]:
    rows = []
    for word in _BUCKET:
        for method in ("GET", "PUT", "DELETE"):
            if (word, method) != ("versioning", "GET"):
                need = repository_need("fs:ReadRepository" if method == "GET" else "fs:UpdateRepository")
                rows.append(S3Operation(f"{method.title()}Bucket:{word}", method, "bucket", need, refused, (word,)))
    rows += [
        S3Operation(
            "PutBucketVersioning", "PUT", "bucket", repository_need("fs:UpdateRepository"), refused, ("versioning",)
        ),
        S3Operation("ListObjectVersions", "GET", "bucket", repository_need("fs:ListObjects"), refused, ("versions",)),
    ]
    for word in _OBJECT:
        for method in ("GET", "PUT", "POST", "DELETE"):
            need = object_need("fs:ReadObject" if method == "GET" else "fs:WriteObject")
            rows.append(S3Operation(f"{method.title()}Object:{word}", method, "object", need, refused, (word,)))
    for method in ("PUT", "DELETE"):
        rows.append(
            S3Operation(
                f"{method.title()}ObjectTagging", method, "object", object_need("fs:WriteObject"), refused, ("tagging",)
            )
        )
    return tuple(rows)


OPERATIONS: tuple[S3Operation, ...] = (
    *buckets.OPERATIONS,
    *objects.OPERATIONS,
    *listing.OPERATIONS,
    *multipart.OPERATIONS,
    *_refused(),
)
