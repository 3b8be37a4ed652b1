"""`strandline branch …` and `strandline tag …`"""

from __future__ import annotations

from typing import Annotated

import typer

from strandline.cli.session import (
    NOTHING_THERE,
    AfterOption,
    AmountOption,
    JsonOption,
    LakeOption,
    NamePrefixOption,
    session,
)
from strandline.repository.repository import RefList

branch_app = typer.Typer(no_args_is_help=True, help="Branches.")
tag_app = typer.Typer(no_args_is_help=True, help="Tags: names of commits that never move.")

Source = Annotated[str, typer.Argument(help="repository/ref; the ref may be an expression such as main~1.")]


def _rows(names: RefList) -> list[dict[str, object]]:
    return [{"name": ref.name, "commit": ref.commit, "created": ref.created_at} for ref in names]


@branch_app.command("create")
def create_branch(source: Source, name: str, lake: LakeOption = None, as_json: JsonOption = False) -> None:
    """Make a branch at the commit of any ref."""
    with session(lake, as_json) as s:
        repository, ref = s.name_of(source, "ref")
        made = s.repository(repository).create_branch(name, ref)
        s.out.say(f"Made branch {name} at {made.commit_id[:12]}.", {"branch": name, "commit": made.commit_id})


@branch_app.command("list")
def list_branches(
    repository: str,
    prefix: NamePrefixOption = "",
    after: AfterOption = "",
    amount: AmountOption = None,
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the branches of a repository."""
    with session(lake, as_json) as s:
        found = s.repository(repository).branches(prefix, after=after, amount=amount)
        s.out.rows(_rows(found), ("name", "commit", "created"), NOTHING_THERE)


@branch_app.command("delete")
def delete_branch(branch: str, lake: LakeOption = None, as_json: JsonOption = False) -> None:
    """Delete a branch, with what is staged on it."""
    with session(lake, as_json) as s:
        repository, name = s.name_of(branch, "branch")
        head = s.repository(repository).delete_branch(name)
        s.out.say(f"Deleted branch {name}, which was at {head}.", {"deleted": name, "commit": head})


@tag_app.command("create")
def create_tag(source: Source, name: str, lake: LakeOption = None, as_json: JsonOption = False) -> None:
    """Name a commit for ever."""
    with session(lake, as_json) as s:
        repository, ref = s.name_of(source, "ref")
        made = s.repository(repository).create_tag(name, ref)
        s.out.say(f"Made tag {name} at {made.commit_id[:12]}.", {"tag": name, "commit": made.commit_id})


@tag_app.command("list")
def list_tags(
    repository: str,
    prefix: NamePrefixOption = "",
    after: AfterOption = "",
    amount: AmountOption = None,
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the tags of a repository."""
    with session(lake, as_json) as s:
        found = s.repository(repository).tags(prefix, after=after, amount=amount)
        s.out.rows(_rows(found), ("name", "commit", "created"), NOTHING_THERE if prefix or after else "No tags.")


@tag_app.command("delete")
def delete_tag(tag: str, lake: LakeOption = None, as_json: JsonOption = False) -> None:
    """Delete a tag; its commit stays."""
    with session(lake, as_json) as s:
        repository, name = s.name_of(tag, "tag")
        s.repository(repository).delete_tag(name)
        s.out.say(f"Deleted tag {name}.", {"deleted": name})
