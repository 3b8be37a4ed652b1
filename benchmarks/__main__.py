"""Runs the benchmarks, prints a table, and writes benchmarks/results.json and benchmarks/results.png.

Of each figure the table has what was measured, and what it would be on the machine that targets are meant for.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.harness import Result
from benchmarks.record import Row, better_founded, row_of
from benchmarks.references import NOMINAL

NAMES = (
    "staging",
    "commits",
    "reading",
    "trees",
    "scale",
    "model",
    "importing",
    "memory",
    "compaction",
    "contention",
    "sensor",
    "files",
    "planning",
    "in_process",
    "tables",
    "transactions",
    "garbage",
    "marking",
    "iceberg",
    "iceberg_mark",
    "iceberg_sql",
    "spark_metadata",
    "spark_import",
    "spark_source",
    "locks",
    "shards",
    "shard_service",
    "shard_streams",
    "serving",
    "commands",
)
HERE = Path(__file__).parent


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--only", choices=NAMES, help="one question")
    chosen = parser.parse_args().only
    path = HERE / "results.json"
    held = json.loads(path.read_text())["results"] if path.exists() else []
    source = version()
    measured_now: list[Row] = []
    for name in [chosen] if chosen else NAMES:
        print(f"\n{name}: {(import_module(f'benchmarks.{name}').__doc__ or '').strip().splitlines()[0]}", flush=True)
        measured = in_a_process_of_its_own(name)
        share = measured["processor_s"] / measured["wall_s"]
        rows = [row_of(name, Result(**one), measured["references"], share, source) for one in measured["results"]]
        before = {(row["name"], row["setting"]): row for row in held if row["benchmark"] == name}
        kept = [better_founded(before.get((row["name"], row["setting"])), row) for row in rows]
        for row, stays in zip(rows, kept, strict=True):
            print(line(row), "" if stays is row else f"not kept: {stays['source']} was measured in a faster hour")
        measured_now += rows
        held = [row for row in held if row["benchmark"] != name] + kept
        held.sort(key=lambda row: NAMES.index(row["benchmark"]))
        about: dict[str, Any] = {
            "python": platform.python_version(),
            "machine": platform.machine(),
            "cores": os.cpu_count(),
        }
        about |= {"nominal": dict(NOMINAL)}
        path.write_text(json.dumps({"about": about, "results": held}, indent=1, ensure_ascii=False) + "\n")
    draw(held)
    missed = [row["name"] for row in measured_now if row["met"] is False]
    print(f"\n{len(measured_now)} numbers; missed: {', '.join(missed) or 'none'}")
    return 0


def in_a_process_of_its_own(name: str) -> dict[str, Any]:
    """Run a benchmark with the references beside it, free of what another one left in memory."""
    run = subprocess.run([sys.executable, "-m", "benchmarks.one", name], stdout=subprocess.PIPE, text=True)
    if run.returncode:
        raise SystemExit(f"{name} failed; the figures of the benchmarks before it are kept.")
    found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return found


def version() -> str:
    """The commit that is measured; with "-dirty" if files differ from it, beside those that benchmarks write."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=HERE, capture_output=True, text=True).stdout.strip()

    is_dirty = git("status", "--porcelain", "--untracked-files=no", "--", ":/", ":/!benchmarks/results.*")
    return (git("rev-parse", "--short", "HEAD") or "unknown") + "-dirty" * bool(is_dirty)


def line(row: Row) -> str:
    target = "" if row["target"] is None else f"{'≥' if row['better'] == 'more' else '≤'} {row['target']:,g}"
    mark = {True: "met", False: "MISSED", None: ""}[row["met"]]
    spread = f"[{row['low']:,.4g} – {row['high']:,.4g}]"
    figures = f"{row['value']:>12,.4g} {row['corrected']:>12,.4g} {row['unit']:10}"
    return f"  {row['name']:52} {figures} {target:>12}  {mark:7} {spread:24} {row['setting']}"


def draw(rows: list[dict[str, object]]) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    shown = [row for row in rows if row["target"] is not None]
    factors = [
        float(row.get("corrected", row["value"])) / float(row["target"])  # type: ignore[arg-type]
        if row["better"] == "more"
        else float(row["target"]) / float(row.get("corrected", row["value"]))  # type: ignore[arg-type]
        for row in shown
    ]
    figure, axes = plt.subplots(figsize=(9, 0.32 * len(shown) + 1.2))
    labels = [f"{row['name']} ({'not synced' if 'not synced' in str(row['setting']) else 'synced'})" for row in shown]
    axes.barh(labels, factors, color=["tab:green" if factor >= 1 else "tab:red" for factor in factors])
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.set_xlabel("how many times better than its target")
    axes.invert_yaxis()
    figure.tight_layout()
    figure.savefig(HERE / "results.png", dpi=110)


if __name__ == "__main__":
    sys.exit(main())
