"""Prints docs/cli.md, the page of all commands, from the commands themselves; a test holds the page to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer.main

from strandline.cli.app import app

HEAD = """# Command line

Made from the commands by `python scripts/make_cli_page.py > docs/cli.md`. Places are written repository/ref/path. All
commands take `--lake` (or STRANDLINE_LAKE), and most take `--json`; `strandline COMMAND --help` shows the same.
"""


def page() -> str:
    return HEAD + "".join(_sections(typer.main.get_command(app()), "strandline"))


def _sections(command: Any, name: str) -> Iterator[str]:
    children = getattr(command, "commands", None)
    if children is None:
        yield _section(command, name)
        return
    for child in sorted(children):
        yield from _sections(children[child], f"{name} {child}")


def _section(command: Any, name: str) -> str:
    told = [one for one in command.params if one.name not in ("lake", "as_json", "help")]
    arguments = [one for one in told if one.param_type_name == "argument"]
    options = [one for one in told if one.param_type_name == "option"]
    usage = " ".join([name, *("[OPTIONS]" for _ in options[:1]), *(_shown(one) for one in arguments)])
    help_text = " ".join((command.help or "").split())
    rows = [(f"`{_shown(one)}`", getattr(one, "help", None) or "") for one in arguments]
    rows += [(f"`{', '.join(one.opts)}{_choices(one)}`", _help(one)) for one in options]
    table = "".join(f"| {left} | {right} |\n" for left, right in rows)
    return f"\n## {name}\n\n```\n{usage}\n```\n\n{help_text}\n" + (f"\n| | |\n|---|---|\n{table}" if rows else "")


def _shown(argument: Any) -> str:
    text = str(argument.metavar or argument.name.upper())
    text = text if argument.required or text.startswith("[") else f"[{text}]"
    return text + ("..." if argument.nargs == -1 and "..." not in text else "")


def _choices(option: Any) -> str:
    if option.is_flag:
        return ""
    choices = getattr(option.type, "choices", None)
    if choices:
        return " " + r"\|".join(str(getattr(one, "value", one)) for one in choices)
    return f" {option.metavar or option.type.name.removesuffix(' range').upper()}"


def _help(option: Any) -> str:
    default = option.default
    is_told = default not in (None, "", False, 0.0) and not option.is_flag and not callable(default)
    return " ".join((option.help or "").split()) + (f" Default: {default}." if is_told else "")


if __name__ == "__main__":
    print(page(), end="")
