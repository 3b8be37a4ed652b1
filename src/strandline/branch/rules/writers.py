"""The part of the branch machine for fenced transactions: pure functions from a record to the next one.

A transaction belongs to a writer, a name. It may be published only while it is the one that was begun last under its
name: that is judged on the very record that the new head is swapped into, so nothing is ever known too late. Whoever
begins another one dooms it in the same swap.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec.structs import replace

from strandline.branch.rules.record import BranchRecord, WriterRecord, refuse_read_only
from strandline.errors import Advice, BranchProtected, Fenced, InvalidName, NotAssigned, TransactionClosed
from strandline.ids import CommitId

MAX_WRITERS = 1_024
"""More names than a branch has jobs; 1,024 of them take 76 KB of the record."""
MAX_UNNAMED = 64
"""Of them, names that were made up and whose write has ended."""
RETIRED = "(retired)"
"""The node that a retired writer is assigned to: none is called so, and nobody can begin under its name."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._:@/+-]{0,127}", re.ASCII)
UNNAMED = "write "
"""What the names of writers begin with that are made up for one write."""


def check_writer_name(name: str) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidName(
            f"{name!r} is not a writer's name.",
            next="Use 1 to 128 letters, digits, spaces and . _ : @ / + -, starting with a letter or digit.",
        )
    return name


def refuse_other_node(branch: BranchRecord, name: str, node: str) -> None:
    """Raise if the name is assigned to another node: else two eager restarts could doom each other for ever."""
    writer = branch.writers.get(name)
    if writer is not None and writer.node == RETIRED:
        raise NotAssigned(
            f"Writer {name!r} is retired: nothing begins under its name.",
            next=Advice(
                f"Bring it back: branch.writers.assign({name!r}, ''), or take another name.",
                command=f"Bring it back: `strandline tx assign REPOSITORY/BRANCH {name} ''`, or take another name.",
            ),
        )
    if writer is not None and writer.node and writer.node != node:
        raise NotAssigned(
            f"Writer {name!r} is assigned to node {writer.node!r}, and this is node {node!r}.",
            next=Advice(
                f"Run it there, or assign it to this node: branch.writers.assign({name!r}, {node!r}).",
                command=f"Run it there, or assign it: `strandline tx assign REPOSITORY/BRANCH {name} {node}`.",
            ),
        )


def refuse_publisher(branch: BranchRecord, name: str, branch_name: str) -> None:
    """Raise if the branch is protected and its protection does not name the writer."""
    refuse_read_only(branch, branch_name)
    if branch.blocked and name not in branch.publishers:
        if name.startswith(UNNAMED):
            raise BranchProtected(
                f"Branch {branch_name!r} is protected, and this write has no writer that a protection could name.",
                next=Advice(
                    "Give writer=, and name it in the protection: repository.protect(…, writers=[…]).",
                    command="Publish under a writer's name, and name it in the protection: `strandline repo protect`.",
                ),
            )
        raise BranchProtected(
            f"Branch {branch_name!r} is protected, and writer {name!r} is none of those that may publish to it.",
            next=Advice(
                f"Name it in the protection: repository.protect(…, writers=[{name!r}]).",
                command=f"Name it in the protection: `strandline repo protect … --writer {name}`.",
            ),
        )


def with_writer(branch: BranchRecord, name: str, writer: WriterRecord | None) -> Mapping[str, WriterRecord]:
    others = {key: held for key, held in branch.writers.items() if key != name}
    return others if writer is None else {**others, name: writer}


def to_forget(branch: BranchRecord, name: str) -> str | None:
    """Which name a begin under `name` pushes off the record: the one that has been idle for longest.

    One with an open transaction goes only if no other is left, and thereby fences it. Names that were assigned stay.
    Names that were made up for one write never come back, so only some of them are kept.
    """
    if name in branch.writers:
        return None
    if name.startswith(UNNAMED):
        done = [
            (held.started, key)
            for key, held in branch.writers.items()
            if key.startswith(UNNAMED) and not held.is_open and not held.node
        ]
        if len(done) >= MAX_UNNAMED:
            return min(done)[1]
    if len(branch.writers) < MAX_WRITERS:
        return None
    free = [(held.is_open, held.started, key) for key, held in branch.writers.items() if not held.node]
    if not free:
        raise NotAssigned(
            f"The branch has {MAX_WRITERS} writers that are all assigned to nodes: there is no room for another name.",
            next=Advice(
                'Take one of them off: branch.writers.assign(name, "").',
                command="Take one of them off: `strandline tx assign REPOSITORY/BRANCH WRITER ''`.",
            ),
        )
    return min(free)[2]


def begin(branch: BranchRecord, name: str, node: str, known: WriterRecord) -> BranchRecord:
    """The next id goes to `name`; every transaction that was begun under it before is doomed.

    Args:
        known: what is remembered of a name that is not on record.
    """
    refuse_other_node(branch, name, node)
    gone = to_forget(branch, name)
    held = branch.writers.get(name, known)
    writers = {**branch.writers, name: replace(held, started=branch.next_txn)}
    if gone is not None:
        del writers[gone]
    return replace(branch, next_txn=branch.next_txn + 1, writers=writers)


def is_last_started(branch: BranchRecord, name: str, id: int) -> bool:
    """Whether a transaction is open: false is always safe, whatever the answer is needed for."""
    writer = branch.writers.get(name)
    return writer is not None and writer.started == id and writer.committed != id


def refuse_fenced(branch: BranchRecord, name: str, id: int, node: str) -> None:
    """Raise unless a transaction may be published on this very record."""
    held = branch.writers.get(name)
    if held is not None and held.committed == id:
        raise was_published(name, id, held.commit)
    if not is_last_started(branch, name, id):
        raise fenced(branch, name, id)
    refuse_other_node(branch, name, node)


def was_published(name: str, id: int, commit: str) -> TransactionClosed:
    return TransactionClosed(
        f"Transaction {id} of {name!r} was published already, as commit {commit[:12]}.",
        next="Revert that commit if it should not be there.",
    )


def fenced(branch: BranchRecord, name: str, id: int) -> Fenced:
    writer = branch.writers.get(name)
    successor = None if writer is None or writer.started <= id else writer.started
    if successor is not None:
        what = f"Transaction {id} of {name!r} was replaced by {successor}."
    elif writer is None:
        what = f"Transaction {id} of {name!r} was forgotten: too many other writers have begun since."
    else:
        what = f"Transaction {id} of {name!r} was aborted from elsewhere."
    return Fenced(
        what,
        successor=successor,
        safe="Nothing of it was published, and nothing of it ever will be.",
        next="Stop this job; what it wrote will be collected.",
    )


def published(
    branch: BranchRecord, name: str, id: int, commit: CommitId, position: str | None, token: str, digest: str
) -> BranchRecord:
    """What publishing leaves of the writer, in the swap that moves the head. The caller has judged `refuse_fenced`."""
    held = branch.writers[name]
    writer = WriterRecord(id, id, commit, held.node, held.position if position is None else position, token, digest)
    return replace(branch, writers=with_writer(branch, name, writer))


def doomed(branch: BranchRecord, name: str, id: int) -> BranchRecord:
    """Abort: a transaction that was begun last is so no more.

    Raises:
        TransactionClosed: it was published.
    """
    held = branch.writers.get(name)
    if held is not None and held.committed == id:
        raise was_published(name, id, held.commit)
    if held is None or held.started != id:
        return branch
    return replace(branch, writers=with_writer(branch, name, replace(held, started=held.committed)))


def assigned(branch: BranchRecord, name: str, node: str, known: WriterRecord) -> BranchRecord:
    """Only this node may begin and commit under the name from now on; "" lets anyone."""
    gone = to_forget(branch, name)
    kept = {key: writer for key, writer in branch.writers.items() if key != gone}
    return replace(branch, writers={**kept, name: replace(branch.writers.get(name, known), node=node)})
