"""`strandline cost`, and how bills are shown"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from strandline.cli.output import Output
from strandline.cli.session import JsonOption
from strandline.errors import UsageError
from strandline.rehearsal import Workload, workload_bill
from strandline.shards.cost import Bill, Prices

PricesOption = Annotated[Path | None, typer.Option(help="A JSON file: dollars for 1,000 put, get, delete, …")]


def cost(
    objects: Annotated[int, typer.Option(min=1, help="Objects in the repository.")] = 1_000_000,
    size: Annotated[float, typer.Option(min=0, metavar="BYTES", help="How large an object is.")] = 1e6,
    commits: Annotated[float, typer.Option(min=0, help="Commits a day.")] = 100,
    changes: Annotated[int, typer.Option(min=1, help="Objects that a commit puts, anywhere in the tree.")] = 10,
    reads: Annotated[float, typer.Option(min=0, help="Objects that are read in a day.")] = 10_000,
    lists: Annotated[float, typer.Option(min=0, help="Folders that are listed in a day, by new processes.")] = 1_000,
    merges: Annotated[float, typer.Option(min=0, help="Merges a day.")] = 10,
    collections: Annotated[float, typer.Option(min=0, help="Garbage collections a day.")] = 1,
    days: Annotated[float, typer.Option(min=0, help="For how many days commits are kept.")] = 30,
    prices: PricesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Rehearse a workload in memory, and say what a year of it costs in an object store. No lake is needed."""
    workload = Workload(objects, size, commits, changes, reads, lists, merges, collections, days)
    show_bill(workload_bill(workload, prices_in(prices)), Output(as_json))


def show_bill(bill: Bill, out: Output) -> None:
    rows = [{"kind": item.kind, "requests": item.requests, "dollars": round(item.dollars, 2)} for item in bill.items]
    total = {"kind": "in all", "requests": bill.requests, "dollars": round(bill.dollars, 2)}
    out.rows([*rows, total], ("kind", "requests", "dollars"))


def prices_in(file: Path | None) -> Prices:
    """The prices that a file has; Amazon's list prices without one."""
    if file is None:
        return Prices()
    try:
        return msgspec.json.decode(file.read_bytes(), type=Prices)
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageError(
            f"{str(file)!r} is not a table of prices: {error}.",
            next=f"It may have {', '.join(Prices.__struct_fields__)}.",
        ) from error
