"""Shards on Spark: `spark.read.format("strandline.shard")`, its streams, and writing natively.

Drivers decide; executors read and write files of the object store, and never see the key-value store.
"""

from strandline.spark.shards.compaction import compact
from strandline.spark.shards.native import append, read
from strandline.spark.shards.source import ShardSource, register
from strandline.spark.shards.tables import absorb, materialise

__all__ = ["ShardSource", "absorb", "append", "compact", "materialise", "read", "register"]
