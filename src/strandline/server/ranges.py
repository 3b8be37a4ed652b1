"""The Range header, as RFC 9110 has it: one range of bytes; anything else is as if it were not there."""

from __future__ import annotations

import re

RANGE_MAX_CHARS = 64
_RANGE = re.compile(r"bytes=(\d{0,19})-(\d{0,19})", re.ASCII)


class NotSatisfiable(Exception):
    """The range lies behind the end of the object."""


def wanted_range(header: str, size: int) -> tuple[int, int] | None:
    """The bytes that are asked for, start <= i < end; None for all of them.

    Raises:
        NotSatisfiable: there are none such.
    """
    if len(header) > RANGE_MAX_CHARS:
        return None
    found = _RANGE.fullmatch(header.strip())
    if not found or not (found[1] or found[2]):
        return None
    if not found[1]:
        last = int(found[2])
        if not last or not size:
            raise NotSatisfiable
        return max(0, size - last), size
    start = int(found[1])
    if found[2] and int(found[2]) < start:
        return None  # a malformed range
    if start >= size:
        raise NotSatisfiable
    return start, min(int(found[2]) + 1, size) if found[2] else size
