"""Half-open ranges of paths, and sets of them. Paths are compared by code points, whose order is that of UTF-8."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from strandline.errors import InvalidName, LockInvalid
from strandline.ids import check_path, check_prefix, prefix_end


class Range(msgspec.Struct, frozen=True, array_like=True):
    """`start <= path < end`; an end of None lies behind all paths."""

    start: str
    end: str | None

    def __str__(self) -> str:
        if self.end is None:
            return "all paths" if not self.start else f"all paths from {self.start!r}"
        if self.end == prefix_end(self.start):
            return repr(self.start) if self.start.endswith("/") else f"below {self.start!r}"
        return repr(self.start) if self.end == self.start + "\0" else f"{self.start!r} to {self.end!r}"

    def has(self, path: str) -> bool:
        """Whether a path lies in the range."""
        return self.start <= path and (self.end is None or path < self.end)

    def overlaps(self, other: Range) -> bool:
        """Whether two ranges have a path in common."""
        return (other.end is None or self.start < other.end) and (self.end is None or other.start < self.end)

    def clipped(self, other: Range) -> Range:
        """What it has in common with a range that it overlaps."""
        ends = [end for end in (self.end, other.end) if end is not None]
        return Range(max(self.start, other.start), min(ends, default=None))

    def first_of(self, keys: Sequence[bytes]) -> bytes | None:
        """The first of some sorted keys that lies in it."""
        at = bisect_left(keys, self.start.encode())
        return keys[at] if at < len(keys) and (self.end is None or keys[at] < self.end.encode()) else None


ALL = Range("", None)
ADVICE = "A range is a prefix, or a pair of paths with start < end; an end of None lies behind all paths."
Wanted = str | tuple[str, str | None] | Range
"""What a caller may name: a prefix, a pair of start and end, or a range."""


def single(path: str) -> Range:
    return Range(path, path + "\0")


def as_ranges(wanted: Wanted | Iterable[Wanted]) -> tuple[Range, ...]:
    """Sorted, disjoint ranges, of which adjacent ones are joined.

    Raises:
        LockInvalid: none, one that is empty or inverted, or one with bounds that no path can have.
    """
    some: Any = [wanted] if isinstance(wanted, str | Range) or _is_pair(wanted) else wanted
    if not isinstance(some, Iterable) or (isinstance(some, tuple | dict) and not _holds_ranges(some)):
        raise LockInvalid(f"{wanted!r} is not a range of paths.", next=ADVICE)
    ranges = sorted(map(_as_range, some), key=lambda one: one.start)
    if not ranges:
        raise LockInvalid("No range is named.", next="Name a prefix such as 'tables/flights/', or a pair of paths.")
    joined = ranges[:1]
    for range in ranges[1:]:
        last = joined[-1]
        if last.end is None or range.start <= last.end:
            ends = (last.end, range.end)
            joined[-1] = Range(last.start, None if None in ends else max(filter(None, ends)))
        else:
            joined.append(range)
    return tuple(joined)


def _holds_ranges(some: object) -> bool:
    """Whether a tuple holds ranges, as results do; a tuple of texts that is not a pair may mean anything."""
    return isinstance(some, tuple) and all(isinstance(one, Range) or _is_pair(one) for one in some)


def _is_pair(wanted: object) -> bool:
    if not isinstance(wanted, tuple) or len(wanted) != 2:
        return False
    start, end = wanted
    return isinstance(start, str) and (end is None or isinstance(end, str))


def _as_range(wanted: Wanted) -> Range:
    if isinstance(wanted, str):
        start, end = wanted, prefix_end(wanted) if wanted else None
    elif isinstance(wanted, Range):
        start, end = wanted.start, wanted.end
    elif _is_pair(wanted):
        start, end = wanted
    else:
        raise LockInvalid(f"{wanted!r} is not a range of paths.", next=ADVICE)
    try:
        check_prefix(start)
        if end is not None and end != start + "\0":
            check_path(end)
    except InvalidName as error:
        raise LockInvalid(f"A range lies outside the key space: {error.what}", next=ADVICE) from None
    if end is not None and end <= start:
        what = "empty" if end == start else "inverted"
        raise LockInvalid(f"The range from {start!r} to {end!r} is {what}.", next=ADVICE)
    return Range(start, end)


def around(ranges: Sequence[Range], path: str) -> Sequence[Range]:
    """The one of some sorted, disjoint ranges that can have a path."""
    at = bisect_right(ranges, path, key=lambda one: one.start)
    return ranges[max(0, at - 1) : at]


def overlap(some: Sequence[Range], others: Sequence[Range]) -> bool:
    return any(one.overlaps(other) for one in some for other in others)


def told(ranges: Sequence[Range]) -> str:
    """For messages."""
    shown = ", ".join(map(str, ranges[:3]))
    return f"{shown} and {len(ranges) - 3} more" if len(ranges) > 3 else shown
