"""Checksums as HTTP shows them."""

from __future__ import annotations

from email.utils import formatdate

BLAKE3_SHOWN = 32


def etag_of(checksum: str) -> str:
    """An object's entity tag, without quotes.

    Of a BLAKE3 checksum it is the first half and "-0": the dash says to clients of S3 that this is no MD5, which they
    would compare with one of their own.
    """
    kind, _, value = checksum.partition(":")
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
