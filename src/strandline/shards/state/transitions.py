"""How the state of a shard changes: pure functions from a state to a step, with no I/O and no clock.

A step without a state is an answer that needs no new sequence number. `sealed` finishes a step: it numbers the state,
dates it, and lets leases end, which only ever happens in a state that is decided through consensus.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec
from msgspec.structs import replace

from strandline.clock import Microseconds
from strandline.shards.state.frontier import TOP
from strandline.shards.state.state import (
    NEVER,
    Batch,
    DurableReaderRecord,
    LeasedReader,
    Part,
    ReaderId,
    Rollup,
    ShardId,
    State,
    WriterId,
    WriterRecord,
)
from strandline.shards.state.trace import Merge, Merged, with_merge

INLINE_MAX_BYTES = 32_768
"""A part that is smaller lies in the state itself (exclusive): one synced write instead of three, or of a request.
A thousand rows of some numbers do."""
INLINE_TOTAL_BYTES = 1 << 20
"""So many bytes of batches may lie in the state itself; beyond, batches are written as blobs (exclusive)."""

Outcome = TypeVar("Outcome")


@dataclass(frozen=True, slots=True)
class Step(Generic[Outcome]):
    """What a command comes to: an answer, and the state that it needs, if it changes anything."""

    outcome: Outcome
    state: State | None = None


def initial(shard: ShardId, name: str, codec: str, schema: bytes) -> State:
    return State(shard, name, 0, 0, "", codec, {1: schema})


def sealed(before: State | None, after: State, now_us: Microseconds, host: str) -> State:
    """The next state as it is written: numbered, dated, and without those whose lease is over.

    An ended lease does not move `since`: of two that end one after the other, the second could still mean what the
    first one's end would have taken from it.
    """
    walltime_us = now_us if before is None else max(now_us, before.walltime_us + 1)
    readers = {
        id: reader for id, reader in after.readers.items() if reader.heartbeat_us + reader.lease_s * 1_000_000 >= now_us
    }
    writers = {
        id: writer
        for id, writer in after.writers.items()
        if writer.lease_s == NEVER or writer.heartbeat_us + writer.lease_s * 1_000_000 >= now_us
    }
    return replace(
        after,
        seqno=1 if before is None else before.seqno + 1,
        walltime_us=walltime_us,
        host=host,
        readers=readers if len(readers) < len(after.readers) else after.readers,
        writers=writers if len(writers) < len(after.writers) else after.writers,
    )


# --- writers --------------------------------------------------------------------------------------------------------


class Append(msgspec.Struct, frozen=True, tag=True):
    """One compare-and-append.

    Attributes:
        expected: demanded of the shard's upper.
        upper: what it becomes.
        batch: the updates, described as [expected, upper); None to move the upper alone.
        token: of the call; where it is on record, the call was done.
    """

    writer: WriterId
    lease_s: int
    token: str
    expected: int
    upper: int
    batch: Batch | None = None


class Appended(msgspec.Struct, frozen=True, tag=True):
    """It is done, by this step or by an earlier attempt."""

    by_earlier: bool = False


class UpperIs(msgspec.Struct, frozen=True, tag=True):
    """The shard's upper is not what was expected.

    Attributes:
        writer_upper: that the writer's last append led to: below `current` if others appended since.
    """

    current: int
    writer_upper: int


class TooMuchInline(msgspec.Struct, frozen=True, tag=True):
    """The state holds enough inline bytes: write the batch as blobs, then repeat."""


def compare_and_append(
    state: State, append: Append, now_us: Microseconds, inline_total_bytes: int = INLINE_TOTAL_BYTES
) -> Step[Appended | UpperIs | TooMuchInline]:
    """Append a batch if the upper is the expected one. Law order: tombstone, bounds, token, upper, inline."""
    writer = state.writers.get(append.writer)
    if state.is_tombstone:
        return Step(UpperIs(TOP, writer.upper if writer else 0))
    if writer is not None and writer.token == append.token:
        return Step(Appended(by_earlier=True))
    if state.is_finished or state.upper != append.expected:
        return Step(UpperIs(state.upper, writer.upper if writer else 0))
    if append.batch is not None and _is_too_much(state, append.batch.parts, inline_total_bytes):
        return Step(TooMuchInline())
    known = WriterRecord(now_us, append.lease_s, append.token, append.upper, writer.epoch if writer else -1)
    return Step(Appended(), _appended(state, append.batch, append.upper, append.writer, known))


def _is_too_much(state: State, parts: Sequence[Part], inline_total_bytes: int) -> bool:
    inline = sum(len(part.inline) for part in parts)
    return bool(inline) and state.inline_bytes + inline >= inline_total_bytes


class AppendNext(msgspec.Struct, frozen=True, tag=True):
    """Updates without times: they get the one at which they come to lie, whatever the shard's upper is.

    Attributes:
        token: of the call, as in `Append`.
        epoch: of a durable writer: counts up, and what is not above the last one was appended before. None for calls
            that are told apart by their token alone.
        must_be_known: refuse if the writer is not on record: the sender of the command may have ended the writer so
            that the command, if it is late, does nothing.
    """

    writer: WriterId
    lease_s: int
    token: str
    parts: tuple[Part, ...]
    batch_id: str
    epoch: int | None = None
    must_be_known: bool = False


class WriterUnknown(msgspec.Struct, frozen=True, tag=True):
    """The writer is not on record, and must be."""


class AppendedAt(msgspec.Struct, frozen=True, tag=True):
    """The time of the updates; None if an earlier call appended them."""

    time: int | None


def append_next(
    state: State, append: AppendNext, now_us: Microseconds, inline_total_bytes: int = INLINE_TOTAL_BYTES
) -> Step[AppendedAt | UpperIs | TooMuchInline | WriterUnknown]:
    """Append updates at the shard's upper, unless the token or the epoch says that this was done.

    Invariant: the epochs of a writer are appended in ascending order, each once, and its record says which was the
    last. Durable writers are never forgotten, so a driver that comes back after a year is told that it is done.
    """
    writer = state.writers.get(append.writer)
    if writer is not None and append.epoch is not None and append.epoch <= writer.epoch:
        return Step(AppendedAt(None))
    if writer is not None and append.token == writer.token:
        return Step(AppendedAt(writer.upper - 1))
    if state.is_finished:
        return Step(UpperIs(TOP, writer.upper if writer else 0))
    if writer is None and append.must_be_known:
        return Step(WriterUnknown())
    if _is_too_much(state, append.parts, inline_total_bytes):
        return Step(TooMuchInline())
    time = state.upper
    parts = tuple(replace(part, first=time, last=time, has_times=False) for part in append.parts if part.rows)
    batch = Batch(append.batch_id, time, time + 1, 0, parts) if parts else None
    epoch = append.epoch if append.epoch is not None else writer.epoch if writer else -1
    known = WriterRecord(now_us, append.lease_s, append.token, time + 1, epoch)
    return Step(AppendedAt(time), _appended(state, batch, time + 1, append.writer, known))


def _appended(state: State, batch: Batch | None, upper: int, id: WriterId, writer: WriterRecord) -> State:
    return replace(
        state,
        upper=upper,
        batches=(*state.batches, batch) if batch is not None and batch.parts else state.batches,
        writers={**state.writers, id: writer},
    )


def heartbeat_writer(state: State, id: WriterId, lease_s: int, now_us: Microseconds) -> Step[None]:
    """Note that a writer is alive; what it remembers stays."""
    if state.is_tombstone:
        return Step(None)
    writer = state.writers.get(id)
    known = WriterRecord(now_us, lease_s, "", 0) if writer is None else replace(writer, heartbeat_us=now_us)
    return Step(None, replace(state, writers={**state.writers, id: known}))


def expire_writer(state: State, id: WriterId) -> Step[bool]:
    """Forget a writer; whether it was known."""
    if id not in state.writers or state.is_tombstone:
        return Step(False)
    return Step(True, replace(state, writers=_without(state.writers, id)))


def register_writer(state: State, id: WriterId, lease_s: int, token: str, now_us: Microseconds) -> Step[None]:
    """Put a writer on record that never was; its token is one that no append has."""
    if state.is_tombstone or id in state.writers:
        return Step(None)
    return Step(None, replace(state, writers={**state.writers, id: WriterRecord(now_us, lease_s, token, 0)}))


def rename_writer(state: State, id: WriterId, other: WriterId) -> Step[None]:
    """Let a writer go on under another id, with all that it remembers; nobody is known under the old one any more."""
    writer = state.writers.get(id)
    if writer is None or state.is_tombstone:
        return Step(None)
    return Step(None, replace(state, writers={**_without(state.writers, id), other: writer}))


# --- leased readers -------------------------------------------------------------------------------------------------


def register_reader(state: State, id: ReaderId, lease_s: int, now_us: Microseconds) -> Step[LeasedReader]:
    """A reader that begins at the shard's since; its blobs stay from the state on that registers it."""
    if state.is_tombstone:
        return Step(LeasedReader(TOP, state.seqno, now_us, lease_s))
    known = state.readers.get(id)
    if known is not None:  # an attempt whose reply was lost
        return Step(known)
    reader = LeasedReader(state.since, state.seqno + 1, now_us, lease_s)
    return Step(reader, replace(state, readers={**state.readers, id: reader}))


class Held(msgspec.Struct, frozen=True, tag=True):
    """What a reader holds now; `is_known` is false if it was forgotten, and holds nothing."""

    since: int
    is_known: bool = True


def downgrade_since(
    state: State, id: ReaderId, since: int, oldest_lease: int | None, now_us: Microseconds
) -> Step[Held]:
    """Let a reader give up what lies before `since`; it is a heartbeat as well.

    Args:
        oldest_lease: the oldest state whose parts the reader has handed out; None if none.
    """
    reader = state.readers.get(id)
    if reader is None or state.is_tombstone:
        return Step(Held(TOP, is_known=False))
    hold = state.seqno if oldest_lease is None else min(oldest_lease, state.seqno)
    moved = LeasedReader(
        max(reader.since, since), max(reader.seqno, hold), max(reader.heartbeat_us, now_us), reader.lease_s
    )
    return Step(Held(moved.since), _with_since(replace(state, readers={**state.readers, id: moved})))


def expire_reader(state: State, id: ReaderId) -> Step[bool]:
    """Forget a reader; whether it was known. The since stays."""
    if id not in state.readers:
        return Step(False)
    return Step(True, replace(state, readers=_without(state.readers, id)))


# --- durable readers ------------------------------------------------------------------------------------------------


def register_durable_reader(state: State, id: ReaderId) -> Step[DurableReaderRecord]:
    if state.is_tombstone:
        return Step(DurableReaderRecord(TOP, ""))
    known = state.durable_readers.get(id)
    if known is not None:
        return Step(known)
    reader = DurableReaderRecord(state.since, "")
    return Step(reader, replace(state, durable_readers={**state.durable_readers, id: reader}))


class Downgraded(msgspec.Struct, frozen=True, tag=True):
    """What a durable reader holds now, and under which token."""

    since: int
    token: str


class TokenIs(msgspec.Struct, frozen=True, tag=True):
    """Somebody else uses the durable reader: its token is another one."""

    token: str
    since: int


def compare_and_downgrade_since(
    state: State, id: ReaderId, expected_token: str, token: str, since: int
) -> Step[Downgraded | TokenIs | None]:
    """Move a durable reader's since if its token is the expected one; None if there is no such reader."""
    if state.is_tombstone:
        return Step(Downgraded(TOP, token))
    reader = state.durable_readers.get(id)
    if reader is None:
        return Step(None)
    if reader.token != expected_token:
        return Step(TokenIs(reader.token, reader.since))
    moved = DurableReaderRecord(max(reader.since, since), token)
    changed = _with_since(replace(state, durable_readers={**state.durable_readers, id: moved}))
    return Step(Downgraded(moved.since, moved.token), changed)


def expire_durable_reader(state: State, id: ReaderId) -> Step[bool]:
    if id not in state.durable_readers:
        return Step(False)
    return Step(True, replace(state, durable_readers=_without(state.durable_readers, id)))


def _with_since(state: State) -> State:
    """The since is the least of all readers'; without any it stays, and it never goes back."""
    held = [reader.since for reader in state.readers.values()]
    held += [reader.since for reader in state.durable_readers.values()]
    return replace(state, since=max(state.since, min(held))) if held else state


# --- schemas --------------------------------------------------------------------------------------------------------


def evolve_schema(state: State, expected: int, schema: bytes) -> Step[int]:
    """Make a schema the newest if the newest one is the expected; returns the id of the newest."""
    if state.is_tombstone:
        return Step(state.schema_id)
    for id, known in state.schemas.items():
        if known == schema:
            return Step(id if id == state.schema_id else state.schema_id)
    if state.schema_id != expected:
        return Step(state.schema_id)
    return Step(expected + 1, replace(state, schemas={**state.schemas, expected + 1: schema}))


# --- upkeep ---------------------------------------------------------------------------------------------------------


def apply_merge(state: State, merge: Merge) -> Step[Merged]:
    """Put a merged batch in the place of what it was made from, if that is still there."""
    if state.is_tombstone:
        return Step(Merged.GONE)
    merged, batches = with_merge(state.batches, merge, state.since)
    return Step(merged, None if batches is None else replace(state, batches=batches))


def add_rollup(state: State, seqno: int, rollup: Rollup) -> Step[bool]:
    """Note where the state of a sequence number lies; whether it is noted now.

    A tombstone keeps only the last one: there is no other change after it.
    """
    if state.rollups.get(seqno) == rollup:
        return Step(True)
    if state.is_tombstone:
        return Step(True, replace(state, rollups={seqno: rollup})) if seqno == state.seqno else Step(False)
    if seqno in state.rollups or seqno < max(state.rollups, default=0):
        return Step(False)
    return Step(True, replace(state, rollups={**state.rollups, seqno: rollup}))


def remove_rollups(state: State, rollups: Mapping[int, str]) -> Step[Sequence[int]]:
    """Take off the rollups that are still there under the same keys."""
    gone = [seqno for seqno, key in rollups.items() if seqno in state.rollups and state.rollups[seqno].key == key]
    if not gone:
        return Step(())
    return Step(gone, replace(state, rollups={at: kept for at, kept in state.rollups.items() if at not in gone}))


def finish(state: State) -> Step[None]:
    """Let nothing be appended any more."""
    return Step(None, None if state.is_finished else replace(state, upper=TOP))


def retire(state: State) -> Step[None]:
    """End a shard: nobody writes, nobody reads."""
    if state.is_tombstone:
        return Step(None)
    return Step(None, replace(state, upper=TOP, since=TOP))


def bury(state: State) -> Step[bool]:
    """A step of the end of a finished shard that nobody reads: holders first, then a batch at a time.

    Returns:
        Whether there was anything left to bury.
    """
    if not state.is_tombstone:
        return Step(False)
    if state.readers or state.durable_readers or state.writers:
        return Step(True, replace(state, readers={}, durable_readers={}, writers={}))
    if state.batches:
        return Step(True, replace(state, batches=state.batches[1:]))
    return Step(False)


Member = TypeVar("Member")
Id = TypeVar("Id", ReaderId, WriterId)


def _without(members: Mapping[Id, Member], id: Id) -> dict[Id, Member]:
    return {key: value for key, value in members.items() if key != id}
