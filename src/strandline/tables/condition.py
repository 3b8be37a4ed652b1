"""Conditions on the rows of a table: which files they can exclude, and their form for Arrow.

A condition is a small tree, which `condition_text` reads from SQL. It is judged on what is known of a file (its
partition values, the least and greatest value of its columns), and answers which of SQL's three truth values can occur
in it. What it does not understand may be anything, so that a file is left out only where no row can match.
"""

from __future__ import annotations

import operator
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from strandline.errors import UsageError
from strandline.tables.columns import Kind
from strandline.tables.record import TableRecord

Value = Any
"""A Python value of a column's kind: int, float, Decimal, str, date, bool; of timestamps, microseconds since 1970."""


@dataclass(frozen=True, slots=True)
class Span:
    """What is known of a column in a file.

    Attributes:
        low, high: bounds of its values; None if they are not known, or if all are null.
        has_nulls, has_values: whether there may be any.
    """

    low: Value = None
    high: Value = None
    has_nulls: bool = True
    has_values: bool = True


ANYTHING = Span()
Spans = Mapping[str, Span]


@dataclass(frozen=True, slots=True)
class Truth:
    """Which truth values a condition can have for the rows of a file."""

    true: bool = True
    false: bool = True
    null: bool = True


UNKNOWN = Truth()


class Condition(ABC):
    """A node of a condition."""

    @abstractmethod
    def judge(self, spans: Spans) -> Truth:
        """Which truth values can occur where columns have these spans."""

    @abstractmethod
    def arrow(self) -> pc.Expression:
        """The same for Arrow, whose own rules on NaN and nulls are made those of Spark."""

    @abstractmethod
    def columns(self) -> set[str]: ...


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    kind: Kind
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class Comparison(Condition):
    """A column against a value that is not null."""

    column: Column
    operator: str
    value: Value

    def judge(self, spans: Spans) -> Truth:
        span = spans.get(self.column.name, ANYTHING)
        if not span.has_values:
            return Truth(true=False, false=False, null=True)
        if span.low is None or span.high is None:
            return Truth(null=span.has_nulls)
        always, never = _certainty(self.operator, span.low, span.high, self.value)
        return Truth(true=not never, false=not always, null=span.has_nulls)

    def arrow(self) -> pc.Expression:
        field = pc.field(self.column.name)
        if self.column.kind == "integer" and isinstance(self.value, Decimal):
            return field == field if self.operator == "!=" else field != field  # no integer is a fraction
        found: pc.Expression = _ARROW_OPERATORS[self.operator](field, self._scalar())
        if self.column.kind == "float" and self.operator in (">", ">="):
            found = found | pc.is_nan(field)  # NaN is greater than any number
        return found

    def _scalar(self) -> pa.Scalar:
        if self.column.kind in ("timestamp", "timestamp_ntz"):
            return pa.scalar(self.value, pa.int64()).cast(self.column.type)
        if self.column.kind in ("integer", "float", "decimal"):
            return pa.scalar(self.value)  # compared in a type that holds both sides
        return pa.scalar(self.value, self.column.type)

    def columns(self) -> set[str]:
        return {self.column.name}


_ARROW_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def _certainty(symbol: str, low: Value, high: Value, value: Value) -> tuple[bool, bool]:
    """Whether `x symbol value` is true for all of low..high, and whether it is true for none."""
    if symbol == "=":
        return low == value == high, value < low or value > high
    if symbol == "!=":
        return value < low or value > high, low == value == high
    if symbol == "<":
        return high < value, low >= value
    if symbol == "<=":
        return high <= value, low > value
    if symbol == ">":
        return low > value, high <= value
    return low >= value, high < value


@dataclass(frozen=True, slots=True)
class IsNull(Condition):
    column: Column

    def judge(self, spans: Spans) -> Truth:
        span = spans.get(self.column.name, ANYTHING)
        return Truth(true=span.has_nulls, false=span.has_values, null=False)

    def arrow(self) -> pc.Expression:
        return pc.field(self.column.name).is_null()

    def columns(self) -> set[str]:
        return {self.column.name}


@dataclass(frozen=True, slots=True)
class Like(Condition):
    """A text column against a pattern of SQL's LIKE."""

    column: Column
    pattern: str

    def judge(self, spans: Spans) -> Truth:
        span = spans.get(self.column.name, ANYTHING)
        start = re.split(r"[%_\\]", self.pattern, maxsplit=1)[0]
        if not span.has_values:
            return Truth(true=False, false=False)
        if span.low is None or span.high is None:
            return Truth(null=span.has_nulls)
        is_outside = span.high < start or span.low[: len(start)] > start
        return Truth(true=not is_outside, null=span.has_nulls)

    def arrow(self) -> pc.Expression:
        return pc.match_like(pc.field(self.column.name), self.pattern)

    def columns(self) -> set[str]:
        return {self.column.name}


@dataclass(frozen=True, slots=True)
class Flag(Condition):
    """A boolean column as a condition, or a constant."""

    column: Column | None
    constant: bool | None = None

    def judge(self, spans: Spans) -> Truth:
        if self.column is not None:
            return Comparison(self.column, "=", True).judge(spans)
        return Truth(self.constant is True, self.constant is False, self.constant is None)

    def arrow(self) -> pc.Expression:
        return pc.scalar(pa.scalar(self.constant, pa.bool_())) if self.column is None else pc.field(self.column.name)

    def columns(self) -> set[str]:
        return set() if self.column is None else {self.column.name}


@dataclass(frozen=True, slots=True)
class Not(Condition):
    part: Condition

    def judge(self, spans: Spans) -> Truth:
        inner = self.part.judge(spans)
        return Truth(inner.false, inner.true, inner.null)

    def arrow(self) -> pc.Expression:
        return ~self.part.arrow()

    def columns(self) -> set[str]:
        return self.part.columns()


@dataclass(frozen=True, slots=True)
class And(Condition):
    parts: tuple[Condition, ...]

    def judge(self, spans: Spans) -> Truth:
        judged = [part.judge(spans) for part in self.parts]
        return Truth(all(t.true for t in judged), any(t.false for t in judged), any(t.null for t in judged))

    def arrow(self) -> pc.Expression:
        return reduce(operator.and_, (part.arrow() for part in self.parts))

    def columns(self) -> set[str]:
        return set().union(*(part.columns() for part in self.parts))


@dataclass(frozen=True, slots=True)
class Or(Condition):
    parts: tuple[Condition, ...]

    def judge(self, spans: Spans) -> Truth:
        judged = [part.judge(spans) for part in self.parts]
        return Truth(any(t.true for t in judged), all(t.false for t in judged), any(t.null for t in judged))

    def arrow(self) -> pc.Expression:
        return reduce(operator.or_, (part.arrow() for part in self.parts))

    def columns(self) -> set[str]:
        return set().union(*(part.columns() for part in self.parts))


@dataclass(frozen=True, slots=True)
class NotUnderstood(Condition):
    """A part that only Spark evaluates; it may be anything."""

    text: str

    def judge(self, spans: Spans) -> Truth:
        return UNKNOWN

    def arrow(self) -> NoReturn:
        raise UsageError(
            f"The part {self.text!r} of the condition is understood by Spark only.",
            next="Use comparisons with values, IN, BETWEEN, LIKE, IS NULL, AND, OR and NOT; or read with to_spark.",
        )

    def columns(self) -> set[str]:
        return set()


def can_match(condition: Condition | None, spans: Spans) -> bool:
    return condition is None or condition.judge(spans).true


def must_match(condition: Condition, spans: Spans) -> bool:
    """Whether a condition is true for all rows of a file."""
    truth = condition.judge(spans)
    return truth.true and not truth.false and not truth.null


def refused(text: str, record: TableRecord, reason: str) -> UsageError:
    return UsageError(
        f"The condition {text!r} does not fit the table: {reason}.",
        next=f"Its columns are {', '.join(record.names)}.",
    )
