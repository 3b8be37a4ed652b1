"""The suite's own length: each part has a budget, and a part that grows past it is named."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.harness import budgets

TESTS = Path(__file__).parent


def test_every_part_has_a_budget_and_no_other_has() -> None:
    folders = {path.relative_to(TESTS).parts[0] for path in TESTS.glob("*/**/test_*.py")}
    others = {f"{part} on {kind}" for part in ("spark", "transactions") for kind in ("connect", "s3", "newest")}
    assert {*folders, *others, "tests", "kills"} == budgets.BUDGETS.keys()


@pytest.mark.parametrize(
    ("nodeid", "marks", "spark", "part"),
    [
        ("tests/branch/test_commit.py::test_x[a/b]", {}, "local", "branch"),
        ("tests/test_errors.py::test_x[a/b]", {}, "local", "tests"),
        ("tests/spark/test_tables.py::test_x", {"spark": True}, "s3", "spark on s3"),
        ("tests/shards/test_kills.py::test_x", {"kill": True}, "local", "kills"),
    ],
)
def test_a_test_belongs_to_a_part(nodeid: str, marks: dict[str, bool], spark: str, part: str) -> None:
    assert budgets.part_of(nodeid, marks, spark) == part


def test_a_part_past_its_budget_is_named() -> None:
    allowed = {"branch": 10.0, "cli": 5.0}
    assert budgets.past({"branch": 9, "cli": 5}, 1.0, allowed) == []
    assert budgets.past({"branch": 12, "cli": 5}, 1.0, allowed) == ["branch took 12 s; its budget is 10 s."]
    assert budgets.past({"branch": 12, "cli": 5}, 1.5, allowed) == []
    (said,) = budgets.past({"new": 1}, 2.0, allowed)
    assert said.startswith("new took 1 s; its budget is 0 s, 0 s on a machine as slow")


@pytest.mark.parametrize(("seconds", "ends"), [(0.1, pytest.ExitCode.OK), (1e6, pytest.ExitCode.TESTS_FAILED)])
def test_a_run_past_its_budget_fails(seconds: float, ends: pytest.ExitCode) -> None:
    length = budgets.SuiteLength("local", {"branch": 1.0})
    for phase in ("setup", "call", "teardown"):
        report = SimpleNamespace(nodeid="tests/branch/test_x.py::test_y", keywords={}, duration=seconds, when=phase)
        length.pytest_runtest_logreport(report)  # type: ignore[arg-type]
    session = SimpleNamespace(exitstatus=pytest.ExitCode.OK)
    length.pytest_sessionfinish(session)  # type: ignore[arg-type]
    assert session.exitstatus == ends
    assert length.spent["branch"] == pytest.approx(3 * seconds)
