"""Answers of the catalog, and errors by what Iceberg's clients then do with the files that they have written.

A status from 400 on, but not from 500 on, says that the change surely did not happen: clients delete their files.
"""

from __future__ import annotations

import msgspec

from strandline.errors import (
    AlreadyExists,
    BranchGone,
    Conflict,
    Contention,
    Fenced,
    InvalidName,
    NotAllowed,
    NotFound,
    ObjectMissing,
    RangeLocked,
    RefNotFound,
    RepositoryNotFound,
    StoreUnavailable,
    StrandlineError,
    TransactionClosed,
    UncommittedChanges,
    UsageError,
)
from strandline.iceberg.namespaces import NoSuchNamespace, NotEmpty
from strandline.iceberg.refusals import BadArgument, Stale
from strandline.iceberg.shapes import encoded
from strandline.iceberg.tables import NoSuchTable
from strandline.iceberg.views import NoSuchView
from strandline.server.auth.tokens import Expired
from strandline.server.messages import Request, Response
from strandline.server.refusals import BrokenBody, Busy, Forbidden, NotAuthenticated, NotSupported, Refusal

JSON = (b"Content-Type", b"application/json")
NO_STORE = (b"Cache-Control", b"no-store")
_KINDS: tuple[tuple[type[StrandlineError], int, str], ...] = (
    (Expired, 419, "AuthenticationTimeoutException"),
    (NotAuthenticated, 401, "NotAuthorizedException"),
    (Forbidden, 403, "ForbiddenException"),
    (Busy, 503, "ServiceUnavailableException"),
    (NotSupported, 406, "UnsupportedOperationException"),
    (BrokenBody, 400, "BadRequestException"),
    (NoSuchTable, 404, "NoSuchTableException"),
    (NoSuchView, 404, "NoSuchViewException"),
    (NoSuchNamespace, 404, "NoSuchNamespaceException"),
    (RepositoryNotFound, 404, "NoSuchWarehouseException"),
    (RefNotFound, 404, "NoSuchWarehouseException"),
    (BranchGone, 404, "NoSuchWarehouseException"),
    (ObjectMissing, 404, "NotFoundException"),
    (NotFound, 404, "NotFoundException"),
    (NotEmpty, 409, "NamespaceNotEmptyException"),
    (AlreadyExists, 409, "AlreadyExistsException"),
    (Fenced, 403, "ForbiddenException"),
    (TransactionClosed, 403, "ForbiddenException"),
    (NotAllowed, 403, "ForbiddenException"),
    (Conflict, 409, "CommitFailedException"),
    (BadArgument, 400, "IllegalArgumentException"),
    (InvalidName, 400, "BadRequestException"),
    (UsageError, 400, "BadRequestException"),
)
"""The first that fits. `Contention` and what stores say of an outcome are decided in `status_and_type`."""
UNKNOWN = "CommitStateUnknownException"


def status_and_type(error: StrandlineError, *, is_commit: bool, changes: bool) -> tuple[int, str]:
    """How clients know an error.

    Args:
        is_commit: of an update of tables or views, which clients repeat after a conflict.
        changes: whether something may have changed.
    """
    if isinstance(error, RangeLocked):
        # a conflict when something is made would read as "it exists already"
        return (409, "CommitFailedException") if is_commit else (423, "RangeLockedException")
    if isinstance(error, StoreUnavailable) and changes and error.happened != "no":
        return 500, UNKNOWN
    if isinstance(error, StoreUnavailable | Contention):
        return 503, "ServiceUnavailableException"
    if not is_commit and isinstance(error, UncommittedChanges):  # nor would it help to read anew
        return 423, "UncommittedChangesException"
    if not is_commit and isinstance(error, Stale):
        return 503, "ServiceUnavailableException"
    for kind, status, name in _KINDS:
        if isinstance(error, kind):
            return status, name
    if isinstance(error, Refusal):
        return error.status, "BadRequestException" if error.status < 500 else "ServiceFailureException"
    return 500, UNKNOWN if changes else "ServiceFailureException"


def refusal(error: StrandlineError, request: Request, *, is_commit: bool = False) -> Response:
    """The answer to a request that failed."""
    changes = request.method not in ("GET", "HEAD")
    status, kind = status_and_type(error, is_commit=is_commit, changes=changes)
    headers = []
    if status == 401:
        headers.append((b"WWW-Authenticate", b'Bearer realm="strandline"'))
    if status in (429, 503):
        headers.append((b"Retry-After", b"1"))
    return failed(request, status, kind, _said(error), headers)


def _said(error: StrandlineError) -> str:
    """What is wrong; of names that are there or are not, in Iceberg's own words, by which clients know it."""
    if isinstance(error, NotFound | AlreadyExists) and not isinstance(error, NotEmpty):
        return error.what.removesuffix(".")
    return error.what if isinstance(error, Refusal) and not error.next else str(error)


def broken(request: Request) -> Response:
    """The answer to a request that met a fault of the server: its log says more. What it changed is unknown."""
    kind = "ServiceFailureException" if request.method in ("GET", "HEAD") else UNKNOWN
    return failed(request, 500, kind, f"The server failed; its log has more about the request {request.id}.")


def failed(
    request: Request, status: int, kind: str, message: str, headers: list[tuple[bytes, bytes]] | None = None
) -> Response:
    """An error in Iceberg's form."""
    body = msgspec.json.encode({"error": {"message": message, "type": kind, "code": status}})
    made = Response(status, b"" if request.method == "HEAD" else body, [JSON, *(headers or ())])
    if request.method == "HEAD":
        made.length = len(body)
    return made


def json(body: object, *headers: tuple[bytes, bytes], status: int = 200) -> Response:
    """An answer with a body."""
    return Response(status, encoded(body), (JSON, *headers))


def secret_json(body: object, status: int = 200) -> Response:
    """An answer that nobody may keep."""
    return json(body, NO_STORE, status=status)


def nothing(status: int = 204) -> Response:
    """An answer without a body."""
    return Response(status)
