"""The commands by name, loaded when they are called: listing a folder needs no code of shards."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

import typer

import strandline
from strandline.cli.output import Output
from strandline.errors import StrandlineError, UsageError

COMMANDS = {
    "init": "lake_commands.init",
    "ls": "object_commands.ls",
    "cat": "object_commands.cat",
    "put": "object_commands.put",
    "get": "object_commands.get",
    "cp": "object_commands.cp",
    "mv": "object_commands.mv",
    "rm": "object_commands.rm",
    "export": "object_commands.export",
    "status": "history_commands.status",
    "commit": "history_commands.commit",
    "log": "history_commands.log",
    "diff": "history_commands.diff",
    "merge": "history_commands.merge",
    "revert": "history_commands.revert",
    "cherry-pick": "history_commands.cherry_pick",
    "discard": "history_commands.discard",
    "hard-reset": "history_commands.hard_reset",
    "backup": "lake_commands.backup",
    "restore": "lake_commands.restore",
    "upgrade": "lake_commands.upgrade",
    "cost": "cost_commands.cost",
    "compact": "upkeep_commands.compact",
    "reflog": "upkeep_commands.reflog",
    "fsck": "upkeep_commands.fsck",
    "import": "object_commands.import_objects",
    "serve": "server_commands.serve",
}
GROUPS = {
    "repo": "repo_commands.app",
    "branch": "ref_commands.branch_app",
    "tag": "ref_commands.tag_app",
    "table": "table_commands.app",
    "tx": "tx_commands.app",
    "gc": "gc_commands.app",
    "lock": "lock_commands.app",
    "range": "range_commands.app",
    "shard": "shard_commands.app",
    "iceberg": "iceberg_commands.app",
    "pipeline": "pipeline_commands.app",
}
_WrongUsage: Any = typer.BadParameter.__mro__[1]
"""What the parser raises; typer brings its own copy of click and does not export the class."""


def _version(shown: bool) -> None:
    if shown:
        print(strandline.__version__)
        raise typer.Exit


def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version."),
) -> None:
    pass


@cache
def app(only: str | None = None) -> typer.Typer:
    """The whole command line, or the part of it that one command needs."""
    made = typer.Typer(
        name="strandline",
        help="Git for data lakes: branches, commits and merges over any object store.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    made.callback()(_root)
    for name, place in COMMANDS.items():
        if only in (None, name):
            made.command(name)(_loaded(place))
    for name, place in GROUPS.items():
        if only in (None, name):
            made.add_typer(_loaded(place), name=name)
    return made


def _loaded(place: str) -> Any:
    module, name = place.split(".")
    return getattr(import_module(f"strandline.cli.{module}"), name)


def run(arguments: list[str]) -> int:
    """Run a command line and return its exit code."""
    only = arguments[0] if arguments and arguments[0] in {*COMMANDS, *GROUPS} else None
    try:
        result = app(only)(args=arguments, prog_name="strandline", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except StrandlineError as error:
        Output("--json" in arguments).error(error)
        return error.exit_code
    except _WrongUsage as error:
        if "--json" in arguments:
            Output(True).error(UsageError(error.format_message(), next="Look at the --help of the command."))
        else:
            error.show()
        return 2
    except typer.Abort:
        return 130
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):
            raise ended.__context__ from None  # the parser's own handling of it; ours is further out
        raise
