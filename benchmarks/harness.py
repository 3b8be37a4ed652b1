"""Measures, and keeps what was measured with its target and its setting."""

from __future__ import annotations

import gc
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import strandline
from benchmarks.references import CACHE, processor_s
from strandline import Branch, Entry, Repository

Better = Literal["more", "less"]


@dataclass(frozen=True, slots=True)
class Result:
    """One number.

    Attributes:
        value: median of the runs.
        low, high: quartiles of the runs.
        target: what is asked for, or None for a number that only compares.
        setting: on what, synced or not.
        wall_s, processor_s: what the runs took in all, as far as they were timed in this process; 0 if not.
    """

    name: str
    value: float
    unit: str
    target: float | None
    better: Better
    setting: str
    runs: int
    low: float
    high: float
    wall_s: float = 0.0
    processor_s: float = 0.0


class Took(float):
    """A time in seconds, or what was computed from one by a factor, beside the processor time of the same action."""

    wall_s: float
    processor_s: float

    @classmethod
    def of(cls, value: float, wall_s: float, processor_s: float) -> Took:
        made = cls(value)
        made.wall_s, made.processor_s = wall_s, processor_s
        return made

    def __mul__(self, factor: float) -> Took:
        return self.of(float(self) * factor, self.wall_s, self.processor_s)

    __rmul__ = __mul__

    def __truediv__(self, by: float) -> Took:
        return self.of(float(self) / by, self.wall_s, self.processor_s)

    def __rtruediv__(self, of: float) -> Took:
        return self.of(of / float(self), self.wall_s, self.processor_s)


def result(name: str, values: Sequence[float], unit: str, target: float | None, better: Better, setting: str) -> Result:
    low, high = (values[0], values[0]) if len(values) < 2 else statistics.quantiles(values, n=4)[::2]
    timed = [value for value in values if isinstance(value, Took)]
    wall, processor = sum(one.wall_s for one in timed), sum(one.processor_s for one in timed)
    middle = float(statistics.median(values))
    return Result(name, middle, unit, target, better, setting, len(values), float(low), float(high), wall, processor)


def seconds(action: Callable[[], object]) -> Took:
    """The time of an action; what lives already, mostly the benchmark's own data, is no concern of the collector."""
    gc.freeze()
    started, used = time.perf_counter(), processor_s()
    action()
    wall = time.perf_counter() - started
    return Took.of(wall, wall, processor_s() - used)


@contextmanager
def folder() -> Iterator[Path]:
    CACHE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=CACHE) as name:
        yield Path(name)


@contextmanager
def repository(synced: bool, compaction: bool = True) -> Iterator[Repository]:
    """An empty repository on SQLite and local files."""
    with (
        folder() as place,
        strandline.open(place / "lake", create=True, synced=synced, compaction=compaction) as lake,
    ):
        yield lake.repository("bench", create=True)


def setting(synced: bool) -> str:
    return "SQLite + files, " + ("synced" if synced else "not synced")


def entries(prefix: str, count: int, version: int = 0) -> list[tuple[str, Entry]]:
    """Entries as a real lake has them: 1,000 a folder."""
    return [(f"{prefix}/{i // 1000:05d}/part-{i:08d}.parquet", one_entry(i, version)) for i in range(count)]


def one_entry(i: int, version: int = 0) -> Entry:
    return Entry(
        f"data/5f2b1c/{version:04x}{i:016x}.parquet", i, f"blake3:{version:08x}{i:056x}", 1_770_000_000_000_000
    )


def fill(branch: Branch, count: int, prefix: str = "table") -> list[str]:
    """Commit `count` entries; returns their paths."""
    for first in range(0, count, 200_000):
        size = min(200_000, count - first)
        branch.stage_each(
            [
                (f"{prefix}/{(first + i) // 1000:05d}/part-{first + i:08d}.parquet", one_entry(first + i))
                for i in range(size)
            ]
        )
    branch.commit(f"{count} entries")
    return [f"{prefix}/{i // 1000:05d}/part-{i:08d}.parquet" for i in range(count)]


def peak_mib(function: str, *arguments: str) -> float:
    """The peak of resident memory of a fresh process that runs `module:function`, in MiB."""
    module, _, name = function.partition(":")
    script = (
        "import importlib, pathlib, sys\n"
        f"getattr(importlib.import_module({module!r}), {name!r})(*sys.argv[1:])\n"
        # not getrusage, whose peak begins with that of the process that forked this one
        "lines = pathlib.Path('/proc/self/status').read_text().splitlines()\n"
        "print(next(int(line.split()[1]) for line in lines if line.startswith('VmHWM')) / 1024)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])
