"""The files with which people run the server: what they start is a configuration that can be served."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from strandline.cli import run

DEPLOY = Path(__file__).parents[2] / "deploy"


def checked(arguments: list[str], folder: Path) -> int:
    """What `--check` says of the arguments of a `strandline serve`, with a lake below a folder."""
    place = arguments[0]
    return run(["serve", str(folder / place.lstrip("/")), *arguments[1:], "--port", "0", "--check"])


def test_the_container(tmp_path: Path) -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    entry, command = (json.loads(re.search(rf"^{word} (\[.*\])$", text, re.M)[1]) for word in ("ENTRYPOINT", "CMD"))  # type: ignore[index]
    assert entry == ["strandline", "serve"]
    assert checked(command, tmp_path) == 0
    extras = re.search(r"/source\[([\w,]+)\]", text)
    assert extras
    project = (DEPLOY.parent / "pyproject.toml").read_text()
    assert all(re.search(rf"^{extra} = \[", project, re.M) for extra in extras[1].split(","))


def test_the_unit(tmp_path: Path) -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=True)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(DEPLOY / "strandline.service")
    program, *arguments = shlex.split(unit["Service"]["ExecStart"])
    assert program.endswith("/strandline")
    assert arguments.pop(0) == "serve"
    assert checked([one for one in arguments if one not in ("--port", "8000")], tmp_path) == 0
    assert unit["Service"]["StateDirectory"] in arguments[0]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here; the unit is read above")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    copy = tmp_path / "strandline.service"
    copy.write_text((DEPLOY / "strandline.service").read_text().replace("/opt/strandline/bin/strandline", "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
