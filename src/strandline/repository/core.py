"""Where pickled shards of the versions before the rooms look for what opens them."""

from strandline.core.repository_core import _reopen_shard

__all__ = ["_reopen_shard"]
