"""The lists of what a collection deletes: one file of sorted keys, or many of them with a list of the files.

Files of parts are written by whatever works on a part, and nothing refers to them before the list of parts is there.
"""

from __future__ import annotations

import io
from collections.abc import Sequence

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from strandline.blob import BlobStore
from strandline.errors import Corrupted
from strandline.ids import new_id
from strandline.tree.rows import search


class ListPart(msgspec.Struct, frozen=True):
    """A file that lists some of what is condemned, sorted.

    Attributes:
        first, last: the least and the greatest of the keys.
        count, bytes: of what they name.
    """

    file: str
    first: str
    last: str
    count: int
    bytes: int

    def may_have(self, wanted: pa.StringArray) -> bool:
        """Whether some of these lie between the ends of the list."""
        between = pc.and_(pc.greater_equal(wanted, self.first), pc.less_equal(wanted, self.last))
        return bool(pc.any(between).as_py())


def encode_keys(keys: pa.StringArray, sizes: pa.Int64Array | None = None) -> bytes:
    """Sorted keys as a Parquet file; with their sizes if a part of it may be taken."""
    out = io.BytesIO()
    columns = {"key": keys} if sizes is None else {"key": keys, "size": sizes}
    pq.write_table(pa.table(columns), out, compression="zstd")
    return out.getvalue()


def decode_keys(body: bytes, name: str) -> pa.StringArray:
    """The keys of a file.

    Raises:
        Corrupted: the bytes are not a list of keys.
    """
    keys: pa.StringArray = _table(body, name).column("key").combine_chunks()
    return keys


def _table(body: bytes, name: str) -> pa.Table:
    try:
        found = pq.read_table(pa.BufferReader(body))
    except (pa.ArrowException, OSError) as error:
        raise _broken(name, error) from error
    if "key" not in found.column_names:
        raise _broken(name, "it has no keys")
    return found


def _broken(name: str, why: object) -> Corrupted:
    return Corrupted(
        f"{name} is not a list of what a collection deletes: {why}.",
        safe="Nothing refers to what was deleted.",
        next="Delete the file: the next collection finds anew what nothing refers to.",
    )


def encode_parts(parts: Sequence[ListPart]) -> bytes:
    return msgspec.json.encode(parts)


def decode_parts(body: bytes, name: str) -> list[ListPart]:
    """The files of a list, in the order of their keys.

    Raises:
        Corrupted: the bytes are not a list of files.
    """
    try:
        return msgspec.json.decode(body, type=list[ListPart])
    except msgspec.MsgspecError as error:
        raise _broken(name, error) from error


def write_part(blobs: BlobStore, folder: str, keys: pa.StringArray, sizes: pa.Int64Array) -> ListPart:
    """Write a file of sorted keys, at least one."""
    file = f"{folder}part-{new_id()}.parquet"
    blobs.put(file, encode_keys(keys, sizes), "create")
    return ListPart(file, keys[0].as_py(), keys[-1].as_py(), len(keys), pc.sum(sizes).as_py() or 0)


def without(blobs: BlobStore, folder: str, part: ListPart, spared: pa.StringArray) -> ListPart | None:
    """Write what a part lists anew, without some sorted keys; None if nothing is left of it."""
    listed = _table(blobs.get(part.file), part.file)
    _, is_spared = search(spared, listed.column("key").combine_chunks())
    if not is_spared.any():
        return part
    rest = listed.filter(pa.array(~is_spared))
    if not len(rest):
        return None
    return write_part(blobs, folder, rest.column("key").combine_chunks(), rest.column("size").combine_chunks())
