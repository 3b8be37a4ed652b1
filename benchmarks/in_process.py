"""What do tables cost that are written and read in this process, beside PyArrow alone?

8,000,000 rows of 5 columns, in one file and in 12 partitions; PyArrow writes equal files, with page checksums, and each
file and folder is synced.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

import strandline
from benchmarks.harness import Result, folder, result, seconds
from strandline.tables.arrow_rows import GROUP_MAX_ROWS, GROUP_MIN_ROWS

ROWS = 8_000_000
RUNS = 7
MONTHS = 12


def rows() -> pa.Table:
    random = np.random.default_rng(1)
    return pa.table(
        {
            "id": np.arange(ROWS),
            "month": (np.arange(ROWS) * MONTHS // ROWS + 1).astype("int32"),
            "value": random.random(ROWS),
            "kind": random.integers(0, 1_000, ROWS),
            "text": pa.array(random.integers(0, 100_000, ROWS)).cast(pa.string()),
        }
    )


def run() -> list[Result]:
    data = rows()
    found = []
    for partition_by, where in ((None, "one file"), ("month", f"{MONTHS} partitions")):
        times: dict[str, list[float]] = {"write": [], "plain write": [], "read": [], "plain read": []}
        for number in range(RUNS):
            with folder() as place:
                _turn(place, data, partition_by, times, ours_first=number % 2 == 0)
        setting = f"{ROWS:,} rows, {where}, local files, synced"
        writing = [ours / plain for ours, plain in zip(times["write"], times["plain write"], strict=True)]
        reading = [ours / plain for ours, plain in zip(times["read"], times["plain read"], strict=True)]
        found += [
            result("in process: write ÷ PyArrow's write_dataset", writing, "×", 1.1, "less", setting),
            result("in process: read ÷ PyArrow's dataset", reading, "×", 1.05, "less", setting),
            result("in process: write", times["write"], "s", None, "less", setting),
            result("in process: read", times["read"], "s", None, "less", setting),
        ]
    return found


def _turn(
    place: Path, data: pa.Table, partition_by: str | None, times: dict[str, list[float]], *, ours_first: bool
) -> None:
    plain = place / "plain"
    with strandline.open(place / "lake", create=True) as lake:
        table = lake.repository("bench", create=True).branch("main").table("t")
        steps = {
            "write": lambda: table.write(data, partition_by=partition_by),
            "plain write": lambda: _write_plain(data, plain, partition_by),
            "read": lambda: table.to_arrow(),
            "plain read": lambda: ds.dataset(plain, partitioning="hive").to_table(),
        }
        names = ["write", "plain write", "read", "plain read"]
        for pair in (names[:2], names[2:]):
            for name in pair if ours_first else reversed(pair):
                times[name].append(seconds(steps[name]))
    shutil.rmtree(plain)


def _write_plain(data: pa.Table, place: Path, partition_by: str | None) -> None:
    by = pa.schema([data.schema.field(name) for name in (partition_by,) if name])
    options = ds.ParquetFileFormat().make_write_options(compression="snappy", write_page_checksum=True)
    ds.write_dataset(
        data,
        place,
        format="parquet",
        partitioning=ds.partitioning(by, flavor="hive") if partition_by else None,
        file_options=options,
        min_rows_per_group=GROUP_MIN_ROWS,
        max_rows_per_group=GROUP_MAX_ROWS,
    )
    for base, _, files in os.walk(place):
        for path in (*(os.path.join(base, name) for name in files), base):
            opened = os.open(path, os.O_RDONLY)
            os.fsync(opened)
            os.close(opened)
