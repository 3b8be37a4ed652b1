"""Shards, durable collections with exact times, by Arrow's streams: ours, in lakeFS's style."""

from __future__ import annotations

import io
import re

import msgspec
import pyarrow as pa

from strandline.server.messages import Response
from strandline.server.operation import Call, Need, Operation, repository_need
from strandline.server.refusals import BadRequest, TooLarge
from strandline.server.rest import shapes
from strandline.server.rest.arrow_streams import read_rows
from strandline.server.rest.replies import amount_of, json, page
from strandline.shards.shard import Shard

ARROW = (b"Content-Type", b"application/vnd.apache.arrow.stream")
APPEND_MAX_BYTES = 64 << 20
READ_MAX_BYTES = 256 << 20
"""Of rows in memory: more are read by the library, in splits."""
READ_STORED_MAX_BYTES = 64 << 20
"""Of parts in the store, which are compressed: more are not even begun."""
_TIME = re.compile(r"\d{1,18}", re.ASCII)


class ShardColumn(msgspec.Struct):
    """A column of a shard."""

    name: str
    type: str
    nullable: bool


class ShardShape(msgspec.Struct):
    """A shard. Times below `upper` are complete, those from `since` on can be told apart; null is behind all times."""

    name: str
    id: str
    since: int | None
    upper: int | None
    key: list[str]
    columns: list[ShardColumn]


class ShardList(msgspec.Struct):
    """A page of names of shards."""

    pagination: shapes.Pagination
    results: list[str]


class Read(msgspec.Struct, frozen=True):
    """The time to read at; by default the last complete one."""

    as_of: str = ""


class Append(msgspec.Struct, frozen=True):
    """The upper that the shard must have, and the one that it gets.

    Attributes:
        writer, token: make a repetition harmless: a writer's last append is remembered with its token.
    """

    expected_upper: str
    new_upper: str
    writer: str = ""
    token: str = ""


class Appended(msgspec.Struct):
    """What was appended."""

    rows: int
    upper: int | None


def _shard(call: Call) -> Shard:
    return call.services.repository(call.path["repository"]).shard(call.path["shard"])


def _time(text: str, name: str) -> int:
    if not _TIME.fullmatch(text):
        raise BadRequest(f"{name} is a number from 0 on.", next="GET …/shards/NAME shows since and upper.")
    return int(text)


def list_shards(call: Call) -> Response:
    query = call.query
    names = call.services.repository(call.path["repository"]).shards()
    rows = (name for name in names if name.startswith(query.prefix) and name > query.after)
    kept, pagination = page(rows, amount_of(query.amount), lambda name: name)
    return json(200, ShardList(pagination, kept))


def get_shard(call: Call) -> Response:
    shard = _shard(call)
    columns = [ShardColumn(one.name, str(one.type), one.nullable) for one in shard.schema]
    made = ShardShape(shard.name, str(shard.id), shard.since.time, shard.upper.time, list(shard.key), columns)
    return json(200, made)


def read_shard(call: Call) -> Response:
    as_of = _time(call.query.as_of, "as_of") if call.query.as_of else None
    with _shard(call).snapshot(as_of, timeout_s=0) as snapshot:
        stored = sum(piece.part.size for split in snapshot.splits for piece in split.pieces)
        if stored > READ_STORED_MAX_BYTES:
            raise TooLarge(f"The shard has {stored:,} bytes in its store.", next="Read it with the library.")
        rows = snapshot.to_arrow()
        at = snapshot.as_of
    if rows.nbytes > READ_MAX_BYTES:
        raise TooLarge(
            f"The shard has {rows.nbytes:,} bytes at {at}, more than {READ_MAX_BYTES:,}.",
            next="Read it with the library.",
        )
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    return Response(200, sink.getvalue(), [ARROW, (b"X-Strandline-As-Of", b"%d" % at)])


def append_to_shard(call: Call) -> Response:
    query = call.query
    expected, new = _time(query.expected_upper, "expected_upper"), _time(query.new_upper, "new_upper")
    shard = _shard(call)
    data = call.body if isinstance(call.body, bytes) else b"".join(iter(call.body.read, b""))
    rows = read_rows(data) if data else None
    call.still()  # the body may have taken long
    with shard.writer(query.writer) as writer:
        writer.compare_and_append(rows, expected, new, token=query.token or None)
    return json(200, Appended(0 if rows is None else rows.num_rows, new))


_SHARDS = "/repositories/{repository}/shards"
_READ = Need("strandline:ReadShard", "arn:lakefs:fs:::repository/{repository}/shard/{shard}")
_APPEND = Need("strandline:AppendToShard", "arn:lakefs:fs:::repository/{repository}/shard/{shard}")

OPERATIONS = (
    Operation(
        "listShards",
        "GET",
        _SHARDS,
        repository_need("strandline:ReadShards"),
        list_shards,
        "The names of shards",
        {200: ShardList},
        "shards",
        query=shapes.Page,
        is_ours=True,
    ),
    Operation(
        "getShard",
        "GET",
        _SHARDS + "/{shard}",
        _READ,
        get_shard,
        "A shard: its columns, and how far it goes",
        {200: ShardShape},
        "shards",
        is_ours=True,
    ),
    Operation(
        "readShard",
        "GET",
        _SHARDS + "/{shard}/snapshot",
        _READ,
        read_shard,
        "The contents at a time, as a stream of Arrow",
        {200: bytes},
        "shards",
        query=Read,
        cost="long",
        is_ours=True,
    ),
    Operation(
        "appendToShard",
        "POST",
        _SHARDS + "/{shard}/append",
        _APPEND,
        append_to_shard,
        "Append the rows of a stream of Arrow, if the upper is the expected one",
        {200: Appended, 409: shapes.Error},
        "shards",
        query=Append,
        body=bytes,
        body_max=APPEND_MAX_BYTES,
        is_ours=True,
    ),
)
