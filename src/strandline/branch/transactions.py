"""Fenced transactions: begin, publish, abort, acknowledge. What decides is the branch record alone.

The other records of a transaction tell of it: its life (`txn/`), the tokens that make a repeated job recognisable
(`token/`), and what is remembered of writers that left the branch record (`writer/`). Whatever a later begin takes off
the branch record, it has written there before its swap; so a commit that was granted once stays granted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import msgspec
from blake3 import blake3
from msgspec.structs import replace

from strandline.branch.at import BranchAt
from strandline.branch.attempts import MAX_ATTEMPTS, Attempts, update
from strandline.branch.cell import Moved
from strandline.branch.commits import Commit
from strandline.branch.heads import Compute, InTheWay, set_head
from strandline.branch.rules import lock_rules, writers
from strandline.branch.rules.record import BranchRecord, WriterRecord
from strandline.branch.stores import Stores
from strandline.clock import Microseconds, from_us
from strandline.envelope import decode, encode
from strandline.errors import (
    Contention,
    Fenced,
    NotFound,
    OutcomeUnknown,
    StoreUnavailable,
    StrandlineError,
    TransactionClosed,
)
from strandline.ids import BranchId, CommitId, keys_below
from strandline.kv.store import ABSENT, PredicateFailed

State = Literal["open", "committed", "rejected-pending", "rejected-acknowledged", "collected"]
_NEXT: dict[State, tuple[State, ...]] = {
    "open": ("committed", "rejected-pending", "rejected-acknowledged"),
    "committed": ("collected",),
    "rejected-pending": ("rejected-acknowledged",),
    "rejected-acknowledged": ("collected",),
    "collected": (),
}
"""States only move forward. A doomed transaction is "rejected-pending" whether its record says so yet or not."""
MESSAGE_MAX_CHARS = 200


class TransactionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is on record of a transaction, besides what the branch record says.

    Attributes:
        id: unique on its branch, for ever.
        base: the commit that it was begun on.
        last_committed: the last transaction of its writer that was published before it, or 0.
        node, process: where it was begun.
        state: as far as anybody has written it down; the branch record may know better.
        commit: that published it, or "".
        swept_at: when its prefix was swept first, or None.
        ended_at: by the clock of the process that wrote the end down, for operators.
        seen_ended_at: when a collector first saw the end, by the object store's clock.
    """

    id: int
    writer: str
    branch_id: BranchId
    base: CommitId | Literal[""] = ""
    last_committed: int = 0
    begun_at: Microseconds = 0
    ended_at: Microseconds | None = None
    node: str = ""
    process: str = ""
    message: str = ""
    token: str = ""
    state: State = "open"
    commit: CommitId | Literal[""] = ""
    digest: str = ""
    swept_at: Microseconds | None = None
    seen_ended_at: Microseconds | None = None


class Repeat(msgspec.Struct, frozen=True):
    """A transaction with the same token was published before."""

    id: int
    commit: CommitId


@dataclass(frozen=True, slots=True)
class Who:
    """A writer as a process calls itself."""

    name: str
    node: str
    process: str


@dataclass(frozen=True, slots=True)
class Publication:
    """What a transaction wants to become visible.

    Attributes:
        digest: of all its changes: a repeated commit is granted only for the same ones.
        in_the_way: of what is staged in effect, the paths that forbid it.
        is_empty: it changes nothing: only the writer's note is swapped in, and the head stays.
        locks: ids of the locks under which it is published.
        ends: which of them end in the same swap.
    """

    id: int
    who: Who
    compute: Compute
    in_the_way: InTheWay
    digest: str
    position: str | None
    token: str
    is_empty: bool = False
    locks: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()


# --- keys -------------------------------------------------------------------------------------------------------------


def key_of(branch_id: BranchId, id: int) -> bytes:
    return b"txn/" + branch_id.encode() + b"/%016d" % id


def _token_key(branch_id: BranchId, name: str, token: str) -> bytes:
    return b"token/" + branch_id.encode() + b"/" + blake3(f"{name}\0{token}".encode()).hexdigest().encode()


def _writer_key(branch_id: BranchId, name: str) -> bytes:
    return b"writer/" + branch_id.encode() + b"/" + name.encode()


# --- records ----------------------------------------------------------------------------------------------------------


def find_record(stores: Stores, branch_id: BranchId, id: int) -> tuple[bytes | None, TransactionRecord | None]:
    raw = stores.kv.get(stores.records, key_of(branch_id, id))
    return raw, None if raw is None else decode(TransactionRecord, raw, f"transaction {id}")


def records_of(stores: Stores, branch_id: BranchId | None = None) -> Iterator[tuple[bytes, TransactionRecord]]:
    """The records of a branch's transactions, or of those of all branches that ever were, oldest first in each."""
    prefix = b"txn/" if branch_id is None else b"txn/" + branch_id.encode() + b"/"
    for key, value in stores.kv.scan(stores.records, *keys_below(prefix)):
        yield key, decode(TransactionRecord, value, "a transaction")


def advance(stores: Stores, known: TransactionRecord, state: State, **changes: object) -> TransactionRecord:
    """Move a transaction's record forward, or find it there already.

    Args:
        known: stands in for a record that its driver died before writing.

    Raises:
        TransactionClosed: the record has gone another way.
    """
    key = key_of(known.branch_id, known.id)
    for _ in range(MAX_ATTEMPTS):
        raw, held = find_record(stores, known.branch_id, known.id)
        record = known if held is None else held
        if held is not None and held.state == state:
            return held
        if not can_become(record.state, state):
            raise TransactionClosed(
                f"Transaction {record.id} of {record.writer!r} is {record.state}: it cannot become {state}.",
                next="`strandline tx show` tells what became of it.",
            )
        moved: TransactionRecord = replace(record, state=state, **changes)
        if moved.ended_at is None and state != "rejected-pending":
            moved = replace(moved, ended_at=stores.clock.now_us())
        try:
            stores.kv.set_if(stores.records, key, encode(moved), ABSENT if raw is None else raw)
            return moved
        except PredicateFailed:
            continue
    raise Contention(f"Others kept changing the record of transaction {known.id}.", next="Repeat the call.")


def can_become(before: State, after: State) -> bool:
    return after in _NEXT[before]


def effective_state(branch: BranchRecord | None, record: TransactionRecord) -> State:
    """The state of a transaction by the branch record, which decides; None stands for a deleted branch."""
    if record.state != "open":
        return record.state
    held = None if branch is None else branch.writers.get(record.writer)
    if held is not None and held.committed == record.id:
        return "committed"
    if branch is not None and writers.is_last_started(branch, record.writer, record.id):
        return "open"
    return "rejected-pending"


def settle(stores: Stores, branch_id: BranchId, name: str, writer: WriterRecord) -> None:
    """Write down for good what the branch record says of a writer's last published transaction: the only way for a
    transaction's record to become "committed", and the token comes first.
    """
    if not writer.committed or not writer.commit:
        return
    _, record = find_record(stores, branch_id, writer.committed)
    if record is not None and record.state in ("committed", "collected"):
        return  # and the token was written down before
    if writer.token:
        repeat = Repeat(writer.committed, writer.commit)
        stores.kv.set(stores.records, _token_key(branch_id, name, writer.token), encode(repeat))
    known = TransactionRecord(id=writer.committed, writer=name, branch_id=branch_id)
    advance(stores, known, "committed", commit=writer.commit, digest=writer.digest)


def _push_off(stores: Stores, branch_id: BranchId, name: str, writer: WriterRecord) -> None:
    """Write down a writer that is about to leave the branch record; never over what is newer."""
    settle(stores, branch_id, name, writer)
    key = _writer_key(branch_id, name)
    for _ in range(MAX_ATTEMPTS):
        raw = stores.kv.get(stores.records, key)
        if raw is not None:
            held: WriterRecord = decode(WriterRecord, raw, f"writer {name!r}")
            if _age(held) >= _age(writer):
                return
        try:
            stores.kv.set_if(stores.records, key, encode(writer), ABSENT if raw is None else raw)
            return
        except PredicateFailed:
            continue
    raise Contention(f"Others kept changing what is remembered of writer {name!r}.", next="Repeat the call.")


def _age(writer: WriterRecord) -> tuple[int, int]:
    """What is newer of two records of a writer: the later transaction, and of the same one the published."""
    return max(writer.started, writer.committed), writer.committed


def remembered(stores: Stores, branch_id: BranchId, name: str) -> WriterRecord:
    """What was written down of a writer when it left the branch record.

    A transaction that was open then is closed for good: its driver may know that it was fenced, and what it wrote may
    have been collected. So however the name comes back, it comes back without the transaction.
    """
    raw = stores.kv.get(stores.records, _writer_key(branch_id, name))
    if raw is None:
        return WriterRecord()
    writer: WriterRecord = decode(WriterRecord, raw, f"writer {name!r}")
    return replace(writer, started=writer.committed)


def forget(stores: Stores, record: TransactionRecord) -> None:
    """Remove a transaction's record and token."""
    keys = [key_of(record.branch_id, record.id)]
    if record.token:
        key = _token_key(record.branch_id, record.writer, record.token)
        raw = stores.kv.get(stores.records, key)
        if raw is not None and decode(Repeat, raw, "a token").id == record.id:
            keys.append(key)
    stores.kv.delete_many(stores.records, keys)


def record_pairs(stores: Stores, branch_id: BranchId) -> list[tuple[bytes, bytes]]:
    """The records of a branch's transactions, tokens and forgotten writers, for a backup."""
    found: list[tuple[bytes, bytes]] = []
    for kind in (b"txn/", b"token/", b"writer/"):
        prefix = kind + branch_id.encode() + b"/"
        found += stores.kv.scan(stores.records, *keys_below(prefix))
    return found


def forget_transactions(stores: Stores, branch_id: BranchId) -> None:
    """Clean up after a deleted branch; the records of transactions stay until their files are collected."""
    for kind in (b"token/", b"writer/"):
        prefix = kind + branch_id.encode() + b"/"
        for page in stores.kv.scan_pages(stores.records, *keys_below(prefix)):
            stores.kv.delete_many(stores.records, page.keys)


# --- protocol ---------------------------------------------------------------------------------------------------------


def begin(at: BranchAt, who: Who, token: str, message: str) -> TransactionRecord | Repeat:
    """Take the next id. Every earlier open transaction of the writer is doomed by the same swap.

    Invariant: what the swap takes off the branch record (the last published transaction of this writer, once its
    successor is published, and all of a writer that is forgotten) is in records of its own before the swap. So a
    reader that does not find a transaction on a branch record finds what became of it in a read begun afterwards.
    And the token was judged on the very record that the swap demands: nothing was published under it since.

    Raises:
        NotAssigned, BranchProtected, RepositoryReadOnly, BranchGone, StoreUnavailable, Contention.
    """
    stores = at.stores
    attempts = Attempts(at.cell, "begin")
    while True:
        attempts.next()
        seen = at.read()
        branch = seen.branch
        writers.refuse_publisher(branch, who.name, at.name)
        writers.refuse_other_node(branch, who.name, who.node)
        held = branch.writers.get(who.name)
        known = remembered(stores, at.branch_id, who.name) if held is None else held
        if token:
            done = _published_before(stores, at.branch_id, who.name, known, token)
            if done is not None:
                return done
        gone = writers.to_forget(branch, who.name)
        settle(stores, at.branch_id, who.name, known)
        if gone is not None:
            _push_off(stores, at.branch_id, gone, branch.writers[gone])
        try:
            at.cell.swap(seen, writers.begin(branch, who.name, who.node, known))
        except Moved:
            continue
        record = TransactionRecord(
            id=branch.next_txn,
            writer=who.name,
            branch_id=at.branch_id,
            base=branch.head,
            last_committed=known.committed,
            begun_at=stores.clock.now_us(),
            node=who.node,
            process=who.process,
            message=message[:MESSAGE_MAX_CHARS],
            token=token,
        )
        # only for operators: fences do not depend on it
        with suppress(PredicateFailed):  # a process that doomed it has made one already
            stores.kv.set_if(stores.records, key_of(at.branch_id, record.id), encode(record), ABSENT)
        return record


def _published_before(stores: Stores, branch_id: BranchId, name: str, known: WriterRecord, token: str) -> Repeat | None:
    if known.token == token and known.commit:
        return Repeat(known.committed, known.commit)
    raw = stores.kv.get(stores.records, _token_key(branch_id, name, token))
    return None if raw is None else decode(Repeat, raw, f"token {token!r}")


def published(at: BranchAt, name: str, token: str) -> Repeat | None:
    """The transaction that a writer has published with a token."""
    held = at.read().branch.writers.get(name)
    known = remembered(at.stores, at.branch_id, name) if held is None else held
    return _published_before(at.stores, at.branch_id, name, known, token)


def publish(at: BranchAt, what: Publication) -> Commit:
    """Make all of a transaction visible in one swap, or say why not.

    Invariant: the swap is made against a record on which the transaction is the last one begun under its name, and it
    notes in the same swap that it was published. So of all that were begun one after the other under a name, those
    that were published form a chain, and none is published twice: a repeated call finds the note.

    Raises:
        Fenced: another transaction of the writer was begun, or it was aborted.
        NotAssigned, BranchProtected, UncommittedChanges, Conflict, StoreUnavailable, Contention; and what the
        computation raises. Nothing was published then, except if the error says that it is unknown.
    """
    who = what.who

    def judge(branch: BranchRecord) -> None:
        writers.refuse_publisher(branch, who.name, at.name)
        writers.refuse_fenced(branch, who.name, what.id, who.node)

    def mark(branch: BranchRecord, head: CommitId) -> BranchRecord:
        after = writers.published(branch, who.name, what.id, head, what.position, what.token, what.digest)
        return lock_rules.without_locks(after, what.ends)

    def note(branch: BranchRecord) -> BranchRecord:
        judge(branch)
        lock_rules.refuse_unheld(branch, at.name, what.locks)
        return mark(branch, branch.head)

    try:
        done = granted(at, who.name, what.id, what.digest)
        if done is None and what.is_empty:
            done = update(at, note).branch.head
        elif done is None:
            done = set_head(at, judge, "publish", what.compute, what.in_the_way, mark, what.locks).id
    except (Fenced, TransactionClosed):
        # my own swap may have come before, with a lost reply, and even somebody else's begin after it
        done = granted(at, who.name, what.id, what.digest)
        if done is None:
            raise
    with suppress(StrandlineError):  # done is done; the next begin writes it down
        writer = WriterRecord(committed=what.id, commit=done, token=what.token, digest=what.digest)
        settle(at.stores, at.branch_id, who.name, writer)
    return at.commits.get(done)


def rebase(stores: Stores, record: TransactionRecord, base: CommitId) -> None:
    """Write down that an open transaction reads another commit than the one it was begun on, before it does."""
    key = key_of(record.branch_id, record.id)
    for _ in range(MAX_ATTEMPTS):
        raw, held = find_record(stores, record.branch_id, record.id)
        known = record if held is None else held
        try:
            stores.kv.set_if(stores.records, key, encode(replace(known, base=base)), ABSENT if raw is None else raw)
            return
        except PredicateFailed:
            continue
    raise Contention(f"Others kept changing the record of transaction {record.id}.", next="Repeat the call.")


def granted(at: BranchAt, name: str, id: int, digest: str | None = None) -> CommitId | None:
    """The commit by which a transaction was published; None if it is still open.

    The branch record is read first: what it does not know any more was written down before.

    Raises:
        Fenced: it was not published, and never will be.
        TransactionClosed: it was published with other changes, by a process that had resumed it.
    """
    branch = at.read().branch
    held = branch.writers.get(name)
    if held is not None and held.committed == id and held.commit:
        return _same(id, name, held.commit, held.digest, digest)
    if writers.is_last_started(branch, name, id):
        return None
    _, record = find_record(at.stores, at.branch_id, id)
    if record is not None and record.commit:
        return _same(id, name, record.commit, record.digest, digest)
    raise _named(at.stores, at.branch_id, writers.fenced(branch, name, id))


def _same(id: int, name: str, commit: CommitId, digest: str, mine: str | None) -> CommitId:
    if mine is not None and digest and digest != mine:
        raise TransactionClosed(
            f"Transaction {id} of {name!r} was published with other changes, as commit {commit[:12]}.",
            safe="What this process wrote in it is not visible, and will be collected.",
            next="Another process had resumed it. Stop this job.",
        )
    return commit


def _named(stores: Stores, branch_id: BranchId, error: Fenced) -> Fenced:
    """The error with what is known of the successor: when and where it was begun."""
    if error.successor is None:
        return error
    with suppress(StoreUnavailable, NotFound):
        _, record = find_record(stores, branch_id, error.successor)
        if record is not None:
            at = from_us(record.begun_at)
            what = f"{error.what[:-1]} at {at:%Y-%m-%d %H:%M:%S} UTC from {record.node} ({record.process})."
            return Fenced(what, successor=error.successor, safe=error.safe, next=error.next)
    return error


def abort(at: BranchAt, who: Who, id: int) -> None:
    """Make sure that a transaction is never published.

    Raises:
        TransactionClosed: it was published.
    """

    def transition(branch: BranchRecord) -> BranchRecord:
        return writers.doomed(branch, who.name, id)

    if not writers.is_last_started(at.read().branch, who.name, id):
        with suppress(Fenced):
            done = granted(at, who.name, id)
            if done is not None:
                raise writers.was_published(who.name, id, done)
        return
    try:
        update(at, transition)
    except OutcomeUnknown:
        if writers.is_last_started(at.read().branch, who.name, id):
            raise
        with suppress(Fenced):
            done = granted(at, who.name, id)
            if done is not None:
                raise writers.was_published(who.name, id, done) from None


def acknowledge(at: BranchAt, name: str, id: int) -> TransactionRecord:
    """Note that the driver of a rejected transaction writes no more. Idempotent.

    Raises:
        TransactionClosed: it is open or committed.
    """
    stores = at.stores
    _, record = find_record(stores, at.branch_id, id)
    known = record or TransactionRecord(id=id, writer=name, branch_id=at.branch_id)
    if known.state in ("rejected-acknowledged", "collected") and not known.commit:
        return known
    state = effective_state(at.read().branch, known)
    if state in ("open", "committed"):
        raise TransactionClosed(
            f"Transaction {id} of {name!r} is {state}: only a rejected one is acknowledged.",
            next="Abort it first, or begin its successor." if state == "open" else "",
        )
    return advance(stores, known, "rejected-acknowledged")


def assign(at: BranchAt, name: str, node: str) -> None:
    """Let only one node begin and commit under a name; "" lets anyone."""

    def transition(branch: BranchRecord) -> BranchRecord:
        gone = writers.to_forget(branch, name)
        if gone is not None:
            _push_off(at.stores, at.branch_id, gone, branch.writers[gone])
        known = branch.writers.get(name) or remembered(at.stores, at.branch_id, name)
        return writers.assigned(branch, name, node, known)

    update(at, transition)
