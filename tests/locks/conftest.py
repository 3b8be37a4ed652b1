"""The drivers of the tests of transactions: each a process of its own, as far as it can tell."""

from __future__ import annotations

from tests.locks.acts import content
from tests.transactions.conftest import driver, first, second

__all__ = ["content", "driver", "first", "second"]
