"""How long each part of the suite may take: a run in which a part has grown past its budget fails.

A part is a folder of `tests`; tests that kill drivers, and runs on another kind of Spark, are parts of their own.
Budgets are in seconds on a machine that counts to two million as fast as the one they were written on; a slower machine
has as much more. They are two and a half times what was measured, and a minute
at least.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping

import pytest

LOOPS = 2_000_000
NOMINAL_S = 0.052
"""The same as for figures: `a loop in Python` in benchmarks/references.py."""
BUDGETS: Mapping[str, float] = {
    "backup": 140,
    "benchmarks": 60,
    "blob": 60,
    "branch": 240,
    "cli": 160,
    "forks": 150,
    "fs": 60,
    "garbage": 60,
    "iam": 60,
    "iceberg": 300,
    "kills": 900,
    "kv": 60,
    "locks": 88,
    "mutations": 1000,
    "records": 190,
    "repository": 130,
    "rules": 60,
    "server": 240,
    "shards": 138,
    "simulation": 440,
    "spark": 1000,
    "spark on connect": 700,
    "spark on newest": 700,
    "spark on s3": 880,
    "tables": 90,
    "tests": 500,
    "transactions": 60,
    "transactions on connect": 60,
    "transactions on newest": 60,
    "transactions on s3": 80,
    "tree": 120,
}


def part_of(nodeid: str, marks: Mapping[str, object], spark: str) -> str:
    """The part that a test belongs to."""
    if "kill" in marks:
        return "kills"
    folder, slash, _ = nodeid.partition("::")[0].removeprefix("tests/").partition("/")
    folder = folder if slash else "tests"
    return folder if spark == "local" else f"{folder} on {spark}"


def slowness() -> float:
    """How many times longer this machine takes than the one that the budgets were written on; at least 1."""
    started = time.perf_counter()
    total = 0
    for number in range(LOOPS):
        total += number & 7
    return max(1.0, (time.perf_counter() - started) / NOMINAL_S)


def past(spent: Mapping[str, float], slow: float, budgets: Mapping[str, float]) -> list[str]:
    """A sentence for each part that took longer than its budget."""
    return [
        f"{part} took {seconds:.0f} s; its budget is {budgets.get(part, 0):.0f} s"
        + (f", {budgets.get(part, 0) * slow:.0f} s on a machine as slow as this one." if slow > 1 else ".")
        for part, seconds in sorted(spent.items())
        if seconds > budgets.get(part, 0) * slow
    ]


class SuiteLength:
    """Adds up how long each part takes, and fails a run in which one is past its budget; `make` asks for it."""

    def __init__(self, spark: str, budgets: Mapping[str, float] = BUDGETS) -> None:
        self._spark = spark
        self._budgets = budgets
        self.spent: dict[str, float] = defaultdict(float)
        self.slow = slowness()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.spent[part_of(report.nodeid, report.keywords, self._spark)] += report.duration

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self.slow = max(self.slow, slowness())
        if past(self.spent, self.slow, self._budgets) and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        took = ", ".join(
            f"{part} {seconds:.0f}" for part, seconds in sorted(self.spent.items(), key=lambda one: -one[1])
        )
        terminalreporter.write_line(f"seconds by part: {took}")
        for sentence in past(self.spent, self.slow, self._budgets):
            terminalreporter.write_line(f"{sentence} Find what made it grow: --durations=20.", red=True)
