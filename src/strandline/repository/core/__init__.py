"""What every other room of the repository stands on: records, physical keys, promises, retention."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name == "_reopen_shard":  # pickled shards of the versions before the rooms look for it here
        from strandline.repository.core.repository_core import _reopen_shard  # noqa: PLC0415

        return _reopen_shard
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
