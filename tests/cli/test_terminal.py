"""What reaches a terminal, a pipe and a script: no traceback, and nothing that a terminal obeys."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import strandline
from strandline.cli import run
from strandline.cli.output import Output, visible
from strandline.errors import StrandlineError

NAME = "a\x1b]0;title\x07\nb\x9b31m\u202ec"
"""Sets the title of a terminal, begins a line, colours what follows, and turns its direction around."""
STOPPED = """
import sys
class Stop:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            raise {error}
sys.meta_path.insert(0, Stop())
from strandline.cli import main
sys.argv[1:] = ["ls", "nyc/main", "--lake", {lake!r}]
main()
"""


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """With one object whose name, committer and message are hostile."""
    with strandline.open(tmp_path / "lake", create=True, synced=False) as opened:
        main = opened.repository("nyc", create=True).branch("main")
        main.put(NAME, b"x")
        main.commit(f"message {NAME}")
    return tmp_path / "lake"


def is_obeyed(character: str) -> bool:
    return unicodedata.category(character) == "Cc" or unicodedata.bidirectional(character) in (
        *("LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI"),
    )


COMMANDS = [
    ["ls", "nyc/main"],
    ["ls", f"nyc/main/{NAME}"],
    ["log", "nyc/main"],
    ["log", "nyc/main", "--graph"],
    ["diff", "nyc/main~1", "nyc/main"],
    ["cat", f"nyc/main/no {NAME}"],
    ["rm", f"nyc/main/{NAME}"],
    ["get", f"nyc/{NAME}/x"],
    ["branch", "delete", f"nyc/{NAME}"],
    [NAME],
]


WITHOUT_JSON = ("cat", NAME)
ASKED = [(command, False) for command in COMMANDS]
ASKED += [(command, True) for command in COMMANDS if command[0] not in WITHOUT_JSON]


@pytest.mark.parametrize(("command", "as_json"), ASKED)
def test_no_command_shows_what_a_terminal_obeys(
    lake: Path, command: list[str], as_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    run([*command, *(["--lake", str(lake)] if len(command) > 1 else []), *(["--json"] if as_json else [])])
    shown = capsys.readouterr()
    assert shown.out + shown.err
    assert not [one for one in shown.out + shown.err if is_obeyed(one) and one not in "\n\t"]
    if as_json:
        for line in (shown.out + shown.err).splitlines():
            json.loads(line)


def test_names_in_json_are_what_they_were(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ls", "nyc/main", "--lake", str(lake), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["path"] == NAME


def test_a_line_of_a_pipe_is_one_object(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ls", "nyc/main", "--lake", str(lake)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_a_table_on_a_terminal_shows_no_control_character(lake: Path) -> None:
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "strandline.cli", "ls", "nyc/main", "--lake", str(lake)]
    subprocess.run(command, stdout=slave, stderr=slave, check=True, env={**os.environ, "NO_COLOR": "1", "TERM": "dumb"})
    os.close(slave)
    shown = os.read(master, 1 << 16).decode()
    os.close(master)
    assert "a\\x1b]0;title\\x07" in shown
    assert not [one for one in shown if is_obeyed(one) and one not in "\r\n"]


@given(st.text())
def test_what_is_visible_has_nothing_in_it_that_is_obeyed(text: str) -> None:
    shown = visible(text)
    assert not any(map(is_obeyed, shown))
    assert shown == text or any(map(is_obeyed, text)) or {"\u2028", "\u2029"} & set(text)


def _command(lake: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "strandline.cli", *arguments, "--lake", str(lake)]


@pytest.mark.parametrize("command", [("ls", "nyc/main"), ("ls", "nyc/main", "--json"), ("cat", f"nyc/main/{NAME}")])
def test_a_full_disk_for_the_output_is_one_sentence(lake: Path, command: tuple[str, ...]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(_command(lake, *command), stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 9
    assert done.stderr.startswith("error: Standard output cannot be written: No space left on device.")
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_help_on_a_full_disk_is_one_sentence() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "strandline.cli", "--help"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 9
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_outputs_are_no_error(lake: Path, closed: str) -> None:
    line = f"exec {sys.executable} -m strandline.cli ls nyc/main --lake {lake} {closed}"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_reader_that_has_had_enough_ends_a_command_quietly(lake: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(_command(lake, "ls", "nyc/main"), stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (done.returncode in (0, 141), done.stderr) == (True, "")  # 141 is what a shell says of a closed pipe


@pytest.mark.parametrize("name", ["typer", "strandline.cli.app", "strandline.lake", "pyarrow", "strandline.kv.sqlite"])
def test_an_interrupt_while_modules_load_is_quiet(lake: Path, name: str) -> None:
    code = STOPPED.format(name=name, error="KeyboardInterrupt", lake=str(lake))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("as_json", [False, True])
def test_an_error_that_nobody_knows_is_a_sentence(lake: Path, as_json: bool) -> None:
    code = STOPPED.format(name="strandline.kv.sqlite", error="ValueError('s3://a:hunter2@b')", lake=str(lake))
    code = code.replace('"--lake"', '"--json", "--lake"') if as_json else code
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "an error that it does not know: ValueError: s3://***@b" in done.stderr
    assert "Traceback" not in done.stderr
    if as_json:
        assert json.loads(done.stderr)["error"] == "error"
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "STRANDLINE_TRACEBACK": "1"}
    )
    assert "Traceback" in shown.stderr


def test_a_terminal_without_the_letters_of_a_name_shows_escapes(lake: Path) -> None:
    with strandline.open(lake) as opened:
        opened.repository("nyc").branch("main").put("größe", b"x")
    done = subprocess.run(
        _command(lake, "ls", "nyc/main"), capture_output=True, env={**os.environ, "PYTHONIOENCODING": "ascii"}
    )
    assert done.returncode == 0
    assert b"gr\\xf6\\xdfe" in done.stdout


def test_advice_is_in_the_words_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["init", "postgresql://127.0.0.1/x"]) == 2
    shown = capsys.readouterr().err
    assert "STRANDLINE_KV" in shown
    assert "kv=" not in shown


def test_an_error_shows_markup_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    Output(False).error(StrandlineError("[red]no[/red] \x1b[31m"))
    assert "[red]no[/red] \\x1b[31m" in capsys.readouterr().err


def test_a_failure_stays_one_when_nobody_reads(lake: Path) -> None:
    with strandline.open(lake) as opened:
        main = opened.repository("nyc").branch("main")
        other = main.create_branch("other")
        for branch in (main, other):
            branch.put("both", branch.name)
            branch.commit("both")
    for command, code in ((("merge", "nyc/other", "nyc/main"), (5, 141)), (("ls", "nyc/nope"), (3,))):
        reading, writing = os.pipe()
        os.close(reading)
        done = subprocess.run(_command(lake, *command), stdout=writing, stderr=subprocess.PIPE, text=True)
        os.close(writing)
        assert done.returncode in code
        assert "Traceback" not in done.stderr
