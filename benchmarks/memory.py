"""What does a fresh process cost: the memory of a large commit, the time of an import and of a command?"""

from __future__ import annotations

import subprocess
import sys

import strandline
from benchmarks.harness import Result, fill, folder, peak_mib, result, seconds, setting

COUNT = 1_000_000


def stage(place: str) -> None:
    with strandline.open(place, create=True, synced=False) as lake:
        main = lake.repository("bench", create=True).branch("main")
        main.commit = lambda message: None  # type: ignore[method-assign,assignment]
        fill(main, COUNT)


def commit(place: str) -> None:
    with strandline.open(place, synced=False) as lake:
        lake.repository("bench").branch("main").commit("a million")


def run() -> list[Result]:
    with folder() as place:
        stage(str(place / "lake"))
        peak = peak_mib("benchmarks.memory:commit", str(place / "lake"))
        command = [
            sys.executable,
            "-c",
            "from strandline.cli import main; main()",
            "repo",
            "list",
            "--lake",
            str(place / "lake"),
        ]
        commands = [seconds(lambda: subprocess.run(command, check=True, capture_output=True)) * 1000 for _ in range(7)]
    script = "import time; t = time.perf_counter(); import strandline; print((time.perf_counter() - t) * 1000)"
    imports = [
        float(subprocess.run([sys.executable, "-c", script], check=True, capture_output=True).stdout) for _ in range(7)
    ]
    return [
        result("import strandline, in a fresh process", imports, "ms", 150, "less", "after the first time"),
        result("strandline repo list, in all", commands, "ms", None, "less", setting(True)),
        result("peak of a process that commits 1,000,000 staged", [peak], "MiB", 600, "less", setting(False)),
    ]
