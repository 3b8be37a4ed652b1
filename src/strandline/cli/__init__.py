"""The `strandline` command. Places are written repository/ref/path; exit codes come from the one error table."""

from __future__ import annotations

import os
import sys
from importlib.abc import MetaPathFinder
from typing import Any

import typer

import strandline
from strandline.cli import (
    gc_commands,
    history_commands,
    lake_commands,
    lock_commands,
    object_commands,
    range_commands,
    ref_commands,
    repo_commands,
    shard_commands,
    table_commands,
    tx_commands,
    upkeep_commands,
)
from strandline.cli.output import Output
from strandline.errors import StrandlineError

app = typer.Typer(
    name="strandline",
    help="Git for data lakes: branches, commits and merges over any object store.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(repo_commands.app, name="repo")
app.add_typer(ref_commands.branch_app, name="branch")
app.add_typer(ref_commands.tag_app, name="tag")
app.add_typer(table_commands.app, name="table")
app.add_typer(tx_commands.app, name="tx")
app.add_typer(gc_commands.app, name="gc")
app.add_typer(lock_commands.app, name="lock")
app.add_typer(range_commands.app, name="range")
app.add_typer(shard_commands.app, name="shard")
app.command()(lake_commands.init)
for command in (
    object_commands.ls,
    object_commands.cat,
    object_commands.put,
    object_commands.get,
    object_commands.cp,
    object_commands.mv,
    object_commands.rm,
    object_commands.export,
    history_commands.status,
    history_commands.commit,
    history_commands.log,
    history_commands.diff,
    history_commands.merge,
    history_commands.revert,
    history_commands.cherry_pick,
    history_commands.discard,
    history_commands.hard_reset,
    lake_commands.backup,
    lake_commands.restore,
    lake_commands.upgrade,
    upkeep_commands.compact,
    upkeep_commands.reflog,
    upkeep_commands.fsck,
):
    app.command()(command)

app.command("import")(object_commands.import_objects)

_WrongUsage: Any = typer.BadParameter.__mro__[1]
"""What the parser raises; typer brings its own copy of click and does not export the class."""


def _version(shown: bool) -> None:
    if shown:
        print(strandline.__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version."),
) -> None:
    pass


def run(arguments: list[str]) -> int:
    """Run a command line and return its exit code."""
    try:
        result = app(args=arguments, prog_name="strandline", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except StrandlineError as error:
        Output("--json" in arguments).error(error)
        return error.exit_code
    except _WrongUsage as error:
        error.show()
        return 2
    except (typer.Abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:
        # the reader of the pipe has had enough; keep Python from complaining when it flushes
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


class _WithoutPandas(MetaPathFinder):
    """Says that pandas is not installed: pyarrow would import it on first use, which takes longer than a command."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("not needed on the command line", name=fullname)


def main() -> None:
    sys.meta_path.insert(0, _WithoutPandas())
    sys.exit(run(sys.argv[1:]))
