"""What shards cost, and collecting updates so that they cost less."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import strandline
from strandline import InvalidBounds, SchemaMismatch, UsageError
from strandline.shards.cost import YEAR_S, Bill, Plan, Prices, plan_bill, yearly
from strandline.shards.log.metering import Count
from tests.shards.stage import SCHEMA, update


def test_a_bill_is_requests_times_prices() -> None:
    counts = {"blob put": Count(10, 1), "blob get": Count(100, 1), "consensus append": Count(10, 1)}
    bill = yearly(counts, YEAR_S / 1_000, Prices(consensus=0.1), stored_bytes=10**9)
    dollars = {item.kind: round(item.dollars, 6) for item in bill.items}
    assert dollars == {"blob put": 0.05, "blob get": 0.04, "consensus append": 1.0, "storage": 0.276}
    assert bill.requests == 120_000
    for wrong in (0, -1):
        with pytest.raises(UsageError):
            yearly(counts, wrong)


def test_ten_small_sources_cost_ten_times_the_requests_of_a_large_one() -> None:
    """The surprise of a large bill, and the knob against it."""
    one, ten = plan_bill(Plan(1, 1e7, 1.0)), plan_bill(Plan(10, 1e6, 1.0))
    slower = plan_bill(Plan(10, 1e6, 10.0))

    def puts(bill: Bill) -> int:
        return next(item.requests for item in bill.items if item.kind == "blob put")

    assert puts(ten) == pytest.approx(10 * puts(one), rel=0.01)
    assert puts(slower) == pytest.approx(puts(one), rel=0.01)
    storage = [next(item.dollars for item in bill.items if item.kind == "storage") for bill in (one, ten, slower)]
    assert len(set(storage)) == 1
    assert plan_bill(Plan(listeners=3)).requests > plan_bill(Plan()).requests
    for wrong in ({"sources": 0}, {"every_s": 0.0}, {"listeners": -1}):
        with pytest.raises(UsageError):
            Plan(**wrong)


def test_updates_are_collected_for_a_while(tmp_path: Path) -> None:
    with strandline.open(tmp_path / "lake", create=True, synced=False) as lake:
        shard = lake.repository("nyc", create=True).shard("s", SCHEMA, key=["key"])
        with shard.batching_writer(every_s=3_600) as writer:
            for number in range(50):
                writer.add([(("k", number), 0, 1)])
            assert shard.state.upper == 0
            assert writer.flush() == 0
            assert writer.flush() is None
            writer.add([(("k", 99), 0, 1)])
            with pytest.raises(SchemaMismatch):
                writer.add([(("k", "x"), 0, 1)])
            with pytest.raises(InvalidBounds):
                writer.add([update("k", 1, 7)])
        assert len(shard.snapshot().to_list()) == 51
        assert shard.state.upper == 2
        with pytest.raises(UsageError, match="closed"):
            writer.add([(("k", 1), 0, 1)])
        with pytest.raises(UsageError, match="some time"):
            shard.batching_writer(every_s=0)


def test_what_is_collected_is_appended_when_its_time_has_come(tmp_path: Path) -> None:
    with strandline.open(tmp_path / "lake", create=True, synced=False) as lake:
        shard = lake.repository("nyc", create=True).shard("s", SCHEMA, key=["key"])
        writer = shard.batching_writer(every_s=0.05)
        writer.add([(("k", 1), 0, 1)])
        assert shard.snapshot(0, timeout_s=20).to_list() == [(("k", 1), 0, 1)]
        for _ in range(5):
            writer.add([(("k", 1), 0, 1)])
            time.sleep(0.02)
        writer.close()
        assert shard.snapshot().to_list()[0][2] == 6
