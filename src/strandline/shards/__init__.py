"""Shards: durable collections of `((key, value), time, diff)` that change in exact steps of time.

A deterministic state machine whose changes are decided through `log`, batches of updates as immutable blobs, and
compaction and collection that anybody may drop or repeat: the laws P-1 to P-51. What the handles of a shard are called,
and what they return, is in this module; `Repository.shard` makes a `Shard`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from strandline.shards.handles.batching import BatchingWriter
    from strandline.shards.handles.durable_reader import DurableReader
    from strandline.shards.handles.listen import Changes, Listen
    from strandline.shards.handles.reader import Reader
    from strandline.shards.handles.snapshot import Snapshot
    from strandline.shards.handles.writer import Writer
    from strandline.shards.log.metering import Count
    from strandline.shards.rows.batches import BatchBuilder, WrittenBatch
    from strandline.shards.rows.codec import Codec
    from strandline.shards.shard import Shard
    from strandline.shards.state.frontier import Antichain, Frontier
    from strandline.shards.state.state import (
        Batch,
        DurableReaderRecord,
        LeasedReader,
        Part,
        Rollup,
        ShardId,
        State,
        WriterRecord,
    )
    from strandline.shards.state.trace import Merged
    from strandline.shards.upkeep.collection import Collected, Swept
    from strandline.shards.upkeep.compaction import Compaction

# Loaded when they are first asked for, as in `strandline` itself.
_LAZY = {
    "Antichain": "strandline.shards.state.frontier",
    "Batch": "strandline.shards.state.state",
    "BatchBuilder": "strandline.shards.rows.batches",
    "BatchingWriter": "strandline.shards.handles.batching",
    "Changes": "strandline.shards.handles.listen",
    "Codec": "strandline.shards.rows.codec",
    "Collected": "strandline.shards.upkeep.collection",
    "Compaction": "strandline.shards.upkeep.compaction",
    "Count": "strandline.shards.log.metering",
    "DurableReader": "strandline.shards.handles.durable_reader",
    "DurableReaderRecord": "strandline.shards.state.state",
    "Frontier": "strandline.shards.state.frontier",
    "LeasedReader": "strandline.shards.state.state",
    "Listen": "strandline.shards.handles.listen",
    "Merged": "strandline.shards.state.trace",
    "Part": "strandline.shards.state.state",
    "Reader": "strandline.shards.handles.reader",
    "Rollup": "strandline.shards.state.state",
    "Shard": "strandline.shards.shard",
    "ShardId": "strandline.shards.state.state",
    "Snapshot": "strandline.shards.handles.snapshot",
    "State": "strandline.shards.state.state",
    "Swept": "strandline.shards.upkeep.collection",
    "Writer": "strandline.shards.handles.writer",
    "WriterRecord": "strandline.shards.state.state",
    "WrittenBatch": "strandline.shards.rows.batches",
}

__all__ = [
    "Antichain",
    "Batch",
    "BatchBuilder",
    "BatchingWriter",
    "Changes",
    "Codec",
    "Collected",
    "Compaction",
    "Count",
    "DurableReader",
    "DurableReaderRecord",
    "Frontier",
    "LeasedReader",
    "Listen",
    "Merged",
    "Part",
    "Reader",
    "Rollup",
    "Shard",
    "ShardId",
    "Snapshot",
    "State",
    "Swept",
    "Writer",
    "WriterRecord",
    "WrittenBatch",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'strandline.shards' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
