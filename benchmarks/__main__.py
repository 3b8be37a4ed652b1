"""Runs the benchmarks, prints a table, and writes benchmarks/results.json and benchmarks/results.png."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

from benchmarks.harness import Result

NAMES = (
    "staging",
    "commits",
    "reading",
    "trees",
    "importing",
    "memory",
    "compaction",
    "contention",
    "sensor",
    "files",
    "planning",
    "tables",
    "transactions",
    "garbage",
    "locks",
    "shards",
    "shard_service",
    "shard_streams",
)
HERE = Path(__file__).parent


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench")
    parser.add_argument("--only", choices=NAMES, help="one question")
    chosen = parser.parse_args().only
    path = HERE / "results.json"
    held = json.loads(path.read_text())["results"] if path.exists() else []
    for name in [chosen] if chosen else NAMES:
        print(f"\n{name}: {(import_module(f'benchmarks.{name}').__doc__ or '').strip().splitlines()[0]}", flush=True)
        found: list[Result] = import_module(f"benchmarks.{name}").run()
        for one in found:
            print(line(one), flush=True)
        held = [row for row in held if row["benchmark"] != name]
        held += [{"benchmark": name, **asdict(one), "met": one.is_met} for one in found]
        held.sort(key=lambda row: NAMES.index(row["benchmark"]))
        about = {"python": platform.python_version(), "machine": platform.machine(), "cores": os.cpu_count()}
        path.write_text(json.dumps({"about": about, "results": held}, indent=1, ensure_ascii=False) + "\n")
    draw(held)
    missed = [row["name"] for row in held if row["met"] is False]
    print(f"\n{len(held)} numbers; missed: {', '.join(missed) or 'none'}")
    return 0


def line(one: Result) -> str:
    target = "" if one.target is None else f"{'≥' if one.better == 'more' else '≤'} {one.target:,g}"
    mark = {True: "met", False: "MISSED", None: ""}[one.is_met]
    spread = f"[{one.low:,.4g} – {one.high:,.4g}]"
    return f"  {one.name:52} {one.value:>12,.4g} {one.unit:10} {target:>12}  {mark:7} {spread:24} {one.setting}"


def draw(rows: list[dict[str, object]]) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    shown = [row for row in rows if row["target"] is not None]
    factors = [
        float(row["value"]) / float(row["target"])  # type: ignore[arg-type]
        if row["better"] == "more"
        else float(row["target"]) / float(row["value"])  # type: ignore[arg-type]
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
