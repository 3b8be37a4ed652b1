"""`strandline table …`"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, cast

import msgspec
import typer

from strandline.cli.output import counted
from strandline.cli.session import JsonOption, LakeOption, MessageOption, Session, complete_place, session
from strandline.errors import StorageError, UsageError
from strandline.places import column_and_type
from strandline.tables.table import Table
from strandline.tables.upkeep_rule import UpkeepRule

if TYPE_CHECKING:
    from strandline.tables.formats import FileFormat

SHOWN = 10
app = typer.Typer(no_args_is_help=True, help="Tables: path prefixes with a table record.")
PlaceArgument = Annotated[str, typer.Argument(help="repository/ref/path of the table", autocompletion=complete_place)]
WhereOption = Annotated[str | None, typer.Option(help="A condition on its columns, as SQL.")]


class SchemaDefaults(StrEnum):
    merge = "merge"
    refuse = "refuse"


def _table(s: Session, place: str) -> Table:
    ref, path = s.place(place)
    if not path:
        raise UsageError(f"{place!r} names no table.", next="Write repository/ref/path.")
    return ref.table(path)


@app.command("list")
def list_tables(
    place: Annotated[
        str, typer.Argument(help="repository/ref, or repository/ref/prefix", autocompletion=complete_place)
    ],
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the tables of a ref."""
    with session(lake, as_json) as s:
        ref, prefix = s.place(place)

        def rows() -> Iterator[dict[str, Any]]:
            for table in ref.tables(prefix):
                record = table.record
                yield {
                    "path": table.path,
                    "format": record.file_format,
                    "columns": len(record.fields),
                    "partition_by": ", ".join(record.partition_by),
                }

        s.out.rows(rows(), ("path", "format", "columns", "partition_by"), "No tables.")


@app.command()
def show(place: PlaceArgument, where: WhereOption = None, lake: LakeOption = None, as_json: JsonOption = False) -> None:
    """Show the columns of a table, and how many files, rows and bytes it has."""
    with session(lake, as_json) as s:
        table = _table(s, place)
        record = table.record
        files = table.files(where)
        counted = [file.statistics for file in files]
        rows = None if None in counted else sum(one.rows for one in counted if one is not None)
        size = sum(file.info.size for file in files)
        columns = [
            {
                "column": field["name"],
                "type": field["type"] if isinstance(field["type"], str) else field["type"]["type"],
                "partition": "yes" if field["name"] in record.partition_by else "",
                "statistics": "yes" if field["name"] in record.with_statistics else "",
            }
            for field in record.fields
        ]
        if as_json:
            told: dict[str, Any] = {
                "format": record.file_format,
                "options": record.options,
                "files": len(files),
                "rows": rows,
            }
            told["schema_default"] = record.schema_default or "refuse"
            s.out.say("", {**told, "bytes": size, "columns": columns, "partition_by": list(record.partition_by)})
            return
        s.out.rows(columns, ("column", "type", "partition", "statistics"))
        shown = "rows not counted" if rows is None else f"{rows:,} rows"
        merges = "; writes add columns by default" if record.schema_default == "merge" else ""
        s.out.say(f"{record.file_format}, {len(files):,} files, {shown}, {size:,} bytes{merges}", {})


@app.command("set")
def set_default(
    place: PlaceArgument,
    schema: Annotated[
        SchemaDefaults, typer.Option(help="What writes do with other columns, unless they say it themselves.")
    ],
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Set a default of a table; it is staged, and part of the next commit."""
    with session(lake, as_json) as s:
        table = _table(s, place)
        table.set_schema_default(schema.value)
        what = "add them and widen types" if schema is SchemaDefaults.merge else "are refused"
        s.out.say(f"Writes of {table.path} with other columns {what}; staged.", {"schema_default": schema.value})


@app.command()
def files(
    place: PlaceArgument, where: WhereOption = None, lake: LakeOption = None, as_json: JsonOption = False
) -> None:
    """List the data files of a table, or those that a condition does not exclude."""
    with session(lake, as_json) as s:

        def rows() -> Iterator[dict[str, Any]]:
            for file in _table(s, place).files(where):
                known = file.statistics
                count = None if known is None else known.rows
                partition = ", ".join(f"{name}={value}" for name, value in file.partition.items())
                told = {"path": file.info.path, "size": file.info.size, "rows": count, "partition": partition}
                yield {**told, "values": file.partition, "statistics": None if known is None else known.columns}

        s.out.rows(rows(), ("path", "size", "rows", "partition"), "No files.")


@app.command()
def history(
    place: PlaceArgument,
    amount: Annotated[int | None, typer.Option("--amount", "-n", min=0, help="The most commits to show.")] = None,
    first_parent: Annotated[bool, typer.Option("--first-parent", help="Follow merges to the branch only.")] = False,
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the commits that changed a table, newest first, and what they did to it."""
    with session(lake, as_json) as s:
        rows = (
            {
                "id": change.commit[:12],
                "date": change.date,
                "committer": change.committer,
                "message": change.message,
                "files": f"+{change.added_files} -{change.removed_files}",
                "operation": change.operation,
                "rows": "" if change.inserted_rows is None else f"+{change.inserted_rows} -{change.deleted_rows}",
                "columns": "changed" if change.schema_changed else "",
                "commit": change.commit,
                "added_bytes": change.added_bytes,
                "added_rows": change.added_rows,
                "removed_rows": change.removed_rows,
                "inserted_rows": change.inserted_rows,
                "deleted_rows": change.deleted_rows,
                "removed_bytes": change.removed_bytes,
            }
            for change in _table(s, place).history(amount=amount, first_parent=first_parent)
        )
        s.out.rows(
            rows,
            ("id", "date", "committer", "message", "operation", "files", "rows", "columns"),
            "No commit changed it.",
        )


NameArgument = Annotated[
    str | None, typer.Argument(help="The Iceberg table, as namespace.name; by default the one at the same path.")
]


@app.command("to-iceberg")
def to_iceberg(
    place: PlaceArgument, name: NameArgument = None, lake: LakeOption = None, as_json: JsonOption = False
) -> None:
    """Make an Iceberg table of a table's files, in a commit, without copying data."""
    with session(lake, as_json) as s:
        table = _table(s, place)
        done = table.to_iceberg(name)
        told = f"Made the Iceberg table {done.name} of {counted(done.files, 'file')} of {table.path}."
        s.out.say(told, {"table": done.name, "files": done.files, "rows": done.rows})


@app.command("from-iceberg")
def from_iceberg(
    place: PlaceArgument, name: NameArgument = None, lake: LakeOption = None, as_json: JsonOption = False
) -> None:
    """Make a table of an Iceberg table's files, in a commit, without copying data."""
    with session(lake, as_json) as s:
        done = _table(s, place).from_iceberg(name)
        told = f"Made {done.name} of {counted(done.files, 'file')} of an Iceberg table."
        s.out.say(told, {"table": done.name, "files": done.files, "rows": done.rows})


@app.command()
def rewrite(
    place: PlaceArgument,
    target_mib: Annotated[int, typer.Option(help="How big files become, about, in MiB.")] = 128,
    where: Annotated[str | None, typer.Option(help="SQL: take only files that may have such rows.")] = None,
    sort_by: Annotated[str, typer.Option(help="Columns by which rows are sorted, with commas between them.")] = "",
    z_order_by: Annotated[str, typer.Option(help="Columns along whose Z-order curve rows are sorted.")] = "",
    message: MessageOption = None,
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write small files together, or rows in another order, in a commit of its own. No row comes or goes."""
    with session(lake, as_json) as s:
        branch, path = s.branch_place(place)
        if not path:
            raise UsageError(f"{place!r} names no table.", next="Write repository/branch/path.")
        with s.out.progress("rewriting"):
            done = branch.table(path).rewrite_files(
                target_file_bytes=target_mib << 20,
                where=where,
                sort_by=_names(sort_by),
                z_order_by=_names(z_order_by),
                message=message,
            )
        told = (
            f"{counted(done.before, 'file')} became {done.after:,}." if done.before else "No file has to be rewritten."
        )
        s.out.say(told, msgspec.structs.asdict(done))


@app.command("keep-up")
def keep_up(
    branch: Annotated[str, typer.Argument(help="repository/branch", autocompletion=complete_place)],
    tables: Annotated[str, typer.Option(help="A glob pattern of the paths of tables.")] = "*",
    target_mib: Annotated[int, typer.Option(help="How big files become, about, in MiB.")] = 128,
    min_files: Annotated[int, typer.Option(help="Small files of a partition that are worth a file.")] = 8,
    min_age_days: Annotated[float, typer.Option(help="Files that are younger are left.")] = 0.0,
    sort_by: Annotated[str, typer.Option(help="Columns by which rows are sorted, with commas between them.")] = "",
    z_order_by: Annotated[str, typer.Option(help="Columns along whose Z-order curve rows are sorted.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count.")] = False,
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write small files of tables together, by rule; each table in a commit of its own. For every night."""
    rule = UpkeepRule(
        tables=tables,
        target_file_bytes=target_mib << 20,
        min_files=min_files,
        min_age_days=min_age_days,
        sort_by=tuple(_names(sort_by)),
        z_order_by=tuple(_names(z_order_by)),
    )
    with session(lake, as_json) as s:
        with s.out.progress("keeping tables up") as step:
            done = s.branch(branch).keep_up([rule], dry_run=dry_run, progress=step)
        rows = (msgspec.structs.asdict(one) for one in done)
        s.out.rows(rows, ("path", "before", "after", "problem", "left"))
        failed = [one.path for one in done if one.problem]
        if failed:
            raise StorageError(
                f"{counted(len(failed), 'table')} could not be kept up: {', '.join(failed[:SHOWN])}.",
                safe="The others were.",
                next="See the column `problem`.",
            )


@app.command()
def mirror(
    source: Annotated[str, typer.Argument(help="The folder of one table, or a URL such as s3://bucket/tables/rides.")],
    place: PlaceArgument,
    file_format: Annotated[str | None, typer.Option(help="Of the files; by default as the first one is named.")] = None,
    partition_types: Annotated[str, typer.Option(help="Of columns that folders name: year=integer,day=date.")] = "",
    message: MessageOption = None,
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Commit a table whose files somebody else writes; again, what has changed there. No bytes are copied."""
    with session(lake, as_json) as s:
        branch, path = s.branch_place(place)
        types = dict(column_and_type(text) for text in _names(partition_types))
        with s.out.progress("mirroring") as step:
            done = branch.mirror_table(
                source,
                path,
                message,
                file_format=cast("FileFormat | None", file_format),
                partition_types=types,
                progress=step,
            )
        id = None if done.commit is None else done.commit.id
        told = f"{counted(done.objects, 'object')} at the source"
        s.out.say(
            f"{told}: {id[:12]}" if id else f"{told}; nothing has changed.", {"objects": done.objects, "commit": id}
        )


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
