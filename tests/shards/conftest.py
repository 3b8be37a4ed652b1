from __future__ import annotations

from collections.abc import Iterator

import pytest

from strandline.shards.shard import Shard
from tests.shards.stage import Process, Stage


@pytest.fixture
def stage() -> Stage:
    return Stage()


@pytest.fixture
def process(stage: Stage) -> Process:
    return stage.process()


@pytest.fixture
def shard(process: Process) -> Iterator[Shard]:
    yield process.shard
