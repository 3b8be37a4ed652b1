"""Work on all Iceberg tables of a branch or a repository: old snapshots, and lakes that were moved."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from strandline.blob import BlobStore
from strandline.errors import UsageError
from strandline.iceberg import names
from strandline.iceberg.expiry import expiring
from strandline.iceberg.names import Identifier
from strandline.iceberg.publishing import ATTEMPTS, url_of
from strandline.iceberg.refusals import Stale
from strandline.iceberg.relocation import Relocated
from strandline.iceberg.relocation import relocate as relocate_files
from strandline.iceberg.tables import NoSuchTable, TableChange, Tables
from strandline.progress import Progress, no_progress
from strandline.repository.branch import Branch
from strandline.repository.refs.ref import Ref
from strandline.repository.repository import Repository

AT_ONCE = 100
"""Tables that change in one commit: more would hold up the branch's other writers."""


@dataclass(frozen=True, slots=True)
class Expired:
    """What left a table.

    Attributes:
        snapshots: how many.
        refs: the names of those that went with them.
    """

    table: str
    snapshots: int
    refs: tuple[str, ...] = ()


def expire(
    branch: Branch,
    table: str | Sequence[str] | None = None,
    *,
    older_than: datetime | None = None,
    keep: int | None = None,
    committer: str | None = None,
) -> list[Expired]:
    """Remove old snapshots from the metadata of a branch's tables, in a commit. Deletes no file.

    Args:
        table: one of them, as `namespace.name`; by default all.
        older_than: an aware time: snapshots that were made before it may go. By default, what each table's properties
            say: `history.expire.max-snapshot-age-ms`, 5 days unless they do.
        keep: how many snapshots each branch of a table keeps at least.

    Raises:
        UsageError: a time without a time zone, or a number below 1.
        NotFound: the table does not exist.
        Stale: others keep changing the tables.
    """
    if older_than is not None and older_than.tzinfo is None:
        raise UsageError(f"{older_than} has no time zone.", next="Give a time with a time zone, such as UTC.")
    before = None if older_than is None else int(older_than.astimezone(UTC).timestamp() * 1_000)
    tables = Tables(branch, committer=committer)
    wanted = [levels_of(table)] if table is not None else list(all_tables(branch))
    done: list[Expired] = []
    for first in range(0, len(wanted), AT_ONCE):
        changes = _expire_some(tables, wanted[first : first + AT_ONCE], before, keep, is_named=table is not None)
        done += [_told(change) for change in changes]
    return done


def _expire_some(
    tables: Tables, wanted: Sequence[Identifier], before: int | None, keep: int | None, *, is_named: bool
) -> list[TableChange]:
    """Expire what may go of some tables, in one commit; decided anew if a writer of one of them came first."""
    for attempt in range(1, ATTEMPTS + 1):
        changes: list[TableChange] = []
        for identifier in wanted:
            try:
                held = tables.load(identifier).metadata
            except NoSuchTable:
                if is_named:
                    raise
                continue  # dropped since the tables were listed
            updates = expiring(held, tables.now_ms, older_than_ms=before, keep=keep)
            if updates:
                demands = [{"type": "assert-table-uuid", "uuid": held["table-uuid"]}]
                demands += [
                    {"type": "assert-ref-snapshot-id", "ref": name, "snapshot-id": ref["snapshot-id"]}
                    for name, ref in (held.get("refs") or {}).items()
                ]
                changes.append(TableChange(identifier, demands, updates))
        try:
            if changes:
                tables.commit(changes)
            return changes
        except (Stale, NoSuchTable):
            if attempt == ATTEMPTS:
                raise
    return []


def _told(change: TableChange) -> Expired:
    removed = [one for one in change.updates if one["action"] == "remove-snapshots"]
    refs = tuple(one["ref-name"] for one in change.updates if one["action"] == "remove-snapshot-ref")
    return Expired(names.shown(change.identifier), sum(len(one["snapshot-ids"]) for one in removed), refs)


def levels_of(table: str | Sequence[str]) -> Identifier:
    """The levels of a name that a person wrote."""
    return tuple(table.split(".")) if isinstance(table, str) else tuple(table)


def all_tables(ref: Ref, end: str = names.POINTER) -> Iterator[Identifier]:
    """The names of all tables at a ref, or of all views."""
    for row in ref.list(names.ROOT):
        if row.path.endswith(f"/{end}"):
            yield tuple(row.path[len(names.ROOT) : -len(end) - 1].split("/"))


def relocate(repository: Repository, progress: Progress = no_progress) -> Relocated:
    """Put the addresses right in the files of a repository's tables, after its lake was moved or copied.

    Iceberg's files name each other by whole addresses. Readers of this lake's catalogs need this once after a move;
    what it writes anew stays where it is, and commits and tags are untouched. May be interrupted and repeated.

    Args:
        progress: told what is being done, how much of it is done, and of how much.
    """
    return relocate_in(repository._core.stores.trees.blobs.own, progress)


def relocate_in(namespace: BlobStore, progress: Progress = no_progress) -> Relocated:
    """The same of a storage namespace, which may have no name in its lake yet."""
    return relocate_files(namespace, partial(url_of, namespace), progress)
