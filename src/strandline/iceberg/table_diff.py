"""What differs between two refs, table by table: snapshots, files and rows, counted from manifests.

Manifests of data files that both sides share are not read, so the cost follows the change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from strandline.blob import BlobStore
from strandline.errors import NotFound, UsageError
from strandline.iceberg import names
from strandline.iceberg.live import (
    DATA,
    EQUALITY_DELETES,
    FileId,
    Live,
    LiveFile,
    deleted_rows,
    manifests_of,
    read_manifests,
)
from strandline.iceberg.schemas import Json
from strandline.iceberg.tables import Tables
from strandline.iceberg.upkeep import levels_of
from strandline.repository.refs.ref import Ref
from strandline.results.rows import ObjectInfo

Change = Literal["created", "dropped", "replaced", "changed"]


class SnapshotMade(msgspec.Struct, frozen=True):
    """A snapshot that only one side has."""

    id: int
    operation: str
    at_ms: int


class TableDifference(msgspec.Struct, frozen=True, kw_only=True):
    """How a table differs between two refs.

    Attributes:
        change: "replaced" if both have a table of the name, and it is not the same one.
        snapshots: that only the right side has, oldest first.
        gone_snapshots: how many only the left side has.
        added_files, removed_files: data files.
        added_rows, removed_rows: as manifests count them: a row that was written again counts on both sides. None if
            rows are deleted by their values, which nobody counts without reading them.
        shape_changed: whether columns, partitions, sort orders or properties differ.
    """

    table: str
    change: Change
    snapshots: tuple[SnapshotMade, ...] = ()
    gone_snapshots: int = 0
    added_files: int = 0
    removed_files: int = 0
    added_rows: int | None = 0
    removed_rows: int | None = 0
    shape_changed: bool = False


def diff(left: Ref, right: Ref, table: str | Sequence[str] | None = None) -> list[TableDifference]:
    """The tables that differ between two refs, by name.

    Args:
        left, right: of one repository; what is staged on a branch does not count.
        table: one of them, as `namespace.name`; by default all.

    Raises:
        UsageError: the refs are of two repositories, or one is an open transaction.
        NotFound: neither has the table.
        Corrupted: a manifest cannot be read.
    """
    for ref in (left, right):
        if not isinstance(ref, Ref):
            raise UsageError(
                f"{ref!r} is not a ref.", next="Open it first: a name alone does not say of which repository."
            )
    prefix = names.ROOT
    if table is not None:
        prefix = names.folder_of(names.check_identifier(levels_of(table)))
        if not left.exists(prefix + names.POINTER) and not right.exists(prefix + names.POINTER):
            raise NotFound(
                f"Neither {left.place} nor {right.place} has an Iceberg table {names.shown(levels_of(table))!r}.",
                next="Check its name: `strandline iceberg ls` shows those of a ref.",
            )
    end = "/" + names.POINTER
    found = []
    for change in left.diff(right, prefix):
        path = change.path
        if path.endswith(end) and (table is None or path == prefix + names.POINTER):
            identifier = tuple(path[len(names.ROOT) : -len(end)].split("/"))
            found.append(_difference(left, right, identifier, change.before, change.after))
    return found


def _difference(
    left: Ref, right: Ref, identifier: names.Identifier, before: ObjectInfo | None, after: ObjectInfo | None
) -> TableDifference:
    blobs = left._core.resolver.namespace
    sides = [
        None if info is None else Tables(ref).metadata_of(info, identifier)
        for ref, info in ((left, before), (right, after))
    ]
    old, new = sides
    snapshots = [{one["snapshot-id"]: one for one in (side or {}).get("snapshots") or ()} for side in sides]
    made = [one for number, one in snapshots[1].items() if number not in snapshots[0]]
    files = _files(blobs, sides)
    rows = _rows(blobs, *files)
    change: Change = "changed"
    if old is None or new is None:
        change = "created" if old is None else "dropped"
    elif old["table-uuid"] != new["table-uuid"]:
        change = "replaced"
    return TableDifference(
        table=names.shown(identifier),
        change=change,
        snapshots=tuple(_shown(one) for one in sorted(made, key=lambda one: one["timestamp-ms"])),
        gone_snapshots=len(snapshots[0].keys() - snapshots[1].keys()),
        added_files=len(files[1].data.keys() - files[0].data.keys()),
        removed_files=len(files[0].data.keys() - files[1].data.keys()),
        added_rows=rows[1],
        removed_rows=rows[0],
        shape_changed=change == "changed" and _shape(old) != _shape(new),
    )


def _shown(snapshot: Json) -> SnapshotMade:
    operation = str((snapshot.get("summary") or {}).get("operation", ""))
    return SnapshotMade(snapshot["snapshot-id"], operation, snapshot["timestamp-ms"])


def _shape(table: Json | None) -> list[object]:
    held = table or {}
    kept = ("current-schema-id", "schemas", "default-spec-id", "partition-specs", "default-sort-order-id", "properties")
    return [held.get(name) for name in kept]


def _files(blobs: BlobStore, sides: Sequence[Json | None]) -> tuple[Live, Live]:
    """What each side consists of, without the data files of manifests that both have; with all delete files."""
    listed = [[] if side is None else manifests_of(blobs, side) for side in sides]
    paths = [{one["manifest_path"] for one in some} for some in listed]
    left, right = (
        [one for one in some if one["manifest_path"] not in other or (one.get("content") or DATA) != DATA]
        for some, other in zip(listed, reversed(paths), strict=True)
    )
    return read_manifests(blobs, left), read_manifests(blobs, right)


def _rows(blobs: BlobStore, left: Live, right: Live) -> tuple[int | None, int | None]:
    """The rows that only the left side has, and those that only the right side has.

    Delete files of one side alone tell of rows that the other side has; of a file that only one side has, the rows
    that are deleted there are nowhere.
    """
    pairs = ((left, right), (right, left))
    for side, other in pairs:
        alone = (side.deletes[key] for key in side.deletes.keys() - other.deletes.keys())
        if any(one.content == EQUALITY_DELETES for one in alone):
            return None, None
    gone, came = (_names(side.data.keys() - other.data.keys()) for side, other in pairs)
    needs_all = bool(gone or came)
    counts = [_deleted(blobs, side.deletes, other.deletes, needs_all=needs_all) for side, other in pairs]
    only_left = sum(one.rows for (path, _), one in left.data.items() if path in gone)
    only_right = sum(one.rows for (path, _), one in right.data.items() if path in came)
    only_left -= sum(count for path, count in counts[0].items() if path in gone)
    only_right -= sum(count for path, count in counts[1].items() if path in came)
    for path in counts[0].keys() | counts[1].keys():
        if path not in gone and path not in came:
            deleted = counts[1][path] - counts[0][path]
            only_left, only_right = only_left + max(deleted, 0), only_right + max(-deleted, 0)
    return max(only_left, 0), max(only_right, 0)


def _names(files: Iterable[FileId]) -> set[str]:
    return {path for path, _ in files}


def _deleted(
    blobs: BlobStore, deletes: Mapping[FileId, LiveFile], others: Mapping[FileId, LiveFile], *, needs_all: bool
) -> Counter[str]:
    """How many rows of each data file are deleted: by delete files that the other side does not have, or by all."""
    found: Counter[str] = Counter()
    for key, one in deletes.items():
        if one.content != EQUALITY_DELETES and (needs_all or key not in others):
            found.update(deleted_rows(blobs, one))
    return found
