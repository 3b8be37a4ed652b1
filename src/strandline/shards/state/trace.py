"""The trace of a shard: its batches in the order of time, and which of them are worth merging.

Size-tiered, after the spine of differential dataflow (McSherry et al.; LSM trees): neighbours are merged when none of
them is much larger than the rest together, so an update is rewritten a logarithmic number of times, and the trace has a
logarithmic number of batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from msgspec.structs import replace

from strandline.shards.state.state import Batch

MERGE_MIN_BATCHES = 8
"""So many batches of one tier are merged at once."""
MERGE_MAX_BATCHES = 64
"""How many batches a merge takes at most; a trace that got long is shortened step by step."""
TIER_FACTOR = 4
"""A batch is in a higher tier if it has so many times the rows."""
TIER_FIRST_ROWS = 1_024


@dataclass(frozen=True, slots=True)
class Merge:
    """The result of a compaction.

    Attributes:
        inputs: ids of the batches that were read, in order.
        output: what they became; its `since` is that of the state that they were read from.
    """

    inputs: tuple[str, ...]
    output: Batch


class Merged(Enum):
    """What became of a merge."""

    DONE = "done"
    EARLIER = "done before"
    """The output is in the trace already."""
    GONE = "gone"
    """What it was made from is not there any more, or not side by side."""
    USELESS = "useless"
    """It may not, or need not, take the place of what is there."""


def with_merge(batches: tuple[Batch, ...], merge: Merge, since: int) -> tuple[Merged, tuple[Batch, ...] | None]:
    """Replace the inputs of a merge, if they still lie side by side, by its output.

    A batch has a new id whenever its updates were rewritten, so inputs that are found by id are what was read. The
    output may not be compacted beyond the shard's since (nobody could read as of a time between), nor be larger than
    its inputs.
    """
    ids = [batch.id for batch in batches]
    if merge.output.id in ids:
        return Merged.EARLIER, None
    if merge.inputs[0] not in ids:
        return Merged.GONE, None
    at = ids.index(merge.inputs[0])
    inputs = batches[at : at + len(merge.inputs)]
    if tuple(batch.id for batch in inputs) != merge.inputs:
        return Merged.GONE, None
    output = replace(merge.output, lower=inputs[0].lower, upper=inputs[-1].upper)
    if output.since > since or output.since < max(batch.since for batch in inputs):
        return Merged.USELESS, None
    if output.rows > sum(batch.rows for batch in inputs):
        return Merged.USELESS, None
    return Merged.DONE, (*batches[:at], output, *batches[at + len(inputs) :])


def tier(rows: int) -> int:
    """0 for small batches, one more for each `TIER_FACTOR`."""
    found = 0
    while rows >= TIER_FIRST_ROWS * TIER_FACTOR**found:
        found += 1
    return found


def worth_merging(batches: Sequence[Batch]) -> tuple[Batch, ...]:
    """The batches to merge next: neighbours of which enough are in one tier, or lower; () if there are none.

    The newest tiers come first, since they are the cheapest.
    """
    end = len(batches)
    while end:
        top = tier(batches[end - 1].rows)
        start = end - 1
        while start and tier(batches[start - 1].rows) <= top:
            start -= 1
        if end - start >= MERGE_MIN_BATCHES:
            chosen = batches[max(start, end - MERGE_MAX_BATCHES) : end]
            return tuple(chosen)
        end = start if start < end else end - 1
    return ()
