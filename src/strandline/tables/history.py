"""The history of a table: the commits that changed it, and how.

What a commit did to files follows from two trees. Which operation that was, and how many of the rows in the new files
are old ones that were only written again, is in the user metadata of the mark that an overwrite leaves.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime

import msgspec
import pyarrow as pa
from blake3 import blake3

from strandline.clock import Microseconds, from_us
from strandline.ids import CommitId
from strandline.results.rows import ObjectInfo, Results
from strandline.tables.layout import folder_of
from strandline.tables.place import TableRef
from strandline.tables.record import RECORD_NAME, TableRecord
from strandline.tables.scan import TableFile, data_files, rows_in


class TableChange(msgspec.Struct, frozen=True):
    """What a commit did to a table, against its first parent.

    Attributes:
        added_files, removed_files: data files; one whose content changed at its path counts as both.
        added_rows, removed_rows: None if the statistics of a file do not tell.
        added_bytes, removed_bytes: of those files.
        schema_changed: whether the table record changed, or came, or went.
        operation: "create", "append", "overwrite", "overwrite_partitions", "overwrite where …", "rewrite" of files,
            "merge" of branches, "schema", "drop", "change" for all else; several, with commas, if several writes became
            one commit.
        inserted_rows, deleted_rows: that really came and went: rows of files that an "overwrite where" wrote again
            unchanged count as neither. None if nobody counted, as for several such writes in one commit.
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
    operation: str
    inserted_rows: int | None
    deleted_rows: int | None

    @property
    def date(self) -> datetime:
        """When the commit was made, in UTC."""
        return from_us(self.date_us)


class TableHistory(Results[TableChange]):
    """The commits that changed a table, newest first."""

    _titles = ("commit", "date", "committer", "message", "operation", "files", "rows")

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
            "operation": pa.string(),
            "schema_changed": pa.bool_(),
        }
        made = pa.table({name: pa.array(columns[name], types[name]) for name in names})
        at = names.index("date_us")
        return made.set_column(at, "date", made.column("date_us").cast(pa.timestamp("us", "UTC")))

    def _cells(self, row: TableChange) -> tuple[object, ...]:
        files = f"+{row.added_files:,} −{row.removed_files:,}"
        rows = ""
        if row.inserted_rows is not None and row.deleted_rows is not None:
            rows = f"+{row.inserted_rows:,} −{row.deleted_rows:,}"
        return row.commit[:12], row.date, row.committer, row.message, row.operation, files, rows


# --- marks of overwrites ----------------------------------------------------------------------------------------------

KEY = "strandline.overwrite"
REWRITE = "rewrite"
"""The mode of a write of rows that the table has already, into other files."""
WHERE_MAX_CHARS = 200
DIGEST_CHARS = 20


class Mark(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an overwrite says of itself, in the user metadata of the objects that mark what it replaced.

    Attributes:
        write: the name of its physical folder.
        mode: "overwrite", "overwrite_partitions" or "rewrite".
        where: the condition of the rows that it replaced, cut to 200 characters; "" for all.
        new_rows: rows that the caller brought; None if nobody counted.
        replaced: `digest_of` the files that it took away; "" if it replaced all.
    """

    write: str
    mode: str
    where: str = ""
    new_rows: int | None = None
    replaced: str = ""

    @property
    def operation(self) -> str:
        return f"{self.mode} where {self.where}" if self.where else self.mode


def encode_mark(mark: Mark) -> dict[str, str]:
    """The user metadata of the mark's object."""
    return {KEY: msgspec.json.encode(mark).decode()}


def decode_mark(user_metadata: str | None, *, is_whole: bool) -> Mark:
    """The mark of an object.

    Args:
        is_whole: whether it lies in the table itself, not in a partition: all that is known of marks that earlier
            versions left.
    """
    try:
        return msgspec.json.decode(json.loads(user_metadata or "{}")[KEY], type=Mark)
    except (ValueError, KeyError, TypeError, msgspec.MsgspecError):
        return Mark("", "overwrite" if is_whole else "overwrite_partitions")


class Files(msgspec.Struct, frozen=True):
    """Data files that came, or that went.

    Attributes:
        writes: the names of the physical folders that they lie in; "" for what strandline did not write.
        rows: of all of them; None if the statistics of one do not tell.
        digest: `digest_of` them.
    """

    writes: frozenset[str]
    count: int
    rows: int | None
    digest: str


def digest_of(addresses: Iterable[str]) -> str:
    """Tells one set of files from another by their physical addresses."""
    return blake3("\n".join(sorted(addresses)).encode()).hexdigest()[:DIGEST_CHARS]


def write_of(physical_address: str) -> str:
    """The name of the write whose folder a file lies in, or ""."""
    parts = physical_address.split("/")
    return next((part.removeprefix("sl_write=") for part in parts if part.startswith("sl_write=")), "")


def operation_of(
    marks: Iterable[Mark], added: Files, removed: Files, *, came: bool, went: bool, is_merge: bool, schema_changed: bool
) -> str:
    """Which operation a commit was to a table.

    Args:
        marks: that were made for the commit; a revert or a copy brings older ones back.
    """
    if is_merge:
        return "merge"
    if went:
        return "drop"
    if came:
        return "create"
    found = list(dict.fromkeys(mark.operation for mark in marks))
    others = added.writes - {mark.write for mark in marks}
    if added.count and (not found or (others and all(mark.write for mark in marks))):
        found.append("change" if removed.count and not found else "append")
    elif removed.count and not found:
        found.append("change")
    if schema_changed and not found:
        found.append("schema")
    return ", ".join(found) or "change"


def really_changed(marks: Sequence[Mark], added: Files, removed: Files) -> tuple[int | None, int | None]:
    """How many rows came and went, without those that were only written again."""
    if not removed.count or not any(mark.where or mark.mode == REWRITE or not mark.write for mark in marks):
        return added.rows, removed.rows
    mark = marks[0]
    is_alone = all(other.write == mark.write for other in marks) and added.writes <= {mark.write}
    if not is_alone or added.rows is None or removed.rows is None or mark.new_rows is None:
        return None, None
    if removed.digest != mark.replaced or not 0 <= mark.new_rows <= added.rows:
        return None, None  # another write had touched the same files before
    return mark.new_rows, removed.rows - (added.rows - mark.new_rows)


# --- what a commit did -----------------------------------------------------------------------------------------------


def change_of(
    path: str, now: TableRef, before: TableRef | None, new: TableRecord | None, old: TableRecord | None
) -> TableChange:
    """What a commit did to the table at a path.

    Args:
        now, before: the commit, and its first parent, or None.
        new, old: the records of the table there; None where there is none.
    """
    prefix, record_path = f"{path}/", f"{path}/{RECORD_NAME}"
    commit = now.get_commit()
    sides: tuple[list[ObjectInfo], list[ObjectInfo]] = ([], [])
    schema_changed = False
    marks = []
    since_us = 0 if before is None else before.get_commit().date_us
    is_transaction = "strandline.transaction" in commit.metadata  # which may have been begun before its parent
    for change in () if before is None else before.diff(now.commit_id, prefix):
        schema_changed = schema_changed or change.path == record_path
        if folder := change.after is not None and folder_of(change.path):
            mark = decode_mark(change.after.user_metadata, is_whole=folder == path)
            marks.append((mark, is_transaction or change.after.modified_at_us >= since_us))
        for side, info in zip(sides, (change.after, change.before), strict=True):
            if info is not None:
                side.append(info)
    nothing = TableRecord(fields=())
    added = list(data_files(sides[0], prefix, new or old or nothing))
    removed = list(data_files(sides[1], prefix, old or new or nothing))
    came, went = _files_of(added), _files_of(removed)
    inserted, deleted = really_changed([mark for mark, _ in marks], came, went)
    return TableChange(
        commit=commit.id,
        date_us=commit.date_us,
        committer=commit.committer,
        message=commit.message,
        added_files=len(added),
        removed_files=len(removed),
        added_rows=came.rows,
        removed_rows=went.rows,
        added_bytes=sum(file.info.size for file in added),
        removed_bytes=sum(file.info.size for file in removed),
        schema_changed=schema_changed,
        operation=operation_of(
            [mark for mark, is_new in marks if is_new],
            came,
            went,
            came=old is None and new is not None,
            went=new is None and old is not None,
            is_merge=len(commit.parents) > 1,
            schema_changed=schema_changed,
        ),
        inserted_rows=inserted,
        deleted_rows=deleted,
    )


def _files_of(files: list[TableFile]) -> Files:
    writes = frozenset(write_of(file.info.physical_address) for file in files)
    digest = digest_of(file.info.physical_address for file in files)
    return Files(writes, len(files), rows_in(files), digest)
