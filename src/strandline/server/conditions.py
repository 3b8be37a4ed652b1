"""Conditional requests: whether an object is as the client thinks (RFC 9110, section 13)."""

from __future__ import annotations

from calendar import timegm
from email.utils import parsedate

from strandline.branch.conditional import failed_precondition, stage_if
from strandline.repository.branch import Branch
from strandline.server.etags import etag_of, matches
from strandline.server.messages import Request
from strandline.server.refusals import NotSupported
from strandline.tree.rows import Entry


def outcome(request: Request, etag: str, modified_s: int, prefix: bytes = b"") -> int:
    """304 or 412 if the conditions of a GET or HEAD say so, else 0.

    Args:
        prefix: of the headers' names, for those that are about the source of a copy.
    """
    only_as = request.header(prefix + b"if-match")
    if only_as:
        if not matches(only_as, etag, weak=False):
            return 412
    else:
        since = _seconds(request.header(prefix + b"if-unmodified-since"))
        if since is not None and modified_s > since:
            return 412
    not_as = request.header(prefix + b"if-none-match")
    if not_as:
        return 304 if matches(not_as, etag, weak=True) else 0
    since = _seconds(request.header(prefix + b"if-modified-since"))
    return 304 if since is not None and modified_s <= since else 0


def if_range(request: Request, etag: str, modified_s: int) -> str:
    """The Range header of a GET, or "" if it is for another version of the object (RFC 9110, section 13.1.5)."""
    wanted, only_for = request.header(b"range"), request.header(b"if-range").strip()
    if not wanted or not only_for:
        return wanted
    if only_for.startswith(('"', "W/")):
        return wanted if only_for == f'"{etag}"' else ""
    return wanted if _seconds(only_for) == modified_s else ""


def of_write(request: Request) -> tuple[bool, str]:
    """Whether the path of a write must be free, and which tags it may hold instead; "" for any.

    Raises:
        NotSupported: a combination that no write takes.
    """
    only_new, only_as = request.header(b"if-none-match"), request.header(b"if-match")
    if (only_new and only_as) or (only_new and only_new.strip() != "*"):
        raise NotSupported("Of conditions, a write takes If-None-Match: * or If-Match.")
    return bool(only_new), only_as


def refuse_write(request: Request, branch: Branch, path: str) -> None:
    """Raise what refuses a write before its bytes come: a rule, a lock, a condition that does not hold now."""
    only_new, only_as = of_write(request)
    branch._refuse_early(path)
    if only_new or only_as:
        found = branch.find(path)
        if (found is not None) if only_new else (found is None or not matches(only_as, etag_of(found), weak=False)):
            raise failed_precondition(branch.name, path, None)


def stage_conditionally(branch: Branch, path: str, entry: Entry, *, only_new: bool, only_as: str) -> None:
    """Stage an object if the path holds nothing, or an object with one of the tags.

    Raises:
        PreconditionFailed: it does not.
    """

    def holds(found: Entry | None) -> bool:
        if only_new:
            return found is None
        return found is not None and matches(only_as, etag_of(found), weak=False)

    stage_if(branch._at, path, entry, holds)


def _seconds(text: str) -> int | None:
    """Seconds since 1970 UTC of a date; None for one that is malformed, which counts as if it were not there."""
    parsed = parsedate(text) if text else None
    if parsed is None:
        return None
    try:
        return timegm(parsed)
    except (ValueError, OverflowError):
        return None
