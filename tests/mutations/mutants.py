"""Rules and their mutations: what tests a rule must fail when the rule is taken out of a copy of the source."""

from __future__ import annotations

import atexit
import compileall
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path
from queue import SimpleQueue

from tests.mutations.warm import WarmPython

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
SIMULATOR = "simulator"
SEEDS = 2_000
"""Within so many seeds the simulator notices each of its mutations."""
LAWS: Mapping[str, Sequence[str]] = {
    "locks": ("locks/test_laws.py", "locks/test_laws_of_keeping.py"),
    "transactions": ("transactions/test_laws.py", "transactions/test_collection.py", "transactions/test_races.py"),
    "shards": (
        "blob/test_conformance.py",
        "shards/test_consensus.py",
        "shards/test_writes.py",
        "shards/test_idempotence.py",
        "shards/test_states.py",
        "shards/test_reads.py",
        "shards/test_holders.py",
        "shards/test_leases.py",
        "shards/test_upkeep.py",
        "shards/test_service.py",
    ),
}
"""Where the laws of a family are tested: `p07-…` is a mutation of law P-7, whose tests are called `test_p07_…`."""


def patches() -> list[Path]:
    """All mutations, those of the simulator first: they take longest."""
    return sorted(HERE.glob("*/*.patch"), key=lambda patch: (patch.parent.name != SIMULATOR, str(patch)))


def name_of(patch: Path) -> str:
    return f"{patch.parent.name}/{patch.stem}"


class Mutants:
    """Mutations, tried side by side in as many processes as there are processors."""

    def __init__(self, chosen: Sequence[Path]) -> None:
        self._pool = ThreadPoolExecutor(os.cpu_count() or 1)
        self._idle: SimpleQueue[WarmPython] = SimpleQueue()
        self._pythons = [WarmPython() for _ in range(os.cpu_count() or 1)]
        for python in self._pythons:
            self._idle.put(python)
        self._runs: dict[Path, Future[str]] = {patch: self._pool.submit(self._try, patch) for patch in chosen}

    def _try(self, patch: Path) -> str:
        python = self._idle.get()
        try:
            return verdict(patch, python)
        finally:
            self._idle.put(python)

    def verdict(self, patch: Path) -> str:
        """Empty if a test noticed, else what the tests said."""
        return self._runs[patch].result()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        for python in self._pythons:
            python.close()


@cache
def _compiled() -> Path:
    """A copy of the source with its bytecode, which is that of all copies but for what a mutation changes in them.

    Where Python is told to keep no bytecode, each run would compile all of the source again.
    """
    place = Path(tempfile.mkdtemp(prefix="strandline-source-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    shutil.copytree(ROOT / "src", place / "src", ignore=shutil.ignore_patterns("__pycache__"))
    compileall.compile_dir(place / "src", quiet=1)
    return place / "src"


def verdict(patch: Path, python: WarmPython) -> str:
    """Try a mutation: empty if a test noticed it, else what the tests said."""
    with tempfile.TemporaryDirectory() as place:
        # links: git puts a new file in the place of each one that it changes
        shutil.copytree(_compiled(), Path(place) / "src", copy_function=os.link)
        environment = {
            # on a CI pytest shows differences in full, and looks for those of two long values for minutes
            **{name: value for name, value in os.environ.items() if name not in ("CI", "BUILD_NUMBER")},
            "PYTHONPATH": f"{place}/src",
            "GIT_CEILING_DIRECTORIES": str(Path(place).parent),
            # in the one place that they would share, they clear away each other's folders, and one failed of it
            "PYTEST_DEBUG_TEMPROOT": place,
        }
        applied = subprocess.run(
            ["git", "apply", str(patch)], cwd=place, env=environment, capture_output=True, text=True
        )
        if applied.returncode:
            return f"{patch.name} no longer fits the source: {applied.stderr}"
        command = _seeds(patch) if patch.parent.name == SIMULATOR else _tests(patch)
        run = python.run(command, environment, Path(place) / "said")
    is_simulated = patch.parent.name == SIMULATOR
    noticed = "caught after" in run.said if is_simulated else run.code == 1 and "failed" in run.said
    return "" if noticed else f"{name_of(patch)} was not noticed: {run.said[-800:]}"


def _seeds(patch: Path) -> list[str]:
    """The scenarios that notice: of the family and from the first seed that the patch names, if it does."""
    said = dict(re.findall(r"^(family|first): (\S+)$", patch.read_text(), re.M))
    first = int(said.get("first", 0))  # it is known that no seed before this one notices
    seeds = SEEDS - first % SEEDS
    which = ["--first", str(first), "--seeds", str(seeds), "--family", said.get("family", "protocol")]
    return ["strandline.testing.simulation", "--until-broken", "--jobs", "1", *which]


def _tests(patch: Path) -> list[str]:
    """The tests that notice: those that the patch names, else those of the law that its name begins with."""
    named = re.search(r"^tests: (.+)$", patch.read_text(), re.M)
    if named:
        chosen = shlex.split(named[1])
    else:
        law = patch.stem.partition("-")[0]
        chosen = ["-k", f"test_{law}_", *(f"tests/{file}" for file in LAWS[patch.parent.name])]
    # the same examples each time: what noticed once notices again, and a mutation found by luck alone shows at once
    examples = ["--hypothesis-profile", "mutations"]
    warm = ["-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning"]
    return ["pytest", "-q", "-x", "--no-header", "-p", "no:cacheprovider", *warm, *examples, *chosen]
