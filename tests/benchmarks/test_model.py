"""The prediction for a billion objects is arithmetic on what is measured of few."""

from __future__ import annotations

import pytest
from benchmarks.model import Plan, predicted, unit_costs


def test_the_model_measures_what_the_prediction_needs() -> None:
    costs = unit_costs(3_000)
    assert all(value > 0 for value in costs.values())
    assert all(value > 0 for value in predicted(costs, Plan()).values())


def test_the_prediction_is_what_anybody_would_compute() -> None:
    costs = {
        "objects in a range": 100.0,
        "bytes of an object in a range": 10.0,
        "bytes of a part": 7.0,
        "bytes of a node": 50.0,
        "bytes of a commit in the key-value store": 3.0,
        "key-value operations of a commit": 8.64,
        "seconds of a commit": 0.5,
        "seconds to mark a range": 0.02,
        "bytes of an address in memory": 4.0,
        "seconds to commit a staged object": 2.0,
        "seconds to cut an object": 0.001,
    }
    plan = Plan(10_000, commits_per_day=1_000, ranges_per_commit=2, days=3, cores=5, list_s=0.1, read_s=0.03)
    told = predicted(costs, plan)
    assert told["bytes of one tree"] == 10_000 * 10 + 100 * 7
    assert told["ranges of all kept commits"] == 100 + 6_000
    assert told["bytes of metadata that kept commits add"] == 3_000 * (2 * 1_000 + 2 * 2 * 50)
    assert told["key-value operations a second"] == pytest.approx(0.1)
    assert told["commits a second that one branch takes"] == 2
    assert told["mark on the executors, s"] == pytest.approx(6_100 * 0.05 / 5)
    assert told["addresses that pass through the driver, bytes"] == (10_000 + 6_000) * 4
    assert told["list of all files in one process, s"] == pytest.approx(1.6)
    assert told["import of all objects on the executors, s"] == pytest.approx(10_000 * 0.0011 / 5)
