"""Drivers of a sink are killed before and after calls of the stores, and at random moments; each row is there once.

`make kills KILLS=all` kills at every call and at 200 random moments, `make kills` at some of them.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import strandline
from strandline.lake import Lake
from tests.harness import sessions
from tests.harness.killing import RANDOM_MOMENTS, some_of
from tests.shards import killed_sink
from tests.transactions.killed_driver import ROWS
from tests.transactions.test_kills import SAMPLES, Place, succeed

pytestmark = [pytest.mark.spark, pytest.mark.server, pytest.mark.kill]
SCHEMA = pa.schema([("id", pa.int64()), ("run", pa.string())])


class SinkPlace(Place):
    run = staticmethod(killed_sink.run)

    def __init__(self, folder: Path, remote: str) -> None:
        super().__init__(folder, remote)
        with strandline.open(folder / "lake", synced=False) as lake:
            lake.repository("nyc").shard("sink", SCHEMA, key=["run"])

    def check(self, lake: Lake) -> None:
        shard = lake.repository("nyc").shard("sink")
        rows = shard.snapshot().to_arrow()
        found = Counter(
            {
                (run, id): diff
                for run, id, diff in zip(*(rows[n].to_pylist() for n in ("run", "id", "_diff")), strict=True)
            }
        )
        assert found == Counter((token, id) for token in self.tokens for id in range(ROWS))


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with sessions.connect_server(tmp_path_factory.mktemp("connect")) as url:
        yield url


@pytest.fixture
def place(tmp_path: Path, remote: str) -> SinkPlace:
    return SinkPlace(tmp_path, remote)


def _clean(lake: Lake) -> None:
    """Upkeep after many deaths takes nothing that is referred to."""
    shard = lake.repository("nyc").shard("sink")
    shard.compact(full=True)
    shard.collect()
    shard.sweep(after_s=0)
    place = shard._machine.place
    kept = {place.blob_key(key) for key in shard.state.blob_keys()}
    left = {key for key in place.blobs.list_keys(place.folder + "/") if key.endswith(".parquet")}
    assert kept <= left


@pytest.mark.timeout(3_600)
def test_a_sink_is_killed_at_calls_of_its_stores(place: SinkPlace, capsys: pytest.CaptureFixture[str]) -> None:
    first = place.start(place.token())
    assert first.join() == "committed"
    calls = int(first.told()[1])
    every = [(at, when) for at in range(1, calls + 2) for when in ("before", "after")]
    outcomes: Counter[str] = Counter()
    chosen = some_of(every, SAMPLES)
    with strandline.open(place.folder / "lake", synced=False, compaction=False) as lake:
        for at, when in chosen:
            token = place.token()
            outcomes[succeed(place, token, place.start(token, at, when).join())] += 1
            place.check(lake)
        _clean(lake)
        place.check(lake)
    assert outcomes["killed, then committed"]
    with capsys.disabled():
        print(f"\n{len(chosen)} of {len(every)} calls of a sink: {dict(outcomes)}")


@pytest.mark.timeout(3_600)
def test_a_sink_is_killed_at_random_moments(place: SinkPlace, capsys: pytest.CaptureFixture[str]) -> None:
    outcomes: Counter[str] = Counter()
    chance = random.Random(8)
    assert place.start(place.token()).join() == "committed"
    with strandline.open(place.folder / "lake", synced=False, compaction=False) as lake:
        for _ in range(RANDOM_MOMENTS):
            token = place.token()
            victim = place.start(token)
            time.sleep(chance.uniform(0.1, 1.2))
            if victim.process.is_alive():
                victim.process.kill()
            outcomes[succeed(place, token, victim.join())] += 1
            place.check(lake)
        _clean(lake)
        place.check(lake)
    with capsys.disabled():
        print(f"\n{RANDOM_MOMENTS} random moments of a sink: {dict(outcomes)}")
