"""Each law's test can fail: under the mutation of its number it does."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MUTATIONS = sorted((Path(__file__).parent / "mutations").glob("*.patch"))


@pytest.mark.parametrize("patch", MUTATIONS, ids=[patch.stem for patch in MUTATIONS])
def test_a_law_notices_its_mutation(patch: Path, tmp_path: Path) -> None:
    law = patch.stem.partition("-")[0]
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    applied = subprocess.run(["git", "apply", str(patch)], cwd=tmp_path, capture_output=True, text=True)
    assert applied.returncode == 0, f"{patch.name} no longer fits the source: {applied.stderr}"
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", "-p", "no:cacheprovider", "-k", f"test_{law}"]
    command += [str(Path(__file__).parent / name) for name in ("test_laws.py", "test_collection.py", "test_races.py")]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "src"), "GIT_CEILING_DIRECTORIES": str(tmp_path)}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert run.returncode == 1, f"{law} did not notice: {run.stdout[-400:]} {run.stderr[-400:]}"
    assert "failed" in run.stdout
