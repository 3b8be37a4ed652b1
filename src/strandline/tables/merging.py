"""What a merge has to know of tables: how two changes of a record become one, and which changes of rows exclude others.

Pure: a merge depends on three trees, and on what its caller chose. A record is merged column by column. Overwrites of
the same partition, or an overwrite on one side and an append on the other, are conflicts: no order of the two writes
would have left both.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from strandline.core.iceberg_files import POINTER
from strandline.errors import FormatError
from strandline.tables.columns import is_widening, same_type, type_name
from strandline.tables.layout import OVERWRITE_NAME, is_hidden
from strandline.tables.layout import folder_of as folder_of  # one of the functions that a merge asks for
from strandline.tables.record import RECORD_NAME, Field, TableRecord, decode_record, encode_record, in_its_format

_OTHERS = ("partition_by", "file_format", "options", "statistics", "schema_default")
_WORDS = {
    "partition_by": "partition columns",
    "file_format": "format of the files",
    "options": "options of the format",
    "statistics": "columns with statistics",
    "schema_default": "defaults for changes of the schema",
}


class Clash(Exception):
    """Two records cannot become one; the message says which columns or settings are in the way."""


def special(paths: pa.StringArray) -> pa.BooleanArray:
    """Which paths are records of tables, marks that an overwrite left, or Iceberg tables."""
    record, mark, iceberg = (pc.ends_with(paths, "/" + name) for name in (RECORD_NAME, OVERWRITE_NAME, POINTER))
    return pc.or_(pc.or_(record, mark), iceberg)


def table_of(path: str) -> str | None:
    """The path of the table whose record an object is; None if it is none."""
    return path.removesuffix("/" + RECORD_NAME) if path.endswith("/" + RECORD_NAME) else None


def are_rows(path: str, folder: str) -> bool:
    """Whether an object below a table's folder may hold rows: all but what readers skip."""
    return not is_hidden(path[len(folder) + 1 :])


def described(folder: str) -> str:
    """A table or partition in words: its path, and the values of its columns."""
    parts = folder.split("/")
    first = next((at for at, part in enumerate(parts) if "=" in part), len(parts))
    table = f"table {'/'.join(parts[:first])!r}"
    return table if first == len(parts) else f"partition {'/'.join(parts[first:])} of {table}"


def merged_record(path: str, base: bytes | None, source: bytes, dest: bytes) -> bytes:
    """The record of a table that both sides changed, or made.

    The order of the columns is that of the base, then what the destination added, then what the source added.

    Raises:
        Clash: both changed the same thing in different ways.
    """
    try:
        held = TableRecord(fields=()) if base is None else decode_record(base, path)
        theirs, ours = decode_record(source, path), decode_record(dest, path)
    except FormatError as error:
        raise Clash(error.what) from error
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Clash("its record cannot be read") from error
    fields = _fields(held, theirs, ours)
    settings = {name: _setting(name, held, theirs, ours, is_new=base is None) for name in _OTHERS}
    merged = in_its_format(replace(ours, fields=tuple(fields), **settings))
    if merged.file_format == "csv" and _added(held, theirs) and _added(held, ours):
        raise Clash("both sides added columns, and the files of CSV have them by their places")
    if merged.statistics is not None:
        merged = replace(merged, statistics=tuple(name for name in merged.statistics if name in merged.names))
    missing = [name for name in merged.partition_by if name not in merged.names]
    if missing or not merged.stored:
        raise Clash(f"its partition column {missing[0]!r} was dropped" if missing else "no column would be left")
    return encode_record(merged)


def extends(before: bytes, after: bytes) -> bool:
    """Whether a record still reads what was written by an earlier one: columns came or got wider, and nothing else."""
    try:
        held, new = decode_record(before, ""), decode_record(after, "")
        kinds = {field["name"]: field["type"] for field in new.fields}
        return all(getattr(held, name) == getattr(new, name) for name in _OTHERS[:3]) and all(
            name in kinds and (same_type(kind, kinds[name]) or is_widening(kind, kinds[name]))
            for name, kind in ((field["name"], field["type"]) for field in held.fields)
        )
    except (FormatError, KeyError, TypeError, AttributeError, RecursionError):
        return False


def _added(base: TableRecord, side: TableRecord) -> bool:
    return bool(set(side.names) - set(base.names)) and bool(base.fields)


def _setting(name: str, base: TableRecord, source: TableRecord, dest: TableRecord, *, is_new: bool) -> Any:
    before, theirs, ours = (getattr(record, name) for record in (base, source, dest))
    if theirs == ours or (theirs == before and not is_new):
        return ours
    if ours == before and not is_new:
        return theirs
    raise Clash(f"its {_WORDS[name]} are {_shown(ours)} on the branch and {_shown(theirs)} in the source")


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) or "none" if isinstance(value, tuple) else str(value)


def _fields(base: TableRecord, source: TableRecord, dest: TableRecord) -> list[Field]:
    before, theirs, ours = ({field["name"]: field for field in record.fields} for record in (base, source, dest))
    found = []
    clashes = []
    for name in dict.fromkeys((*before, *ours, *theirs)):
        field, clash = _field(name, before.get(name), theirs.get(name), ours.get(name))
        if clash:
            clashes.append(clash)
        elif field is not None:
            found.append(field)
    if clashes:
        raise Clash("; ".join(clashes))
    lower = [field["name"].lower() for field in found]
    if twice := sorted({field["name"] for field in found if lower.count(field["name"].lower()) > 1}):
        raise Clash(f"columns would differ only in case: {', '.join(twice)}")
    return found


def _field(name: str, before: Field | None, theirs: Field | None, ours: Field | None) -> tuple[Field | None, str]:
    """One column of the merged record, or why there is none."""
    if _same(theirs, ours):
        return ours, ""
    if _same(theirs, before):
        return ours, ""
    if _same(ours, before):
        return theirs, ""
    if theirs is None or ours is None:
        dropped, changed = ("on the branch", "in the source") if ours is None else ("in the source", "on the branch")
        return None, f"column {name!r} was dropped {dropped} and changed {changed}"
    return None, f"column {name!r} is {_kind(ours)} on the branch and {_kind(theirs)} in the source"


def _same(left: Field | None, right: Field | None) -> bool:
    if left is None or right is None:
        return left is right
    return same_type(left["type"], right["type"]) and (left.get("metadata") or {}) == (right.get("metadata") or {})


def _kind(field: Field) -> str:
    kind = field["type"]
    return type_name(kind)
