"""The S3 interface: a repository is a bucket, a key is ref/path. Must not know: `server/rest`, sockets."""
