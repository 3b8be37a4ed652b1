"""`strandline shard`: durable collections with exact times"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import typer

import strandline
from strandline.cli.cost_commands import prices_in, show_bill
from strandline.cli.output import Output, counted
from strandline.cli.session import JsonOption, LakeOption, Session, session
from strandline.clock import from_us
from strandline.errors import InvalidSettings, ShardTimeout, UsageError
from strandline.places import shard_named
from strandline.shards.cost import Plan, plan_bill
from strandline.shards.deciding.service import service_token
from strandline.shards.rows.codec import DIFF, TIME
from strandline.shards.shard import Shard
from strandline.shards.state.frontier import Antichain, antichain
from strandline.shards.state.trace import Merged

app = typer.Typer(name="shard", help="Durable collections of changes with exact times.")

ShardArgument = Annotated[str, typer.Argument(metavar="REPOSITORY/SHARD", help="repository/shard")]
RepositoryArgument = Annotated[str, typer.Argument(help="The repository.")]
TYPES = {
    "string": pa.string(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "binary": pa.binary(),
}
STATE_COLUMNS = ("name", "since", "upper", "batches", "rows", "bytes", "readers", "writers")


def _shard(s: Session, text: str) -> Shard:
    repository, name = shard_named(text)
    return s.repository(repository).shard(name)


def _read(file: Path, schema: pa.Schema) -> pa.Table:
    """The rows of a file, in the format that its name says; texts are read as the types of the schema."""
    from pyarrow import csv, parquet  # noqa: PLC0415 - few commands read files
    from pyarrow import json as json_lines  # noqa: PLC0415 - few commands read files

    types = pa.schema([pa.field(field.name, field.type) for field in schema])

    def read_csv(path: str) -> pa.Table:
        return csv.read_csv(path, convert_options=csv.ConvertOptions(column_types=types))

    def read_json(path: str) -> pa.Table:
        return json_lines.read_json(path, parse_options=json_lines.ParseOptions(explicit_schema=types))

    readers: dict[str, Callable[[str], pa.Table]] = {
        ".parquet": parquet.read_table,
        ".csv": read_csv,
        ".json": read_json,
        ".jsonl": read_json,
    }
    read = readers.get(file.suffix)
    if read is None:
        raise UsageError(f"{file.name!r} is not a file of rows.", next=f"Names end in {', '.join(readers)}.")
    try:
        return read(str(file))
    except (OSError, pa.ArrowException) as error:
        raise UsageError(f"{str(file)!r} cannot be read: {error}.") from error


def _fields(shard: Shard) -> dict[str, Any]:
    state = shard.state
    return {
        "name": shard.name,
        "since": str(antichain(state.since)),
        "upper": str(antichain(state.upper)),
        "batches": len(state.batches),
        "rows": sum(batch.rows for batch in state.batches),
        "bytes": sum(batch.size for batch in state.batches),
        "readers": len(state.readers) + len(state.durable_readers),
        "writers": len(state.writers),
    }


@app.command()
def create(
    shard: ShardArgument,
    column: Annotated[list[str], typer.Argument(metavar="COLUMN:TYPE...", help=f"Types: {', '.join(TYPES)}.")],
    key: Annotated[list[str] | None, typer.Option(help="A column of the key; by default all are.")] = None,
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a shard."""
    fields = []
    for text in column:
        name, colon, kind = text.rpartition(":")
        if not colon or not name or kind not in TYPES:
            raise UsageError(f"{text!r} is not COLUMN:TYPE.", next=f"Types are {', '.join(TYPES)}.")
        fields.append((name, TYPES[kind]))
    repository, name = shard_named(shard)
    with session(lake, as_json) as s:
        made = s.repository(repository).shard(name, pa.schema(fields), key=key)
        s.out.say(f"Shard {made.name!r} is there, with upper {made.upper}.", _fields(made))


@app.command("list")
def list_shards(repository: RepositoryArgument, lake: LakeOption = None, as_json: JsonOption = False) -> None:
    """List the shards of a repository."""
    with session(lake, as_json) as s:
        held = s.repository(repository)
        s.out.rows((_fields(held.shard(name)) for name in held.shards()), STATE_COLUMNS, "No shards.")


@app.command()
def show(shard: ShardArgument, lake: LakeOption = None, as_json: JsonOption = False) -> None:
    """Show since and upper of a shard, its readers and writers."""
    with session(lake, as_json) as s:
        state = _shard(s, shard).state
        rows: list[dict[str, Any]] = [
            {"who": name, "id": "", "at": str(antichain(at)), "heard_of": None}
            for name, at in (("since", state.since), ("upper", state.upper))
        ]
        for id, reader in state.durable_readers.items():
            rows.append({"who": "durable reader", "id": id, "at": str(antichain(reader.since)), "heard_of": None})
        for id, leased in state.readers.items():
            heard = from_us(leased.heartbeat_us)
            rows.append({"who": "reader", "id": id, "at": str(antichain(leased.since)), "heard_of": heard})
        for writer_id, writer in state.writers.items():
            heard = from_us(writer.heartbeat_us)
            rows.append({"who": "writer", "id": writer_id, "at": str(antichain(writer.upper)), "heard_of": heard})
        s.out.rows(rows, ("who", "id", "at", "heard_of"))


@app.command()
def append(
    shard: ShardArgument,
    file: Annotated[Path, typer.Argument(help="A Parquet, CSV or JSON lines file with the columns of the shard.")],
    retract: Annotated[bool, typer.Option("--retract", help="Take the rows away instead.")] = False,
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Append the rows of a file at the next time."""
    with session(lake, as_json) as s:
        held = _shard(s, shard)
        rows = _read(file, held.schema)
        if DIFF not in rows.column_names:
            rows = rows.append_column(DIFF, pa.array([-1 if retract else 1] * rows.num_rows, pa.int64()))
        elif retract:
            raise UsageError(f"The file has a column {DIFF!r} of its own.", next="Leave --retract away.")
        with held.writer() as writer:
            time = writer.append_next(rows)
        shown = f"{counted(rows.num_rows, 'row')} at time {time}; the upper is {antichain(time + 1)}."
        s.out.say(shown, {"rows": rows.num_rows, "time": time})


@app.command()
def cat(
    shard: ShardArgument,
    as_of: Annotated[int | None, typer.Option(help="A time; by default the newest that is complete.", min=0)] = None,
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the contents at a time."""
    with session(lake, as_json) as s:
        found = _shard(s, shard).snapshot(as_of, timeout_s=0).to_arrow()
        s.out.rows(_rows(found), found.column_names, "It is empty.")


@app.command()
def tail(
    shard: ShardArgument,
    as_of: Annotated[int, typer.Option(help="Show what changed after this time.", min=0)],
    wait: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="Go on until nothing has come for this long.")
    ] = 0.0,
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the changes after a time, and go on as they come."""
    with session(lake, as_json) as s:
        held = _shard(s, shard)
        listen = held.listen(as_of, timeout_s=wait)

        def changes() -> Iterator[dict[str, Any]]:
            while listen.frontier != Antichain():
                try:
                    yield from _rows(listen.next().updates)
                except ShardTimeout:
                    return

        s.out.rows(changes(), [*held.schema.names, TIME, DIFF], "No changes.")


def _rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    ordered = table.sort_by([(TIME, "ascending"), *((name, "ascending") for name in table.column_names[:-2])])
    for batch in ordered.to_batches():
        yield from batch.to_pylist()


@app.command()
def compact(
    shard: ShardArgument,
    full: Annotated[bool, typer.Option("--full", help="Merge everything into one batch.")] = False,
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Merge batches, and forget the history that no reader holds."""
    with session(lake, as_json) as s:
        done = [one for one in _shard(s, shard).compact(full=full) if one.outcome is Merged.DONE]
        fields = {
            "merges": len(done),
            "rows": sum(one.rows for one in done),
            "rows_after": sum(one.rows_after for one in done),
        }
        told = f"{fields['rows']:,} updates became {fields['rows_after']:,}"
        s.out.say(f"{counted(len(done), 'merge')}: {told}." if done else "Nothing is worth merging.", fields)


@app.command()
def collect(shard: ShardArgument, lake: LakeOption = None, as_json: JsonOption = False) -> None:
    """Delete what no reader can refer to any more."""
    with session(lake, as_json) as s:
        done = _shard(s, shard).collect()
        told = f"{counted(done.blobs, 'blob')} and {counted(done.records, 'record')} deleted."
        s.out.say(told, {"blobs": done.blobs, "records": done.records})


@app.command()
def sweep(
    shard: ShardArgument,
    older_than: Annotated[int, typer.Option(min=0, metavar="SECONDS", help="Only blobs that are so old.")] = 86_400,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count.")] = False,
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete blobs that dead writers and compactors left behind."""
    with session(lake, as_json) as s:
        done = _shard(s, shard).sweep(after_s=older_than, dry_run=dry_run)
        verb = "would be deleted" if dry_run else "deleted"
        s.out.say(f"{counted(done.blobs, 'blob')} {verb}.", {"blobs": done.blobs, "bytes": done.bytes})


@app.command()
def cost(
    sources: Annotated[int, typer.Option(min=1, help="Sources, each written to a shard of its own.")] = 1,
    rate: Annotated[float, typer.Option(min=0, metavar="BYTES", help="What each writes in a second.")] = 1e6,
    every: Annotated[float, typer.Option(min=0.001, metavar="SECONDS", help="How long a batch is collected.")] = 1.0,
    listeners: Annotated[int, typer.Option(min=0, help="Processes that follow each shard.")] = 0,
    prices: Annotated[Path | None, typer.Option(help="A JSON file: dollars for 1,000 put, get, delete, …")] = None,
    as_json: JsonOption = False,
) -> None:
    """Rehearse writing to shards, and say what a year of it costs in an object store."""
    show_bill(plan_bill(Plan(sources, rate, every, listeners), prices_in(prices)), Output(as_json))


@app.command()
def serve(
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 for a free one.")] = 8420,
    upkeep: Annotated[str | None, typer.Option(metavar="URLS", help="Services that compact, instead of this.")] = None,
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Decide the changes of shards for many clients, and compact their shards, until interrupted.

    Any number of copies may run. Clients find them by STRANDLINE_SHARD_SERVICE, with commas between. Beyond this
    machine, set STRANDLINE_SERVICE_TOKEN to the same secret for the service and its clients.
    """
    try:
        from strandline.server.shards import serve as run  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise InvalidSettings(
            "The packages that serve HTTP are not installed.", next="pip install 'strandline[service]'."
        ) from error
    out = Output(as_json)
    # what fails beside the callers is told on standard error: nobody else would hear of it
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")

    def ready(url: str) -> None:
        out.say(f"The shard service of {opened.place} listens on {url}.", {"url": url})
        sys.stdout.flush()  # the process that started it reads the address from a pipe, while it goes on

    # not its own client: it decides in its own process what it is asked for
    with strandline.open(lake, shard_service="", shard_upkeep=upkeep or "") as opened:
        run(
            opened,
            host,
            port,
            service_token(),
            ready,
        )


@app.command("delete")
def delete_shard(shard: ShardArgument, lake: LakeOption = None, as_json: JsonOption = False) -> None:
    """End a shard and delete its bytes: nobody can read or write it any more."""
    with session(lake, as_json) as s:
        repository, name = shard_named(shard)
        s.repository(repository).delete_shard(name)
        s.out.say(f"Shard {name!r} is gone.", {"name": name})
