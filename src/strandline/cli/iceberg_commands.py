"""`strandline iceberg`: tables, old snapshots, and lakes that were moved."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from strandline.cli.output import counted
from strandline.cli.session import JsonOption, LakeOption, session
from strandline.iceberg import names, upkeep
from strandline.iceberg.tables import Tables

app = typer.Typer(help="Iceberg tables on branches.", no_args_is_help=True)
RefArgument = Annotated[str, typer.Argument(help="repository/branch, or any other ref")]


@app.command("ls")
def ls(ref: RefArgument, lake: LakeOption = None, as_json: JsonOption = False) -> None:
    """List the tables at a ref, with what their newest metadata says."""
    with session(lake, as_json) as s:
        found = s.ref(ref)
        tables = Tables(found)
        rows = []
        for identifier in upkeep.all_tables(found):
            held = tables.load(identifier).metadata
            snapshots = held.get("snapshots") or []
            current = {one["snapshot-id"]: one for one in snapshots}.get(held.get("current-snapshot-id", -1), {})
            rows.append(
                {
                    "table": names.shown(identifier),
                    "rows": (current.get("summary") or {}).get("total-records", "0"),
                    "snapshots": len(snapshots),
                    "version": held["format-version"],
                    "uuid": held["table-uuid"],
                }
            )
        s.out.rows(iter(rows), ("table", "rows", "snapshots", "version"))


@app.command("expire")
def expire(
    branch: Annotated[str, typer.Argument(help="repository/branch")],
    table: Annotated[str | None, typer.Option(help="One table, as namespace.name; without it, all.")] = None,
    days: Annotated[
        float | None, typer.Option(min=0, help="Snapshots older than this may go; else each table's properties say.")
    ] = None,
    keep: Annotated[int | None, typer.Option(min=1, help="How many each branch of a table keeps at least.")] = None,
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take old snapshots out of the metadata of tables, in a commit. Deletes no file: `strandline gc run` does."""
    with session(lake, as_json) as s:
        before = None if days is None else datetime.now(UTC) - timedelta(days=days)
        done = upkeep.expire(s.branch(branch), table, older_than=before, keep=keep)
        lines = [f"{one.table}: {counted(one.snapshots, 'snapshot')} left." for one in done]
        told = [{"table": one.table, "snapshots": one.snapshots, "refs": list(one.refs)} for one in done]
        s.out.say(lines or [f"Nothing on {branch} is old enough."], {"branch": branch, "expired": told})


@app.command("relocate")
def relocate(
    repository: Annotated[str, typer.Argument(help="The repository.")],
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put the addresses right in the files of tables, after the lake was moved or copied. Repeating it is fine."""
    with session(lake, as_json) as s:
        with s.out.progress("files") as step:
            done = upkeep.relocate(s.repository(repository), step)
        told = f"Wrote {counted(done.files, 'file')} anew, of {counted(done.read, 'file')} that were read."
        s.out.say(told, {"repository": repository, "files": done.files, "read": done.read})
