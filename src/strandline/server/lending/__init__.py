"""The server's rights in an object store, lent to clients for one table."""
