"""Streams of Arrow that strangers send: rows are made of them only if they take no more memory than they were sent in.

Source: the IPC format of Arrow (Message.fbs: a message's header, and the field `compression` of a record batch), and
the layout of tables in FlatBuffers.
"""

from __future__ import annotations

import struct

import pyarrow as pa

from strandline.server.refusals import BadRequest, TooLarge

_HEADER_TYPE, _HEADER, _COMPRESSION = 1, 2, 3
"""Numbers of fields: two of a message, one of a record batch."""
_SCHEMA, _RECORD_BATCH = 1, 3


def read_rows(data: bytes) -> pa.Table:
    """The rows of a stream.

    Raises:
        BadRequest: the bytes are no such stream, or it is compressed, or of a type that repeats what it refers to.
        TooLarge: it says that it has more rows than its bytes can hold.
    """
    try:
        for message in _messages(data):
            kind, is_compressed = _kind_of(message.metadata.to_pybytes())
            if kind not in (_SCHEMA, _RECORD_BATCH) or is_compressed:
                raise BadRequest(
                    "The stream of Arrow is compressed, or holds dictionaries.", next="Write it plainly, as by default."
                )
        with pa.ipc.open_stream(data) as stream:
            if repeats := [one.name for one in stream.schema if not _is_plain(one.type)]:
                raise BadRequest(
                    f"The column {repeats[0][:80]!r} is of a type that refers to values elsewhere, or holds none.",
                    next="Cast it to a plain type.",
                )
            rows = stream.read_all()
        if rows.num_rows > 8 * len(data):
            raise TooLarge(f"The stream has more rows than fit into {len(data):,} bytes.", status=400)
        rows.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, struct.error, IndexError) as error:
        raise BadRequest(f"The body is not a stream of Arrow: {error}.") from None
    return rows


def _messages(data: bytes) -> list[pa.ipc.Message]:
    return list(pa.ipc.MessageReader.open_stream(data))


def _kind_of(metadata: bytes) -> tuple[int, bool]:
    """The type of a message's header, and whether it is a record batch that is compressed."""
    (root,) = struct.unpack_from("<I", metadata)
    at = _field(metadata, root, _HEADER_TYPE)
    kind = metadata[at] if at else 0
    header = _field(metadata, root, _HEADER)
    if kind != _RECORD_BATCH or not header:
        return kind, False
    (offset,) = struct.unpack_from("<I", metadata, header)
    return kind, bool(_field(metadata, header + offset, _COMPRESSION))


def _field(data: bytes, table: int, number: int) -> int:
    """Where a field of a table is; 0 if it is left out."""
    (back,) = struct.unpack_from("<i", data, table)
    layout = table - back
    (size,) = struct.unpack_from("<H", data, layout)
    slot = 4 + 2 * number
    if layout < 0 or slot >= size:
        return 0
    (offset,) = struct.unpack_from("<H", data, layout + slot)
    return table + int(offset) if offset else 0


def _is_plain(kind: pa.DataType) -> bool:
    """Whether each value of a type is in its own bytes, so that they cannot grow when they are read."""
    test = pa.types
    if test.is_dictionary(kind) or test.is_run_end_encoded(kind) or test.is_null(kind):
        return False
    if test.is_string_view(kind) or test.is_binary_view(kind) or "view" in str(kind):
        return False
    return all(_is_plain(kind.field(n).type) for n in range(kind.num_fields))
