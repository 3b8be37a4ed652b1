"""Which rows may occur more than once: found by hashing and sorting, far faster than grouping when few do."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_ODD = np.uint64(0x9E3779B97F4A7C15)
"""2^64 divided by the golden ratio: multiplicative hashing after Knuth, TAOCP vol. 3, 6.4."""
_SHIFT = np.uint64(29)
_NULL = np.uint64(0x5851F42D4C957F2D)
MANY = 0.05
"""If a larger share of the hashes occurs more than once, all rows count as repeated."""
Hashes = npt.NDArray[np.uint64]


def may_repeat(table: pa.Table, names: Sequence[str]) -> npt.NDArray[np.bool_] | None:
    """For each row whether another one may be equal to it in some columns; None if none is.

    Rows that are equal have equal hashes, so a row whose hash is alone is alone.
    """
    hashes = _hashes(table, names)
    ordered = np.sort(hashes)
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if not len(twice):
        return None
    twice = np.unique(twice)
    if len(twice) > MANY * table.num_rows:
        return np.ones(table.num_rows, np.bool_)  # looking each of them up would cost more than it saves
    at = np.searchsorted(twice, hashes)
    at[at == len(twice)] = 0
    found: npt.NDArray[np.bool_] = twice[at] == hashes
    return found


def _hashes(table: pa.Table, names: Sequence[str]) -> Hashes:
    hashes = np.zeros(table.num_rows, np.uint64)
    encoded = table.select(list(names))
    for number, name in enumerate(names):
        column = encoded.column(number)
        if not _is_fixed(column.type):
            encoded = encoded.set_column(number, name, _codes(column))
    start = 0
    for batch in encoded.to_batches():
        part = hashes[start : start + batch.num_rows]
        for column in batch.columns:
            np.bitwise_xor(part, _bits(column), out=part)
            np.multiply(part, _ODD, out=part)
            np.bitwise_xor(part, part >> _SHIFT, out=part)
        start += batch.num_rows
    return hashes


def _is_fixed(kind: pa.DataType) -> bool:
    return bool(pa.types.is_primitive(kind) and not pa.types.is_boolean(kind) and kind.bit_width in (8, 16, 32, 64))


def _codes(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A number for each distinct value."""
    if pa.types.is_boolean(column.type):
        return column.cast(pa.int8())
    encoded = column.dictionary_encode().unify_dictionaries()
    return pa.chunked_array([chunk.indices for chunk in encoded.chunks], pa.int32())


def _bits(column: pa.Array) -> Hashes:
    width = column.type.bit_width // 8
    values = np.frombuffer(column.buffers()[1], f"u{width}", len(column), column.offset * width)
    bits = values.astype(np.uint64)
    if column.null_count:  # whose bits are anything
        bits[column.is_null().to_numpy(zero_copy_only=False)] = _NULL
    return bits
