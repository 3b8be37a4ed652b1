"""Where pickled refs of the versions before the rooms look for what opens them."""

from strandline.repository.refs.ref import _reopen_ref

__all__ = ["_reopen_ref"]
