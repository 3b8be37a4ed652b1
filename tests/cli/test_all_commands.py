"""Every command with arguments of every wrong kind: an exit code and a sentence, never a traceback, nothing changed.

The commands are found in the command line itself, so a new one is tried without being named here.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

import strandline
from strandline.cli import run
from strandline.cli.app import app

WRONG = ("", "nope", "nyc/main/a/b", "-7", "a\x1b[31m", "s3://bucket/x")
LEFT_OUT = ("serve", "shard serve", "shard tail")
"""These go on until somebody stops them."""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STRANDLINE_LAKE", str(tmp_path / "lake"))
    with strandline.open(tmp_path / "lake", create=True, synced=False) as lake:
        main = lake.repository("nyc", create=True).branch("main")
        main.put_many({"a": b"1", "t/x": b"2"})
        main.commit("first")
        lake.repository("nyc").create_branch("work")
        lake.repository("nyc").create_tag("v1")
    yield tmp_path


def commands(group: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        path = f"{above} {name}".strip()
        if hasattr(command, "commands"):
            yield from commands(command, path)
        elif path not in LEFT_OUT:
            yield path, command


ALL = dict(commands(typer.main.get_command(app())))


def said(arguments: list[str]) -> tuple[int, str]:
    """Run a command in this process; its exit code, and all that it wrote."""
    out = io.TextIOWrapper(io.BytesIO(), "utf-8")
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out), pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b""), "utf-8"))
        code = run(arguments)
        out.flush()
    return code, out.buffer.getvalue().decode()


@pytest.mark.parametrize("name", ALL)
def test_wrong_words_get_a_sentence_and_change_nothing(place: Path, name: str) -> None:
    command = ALL[name]
    needed = [one for one in command.params if one.param_type_name == "argument" and one.required]
    options = [
        one for one in command.params if one.param_type_name == "option" and not one.is_flag and one.name != "lake"
    ]
    tried = [[wrong] * len(needed) for wrong in WRONG] if needed else [[]]
    tried += [[*["nyc/main"] * len(needed), one.opts[0], wrong] for one in options for wrong in ("", "-7")]
    for arguments in tried:
        # what begins with a dash is a value here, not an option of that name
        words = [*name.split(), *(["--", *arguments] if arguments and arguments[0].startswith("-") else arguments)]
        code, told = said(words)
        assert 0 <= code <= 13, (words, told)
        assert "Traceback" not in told
        assert told or code == 0, words
    with strandline.open(place / "lake") as lake:
        repo = lake.repository("nyc")
        assert "main" in {ref.name for ref in repo.branches()}
        assert [info.path for info in repo.ref("v1").list()] == ["a", "t/x"]
        if repo.settings.read_only:
            repo.set_read_only(False)
        repo.branch("main").put("still", b"1")
        assert repo.fsck().is_sound
