"""Runs one benchmark and four fixed references in a process of its own, and prints what they took as a line of JSON."""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
import time
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.harness import CACHE

LOOPS = 2_000_000
SORTED_ROWS = 1_000_000
SYNCED_WRITES = 40
PARQUET_ROWS = 500_000


def references() -> dict[str, float]:
    """Seconds of work that no change of this project touches: they tell how fast the machine is at this moment."""
    found = {}
    started = time.perf_counter()
    total = 0
    for number in range(LOOPS):
        total += number & 7
    found["a loop in Python"] = time.perf_counter() - started
    values = pa.array(np.random.default_rng(0).integers(0, 1 << 60, SORTED_ROWS))
    started = time.perf_counter()
    pc.sort_indices(values)
    found["a sort in Arrow"] = time.perf_counter() - started
    CACHE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        started = time.perf_counter()
        with open(Path(folder) / "synced", "wb", buffering=0) as file:
            for _ in range(SYNCED_WRITES):
                file.write(b"x" * 4_096)
                os.fsync(file.fileno())
        found["a synced write"] = (time.perf_counter() - started) / SYNCED_WRITES
        table = pa.table({"number": values[:PARQUET_ROWS], "text": pa.array(["text"] * PARQUET_ROWS)})
        started = time.perf_counter()
        pq.write_table(table, Path(folder) / "file.parquet")
        found["a Parquet file"] = time.perf_counter() - started
    return found


def main(name: str) -> None:
    before = references()
    used, started = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    results = import_module(f"benchmarks.{name}").run()
    wall = time.perf_counter() - started
    now = resource.getrusage(resource.RUSAGE_SELF)
    after = references()
    told = {
        "references": {one: min(before[one], after[one]) for one in before},
        "wall_s": wall,
        "processor_s": now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime,
        "results": [asdict(one) for one in results],
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1])
