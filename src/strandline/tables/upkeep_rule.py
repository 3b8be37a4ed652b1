"""Rules for the upkeep of tables, and what became of a table by them."""

from __future__ import annotations

import msgspec

from strandline.errors import UsageError

LEAST_BYTES = 1 << 20
LEAST_FILES = 2
"""A single file would be written as it is."""


class UpkeepRule(msgspec.Struct, frozen=True, kw_only=True):
    """How tables are kept.

    Attributes:
        tables: a glob pattern of their paths, such as "tables/*"; a "*" stands for slashes too.
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
        try:
            msgspec.convert(msgspec.structs.asdict(self), UpkeepRule)
        except msgspec.ValidationError as error:
            raise UsageError(f"The rule for {self.tables!r} cannot be followed: {error}.", next="Mend it.") from error
        if self.sort_by and self.z_order_by:
            raise UsageError(
                f"Rows have one order, and the rule for {self.tables!r} has two.", next="Give one of them."
            )
        if self.target_file_bytes < LEAST_BYTES or self.min_files < LEAST_FILES or not 0 <= self.min_age_days < 36_500:
            raise UsageError(
                f"The rule for {self.tables!r} cannot be followed: it wants files of {self.target_file_bytes:,} bytes, "
                f"of {self.min_files} files or more, that are {self.min_age_days:g} days old.",
                next=f"Give at least {LEAST_BYTES:,} bytes, {LEAST_FILES} files and 0 days.",
            )


class TableUpkeep(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a table.

    Attributes:
        path: of the table.
        before, after: how many files went, and how many came with their rows; after is 0 in a dry run.
        bytes_before, bytes_after: of those files.
        problem: why nothing was done, where something should have been; else "".
        left: why the table is not kept by rules; else "".
    """

    path: str
    before: int = 0
    after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    problem: str = ""
    left: str = ""
