"""Rows that somebody has written already, as the source of a write."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from strandline.tables.columns import Kind
from strandline.tables.record import Field, TableRecord
from strandline.tables.scan import TableFile
from strandline.tables.statistics import Statistics
from strandline.tables.table import Table
from strandline.tables.writing import Written


class WrittenRows:
    """Parquet files with the columns of the table, which lie where they will be read."""

    zone = "UTC"

    def __init__(self, engine: str, fields: Sequence[Field], written: Written) -> None:
        self.engine = engine
        self.fields = fields
        self._written = written

    def fitted(self, record: TableRecord) -> WrittenRows:
        return self

    def condition(self, record: TableRecord, column: Any) -> NoReturn:
        raise AssertionError("whoever wrote the files had no condition")

    def replacing(self, *arguments: Any, **options: Any) -> NoReturn:
        raise AssertionError("whoever wrote the files had no condition")

    def own_rows(self) -> int | None:
        return None

    def write(
        self, table: Table, record: TableRecord, new_folder: Callable[[], str], target_file_bytes: int | None
    ) -> Written:
        return self._written

    def statistics(
        self, table: Table, record: TableRecord, files: Sequence[TableFile], columns: Mapping[str, Kind]
    ) -> dict[str, Statistics]:
        return {}  # Parquet has footers
