"""Answers in JSON, and errors as statuses of HTTP."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TypeVar

import msgspec

from strandline.errors import (
    Contention,
    MergeConflict,
    StrandlineError,
    UncommittedChanges,
    kind_of,
)
from strandline.repository.repository import NamedRef
from strandline.server.messages import Request, Response
from strandline.server.refusals import Refusal
from strandline.server.rest.shapes import PAGE_DEFAULT, Conflict, Error, MergeResult, Pagination, Ref, RefList

JSON = (b"Content-Type", b"application/json")
_encode = msgspec.json.Encoder().encode
_NO_STORE = (b"Cache-Control", b"no-store")
_OVERRIDES: dict[type[StrandlineError], int] = {UncommittedChanges: 400, Contention: 429}
"""Where lakeFS's clients know another status than `errors.TABLE` has."""
Row = TypeVar("Row")


def json(status: int, body: object, *headers: tuple[bytes, bytes]) -> Response:
    """An answer with a body."""
    return Response(status, _encode(body), (JSON, *headers))


def secret_json(status: int, body: object) -> Response:
    """An answer that nobody may keep."""
    return json(status, body, _NO_STORE)


def nothing(status: int = 204) -> Response:
    """An answer without a body."""
    return Response(status)


def status_of(error: StrandlineError) -> int:
    """The status that an error has on this interface."""
    if isinstance(error, Refusal):
        return error.status
    for kind, status in _OVERRIDES.items():
        if type(error) is kind:
            return status
    return kind_of(type(error)).http_status


def refusal(error: StrandlineError, request: Request) -> Response:
    """The answer to a request that failed."""
    status = status_of(error)
    headers = [JSON]
    if status == 401:
        headers.append((b"WWW-Authenticate", b'Basic realm="strandline"'))
    wait_s = error.retry_after_s if isinstance(error, Refusal) else int(status in (423, 429, 503))
    if wait_s:
        headers.append((b"Retry-After", b"%d" % wait_s))
    if isinstance(error, MergeConflict):
        conflicts = [Conflict(path, reason) for path, reason in error.reasons.items()]
        return Response(status, _encode(MergeResult("", str(error), conflicts)), headers)
    is_plain = isinstance(error, Refusal) and (not error.next or status == 401)
    message = error.what if is_plain else str(error)  # of a 401 clients know the words
    return Response(status, _encode(Error(message, error.kind, request.id)), headers)


def broken(request: Request) -> Response:
    """The answer to a request that met a fault of the server: its log says more."""
    text = f"The server failed; its log has more about the request {request.id}."
    return Response(500, _encode(Error(text, "error", request.id)), [JSON])


def amount_of(asked: int) -> int:
    """How many rows a page has: the default if none, or fewer, are asked for."""
    return asked if asked > 0 else PAGE_DEFAULT


def refs_page(rows: Iterable[NamedRef], amount: int) -> Response:
    """A page of branches or tags."""
    kept, pagination = page(rows, amount, lambda row: row.name)
    return json(200, RefList(pagination, [Ref(row.name, row.commit) for row in kept]))


def page(rows: Iterable[Row], amount: int, name_of: Callable[[Row], str]) -> tuple[list[Row], Pagination]:
    """The first rows, and where they end.

    Args:
        rows: one more than `amount`, if there are so many.
    """
    found: Iterator[Row] = iter(rows)
    kept = list(islice(found, amount))
    has_more = len(kept) == amount and next(found, None) is not None
    return kept, Pagination(has_more, name_of(kept[-1]) if has_more else "", len(kept))
