"""Updates as Arrow tables: the columns of key and value, then `_time` and `_diff`, both 64-bit integers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.errors import InvalidBounds, SchemaMismatch, UsageError
from strandline.shards.rows.codec import DIFF, RESERVED, TIME, Codec, described, whole_numbers
from strandline.shards.rows.repeats import may_repeat
from strandline.shards.state.frontier import antichain

INT64 = pa.int64()
HASHED_ROWS = 1_000
"""From this many updates on it is worth finding out which of them can have others to be added to."""
THREADED_ROWS = 100_000
"""With fewer, starting the threads takes longer than the work."""


def update_schema(schema: pa.Schema) -> pa.Schema:
    """The schema of updates of rows with a schema."""
    return pa.schema([*schema, pa.field(TIME, INT64, False), pa.field(DIFF, INT64, False)])


def as_updates(given: Any, codec: Codec, default_time: int) -> pa.Table:
    """What a caller gives as updates, as a table.

    Args:
        given: a table or batches of Arrow, or anything with Arrow's C stream interface, with the columns of the schema
            and perhaps `_time` (by default the lower bound of the append) and `_diff` (by default 1); or an iterable of
            `((key, value), time, diff)`.

    Raises:
        SchemaMismatch: columns are missing, or do not fit.
    """
    if isinstance(given, pa.RecordBatch):
        given = pa.Table.from_batches([given])
    elif not isinstance(given, pa.Table):
        if hasattr(given, "__arrow_c_stream__"):
            given = pa.table(given)
        else:
            rows = list(given)
            if rows and isinstance(rows[0], pa.RecordBatch):
                given = pa.Table.from_batches(rows)
            else:
                return _from_tuples(rows, codec)
    return _from_columns(given, codec.schema, default_time)


def _from_columns(given: pa.Table, schema: pa.Schema, default_time: int) -> pa.Table:
    unknown = [name for name in given.column_names if name not in schema.names and name not in RESERVED]
    missing = [field.name for field in schema if field.name not in given.column_names and not field.nullable]
    if unknown or missing:
        what = f"{unknown[0]!r} is not a column of the shard" if unknown else f"the column {missing[0]!r} is missing"
        raise SchemaMismatch(f"The updates do not fit: {what}.", next=f"Its schema is {described(schema)}.")
    if not any(name in given.column_names for name in schema.names):
        raise SchemaMismatch("The updates have no column of the shard.", next=f"Its schema is {described(schema)}.")
    columns = []
    for field in schema:
        if field.name not in given.column_names:
            columns.append(pa.chunked_array([pa.nulls(given.num_rows, field.type)]))
            continue
        column = _cast(given.column(field.name), field.type, field.name)
        if column.null_count and not field.nullable:
            raise SchemaMismatch(f"Column {field.name!r} holds nulls, which the schema forbids.")
        columns.append(column)
    for name, default in ((TIME, default_time), (DIFF, 1)):
        if name in given.column_names:
            column = _cast(given.column(name), INT64, name)
            if column.null_count:
                raise SchemaMismatch(f"Column {name!r} holds nulls.")
        else:
            column = pa.chunked_array([pa.repeat(pa.scalar(default, INT64), given.num_rows)])
        columns.append(column)
    return pa.table(columns, schema=update_schema(schema))


def _cast(column: pa.ChunkedArray, kind: pa.DataType, name: str) -> pa.ChunkedArray:
    if column.type == kind:
        return column
    if not _is_akin(column.type, kind):
        raise SchemaMismatch(f"Column {name!r} is {column.type}, not {kind}.", next=f"Cast it to {kind} first.")
    try:
        return column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:  # a value does not fit; Arrow knows no such cast
        raise SchemaMismatch(f"Column {name!r} is {column.type} and cannot become {kind}: {error}.") from error


def _is_akin(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values of a type may be meant as another's: numbers for numbers, texts for texts. Arrow casts more."""
    if pa.types.is_dictionary(given):
        given = given.value_type
    return pa.types.is_null(given) or _family(given) == _family(wanted)


def _family(kind: pa.DataType) -> object:
    is_of = pa.types
    if is_of.is_integer(kind) or is_of.is_floating(kind) or is_of.is_decimal(kind):
        return "number"
    if is_of.is_string(kind) or is_of.is_large_string(kind) or is_of.is_string_view(kind):
        return "text"
    if is_of.is_binary(kind) or is_of.is_large_binary(kind) or is_of.is_fixed_size_binary(kind):
        return "bytes"
    if is_of.is_date(kind) or is_of.is_timestamp(kind):
        return "moment"
    return kind.id


def _from_tuples(rows: Sequence[Any], codec: Codec) -> pa.Table:
    try:
        pairs = [(row[0][0], row[0][1]) for row in rows]
        times = pa.array(whole_numbers([row[1] for row in rows]), INT64)
        diffs = pa.array(whole_numbers([row[2] for row in rows]), INT64)
    except (TypeError, IndexError, KeyError, pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise UsageError(
            "Updates are tuples ((key, value), time, diff), or an Arrow table.",
            next=f"Here: {codec.shape}, of {described(codec.schema)}.",
        ) from error
    if times.null_count or diffs.null_count:
        raise UsageError("The time and the diff of an update cannot be None.")
    return pa.table([*codec.to_columns(pairs), times, diffs], schema=update_schema(codec.schema))


def check_bounds(table: pa.Table, lower: int, upper: int) -> None:
    """Demand that all times are in [lower, upper).

    Raises:
        InvalidBounds: a time is not.
    """
    if lower > upper:
        raise InvalidBounds(
            f"The upper {antichain(upper)} lies below the lower {antichain(lower)}.", next="Uppers only move forward."
        )
    if not table.num_rows:
        return
    if lower == upper:
        raise InvalidBounds(
            f"Between {antichain(lower)} and {antichain(upper)} there is no time for {table.num_rows:,} updates.",
            next="Give a new_upper beyond the expected one.",
        )
    first, last = time_bounds(table)
    if first < lower:
        raise InvalidBounds(f"An update has the time {first}, before the lower {antichain(lower)}.")
    if last >= upper:
        raise InvalidBounds(f"An update has the time {last}, at or beyond the upper {antichain(upper)}.")


def time_bounds(table: pa.Table) -> tuple[int, int]:
    """The least and the greatest time of a table with rows."""
    found = pc.min_max(table.column(TIME)).as_py()
    return found["min"], found["max"]


def advanced(table: pa.Table, time: int) -> pa.Table:
    """Times before `time` become it: what is read as of a later time does not tell them apart."""
    at = table.schema.get_field_index(TIME)
    moved = pc.max_element_wise(table.column(TIME), pa.scalar(time, INT64))
    return table.set_column(at, table.schema.field(at), moved)


def consolidated(table: pa.Table, by_time: bool = True) -> pa.Table:
    """One update for each (key, value, time), with the sum of the diffs, none where it is 0.

    Args:
        by_time: False if all times are the same, or are to be taken as the same: the first one found stays.
    """
    if table.num_rows >= HASHED_ROWS:
        keys = [name for name in table.column_names if name not in RESERVED or (by_time and name == TIME)]
        repeats = may_repeat(table, keys)
        if repeats is None:
            return _without_zeros(table)
        if repeats.sum() * 2 < table.num_rows:
            mask = pa.array(repeats)
            alone = _without_zeros(table.filter(pc.invert(mask)))
            return pa.concat_tables([alone, _grouped(table.filter(mask), by_time)])
    return _grouped(table, by_time) if table.num_rows > 1 else _without_zeros(table)


def _grouped(table: pa.Table, by_time: bool) -> pa.Table:
    rows = [name for name in table.column_names if name not in RESERVED]
    keys = [*rows, TIME] if by_time else rows
    aggregates = [(DIFF, "sum")] if by_time else [(TIME, "min"), (DIFF, "sum")]
    grouped = table.group_by(keys, use_threads=table.num_rows > THREADED_ROWS).aggregate(aggregates)
    columns = [grouped.column(name) for name in rows]
    columns.append(grouped.column(TIME if by_time else f"{TIME}_min"))
    columns.append(grouped.column(f"{DIFF}_sum"))
    return _without_zeros(pa.table(columns, schema=table.schema))


def _without_zeros(table: pa.Table) -> pa.Table:
    diffs = table.column(DIFF)
    if not table.num_rows or pc.min_max(diffs).as_py()["min"] > 0:
        return table
    return table.filter(pc.not_equal(diffs, 0))


def in_order(table: pa.Table, key: Sequence[str]) -> pa.Table:
    """The updates in the order of key and time; untouched if they have it already."""
    if table.num_rows < 2 or is_ascending(table.column(key[0])):
        return table
    order = pc.sort_indices(table, [(name, "ascending") for name in (*key, TIME)])
    return table.take(order).combine_chunks()


def is_ascending(column: pa.ChunkedArray) -> bool:
    """Whether each value is greater than the one before, so that no two are the same; of numbers without nulls only."""
    if column.null_count or not (pa.types.is_integer(column.type) or pa.types.is_timestamp(column.type)):
        return False
    before: Any = None
    for chunk in column.chunks:
        values = chunk.cast(INT64).to_numpy() if pa.types.is_timestamp(chunk.type) else chunk.to_numpy()
        if not len(values):
            continue
        if before is not None and values[0] <= before:
            return False
        if not np.all(values[1:] > values[:-1]):
            return False
        before = values[-1]
    return True


def tidy(table: pa.Table, key: Sequence[str]) -> pa.Table:
    """Updates as a sorted part holds them: consolidated, and in the order of key and time."""
    if is_ascending(table.column(key[0])):  # no two updates are of the same row, and all are in order
        return _without_zeros(table)
    return in_order(consolidated(table), key)


def concatenated(tables: Iterable[pa.Table], schema: pa.Schema) -> pa.Table:
    found = list(tables)
    return pa.concat_tables(found) if found else update_schema(schema).empty_table()
