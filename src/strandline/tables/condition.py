"""Conditions on the rows of a table, as SQL text: which files they can exclude, and their form for Arrow.

A condition is read once, into a small tree. The tree is judged on what is known of a file (its partition values, the
least and greatest value of its columns), and answers which of SQL's three truth values can occur in it. What it does
not understand may be anything, so that a file is left out only where no row can match.
"""

from __future__ import annotations

import math
import operator
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from functools import reduce
from typing import Any, ClassVar, NoReturn
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc
import sqlglot
from sqlglot import exp

from strandline.errors import UsageError
from strandline.tables.columns import Kind, arrow_type, kind_of
from strandline.tables.record import Field, TableRecord

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
_MIRRORED = {"=": "=", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


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


# --- reading text -----------------------------------------------------------------------------------------------------


def parse_condition(text: str, record: TableRecord, timezone: str = "UTC") -> Condition:
    """Read SQL as Spark writes it.

    Args:
        timezone: of timestamps that name none.

    Raises:
        UsageError: it is no SQL condition, or names a column that the table does not have.
    """
    try:
        tree = sqlglot.parse_one(text, read="spark")
    except sqlglot.errors.SqlglotError as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise refused(text, record, reason) from error
    known = {field["name"].lower(): field for field in record.fields}
    for found in tree.find_all(exp.Column):
        root = found.parts[0].name
        if root.lower() not in known:
            raise refused(text, record, f"there is no column {root!r}")
    return _Reader(known, timezone).read(tree)


def condition_of_column(text: str, record: TableRecord, timezone: str) -> Condition | None:
    """What the text of a Spark `Column` says, such as "Column<'and(>(id, 5), isNull(x))'>"; None if that is not sure.

    A `Column` has no other form that is the same in Spark and Spark Connect. Its text shows calls with their
    arguments in brackets, and strings quoted; what else there may be is left to Spark.
    """
    found = re.fullmatch(r"Column<'(.*)'>", text, re.S)
    names = {name.lower() for name in record.names}
    if found is None or any(set(name) & set("(),'`\\") for name in names):
        return None
    try:
        return parse_condition(_Calls(found[1], names).whole(), record, timezone)
    except (_NoValue, UsageError):
        return None


class _Calls:
    """Rewrites calls with their arguments in brackets as SQL."""

    _TEXT = re.compile(r"'(?:[^'\\]|\\.)*'")
    _DATE = re.compile(r"\d{4}-\d\d-\d\d")
    _NUMBER = re.compile(r"-?\d+(\.\d+|L)?")
    _WORD = re.compile(r"[^(),]+")
    _INFIX = frozenset(("and", "or", "=", "<", "<=", ">", ">=", "like"))
    _AFTER: ClassVar = {"isNull": "is null", "isNotNull": "is not null"}

    def __init__(self, text: str, names: set[str]) -> None:
        self._text = text
        self._names = names
        self._at = 0

    def whole(self) -> str:
        made = self._one()
        if self._at != len(self._text):
            raise _NoValue
        return made

    def _one(self) -> str:
        if quoted := self._take(self._TEXT):
            return quoted
        word = self._take(self._WORD)
        if self._text[self._at : self._at + 1] != "(":
            return self._value(word)
        parts: list[str] = []
        while self._text[self._at : self._at + 1] in ("(", ","):
            self._at += 1
            if parts:
                self._at += self._text[self._at : self._at + 1] == " "
            parts.append(self._one())
        self._at += 1
        if self._text[self._at - 1 : self._at] != ")":
            raise _NoValue
        if word in self._INFIX and len(parts) == 2:
            return f"({parts[0]} {word} {parts[1]})"
        if word in self._AFTER and len(parts) == 1:
            return f"({parts[0]} {self._AFTER[word]})"
        if word == "!" and len(parts) == 1:
            return f"(not {parts[0]})"
        if word == "in" and len(parts) > 1:
            return f"({parts[0]} in ({', '.join(parts[1:])}))"
        raise _NoValue

    def _take(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self._at)
        if found is None:
            return ""
        self._at = found.end()
        return found[0]

    def _value(self, word: str) -> str:
        if word.lower() in self._names:
            return f"`{word}`"
        if word in ("NULL", "true", "false"):
            return word
        if self._DATE.fullmatch(word):
            return f"DATE '{word}'"
        if number := self._NUMBER.fullmatch(word):
            return word + "D" if (number[1] or "").startswith(".") else word
        raise _NoValue


def refused(text: str, record: TableRecord, reason: str) -> UsageError:
    return UsageError(
        f"The condition {text!r} does not fit the table: {reason}.",
        next=f"Its columns are {', '.join(record.names)}.",
    )


class _NoValue(Exception):
    """The value cannot be compared with the column by these rules."""


class _Reader:
    def __init__(self, fields: Mapping[str, Field], timezone: str) -> None:
        self._fields = fields
        self._timezone = timezone

    def read(self, node: exp.Expr) -> Condition:
        match node:
            case exp.Paren():
                return self.read(node.this)
            case exp.And():
                return And((self.read(node.left), self.read(node.right)))
            case exp.Or():
                return Or((self.read(node.left), self.read(node.right)))
            case exp.Not():
                return Not(self.read(node.this))
            case exp.Boolean():
                return Flag(None, bool(node.this))
            case exp.Null():
                return Flag(None)
            case exp.Column():
                column = self._column(node)
                return Flag(column) if column is not None and column.kind == "boolean" else self._any(node)
        try:
            return self._leaf(node)
        except (_NoValue, ValueError, ArithmeticError):
            return self._any(node)

    def _leaf(self, node: exp.Expr) -> Condition:
        match node:
            case exp.EQ() | exp.NEQ() | exp.LT() | exp.LTE() | exp.GT() | exp.GTE():
                symbol = _SYMBOLS[type(node)]
                column, other = self._column(node.left), node.right
                if column is None:
                    column, other, symbol = self._column(node.right), node.left, _MIRRORED[symbol]
                return self._compare(column, symbol, other)
            case exp.Between():
                column = self._column(node.this)
                low, high = node.args["low"], node.args["high"]
                return And((self._compare(column, ">=", low), self._compare(column, "<=", high)))
            case exp.In() if node.expressions:
                column = self._column(node.this)
                return Or(tuple(self._compare(column, "=", item) for item in node.expressions))
            case exp.Like() if isinstance(node.expression, exp.Literal) and node.expression.is_string:
                column = self._column(node.this)
                if column is not None and column.kind == "string":
                    return Like(column, node.expression.this)
            case exp.Is():
                column = self._column(node.this)
                if column is not None and isinstance(node.expression, exp.Null):
                    return IsNull(column)
        raise _NoValue

    def _any(self, node: exp.Expr) -> Condition:
        return NotUnderstood(node.sql(dialect="spark"))

    def _column(self, node: exp.Expr) -> Column | None:
        while isinstance(node, exp.Paren):
            node = node.this
        if not isinstance(node, exp.Column) or len(node.parts) != 1:
            return None
        field = self._fields[node.name.lower()]
        kind = kind_of(field)
        return None if kind in (None, "binary") else Column(field["name"], kind, arrow_type(field["type"], node.name))

    def _compare(self, column: Column | None, symbol: str, node: exp.Expr) -> Condition:
        if column is None:
            raise _NoValue
        value = self._value(column, node)
        if column.kind == "decimal" and isinstance(value, int):
            value = Decimal(value)
        if column.kind == "integer" and isinstance(value, Decimal):
            whole = math.ceil(value) if symbol in ("<", ">=") else math.floor(value)
            value = whole if whole == value or symbol not in ("=", "!=") else value
        return Flag(None) if value is None else Comparison(column, symbol, value)

    def _value(self, column: Column, node: exp.Expr) -> Value:
        """The value of a literal for a column, as Spark's rules of coercion make it; None for null."""
        while isinstance(node, exp.Paren):
            node = node.this
        if isinstance(node, exp.Null):
            return None
        if isinstance(node, exp.Neg):
            inner = self._value(column, node.this)
            if isinstance(inner, int | float | Decimal) and not isinstance(inner, bool):
                return -inner
            raise _NoValue
        if isinstance(node, exp.Boolean) and column.kind == "boolean":
            return bool(node.this)
        if isinstance(node, exp.Cast | exp.Date | exp.Timestamp) and isinstance(node.this, exp.Literal):
            return self._cast(column, node)
        if not isinstance(node, exp.Literal):
            raise _NoValue
        if node.is_string:
            if column.kind in ("integer", "float", "decimal"):
                raise _NoValue  # which of the two sides is cast, and how, depends on the session
            return value_of(node.this, column.kind, self._timezone)
        if column.kind in ("integer", "decimal") and re.search(r"[eE]", node.this):
            raise _NoValue  # Spark compares as double, and so does not see all digits
        if column.kind in ("integer", "decimal"):
            return _number(node.this)
        if column.kind == "float":
            return float(node.this)  # as Spark does, which makes both sides doubles
        raise _NoValue

    def _cast(self, column: Column, node: exp.Expr) -> Value:
        target = node.args["to"].sql("spark").lower() if isinstance(node, exp.Cast) else type(node).__name__.lower()
        text = node.this.this
        if not node.this.is_string:
            if (target, column.kind) == ("double", "float"):
                return float(text)
            if (target, column.kind) == ("bigint", "integer"):
                return int(text)
        if target == "date" and column.kind in ("date", "timestamp", "timestamp_ntz") and node.this.is_string:
            value_of(text, "date", self._timezone)
            return value_of(text, column.kind, self._timezone)
        if target in ("timestamp", "timestamp_ltz", "timestamptz", "timestamp_ntz") and node.this.is_string:
            is_ntz = target == "timestamp_ntz"
            if (column.kind == "timestamp_ntz" and is_ntz) or (column.kind == "timestamp" and not is_ntz):
                return value_of(text, column.kind, self._timezone)
        raise _NoValue


_SYMBOLS: dict[type[exp.Expr], str] = {
    exp.EQ: "=",
    exp.NEQ: "!=",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}


def _number(text: str) -> Value:
    try:
        return int(text) if re.fullmatch(r"\d+", text) else Decimal(text)
    except (ValueError, InvalidOperation):
        raise _NoValue from None


def value_of(text: str, kind: Kind | None, timezone: str) -> Value:
    """The value that a text means in a column of a kind.

    Raises:
        _NoValue: it means none, or Spark alone knows.
    """
    try:
        match kind:
            case "string":
                return text
            case "integer":
                if re.fullmatch(r"[+-]?\d+", text.strip()):
                    return int(text)
            case "decimal":
                if re.fullmatch(r"[+-]?\d+(\.\d+)?", text.strip()):
                    return Decimal(text.strip())
            case "float":
                if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", text.strip()):
                    return float(text)
            case "boolean":
                if text.lower() in ("true", "false"):
                    return text.lower() == "true"
            case "date":
                if re.fullmatch(r"\d{4}-\d\d-\d\d", text.strip()):
                    return date.fromisoformat(text.strip())
            case "timestamp" | "timestamp_ntz":
                return _microseconds(text.strip(), kind, timezone)
    except ValueError:
        pass
    raise _NoValue


_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d)(?:[ T](\d\d:\d\d:\d\d(?:\.\d{1,6})?))?(Z|[+-]\d\d:\d\d)?")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _microseconds(text: str, kind: Kind, timezone: str) -> int:
    found = _MOMENT.fullmatch(text)
    if found is None or (found[3] and kind == "timestamp_ntz"):
        raise _NoValue
    day, time, zone = found[1], found[2] or "00:00:00", found[3]
    moment = datetime.fromisoformat(f"{day}T{time}{'' if zone is None else zone}")
    if zone is None:
        moment = moment.replace(tzinfo=UTC if kind == "timestamp_ntz" else _zone(timezone))
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _zone(name: str) -> Any:
    try:
        return UTC if name in ("UTC", "Z", "GMT") else ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise _NoValue from None


def text_value(text: str | None, kind: Kind | None) -> Span:
    """What a partition value, as its folder spells it, says of a column."""
    if text is None:
        return Span(has_values=False)
    value = partition_value(text, kind)
    # a text that is no value of the column's kind is null to Spark
    return ANYTHING if value is None else Span(value, value, has_nulls=False)


def partition_value(text: str, kind: Kind | None) -> Value | None:
    """The value of a partition column that a folder's text means; None if it means none."""
    try:
        return value_of(text, kind, "UTC")
    except _NoValue:
        return None


def can_match(condition: Condition | None, spans: Spans) -> bool:
    return condition is None or condition.judge(spans).true


def must_match(condition: Condition, spans: Spans) -> bool:
    """Whether a condition is true for all rows of a file."""
    truth = condition.judge(spans)
    return truth.true and not truth.false and not truth.null


def all_of(conditions: Sequence[Condition]) -> Condition:
    return conditions[0] if len(conditions) == 1 else And(tuple(conditions))
