"""Rules for the upkeep of tables, and what became of a table by them."""

from __future__ import annotations

import msgspec

from strandline.errors import UsageError

LEAST_FILES = 2
"""A single file would be written as it is."""


class UpkeepRule(msgspec.Struct, frozen=True, kw_only=True):
    """How tables are kept.

    Attributes:
        tables: a glob pattern of their paths, such as "tables/*".
        target_file_bytes: how big files become, about; those with three quarters of it are left.
        min_files: small files of a partition that are worth a file.
        min_age_days: files that are younger are left, for tables that are still written.
        sort_by, z_order_by: the order of the rows that are written, of one of the two kinds.
    """

    tables: str = "*"
    target_file_bytes: int = 128 << 20
    min_files: int = 8
    min_age_days: float = 0.0
    sort_by: tuple[str, ...] = ()
    z_order_by: tuple[str, ...] = ()

    def check(self) -> None:
        """Raise `UsageError` if it cannot be followed."""
        if self.target_file_bytes < 1 or self.min_files < LEAST_FILES or not 0 <= self.min_age_days < 36_500:
            raise UsageError(
                f"The rule for {self.tables!r} cannot be followed: it wants files of {self.target_file_bytes:,} bytes, "
                f"of {self.min_files} files or more, that are {self.min_age_days:g} days old.",
                next=f"Give at least 1 byte, {LEAST_FILES} files and 0 days.",
            )


class TableUpkeep(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a table.

    Attributes:
        path: of the table.
        before, after: how many files went, and how many came with their rows; after is 0 in a dry run.
        bytes_before, bytes_after: of those files.
        problem: why nothing was done, where something should have been; else "".
    """

    path: str
    before: int = 0
    after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    problem: str = ""
