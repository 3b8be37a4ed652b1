"""Rows named by their keys: a frame of values as a condition, instead of a text with all of them in it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from strandline.engines import engine
from strandline.errors import UsageError
from strandline.tables.columns import Kind, arrow_type, kind_of
from strandline.tables.condition import ANYTHING, Condition, Spans, Truth
from strandline.tables.given import data_of, is_spark_frame, reason_of
from strandline.tables.record import TableRecord

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
        first, *others = spans
        start, end = 0, len(self._first)
        if first.low is not None and first.high is not None:
            start, end = bisect_left(self._first, first.low), bisect_right(self._first, first.high)
        part = self._comparable.slice(start, end - start)
        for at, span in enumerate(others, start=1):
            if not len(part):
                return False
            if span.low is not None and span.high is not None:
                column = part.column(at)
                low, high = (pa.scalar(bound, column.type) for bound in (span.low, span.high))
                part = part.filter(pc.and_(pc.greater_equal(column, low), pc.less_equal(column, high)))
        return len(part) > 0

    @cached_property
    def _comparable(self) -> pa.Table:
        """The keys as bounds of files are: moments as microseconds, numbers in a type that holds any bound."""
        columns = []
        for column in self.keys.columns:
            if pa.types.is_timestamp(column.type) or pa.types.is_integer(column.type):
                column = column.cast(pa.int64())
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
        each = [field.isin(values.combine_chunks()) for field, values in columns]
        if len(columns) == 1:
            return each[0]
        # Arrow has no sets of rows: so a row is its values as one text, with their lengths, which no other row has
        texts = pc.binary_join_element_wise(*_parts([field for field, _ in columns]), "")
        known = pc.binary_join_element_wise(*_parts([values for _, values in columns]), "")
        whole = texts.isin(known.combine_chunks())
        return reduce(lambda left, right: left & right, [*each, whole])

    def columns(self) -> set[str]:
        return set(self.keys.column_names)


def _parts(columns: Sequence[Any]) -> list[Any]:
    made = []
    for column in columns:
        text = column.cast(pa.string())
        made += [pc.utf8_length(text).cast(pa.string()), ":", text]
    return made


def told(where: object, condition: Condition) -> str:
    """A condition in a few words, for sentences and for the history of a table."""
    if isinstance(condition, Among):
        return f"{', '.join(condition.keys.column_names)} among {condition.keys.num_rows:,} keys"
    return str(where)


def among(keys: object, record: TableRecord) -> Among:
    """The condition that a row has one of some keys.

    Args:
        keys: a Spark DataFrame, which is computed once and brought to this process; or an Arrow table, a Polars or
            pandas frame, or what else `Table.write` takes. Its columns are some of the table's.

    Raises:
        UsageError: it is no such thing, or its columns or values are not those of the table's columns.
    """
    found = _rows_of(keys)
    names = found.column_names
    fields = {field["name"]: field for field in record.fields}
    unknown = [name for name in names if name not in fields]
    if unknown or not names or len(set(names)) < len(names):
        what = f"column {unknown[0]!r}" if unknown else "no column, or one twice"
        raise UsageError(
            f"The keys have {what}, and the columns of the table are {', '.join(record.names)}.",
            next="Select the columns by which rows are compared.",
        )
    columns = []
    for name in names:
        if kind_of(fields[name]) not in KINDS:
            raise UsageError(
                f"Column {name!r} is of type {fields[name]['type']}, by which rows are not told apart.",
                next="Use keys of texts, whole numbers, decimals, dates, moments or booleans.",
            )
        columns.append(_as_in_table(found.column(name), arrow_type(fields[name]["type"], name), name))
    typed = pa.table(columns, names=names)
    return Among(typed.group_by(names).aggregate([]).sort_by([(name, "ascending") for name in names]))


def _rows_of(keys: object) -> pa.Table:
    if is_spark_frame(keys):
        return engine("spark").collected(keys)
    try:
        data = data_of(keys)
    except UsageError as error:
        raise UsageError(
            f"where= is a condition as a text, or a frame of keys, not of type {type(keys).__name__}.",
            next='For example where="month = 3", or a frame with the column month. A Spark column is a condition for '
            "to_spark, and for writes of Spark frames.",
        ) from error
    return pa.Table.from_batches(data.batches(), data.schema)


def _as_in_table(column: pa.ChunkedArray, kind: pa.DataType, name: str) -> pa.ChunkedArray:
    if column.null_count:
        raise UsageError(
            f"The keys have a null in column {name!r}, which equals nothing.",
            next=f'Take such keys out; a text can say it: where="{name} IS NULL".',
        )
    try:
        return column.cast(kind)
    except (pa.ArrowException, TypeError) as error:
        raise UsageError(
            f"The keys have a value in column {name!r} that is none of the table's type {kind}: {reason_of(error)}.",
            next="Cast the column first.",
        ) from error
