"""What tables of one kind have in common that are made of the files of the other kind."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.branch.one_shot import Unchanged
from strandline.errors import (
    UsageError,
)
from strandline.iceberg import names
from strandline.iceberg.landing import Plan
from strandline.iceberg.names import Identifier
from strandline.iceberg.tables import Tables
from strandline.repository.refs.ref import Ref
from strandline.tables.table import Table

NAME_MAPPING = "schema.name-mapping.default"


def identifier_of(table: Table, given: str | Sequence[str] | None) -> Identifier:
    """The name of the Iceberg table: what is given, or the one that lies at the table's own path."""
    if given is None:
        if not table.prefix.startswith(names.ROOT):
            raise UsageError(
                f"Iceberg's tables lie below {names.ROOT!r}, and {table.path!r} does not.",
                next='Give the name of the Iceberg table, such as "db.trips".',
            )
        given = table.path[len(names.ROOT) :].split("/")
    return names.check_identifier(given.split(".") if isinstance(given, str) else given)


class Conversion(Tables):
    """What both ways have in common.

    Attributes:
        in_place: the one table takes the place of the other, at the same path.
    """

    def __init__(self, table: Table, identifier: str | Sequence[str] | None) -> None:
        ref = table.ref
        if not isinstance(ref, Ref):
            raise UsageError(f"{table!r} is not a table of a repository.")
        super().__init__(ref)
        self._table = table
        self._named = identifier_of(table, identifier)
        self.in_place = names.folder_of(self._named) == table.prefix

    def _native(self, head: Ref) -> Table:
        return Table(head, self._table.path)

    def _expect_alone(self, plan: Plan, head: Ref) -> None:
        """Demand that nothing comes to lie below the path until the plan lands."""
        since = head.commit_id
        assert since is not None
        plan.unchanged = Unchanged(since, (self._table.prefix,))
