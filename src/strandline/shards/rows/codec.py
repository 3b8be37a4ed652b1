"""How a shard's keys and values are columns, and how older columns are read under a newer schema."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from operator import index
from typing import Any, ClassVar

import pyarrow as pa

from strandline.errors import SchemaMismatch, UsageError

TIME = "_time"
DIFF = "_diff"
RESERVED = frozenset((TIME, DIFF))
KEY_NAMES = b"strandline.key"
"""Where a serialised schema names the columns of the key."""

Update = tuple[tuple[Any, Any], int, int]
"""((key, value), time, diff)"""

_WIDER: dict[pa.DataType, tuple[pa.DataType, ...]] = {
    pa.int8(): (pa.int16(), pa.int32(), pa.int64()),
    pa.int16(): (pa.int32(), pa.int64()),
    pa.int32(): (pa.int64(), pa.float64()),
    pa.float32(): (pa.float64(),),
    pa.string(): (pa.large_string(),),
    pa.binary(): (pa.large_binary(),),
}


class Codec(ABC):
    """Turns keys and values into columns and back. It must read what any older version of it wrote.

    Attributes:
        name: on record with the shard; another codec is refused.
        schema: of the columns, those of the key first.
        key: names of the columns of the key.
    """

    name: ClassVar[str]

    def __init__(self, schema: pa.Schema, key: Sequence[str]) -> None:
        self.schema = schema
        self.key = tuple(key)
        self.value = tuple(name for name in schema.names if name not in self.key)

    @property
    def shape(self) -> str:
        """How an update is written as tuples."""
        return f"(({_shape(self.key)}, {_shape(self.value)}), time, diff)"

    @abstractmethod
    def to_columns(self, rows: Sequence[tuple[Any, Any]]) -> list[pa.Array]:
        """The columns of (key, value) pairs.

        Raises:
            SchemaMismatch: a pair does not fit.
        """

    @abstractmethod
    def to_rows(self, table: pa.Table) -> Iterable[tuple[Any, Any]]:
        """The (key, value) pairs of columns."""


def _shape(names: Sequence[str]) -> str:
    """How a key or a value of these columns is written: one column as it is, several as a tuple."""
    return names[0] if len(names) == 1 else f"({', '.join(names)})"


def whole_numbers(values: Sequence[Any]) -> list[int | None]:
    """Values as ints; Arrow would cut the fraction off.

    Raises:
        TypeError: one is none.
    """
    return [None if value is None or isinstance(value, bool) else index(value) for value in values]


class ColumnCodec(Codec):
    """Keys and values are columns themselves. One column gives its value, several a tuple, none the empty tuple."""

    name = "columns"

    def to_columns(self, rows: Sequence[tuple[Any, Any]]) -> list[pa.Array]:
        keys, values = [row[0] for row in rows], [row[1] for row in rows]
        found = {**self._split(self.key, keys), **self._split(self.value, values)}
        return [found[name] for name in self.schema.names]

    def _split(self, names: tuple[str, ...], parts: list[Any]) -> dict[str, pa.Array]:
        try:
            if not names:
                if any(part not in ((), None) for part in parts):
                    raise ValueError("there is no such column")
                return {}
            if len(names) == 1:
                return {names[0]: self._column(names[0], parts)}
            if any(not isinstance(part, tuple | list) or len(part) != len(names) for part in parts):
                raise ValueError(f"there are {len(names)} of them")
            columns: Iterable[Sequence[Any]] = zip(*parts, strict=True) if parts else [()] * len(names)
            return {name: self._column(name, column) for name, column in zip(names, columns, strict=True)}
        except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, ValueError, OverflowError) as error:
            raise SchemaMismatch(
                f"An update does not fit the columns {', '.join(names) or '(none)'}: {error}.",
                next=f"Here an update is {self.shape}, of {described(self.schema)}.",
            ) from error

    def _column(self, name: str, values: Sequence[Any]) -> pa.Array:
        kind = self.schema.field(name).type
        return pa.array(whole_numbers(values) if pa.types.is_integer(kind) else values, kind)

    def to_rows(self, table: pa.Table) -> Iterable[tuple[Any, Any]]:
        return zip(self._joined(table, self.key), self._joined(table, self.value), strict=True)

    def _joined(self, table: pa.Table, names: tuple[str, ...]) -> Iterable[Any]:
        if len(names) == 1:
            return list(table.column(names[0]).to_pylist())
        if not names:
            return [()] * table.num_rows
        return list(zip(*(table.column(name).to_pylist() for name in names), strict=True))


class JsonCodec(Codec):
    """Keys and values are anything that JSON holds, as text with sorted keys."""

    name = "json"
    SCHEMA = pa.schema([pa.field("key", pa.string(), False), pa.field("value", pa.string(), False)])

    def __init__(self, schema: pa.Schema = SCHEMA, key: Sequence[str] = ("key",)) -> None:
        super().__init__(schema, key)

    def to_columns(self, rows: Sequence[tuple[Any, Any]]) -> list[pa.Array]:
        try:
            return [pa.array([_json(row[at]) for row in rows], pa.string()) for at in (0, 1)]
        except (TypeError, ValueError) as error:
            raise SchemaMismatch(f"An update is not JSON: {error}.", next="Use a schema of columns instead.") from error

    def to_rows(self, table: pa.Table) -> Iterable[tuple[Any, Any]]:
        keys, values = table.column("key").to_pylist(), table.column("value").to_pylist()
        return [(json.loads(key), json.loads(value)) for key, value in zip(keys, values, strict=True)]


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


CODECS: dict[str, type[Codec]] = {codec.name: codec for codec in (ColumnCodec, JsonCodec)}


def check_schema(schema: pa.Schema, key: Sequence[str] | None) -> tuple[pa.Schema, tuple[str, ...]]:
    """A schema as shards keep it, the columns of the key first, and their names; by default all are the key.

    Raises:
        SchemaMismatch: a column has a reserved name or a type that cannot be compared, or the key is not in it.
    """
    if not isinstance(schema, pa.Schema):
        raise UsageError(f"A schema is a pyarrow.Schema, not {type(schema).__name__}.")
    names = tuple(schema.names if key is None else [key] if isinstance(key, str) else key)
    missing = [name for name in names if name not in schema.names]
    if not schema.names or missing or len(set(schema.names)) < len(schema.names):
        reason = f"there is no column {missing[0]!r}" if missing else "it needs at least one column, each name once"
        raise SchemaMismatch(f"A shard cannot have this schema: {reason}.")
    for field in schema:
        if pa.types.is_timestamp(field.type) and field.type.unit != "us":
            raise SchemaMismatch(
                f"Column {field.name!r} is {field.type}; times are kept in microseconds, as Spark writes them.",
                next='Take pa.timestamp("us", …).',
            )
        if field.name in RESERVED:
            raise SchemaMismatch(f"A column of a shard cannot be called {field.name!r}.", next="Rename it.")
        if pa.types.is_nested(field.type) or pa.types.is_null(field.type) or pa.types.is_dictionary(field.type):
            raise SchemaMismatch(
                f"Column {field.name!r} has the type {field.type}, whose values a shard cannot compare.",
                next="Take a plain type, or the codec 'json'.",
            )
    ordered = [schema.field(name).remove_metadata() for name in names]
    ordered += [field.remove_metadata() for field in schema if field.name not in names]
    return pa.schema(ordered), names


def serialised(schema: pa.Schema, key: Sequence[str]) -> bytes:
    raw: bytes = schema.with_metadata({KEY_NAMES: json.dumps(list(key))}).serialize().to_pybytes()
    return raw


def deserialised(raw: bytes) -> tuple[pa.Schema, tuple[str, ...]]:
    schema = pa.ipc.read_schema(pa.BufferReader(raw))
    return schema.remove_metadata(), tuple(json.loads(schema.metadata[KEY_NAMES]))


def refuse_no_evolution(old: pa.Schema, old_key: Sequence[str], new: pa.Schema, new_key: Sequence[str]) -> None:
    """A newer schema may add nullable columns to the value and widen types; nothing else.

    Raises:
        SchemaMismatch: it does something else.
    """
    if tuple(old_key) != tuple(new_key):
        raise SchemaMismatch(f"The key of the shard is {', '.join(old_key)}, not {', '.join(new_key)}.")
    for field in old:
        if field.name not in new.names:
            raise SchemaMismatch(
                f"Column {field.name!r} is not in the new schema.", next="Keep it; columns can only be added."
            )
        now = new.field(field.name)
        if now.type != field.type and now.type not in _WIDER.get(field.type, ()):
            raise SchemaMismatch(f"Column {field.name!r} is {field.type}; it cannot become {now.type}.")
        if field.nullable and not now.nullable:
            raise SchemaMismatch(f"Column {field.name!r} may hold nulls; it must go on to.")
    if new.names[: len(old.names)] != old.names:
        raise SchemaMismatch(
            f"The columns of the shard are {', '.join(old.names)}, in this order.",
            next="Keep it, and add new columns at the end: writers know the columns of a tuple by their places.",
        )
    for field in new:
        if field.name not in old.names and not field.nullable:
            raise SchemaMismatch(f"The new column {field.name!r} must be nullable: older updates have no value for it.")


def fits(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether all values of a type can be read as another: the same, a wider one, or times in another unit or zone."""
    if pa.types.is_timestamp(given) and pa.types.is_timestamp(wanted):
        return (given.tz is None) == (wanted.tz is None)
    return given == wanted or wanted in _WIDER.get(given, ())


def under_schema(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Columns as a schema wants them: in its order and types, nulls where an older writer had none."""
    columns = []
    for field in schema:
        if field.name in table.column_names:
            column = table.column(field.name)
            columns.append(column if column.type == field.type else column.cast(field.type))
        else:
            columns.append(pa.chunked_array([pa.nulls(table.num_rows, field.type)]))
    return pa.table(columns, schema=schema)


def described(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
