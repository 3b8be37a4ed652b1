"""What keeps a shard small: compaction, collection, and the thread that does both."""
