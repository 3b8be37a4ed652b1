"""Errors as S3 words them."""

from __future__ import annotations

from xml.sax.saxutils import escape

from strandline.errors import (
    BranchGone,
    NotAllowed,
    PreconditionFailed,
    RangeLocked,
    RefNotFound,
    StrandlineError,
    UsageError,
    kind_of,
)
from strandline.server.messages import Request, Response
from strandline.server.refusals import Forbidden, NotAuthenticated, Refusal
from strandline.server.s3.xml import XML


def status_and_code(error: StrandlineError, method: str) -> tuple[int, str]:
    """The status and the code of an error, which for a missing ref depend on what was asked."""
    if isinstance(error, Forbidden):
        return 403, error.s3_code
    if isinstance(error, NotAuthenticated):
        return (403 if error.status == 401 else error.status), error.s3_code
    if isinstance(error, Refusal):
        return error.status, error.s3_code
    if isinstance(error, RefNotFound | BranchGone):
        return (404, "NoSuchKey") if method in ("GET", "HEAD") else (404, "NoSuchBucket")
    if isinstance(error, PreconditionFailed):
        return 412, "PreconditionFailed"
    if isinstance(error, RangeLocked):
        return 409, "OperationAborted"
    if isinstance(error, NotAllowed):
        return 403, "AccessDenied"
    kind = kind_of(type(error))
    if isinstance(error, UsageError):
        return 400, kind.s3_code
    return kind.http_status, kind.s3_code


def refusal(error: StrandlineError, request: Request) -> Response:
    """The answer to a request that failed."""
    status, code = status_and_code(error, request.method)
    return failed(request, status, code, error.what if isinstance(error, Refusal) else str(error), _wait_s(error))


def broken(request: Request) -> Response:
    """The answer to a request that met a fault of the server."""
    return failed(request, 500, "InternalError", f"The server failed; its log has more about {request.id}.", 0)


def failed(request: Request, status: int, code: str, message: str, wait_s: int = 0) -> Response:
    """An error's document."""
    shown = "".join(char if char >= " " else " " for char in message)
    path = "".join(char if char >= " " else "?" for char in request.raw_path.decode("latin-1"))
    body = (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f"<Error><Code>{code}</Code><Message>{escape(shown)}</Message><Resource>{escape(path)}</Resource>"
        f"<RequestId>{request.id}</RequestId></Error>"
    ).encode()
    headers = [XML, (b"x-amz-request-id", request.id.encode())]
    if wait_s:
        headers.append((b"Retry-After", b"%d" % wait_s))
    return Response(status, b"", headers, length=0) if request.method == "HEAD" else Response(status, body, headers)


def _wait_s(error: StrandlineError) -> int:
    if isinstance(error, Refusal):
        return error.retry_after_s
    return int(kind_of(type(error)).http_status == 503)
