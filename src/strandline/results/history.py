"""Walking commits: the log, and the best common ancestor of two commits."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from strandline.branch.commits import Commit, CommitLog
from strandline.clock import Microseconds
from strandline.ids import CommitId, prefix_end
from strandline.results.rows import Results
from strandline.tree.diff import diff
from strandline.tree.store import EMPTY


@dataclass(frozen=True, slots=True)
class LogFilter:
    """Which commits a log shows.

    Attributes:
        paths, prefixes: only commits that changed one of these, compared with their first parent.
        since, until: bounds of the commit's date, both included, in microseconds.
    """

    first_parent: bool = False
    paths: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    since: Microseconds | None = None
    until: Microseconds | None = None
    amount: int | None = None


def walk(commits: CommitLog, start: CommitId, first_parent: bool = False) -> Iterator[Commit]:
    """A commit and its ancestors, children before parents, each once."""
    first = commits.get(start)
    pending = [(-first.generation, -first.date_us, first.id)]
    known = {first.id}
    while pending:
        record = commits.get(heapq.heappop(pending)[2])
        yield record
        for parent in record.parents[:1] if first_parent else record.parents:
            if parent not in known:
                known.add(parent)
                ancestor = commits.get(parent)
                heapq.heappush(pending, (-ancestor.generation, -ancestor.date_us, parent))


def touches(commits: CommitLog, record: Commit, paths: tuple[str, ...], prefixes: tuple[str, ...]) -> bool:
    """Whether a commit changed one of the paths, or something below one of the prefixes."""
    trees = commits.stores.trees
    now = commits.tree(record.id)
    before = commits.tree(record.parents[0]) if record.parents else EMPTY
    for path in paths:
        old, new = trees.find(before, path), trees.find(now, path)
        if (old and old.identity) != (new and new.identity):
            return True
    return any(next(diff(trees, before, now, prefix, prefix_end(prefix)), None) is not None for prefix in prefixes)


class Log(Results[Commit]):
    """Commits, children before parents."""

    _titles = ("commit", "date", "committer", "message")

    def __init__(self, commits: CommitLog, start: CommitId, wanted: LogFilter) -> None:
        self._commits = commits
        self._start = start
        self._wanted = wanted

    def __iter__(self) -> Iterator[Commit]:
        wanted = self._wanted
        shown = 0
        for record in walk(self._commits, self._start, wanted.first_parent):
            if wanted.amount is not None and shown >= wanted.amount:
                return
            if wanted.since is not None and record.date_us < wanted.since:
                continue
            if wanted.until is not None and record.date_us > wanted.until:
                continue
            filtered = wanted.paths or wanted.prefixes
            if filtered and not touches(self._commits, record, wanted.paths, wanted.prefixes):
                continue
            shown += 1
            yield record

    def to_arrow(self) -> pa.Table:
        records = list(self)
        return pa.table(
            {
                "id": pa.array([record.id for record in records], pa.string()),
                "parents": pa.array([list(record.parents) for record in records], pa.list_(pa.string())),
                "date": pa.array([record.date for record in records], pa.timestamp("us", tz="UTC")),
                "committer": pa.array([record.committer for record in records], pa.string()),
                "message": pa.array([record.message for record in records], pa.string()),
                "metadata": pa.array(
                    [list(record.metadata.items()) for record in records], pa.map_(pa.string(), pa.string())
                ),
                "tree_id": pa.array([record.tree_id for record in records], pa.string()),
            }
        )

    def _cells(self, row: Commit) -> tuple[object, ...]:
        return row.id[:12], row.date, row.committer, row.message


def merge_base(commits: CommitLog, left: CommitId, right: CommitId) -> Commit | None:
    """The best common ancestor: one that no other common ancestor descends from.

    Commits are visited by falling generation, so the first that both sides reach is one. Of several (a criss-cross
    history) the one with the highest generation and then the largest id is taken, on every machine the same.
    """
    sides: dict[CommitId, int] = {}
    pending: list[tuple[int, str]] = []

    def reach(id: CommitId, side: int) -> None:
        before = sides.get(id, 0)
        sides[id] = before | side
        if not before:
            heapq.heappush(pending, (-commits.get(id).generation, _descending(id)))

    reach(left, 1)
    reach(right, 2)
    while pending:
        _, key = heapq.heappop(pending)
        id = CommitId(_descending(key))
        if sides[id] == 3:
            return commits.get(id)
        for parent in commits.get(id).parents:
            reach(parent, sides[id])
    return None


_FLIP = str.maketrans("0123456789abcdef", "fedcba9876543210")


def _descending(id: str) -> str:
    """A key that sorts ids in falling order; its own inverse."""
    return id.translate(_FLIP)
