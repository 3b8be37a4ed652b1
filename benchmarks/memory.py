"""How much memory does a commit of a million staged entries take?"""

from __future__ import annotations

import strandline
from benchmarks.harness import Result, fill, folder, peak_mib, result, setting

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
    return [result("peak of a process that commits 1,000,000 staged", [peak], "MiB", 600, "less", setting(False))]
