"""Where pickled refs of the versions before the rooms look for what they point to."""

from strandline.repository.refs.expressions import Target

__all__ = ["Target"]
