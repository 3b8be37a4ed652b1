"""Native tables as Iceberg tables, and back, without copying data; what tables ask for through `engines`."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.iceberg.from_iceberg import Release
from strandline.iceberg.to_iceberg import Adoption
from strandline.tables.outcomes import TableConverted
from strandline.tables.table import Table


def to_iceberg(table: Table, identifier: str | Sequence[str] | None) -> TableConverted:
    """Make an Iceberg table of the files of a native one; see `Table.to_iceberg`."""
    return Adoption(table, identifier).publish()


def from_iceberg(table: Table, identifier: str | Sequence[str] | None) -> TableConverted:
    """Make a native table of the files of an Iceberg one; see `Table.from_iceberg`."""
    return Release(table, identifier).publish()
