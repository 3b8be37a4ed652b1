"""A process that has loaded the libraries of the tests, and forks for each run of Python that it is asked for.

Loading them takes longer than most mutations' tests do. The project's own modules are not among them: each run loads
its own copy of the source. Requests are lines of JSON on standard input, answers are exit codes, a line each.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

ROOT = Path(__file__).parents[2]
LIBRARIES = (
    *("pytest", "hypothesis.stateful", "numpy", "msgspec", "blake3", "click", "obstore"),
    *("pyarrow.compute", "pyarrow.dataset", "pyarrow.parquet", "cryptography.fernet", "uvicorn", "unittest.mock"),
)
OWN = ("strandline", "tests")


class Ran(NamedTuple):
    """How a run ended, and what it said on both outputs."""

    code: int
    said: str


class WarmPython:
    """Such a process, for one caller at a time."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, arguments: Sequence[str], environment: Mapping[str, str], said: Path) -> Ran:
        """What `python -m` does with these arguments in the project's folder.

        Args:
            arguments: the module's name, and what it is given.
            environment: all of it; PYTHONPATH is one folder.
            said: a file for what the run says.
        """
        asking, answers = self._process.stdin, self._process.stdout
        assert asking is not None
        assert answers is not None
        request = {"arguments": list(arguments), "environment": dict(environment), "said": str(said)}
        print(json.dumps(request), file=asking, flush=True)
        return Ran(int(answers.readline()), said.read_text(errors="replace"))

    def close(self) -> None:
        self._process.communicate()


def serve(asking: IO[str]) -> dict[str, Any] | None:
    """Fork for each request; only a child returns, with what it was asked for."""
    for line in asking:
        pid = os.fork()
        if not pid:
            request: dict[str, Any] = json.loads(line)
            return request
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
    return None


def become(request: Mapping[str, Any]) -> None:
    """Be what a new `python -m` would be."""
    os.environ.clear()
    os.environ.update(request["environment"])
    with open(request["said"], "wb") as said, open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
    module, *arguments = request["arguments"]
    sys.path[0:1] = [str(ROOT), request["environment"]["PYTHONPATH"]]
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    for library in LIBRARIES:
        importlib.import_module(library)
    loaded = [name for name in sys.modules if name.partition(".")[0] in OWN]
    assert not loaded, f"{loaded} would be the same in each run"
    if (request := serve(sys.stdin)) is not None:
        become(request)
