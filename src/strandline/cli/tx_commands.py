"""`strandline tx`: the transactions and writers of a branch"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from strandline.branch.transactions import State
from strandline.cli.session import JsonOption, LakeOption, complete_place, session
from strandline.repository.transactions.operators import TransactionInfo

app = typer.Typer(name="tx", help="Transactions of jobs: which are open, and ending those of dead drivers.")

BranchArgument = Annotated[str, typer.Argument(help="repository/branch", autocompletion=complete_place)]
IdArgument = Annotated[int, typer.Argument(help="The number that `tx list` shows.", min=1)]
QuietOption = Annotated[
    float,
    typer.Option(
        "--quiet-for", min=0, metavar="SECONDS", help="Wait until the transaction has written nothing for this long."
    ),
]
COLUMNS = ("id", "writer", "state", "begun", "node", "commit", "message")


def _fields(found: TransactionInfo) -> dict[str, Any]:
    return {
        "id": found.id,
        "writer": found.writer,
        "state": found.state,
        "begun": found.begun_at,
        "node": found.node,
        "process": found.process,
        "commit": found.commit or None,
        "message": found.message,
    }


@app.command("list")
def list_transactions(
    branch: BranchArgument,
    state: Annotated[State | None, typer.Option(help="Only those in this state.")] = None,
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the transactions on record."""
    with session(lake, as_json) as s:
        found = (_fields(each) for each in s.branch(branch).transactions if state is None or each.state == state)
        rows = ({**row, "commit": row["commit"] and row["commit"][:12]} if not as_json else row for row in found)
        s.out.rows(rows, COLUMNS, "No transactions.")


@app.command()
def writers(branch: BranchArgument, lake: LakeOption = None, as_json: JsonOption = False) -> None:
    """List the writers: what each has open, what it committed last, and how far its source is consumed."""
    with session(lake, as_json) as s:
        rows = (
            {
                "writer": found.name,
                "open": found.open,
                "committed": found.committed,
                "commit": found.commit[:12] or None,
                "position": found.position,
                "node": found.node or None,
            }
            for found in s.branch(branch).writers
        )
        s.out.rows(rows, ("writer", "open", "committed", "commit", "position", "node"), "No writers.")


@app.command()
def show(branch: BranchArgument, id: IdArgument, lake: LakeOption = None, as_json: JsonOption = False) -> None:
    """Show one transaction."""
    with session(lake, as_json) as s:
        fields = _fields(s.branch(branch).transactions[id])
        s.out.say([f"{name}: {value}" for name, value in fields.items() if value is not None], fields)


@app.command()
def abort(branch: BranchArgument, id: IdArgument, lake: LakeOption = None, as_json: JsonOption = False) -> None:
    """Doom a transaction: its commit will be refused, wherever its driver runs."""
    with session(lake, as_json) as s:
        s.branch(branch).transactions.abort(id)
        told = f"Transaction {id} of {branch} will not be published. Once its driver is dead: strandline tx ack."
        s.out.say(told, {"branch": branch, "id": id})


@app.command()
def ack(
    branch: BranchArgument,
    id: IdArgument,
    quiet_for: QuietOption = 0.0,
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Note that nobody writes in a rejected transaction any more: what it left may be collected."""
    with session(lake, as_json) as s:
        s.branch(branch).transactions.acknowledge(id, quiet_s=quiet_for)
        s.out.say(f"Acknowledged: what transaction {id} has left may be collected.", {"branch": branch, "id": id})


@app.command()
def recover(branch: BranchArgument, id: IdArgument, lake: LakeOption = None, as_json: JsonOption = False) -> None:
    """Bring the transaction of a dead driver to an end: publish it if it had asked to commit, else abort it."""
    with session(lake, as_json) as s:
        found = s.branch(branch).transactions.recover(id)
        s.out.say(f"Transaction {id} of {found.writer} is {found.state}.", _fields(found))


@app.command()
def assign(
    branch: BranchArgument,
    writer: Annotated[str, typer.Argument(help="The writer's name.")],
    node: Annotated[str, typer.Argument(help="The only node that may run this writer; '' allows any node.")],
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let only one node begin and commit under a writer's name."""
    with session(lake, as_json) as s:
        s.branch(branch).writers.assign(writer, node)
        told = f"Writer {writer} runs on node {node} only." if node else f"Writer {writer} may run anywhere."
        s.out.say(told, {"branch": branch, "writer": writer, "node": node or None})


@app.command()
def retire(
    branch: BranchArgument,
    writer: Annotated[str, typer.Argument(help="The writer's name.")],
    quiet_for: QuietOption = 0.0,
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take a writer out of service: it can begin no more, and what it has open is doomed and acknowledged."""
    with session(lake, as_json) as s:
        s.branch(branch).writers.retire(writer, quiet_s=quiet_for)
        told = f"Writer {writer} is retired; `strandline tx assign` brings it back."
        s.out.say(told, {"branch": branch, "writer": writer})
