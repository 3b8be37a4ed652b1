"""Work that no change of this project touches: it tells how fast the machine is at this moment.

Benchmarks of older commits run beside this file, so it needs nothing of theirs.

A figure in seconds is work of the processor and waiting for the disk. The first part goes with a loop in Python, the
second with a synced write. From the two, and from how much processor time a figure took, follows what it would be on a
machine on which the references take their nominal times; targets are judged on that.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

CACHE = Path(__file__).parents[1] / ".cache"
"""Benchmarks work beside the project: a crowded /tmp makes every new file slower by a factor of ten."""
LOOPS = 2_000_000
SORTED_ROWS = 1_000_000
SYNCED_WRITES = 40
PARQUET_ROWS = 500_000
LOOP, SORT, SYNCED, PARQUET = "a loop in Python", "a sort in Arrow", "a synced write", "a Parquet file"
NOMINAL: Mapping[str, float] = {LOOP: 0.052, SORT: 0.12, SYNCED: 0.000_25, PARQUET: 0.1}
"""What they take, in seconds, in a fast hour of the machine that targets are meant for: two rented cores."""


def processor_s() -> float:
    """The processor time of this process and of those that it has started and that have ended."""
    return sum(os.times()[:4])


def references() -> dict[str, float]:
    """What each reference takes now, in seconds."""
    found = {}
    started = time.perf_counter()
    total = 0
    for number in range(LOOPS):
        total += number & 7
    found[LOOP] = time.perf_counter() - started
    values = pa.array(np.random.default_rng(0).integers(0, 1 << 60, SORTED_ROWS))
    started = time.perf_counter()
    pc.sort_indices(values)
    found[SORT] = time.perf_counter() - started
    CACHE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        started = time.perf_counter()
        with open(Path(folder) / "synced", "wb", buffering=0) as file:
            for _ in range(SYNCED_WRITES):
                file.write(b"x" * 4_096)
                os.fsync(file.fileno())
        found[SYNCED] = (time.perf_counter() - started) / SYNCED_WRITES
        table = pa.table({"number": values[:PARQUET_ROWS], "text": pa.array(["text"] * PARQUET_ROWS)})
        started = time.perf_counter()
        pq.write_table(table, Path(folder) / "file.parquet")
        found[PARQUET] = time.perf_counter() - started
    return found


def faster(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    """Of two moments, what each reference took at best: what lies between them was measured no faster than that."""
    return {name: min(one[name], other[name]) for name in one}


def slowness(took: Mapping[str, float], processor_share: float) -> float:
    """How many times longer than on the nominal machine a figure takes, of which a share is work of the processor."""
    share = min(max(processor_share, 0.0), 1.0)
    return share * took[LOOP] / NOMINAL[LOOP] + (1 - share) * took[SYNCED] / NOMINAL[SYNCED]
