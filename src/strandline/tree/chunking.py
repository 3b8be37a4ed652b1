"""Where ranges end: decided by content alone, so that equal content gives equal ranges whatever its history.

A range ends at a row whose path hashes below a threshold (a *natural* end), or at which the range reaches its cap of
rows or bytes. Nothing before the start of a range matters, so a builder that starts at the start of a range cuts the
same ranges from there. The last range of a tree may end anywhere: it is *open*, all others are closed.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from strandline.tree.rows import BoolArray, column, concat, path_hashes

MEAN_ROWS = 8_192
"""Mean rows of a range: measured as the best balance of a small commit, a look-up and a scan (docs/format.md)."""
MAX_ROWS = 4 * MEAN_ROWS
MAX_BYTES = 8 << 20
"""Cap on the raw bytes of a range, as `row_bytes` counts them."""
FIXED_ROW_BYTES = 16
THRESHOLD = np.uint32(2**32 // MEAN_ROWS)
_STRINGS = ("path", "physical_address", "checksum", "content_type", "user_metadata", "etag")


def natural_ends(paths: pa.StringArray) -> BoolArray:
    """Which paths end a range wherever they occur."""
    return path_hashes(paths) < THRESHOLD


def path_hash(path: str) -> int:
    """As `rows.path_hashes` has it."""
    return (zlib.crc32(path.encode()) * 2_654_435_761) % 2**32


def is_natural_end(path: str) -> bool:
    return path_hash(path) < int(THRESHOLD)


def is_closed(last_path: str, rows: int, raw_bytes: int) -> bool:
    """Whether nothing can be appended to a range that ends so."""
    return rows >= MAX_ROWS or raw_bytes >= MAX_BYTES or is_natural_end(last_path)


def raw_bytes(table: pa.Table) -> int:
    """Bytes of all rows: their strings, and 16 for the numbers of each."""
    total: int = FIXED_ROW_BYTES * table.num_rows
    for name in _STRINGS:
        array = column(table, name)
        if len(array):
            offsets = np.frombuffer(array.buffers()[1], np.int32)
            total += int(offsets[array.offset + len(array)] - offsets[array.offset])
    return total


def _cumulative_bytes(table: pa.Table) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    total = np.arange(1, table.num_rows + 1, dtype=np.int64) * FIXED_ROW_BYTES
    for name in _STRINGS:
        array = column(table, name)
        offsets = np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + len(array) + 1]
        total += offsets[1:].astype(np.int64) - int(offsets[0])
    return total


class Chunker:
    """Cuts a stream of sorted rows into ranges."""

    def __init__(self) -> None:
        self._pending: list[pa.Table] = []
        self._rows = 0
        self._bytes = 0

    @property
    def is_empty(self) -> bool:
        """Whether the stream stands at the start of a range."""
        return not self._pending

    def feed(self, rows: pa.Table, ends: BoolArray) -> Iterator[pa.Table]:
        """Add rows and yield the ranges that they complete.

        Args:
            rows: come after all rows fed before.
            ends: which rows are natural ends.
        """
        start = 0
        for end in np.flatnonzero(ends) + 1:
            yield from self._push(rows.slice(start, int(end) - start))
            yield from self.finish()
            start = int(end)
        if start < rows.num_rows:
            yield from self._push(rows.slice(start))

    def finish(self) -> Iterator[pa.Table]:
        """Yield what has not reached an end."""
        if self._pending:
            yield self._take()

    def _push(self, rows: pa.Table) -> Iterator[pa.Table]:
        self._pending.append(rows)
        self._rows += rows.num_rows
        self._bytes += raw_bytes(rows)
        while self._rows >= MAX_ROWS or self._bytes >= MAX_BYTES:
            whole = self._take()
            cut = min(MAX_ROWS, int(np.searchsorted(_cumulative_bytes(whole), MAX_BYTES)) + 1)
            yield whole.slice(0, cut)
            rest = whole.slice(cut)
            if rest.num_rows:
                self._pending, self._rows, self._bytes = [rest], rest.num_rows, raw_bytes(rest)

    def _take(self) -> pa.Table:
        whole = concat(self._pending)
        self._pending, self._rows, self._bytes = [], 0, 0
        return whole
