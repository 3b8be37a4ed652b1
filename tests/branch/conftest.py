from __future__ import annotations

import pytest

from tests.branch.clients import Client, Shared


@pytest.fixture
def shared() -> Shared:
    return Shared()


@pytest.fixture
def one(shared: Shared) -> Client:
    return Client(shared, create=True)


@pytest.fixture
def two(shared: Shared, one: Client) -> Client:
    return Client(shared)
