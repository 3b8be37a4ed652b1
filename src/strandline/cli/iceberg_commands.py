"""`strandline iceberg`: tables, old snapshots, and lakes that were moved."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from strandline.cli.output import counted
from strandline.cli.session import JsonOption, LakeOption, session
from strandline.iceberg import names, table_diff, upkeep
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


@app.command("create-namespace")
def create_namespace(
    branch: Annotated[str, typer.Argument(help="repository/branch")],
    namespace: Annotated[str, typer.Argument(help="Its name, such as db, or db.raw in db.")],
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a namespace, in which tables are made, in a commit."""
    with session(lake, as_json) as s:
        Tables(s.branch(branch)).create_namespace(namespace.split("."), {})
        s.out.say(f"Made the namespace {namespace} on {branch}.", {"branch": branch, "namespace": namespace})


@app.command("drop-namespace")
def drop_namespace(
    branch: Annotated[str, typer.Argument(help="repository/branch")],
    namespace: Annotated[str, typer.Argument(help="Its name.")],
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove an empty namespace, in a commit."""
    with session(lake, as_json) as s:
        Tables(s.branch(branch)).drop_namespace(namespace.split("."))
        s.out.say(f"Removed the namespace {namespace} from {branch}.", {"branch": branch, "namespace": namespace})


@app.command("diff")
def diff(
    left: RefArgument,
    right: Annotated[str, typer.Argument(help="repository/ref of the same repository")],
    table: Annotated[str | None, typer.Option(help="One table, as namespace.name; without it, all.")] = None,
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show how tables differ between two refs: snapshots, files and rows, as manifests count them."""
    with session(lake, as_json) as s:
        rows = []
        for one in table_diff.diff(s.ref(left), s.ref(right), table):
            counts = {
                "added_rows": one.added_rows,
                "removed_rows": one.removed_rows,
                "added_files": one.added_files,
                "removed_files": one.removed_files,
            }
            more = [{"id": made.id, "operation": made.operation, "at_ms": made.at_ms} for made in one.snapshots]
            rows.append(
                {
                    "table": one.table,
                    "change": one.change,
                    **{name: "?" if count is None and not as_json else count for name, count in counts.items()},
                    "snapshots": more if as_json else len(more),
                    "gone_snapshots": one.gone_snapshots,
                    "other_shape": one.shape_changed,
                }
            )
        columns = ("table", "change", *list(rows[0])[2:7]) if rows else ("table", "change")
        s.out.rows(iter(rows), columns, "No table differs.")


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
