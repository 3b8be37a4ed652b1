"""Values of columns: what a text, in a condition or as the name of a folder, means in a column of a kind."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

from strandline.tables.columns import Kind
from strandline.tables.condition import ANYTHING, Span, Value

NOT_FINITE = ("NaN", "Infinity", "-Infinity")


class NoValue(Exception):
    """A text means no value of a column, or Spark alone knows which one."""


def value_of(text: str, kind: Kind | None, timezone: str) -> Value:
    """The value that a text means in a column of a kind.

    Raises:
        NoValue: it means none, or Spark alone knows.
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
    raise NoValue


_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d)(?:[ T](\d\d:\d\d:\d\d(?:\.\d{1,6})?))?(Z|[+-]\d\d:\d\d)?")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _microseconds(text: str, kind: Kind, timezone: str) -> int:
    found = _MOMENT.fullmatch(text)
    if found is None or (found[3] and kind == "timestamp_ntz"):
        raise NoValue
    day, time, zone = found[1], found[2] or "00:00:00", found[3]
    moment = datetime.fromisoformat(f"{day}T{time}{'' if zone is None else zone}")
    if zone is None:
        moment = moment.replace(tzinfo=UTC if kind == "timestamp_ntz" else _zone(timezone))
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _zone(name: str) -> Any:
    try:
        return UTC if name in ("UTC", "Z", "GMT") else ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise NoValue from None


def text_value(text: str | None, kind: Kind | None) -> Span:
    """What a partition value, as its folder spells it, says of a column."""
    if text is None:
        return Span(has_values=False)
    value = partition_value(text, kind)
    # a text that is not a value of the column's kind is null to Spark
    return ANYTHING if value is None else Span(value, value, has_nulls=False)


def partition_value(text: str, kind: Kind | None) -> Value | None:
    """The value of a partition column that a folder's text means; None if it means none."""
    try:
        return value_of(text, kind, "UTC")
    except NoValue:
        return None
