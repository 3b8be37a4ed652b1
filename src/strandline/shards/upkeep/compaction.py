"""Merging batches of a shard: fewer parts, and no history that nobody may read any more.

Anybody may do it, several at once, and stop at any moment: until the merged batch is on record nobody knows of it, and
only one takes the place of what it was made from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.blob.store import BlobNotFound
from strandline.errors import Corrupted
from strandline.ids import new_id
from strandline.shards.deciding.machine import Machine
from strandline.shards.rows.batches import PART_TARGET_BYTES
from strandline.shards.rows.codec import CODECS, Codec, deserialised
from strandline.shards.rows.contents import Piece, Rows, pieces_of
from strandline.shards.rows.parts import PartWriter
from strandline.shards.rows.updates import advanced, concatenated, consolidated, in_order
from strandline.shards.state.frontier import TOP
from strandline.shards.state.state import Batch, Part, State
from strandline.shards.state.trace import Merge, Merged, worth_merging
from strandline.shards.state.transitions import apply_merge

PASS_MAX_ROWS = 4_000_000
"""So many updates are merged in memory at once; more are merged by ranges of their keys, one after the other."""
SAMPLE_VALUES = 10_000
ATTEMPTS = 20
"""How often a merge of everything is begun again because somebody else merged something meanwhile."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """What became of one merge.

    Attributes:
        batches, rows: that were merged.
        rows_after: what they became.
    """

    outcome: Merged
    batches: int
    rows: int
    rows_after: int


def rows_of(machine: Machine, state: State) -> Rows:
    """How the rows of a state are read."""
    return Rows(machine.place.blobs.url, machine.place.folder, state.codec, state.schemas[state.schema_id])


def compact_once(
    machine: Machine, choose: Callable[[State], tuple[Batch, ...]] = lambda state: worth_merging(state.batches)
) -> Compaction | None:
    """Merge the batches that are most worth it; None if none are."""
    state = machine.refreshed()
    chosen = choose(state)
    if not chosen or state.is_tombstone:
        return None
    try:
        output = merged(machine, state, chosen)
    except BlobNotFound:  # somebody else merged them, and they were collected
        return Compaction(Merged.GONE, len(chosen), sum(batch.rows for batch in chosen), 0)
    merge = Merge(tuple(batch.id for batch in chosen), output)
    outcome = apply(machine, merge)
    return Compaction(outcome, len(chosen), sum(batch.rows for batch in chosen), output.rows)


def compact_all(machine: Machine) -> Iterator[Compaction]:
    """Merge all batches into one, whatever it takes; what is one batch without history to forget stays."""
    for _ in range(ATTEMPTS):
        done = compact_once(machine, _everything)
        if done is None:
            return
        yield done
        if done.outcome is not Merged.GONE:
            return


def _everything(state: State) -> tuple[Batch, ...]:
    batches, since = state.batches, state.since
    if len(batches) > 1 or (batches and batches[0].since < min(since, batches[0].upper)):
        return tuple(batches)
    return ()


def apply(machine: Machine, merge: Merge) -> Merged:
    """Put a merge on record.

    Its parts are deleted if it surely never was on record. After a lost reply nobody can be sure: it may have been, and
    been merged further, while readers of an older state still need it. Then they are left to the sweeper.
    """
    may_have_happened = False

    def lost() -> None:
        nonlocal may_have_happened
        may_have_happened = True

    outcome = machine.apply(lambda state, _: apply_merge(state, merge), lost=lost)
    if outcome in (Merged.GONE, Merged.USELESS) and not may_have_happened:
        place = machine.place
        place.blobs.delete_many(place.blob_key(part.key) for part in merge.output.parts if part.key)
    return outcome


def merged(machine: Machine, state: State, batches: Sequence[Batch]) -> Batch:
    """One batch with the updates of neighbours, as far as somebody may still tell them apart.

    Args:
        state: that the batches are from; its since is the output's.

    Raises:
        BlobNotFound: a part was collected.
    """
    since = state.since
    rows = rows_of(machine, state)
    codec = CODECS[state.codec](*deserialised(rows.schema))
    place = machine.place
    writer = PartWriter(place.blobs, place.folder, f"compaction-{new_id()}", state.schema_id, place.inline_max_bytes)
    parts: list[Part] = []
    if since < TOP:  # else nobody can read any of it
        pieces = [piece for batch in batches for piece in pieces_of(batch)]
        seen = 0
        for where in _passes(machine, rows, codec, pieces):
            table = concatenated(rows.read(pieces, machine.place.blobs, where=where), rows.arrow_schema)
            seen += table.num_rows
            table = in_order(consolidated(advanced(table, since)), codec.key)
            parts += _written(writer, table)
        if seen != _count(machine, rows, pieces):
            raise Corrupted(
                f"A compaction of {state.name!r} read {seen:,} updates, which are not all: it is given up.",
                next="Report this, with the schema of the shard.",
            )
    one_time = len({(part.first, part.last) for part in parts}) <= 1 and all(part.first == part.last for part in parts)
    return Batch(new_id(), batches[0].lower, batches[-1].upper, since, tuple(parts), is_distinct=one_time)


def _count(machine: Machine, rows: Rows, pieces: Sequence[Piece]) -> int:
    """How many updates pieces have; those that count in part only are read for it."""
    whole = sum(piece.part.rows for piece in pieces if piece.lower is None)
    cut = [piece for piece in pieces if piece.lower is not None]
    counts: list[int] = [table.num_rows for table in rows.read(cut, machine.place.blobs, columns=[])]
    return whole + sum(counts)


def _written(writer: PartWriter, table: pa.Table) -> Iterator[Part]:
    if not table.num_rows:
        return
    step = max(1, table.num_rows * PART_TARGET_BYTES // max(1, table.nbytes))
    for start in range(0, table.num_rows, step):
        yield writer.write(table.slice(start, step), is_sorted=True)


def _passes(machine: Machine, rows: Rows, codec: Codec, pieces: Sequence[Piece]) -> Iterator[pc.Expression | None]:
    """Conditions on the first column of the key, each of which about as many updates meet as fit in memory.

    Each update meets exactly one: nulls and NaN, which are in no order, meet the last.
    """
    count = sum(piece.part.rows for piece in pieces)
    if count <= PASS_MAX_ROWS:
        yield None
        return
    name = codec.key[0]
    kind = rows.arrow_schema.field(name).type
    samples = []
    for piece in pieces:
        column = rows.read([piece], machine.place.blobs, columns=[name])[0].column(name).drop_null()
        if pa.types.is_floating(kind):
            column = column.filter(pc.invert(pc.is_nan(column)))
        step = max(1, len(column) * len(pieces) // SAMPLE_VALUES)
        samples.append(column.take(np.arange(0, len(column), step)))
    values = pa.chunked_array([chunk for sample in samples for chunk in sample.chunks], kind)
    ordered = values.take(pc.sort_indices(values))
    wanted = -(-count // PASS_MAX_ROWS)
    at = sorted({len(ordered) * part // wanted for part in range(1, wanted)})
    bounds = pc.unique(ordered.take(at)) if len(ordered) else ordered
    field = pc.field(name)
    if not len(bounds):
        yield None
        return
    yield field < bounds[0]
    for low, high in pairwise(bounds):
        yield (field >= low) & (field < high)
    unordered = field.is_null(nan_is_null=True) if pa.types.is_floating(kind) else field.is_null()
    yield (field >= bounds[-1]) | unordered
