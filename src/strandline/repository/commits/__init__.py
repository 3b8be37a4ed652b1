"""Commits that are made from other trees: merges and imports."""
