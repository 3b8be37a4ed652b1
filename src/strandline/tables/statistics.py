"""What is known of a data file without reading it: rows, and for some columns the least and greatest value and nulls.

It travels in the user metadata of the object, so that it branches, merges and is copied with the file that it is true
of. Parquet writes it in its footers anyway; for other formats an engine computes it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, BinaryIO

import msgspec
import pyarrow.parquet as pq

from strandline.tables.columns import Kind, kind_of
from strandline.tables.condition import Span
from strandline.tables.record import TableRecord
from strandline.tree.rows import user_metadata_json

KEY = "strandline.statistics"
TEXT_MAX_CHARS = 32
"""Longer text is cut: the least value to a prefix, the greatest to one that is followed by the last character."""
STATISTICS_MAX_BYTES = 6_000
LAST_CHARACTER = "\U0010ffff"
_EPOCH = datetime(1970, 1, 1)


class Statistics(msgspec.Struct, frozen=True):
    """Of one file.

    Attributes:
        rows: how many there are.
        columns: by name, the least value, the greatest value, and the number of nulls; None where it is not known.
    """

    rows: int
    columns: dict[str, tuple[Any, Any, int | None]] = {}


def encode_statistics(statistics: Statistics) -> str:
    """The user metadata of a file; columns at the end are left out if all of them need too much space."""
    kept = dict(statistics.columns)
    while True:
        text = msgspec.json.encode(Statistics(statistics.rows, kept))
        if len(text) <= STATISTICS_MAX_BYTES or not kept:
            found = user_metadata_json({KEY: text.decode()})
            assert found is not None
            return found
        for name in list(kept)[-max(1, len(kept) // 8) :]:
            del kept[name]


_metadata = msgspec.json.Decoder(dict[str, str])
_statistics = msgspec.json.Decoder(Statistics)


def decode_statistics(user_metadata: str | None) -> Statistics | None:
    """What a file's user metadata tells; None if there is nothing, or nothing that this version reads."""
    if not user_metadata or KEY not in user_metadata:
        return None
    try:
        return _statistics.decode(_metadata.decode(user_metadata)[KEY])
    except (msgspec.MsgspecError, KeyError):
        return None


def spans_of(statistics: Statistics | None, kinds: Mapping[str, Kind | None]) -> dict[str, Span]:
    """What statistics tell of the columns of a file."""
    if statistics is None:
        return {}
    spans = {}
    for name, (low, high, nulls) in statistics.columns.items():
        kind = kinds.get(name)
        if kind is None:
            continue
        known = low is not None and high is not None
        has_nulls = nulls is None or nulls > 0
        has_values = nulls is None or nulls < statistics.rows
        try:
            least, most = (_from_json(low, kind), _from_json(high, kind)) if known else (None, None)
        except (ValueError, TypeError, ArithmeticError):
            continue
        spans[name] = Span(least, most, has_nulls, has_values)
    return spans


def as_json(value: Any, kind: Kind | None, *, is_high: bool) -> Any:
    """A bound as it is stored; None if it is none."""
    match kind:
        case "integer" | "boolean":
            return value
        case "float":
            return None if math.isnan(value) else value if math.isfinite(value) else str(value)
        case "decimal":
            return str(value)
        case "string":
            if len(value) <= TEXT_MAX_CHARS:
                return value
            return value[:TEXT_MAX_CHARS] + (LAST_CHARACTER if is_high else "")
        case "date":
            return value.isoformat()
        case "timestamp" | "timestamp_ntz":
            return (value.replace(tzinfo=None) - _EPOCH) // timedelta(microseconds=1)
    return None


def _from_json(value: Any, kind: Kind) -> Any:
    match kind:
        case "float":
            return float(value)
        case "decimal":
            return Decimal(value)
        case "date":
            return date.fromisoformat(value)
        case "integer" | "timestamp" | "timestamp_ntz":
            # a column that was widened keeps the numbers of its old files
            return value if isinstance(value, int) else int(value)
        case "boolean":
            if not isinstance(value, bool):
                raise TypeError(value)
    return value


def columns_to_read(record: TableRecord) -> dict[str, Kind]:
    """The columns that get statistics, with the kinds by which they compare."""
    wanted = set(record.with_statistics)
    kinds = {field["name"]: kind_of(field) for field in record.stored if field["name"] in wanted}
    return {name: kind for name, kind in kinds.items() if kind is not None and kind != "binary"}


def parquet_statistics(file: BinaryIO, columns: Mapping[str, Kind]) -> Statistics:
    """Statistics from the footer of a Parquet file, which is all of it that is read."""
    return footer_statistics(pq.read_metadata(file), columns)


def footer_statistics(metadata: pq.FileMetaData, columns: Mapping[str, Kind]) -> Statistics:
    """Statistics from a footer that was read."""
    groups = range(metadata.num_row_groups)
    places = {metadata.schema.column(at).path: at for at in range(metadata.num_columns)}
    found = {}
    for name, kind in columns.items():
        if name in places:
            parts = [metadata.row_group(group).column(places[name]).statistics for group in groups]
            found[name] = _joined(parts, kind)
    return Statistics(metadata.num_rows, found)


def _joined(parts: Sequence[Any], kind: Kind) -> tuple[Any, Any, int | None]:
    """The statistics of a column from those of its row groups."""
    nulls = sum(part.null_count for part in parts) if all(p is not None and p.has_null_count for p in parts) else None
    filled = [p for p in parts if p is not None and not (p.has_null_count and not p.has_min_max and p.num_values == 0)]
    if not filled or not all(p.has_min_max for p in filled) or any(p is None for p in parts):
        return None, None, nulls
    try:
        lows, highs = [p.min for p in filled], [p.max for p in filled]
        if kind == "float" and any(value != value for value in (*lows, *highs)):
            return None, None, nulls  # a NaN hides among them
        return as_json(min(lows), kind, is_high=False), as_json(max(highs), kind, is_high=True), nulls
    except (ValueError, OverflowError):  # a date after the year 9999, text that is not UTF-8
        return None, None, nulls
