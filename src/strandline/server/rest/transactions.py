"""Fenced transactions of jobs, as operators see them: ours, in lakeFS's style."""

from __future__ import annotations

import msgspec

from strandline.errors import NotFound
from strandline.repository.transactions.operators import TransactionInfo, WriterInfo
from strandline.server.messages import Response
from strandline.server.operation import Call, Operation, branch_need, branch_to_write
from strandline.server.refusals import BadRequest
from strandline.server.rest import shapes
from strandline.server.rest.replies import amount_of, json, nothing, page


class Transaction(msgspec.Struct):
    """A transaction: all of a job's output becomes visible at once, or nothing."""

    id: int
    writer: str
    state: str
    creation_date: int
    node: str
    process: str
    commit_id: str
    message: str


class TransactionList(msgspec.Struct):
    """A page of transactions."""

    pagination: shapes.Pagination
    results: list[Transaction]


class Writer(msgspec.Struct):
    """A job by its name: its open transaction, the last one that was published, and how far it has come."""

    name: str
    open: int | None
    committed: int | None
    commit_id: str
    position: str | None
    node: str


class WriterList(msgspec.Struct):
    """A page of writers."""

    pagination: shapes.Pagination
    results: list[Writer]


class Assignment(msgspec.Struct):
    """Where alone a writer may run; "" for anywhere."""

    node: str


def _shape(found: TransactionInfo) -> Transaction:
    return Transaction(
        found.id,
        found.writer,
        found.state,
        found.begun_at_us // 1_000_000,
        found.node,
        found.process,
        found.commit,
        found.message,
    )


def _writer(found: WriterInfo) -> Writer:
    return Writer(found.name, found.open, found.committed, found.commit, found.position, found.node)


def _number(call: Call) -> int:
    text = call.path["transaction"]
    if not (text.isascii() and text.isdigit() and len(text) <= 16):
        raise BadRequest(f"{text[:80]!r} is not the number of a transaction.", next="List the transactions.")
    return int(text)


def list_transactions(call: Call) -> Response:
    after = call.query.after
    if after and not (after.isascii() and after.isdigit()):
        raise BadRequest(f"{after[:80]!r} is not the number of a transaction.", next="Give the next_offset of a page.")
    rows = (one for one in branch_to_write(call).transactions if one.id > int(after or 0))
    kept, pagination = page(rows, amount_of(call.query.amount), lambda one: str(one.id))
    return json(200, TransactionList(pagination, [_shape(one) for one in kept]))


def get_transaction(call: Call) -> Response:
    return json(200, _shape(branch_to_write(call).transactions[_number(call)]))


def abort_transaction(call: Call) -> Response:
    branch_to_write(call).transactions.abort(_number(call))
    return nothing()


def acknowledge_transaction(call: Call) -> Response:
    branch_to_write(call).transactions.acknowledge(_number(call))
    return nothing()


def recover_transaction(call: Call) -> Response:
    return json(200, _shape(branch_to_write(call).transactions.recover(_number(call))))


def list_writers(call: Call) -> Response:
    query = call.query
    rows = (
        one for one in branch_to_write(call).writers if one.name.startswith(query.prefix) and one.name > query.after
    )
    kept, pagination = page(rows, amount_of(query.amount), lambda one: one.name)
    return json(200, WriterList(pagination, [_writer(one) for one in kept]))


def assign_writer(call: Call) -> Response:
    writers, name = branch_to_write(call).writers, call.path["writer"]
    writers.assign(name, call.body.node)
    return json(200, _writer(writers[name]))


def retire_writer(call: Call) -> Response:
    writers, name = branch_to_write(call).writers, call.path["writer"]
    if name not in writers:
        raise NotFound(f"The branch has no writer {name[:80]!r}.", next="List its writers.")
    writers.retire(name)
    return nothing()


_BRANCH = "/repositories/{repository}/branches/{branch}"
_ONE = _BRANCH + "/transactions/{transaction}"
_READ, _END = branch_need("strandline:ReadTransactions"), branch_need("strandline:EndTransaction")
_WRITER = branch_need("strandline:WriteWriter")

OPERATIONS = (
    Operation(
        "listTransactions",
        "GET",
        _BRANCH + "/transactions",
        _READ,
        list_transactions,
        "The transactions of a branch, oldest first",
        {200: TransactionList},
        "transactions",
        query=shapes.Page,
        is_ours=True,
    ),
    Operation(
        "getTransaction",
        "GET",
        _ONE,
        _READ,
        get_transaction,
        "A transaction",
        {200: Transaction},
        "transactions",
        is_ours=True,
    ),
    Operation(
        "abortTransaction",
        "DELETE",
        _ONE,
        _END,
        abort_transaction,
        "Doom a transaction: its commit will be refused",
        {204: None},
        "transactions",
        is_ours=True,
    ),
    Operation(
        "acknowledgeTransaction",
        "POST",
        _ONE + "/acknowledge",
        _END,
        acknowledge_transaction,
        "Say that nobody writes in a doomed transaction any more",
        {204: None},
        "transactions",
        is_ours=True,
    ),
    Operation(
        "recoverTransaction",
        "POST",
        _ONE + "/recover",
        _END,
        recover_transaction,
        "End a transaction whose process died: publish it if it had asked for that, else abort it",
        {200: Transaction},
        "transactions",
        is_ours=True,
    ),
    Operation(
        "listWriters",
        "GET",
        _BRANCH + "/writers",
        _READ,
        list_writers,
        "The jobs that have written to a branch in transactions",
        {200: WriterList},
        "transactions",
        query=shapes.Page,
        is_ours=True,
    ),
    Operation(
        "assignWriter",
        "PUT",
        _BRANCH + "/writers/{writer}",
        _WRITER,
        assign_writer,
        "Let a job run on one node only, or anywhere",
        {200: Writer},
        "transactions",
        body=Assignment,
        is_ours=True,
    ),
    Operation(
        "retireWriter",
        "DELETE",
        _BRANCH + "/writers/{writer}",
        _WRITER,
        retire_writer,
        "Take a job out of service: it can begin no more, and its open transaction is doomed",
        {204: None},
        "transactions",
        is_ours=True,
    ),
)
