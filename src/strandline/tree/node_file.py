"""Nodes as bytes: lists of ranges, or of the nodes below, in files that any reader of Parquet understands.

Named by the hash of what they list: ids, bounds and sizes, not where the files are. So two nodes of one id hold the
same paths, and may have their parts in different files.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import msgspec
import pyarrow as pa
from blake3 import blake3

from strandline.errors import Corrupted
from strandline.ids import MetaRangeId
from strandline.tree.range_file import (
    FLAT_FORMAT,
    ID_BYTES,
    METARANGE_SCHEMA,
    RangeInfo,
    metarange_id,
    read_parquet,
    write_parquet,
)
from strandline.tree.rows import column

TREE_FORMAT = 2
"""What is read. 2 is that of nodes, and of metaranges that list nodes; 1 that of metaranges that list ranges."""
LEVELS_FORMAT = 8
"""The lowest `max_format` of a lake whose large trees get nodes: versions that stop before it know flat trees alone."""


class NodeInfo(msgspec.Struct, frozen=True, gc=False):
    """A node as the node above it, or a metarange, describes it.

    Attributes:
        id: hash of what it lists.
        address: key of its file in the storage namespace; unique to this writing of it.
        min_path, max_path: its first and last path.
        count, raw_bytes: of all ranges below it.
        height: how many levels are below it; 1 if it lists ranges.
        children: how many parts it lists.
    """

    id: str
    address: str
    min_path: str
    max_path: str
    count: int
    raw_bytes: int
    height: int
    children: int


Part = RangeInfo | NodeInfo
"""What a node or a metarange lists."""
NODE_SCHEMA = pa.schema(
    [
        METARANGE_SCHEMA.field("range_id").with_name("id"),
        *[METARANGE_SCHEMA.field(name) for name in METARANGE_SCHEMA.names[1:]],
        pa.field("height", pa.int64(), nullable=False),
        pa.field("children", pa.int64(), nullable=False),
    ]
)
_LENGTH = struct.Struct("<I").pack
_SIZES = struct.Struct("<QQBI").pack


def parts_id(parts: Sequence[Part], kind: bytes) -> str:
    """Hash of what is listed.

    Args:
        kind: of the file: a node, or a metarange that lists nodes.
    """
    pieces: list[bytes] = []
    for part in parts:
        low, high = part.min_path.encode(), part.max_path.encode()
        sizes = _SIZES(part.count, part.raw_bytes, part.height, _children(part))
        pieces += (bytes.fromhex(part.id), _LENGTH(len(low)), low, _LENGTH(len(high)), high, sizes)
    return blake3(b"strandline.%s" % kind + b"".join(pieces)).hexdigest(length=ID_BYTES)


def node_id(parts: Sequence[Part]) -> str:
    return parts_id(parts, b"node.1")


def levelled_id(parts: Sequence[Part]) -> MetaRangeId:
    """The id of a metarange that lists nodes."""
    return MetaRangeId(parts_id(parts, b"metarange.2"))


def _children(part: Part) -> int:
    return part.children if isinstance(part, NodeInfo) else 0


def write_parts(parts: Sequence[Part]) -> bytes:
    """The file of a node, or of a metarange that lists nodes."""
    columns = list(zip(*map(msgspec.structs.astuple, parts), strict=True))
    if not parts[0].height:  # all parts of a file are of one height
        columns += [(0,) * len(parts)] * 2
    arrays = [pa.array(values, field.type) for values, field in zip(columns, NODE_SCHEMA, strict=True)]
    return write_parquet(pa.Table.from_arrays(arrays, schema=NODE_SCHEMA), TREE_FORMAT)


def read_node(data: bytes, info: NodeInfo) -> tuple[Part, ...]:
    """The parts of a node, checked against its id.

    Raises:
        Corrupted: they are others, or it is not a Parquet file.
        NewerFormat: a newer strandline wrote it.
    """
    parts = _read(data, f"Node {info.id}")
    _refuse_other(info.id, parts, node_id, f"Node {info.id}")
    return parts


def read_metarange(data: bytes, expected: MetaRangeId) -> tuple[Part, ...]:
    """The parts of a metarange, checked against its id: ranges, or nodes of one height; raises like `read_node`."""
    name = f"Metarange {expected}"
    parts = _read(data, name)
    _refuse_other(expected, parts, levelled_id if any(part.height for part in parts) else _flat_id, name)
    return parts


def _flat_id(parts: Sequence[Part]) -> str:
    return metarange_id([part for part in parts if isinstance(part, RangeInfo)])


def _schema_of(version: int) -> pa.Schema:
    return METARANGE_SCHEMA if version == FLAT_FORMAT else NODE_SCHEMA


def _read(data: bytes, name: str) -> tuple[Part, ...]:
    table = read_parquet(data, _schema_of, TREE_FORMAT, name)
    columns = [column(table, field).to_pylist() for field in table.schema.names]
    if len(columns) == len(METARANGE_SCHEMA):
        return tuple(map(RangeInfo, *columns))
    return tuple(RangeInfo(*row[:-2]) if row[-2] == 0 else NodeInfo(*row) for row in zip(*columns, strict=True))


def _refuse_other(expected: str, parts: Sequence[Part], id_of: Callable[[Sequence[Part]], str], name: str) -> None:
    """Raise unless the parts are those that an id stands for."""
    try:
        found = id_of(parts)
    except (ValueError, OverflowError, AttributeError, TypeError, struct.error):
        found = "not even computable"
    if found != expected:
        raise Corrupted(
            f"{name} lists other parts than were written: their hash is {found}.",
            next="Restore the file from a backup, or use a commit that does not need it.",
        )
