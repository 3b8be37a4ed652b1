"""Laws and their mutations: each law's test must fail when its rule is taken out of a copy of the source."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]


class Mutants:
    """All mutations of a folder, tried in as many processes as there are processors.

    Args:
        folder: of patches; the first word of a name is the law's, whose tests are called `test_<law>_…`, unless a line
            of the patch says which tests they are: `tests: file -k words`.
        tests: the files that those are in.
    """

    def __init__(self, folder: Path, tests: list[Path]) -> None:
        self.patches = sorted(folder.glob("*.patch"))
        self._tests = tests
        self._runs: dict[str, Future[str]] = {}

    def verdict(self, patch: Path) -> str:
        """Empty if the law noticed, else what its tests said."""
        if not self._runs:
            pool = ThreadPoolExecutor(os.cpu_count() or 1)
            self._runs = {one.stem: pool.submit(self._try, one) for one in self.patches}
            pool.shutdown(wait=False)
        return self._runs[patch.stem].result()

    def _try(self, patch: Path) -> str:
        law = patch.stem.partition("-")[0]
        with tempfile.TemporaryDirectory() as place:
            shutil.copytree(ROOT / "src", Path(place) / "src")
            environment = {
                **os.environ,
                "PYTHONPATH": f"{place}/src",
                "GIT_CEILING_DIRECTORIES": str(Path(place).parent),
            }
            applied = subprocess.run(
                ["git", "apply", str(patch)], cwd=place, env=environment, capture_output=True, text=True
            )
            if applied.returncode:
                return f"{patch.name} no longer fits the source: {applied.stderr}"
            command = [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", "-p", "no:cacheprovider"]
            named = re.search(r"^tests: (.+)$", patch.read_text(), re.M)
            chosen = shlex.split(named[1]) if named else ["-k", f"test_{law}_", *map(str, self._tests)]
            command += chosen
            run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        noticed = run.returncode == 1 and "failed" in run.stdout
        return "" if noticed else f"{law} did not notice: {run.stdout[-400:]} {run.stderr[-400:]}"
