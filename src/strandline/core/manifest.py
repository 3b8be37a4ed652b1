"""What a transaction wants to publish, as a file: written before the swap, and enough to publish it from."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from blake3 import blake3

from strandline.clock import Microseconds
from strandline.errors import Corrupted
from strandline.ids import BranchId, CommitId
from strandline.tree.rows import Changes, changes_from_staged, column, encode_staged, entries_of

KEY = b"strandline"
DELETED = "deleted"


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """All of a transaction but its changes.

    Attributes:
        expect_unchanged: prefixes that the job relies on.
        guarded: prefixes in which nobody else may have changed anything since `base`.
        exact: paths that nobody else may have changed.
        shared: other processes worked in it as well.
        files, rows, bytes: what was written; rows is None if some were not counted.
    """

    id: int
    writer: str
    node: str
    branch: str
    branch_id: BranchId
    base: CommitId
    token: str = ""
    message: str = ""
    committer: str = ""
    metadata: dict[str, str] = {}
    position: str | None = None
    begun_at: Microseconds = 0
    expect_unchanged: tuple[str, ...] = ()
    guarded: tuple[str, ...] = ()
    exact: tuple[str, ...] = ()
    on_staged: str = "fail"
    shared: bool = False
    files: int = 0
    rows: int | None = 0
    bytes: int = 0


def sorted_changes(changes: Mapping[bytes, bytes]) -> Changes:
    """Staged pairs by path, as columns in the order of their paths."""
    keys = sorted(changes)
    return changes_from_staged(keys, [changes[key] for key in keys])


def digest_of(changes: Mapping[bytes, bytes]) -> str:
    """A hash of all changes: two processes that resumed one transaction differ in it unless they did the same."""
    digest = blake3()
    for key in sorted(changes):
        value = changes[key]
        digest.update(b"%d %d " % (len(key), len(value)) + key + value)
    return digest.hexdigest()[:32]


def encode_manifest(facts: Facts, changes: Changes) -> bytes:
    table = changes.rows.append_column(DELETED, pa.array(changes.deleted, pa.bool_()))
    table = table.replace_schema_metadata({KEY: msgspec.json.encode(facts)})
    out = io.BytesIO()
    pq.write_table(table, out, compression="lz4", use_dictionary=False)
    return out.getvalue()


def decode_manifest(body: bytes, name: str) -> tuple[Facts, dict[bytes, bytes]]:
    """The facts, and the changes as staged pairs.

    Raises:
        Corrupted: the bytes are not a manifest.
    """
    try:
        table = pq.read_table(pa.BufferReader(body))
        facts = msgspec.json.decode((table.schema.metadata or {})[KEY], type=Facts)
        deleted = np.asarray(column(table, DELETED).to_numpy(zero_copy_only=False), np.bool_)
        rows = table.drop_columns([DELETED]).replace_schema_metadata(None)
    except (pa.ArrowInvalid, KeyError, msgspec.MsgspecError, OSError) as error:
        raise Corrupted(f"{name} is not a manifest of a transaction: {error}.") from error
    kept = entries_of(rows.filter(pa.array(~deleted)).combine_chunks())
    changes = {path.encode(): encode_staged(entry) for path, entry in kept}
    gone: list[str] = column(rows.filter(pa.array(deleted)), "path").to_pylist()
    tombstone = msgspec.msgpack.encode(None)
    return facts, {**changes, **{path.encode(): tombstone for path in gone}}


def encode_deadlist(addresses: Sequence[str]) -> bytes:
    """Physical keys that nothing refers to, and which may be deleted once their transaction is over."""
    out = io.BytesIO()
    pq.write_table(pa.table({"physical_address": pa.array(addresses, pa.string())}), out, compression="lz4")
    return out.getvalue()


def decode_deadlist(body: bytes, name: str) -> list[str]:
    try:
        found: list[str] = pq.read_table(pa.BufferReader(body)).column("physical_address").to_pylist()
    except (pa.ArrowInvalid, KeyError, OSError) as error:
        raise Corrupted(f"{name} is not a deadlist: {error}.") from error
    return found
