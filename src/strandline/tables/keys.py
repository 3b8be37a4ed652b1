"""Rows named by their keys: a frame of values as a condition, instead of a text with all of them in it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property, reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from strandline.engines import engine
from strandline.errors import UsageError
from strandline.tables.columns import Kind, arrow_type, kind_of, type_name
from strandline.tables.condition import ANYTHING, Condition, Spans, Truth
from strandline.tables.given import (
    ArrowData,
    data_of,
    is_spark_column,
    is_spark_frame,
    plain_type,
    plain_values,
    reason_of,
)
from strandline.tables.record import Field, TableRecord

KINDS: tuple[Kind, ...] = ("integer", "decimal", "string", "date", "timestamp", "timestamp_ntz", "boolean")
"""Whose values are equal or not whichever engine asks; of floating numbers NaN and -0.0 are not."""


@dataclass(frozen=True)
class Among(Condition):
    """Whether the values of some columns of a row are those of one of many keys.

    A row with a null in one of the columns has no key; as everywhere in SQL a null equals nothing.

    Attributes:
        keys: one column for each of the table's that are compared, in its types; sorted, each key once, no nulls.
    """

    keys: pa.Table

    def judge(self, spans: Spans) -> Truth:
        known = [spans.get(name, ANYTHING) for name in self.keys.column_names]
        if any(not span.has_values for span in known):
            return Truth(true=False, false=True, null=False)
        is_bounded = all(span.low is not None and span.high is not None for span in known)
        is_point = is_bounded and all(span.low == span.high and not span.has_nulls for span in known)
        found = self._any_within(known)
        return Truth(true=found, false=not (is_point and found), null=False)

    def _any_within(self, spans: Sequence[Any]) -> bool:
        """Whether a key lies between the bounds of all columns. Keys are sorted, so the first column is a search."""
        first, *others = (_bounds(span) for span in spans)
        start, end = 0, len(self._first)
        if first is not None:
            start, end = bisect_left(self._first, first[0]), bisect_right(self._first, first[1])
        part = self._comparable.slice(start, end - start)
        for at, bounds in enumerate(others, start=1):
            if not len(part):
                return False
            if bounds is None:
                continue
            column = part.column(at)
            try:
                low, high = (pa.scalar(bound, column.type) for bound in bounds)
            except (pa.ArrowException, OverflowError):
                continue  # the name of a folder may be a value that no row can have
            part = part.filter(pc.and_(pc.greater_equal(column, low), pc.less_equal(column, high)))
        return len(part) > 0

    @cached_property
    def _comparable(self) -> pa.Table:
        """The keys as numbers and texts that compare with bounds of files, however far out these are."""
        columns = []
        for column in self.keys.columns:
            if pa.types.is_timestamp(column.type) or pa.types.is_integer(column.type):
                column = column.cast(pa.int64())
            elif pa.types.is_date32(column.type):
                column = column.cast(pa.int32()).cast(pa.int64())
            elif pa.types.is_decimal(column.type):
                column = column.cast(pa.decimal256(76, column.type.scale))
            columns.append(column)
        return pa.table(columns, names=self.keys.column_names)

    @cached_property
    def _first(self) -> list[Any]:
        values: list[Any] = self._comparable.column(0).to_pylist()
        return values

    def arrow(self) -> pc.Expression:
        columns = [(pc.field(name), self.keys.column(name)) for name in self.keys.column_names]
        each = [pc.is_in(field, value_set=values.combine_chunks(), skip_nulls=True) for field, values in columns]
        if len(columns) == 1:
            return each[0]
        # Arrow has no sets of rows: so a row is its values as one text, with their lengths, which no other row has
        texts = pc.binary_join_element_wise(*_parts([field for field, _ in columns]), "")
        known = pc.binary_join_element_wise(*_parts([values for _, values in columns]), "")
        whole = pc.is_in(texts, value_set=known.combine_chunks(), skip_nulls=True)
        return reduce(lambda left, right: left & right, [*each, whole])

    def columns(self) -> set[str]:
        return set(self.keys.column_names)


def _parts(columns: Sequence[Any]) -> list[Any]:
    made = []
    for column in columns:
        text = column.cast(pa.string())
        made += [pc.utf8_length(text).cast(pa.string()), ":", text]
    return made


@dataclass(frozen=True)
class Unfulfilled(Condition):
    """Whether another condition is not true for a row: false, or null."""

    part: Condition

    def judge(self, spans: Spans) -> Truth:
        inner = self.part.judge(spans)
        return Truth(true=inner.false or inner.null, false=inner.true, null=False)

    def arrow(self) -> pc.Expression:
        return ~pc.coalesce(self.part.arrow(), pc.scalar(False))

    def columns(self) -> set[str]:
        return self.part.columns()


def told(where: object, condition: Condition) -> str:
    """A condition in a few words, for sentences and for the history of a table."""
    if isinstance(condition, Among):
        return f"{', '.join(condition.keys.column_names)} among {condition.keys.num_rows:,} keys"
    return str(where).removeprefix("Column<'").removesuffix("'>") if is_spark_column(where) else str(where)


_EPOCH = date(1970, 1, 1)


def _bounds(span: Any) -> tuple[Any, Any] | None:
    """The least and the greatest value of a column, days as their number since 1970; None if they are not known."""
    if span.low is None or span.high is None:
        return None
    if isinstance(span.low, date) and isinstance(span.high, date):
        return (span.low - _EPOCH).days, (span.high - _EPOCH).days
    return span.low, span.high


def among(keys: object, record: TableRecord) -> Among:
    """The condition that a row has one of some keys.

    Args:
        keys: a Spark DataFrame, which is computed once and brought to this process; or an Arrow table, a Polars or
            pandas frame, or what else `Table.write` takes. Its columns are some of the table's.

    Raises:
        UsageError: it is not a frame, or its columns or values are not those of the table's columns.
    """
    if is_spark_frame(keys):
        names = _named(keys.columns, record)  # type: ignore[attr-defined]
        found: pa.Table = engine("spark").collected(keys)
    else:
        data = _data_of(keys)
        names = _named(data.schema.names, record)
        found = pa.Table.from_batches(data.batches(), data.schema)
    fields = {field["name"]: field for field in record.fields}
    columns = [_as_in_table(found.column(at), fields[name]) for at, name in enumerate(names)]
    typed = pa.table(columns, names=names)
    return Among(typed.group_by(names).aggregate([]).sort_by([(name, "ascending") for name in names]))


def _data_of(keys: object) -> ArrowData:
    try:
        return data_of(keys)
    except UsageError as error:
        raise UsageError(
            f"where= is a condition as a text, or a frame of keys, not of type {type(keys).__name__}.",
            next='For example where="month = 3", or a frame with the column month; of one column of pandas or Polars, '
            "its to_frame(). A Spark column is a condition for to_spark, and for writes of Spark frames.",
        ) from error


def _named(given: Sequence[str], record: TableRecord) -> list[str]:
    """The table's own names of the columns of keys; upper and lower case do not matter, as in SQL."""
    held = {name.lower(): name for name in record.names}
    unknown = [name for name in given if name.lower() not in held]
    names = [held[name.lower()] for name in given if name.lower() in held]
    if unknown or not names or len(set(names)) < len(names):
        what = f"column {unknown[0]!r}" if unknown else "no column, or one twice"
        raise UsageError(
            f"The keys have {what}, and the columns of the table are {', '.join(record.names)}.",
            next="Select the columns by which rows are compared.",
        )
    for field in record.fields:
        if field["name"] in names and kind_of(field) not in KINDS:
            raise UsageError(
                f"Column {field['name']!r} is of type {type_name(field['type'])}, by which rows are not told apart.",
                next="Use keys of texts, whole numbers, decimals, dates, moments or booleans.",
            )
    return names


_FITTING: Mapping[str, Callable[[pa.DataType], bool]] = {
    "integer": pa.types.is_integer,
    "decimal": lambda kind: pa.types.is_integer(kind) or pa.types.is_decimal(kind),
    "string": lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind),
    "date": pa.types.is_date,
    "timestamp": lambda kind: pa.types.is_timestamp(kind) and kind.tz is not None,
    "timestamp_ntz": lambda kind: pa.types.is_timestamp(kind) and kind.tz is None,
    "boolean": pa.types.is_boolean,
}
"""Of which types keys are whose values are the same ones as those of a column. A day is not the moment that it begins
with, and a moment without a zone is another one in each session."""


def _as_in_table(column: pa.ChunkedArray, field: Field) -> pa.ChunkedArray:
    name, kind = field["name"], field["type"]
    plain = pa.chunked_array([plain_values(chunk) for chunk in column.chunks], type=plain_type(column.type))
    if plain.null_count:
        raise UsageError(
            f"The keys have a null in column {name!r}, which equals nothing.",
            next=f'Take such keys out; a text can say it: where="{name} IS NULL".',
        )
    compared = kind_of(field)
    assert compared is not None
    if not _FITTING[compared](plain.type) and len(plain):
        raise UsageError(
            f"The keys have values of type {plain.type} in column {name!r}, which is {type_name(kind)} in the table.",
            next="Cast them; moments of a column with a time zone need one: tz_localize, replace_time_zone, cast.",
        )
    wanted = arrow_type(kind, name)
    try:
        if pa.types.is_decimal(wanted):
            plain = plain.cast(pa.decimal256(76, max(wanted.scale, getattr(plain.type, "scale", 0))))
        return plain.cast(wanted)
    except (pa.ArrowException, TypeError) as error:
        raise UsageError(
            f"The keys have a value in column {name!r} that the table's type {type_name(kind)} does not have: "
            f"{reason_of(error)}.",
            next="Take it out; no row has it.",
        ) from error
