"""Walking commits: the log, and the best common ancestor of two commits."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from strandline.branch.commits import Commit, CommitLog
from strandline.clock import Microseconds
from strandline.errors import RefNotFound
from strandline.ids import CommitId, prefix_end
from strandline.results.rows import Results
from strandline.tree.cache import ByteBoundedCache
from strandline.tree.diff import diff
from strandline.tree.store import EMPTY

NOTHING = CommitId("")
FRONTIER_BYTES = 100
frontiers: ByteBoundedCache[tuple[CommitId, ...]] = ByteBoundedCache(4 << 20)
"""Where pages of a log have ended, in this process: else each would walk from the newest commit again."""


@dataclass(frozen=True, slots=True)
class LogFilter:
    """Which commits a log shows.

    Attributes:
        paths, prefixes: only commits that changed one of these, compared with their first parent.
        since, until: bounds of the commit's date, both included, in microseconds.
        amount: the most that are shown.
        after: begin behind this commit; empty for the newest.
        stop_at: end with this commit, whether it is shown or not; empty for the first one of all.
    """

    first_parent: bool = False
    paths: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    since: Microseconds | None = None
    until: Microseconds | None = None
    amount: int | None = None
    after: CommitId = NOTHING
    stop_at: CommitId = NOTHING


class Walk:
    """A commit and its ancestors, children before parents, each once.

    A parent has a smaller generation than all of its children, so a commit that was passed is not met again: what has
    to be known of the way so far is the frontier alone, the commits that come next.
    """

    def __init__(self, commits: CommitLog, frontier: Iterable[CommitId], first_parent: bool = False) -> None:
        self._commits = commits
        self._first_parent = first_parent
        self._pending: list[tuple[int, Microseconds, CommitId]] = []
        self._known: set[CommitId] = set()
        self._next: tuple[CommitId, ...] = tuple(frontier)
        """What comes next besides what is pending; it is read when somebody goes on."""

    @property
    def frontier(self) -> tuple[CommitId, ...]:
        return (*self._known, *(id for id in self._next if id not in self._known))

    def _push(self, id: CommitId) -> None:
        if id not in self._known:
            self._known.add(id)
            record = self._commits.get(id)
            heapq.heappush(self._pending, (-record.generation, -record.date_us, id))

    def __iter__(self) -> Iterator[Commit]:
        while self._pending or self._next:
            for id in self._next:
                self._push(id)
            _, _, id = heapq.heappop(self._pending)
            self._known.discard(id)
            record = self._commits.get(id)
            self._next = record.parents[:1] if self._first_parent else record.parents
            yield record


def walk(commits: CommitLog, start: CommitId, first_parent: bool = False) -> Iterator[Commit]:
    """A commit and its ancestors, children before parents, each once."""
    return iter(Walk(commits, [start], first_parent))


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
        walk = self._walk()
        if wanted.amount == 0:
            return
        for record in walk:
            if self._is_shown(record):
                shown += 1
                if shown == wanted.amount:  # where the next page begins
                    frontiers.put(self._page_key(record.id), walk.frontier, FRONTIER_BYTES * (2 + len(walk.frontier)))
                yield record
            if shown == wanted.amount or record.id == wanted.stop_at:
                return

    def _is_shown(self, record: Commit) -> bool:
        wanted = self._wanted
        if wanted.since is not None and record.date_us < wanted.since:
            return False
        if wanted.until is not None and record.date_us > wanted.until:
            return False
        filtered = wanted.paths or wanted.prefixes
        return not filtered or touches(self._commits, record, wanted.paths, wanted.prefixes)

    def _walk(self) -> Walk:
        """The commits from `after` on. Pages of one process find where the one before them ended."""
        wanted = self._wanted
        if not wanted.after:
            return Walk(self._commits, [self._start], wanted.first_parent)
        frontier = frontiers.get(self._page_key(wanted.after))
        if frontier is not None:
            return Walk(self._commits, frontier, wanted.first_parent)
        found = Walk(self._commits, [self._start], wanted.first_parent)
        last = self._commits.get(wanted.after).generation
        for record in found:
            if record.id == wanted.after:
                return found
            if record.generation < last:
                break
        raise RefNotFound(
            f"Commit {wanted.after} is not in this history, so nothing comes after it.",
            next="Begin without `after`, and continue with the last commit that was shown.",
        )

    def _page_key(self, last: CommitId) -> str:
        return f"{self._commits.stores.repository_id} {self._start} {self._wanted.first_parent} {last}"

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


def merge_bases(commits: CommitLog, left: CommitId, right: CommitId) -> list[Commit]:
    """All common ancestors that no other common ancestor descends from: several in a criss-cross history.

    The first one is that of `merge_base`. Source: "merge-base --all" of Git, by generations instead of dates.
    """
    sides: dict[CommitId, int] = {}
    pending: list[tuple[int, str]] = []
    found: list[Commit] = []
    fresh = 0  # of those that wait, how many are not known to be below a common ancestor

    def reach(id: CommitId, side: int) -> None:
        nonlocal fresh
        before = sides.get(id, 0)
        sides[id] = before | side
        if not before:
            heapq.heappush(pending, (-commits.get(id).generation, _descending(id)))
        fresh += int(sides[id] < _BELOW) - int(0 < before < _BELOW)

    reach(left, 1)
    reach(right, 2)
    while pending and fresh:
        _, key = heapq.heappop(pending)
        id = CommitId(_descending(key))
        side = sides[id]
        fresh -= int(side < _BELOW)
        if side == 3:
            found.append(commits.get(id))
            side |= _BELOW
        for parent in commits.get(id).parents:
            reach(parent, side)
    return found


_BELOW = 4
_FLIP = str.maketrans("0123456789abcdef", "fedcba9876543210")


def _descending(id: str) -> str:
    """A key that sorts ids in falling order; its own inverse."""
    return id.translate(_FLIP)
