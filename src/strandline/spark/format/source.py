"""The format "strandline" of Spark: tables of a lake for `spark.read.format(…)` and for SQL, read in Python workers.

For programs that can only name a format. Spark's own readers, which `table.to_spark` uses, are faster, and take filters
and columns from any query. A Python data source gets no columns from Spark (4.3 and before), and filters that Spark
4.1.4 pushes down reach the next query of a frame as well: so both are asked for by options here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

import strandline
from strandline.blob import Resolver, open_store
from strandline.errors import UsageError
from strandline.lake import Lake
from strandline.places import place_on_a_ref
from strandline.repository.refs.ref import Ref
from strandline.spark.read import struct_of
from strandline.tables.condition import Condition
from strandline.tables.frames import Scan, rows_of
from strandline.tables.record import TableRecord
from strandline.tables.scan import TableFile
from strandline.tables.table import Table

FORMAT = "strandline"
SPLIT_BYTES = 128 << 20
"""Small files share a task up to this size, as in Spark's own readers."""
PLACE = 'Write .load("repository/ref/path/of/table").'


def register(spark: SparkSession, ref: Ref | None = None, prefix: str = "") -> list[str]:
    """Make the format "strandline" known to a session, and the native tables of a ref its temporary views.

    Args:
        ref: whose tables become views, read natively as they are now; None for the format alone.
        prefix: only tables below it. A view is called by what comes after it, with "_" for "/".

    Returns:
        The names of the views.

    Raises:
        UsageError: two tables would get the same name.
    """
    if not hasattr(spark, "createDataFrame"):
        raise UsageError(f"{type(spark).__name__} is not a Spark session.", next="Give the session first.")
    spark.dataSource.register(LakeSource)
    tables: dict[str, Table] = {}
    for table in [] if ref is None else ref.tables(prefix):
        name = table.path.removeprefix(prefix).strip("/").replace("/", "_") or table.path.rpartition("/")[2]
        if name.lower() in (known.lower() for known in tables):
            raise UsageError(
                f"Two tables would be the view {name!r}: {tables[name].path!r} and {table.path!r}."
                if name in tables
                else f"Two tables would be the view {name!r}, whose case does not count.",
                safe="No view was made.",
                next="Give a longer prefix, and register the others one by one.",
            )
        tables[name] = table
    for name, table in tables.items():
        table.to_spark(spark).createOrReplaceTempView("`" + name.replace("`", "``") + "`")
    return list(tables)


class LakeSource(DataSource):
    """Options: lake (a folder or TOML file; by default the environment's); path, or repo, ref and path; where, a
    condition of SQL; columns, names with commas between them or a JSON list.
    """

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        lake, table = _opened(self.options)
        with lake:
            return _chosen(struct_of(table.record), _columns(self.options), table)

    def reader(self, schema: StructType) -> TableReader:
        return TableReader(dict(self.options), schema)


@dataclass
class FilesPartition(InputPartition):
    """Files of a table, with all that a worker needs to read them but the keys of the store."""

    url: str
    record: TableRecord
    files: Sequence[TableFile]
    condition: Condition | None
    place: str


class TableReader(DataSourceReader):
    """Rows of a table at the moment when the query is planned.

    Args:
        schema: the columns that are read: all of the table's, or those that the user gave.
    """

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        lake, table = _opened(self._options)
        with lake:
            where = self._options.get("where") or None
            record, files, condition = table._chosen(where, None)
            held = struct_of(record)
            for field in _chosen(held, self._schema.names, table).fields:
                if field.dataType != self._schema[field.name].dataType:
                    raise UsageError(
                        f"Column {field.name!r} of table {table.path!r} is {field.dataType.simpleString()}, not "
                        f"{self._schema[field.name].dataType.simpleString()}.",
                        next="Leave the schema out, or give the table's own types; cast after reading.",
                    )
            url, place = table.ref._core.resolver.namespace.url, table._describe()
            return [FilesPartition(url, record, part, condition, place) for part in _split(files) or [[]]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, FilesPartition)
        place: Callable[[], str] = partial(str, partition.place)
        scan = Scan(
            Resolver(open_store(partition.url)),
            partition.record,
            partition.files,
            place,
            partition.condition,
            self._schema.names,
        )
        for batch in rows_of(scan):
            if batch.num_rows:
                yield batch


def _split(files: Sequence[TableFile]) -> list[list[TableFile]]:
    parts: list[list[TableFile]] = []
    filled = SPLIT_BYTES
    for file in files:
        if filled + file.info.size > SPLIT_BYTES:
            parts.append([])
            filled = 0
        parts[-1].append(file)
        filled += file.info.size
    return parts


def _opened(options: Mapping[str, str]) -> tuple[Lake, Table]:
    """The lake, which the caller closes, and the table that the options name."""
    path = options.get("path") or ""
    if options.get("repo") or options.get("ref"):
        path = f"{options.get('repo') or ''}/{options.get('ref') or ''}/{path}"
    place = place_on_a_ref(path, PLACE)
    if not place.path:
        raise UsageError(f"{path!r} names no table.", next=PLACE)
    lake = strandline.open(options.get("lake"))
    try:
        return lake, lake.repository(place.repository).ref(place.ref).table(place.path)
    except BaseException:
        lake.close()
        raise


def _columns(options: Mapping[str, str]) -> Sequence[str] | None:
    text = (options.get("columns") or "").strip()
    if not text:
        return None
    try:
        names = json.loads(text) if text.startswith("[") else [name.strip() for name in text.split(",")]
    except ValueError:
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UsageError(f"{text!r} is not a list of columns.", next='Write "a, b", or ["a", "b"].')
    return names


def _chosen(schema: StructType, names: Sequence[str] | None, table: Table) -> StructType:
    if names is None:
        return schema
    unknown = [name for name in names if name not in schema.names]
    if unknown or not names:
        raise UsageError(
            f"Table {table.path!r} has no column {unknown[0]!r}." if unknown else "No column is asked for.",
            next=f"It has {', '.join(schema.names)}.",
        )
    return StructType([schema[name] for name in names])
