"""The REST interface: lakeFS's operations, and ours in the same style. Must not know: `server/s3`, sockets."""
