"""The documents say what the code is: the map, the reference, the laws, the advice of errors, the one door."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer.main
from scripts import make_cli_page, make_rest_page

import strandline
from strandline import envelope, shards
from strandline.cli.app import app

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src" / "strandline"
FILES = sorted(path for path in SRC.rglob("*.py") if path.name not in ("__init__.py", "__main__.py"))
LAW = re.compile(r"\b(?:test_)?([rnmpg])(\d+)_")
LAW_FOLDERS = ("locks", "transactions", "shards", "repository", "tables")
DOORS = {"engines.py", "__init__.py"}


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(SRC)) for path in FILES])
def test_the_map_names_every_file(path: Path) -> None:
    assert re.search(rf"`(?:[\w/]+/)?{path.stem}(?:\.py)?`", (ROOT / "ARCHITECTURE.md").read_text())


def test_what_the_map_names_is_there() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    files, links = r"`((?:[a-z_]+/)*[a-z_]+\.py)`", r"\(((?:docs|tests)/[^)#]+)\)"
    named = {*re.findall(files, text), *re.findall(links, text)}
    assert named
    assert [name for name in named if not ((SRC / name).exists() or (ROOT / name).exists())] == []


PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "tests" / "README.md"])


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_no_line_of_prose_is_longer_than_a_line(page: Path) -> None:
    """Tables and code are as wide as they are; so is the page of commands, which is made."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    long = [line for line in text.splitlines() if len(line) > 120 and not line.startswith("|")]
    assert page.name in ("cli.md", "rest.md") or long == []


def test_the_reference_has_every_public_name() -> None:
    text = (ROOT / "docs" / "api.md").read_text()
    directives = set(re.findall(r"^::: (\S+)$", text, re.M))
    for names in (strandline._LAZY, shards._LAZY):
        assert [name for name, module in names.items() if f"{module}.{name}" not in directives] == []
    errors = {
        name
        for name in strandline.__all__
        if getattr(getattr(strandline, name), "__module__", "") == "strandline.errors"
    }
    assert errors
    assert {"strandline.errors", "strandline.open"} <= directives
    assert set(strandline.__all__) == set(strandline._LAZY) | errors | {"open", "__version__"}


def test_all_that_is_public_says_what_it_is() -> None:
    """Each public class, method and property has a docstring, if only an inherited one."""
    silent = []
    for home in (strandline, shards):
        for kind in [one for name in home._LAZY if inspect.isclass(one := getattr(home, name))]:
            silent += [] if kind.__doc__ else [kind.__name__]
            for base in [one for one in kind.__mro__ if one.__module__.startswith("strandline.")]:
                for name, value in vars(base).items():
                    function = getattr(value, "fget", None) or getattr(value, "func", None) or value
                    is_public = inspect.isfunction(function) and not name.startswith("_")
                    if is_public and not inspect.getdoc(getattr(kind, name)):
                        silent.append(f"{base.__name__}.{name}")
    assert silent == []


def test_every_type_that_a_public_signature_names_can_be_imported() -> None:
    known = set(strandline.__all__) | set(shards.__all__)
    left = [getattr(strandline, name) for name in strandline._LAZY] + [getattr(shards, name) for name in shards._LAZY]
    classes = [one for one in left if inspect.isclass(one) and not issubclass(one, BaseException)]
    missing = {f"{one.__qualname__} names {name}" for one in classes for name in _named(one) if name not in known}
    assert len(classes) > 80
    assert missing == set()


def _named(one: type) -> Iterator[str]:
    """The types of this package in the annotations of a class's public methods, properties and fields."""
    for base in one.__mro__:
        if not base.__module__.startswith("strandline."):
            continue
        names = _names_of(sys.modules[base.__module__])
        for name, value in vars(base).items():
            if name.startswith("_") and name not in ("__iter__", "__getitem__", "__enter__", "__next__"):
                continue
            method = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
            told = getattr(inspect.unwrap(method), "__annotations__", {}) if callable(method) else {}
            for text in told.values():
                yield from (word for word in re.findall(r"[A-Za-z_]\w*", str(text)) if _is_ours(names.get(word)))


def _names_of(module: ModuleType) -> dict[str, Any]:
    """What is defined in a module, and what it imports for type checkers only."""
    names = dict(vars(module))
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("strandline"):
            source = importlib.import_module(node.module)
            names |= {one.name: getattr(source, one.name) for one in node.names if hasattr(source, one.name)}
    return names


def _is_ours(found: object) -> bool:
    return inspect.isclass(found) and found.__module__.startswith("strandline.")


def test_the_page_on_formats_says_which_format_is_written() -> None:
    heading = (ROOT / "docs" / "format.md").read_text().splitlines()[0]
    assert re.findall(r"\d+", heading) == [str(envelope.FORMAT_VERSION), str(envelope.NEWEST_FORMAT)]


def test_every_law_that_a_test_names_is_written_down() -> None:
    text = (ROOT / "docs" / "design" / "laws.md").read_text()
    written = set(re.findall(r"^\| ([RNMPg])-(\d+) \|", text, re.M))
    tests = [path for folder in LAW_FOLDERS for path in (ROOT / "tests" / folder).glob("*.py")]
    named = {
        (law.upper() if law != "g" else law, str(int(number)))
        for path in tests
        for law, number in LAW.findall("\n".join(re.findall(r"^def (test_\w+)", path.read_text(), re.M)))
    }
    assert len(named) > 80
    assert named - written == set()


def test_every_command_that_an_advice_names_exists() -> None:
    group = typer.main.get_command(app())
    known = set(_commands(group, ()))
    assert ("lock", "owner", "list") in known
    wrong = []
    for path in SRC.rglob("*.py"):
        for text in re.findall(r"`strandline ([a-z][^`{}<>…]*)`", path.read_text()):
            words = tuple(word for word in text.split() if re.fullmatch(r"[a-z][a-z-]*", word))
            if (*words, "") not in known and not any(words[: len(one)] == one for one in known if one):
                wrong.append(f"{path.name}: strandline {text}")
    assert wrong == []


def _commands(command: Any, before: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    children = getattr(command, "commands", {})
    if not children:
        yield before
    elif len(before) == 1:
        yield (*before, "")  # a group is named alone, as in "`strandline lock`: …"
    for name, child in children.items():
        yield from _commands(child, (*before, name))


def test_rooms_above_are_loaded_by_name_through_one_door() -> None:
    by_name = [
        path.relative_to(SRC).as_posix()
        for path in SRC.rglob("*.py")
        if re.search(r"import_module\(", path.read_text()) and path.name not in DOORS
    ]
    # packages of others, and modules of their own rooms: `frames`, and the commands
    assert sorted(by_name) == ["cli/app.py", "tables/table.py"]


PYTHON = re.compile(r"=True|=False|=None|\w\(|\b\w+=…|\bwith \w+\.\w|help\(")
"""Words that a user of the command line cannot do anything with."""
NEVER_A_COMMAND = (
    *("spark/", "fs.py", "engines.py", "tables/", "testing/", "repository/transactions/", "shards/", "kv/"),
    *(
        "blob/remote.py",
        "lake.py",
        "core/texts.py",
        "repository/jobs/moving.py",
        "repository/locks/locks.py",
    ),
)
"""What no command calls, or where only Python can do something about it, such as how processes are started."""


def test_a_command_gives_advice_in_its_own_words() -> None:
    wrong = []
    for path in SRC.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.keyword) or node.arg not in ("next", "command"):
                continue
            parts = [part.value for part in ast.walk(node.value) if isinstance(part, ast.Constant)]
            text = "".join(part for part in parts if isinstance(part, str))
            place = f"{path.relative_to(SRC)}:{node.value.lineno}: {text}"
            is_advice = isinstance(node.value, ast.Call) and getattr(node.value.func, "id", "") == "Advice"
            is_for_commands = node.arg == "command" or not (is_advice or place.startswith(NEVER_A_COMMAND))
            if is_for_commands and PYTHON.search(text):
                wrong.append(place)
    assert not wrong, "say it with Advice(…, command=…):\n" + "\n".join(wrong)


def test_the_page_of_commands_is_made_from_them() -> None:
    assert (ROOT / "docs" / "cli.md").read_text() == make_cli_page.page()


def test_the_page_of_the_servers_operations_is_that_of_its_tables() -> None:
    assert (ROOT / "docs" / "rest.md").read_text() == make_rest_page.page()
