"""What the formats of files and the folders of partitions hold, and the options by which they hold it.

Everything here was tried: `tests/spark/test_types_and_formats.py` writes and reads each type in each format and place.
What would come back as something else, or not at all, is refused: by its type before anything is written, and by its
value (see `spark.write` and `tables.arrow_rows`) before anything is visible.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Any, Literal

from strandline.errors import UsageError
from strandline.tables.columns import type_name

FileFormat = Literal["parquet", "orc", "json", "csv", "avro"]
MOMENTS = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
SAFE_OPTIONS: dict[str, dict[str, str]] = {
    "csv": {
        "header": "true",
        "nullValue": r"\N",
        "escape": '"',
        "multiLine": "true",
        "ignoreLeadingWhiteSpace": "false",
        "ignoreTrailingWhiteSpace": "false",
        **MOMENTS,
    },
    "json": MOMENTS,
}
"""What a new table of texts gets unless its first write says otherwise: by Spark's own options microseconds are cut,
a line end in a text begins a row, an empty text is null, and blanks around a text are gone."""
COLLATIONS = "__COLLATIONS"
"""Where Spark's schema JSON has how texts compare, by their place in the column."""
FIRST_GREGORIAN_DAY = date(1582, 10, 15)
"""ORC files name days before it by another calendar, which not all of their readers know."""


def refuse_unheld(field: Mapping[str, Any], file_format: str, *, is_partition: bool) -> None:
    """Raise if a column cannot be where a table would have it.

    Args:
        field: as Spark's schema JSON has it.

    Raises:
        UsageError: files of the format do not hold its type, or folders of partitions do not.
    """
    name, kind = field["name"], field["type"]
    is_collated = COLLATIONS in (field.get("metadata") or {})
    if is_partition:
        if is_collated:
            raise UsageError(
                f"Column {name!r} has a collation, and Spark does not partition by such columns.",
                next="Partition by another column, or by one without a collation.",
            )
        if not isinstance(kind, str) or kind in ("binary", "void", "variant", "interval") or kind.startswith("time("):
            raise UsageError(
                f"Column {name!r} is of type {type_name(kind)}, by which no folder can be named.",
                next="Partition by another column, or by a text that is made of this one.",
            )
        return
    unheld = "a text with a collation" if is_collated and file_format == "orc" else _unheld(kind, file_format)
    if unheld:
        raise UsageError(
            f"Column {name!r} holds {unheld}, which tables in {file_format} do not.",
            next="Cast the column, or take another format: Parquet holds most types.",
        )


def _unheld(kind: Any, file_format: str) -> str:
    """Which part of a type files of a format do not hold, in words; "" if they hold all of it."""
    if isinstance(kind, str):
        if kind == "interval" or kind.startswith("time("):
            return f"values of type {kind}"
        return f"values of type {kind}" if kind in _UNHELD.get(file_format, ()) else ""
    if file_format == "csv":
        return f"values of type {type_name(kind)}"
    match kind["type"]:
        case "array":
            return _unheld(kind["elementType"], file_format)
        case "map":
            if file_format in ("json", "avro") and kind["keyType"] != "string":
                return f"maps with keys of type {type_name(kind['keyType'])}"
            return _unheld(kind["keyType"], file_format) or _unheld(kind["valueType"], file_format)
        case "struct":
            fields = kind["fields"]
            if file_format == "orc" and any(COLLATIONS in (one.get("metadata") or {}) for one in fields):
                return "a text with a collation"
            return next(filter(None, (_unheld(one["type"], file_format) for one in fields)), "")
    return ""


_UNHELD: Mapping[str, tuple[str, ...]] = {
    "csv": ("binary", "void", "variant"),
    "orc": ("void", "variant"),
    "avro": ("variant",),
}
