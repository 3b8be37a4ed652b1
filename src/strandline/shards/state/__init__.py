"""The state of a shard and its transitions: pure, without stores, clocks or threads."""
