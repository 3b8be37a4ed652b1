"""The history of a table: the commits that changed it, and how."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime

import msgspec
import pyarrow as pa

from strandline.clock import Microseconds, from_us
from strandline.ids import CommitId
from strandline.repository.refs.results import Results


class TableChange(msgspec.Struct, frozen=True):
    """What a commit did to a table, against its first parent.

    Attributes:
        added_files, removed_files: data files; one whose content changed at its path counts as both.
        added_rows, removed_rows: None if the statistics of a file do not tell.
        added_bytes, removed_bytes: of those files.
        schema_changed: whether the table record changed, or came, or went.
    """

    commit: CommitId
    date_us: Microseconds
    committer: str
    message: str
    added_files: int
    removed_files: int
    added_rows: int | None
    removed_rows: int | None
    added_bytes: int
    removed_bytes: int
    schema_changed: bool

    @property
    def date(self) -> datetime:
        """When the commit was made, in UTC."""
        return from_us(self.date_us)


class TableHistory(Results[TableChange]):
    """The commits that changed a table, newest first."""

    _titles = ("commit", "date", "committer", "message", "files", "rows")

    def __init__(self, changes: Callable[[], Iterator[TableChange]]) -> None:
        self._changes = changes

    def __iter__(self) -> Iterator[TableChange]:
        return self._changes()

    def to_arrow(self) -> pa.Table:
        names = TableChange.__struct_fields__
        rows = list(self)
        columns = {name: [getattr(row, name) for row in rows] for name in names}
        types = {name: pa.int64() for name in names} | {
            "commit": pa.string(),
            "committer": pa.string(),
            "message": pa.string(),
            "schema_changed": pa.bool_(),
        }
        made = pa.table({name: pa.array(columns[name], types[name]) for name in names})
        at = names.index("date_us")
        return made.set_column(at, "date", made.column("date_us").cast(pa.timestamp("us", "UTC")))

    def _cells(self, row: TableChange) -> tuple[object, ...]:
        files = f"+{row.added_files:,} −{row.removed_files:,}"
        rows = (
            "" if row.added_rows is None or row.removed_rows is None else f"+{row.added_rows:,} −{row.removed_rows:,}"
        )
        return row.commit[:12], row.date, row.committer, row.message, files, rows
