"""Repositories, branches, tags, refs, history, merges and imports: what users hold in their hands."""
