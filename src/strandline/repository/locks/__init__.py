"""Locks on ranges, on a branch, and on the repository; their owners; transactions under a lock."""
