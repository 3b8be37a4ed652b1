"""Values that would come back from a file, or from the name of a folder, as other ones: they end a write.

Types are refused before (see `tables.formats`); of values only the rows themselves tell.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, DateType, MapType, StringType, StructType, TimestampType

from strandline.errors import UsageError
from strandline.spark.read import quoted
from strandline.tables.formats import FIRST_GREGORIAN_DAY, SAFE_OPTIONS
from strandline.tables.layout import ESCAPED, FOLDER_MAX_BYTES, UNNAMED
from strandline.tables.record import TableRecord

SHOWN = "{value}"
SHOWN_MAX_CHARS = 60
NULL = SAFE_OPTIONS["csv"]["nullValue"]
UNFIT, END = "strandline: this would come back as something else: ", " :end"


def unfit_of(error: Exception) -> UsageError | None:
    """What a write says if such a value ended it; None if something else did."""
    _, found, rest = str(error).partition(UNFIT)
    if not found:
        return None
    return UsageError(
        f"The data has {rest.partition(END)[0]}.",
        safe="Nothing of it is visible on the branch.",
        next="Make it null or another value, or take these rows out"
        + (", or partition by another column." if "folder" in rest.partition(END)[0] else ", or take another format."),
    )


def guarded(data: DataFrame, record: TableRecord) -> DataFrame:
    """The data, in which a value that would come back as another one, or as null, ends the write."""
    null = {name.lower(): value for name, value in record.options.items()}.get("nullvalue", "")
    columns = []
    is_guarded = False
    for field in record.fields:
        name, column = field["name"], quoted(field["name"])
        kind = data.schema[name].dataType
        lost: Column | None = None
        why = ""
        if name in record.partition_by and isinstance(kind, StringType):
            escapes = F.length(column) - F.length(F.regexp_replace(column, ESCAPED, ""))
            too_long = F.octet_length(column) + 2 * escapes > FOLDER_MAX_BYTES - len(f"{name}=".encode())
            lost = column.isin(*UNNAMED) | column.contains("\0") | too_long
            why = f"the text {SHOWN} in column {name}, which cannot be the name of a partition's folder"
        elif name in record.partition_by:
            pass
        elif record.file_format == "csv" and null and (isinstance(kind, StringType) or null != NULL):
            lost = column.cast("string") == F.lit(null)
            why = f"the value {null} in column {name}, which stands for null in CSV"
        elif record.file_format == "orc":
            lost = _moved_by_orc(column, kind)
            why = (
                f"a moment or a day in column {name} that ORC moves: a part of a second before 1970, or a day before "
                f"{FIRST_GREGORIAN_DAY}"
            )
        if lost is not None:
            is_guarded = True
            before, shown, after = (UNFIT + why + END).partition(SHOWN)
            said = (
                F.concat(F.lit(f"{before}'"), F.substring(quoted(name), 1, SHOWN_MAX_CHARS), F.lit(f"'{after}"))
                if shown
                else F.lit(before)
            )
            refused = F.raise_error(said).cast(kind)
            column = F.when(lost, refused).otherwise(column).alias(name)
        columns.append(column)
    return data.select(*columns) if is_guarded else data


def _moved_by_orc(column: Column, kind: DataType) -> Column | None:
    """Whether a value, or one within it, comes back from ORC as another one; None if none of the type does."""
    if isinstance(kind, TimestampType):
        return (F.unix_micros(column) < 0) & (F.unix_micros(column) % 1_000_000 != 0)
    if isinstance(kind, DateType):
        return column < F.lit(FIRST_GREGORIAN_DAY)
    if isinstance(kind, ArrayType):
        return _any_moved(column, kind.elementType)
    if isinstance(kind, MapType):
        return _either(_any_moved(F.map_keys(column), kind.keyType), _any_moved(F.map_values(column), kind.valueType))
    if isinstance(kind, StructType):
        parts = (_moved_by_orc(column.getField(one.name), one.dataType) for one in kind.fields)
        return reduce(_either, parts, None)
    return None


def _any_moved(values: Column, kind: DataType) -> Column | None:
    if _moved_by_orc(values, kind) is None:
        return None

    def moved(value: Column) -> Column:
        found = _moved_by_orc(value, kind)
        assert found is not None
        return F.coalesce(found, F.lit(False))

    return F.exists(values, moved)


def _either(left: Column | None, right: Column | None) -> Column | None:
    found = [F.coalesce(one, F.lit(False)) for one in (left, right) if one is not None]
    return reduce(lambda one, other: one | other, found) if found else None
