"""Listings, in byte order, with prefix, delimiter, start and amount."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from strandline.branch.rules.ranges import Range
from strandline.ids import check_prefix, encoded, prefix_end
from strandline.results.rows import CommonPrefix, ObjectInfo, Results, check_amount
from strandline.tree.rows import SCHEMA, Entry, column, empty_rows, entries_of

WINDOW_ROWS = 10_000
"""Rows that a listing reads at a time."""
FIRST_WINDOW_ROWS = 64
"""With a delimiter the windows start small, since most of one is skipped, and grow while nothing is."""

Window = Callable[[bytes, bytes | None, int], tuple[pa.Table, bytes | None]]
"""Reads rows from a start to an end, about as many as asked; says how far they are complete, None for to the end."""


def is_folder(path: str, prefix: str, delimiter: str) -> bool:
    """Whether a listing shows this as a folder: it ends with the first delimiter after the prefix."""
    last = len(path) - len(delimiter)
    is_below = bool(delimiter) and path.startswith(prefix) and last >= len(prefix)
    return is_below and path.find(delimiter, len(prefix)) == last


class Listing(Results[ObjectInfo | CommonPrefix]):
    """The objects below a prefix."""

    _titles = ("path", "size", "modified", "checksum")

    def __init__(
        self, window: Window, prefix: str = "", delimiter: str = "", after: str = "", amount: int | None = None
    ) -> None:
        check_amount(amount, "listing", "objects")
        self._window = window
        self._prefix = prefix
        self._delimiter = delimiter
        self._amount = amount
        low, self._end = check_prefix(prefix), encoded(prefix_end(prefix))
        high = check_prefix(after)
        if is_folder(after, prefix, delimiter):
            high = encoded(prefix_end(after)) or high  # a folder that was shown is passed with all that is in it
        elif high:
            high += b"\0"
        self._start = max(low, high)

    def tables(self) -> Iterator[pa.Table]:
        """Rows as Arrow tables, without delimiter."""
        start: bytes | None = self._start
        left = self._amount
        skipped = 1
        while start is not None and (left is None or left > 0):
            # windows that show nothing passed deletions only: the next ones are larger
            limit = min(WINDOW_ROWS, WINDOW_ROWS if left is None else (left + 1) * skipped)
            rows, reach = self._window(start, self._end, limit)
            skipped = 1 if rows.num_rows else skipped * 16
            if left is not None:
                rows = rows.slice(0, left)
                left -= rows.num_rows
            if rows.num_rows:
                yield rows
            start = None if reach is None else reach + b"\0"

    def __iter__(self) -> Iterator[ObjectInfo | CommonPrefix]:
        if self._delimiter:
            yield from self._folders()
            return
        for rows in self.tables():
            yield from infos(rows)

    def _folders(self) -> Iterator[ObjectInfo | CommonPrefix]:
        start: bytes | None = self._start
        left = self._amount if self._amount is not None else -1
        size = FIRST_WINDOW_ROWS
        while start is not None and left != 0:
            rows, reach = self._window(start, self._end, size)
            size = min(WINDOW_ROWS, size * 4)
            start = None if reach is None else reach + b"\0"
            paths = column(rows, "path")
            at = 0
            while at < rows.num_rows and left != 0:
                path: str = paths[at].as_py()
                cut = path.find(self._delimiter, len(self._prefix))
                left -= 1
                if cut < 0:
                    yield next(infos(rows.slice(at, 1)))
                    at += 1
                    continue
                folder = path[: cut + len(self._delimiter)]
                yield CommonPrefix(folder)
                beyond = prefix_end(folder)
                if beyond is None:
                    return
                at = pc.search_sorted(paths, beyond).as_py()
                if at == rows.num_rows and start is not None and beyond.encode() > start:
                    start, size = beyond.encode(), FIRST_WINDOW_ROWS  # skip the rest of the folder unread

    def to_arrow(self) -> pa.Table:
        tables = list(self.tables())
        return pa.concat_tables([table.cast(SCHEMA) for table in tables]) if tables else empty_rows()

    def _cells(self, row: ObjectInfo | CommonPrefix) -> tuple[object, ...]:
        if isinstance(row, CommonPrefix):
            return row.path, None, None, None
        return row.path, row.size, row.modified_at, row.checksum


class Windowed(Protocol):
    """What can be read in windows: any ref."""

    def _window(self, start: bytes, end: bytes | None, limit: int) -> tuple[pa.Table, bytes | None]: ...


def objects_in(source: Windowed, wanted: Range) -> Iterator[tuple[str, Entry]]:
    """The objects in a range, in order."""
    start: bytes | None = wanted.start.encode()
    while start is not None:
        rows, reach = source._window(start, encoded(wanted.end), WINDOW_ROWS)
        yield from entries_of(rows.combine_chunks())
        start = None if reach is None else reach + b"\0"


def infos(rows: pa.Table) -> Iterator[ObjectInfo]:
    columns = [
        (column(rows, name).cast(pa.int64()) if name == "modified_at" else column(rows, name)).to_pylist()
        for name in SCHEMA.names
    ]
    return map(ObjectInfo, *columns)
