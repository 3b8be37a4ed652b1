"""The drivers of the tests of transactions: each a process of its own, as far as it can tell."""

from __future__ import annotations

from tests.transactions.conftest import driver, first, second

__all__ = ["driver", "first", "second"]
