"""What is kept of a figure: corrected by the references, judged as corrected, and not replaced from a slower hour."""

from __future__ import annotations

import time
from typing import Any

import pytest
from benchmarks.harness import Result, Took, result, seconds
from benchmarks.record import better_founded, row_of, seconds_of
from benchmarks.references import LOOP, NOMINAL, SYNCED, references


def took(loop: float = 1.0, synced: float = 1.0) -> dict[str, float]:
    """References on a machine that takes so many times longer than the nominal one."""
    return {**NOMINAL, LOOP: NOMINAL[LOOP] * loop, SYNCED: NOMINAL[SYNCED] * synced}


def figure(
    value: float,
    unit: str,
    target: float | None = None,
    better: Any = "less",
    processor: float = 1.0,
    on: str = "synced",
) -> Result:
    return Result("n", value, unit, target, better, on, 1, value, value, 1.0, processor)


@pytest.mark.parametrize(
    ("one", "machine", "corrected"),
    [
        (figure(10, "ms"), took(loop=2), 5),
        (figure(10, "ms", processor=0.0), took(synced=4), 2.5),
        (figure(10, "ms", processor=0.5), took(loop=3, synced=1), 5),
        (figure(10, "ms", processor=0.0, on="PostgreSQL"), took(loop=2, synced=4), 5),
        (figure(10, "ms", processor=0.0, on="files, not synced"), took(loop=2, synced=4), 5),
        (figure(100, "entries/s", better="more"), took(loop=2), 200),
        (figure(100, "/s", better="less"), took(loop=2), 100),
        (figure(0.9, "×"), took(loop=2), 0.9),
        (figure(600, "MiB"), took(loop=2), 600),
    ],
)
def test_times_and_rates_are_corrected_and_nothing_else(
    one: Result, machine: dict[str, float], corrected: float
) -> None:
    assert row_of("b", one, machine, 1.0, "abc")["corrected"] == pytest.approx(corrected)


def test_a_target_is_judged_on_the_corrected_figure() -> None:
    assert row_of("b", figure(10, "ms", 6), took(loop=2), 1.0, "abc")["met"] is True
    assert row_of("b", figure(10, "ms", 6), took(), 1.0, "abc")["met"] is False
    assert row_of("b", figure(100, "/s", 150, "more"), took(loop=2), 1.0, "abc")["met"] is True
    assert row_of("b", figure(1.2, "×", 1.0), took(loop=2), 1.0, "abc")["met"] is False
    assert row_of("b", figure(10, "ms"), took(), 1.0, "abc")["met"] is None


def test_a_row_has_the_multiple_of_its_reference() -> None:
    row = row_of("b", figure(500, "ms"), took(), 1.0, "abc")
    assert (row["reference"], row["multiple"]) == (LOOP, pytest.approx(0.5 / NOMINAL[LOOP]))
    waits = row_of("b", figure(200, "/s", better="more", processor=0.1), took(), 1.0, "abc")
    assert (waits["reference"], waits["multiple"]) == (SYNCED, pytest.approx(0.005 / NOMINAL[SYNCED]))
    assert row_of("b", figure(3, "×"), took(), 1.0, "abc")["multiple"] is None


def test_a_figure_that_does_not_know_its_processor_time_takes_the_share_of_its_run() -> None:
    one = Result("n", 10, "ms", None, "less", "synced", 1, 10, 10)
    assert row_of("b", one, took(loop=2), 1.0, "abc")["corrected"] == pytest.approx(5)
    assert row_of("b", one, took(loop=2), 0.0, "abc")["corrected"] == pytest.approx(10)


def test_a_slower_hour_replaces_nothing() -> None:
    fast, slow = (row_of("b", figure(10 * n, "ms"), took(loop=n), 1.0, f"v{n}") for n in (1, 2))
    assert better_founded(fast, slow) is fast
    assert better_founded(slow, fast) is fast
    assert better_founded(None, slow) is slow
    again = row_of("b", figure(11, "ms"), took(loop=1.05), 1.0, "later")
    assert better_founded(fast, again) is again
    assert better_founded({"name": "of an earlier version"}, slow) is slow
    small, large = (row_of("b", figure(500 * n, "MiB"), took(loop=n), 1.0, f"v{n}") for n in (1, 2))
    assert better_founded(small, large) is large  # a slow machine needs no more memory


def test_what_is_timed_keeps_its_processor_time_through_a_change_of_units() -> None:
    worked = seconds(lambda: sum(range(200_000)))
    slept = seconds(lambda: time.sleep(0.05))
    one = result("n", [worked * 1000, 1000 * worked], "ms", None, "less", "s")
    assert one.wall_s == pytest.approx(2 * worked.wall_s)
    assert one.processor_s == pytest.approx(2 * worked.processor_s)
    rate = result("n", [100 / slept], "/s", None, "more", "s")
    assert rate.wall_s == slept.wall_s >= 0.05
    assert rate.processor_s < rate.wall_s / 2
    assert type(one.value) is type(rate.low) is float
    assert isinstance(worked / 2, Took)
    assert result("n", [1.0, 2.0], "×", None, "less", "s").wall_s == 0


def test_units_of_time() -> None:
    assert seconds_of(figure(5, "µs")) == pytest.approx(5e-6)
    assert seconds_of(figure(4, "per s", better="more")) == 0.25
    assert seconds_of(figure(5, "%")) is None


def test_all_references_are_measured_and_have_a_nominal_time() -> None:
    assert references().keys() == NOMINAL.keys()
    assert all(value > 0 for value in references().values())
