"""Shards: durable collections of `((key, value), time, diff)` that change in exact steps of time.

Written from seed 002 and the laws P-1 to P-51: a deterministic state machine whose changes are decided through
`consensus`, batches of updates as immutable blobs, and compaction and collection that anybody may drop or repeat.
"""
