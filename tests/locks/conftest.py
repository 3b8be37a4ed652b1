from __future__ import annotations

from tests.locks.acts import content

__all__ = ["content"]
