"""`strandline repo …`"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

import strandline
from strandline.cli.session import (
    NOTHING_THERE,
    AfterOption,
    AmountOption,
    JsonOption,
    LakeOption,
    NamePrefixOption,
    session,
)
from strandline.errors import UsageError

app = typer.Typer(no_args_is_help=True, help="Repositories.")


class Blocked(StrEnum):
    """What a protection can forbid: `Action`, as an enum, since a list of choices has to be one here."""

    STAGE = "stage"
    COMMIT = "commit"
    MERGE = "merge"
    RESET = "reset"
    DELETE = "delete"


@app.command()
def create(
    name: str,
    namespace: Annotated[str | None, typer.Option(help="URL or folder for its bytes.")] = None,
    default_branch: Annotated[str, typer.Option(help="Name of its first branch.")] = "main",
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a repository."""
    with session(lake, as_json) as s:
        made = s.lake.create_repository(name, namespace=namespace, default_branch=default_branch)
        s.out.say(f"Made repository {name} with branch {default_branch}.", {"repository": made.name})


@app.command()
def copy(
    name: str,
    target: Annotated[
        str, typer.Argument(help="The other lake: a folder, or a TOML file. `strandline init` makes one.")
    ],
    known_as: Annotated[str | None, typer.Option("--as", help="Its name there.")] = None,
    check: Annotated[bool, typer.Option("--check/--no-check", help="Read and compare everything afterwards.")] = True,
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy a repository into another lake, with its history and its own bytes; imported objects stay where they are."""
    with session(lake, as_json) as s:
        if not target:
            raise UsageError("No lake is named.", next="Give the folder or the TOML file of the other lake.")
        with strandline.open(target) as other, s.out.progress("copying") as step:
            made = s.lake.copy_repository(name, other, name=known_as, check=check, progress=step)
        s.out.say(f"Copied {name} to {target} as {made.name}.", {"repository": made.name, "checked": check})


@app.command("list")
def list_(
    prefix: NamePrefixOption = "",
    after: AfterOption = "",
    amount: AmountOption = None,
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the repositories."""
    with session(lake, as_json) as s:
        rows = (
            {
                "repository": record.name,
                "default_branch": record.default_branch,
                "read_only": record.read_only,
                "namespace": record.namespace,
            }
            for record in s.lake.repositories(prefix, after=after, amount=amount)
        )
        empty = NOTHING_THERE if prefix or after else "No repository; `strandline repo create NAME`."
        s.out.rows(rows, ("repository", "default_branch", "read_only"), empty)


@app.command()
def delete(
    name: str,
    yes: Annotated[bool, typer.Option("--yes", help="Really delete it.")] = False,
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete a repository: branches, tags, commits and staged changes. The bytes of its objects stay."""
    with session(lake, as_json) as s:
        s.repository(name)
        if not yes:
            raise UsageError(f"This deletes all branches and commits of {name!r}.", next="Repeat it with --yes.")
        s.lake.delete_repository(name)
        s.out.say(f"Deleted repository {name}.", {"deleted": name})


@app.command()
def protect(
    name: str,
    pattern: Annotated[str, typer.Argument(help="Glob pattern of branch names, such as release-*.")],
    block: Annotated[list[Blocked] | None, typer.Option(help="By default all but merge.")] = None,
    writer: Annotated[
        list[str] | None, typer.Option(help="A writer whose transactions may be published all the same.")
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove this protection instead.")] = False,
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Protect branches by the pattern of their names."""
    with session(lake, as_json) as s:
        repository = s.repository(name)
        if remove:
            repository.unprotect(pattern)
        elif block:
            repository.protect(pattern, [one.value for one in block], writers=writer or ())
        else:
            repository.protect(pattern, writers=writer or ())
        rules = [
            {"pattern": rule.pattern, "blocked": ", ".join(rule.blocked), "writers": ", ".join(rule.writers) or None}
            for rule in repository.protections
        ]
        s.out.rows(rules, ("pattern", "blocked", "writers"), "No branch is protected.")


@app.command("default-branch")
def default_branch(name: str, branch: str, lake: LakeOption = None, as_json: JsonOption = False) -> None:
    """Say which branch is meant where none is named; it cannot be deleted."""
    with session(lake, as_json) as s:
        s.repository(name).set_default_branch(branch)
        s.out.say(f"The default branch of {name} is {branch}.", {"repository": name, "default_branch": branch})


@app.command("read-only")
def read_only(
    name: str,
    off: Annotated[bool, typer.Option("--off", help="Allow changes again.")] = False,
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Refuse all changes of a repository."""
    with session(lake, as_json) as s:
        s.repository(name).set_read_only(not off)
        s.out.say(f"Repository {name} is {'writable' if off else 'read-only'}.", {"read_only": not off})
