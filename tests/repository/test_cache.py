"""What a process keeps in memory of all repositories together."""

from __future__ import annotations

from pathlib import Path

import pytest

import strandline
from strandline.errors import InvalidSettings
from strandline.tree.cache import ByteBoundedCache, CacheBudget


def test_200_repositories_share_one_budget(tmp_path: Path) -> None:
    with strandline.open(tmp_path, create=True, synced=False, cache_mib=4) as lake:
        names = [f"repo-{number:03d}" for number in range(200)]
        for name in names:
            main = lake.repository(name, create=True).branch("main")
            main.put_many({f"{number:04d}-{'x' * 60}": b"" for number in range(200)})
            main.commit("first")
        for name in names:
            assert len(list(lake.repository(name).branch("main").list())) == 200
        assert 0 < lake._cache.held_bytes <= 4 << 20
        held = lake._cache.held_bytes
        assert lake.repository("repo-199")._core.stores.trees._opened.held_bytes == held  # the same one for all
        for name in names[:20]:  # what was forgotten is read again
            assert lake.repository(name).branch("main").stat(f"0007-{'x' * 60}").size == 0


def test_caches_of_one_budget_do_not_mix_their_keys() -> None:
    budget = CacheBudget(100)
    one: ByteBoundedCache[str] = ByteBoundedCache(1_000, budget, "one")
    other: ByteBoundedCache[str] = ByteBoundedCache(50, budget, "other")
    one.put("a", "A", 40)
    other.put("a", "B", 40)
    assert (one.get("a"), other.get("a")) == ("A", "B")
    one.put("c", "C", 40)  # the one used longest ago goes, whosever it is
    assert (one.get("a"), other.get("a"), one.get("c")) == (None, "B", "C")
    other.put("large", "L", 60)
    one.put("larger", "L", 101)
    assert (other.get("large"), one.get("larger"), budget.held_bytes) == (None, None, 80)


@pytest.mark.parametrize("wrong", [0, -1, 1 << 21])
def test_sizes_that_are_none(tmp_path: Path, wrong: int) -> None:
    with pytest.raises(InvalidSettings, match="cache_mib"):
        strandline.open(tmp_path, create=True, cache_mib=wrong)
