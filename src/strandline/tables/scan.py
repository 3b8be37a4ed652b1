"""Which files of a table have to be read: those that a condition cannot exclude."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from strandline.blob import BlobInfo, is_absolute
from strandline.errors import Corrupted, ObjectMissing
from strandline.results.rows import ObjectInfo
from strandline.tables.columns import Kind, kind_of
from strandline.tables.condition import Condition, Span, can_match
from strandline.tables.layout import is_data_file, partition_values
from strandline.tables.record import TableRecord
from strandline.tables.statistics import Statistics, decode_statistics, spans_of
from strandline.tables.values import partition_value, text_value


@dataclass(frozen=True, slots=True)
class TableFile:
    """A data file of a table.

    Attributes:
        info: the object: its path, size, checksum, and where its bytes are.
        relative: its path below the table's.
        partition: the values of the partition columns, as text, from its logical path; None is null.
    """

    info: ObjectInfo
    relative: str
    partition: dict[str, str | None]

    @property
    def statistics(self) -> Statistics | None:
        """Rows, and for some columns the least and greatest value and nulls, if they were collected."""
        return decode_statistics(self.info.user_metadata)


def data_files(objects: Iterable[object], prefix: str, record: TableRecord) -> Iterator[TableFile]:
    """The data files among the objects below a table's prefix."""
    for info in objects:
        assert isinstance(info, ObjectInfo)
        relative = info.path[len(prefix) :]
        if is_data_file(relative, record.file_format):
            yield TableFile(info, relative, partition_values(relative, record.partition_by))


def rows_in(files: Iterable[TableFile]) -> int | None:
    """How many rows files have together; None if the statistics of one do not tell."""
    return total_rows(file.statistics for file in files)


def total_rows(known: Iterable[Statistics | None]) -> int | None:
    """The rows of what is known of files; None if nothing is known of one."""
    counted = list(known)
    return None if None in counted else sum(one.rows for one in counted if one is not None)


PartitionKey = tuple[object, ...]


def partition_key(relative: str, record: TableRecord) -> PartitionKey:
    """The partition of a file by the values of its folders, however they are spelled: `month=01` is `month=1`."""
    texts = partition_values(relative, record.partition_by)
    kinds = {field["name"]: kind_of(field) for field in record.fields}
    values = ((text, None if text is None else partition_value(text, kinds[name])) for name, text in texts.items())
    return tuple(text if value is None else (type(value).__name__, value) for text, value in values)


class Pruning:
    """Judges files of a table by a condition; partition values are parsed once each."""

    def __init__(self, record: TableRecord, condition: Condition) -> None:
        self._condition = condition
        named = condition.columns()
        self._kinds: dict[str, Kind | None] = {
            # the text of a float is not the number that Spark makes of it: it compares as a double
            field["name"]: None if field["type"] == "float" and field["name"] in record.partition_by else kind_of(field)
            for field in record.fields
            if field["name"] in named
        }
        self._partition = [name for name in record.partition_by if name in named]
        self._needs_statistics = len(self._partition) < len(named)
        self._parsed: dict[tuple[str, str | None], Span] = {}

    def spans(self, file: TableFile) -> dict[str, Span]:
        """What is known of the columns that the condition names."""
        spans = spans_of(file.statistics, self._kinds) if self._needs_statistics else {}
        for name in self._partition:
            text = file.partition[name]
            if (name, text) not in self._parsed:
                self._parsed[name, text] = text_value(text, self._kinds[name])
            spans[name] = self._parsed[name, text]
        return spans

    def needed(self, files: Iterable[TableFile]) -> list[TableFile]:
        """The files that may hold a row for which the condition is true."""
        return [file for file in files if can_match(self._condition, self.spans(file))]


def cut(file: TableFile, place: str, found: int) -> Corrupted:
    """What a read says when a file of a table has another size than is on record."""
    return Corrupted(
        f"The file {file.info.path!r} of {place} has {found:,} bytes instead of {file.info.size:,}: it was cut, or "
        "written over.",
        next="Restore it from a backup of the object store, or read the table from another commit.",
    )


def changed(file: TableFile, place: Callable[[], str], found: BlobInfo) -> Corrupted | None:
    """What a read says if a file is not what is on record: it has another size, or, as one elsewhere, another tag."""
    if found.size != file.info.size:
        return cut(file, place(), found.size)
    address, tag = file.info.physical_address, file.info.checksum
    if is_absolute(address) and tag.startswith("etag:") and tag != f"etag:{found.etag}":
        return Corrupted(
            f"The file {file.info.path!r} of {place()} was written over at {address!r}: what is on record is gone.",
            next="Bring it in again, by an import or a mirror; commits of before refer to bytes that are gone.",
        )
    return None


def vanished(file: TableFile, place: str) -> ObjectMissing:
    """What a read says when the bytes of a table's file are gone."""
    return ObjectMissing(
        f"The file {file.info.path!r} of {place} is gone from the object store: there is nothing at "
        f"{file.info.physical_address!r}.",
        next="Restore it from a backup of the object store, or read the table from another commit.",
    )
