"""A table of a ref: its record, its files, and the way to the engines that read and write it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import msgspec

from strandline.errors import TableNotFound, UsageError
from strandline.ids import check_path
from strandline.repository.ref import Ref
from strandline.repository.results import ObjectInfo
from strandline.tables.layout import is_data_file, partition_values
from strandline.tables.record import RECORD_NAME, SchemaChange, TableRecord, WriteMode, decode_record

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


class TableFile(msgspec.Struct, frozen=True):
    """A data file of a table.

    Attributes:
        relative: its path below the table's.
        partition: the values of the partition columns, as text, from its logical path.
    """

    info: ObjectInfo
    relative: str
    partition: dict[str, str | None]


class TableWrite(msgspec.Struct, frozen=True):
    """What a write did: it is staged as a whole, and part of the next commit.

    Attributes:
        changes: paths that were added, replaced or deleted.
        spark_seconds: time in which Spark wrote the files.
        strandline_seconds: all other time: planning, listing, syncing, staging.
    """

    files: int
    bytes: int
    changes: int
    spark_seconds: float
    strandline_seconds: float


class Table:
    """A path prefix with a table record, at one ref."""

    def __init__(self, ref: Ref, path: str) -> None:
        self.ref = ref
        self.path = path.rstrip("/")
        check_path(f"{self.path}/{RECORD_NAME}")
        if not self.path:
            raise UsageError("A table needs a path.", next='For example branch.table("tables/flights").')

    def __repr__(self) -> str:
        return f"<Table {self.path} at {self.ref!r}>"

    @property
    def prefix(self) -> str:
        return self.path + "/"

    @property
    def record_path(self) -> str:
        return self.prefix + RECORD_NAME

    def find_record(self) -> tuple[ObjectInfo | None, TableRecord | None]:
        info = self.ref.find(self.record_path)
        return info, None if info is None else decode_record(self.ref.read(self.record_path), self.path)

    @property
    def record(self) -> TableRecord:
        """The table record.

        Raises:
            TableNotFound: the path is no table at this ref.
        """
        _, record = self.find_record()
        if record is None:
            what = "is an object" if self.ref.exists(self.path) else "has no table record"
            raise TableNotFound(
                f"{self.path!r} in {self.ref!r} {what}.", next="Write a table there first, or check the path and ref."
            )
        return record

    def exists(self) -> bool:
        return self.ref.exists(self.record_path)

    @property
    def schema(self) -> dict[str, Any]:
        """The columns, as Spark's schema JSON."""
        return {"type": "struct", "fields": list(self.record.fields)}

    def files(self) -> list[TableFile]:
        """The data files, in the order of their paths."""
        return list(self._files(self.record))

    def _files(self, record: TableRecord) -> Iterator[TableFile]:
        for info in self.ref.list(self.prefix):
            assert isinstance(info, ObjectInfo)
            relative = info.path[len(self.prefix) :]
            if is_data_file(relative):
                yield TableFile(info, relative, partition_values(relative, record.partition_by))

    # --- engines, known by name only --------------------------------------------------------------------------------

    def to_spark(self, spark: SparkSession, where: str | Column | None = None) -> DataFrame:
        """The table as a Spark DataFrame, planned now, read when Spark acts.

        Args:
            where: a condition on its columns; partitions that it excludes are not read.
        """
        frame: DataFrame = _engine("spark").read_table(self, spark, where)
        return frame

    def write(
        self,
        data: DataFrame,
        mode: WriteMode = "append",
        *,
        partition_by: Sequence[str] | str | None = None,
        schema: SchemaChange | None = None,
    ) -> TableWrite:
        """Write a Spark DataFrame; all of it appears on the branch at one instant, staged.

        Args:
            mode: "append" adds files; "overwrite" replaces all; "overwrite_partitions" replaces the partitions that
                the data has rows for.
            partition_by: columns whose values become folders; decided by the first write.
            schema: "merge" to add columns; "replace", with "overwrite", to change everything.

        Raises:
            SchemaMismatch: the columns are not the table's. Spark has written nothing.
            Conflict: the table was made or changed by somebody else meanwhile. Nothing of this write is visible.
        """
        columns = (partition_by,) if isinstance(partition_by, str) else partition_by
        written: TableWrite = _engine("spark").write_table(self, data, mode, columns, schema)
        return written


def _engine(name: str) -> Any:
    try:
        return import_module(f"strandline.{name}")
    except ModuleNotFoundError as error:
        raise UsageError(
            f"This needs the Python package {error.name!r}, which is not installed.",
            next=f"Run: pip install 'strandline[{name}]'",
        ) from error
