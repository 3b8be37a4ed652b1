"""What is known of a part without reading it: for some columns the least and greatest value and the number of nulls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

COLUMNS_MAX = 16
"""Of how many columns, the first ones, statistics lie in the state of a shard; those of all lie in the parts."""
TEXT_MAX_CHARS = 32

ColumnStatistics = tuple[Any, Any, int]
"""Least value, greatest value, number of nulls; numbers for dates (days) and timestamps (in their unit), None where it
is not known."""

_decoder = msgspec.msgpack.Decoder(dict[str, ColumnStatistics])


def statistics_of(table: pa.Table, names: Sequence[str]) -> bytes:
    """Statistics of the first columns of a table, as they are kept in a part's description."""
    found = {}
    for name in names[:COLUMNS_MAX]:
        column = table.column(name)
        found[name] = (*_bounds(column), column.null_count)
    return msgspec.msgpack.encode(found)


def decoded(raw: bytes) -> Mapping[str, ColumnStatistics]:
    return _decoder.decode(raw) if raw else {}


def _bounds(column: pa.ChunkedArray) -> tuple[Any, Any]:
    kind = column.type
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        column = column.cast(pa.int32() if pa.types.is_date32(kind) else pa.int64())
    elif not (
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_string(kind) or pa.types.is_boolean(kind)
    ):
        return None, None
    found = pc.min_max(column).as_py()
    low, high = found["min"], found["max"]
    if isinstance(low, float) and not (low == low and high == high):
        return None, None  # NaN is in no order
    if isinstance(low, str):
        return low[:TEXT_MAX_CHARS], high if len(high) <= TEXT_MAX_CHARS else None
    if isinstance(low, int) and not isinstance(low, bool) and not (low >= -(2**63) and high < 2**63):
        return None, None
    return low, high
