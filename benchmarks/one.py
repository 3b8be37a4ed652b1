"""Runs one benchmark and four fixed references in a process of its own, and prints what they took as a line of JSON."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from importlib import import_module

from benchmarks.references import faster, processor_s, references


def main(name: str) -> None:
    before = references()
    used, started = processor_s(), time.perf_counter()
    results = import_module(f"benchmarks.{name}").run()
    wall = time.perf_counter() - started
    used = processor_s() - used
    after = references()
    told = {
        "references": faster(before, after),
        "wall_s": wall,
        "processor_s": used,
        "results": [asdict(one) for one in results],
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1])
