"""`strandline pipeline`: declarative pipelines of Spark that publish all they make, or nothing."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from strandline import pipelines
from strandline.cli.output import counted
from strandline.cli.session import JsonOption, LakeOption, session
from strandline.errors import UsageError

app = typer.Typer(help="Declarative pipelines of Spark, published as a whole.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    pass


@app.command("run")
def run(
    branch: Annotated[str, typer.Argument(help="repository/branch")],
    spec: Annotated[Path, typer.Option(help="The file that describes the pipeline.")] = Path("spark-pipeline.yml"),
    new_branch: Annotated[
        str | None, typer.Option("--branch", help="Run on a new branch of this name, for a review.")
    ] = None,
    expect: Annotated[
        list[str] | None,
        typer.Option(help='"database.table: condition" in SQL, for each row. May be given several times.'),
    ] = None,
    check: Annotated[
        str | None, typer.Option(help="file.py:function, which gets the transaction before it is published.")
    ] = None,
    writer: Annotated[str, typer.Option(help="The name of the writer; by default the pipeline's.")] = "",
    message: Annotated[str, typer.Option("--message", "-m", help="Of the commit.")] = "",
    full_refresh: Annotated[
        list[str] | None, typer.Option(help="A table to make anew. May be given several times.")
    ] = None,
    full_refresh_all: Annotated[bool, typer.Option("--full-refresh-all", help="Make all tables anew.")] = False,
    conf: Annotated[list[str] | None, typer.Option(help="name=value, a setting of Spark.")] = None,
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run Spark's spark-pipelines in a transaction: all of it becomes visible in one commit, or nothing does."""
    options = pipelines.PipelineOptions(
        writer=writer,
        message=message,
        full_refresh=tuple(full_refresh or ()),
        full_refresh_all=full_refresh_all,
        settings=dict(_pair(one, "=", "name=value") for one in conf or ()),
    )
    wanted: dict[str, list[str]] = {}
    for one in expect or ():
        table, condition = _pair(one, ":", '"database.table: condition"')
        wanted.setdefault(table, []).append(condition)
    found = None if check is None else _function(check)
    with session(lake, as_json) as s:
        done = pipelines.run(s.lake, branch, spec, new_branch=new_branch, expect=wanted, check=found, options=options)
        rows = [f"  {table}: {counted(count, 'row')}" for table, count in done.rows.items()]
        place = f"{branch.partition('/')[0]}/{done.branch}"
        told = f"Published {counted(done.changes, 'change')} on {place} in commit {done.commit[:12]}."
        s.out.say(
            [told, *rows], {"branch": place, "commit": done.commit, "changes": done.changes, "rows": dict(done.rows)}
        )


def _pair(text: str, separator: str, form: str) -> tuple[str, str]:
    name, found, value = text.partition(separator)
    if not found or not name.strip() or not value.strip():
        raise UsageError(f"{text!r} cannot be understood.", next=f"Write {form}.")
    return name.strip(), value.strip()


def _function(text: str) -> pipelines.Check:
    """A function of a file, by `file.py:function`."""
    place, _, name = text.rpartition(":")
    described = importlib.util.spec_from_file_location("strandline_check", place) if Path(place).is_file() else None
    if described is None or described.loader is None:
        raise UsageError(f"There is no Python file {place!r}.", next="Write file.py:function.")
    module = importlib.util.module_from_spec(described)
    described.loader.exec_module(module)
    found: pipelines.Check | None = getattr(module, name, None)
    if not callable(found):
        names: Sequence[str] = [one for one in vars(module) if callable(getattr(module, one))]
        raise UsageError(f"{place!r} has no function {name!r}.", next=f"It has {', '.join(names) or 'none'}.")
    return found
