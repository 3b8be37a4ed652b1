"""What callers give, of whichever library: rows as a stream of Arrow record batches. Nothing of Spark is loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from strandline.errors import UsageError

BATCH_MAX_ROWS = 128 << 10
"""So that files are encoded while the next rows are arranged."""


@dataclass(frozen=True, slots=True)
class ArrowData:
    """A stream of record batches.

    Attributes:
        batches: gives them, once.
    """

    schema: pa.Schema
    batches: Callable[[], Iterable[pa.RecordBatch]]


def is_spark_column(where: object) -> bool:
    """Whether a condition is a column of Spark's, which only Spark can judge."""
    kind = type(where)
    return kind.__name__ == "Column" and kind.__module__.startswith("pyspark.")


def is_spark_frame(data: object) -> bool:
    """Whether rows are a data frame of Spark's; of its columns nothing is asked, since they have every attribute."""
    return not is_spark_column(data) and hasattr(data, "sparkSession")


def data_of(data: object) -> ArrowData:
    """The rows of whatever holds some: an Arrow table, record batch or reader, a frame of Polars or pandas, a relation
    of DuckDB, and all else that has Arrow's stream interface.

    Raises:
        UsageError: it does not.
    """
    if is_spark_column(data):
        raise _not_rows(data)
    module = type(data).__module__.partition(".")[0]
    if module == "polars" and hasattr(data, "collect"):
        data = data.collect()
    if module == "pandas" and hasattr(data, "columns"):
        data = _from_pandas(data)
    if isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    if isinstance(data, pa.Table):
        held = data
        return ArrowData(held.schema, lambda: held.to_batches(BATCH_MAX_ROWS))
    if module in ("duckdb", "_duckdb") and hasattr(data, "to_arrow_reader"):
        data = data.to_arrow_reader(BATCH_MAX_ROWS)
    if isinstance(data, pa.RecordBatchReader):
        return ArrowData(data.schema, lambda: data)
    try:
        reader = pa.RecordBatchReader.from_stream(data)
    except (pa.ArrowException, TypeError) as error:
        raise _not_rows(data) from error
    return ArrowData(reader.schema, lambda: reader)


def _not_rows(data: object) -> UsageError:
    return UsageError(
        f"A table cannot be written from {type(data).__module__}.{type(data).__name__}.",
        next="Give a Spark DataFrame, an Arrow table or record batch reader, a Polars or pandas frame, or a DuckDB "
        "relation.",
    )


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type of values that may be kept in a dictionary, as categories are."""
    if not pa.types.is_dictionary(kind):
        return kind
    # Arrow does not take values out of a view
    return pa.string() if pa.types.is_string_view(kind.value_type) else kind.value_type


def plain_values(column: pa.Array) -> pa.Array:
    """The values of an array, taken out of its dictionary if it has one."""
    if not pa.types.is_dictionary(column.type):
        return column
    return column.dictionary.cast(plain_type(column.type)).take(column.indices)


def _from_pandas(frame: Any) -> pa.Table:
    if any(name is not None for name in frame.index.names):
        raise UsageError(
            f"The frame has the index {list(frame.index.names)}, which is not a column.",
            next="Make columns of it with reset_index(), or drop it with reset_index(drop=True).",
        )
    try:
        return pa.Table.from_pandas(frame, preserve_index=False)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise UsageError(
            f"The frame has a column that Arrow cannot hold: {reason_of(error)}.", next="Give it one type of values."
        ) from error


def reason_of(error: Exception) -> str:
    """What Arrow says, in its first line."""
    return str(error).partition("\n")[0].rstrip(".") or type(error).__name__
