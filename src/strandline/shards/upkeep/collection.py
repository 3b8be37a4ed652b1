"""What a shard does not need any more: rollups instead of long logs, and the blobs that no state refers to.

What may go is known from the log itself: what its records took away. So nothing is listed, and a collection costs what
changed. Only blobs that no state ever knew, of writers and compactors that died, take a listing: `sweep`.
"""

from __future__ import annotations

from dataclasses import dataclass

from strandline.blob.store import BlobNotFound
from strandline.clock import Microseconds
from strandline.envelope import encode
from strandline.errors import Corrupted, UsageError
from strandline.ids import new_id
from strandline.shards.deciding.machine import Machine
from strandline.shards.state.diff import apply
from strandline.shards.state.state import Rollup, State
from strandline.shards.state.transitions import add_rollup, bury, remove_rollups

ROLLUP_EVERY = 128
"""After how many changes a rollup is due."""
DELETE_AT_ONCE = 1_000
KNOWN_ATTEMPTS = 20
"""How often a sweep looks anew for where the log begins, because others truncate it."""
SWEEP_AFTER_S = 86_400
"""Blobs that no state knows are swept when they are so old: longer than any append takes."""


@dataclass(frozen=True, slots=True)
class Collected:
    """What a collection did.

    Attributes:
        target: the log begins there now; None if there was nothing to do.
        blobs: how many were deleted.
        records: how many records were truncated.
    """

    target: int | None = None
    blobs: int = 0
    records: int = 0


def write_rollup(machine: Machine) -> int | None:
    """Write the newest state as a blob and note it; its sequence number, or None if it was noted already."""
    state = machine.refreshed()
    if state.seqno in state.rollups or (state.is_tombstone and _is_over(state)):
        return None
    raw = encode(state)
    key = f"rollup/{state.seqno:020d}-{new_id()}"
    machine.place.blobs.put(machine.place.blob_key(key), raw, "create")
    rollup = Rollup(key, len(raw))
    is_noted = machine.apply(lambda now, _: add_rollup(now, state.seqno, rollup))
    if not is_noted:  # the blob may be noted in an older state, so it is left to the sweeper
        return None
    return state.seqno


def _is_over(state: State) -> bool:
    """A tombstone whose end is written down: a rollup of it, and nothing after that but the note of it."""
    return not state.batches and list(state.rollups) == [state.seqno - 1]


def collect(machine: Machine, until: int | None = None) -> Collected:
    """Delete the blobs that no state from a rollup on refers to, then the log before it.

    Repeating it, stopping anywhere, and running it twice at once are all harmless: blobs are deleted before the records
    that name them, and a log that begins beyond the target already is left alone.

    Args:
        until: collect at most to this sequence number.
    """
    state = machine.refreshed()
    limit = min(state.seqno_since, state.seqno if until is None else until)
    target = max((seqno for seqno in state.rollups if seqno <= limit), default=None)
    if target is None:
        return Collected()
    place = machine.place
    earliest = _earliest(machine)
    if earliest is None or earliest.seqno >= target:
        return Collected()
    dead: set[str] = set()
    walked = earliest
    while walked.seqno < target:
        records = place.consensus.scan(place.shard, walked.seqno + 1)
        if not records or records[0].seqno != walked.seqno + 1:
            return Collected()  # somebody else truncates at this moment
        for record in records[: target - walked.seqno]:
            after = apply(walked, machine.decoded(record))
            dead |= _keys(walked) - _keys(after)
            walked = after
    # invariant: nobody reads from a state before `target`, and the later ones refer to what `target` does or to newer
    dead -= _keys(walked) | _keys(state)
    _delete(machine, dead)
    removed = place.consensus.truncate(place.shard, target)
    old = {seqno: rollup.key for seqno, rollup in state.rollups.items() if seqno < target}
    if old and not machine.state.is_tombstone:
        machine.apply(lambda now, _: remove_rollups(now, old))
    return Collected(target, len(dead), removed)


def _earliest(machine: Machine) -> State | None:
    """The state at the first record of the log: the initial one, or that of a rollup, which a later record notes."""
    place = machine.place
    first: int | None = None
    start = 1
    while records := place.consensus.scan(place.shard, start):
        if first is None:
            first = records[0].seqno
        for record in records:
            diff = machine.decoded(record)
            if diff.initial is not None:
                return diff.initial
            rollup = diff.rollups.get(first)
            if rollup is not None:
                try:
                    return machine.rollup(rollup.key)
                except BlobNotFound:
                    return None  # somebody else truncated since
        start = records[-1].seqno + 1
    return None


def _keys(state: State) -> set[str]:
    return state.blob_keys() | {rollup.key for rollup in state.rollups.values()}


def _delete(machine: Machine, keys: set[str]) -> None:
    ordered = sorted(keys)
    for start in range(0, len(ordered), DELETE_AT_ONCE):
        machine.place.blobs.delete_many(machine.place.blob_key(key) for key in ordered[start : start + DELETE_AT_ONCE])


def bury_shard(machine: Machine) -> None:
    """Let go of everything of a shard that is over, step by step; at the end two records and a rollup are left."""
    while machine.apply(lambda state, _: bury(state)):
        pass
    state = machine.refreshed()
    if not state.is_tombstone:
        return
    if not _is_over(state):
        write_rollup(machine)
        state = machine.refreshed()
    if not _is_over(state):
        return  # somebody else is at it
    collect(machine)
    place = machine.place
    kept = {place.blob_key(rollup.key) for rollup in state.rollups.values()}
    first = place.consensus.scan(place.shard, 1, 1)
    if first and first[0].seqno == state.seqno - 1:  # else somebody may yet begin with an older rollup
        old = [key for key in place.blobs.list_keys(place.blob_key("rollup/")) if key not in kept]
        place.blobs.delete_many(old)


@dataclass(frozen=True, slots=True)
class Swept:
    """Blobs that no state knew."""

    blobs: int = 0
    bytes: int = 0


def sweep(machine: Machine, *, after_s: int = SWEEP_AFTER_S, dry_run: bool = False) -> Swept:
    """Delete blobs that no live state refers to and that are older than any append takes.

    Args:
        after_s: how old, by the clock of the object store: that of a process may be wrong by any time.
    """
    if after_s < 0:
        raise UsageError("after_s cannot be negative.")
    place = machine.place
    probe = place.blob_key(f"sweep/{new_id()}")
    place.blobs.put(probe, b"", "create")
    store_now_us: Microseconds = place.blobs.head(probe).modified_at_us
    place.blobs.delete_many([probe])
    found = [info for page in place.blobs.list_pages(f"{place.folder}/") for info in page]
    known = _known(machine)  # read after the listing: what was appended before it is in it
    old = [
        info
        for info in found
        if info.key.removeprefix(f"{place.folder}/") not in known
        and store_now_us - info.modified_at_us >= after_s * 1_000_000
    ]
    if not dry_run:
        _delete(machine, {info.key.removeprefix(f"{place.folder}/") for info in old})
    return Swept(len(old), sum(info.size for info in old))


def _known(machine: Machine) -> set[str]:
    """What any live state refers to, from the first record of the log on."""
    for _ in range(KNOWN_ATTEMPTS):
        state = _earliest(machine)
        if state is None:
            continue
        known = _keys(state)
        place = machine.place
        while True:
            records = place.consensus.scan(place.shard, state.seqno + 1)
            if not records:
                return known
            if records[0].seqno != state.seqno + 1:
                break
            for record in records:
                state = apply(state, machine.decoded(record))
                known |= _keys(state)
    raise Corrupted(
        f"The state that the log of shard {machine.place.shard!r} begins with cannot be read.",
        next="Restore the object store from a backup.",
    )
