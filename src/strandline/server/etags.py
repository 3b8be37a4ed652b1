"""Objects' entity tags and dates as HTTP shows them."""

from __future__ import annotations

from email.utils import formatdate

from strandline.results.rows import ObjectInfo
from strandline.tree.rows import Entry

BLAKE3_SHOWN = 32


def etag_of(found: ObjectInfo | Entry) -> str:
    """An object's entity tag, without quotes: its MD5, or S3's form for uploads in parts, if a client wrote it.

    Of what a program wrote without the server it is half of the BLAKE3 checksum and "-0": the dash says to clients of
    S3 that this is no MD5, which they would compare with one of their own.
    """
    if found.etag is not None:
        return found.etag
    kind, _, value = found.checksum.partition(":")
    if kind == "blake3":
        return value[:BLAKE3_SHOWN] + "-0"
    return value.strip('"') or kind


LAST_DAY_S = 253_402_300_799
"""The last second of the year 9999: no date of HTTP is later."""


def http_date(us: int) -> bytes:
    """A time in microseconds since 1970 UTC as HTTP writes it; one that has no such date, as the nearest that has."""
    return formatdate(min(max(us // 1_000_000, 0), LAST_DAY_S), usegmt=True).encode()


def matches(header: str, etag: str, *, weak: bool) -> bool:
    """Whether a header such as If-Match names a tag, or any.

    Args:
        weak: whether `W/"x"` is the same as `"x"`, as in If-None-Match.
    """
    if header.strip() == "*":
        return True
    for part in header.split(","):
        text = part.strip()
        if text.startswith("W/"):
            if not weak:
                continue
            text = text[2:]
        if text.strip('"') == etag:
            return True
    return False
