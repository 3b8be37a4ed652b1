"""Pages of names. A token says after which name the next page begins, so it stays good while others come and go."""

from __future__ import annotations

import base64
import binascii
from bisect import bisect_right
from collections.abc import Sequence
from typing import Annotated

import msgspec

from strandline.server.refusals import BadRequest

PAGE_DEFAULT = 1_000
Name = tuple[str, ...]


class Paged(msgspec.Struct, frozen=True, rename="camel"):
    """The parameters of a page. Without a token all names are in one answer; with an empty one, the first page is."""

    page_token: str | None = None
    page_size: Annotated[int, msgspec.Meta(ge=1)] | None = None


class PagedBelow(Paged, frozen=True):
    """The parameters of a page of namespaces."""

    parent: str = ""


def page(found: Sequence[Name], query: Paged) -> tuple[Sequence[Name], str | None]:
    """Those of a page, and the token of the next one; None after the last.

    Args:
        found: all names.
    """
    found = sorted(found)  # paths lie in another order: that of "a-b/" before "a/"
    if query.page_token is None and query.page_size is None:
        return found, None
    after = _read(query.page_token or "")
    first = bisect_right(found, after) if after else 0
    size = query.page_size or PAGE_DEFAULT
    rows = found[first : first + size]
    return rows, _token(rows[-1]) if rows and first + size < len(found) else None


def _token(name: Name) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(name)).decode().rstrip("=")


def _read(token: str) -> Name:
    try:
        data = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        return msgspec.json.decode(data, type=tuple[str, ...]) if token else ()
    except (binascii.Error, msgspec.MsgspecError, ValueError):
        raise BadRequest("The page token is not one of this server.") from None
