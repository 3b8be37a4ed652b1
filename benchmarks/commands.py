"""How long does a command take from its start to its end, beside the libraries that it loads?"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.harness import Result, result

TURNS = 15
MORE_S = 0.05
"""What a command may take beside its libraries and three tenths of them."""
LIBRARIES = "import numpy, pyarrow, pyarrow.compute"
COMMAND = "import sys; from strandline.cli import main; sys.argv[0] = 'strandline'; main()"


def run() -> list[Result]:
    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder)
        # Modules are compiled once, as an installation does it, also where the environment forbids to keep that.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment |= {"PYTHONPYCACHEPREFIX": str(at / "compiled"), "STRANDLINE_LAKE": str(at / "lake")}

        def took(program: str, *arguments: str) -> float:
            begun = time.perf_counter()
            called = [sys.executable, "-c", program, *arguments]
            subprocess.run(called, env=environment, check=True, capture_output=True, stdin=subprocess.DEVNULL)
            return time.perf_counter() - begun

        took(COMMAND, "init", str(at / "lake"))
        took(COMMAND, "repo", "create", "nyc")
        (at / "a").write_text("a")
        took(COMMAND, "put", str(at / "a"), "nyc/main/a")
        times: dict[str, list[float]] = {"libraries": [], "ls": []}
        for turn in range(TURNS + 1):
            for name, call in (("libraries", (LIBRARIES,)), ("ls", (COMMAND, "ls", "nyc/main/"))):
                seconds = took(*call)
                if turn:  # the first turn compiles
                    times[name].append(seconds)
    # Other work can only make a start longer: of each, the n-th quickest are compared.
    ordered = list(zip(sorted(times["ls"]), sorted(times["libraries"]), strict=True))
    ratios = [(command - MORE_S) / libraries for command, libraries in ordered]
    setting = f"a lake in a folder, one object, {TURNS} starts each in turns"
    return [
        result("numpy, pyarrow and pyarrow.compute", times["libraries"], "s", None, "less", setting),
        result("strandline ls", times["ls"], "s", None, "less", setting),
        result("(strandline ls - 50 ms) ÷ those libraries", ratios, "×", 1.3, "less", setting),
    ]
