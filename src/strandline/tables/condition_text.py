"""Reading conditions: SQL as Spark writes it, and the text of Spark's own columns.

Loads a SQL parser, which takes a tenth of a second and more: import it where a condition is read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from decimal import Decimal, InvalidOperation
from typing import ClassVar

import sqlglot
from sqlglot import exp

from strandline.errors import UsageError
from strandline.tables.columns import arrow_type, kind_of
from strandline.tables.condition import (
    And,
    Column,
    Comparison,
    Condition,
    Flag,
    IsNull,
    Like,
    Not,
    NotUnderstood,
    Or,
    Value,
    refused,
)
from strandline.tables.record import Field, TableRecord
from strandline.tables.values import NoValue, value_of


def parse_condition(text: str, record: TableRecord, timezone: str = "UTC") -> Condition:
    """Read SQL as Spark writes it.

    Args:
        timezone: of timestamps that name none.

    Raises:
        UsageError: the text is not an SQL condition, or names a column that the table does not have.
    """
    try:
        tree = sqlglot.parse_one(text, read="spark")
    except sqlglot.errors.SqlglotError as error:
        raise refused(text, record, _where(error)) from error
    known = {field["name"].lower(): field for field in record.fields}
    for found in tree.find_all(exp.Column):
        root = found.parts[0].name
        if root.lower() not in known:
            raise refused(text, record, f"there is no column {root!r}")
    return _Reader(known, timezone).read(tree)


def _where(error: sqlglot.errors.SqlglotError) -> str:
    """Where a text stops being SQL; the parser's own words are about its insides."""
    found = getattr(error, "errors", [])
    if not found or not found[0].get("highlight"):
        return "it is not SQL"
    before, at = found[0].get("start_context", "")[-30:].strip(), found[0]["highlight"]
    return f"it is not SQL at {at!r}" + (f", after {before!r}" if before else "")


_CHANGING = frozenset(
    (
        *("rand", "randn", "random", "randstr", "uniform", "uuid", "shuffle", "monotonically_increasing_id"),
        *("spark_partition_id", "input_file_name", "input_file_block_start", "input_file_block_length"),
    )
)
"""Functions of Spark that have another value each time, or for each file: of what is computed twice, half is lost."""


def refuse_changing(text: str, record: TableRecord) -> None:
    """Raise if a condition is true for other rows when it is computed again.

    Raises:
        UsageError: it calls such a function.
    """
    calls = sqlglot.parse_one(text, read="spark").find_all(exp.Func)
    _refuse_calls(text, record, (call.name if isinstance(call, exp.Anonymous) else call.sql_name() for call in calls))


def refuse_changing_column(text: str, record: TableRecord) -> None:
    """The same for the text of a Spark `Column`, in which a call is a name before a bracket.

    Spark Connect shows texts without quotes, so a text with such a call in it is refused as well.
    """
    _refuse_calls(text, record, re.findall(r"(\w+)\(", text))


def _refuse_calls(text: str, record: TableRecord, names: Iterable[str]) -> None:
    for name in names:
        if name.lower() in _CHANGING:
            reason = f"{name.lower()}() has another value each time, so nobody knows which rows are meant"
            raise refused(text, record, reason)


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
    except (NoValue, UsageError):
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
            raise NoValue
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
            raise NoValue
        if word in self._INFIX and len(parts) == 2:
            return f"({parts[0]} {word} {parts[1]})"
        if word in self._AFTER and len(parts) == 1:
            return f"({parts[0]} {self._AFTER[word]})"
        if word == "!" and len(parts) == 1:
            return f"(not {parts[0]})"
        if word == "in" and len(parts) > 1:
            return f"({parts[0]} in ({', '.join(parts[1:])}))"
        raise NoValue

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
        raise NoValue


class _Reader:
    def __init__(self, fields: Mapping[str, Field], timezone: str) -> None:
        self._fields = fields
        self._timezone = timezone

    def read(self, node: exp.Expr) -> Condition:
        if not _is_known(node):
            return self._any(node)
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
        except (NoValue, ValueError, ArithmeticError):
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
                if column is not None and column.kind == "string" and _is_known(node.expression):
                    like = Like(column, node.expression.this)
                    return Not(like) if node.args.get("negate") else like
            case exp.Is():
                column = self._column(node.this)
                if column is not None and isinstance(node.expression, exp.Null) and _is_known(node.expression):
                    return IsNull(column)
        raise NoValue

    def _any(self, node: exp.Expr) -> Condition:
        return NotUnderstood(node.sql(dialect="spark"))

    def _column(self, node: exp.Expr) -> Column | None:
        while isinstance(node, exp.Paren) and _is_known(node):
            node = node.this
        if not isinstance(node, exp.Column) or len(node.parts) != 1 or not _is_known(node):
            return None
        field = self._fields[node.name.lower()]
        kind = kind_of(field)
        return None if kind in (None, "binary") else Column(field["name"], kind, arrow_type(field["type"], node.name))

    def _compare(self, column: Column | None, symbol: str, node: exp.Expr) -> Condition:
        if column is None:
            raise NoValue
        value = self._value(column, node)
        if column.kind == "decimal" and isinstance(value, int):
            value = Decimal(value)
        if column.kind == "integer" and isinstance(value, Decimal):
            whole = math.ceil(value) if symbol in ("<", ">=") else math.floor(value)
            value = whole if whole == value or symbol not in ("=", "!=") else value
        return Flag(None) if value is None else Comparison(column, symbol, value)

    def _value(self, column: Column, node: exp.Expr) -> Value:
        """The value of a literal for a column, as Spark's rules of coercion make it; None for null."""
        while isinstance(node, exp.Paren) and _is_known(node):
            node = node.this
        if not _is_known(node):
            raise NoValue
        if isinstance(node, exp.Null):
            return None
        if isinstance(node, exp.Neg):
            inner = self._value(column, node.this)
            if isinstance(inner, int | float | Decimal) and not isinstance(inner, bool):
                return -inner
            raise NoValue
        if isinstance(node, exp.Boolean) and column.kind == "boolean":
            return bool(node.this)
        if isinstance(node, exp.Cast | exp.Date | exp.Timestamp) and isinstance(node.this, exp.Literal):
            if not _is_known(node.this):
                raise NoValue
            return self._cast(column, node)
        if not isinstance(node, exp.Literal):
            raise NoValue
        if node.is_string:
            if column.kind in ("integer", "float", "decimal"):
                raise NoValue  # which of the two sides is cast, and how, depends on the session
            return value_of(node.this, column.kind, self._timezone)
        if column.kind in ("integer", "decimal") and re.search(r"[eE]", node.this):
            raise NoValue  # Spark compares as double, and so does not see all digits
        if column.kind in ("integer", "decimal"):
            return _number(node.this)
        if column.kind == "float":
            return float(node.this)  # as Spark does, which makes both sides doubles
        raise NoValue

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
        raise NoValue


_KNOWN: dict[type[exp.Expr], frozenset[str]] = {
    exp.Paren: frozenset({"this"}),
    exp.And: frozenset({"this", "expression"}),
    exp.Or: frozenset({"this", "expression"}),
    exp.Not: frozenset({"this"}),
    exp.Boolean: frozenset({"this"}),
    exp.Null: frozenset(),
    exp.Column: frozenset({"this"}),
    exp.EQ: frozenset({"this", "expression"}),
    exp.NEQ: frozenset({"this", "expression"}),
    exp.LT: frozenset({"this", "expression"}),
    exp.LTE: frozenset({"this", "expression"}),
    exp.GT: frozenset({"this", "expression"}),
    exp.GTE: frozenset({"this", "expression"}),
    exp.Between: frozenset({"this", "low", "high"}),
    exp.In: frozenset({"this", "expressions"}),
    exp.Like: frozenset({"this", "expression", "negate"}),
    exp.Is: frozenset({"this", "expression"}),
    exp.Literal: frozenset({"this", "is_string"}),
    exp.Neg: frozenset({"this"}),
    exp.Cast: frozenset({"this", "to", "_type"}),
    exp.TryCast: frozenset({"this", "to", "safe", "_type"}),
    exp.Date: frozenset({"this"}),
    exp.Timestamp: frozenset({"this"}),
}
"""Every node that is read, and all of its arguments that are looked at. The parser puts more of what it read into
arguments with each release, such as the NOT of NOT LIKE: what is not looked at may change the meaning."""


def _is_known(node: exp.Expr) -> bool:
    """Whether nothing is said by a node but what is read of it; if not, it may be anything."""
    known = _KNOWN.get(type(node))
    return known is not None and all(
        name in known for name, value in node.args.items() if value is not None and value is not False and value != []
    )


_SYMBOLS: dict[type[exp.Expr], str] = {
    exp.EQ: "=",
    exp.NEQ: "!=",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
_MIRRORED = {"=": "=", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def _number(text: str) -> Value:
    try:
        return int(text) if re.fullmatch(r"\d+", text) else Decimal(text)
    except (ValueError, InvalidOperation):
        raise NoValue from None
