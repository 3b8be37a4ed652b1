"""Histories that `docs/guarantees.md` says may happen: each function looks for one and tells it in a sentence.

They show that the page does not promise less than it could for no reason; the simulator meets each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from strandline.testing.simulation.history import PATHS, History, Operation
from strandline.testing.simulation.oracle import HEAD_MOVES, Oracle

OTHERS = ("rename", "copy", "reset", "hard reset", *HEAD_MOVES)
"""Operations after which an older value of a path is no surprise."""


def two_readers_see_two_writes_in_different_orders(history: History) -> str:
    lists = [op for op in history.operations if op.kind == "list" and op.status == "ok" and op.seen]
    for one in lists:
        for other in lists:
            if one.creation != other.creation or one is other:
                continue
            for left in _plain_writes(history, one):
                for right in _plain_writes(history, one):
                    if not _overlap(left, right) or set(left.values) & set(right.values):
                        continue
                    both = _shows(one, left) and _shows(other, right)
                    if both and _is_before(history, one, right) and _is_before(history, other, left):
                        return f"{one} shows {left.value} without {right.value}, {other} the other way round"
    return ""


def two_clients_lose_an_addition(history: History) -> str:
    """Both read a path, both write it back, and neither saw the other's write."""
    reads = [op for op in history.operations if op.kind == "find" and op.status == "ok"]
    pairs = [(read, _next_write(history, read)) for read in reads]
    for read, write in pairs:
        for other_read, other_write in pairs:
            if write is None or other_write is None or write is other_write or read.process == other_read.process:
                continue
            same = read.creation == other_read.creation and read.seen == other_read.seen
            if same and read.end < other_write.start and other_read.end < write.start:
                return f"{read} and {other_read} saw the same, then {write} and {other_write} both wrote"
    return ""


def pages_of_a_listing_are_of_several_instants(history: History) -> str:
    oracle = Oracle(history)
    for op in history.operations:
        made = oracle.creations.get(op.creation)
        if op.kind == "pages" and op.status == "ok" and made is not None and op.result is not None:
            why = oracle._possible(made, op.result, op.start, op.end)
            if why:
                return f"{op} put together {op.result}: {why}"
    return ""


def a_write_without_a_reply_is_in_a_commit_and_not_in_the_next(history: History) -> str:
    for before, after in _commits(history):
        for path in PATHS:
            shown, then = _writer(history, before[path]), _writer(history, after[path])
            if shown is not None and shown.status == "unknown" and before[path] != after[path]:
                older = after[path] is None or (then is not None and then.end < shown.start)
                if older and not _touched(history, path, shown):
                    return f"{shown} is in one commit; the next has {after[path]!r} at {path!r} again"
    return ""


def overlapping_writes_are_committed_in_turns(history: History) -> str:
    commits = list(_commits(history))
    for (first, second), (_, third) in pairwise(commits):
        for path in PATHS:
            values = (first[path], second[path], third[path])
            if values[0] == values[2] != values[1] and None not in values and not _touched(history, path, None):
                return f"three commits in a row hold {values} at {path!r}"
    return ""


def commit_dates_go_backwards(history: History) -> str:
    for commit in history.commits.values():
        parent = history.commits.get(commit.parents[0]) if commit.parents else None
        if parent is not None and commit.date_us < parent.date_us:
            return f"{commit.message} is dated {parent.date_us - commit.date_us} µs before its parent {parent.message}"
    return ""


EXAMPLES: dict[str, Callable[[History], str]] = {
    "linearizability over several paths": two_readers_see_two_writes_in_different_orders,
    "protection of read-modify-write": two_clients_lose_an_addition,
    "one listing from many pages": pages_of_a_listing_are_of_several_instants,
    "an unacknowledged write stays where it was seen": a_write_without_a_reply_is_in_a_commit_and_not_in_the_next,
    "an order among writes that overlap": overlapping_writes_are_committed_in_turns,
    "wall-clock order": commit_dates_go_backwards,
}


def _plain_writes(history: History, read: Operation) -> list[Operation]:
    return [op for op in history.operations if op.kind == "put" and op.creation == read.creation]


def _overlap(one: Operation, other: Operation) -> bool:
    return one is not other and one.start < other.end and other.start < one.end


def _shows(read: Operation, write: Operation) -> bool:
    return any(read.seen is not None and read.seen[path] == value for path, value in write.values.items())


def _is_before(history: History, read: Operation, write: Operation) -> bool:
    """Whether the read surely saw the branch before a write: it shows what was written there before the write began."""
    for path in write.values:
        shown = _writer(history, None if read.seen is None else read.seen[path])
        if shown is None or shown.end >= write.start or shown.kind != "put":
            return False
    return True


def _next_write(history: History, read: Operation) -> Operation | None:
    """What the same process did next, if it was a put of the path that it read."""
    later = [op for op in history.operations if op.process == read.process and op.start > read.end]
    if later and later[0].kind == "put" and later[0].status == "ok" and later[0].creation == read.creation:
        return later[0] if later[0].arguments["path"] == read.arguments["path"] else None
    return None


def _commits(history: History) -> list[tuple[dict[str, str | None], dict[str, str | None]]]:
    """The listings before and after each plain commit, in the order of their swaps."""
    found = []
    for change in history.changes:
        before, after = change.before, change.after
        if before is None or after is None or before.head == after.head or not after.moves:
            continue
        if after.moves[0].verb == "commit" and before.head in history.listings and after.head in history.listings:
            found.append((history.listings[before.head], history.listings[after.head]))
    return found


def _writer(history: History, value: str | None) -> Operation | None:
    return next((op for op in history.operations if value is not None and op.value == value), None)


def _touched(history: History, path: str, since: Operation | None) -> bool:
    """Whether something other than a plain write may have brought an older value of the path back."""
    return any(
        (op.kind in OTHERS or (op.kind.startswith("delete") and path in op.values))
        and op is not since
        and (since is None or op.end > since.start)
        for op in history.operations
    )
