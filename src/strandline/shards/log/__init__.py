"""The log of a shard: consensus on a key-value store or an object store, and what its calls cost."""
