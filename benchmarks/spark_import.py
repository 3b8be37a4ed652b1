"""What does an import in slices on Spark cost beside the import of this process? A folder of a million files."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import strandline
from benchmarks.harness import Result, folder, result
from benchmarks.spark_sessions import builder

FOLDERS, IN_EACH = 1_000, 1_000
RUNS = 3
WHERE = "1,000,000 files in 1,000 folders, Spark on 2 cores, SQLite + files, not synced"
TICKS = os.sysconf("SC_CLK_TCK")


def run() -> list[Result]:
    with folder() as place:
        source = place / "source"
        for n in range(FOLDERS):
            (source / f"day={n:04}").mkdir(parents=True)
            for m in range(IN_EACH):
                os.close(os.open(source / f"day={n:04}" / f"part-{m:05}.parquet", os.O_CREAT | os.O_WRONLY))
        spark = builder().getOrCreate()
        spark.sparkContext.setLogLevel("OFF")
        try:
            walls, processors, memory = [], [], []
            with strandline.open(place / "lake", create=True, synced=False) as lake:
                for turn in range(RUNS + 1):
                    here = lake.repository(f"here{turn}", create=True).branch("main")
                    there = lake.repository(f"there{turn}", create=True).branch("main")
                    took = {}
                    for name, branch, session in (("here", here, None), ("spark", there, spark)):
                        took[name] = _measured(lambda: branch.import_objects(source, "in", spark=session))
                    assert here._core.commits.tree(here.commit_id).id == there._core.commits.tree(there.commit_id).id
                    if turn:  # the first one starts Python workers
                        walls.append(took["spark"][0] / took["here"][0])
                        processors.append(took["spark"][1] / took["here"][1])
                        memory.append(took["spark"][2])
            return [
                result("import of 1,000,000 files, to one process", walls, "times", 1.5, "less", WHERE),
                result("its processor time, to one process", processors, "times", 2.0, "less", WHERE),
                result("the largest Python worker", memory, "MB", None, "less", WHERE),
            ]
        finally:
            spark.stop()


def _measured(action: Callable[[], object]) -> tuple[float, float, float]:
    """Wall and processor seconds of this process and all below it, and the peak memory of a Python worker, in MB."""
    peak = [0.0]
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.2):
            sizes = [memory_mb(pid) for pid, name in below() if name.startswith("python")]
            peak[0] = max([peak[0], *sizes])

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    started, used = time.perf_counter(), _processor_s()
    action()
    took = time.perf_counter() - started, _processor_s() - used
    ended.set()
    watcher.join()
    return (*took, peak[0])


def below() -> list[tuple[int, str]]:
    """The processes below this one, and what they are called."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid=,comm="], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in listed.splitlines()]
    found, known = [], {os.getpid()}
    for _ in range(6):
        new = [(int(pid), name) for pid, above, name in rows if int(above) in known and int(pid) not in known]
        found += new
        known |= {pid for pid, _ in new}
    return found


def _processor_s() -> float:
    total = 0.0
    for pid in (os.getpid(), *(pid for pid, _ in below())):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += sum(int(field) for field in fields[11:15]) / TICKS
    return total


def memory_mb(pid: int) -> float:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    except OSError:
        return 0.0
