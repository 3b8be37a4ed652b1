"""What is kept of a figure: as it was measured, and as it would be on the machine that targets are meant for.

Figures in time, and rates, are corrected by the references that were measured beside them, and judged against their
targets as corrected. Ratios to other systems, memory and counts are judged as they are. Of two corrected figures the
one of the faster hour stays: correction goes only so far, and a figure of a slow hour says least.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from benchmarks.harness import Result
from benchmarks.references import LOOP, SYNCED, slowness

TIMES = {"s": 1.0, "ms": 1e-3, "µs": 1e-6}
SLOWER = 1.1
"""An hour is slower than another one if the references took this many times longer."""
Row = dict[str, Any]


def seconds_of(one: Result) -> float | None:
    """How many seconds one of what the figure counts takes; None if it is not about time."""
    if one.unit in TIMES:
        return one.value * TIMES[one.unit]
    return 1 / one.value if _is_speed(one) and one.value else None


def row_of(benchmark: str, one: Result, took: Mapping[str, float], run_share: float, source: str) -> Row:
    """The row of results.json.

    Args:
        took: what the references took beside the benchmark, in seconds.
        run_share: the share of processor time in the whole benchmark, for figures that do not know their own.
            Only where writes are synced is the rest waiting for the disk; elsewhere it is work of other processes.
        source: the commit that was measured.
    """
    is_synced = "synced" in one.setting and "not synced" not in one.setting
    share = 1.0 if not is_synced else min(1.0, one.processor_s / one.wall_s if one.wall_s else run_share)
    each = seconds_of(one)
    slow = slowness(took, share)
    corrected = one.value if each is None else one.value * slow if _is_speed(one) else one.value / slow
    reference = LOOP if share >= 0.5 else SYNCED
    return {
        "benchmark": benchmark,
        **asdict(one),
        "source": source,
        "reference": None if each is None else reference,
        "multiple": None if each is None else each / took[reference],
        "slowness": slow,
        "corrected": corrected,
        "met": is_met(corrected, one.target, one.better),
    }


def is_met(value: float, target: float | None, better: str) -> bool | None:
    if target is None:
        return None
    return value >= target if better == "more" else value <= target


def better_founded(held: Row | None, new: Row) -> Row:
    """Which of two rows of one figure stays: the new one, unless the machine was slower when it was measured."""
    is_corrected = new["reference"] is not None
    if held is not None and is_corrected and "slowness" in held and new["slowness"] > SLOWER * held["slowness"]:
        return held
    return new


def _is_speed(one: Result) -> bool:
    """Whether a faster machine does more of it; how often something is asked for in a second depends on no machine."""
    return one.better == "more" and (one.unit.endswith("/s") or one.unit == "per s")
