"""What a lake knows of an object, as one value and as columns.

`Entry` is the value that staging keeps under a path; `SCHEMA` has the same fields as columns, and is the schema of the
Parquet files that hold ranges. Everything that touches many objects works on columns.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, cast

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from strandline.clock import Microseconds
from strandline.errors import Corrupted, UsageError

BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]

SCHEMA = pa.schema(
    [
        pa.field("path", pa.string()),
        pa.field("physical_address", pa.string()),
        pa.field("size", pa.int64()),
        pa.field("checksum", pa.string()),
        pa.field("modified_at", pa.timestamp("us", tz="UTC")),
        pa.field("content_type", pa.string()),
        pa.field("user_metadata", pa.string()),
        pa.field("etag", pa.string()),
    ]
)
POOL = pa.system_memory_pool()
"""For columns of whole ranges, which threads hand to each other. With Arrow's default pool (mimalloc) a commit of 100
scattered changes took 25 to 65 ms instead of 25 to 30, and one of 10,000 entries 17 to 50 instead of 17, most of it in
page faults; jemalloc was steady as well, and slower."""
INT64_MAX = 2**63 - 1
"""Sizes and times are columns of signed 64-bit integers."""
IDENTITY = ("checksum", "size", "user_metadata", "content_type")
"""Two objects are the same if these are equal, wherever their bytes are and whenever they were written."""


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An object as the metadata knows it, without its path.

    Attributes:
        physical_address: a key in the repository's storage namespace, or a URL of an imported object.
        size: in bytes.
        checksum: of the content, with the name of the algorithm; or of what stands for it, as "etag:…".
        modified_at: microseconds since 1970 UTC.
        content_type: a media type, or None.
        user_metadata: a JSON object with sorted keys and string values, or None.
        etag: what HTTP's clients know the content by, such as its MD5, or None. It is no part of what an object is:
            the same bytes with another one are the same object.
    """

    physical_address: str
    size: Annotated[int, msgspec.Meta(ge=0, le=INT64_MAX)]
    checksum: str
    modified_at: Annotated[Microseconds, msgspec.Meta(ge=-INT64_MAX, le=INT64_MAX)]
    content_type: str | None = None
    user_metadata: str | None = None
    etag: str | None = None

    @property
    def identity(self) -> tuple[str, int, str | None, str | None]:
        """What entries of the same content have in common, wherever and whenever their bytes were written."""
        return self.checksum, self.size, self.user_metadata, self.content_type


class Tombstone(msgspec.Struct, frozen=True):
    """Stands where a path was deleted and the deletion is not committed."""


TOMBSTONE = Tombstone()
Staged = Entry | Tombstone

CHECKED_AT_ONCE = 512
"""How many entries are checked at a time, by reading them back: 100,000 at once took twice as long, in fresh memory."""

_TOMBSTONE_BYTES = msgspec.msgpack.encode(None)
_encode_all = msgspec.msgpack.Encoder().encode
_SIX, _SEVEN = b"\x96", b"\x97"
"""How msgpack begins an array of six, and one of seven."""
_decode_one = msgspec.msgpack.Decoder(Entry | None).decode
_decode_list = msgspec.msgpack.Decoder(list[Entry | None]).decode


def encode_entry(entry: Entry) -> bytes:
    """An entry as it is staged. One without an ETag is as it was before there were any."""
    value = _encode_all(entry)
    return value if entry.etag is not None else _SIX + value[1:-1]


def hold_etags(values: Iterable[bytes]) -> bool:
    """Whether some staged value has an ETag, which older versions do not know."""
    return any(value.startswith(_SEVEN) for value in values)


def encode_staged(staged: Staged) -> bytes:
    return encode_entry(staged) if isinstance(staged, Entry) else _TOMBSTONE_BYTES


def check_one(entry: Entry) -> bytes:
    """What is staged for one entry that came from outside, in fewer calls than `check_staged`, and with its errors."""
    try:
        value = encode_entry(entry)
        if type(entry) is Entry and _decode_one(value) == entry:
            return value
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, AttributeError):
        pass  # said below
    return check_staged([entry])[0]


def check_staged(staged: Sequence[Staged]) -> list[bytes]:
    """What is staged for entries that came from outside.

    Raises:
        UsageError: one holds what its columns do not, and nobody could read it again.
    """
    values: list[bytes] = []
    for first in range(0, len(staged), CHECKED_AT_ONCE):
        values += _check_few(staged[first : first + CHECKED_AT_ONCE])
    return values


def as_staged(changes: Mapping[str, Entry | None]) -> dict[bytes, bytes]:
    """What is staged for changes by path, of which None deletes; raises as `check_staged`."""
    values = check_staged([TOMBSTONE if entry is None else entry for entry in changes.values()])
    return {path.encode(): value for path, value in zip(changes, values, strict=True)}


def _check_few(staged: Sequence[Staged]) -> list[bytes]:
    if not set(map(type, staged)) <= {Entry}:
        for one in staged:
            if not isinstance(one, Staged):
                raise UsageError(f"{one!r} is not an Entry.", next="Give an Entry.")
    try:
        values = [encode_staged(one) for one in staged]
        read = _decode_list(_as_list(values))
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError) as error:
        raise UsageError(
            f"An object's entry cannot hold what it was given: {error}.",
            next="An address, a checksum and a content type are texts, a size is a number of bytes, a time an integer.",
        ) from error
    if read != list(staged):
        wrong = [one for one, again in zip(staged, read, strict=True) if again != one and again is not None]
        if wrong:
            raise UsageError(f"The entry {wrong[0]!r} would be read as another one.", next="Look at its types.")
    return values


def decode_staged(value: bytes) -> Staged:
    try:
        return _decode_one(value) or TOMBSTONE
    except msgspec.MsgspecError as error:
        raise _bad_entry(error) from error


def are_tombstones(values: Sequence[bytes]) -> bool:
    return values.count(_TOMBSTONE_BYTES) == len(values)


def decode_many(values: Sequence[bytes]) -> list[Entry | None]:
    """Decode staged values in one call; a tombstone becomes None."""
    try:
        return _decode_list(_as_list(values))
    except msgspec.MsgspecError as error:
        raise _bad_entry(error) from error


def _as_list(values: Sequence[bytes]) -> bytes:
    """Values of msgpack as one array of them."""
    return b"\xdd" + len(values).to_bytes(4, "big") + b"".join(values)


def _bad_entry(error: Exception) -> Corrupted:
    return Corrupted(f"A staged entry cannot be read: {error}.", next="Restore the key-value store from a backup.")


def user_metadata_json(metadata: dict[str, str] | None) -> str | None:
    """The canonical text of user metadata: equal maps give equal text."""
    if not metadata:
        return None
    return msgspec.json.encode(metadata, order="sorted").decode()


@dataclass(frozen=True, slots=True)
class Changes:
    """Consecutive changes of a tree, in the order of their paths, each path once.

    Attributes:
        rows: `SCHEMA`; a deletion has nothing but its path.
        deleted: which of the rows are deletions.
    """

    rows: pa.Table
    deleted: BoolArray

    def __len__(self) -> int:
        return len(self.deleted)

    def slice(self, start: int, end: int) -> Changes:
        return Changes(self.rows.slice(start, end - start), self.deleted[start:end])

    @property
    def paths(self) -> pa.StringArray:
        return column(self.rows, "path")


_EMPTY = pa.Table.from_arrays([pa.nulls(0, one.type) for one in SCHEMA], schema=SCHEMA)  # `empty_table` loads pandas


def empty_rows() -> pa.Table:
    """No rows: always the same table, since making one takes longer than looking into a range."""
    return _EMPTY


def column(table: pa.Table, name: str) -> Any:
    """A column as one array; tables of this package have one chunk, so nothing is copied."""
    chunks = table.column(name)
    if chunks.num_chunks == 1:
        return chunks.chunk(0)
    return chunks.combine_chunks() if chunks.num_chunks else pa.array([], chunks.type)


def concat(tables: Sequence[pa.Table]) -> pa.Table:
    if len(tables) == 1:
        return tables[0]
    return pa.concat_tables(tables).combine_chunks(memory_pool=POOL) if tables else empty_rows()


def rows_from_entries(keys: Sequence[bytes], entries: Sequence[Entry | None]) -> pa.Table:
    """Columns of entries; None gives a row with only its path."""
    paths = pa.array(keys, pa.binary(), memory_pool=POOL).cast(pa.string())
    some: Sequence[Any] = entries
    if None in entries:
        some = [entry if entry is not None else _NOTHING for entry in entries]
    columns = [
        paths,
        pa.array([entry.physical_address for entry in some], pa.string(), memory_pool=POOL),
        pa.array([entry.size for entry in some], pa.int64(), memory_pool=POOL),
        pa.array([entry.checksum for entry in some], pa.string(), memory_pool=POOL),
        pa.array([entry.modified_at for entry in some], pa.int64(), memory_pool=POOL).cast(
            SCHEMA.field("modified_at").type
        ),
        pa.array([entry.content_type for entry in some], pa.string(), memory_pool=POOL),
        pa.array([entry.user_metadata for entry in some], pa.string(), memory_pool=POOL),
        pa.array([entry.etag for entry in some], pa.string(), memory_pool=POOL),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


_NOTHING = Entry(*cast("Any", (None, None, None, None)))


def changes_from_staged(keys: Sequence[bytes], values: Sequence[bytes]) -> Changes:
    """Columns of staged pairs that are sorted by key."""
    entries = decode_many(values)
    if None in entries:
        deleted = np.fromiter((entry is None for entry in entries), np.bool_, len(entries))
    else:
        deleted = np.zeros(len(entries), np.bool_)
    return Changes(rows_from_entries(keys, entries), deleted)


def entries_of(table: pa.Table) -> list[tuple[str, Entry]]:
    """Rows as pairs of path and entry."""
    names = SCHEMA.names[1:]
    columns = [
        (column(table, name).cast(pa.int64()) if name == "modified_at" else column(table, name)).to_pylist()
        for name in names
    ]
    return list(zip(column(table, "path").to_pylist(), map(Entry, *columns), strict=True))


def search(paths: pa.StringArray, wanted: pa.StringArray) -> tuple[IntArray, BoolArray]:
    """Where `wanted` paths stand, or would stand, in sorted `paths`, and whether they are there."""
    positions = pc.search_sorted(paths, wanted).to_numpy(zero_copy_only=False).astype(np.int64)
    if not len(paths):
        return positions, np.zeros(len(wanted), np.bool_)
    clipped = np.minimum(positions, len(paths) - 1)
    found = pc.equal(paths.take(pa.array(clipped)), wanted).to_numpy(zero_copy_only=False)
    return positions, found & (positions < len(paths))


def same_identity(left: pa.Table, right: pa.Table) -> BoolArray:
    """For two tables of equal length: in which rows the objects are the same. A missing row equals a missing row."""
    same = np.ones(left.num_rows, np.bool_)
    for name in IDENTITY:
        a, b = column(left, name), column(right, name)
        equal = pc.fill_null(pc.equal(a, b), False)
        if a.null_count and b.null_count:
            equal = pc.or_(equal, pc.and_(pc.is_null(a), pc.is_null(b)))
        same &= equal.to_numpy(zero_copy_only=False)
    return same


def other_etags(old: pa.Table, new: pa.Table) -> BoolArray:
    """For two tables of equal length: in which rows the new side has an ETag that the old one does not have."""
    tags = column(new, "etag")
    if tags.null_count == len(tags):
        return np.zeros(len(tags), np.bool_)
    same = pc.fill_null(pc.equal(column(old, "etag"), tags), False)
    found: BoolArray = pc.and_(tags.is_valid(), pc.invert(same)).to_numpy(zero_copy_only=False)
    return found


def path_hashes(paths: pa.StringArray) -> npt.NDArray[np.uint32]:
    """A well-mixed 32-bit hash of each path, equal on every platform and for ever: it decides where ranges end.

    CRC-32 (as in zlib) is linear, so its bits are mixed by Knuth's multiplicative hashing.
    """
    raw = np.fromiter(map(zlib.crc32, paths.cast(pa.binary()).to_pylist()), np.uint32, len(paths))
    return raw * np.uint32(2_654_435_761)
