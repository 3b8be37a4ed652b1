"""Benchmarks: one file a question. Run them with `make bench`, or `make bench ONLY=commit`."""
