"""Compares two commits: the same benchmark on the source of both, in turn, until the ratio is known well enough.

`make bench-compare A=<commit> [B=<commit>] [ONLY=name] [OWN=1]`. The machine's own speed varies by more than any
change that is looked for, so nothing is concluded from a number alone: each run of A stands beside a run of B, the
order changes from pair to pair, and what is reported is the geometric mean of the ratios with its 95 % interval
(Student's t on their logarithms). Above 1 means that B is slower. Four references that no change touches run beside
each: if their ratio is not about 1, the machine changed between the two, and the pair says so.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.__main__ import NAMES
from benchmarks.references import CACHE

ROOT = Path(__file__).parents[1]
OURS = ("one.py", "references.py")
"""What runs a benchmark, in whichever version it is."""
MIN_PAIRS = 3
WIDTH = 0.03
"""How wide the interval may be, as a part of the ratio."""
T_95 = (
    12.71,
    4.30,
    3.18,
    2.78,
    2.57,
    2.45,
    2.36,
    2.31,
    2.26,
    2.23,
    2.20,
    2.18,
    2.16,
    2.14,
    2.13,
    2.12,
    2.11,
    2.10,
    2.09,
)
"""Of Student's t, two-sided 95 %, by degrees of freedom from 1; beyond the last one 2.0 is used."""
OF_RUN = "the whole run"


@contextmanager
def source(commit: str | None, *, own: bool = False) -> Iterator[Path]:
    """The source of a commit in a folder of its own; the work tree itself if it is None.

    Args:
        own: with the benchmarks as they were at that commit, for one that knew other names inside. Only what runs
            them, and the references beside them, are those of the work tree.
    """
    if commit is None:
        yield ROOT / "src"
        return
    CACHE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="compare-") as folder:
        parts = ["src", "benchmarks", "tests"] if own else ["src"]
        archive = subprocess.run(["git", "archive", commit, *parts], cwd=ROOT, capture_output=True)
        if archive.returncode:
            raise SystemExit(f"git cannot read the commit {commit!r}: {archive.stderr.decode().strip()}")
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        if own:
            for name in OURS:
                shutil.copy(ROOT / "benchmarks" / name, Path(folder) / "benchmarks" / name)
            (Path(folder) / ".cache").symlink_to(CACHE)
        yield Path(folder) / "src"


def measured(src: Path, name: str) -> dict[str, Any]:
    environment = {**os.environ, "PYTHONPATH": f"{src}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-m", "benchmarks.one", name]
    place = src.parent if (src.parent / "benchmarks").is_dir() else ROOT
    run = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True)
    if run.returncode:
        raise SystemExit(f"{name} does not run on {src}:\n{run.stderr[-2_000:]}")
    found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return found


def interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """The geometric mean of ratios, and its 95 % interval."""
    logs = [math.log(ratio) for ratio in ratios]
    mean = statistics.fmean(logs)
    if len(logs) < 2:
        return math.exp(mean), 0.0, math.inf
    t = T_95[len(logs) - 2] if len(logs) - 2 < len(T_95) else 2.0
    half = t * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def pairs_of(a: dict[str, Any], b: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """By name, how much slower B was than A."""
    yield f"{OF_RUN}, wall", b["wall_s"] / a["wall_s"]
    yield f"{OF_RUN}, processor", b["processor_s"] / a["processor_s"]
    # by name, where it names one row: the setting of some rows has figures in it, which are never twice the same
    count = Counter(row["name"] for row in b["results"])

    def label(row: dict[str, Any]) -> str:
        return row["name"] if count[row["name"]] < 2 else f"{row['name']} ({row['setting']})"

    theirs = {label(row): row for row in a["results"]}
    for row in b["results"]:
        other = theirs.get(label(row))
        if other is None or not other["value"] or not row["value"]:
            continue
        ratio = row["value"] / other["value"]
        yield label(row), 1 / ratio if row["better"] == "more" else ratio
    for name, took in b["references"].items():
        yield f"reference: {name}", took / a["references"][name]


def compare(name: str, a: Path, b: Path, max_pairs: int) -> dict[str, list[float]]:
    """Run pairs until each interval is narrow enough, or there are enough pairs, or somebody interrupts."""
    found: dict[str, list[float]] = defaultdict(list)
    for number in range(max_pairs):
        first, second = (a, b) if number % 2 == 0 else (b, a)
        try:
            one, other = measured(first, name), measured(second, name)
        except KeyboardInterrupt:
            print(f"  interrupted in pair {number + 1}", flush=True)
            break
        took = f"{one['wall_s']:.0f} s and {other['wall_s']:.0f} s"
        print(f"  pair {number + 1} of at most {max_pairs}: {took}", file=sys.stderr, flush=True)
        for what, ratio in pairs_of(*((one, other) if number % 2 == 0 else (other, one))):
            found[what].append(ratio)
        if number + 1 >= MIN_PAIRS and all(is_narrow(ratios) for ratios in found.values()):
            break
    return found


def is_narrow(ratios: Sequence[float]) -> bool:
    mean, low, high = interval(ratios)
    return high - low <= WIDTH * mean


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench-compare", description=__doc__)
    parser.add_argument("--a", required=True, help="the commit to compare with")
    parser.add_argument("--b", help="the other commit; by default the work tree")
    parser.add_argument("--only", choices=NAMES, action="append", help="a benchmark; may be repeated")
    parser.add_argument("--pairs", type=int, default=12, help="at most so many pairs")
    parser.add_argument("--limit", type=float, default=1.03, help="fail if a ratio is above it by its lower end")
    parser.add_argument("--own", action="store_true", help="run A's benchmarks on A: it knew other names inside")
    chosen = parser.parse_args()
    slower = []
    with source(chosen.a, own=chosen.own) as a, source(chosen.b) as b:
        for name in chosen.only or NAMES:
            print(f"\n{name}: B ÷ A, above 1 is slower", flush=True)
            for what, ratios in compare(name, a, b, chosen.pairs).items():
                mean, low, high = interval(ratios)
                note = "" if is_narrow(ratios) else f"wider than {WIDTH:.0%}"
                is_slower = low > chosen.limit and not what.startswith(("reference", OF_RUN))
                if is_slower:
                    slower.append(f"{name}: {what}")
                mark = "SLOWER" if is_slower else ""
                spread = f"{mean:6.3f} [{low:.3f} – {high:.3f}] {len(ratios):3} pairs"
                print(f"  {what:76} {spread}  {note} {mark}", flush=True)
    print(f"\nslower than {chosen.limit}: {', '.join(slower) or 'none'}")
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
