"""What writes, changes of rows and conversions of tables did."""

from __future__ import annotations

import msgspec


class WriteResult(msgspec.Struct, frozen=True):
    """What a write did: it is staged as a whole, and part of the next commit.

    Attributes:
        files, bytes, rows: that were written; rows is None if they were not counted.
        changes: paths that were added, replaced or deleted.
        engine_seconds: time in which the engine, Spark or Arrow, wrote the files.
        strandline_seconds: all other time: planning, listing, statistics, syncing, staging.
    """

    files: int
    bytes: int
    rows: int | None
    changes: int
    engine_seconds: float
    strandline_seconds: float


class RowsChanged(msgspec.Struct, frozen=True, kw_only=True):
    """What a change of rows did.

    Attributes:
        deleted, updated, inserted: rows.
        files: that were written, with the rows beside them that stayed as they were.
    """

    deleted: int = 0
    updated: int = 0
    inserted: int = 0
    files: int = 0


class FilesRewritten(msgspec.Struct, frozen=True, kw_only=True):
    """What a rewriting of a table's files did; all zero if there was nothing to do.

    Attributes:
        before, after: how many files went, and how many came with their rows.
        bytes_before, bytes_after: of those files.
    """

    before: int = 0
    after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0


class TableConverted(msgspec.Struct, frozen=True):
    """A table that was made of the files of another one.

    Attributes:
        name: of the Iceberg table, or the path of the native one.
        files, rows: that it has.
    """

    name: str
    files: int
    rows: int
