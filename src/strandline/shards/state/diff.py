"""How a change of state is written: what differs between two states, field by field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from strandline.clock import Microseconds
from strandline.shards.state.state import (
    Batch,
    DurableReaderRecord,
    LeasedReader,
    ReaderId,
    Rollup,
    State,
    WriterId,
    WriterRecord,
)

Key = TypeVar("Key")
Value = TypeVar("Value")


class Splice(msgspec.Struct, frozen=True, array_like=True):
    """`removed` batches from position `at` on gave way to `added`."""

    at: int
    removed: int
    added: tuple[Batch, ...]


class Diff(msgspec.Struct, frozen=True, omit_defaults=True):
    """What leads from the state before `seqno` to the one at `seqno`.

    Attributes:
        id: unique to the attempt that wrote it: tells its author, whose reply was lost, that it happened.
        rollup: the newest rollup of the state that it leads to: with it and the records that follow, any state can be
            made again. (0, "") before there is one.
        readers, durable_readers, writers, rollups: new values; None takes away.
    """

    seqno: int
    id: str
    walltime_us: Microseconds
    host: str
    rollup: tuple[int, str] = (0, "")
    initial: State | None = None
    since: int | None = None
    upper: int | None = None
    batches: Splice | None = None
    schemas: dict[int, bytes] = {}
    readers: dict[ReaderId, LeasedReader | None] = {}
    durable_readers: dict[ReaderId, DurableReaderRecord | None] = {}
    writers: dict[WriterId, WriterRecord | None] = {}
    rollups: dict[int, Rollup | None] = {}


def difference(before: State | None, after: State, id: str) -> Diff:
    """The diff that leads from one state to the next."""
    newest = max(after.rollups, default=0)
    rollup = (newest, after.rollups[newest].key) if newest else (0, "")
    if before is None:
        return Diff(after.seqno, id, after.walltime_us, after.host, rollup, initial=after)
    return Diff(
        after.seqno,
        id,
        after.walltime_us,
        after.host,
        rollup,
        since=None if before.since == after.since else after.since,
        upper=None if before.upper == after.upper else after.upper,
        batches=None if before.batches is after.batches else _splice(before.batches, after.batches),
        schemas={key: value for key, value in after.schemas.items() if key not in before.schemas},
        readers=_changes(before.readers, after.readers),
        durable_readers=_changes(before.durable_readers, after.durable_readers),
        writers=_changes(before.writers, after.writers),
        rollups=_changes(before.rollups, after.rollups),
    )


def apply(state: State | None, diff: Diff) -> State:
    """The state that a diff leads to."""
    if diff.initial is not None:
        return diff.initial
    assert state is not None
    assert state.seqno + 1 == diff.seqno
    batches = state.batches
    if diff.batches is not None:
        at = diff.batches.at
        batches = (*batches[:at], *diff.batches.added, *batches[at + diff.batches.removed :])
    return replace(
        state,
        seqno=diff.seqno,
        walltime_us=diff.walltime_us,
        host=diff.host,
        since=state.since if diff.since is None else diff.since,
        upper=state.upper if diff.upper is None else diff.upper,
        batches=batches,
        schemas={**state.schemas, **diff.schemas} if diff.schemas else state.schemas,
        readers=_changed(state.readers, diff.readers),
        durable_readers=_changed(state.durable_readers, diff.durable_readers),
        writers=_changed(state.writers, diff.writers),
        rollups=_changed(state.rollups, diff.rollups),
    )


def _splice(before: tuple[Batch, ...], after: tuple[Batch, ...]) -> Splice | None:
    shorter = min(len(before), len(after))
    first = 0
    while first < shorter and before[first] == after[first]:
        first += 1
    last = 0
    while last < shorter - first and before[-1 - last] == after[-1 - last]:
        last += 1
    removed, added = len(before) - first - last, after[first : len(after) - last]
    return Splice(first, removed, added) if removed or added else None


def _changes(before: Mapping[Key, Value], after: Mapping[Key, Value]) -> dict[Key, Value | None]:
    if before is after:
        return {}
    changes: dict[Key, Value | None] = {
        key: value for key, value in after.items() if key not in before or before[key] != value
    }
    changes.update(dict.fromkeys((key for key in before if key not in after), None))
    return changes


def _changed(before: dict[Key, Value], changes: Mapping[Key, Value | None]) -> dict[Key, Value]:
    if not changes:
        return before
    changed = dict(before)
    for key, value in changes.items():
        if value is None:
            changed.pop(key, None)
        else:
            changed[key] = value
    return changed
