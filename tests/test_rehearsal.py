"""What a workload costs: rehearsed requests, and how they grow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import strandline
from strandline.errors import UsageError
from strandline.rehearsal import Workload, _metered, _touched, day_of, stored_bytes, workload_bill
from strandline.shards.cost import Prices
from strandline.tree.levels import FLAT_MAX

NOTHING = Workload(
    1_000, 1.0, commits_per_day=0, reads_per_day=0, lists_per_day=0, merges_per_day=0, collections_per_day=0
)


def requests(workload: Workload) -> dict[str, int]:
    return {kind: count.requests for kind, count in day_of(workload).items()}


def test_each_call_is_counted_by_itself() -> None:
    assert requests(NOTHING) == {}
    assert requests(replace(NOTHING, reads_per_day=7)) == {"blob get": 7}
    assert requests(replace(NOTHING, lists_per_day=7)) == {"blob get": 14}  # a metarange and a range
    assert requests(replace(NOTHING, merges_per_day=7)) == {"blob put": 14}
    assert requests(replace(NOTHING, commits_per_day=7, objects_per_commit=1)) == {"blob put": 21}
    assert requests(replace(NOTHING, commits_per_day=7, objects_per_commit=3)) == {"blob put": 35}
    assert requests(replace(NOTHING, collections_per_day=2))["blob list"] == 2


def test_a_small_repository_asks_for_what_was_said(tmp_path: Path) -> None:
    """The same calls, counted in a lake on files."""
    with strandline.open(tmp_path / "lake", create=True, synced=False) as lake:
        repository = lake.repository("nyc", create=True)
        main = repository.branch("main")
        for number in range(20):
            main.put(f"folder/{number:02}", b"object")
        main.commit("objects")
        meter = _metered(repository)
        for turn in range(5):
            for number in range(3):
                main.put(f"folder/new-{turn}-{number}", b"object")
            main.commit("more")
        counted = meter.counts["blob put"].requests
    told = requests(replace(NOTHING, commits_per_day=5, objects_per_commit=3))
    assert told == {"blob put": counted}


def test_a_commit_in_a_billion_objects_reads_and_writes_a_path_for_each_change() -> None:
    small, large = (replace(NOTHING, objects=n, commits_per_day=1_000, objects_per_commit=10) for n in (10**5, 10**9))
    ranges, *levels = _touched(10**9, 10)
    assert len(levels) == 2
    assert 9.9 < ranges < 10
    assert requests(large)["blob get"] == pytest.approx(1_000 * (ranges + sum(levels) - 1), rel=0.01)
    assert requests(large)["blob put"] > 2 * requests(small)["blob put"]
    assert len(_touched(FLAT_MAX * 8_000, 1)) == 1


def test_what_is_stored_grows_with_what_is_kept() -> None:
    assert stored_bytes(NOTHING) == 1_000 * (1 + 20)
    kept = replace(NOTHING, commits_per_day=10, objects_per_commit=1, days=30)
    assert stored_bytes(replace(kept, days=60)) > stored_bytes(kept) > stored_bytes(NOTHING)
    bill = workload_bill(kept, Prices(put=1.0, gigabyte_month=0.0))
    assert bill.dollars == pytest.approx(10 * 3 * 365 / 1_000)


@pytest.mark.parametrize(
    "wrong", [{"objects": 0}, {"objects_per_commit": 0}, {"reads_per_day": -1}, {"days": float("nan")}]
)
def test_a_workload_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        replace(NOTHING, **wrong)
