"""Immutable maps from paths to objects: ranges, metaranges, and what is done with them by whole columns."""
