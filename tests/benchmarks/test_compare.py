"""The tool that compares commits: what it concludes from pairs, and that it runs both sources."""

from __future__ import annotations

import ast
import math
import subprocess
from pathlib import Path
from typing import Any

import pytest
from benchmarks.compare import interval, is_narrow, pairs_of, source

from benchmarks import compare


def test_the_interval_holds_the_mean_and_narrows_with_pairs() -> None:
    mean, low, high = interval([1.0, 1.1, 0.9, 1.05])
    assert low < mean < high
    assert mean == pytest.approx(1.0, abs=0.05)
    _, lower, higher = interval([1.0, 1.1, 0.9, 1.05] * 4)
    assert higher - lower < high - low
    assert interval([1.2])[1:] == (0.0, math.inf)
    assert not is_narrow([1.2])
    assert is_narrow([1.2, 1.2, 1.2])


def run(value: float, better: str = "less", name: str = "n") -> dict[str, Any]:
    row = {"name": name, "setting": "s", "value": value, "better": better}
    return {"wall_s": 1.0, "processor_s": 1.0, "references": {"r": 1.0}, "results": [row]}


def test_above_one_is_slower_whichever_way_a_number_counts() -> None:
    assert dict(pairs_of(run(1.0), run(2.0)))["n"] == 2.0
    assert dict(pairs_of(run(1.0, "more"), run(2.0, "more")))["n"] == 0.5
    assert "n" not in dict(pairs_of(run(1.0, name="other"), run(2.0)))


def test_rows_of_one_name_are_told_apart_by_their_settings() -> None:
    """And one whose setting has figures in it is found by its name."""
    a, b = run(1.0), run(2.0)
    b["results"][0]["setting"] = "s, median 5 ms"
    assert dict(pairs_of(a, b))["n"] == 2.0
    for one, value in ((a, 1.0), (b, 3.0)):
        one["results"] += [
            {"name": "m", "setting": setting, "value": value * factor, "better": "less"}
            for setting, factor in (("synced", 1), ("not synced", 2))
        ]
    found = dict(pairs_of(a, b))
    assert (found["m (synced)"], found["m (not synced)"]) == (3.0, 3.0)


def test_pairs_go_on_until_they_agree_or_there_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Path] = []
    a, b = Path("a"), Path("b")
    for noise, pairs in ((0.0, compare.MIN_PAIRS), (0.3, 6)):

        def measured(src: Path, name: str, noise: float = noise) -> dict[str, Any]:
            asked.append(src)
            return run(1.0 + noise * (len(asked) % 5))

        monkeypatch.setattr(compare, "measured", measured)
        asked.clear()
        found = compare.compare("staging", a, b, 6)
        assert len(found["n"]) == pairs
        assert asked[:4] == [a, b, b, a]  # the order changes


def test_a_commit_is_measured_from_its_own_source() -> None:
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=compare.ROOT, capture_output=True, text=True)
    if head.returncode:
        pytest.fail("the tool needs the project's history")
    with source(head.stdout.strip()) as src:
        assert (src / "strandline" / "__init__.py").is_file()
        assert src != compare.ROOT / "src"
        assert not (src.parent / "benchmarks").exists()
    with source(head.stdout.strip(), own=True) as src:
        run_by = (src.parent / "benchmarks" / "one.py").read_bytes()
        assert run_by == (compare.ROOT / "benchmarks" / "one.py").read_bytes()
        assert (src.parent / "benchmarks" / "staging.py").is_file()
    with source(None) as src:
        assert src == compare.ROOT / "src"
    with pytest.raises(SystemExit, match="cannot read the commit"), source("nowhere"):
        pass


def test_what_runs_a_benchmark_needs_nothing_of_the_commit_that_it_runs_on() -> None:
    for name in compare.OURS:
        for node in ast.walk(ast.parse((compare.ROOT / "benchmarks" / name).read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("benchmarks"):
                assert f"{node.module}.py".removeprefix("benchmarks.") in compare.OURS
