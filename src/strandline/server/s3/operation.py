"""A row of the table of S3 operations, and a request of one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from strandline.iam.policy import Needs
from strandline.server.auth.sigv4 import Signed
from strandline.server.messages import Response
from strandline.server.operation import AnyCall, Cost, Staging
from strandline.server.refusals import Refusal
from strandline.server.s3.xml import DOCUMENT_MAX_BYTES

Level = Literal["service", "bucket", "object"]
BodyKind = Literal["none", "document", "content"]


@dataclass(slots=True)
class S3Call(AnyCall):
    """A request of the S3 interface, whose signature is right.

    Attributes:
        bucket: the name of a repository, or "".
        ref: the first part of the key; of a request for a bucket, "".
        path: what follows it.
        query: the parameters; of several of one name, the first.
        body: bytes of a document, or the content of an object as a file; None if there is none.
        length: how many bytes the content is said to have.
    """

    signed: Signed
    signing_key: bytes
    bucket: str
    ref: str
    path: str
    query: dict[str, str]
    length: int | None = None

    @property
    def repository(self) -> str:
        return self.bucket

    @property
    def named_branch(self) -> str:
        """Of a list, the ref that its prefix lies on; "" if it goes over several."""
        if self.ref or self.path:
            return self.ref
        flat, (ref, slash, _) = self.services.options.s3_flat, self.query.get("prefix", "").partition("/")
        return flat or (ref if slash else "")

    def key_of(self, ref: str, path: str) -> str:
        """A key as the client knows it."""
        return path if self.services.options.s3_flat else f"{ref}/{path}"


Handler = Callable[[S3Call], Response | Staging]


@dataclass(frozen=True, slots=True)
class S3Operation:
    """An operation of S3.

    Attributes:
        id: as Amazon calls it.
        level: what it is about.
        asks: names in the query that make a request one of this operation; of two rows that match, the one with more.
        header: a header that makes it one of this operation, or b"".
        needs: what the caller has to be allowed.
        body_max: of a document, in bytes.
        early: raises what can be known before a large body comes.
        is_checksum_anothers: the checksum in its headers is not that of its document.
        judges_each: the handler judges the keys of its document one by one, and answers for each.
    """

    id: str
    method: str
    level: Level
    needs: Needs
    handler: Handler
    asks: tuple[str, ...] = ()
    header: bytes = b""
    body: BodyKind = "none"
    body_max: int = DOCUMENT_MAX_BYTES
    early: Callable[[S3Call], None] | None = None
    judges_each: bool = False
    is_checksum_anothers: bool = False
    cost: Cost = "blocking"


def refused(call: S3Call) -> Response:
    """The handler of operations that are refused in words, once the bucket is known to be there."""
    call.services.repository(call.bucket)
    raise Refusal(
        "This server does not keep that of a bucket or an object: versions are commits, rules are the server's own.",
        status=405,
        s3_code="MethodNotAllowed",
    )
