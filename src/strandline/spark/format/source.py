"""The format "strandline" of Spark: tables of a lake for `spark.read.format(…)`, `.write.format(…)` and SQL.

For programs that can only name a format. Spark's own readers and writers, which `table.to_spark` and `table.write` use,
are faster, and take filters and columns from any query. A Python data source gets no columns from Spark (4.3 and
before), and filters that Spark 4.1.4 pushes down reach the next query of a frame as well: so both are asked for by
options here.
"""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from strandline.errors import UsageError
from strandline.repository.refs.ref import Ref
from strandline.spark.format.options import chosen, listed, opened
from strandline.spark.format.reader import TableReader, TableStreamReader
from strandline.spark.format.writer import TableWriter
from strandline.spark.read import struct_of
from strandline.tables.table import Table

FORMAT = "strandline"


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
    """Options name the place: lake (a folder or TOML file; by default the environment's); path, or repo, ref and path.

    Reading: where, a condition of SQL; columns, names with commas between them or a JSON list.
    Streaming: start, a commit or "now"; removals, "fail" or "ignore".
    Writing: message, writer and token of the transaction; partition_by, compression, statistics, target_file_bytes;
    mergeSchema, overwriteSchema, partitionOverwriteMode.
    """

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        lake, table = opened(self.options)
        with lake:
            return chosen(struct_of(table.record), listed(self.options, "columns"), table)

    def reader(self, schema: StructType) -> TableReader:
        return TableReader(self.options, schema)

    def streamReader(self, schema: StructType) -> TableStreamReader:  # noqa: N802 - Spark's name
        return TableStreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> TableWriter:
        return TableWriter.planned(self.options, schema, overwrite=overwrite)
