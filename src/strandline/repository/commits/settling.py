"""How the changes of two sides become one tree: by path, by what a person decided, and by what tables say of theirs.

A merge depends on three trees and on the decisions. So whatever is decided beside the trees is made a part of them
first: below a path for which a side was taken, the base becomes the destination and the source becomes that side; a
record of a table that both sides changed becomes, in the source, the record that holds both. What is left is decided
path by path (`tree.merge`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal, Protocol

import numpy as np
import pyarrow as pa

from strandline.core.iceberg_files import POINTER
from strandline.errors import UsageError
from strandline.ids import check_prefix, prefix_end
from strandline.tables import merging as tables
from strandline.tree.apply import apply
from strandline.tree.diff import Difference, diff, diff_of
from strandline.tree.merge import Merged, Strategies, Strategy, merge, strategy_for
from strandline.tree.rows import Changes, Entry, entries_of, rows_from_entries
from strandline.tree.store import Tree, TreeStore

Others = Callable[[], Sequence[tuple[Tree, Tree]]]
Pair = tuple[Entry | None, Entry | None]
"""What an object was and what it is."""
Side = Literal["source", "dest"]
SIDES = ("source", "dest")
Appended = Literal["fail", "keep"]
Word = Strategy | Literal["serializable"]
MergeStrategy = Word | Mapping[str, Word] | None
SERIALIZABLE = "serializable"
"""Of Iceberg tables: rows that the branch added where the source changed some are a conflict, too."""
STRATEGIES = ("source-wins", "dest-wins", SERIALIZABLE)


@dataclass(frozen=True, slots=True)
class Decisions:
    """What the caller of a merge decided.

    Attributes:
        strategies: the side of conflicts, by prefix; the longest counts, and None leaves them.
        serializable: prefixes below which Iceberg tables are joined only as if one side had come after the other.
        take: the side of everything at a path and below it, conflict or not; the longest path counts.
        appended: what to do where one side replaced the rows of a partition and the other one added some: a conflict,
            or keep both.
    """

    strategies: Strategies = field(default_factory=dict)
    take: Mapping[str, Side] = field(default_factory=dict)
    appended: Appended = "fail"
    serializable: frozenset[str] = frozenset()

    def is_serializable(self, path: str) -> bool:
        """Whether the table at a path is joined only as if one side had come after the other."""
        best = max((prefix for prefix in self.strategies if path.startswith(prefix)), key=len, default=None)
        return best in self.serializable


def check_decisions(strategy: MergeStrategy, take: Mapping[str, Side] | None, appended: Appended = "fail") -> Decisions:
    """The decisions of a caller; refuses words that mean nothing.

    Raises:
        UsageError: a word is not a strategy or a side, or a path cannot be one.
    """
    words = {} if strategy is None else {"": strategy} if isinstance(strategy, str) else dict(strategy)
    for prefix, word in words.items():
        if word not in STRATEGIES:
            raise UsageError(
                f"{word!r} (for prefix {prefix!r}) is not a merge strategy.", next=f"Use {' or '.join(STRATEGIES)}."
            )
    for path, side in (take or {}).items():
        check_prefix(path)
        if side not in SIDES:
            raise UsageError(f"{side!r} (for {path!r}) is not a side of a merge.", next=f"Use {' or '.join(SIDES)}.")
    if appended not in ("fail", "keep"):
        raise UsageError(f"{appended!r} is not a choice for rows that were appended.", next="Use fail or keep.")
    serializable = frozenset(prefix for prefix, word in words.items() if word == SERIALIZABLE)
    strategies: dict[str, Strategy | None] = dict.fromkeys(serializable)
    strategies |= {prefix: word for prefix, word in words.items() if word != "serializable"}
    return Decisions(strategies, dict(take or {}), appended, serializable)


@dataclass(frozen=True, slots=True)
class Three:
    """The trees of a merge. Of a revert the base is what is undone, and the source what was before.

    Attributes:
        others: of a criss-cross history, the other common ancestors, each with what it and the first one come from.
    """

    base: Tree
    source: Tree
    dest: Tree
    others: Others = field(default=lambda: ())


@dataclass(frozen=True, slots=True)
class Sides:
    """A table of Iceberg's in the trees of a merge.

    Attributes:
        others: as for `Three`.
        is_serializable: joined only as if one side had come after the other.
    """

    base: Entry | None
    source: Entry
    dest: Entry
    others: tuple[tuple[Entry | None, Entry | None], ...] = ()
    is_serializable: bool = False


Join = Callable[[str, Sides], Entry]


@dataclass(frozen=True, slots=True)
class Settled:
    """The merged tree, or why there is none.

    Attributes:
        conflicts: by path, which can be taken, what both sides did.
        folders: those of the conflicts that are tables or partitions, not objects.
    """

    tree: Tree
    conflicts: dict[str, str]
    folders: frozenset[str]


class TreeWorkers(Protocol):
    """Compares and merges trees: in this process, or on Spark."""

    def special(self, base: Tree, side: Tree) -> Iterable[Difference]:
        """What a side did to records and marks of tables."""

    def merge(self, base: Tree, source: Tree, dest: Tree, strategies: Strategies) -> Merged:
        """See `tree.merge`."""


class WorkersHere:
    """One range after the other in this process."""

    def __init__(self, trees: TreeStore) -> None:
        self._trees = trees

    def special(self, base: Tree, side: Tree) -> Iterable[Difference]:
        return diff_of(self._trees, base, side, tables.special)

    def merge(self, base: Tree, source: Tree, dest: Tree, strategies: Strategies) -> Merged:
        return merge(self._trees, base, source, dest, strategies)


class Settling:
    """Makes one tree of three.

    Args:
        read: the bytes of an object.
        make: stores bytes as a new object for a path.
        join: makes one Iceberg table of what two sides made of one.
        workers: compare and merge trees.
    """

    def __init__(
        self,
        trees: TreeStore,
        read: Callable[[Entry], bytes],
        make: Callable[[str, bytes], Entry],
        join: Join,
        workers: TreeWorkers,
    ) -> None:
        self._trees = trees
        self._workers = workers
        self._read = read
        self._make = make
        self._join = join
        self._joined: dict[tuple[str, str, str, bool], Entry | tables.Clash] = {}
        self._made: dict[tuple[str, bytes], Entry] = {}

    def settle(self, three: Three, decisions: Decisions) -> Settled:
        """Bring what changed between base and source into dest."""
        self._refuse_nowhere(three, {path: list(_ranges(path)) for path in decisions.take}, "A side is to be taken of")
        below = {prefix: [(prefix, prefix_end(prefix) or "")] for prefix in decisions.serializable}
        self._refuse_nowhere(three, below, "Tables are to be merged as serializable below")
        take = dict(decisions.take)
        decided = self._decided(three, take)
        said = _Tables(self, decided, decisions)
        while said.sides:  # what a side was taken of clashes no more, so this ends
            take |= said.sides
            decided = self._decided(three, take)
            said = _Tables(self, decided, decisions)
        if said.records:
            decided = self._with_records(decided, said.records)
        merged = self._workers.merge(decided.base, decided.source, decided.dest, decisions.strategies)
        conflicts = dict(said.clashes)
        conflicts |= {path: why for path, why in merged.conflicts.items() if not said.covers(path)}
        return Settled(merged.tree, dict(sorted(conflicts.items())), frozenset(said.clashes))

    def _refuse_nowhere(self, three: Three, asked: Mapping[str, Sequence[tuple[str, str]]], what: str) -> None:
        """Refuse a path at which no side has anything: what was misspelled would decide nothing without a word."""
        trees = (three.source, three.dest, three.base)
        for path, ranges in asked.items():
            is_there = any(self._trees.holds(tree, start, end) for tree in trees for start, end in ranges)
            if path and not is_there:
                raise UsageError(
                    f"{what} {path!r}, and no side of the merge has anything there.",
                    next="Check the path: it is an object, a folder, a table or a partition, as a conflict names it.",
                )

    def _decided(self, three: Three, take: Mapping[str, Side]) -> Three:
        base, source = three.base, three.source
        for paths in _levels(take):
            ours: list[Changes] = []
            theirs: list[Changes] = []
            # ranges of one level do not overlap, so all of them are one change of each tree
            for start, end, path in sorted((start, end, one) for one in paths for start, end in _ranges(one)):
                wanted = three.source if take[path] == "source" else three.dest
                ours += self._difference(base, three.dest, start, end)
                theirs += self._difference(source, wanted, start, end)
            base, source = self._applied(base, ours), self._applied(source, theirs)
        return Three(base, source, three.dest, three.others)

    def _difference(self, tree: Tree, other: Tree, start: str, end: str) -> list[Changes]:
        """What makes a tree another one in a range of paths; at the empty end, of all paths from there on."""
        return [part.as_changes() for part in diff(self._trees, tree, other, start, end or None)]

    def _with_records(self, three: Three, records: Mapping[str, Entry]) -> Three:
        ours = [self._difference(three.base, three.dest, path, path + "\0") for path in sorted(records, key=str.encode)]
        base = self._applied(three.base, chain.from_iterable(ours))
        return Three(base, self._with_entries(three.source, records), three.dest, three.others)

    def _with_entries(self, tree: Tree, entries: Mapping[str, Entry]) -> Tree:
        paths = sorted(entries, key=str.encode)
        rows = rows_from_entries([path.encode() for path in paths], [entries[path] for path in paths])
        return self._applied(tree, [Changes(rows, np.zeros(len(paths), np.bool_))])

    def _applied(self, tree: Tree, changes: Iterable[Changes]) -> Tree:
        held = list(changes)
        return apply(self._trees, tree, held).tree if held else tree

    # --- what tables say ----------------------------------------------------------------------------------------------

    def special(self, base: Tree, side: Tree) -> dict[str, Pair]:
        """The records and marks of tables that a side changed, with what they were and what they are."""
        found: dict[str, Pair] = {}
        for part in self._workers.special(base, side):
            before, after = _entries(part.left), _entries(part.right)
            found |= dict(zip(part.paths.to_pylist(), zip(before, after, strict=True), strict=True))
        return found

    def rows_below(self, base: Tree, side: Tree, folder: str) -> bool:
        """Whether a side added or changed rows of a table or partition."""
        for part in diff(self._trees, base, side, folder + "/", folder + "0"):
            added = part.paths.filter(part.right.column("path").is_valid().combine_chunks()).to_pylist()
            if any(tables.are_rows(path, folder) for path in added):
                return True
        return False

    def extends(self, before: Entry, after: Entry) -> bool:
        """Whether the record that a table has now reads what was written by the one before."""
        return tables.extends(self._read(before), self._read(after))

    def merged_record(self, path: str, base: Entry | None, source: Entry, dest: Entry) -> Entry:
        """Raises `tables.merging.Clash` if the two cannot become one."""
        made = tables.merged_record(
            path, None if base is None else self._read(base), self._read(source), self._read(dest)
        )
        if (path, made) not in self._made:  # a merge that is computed anew makes the same object
            self._made[path, made] = self._make(path, made)
        return self._made[path, made]

    def joined(
        self, path: str, base: Entry | None, source: Entry, dest: Entry, others: Others, *, is_serializable: bool
    ) -> Entry:
        """An Iceberg table with the changes of both sides; raises `tables.merging.Clash` if there can be none."""
        key = (path, source.physical_address, dest.physical_address, is_serializable)
        if key not in self._joined:  # a merge that is computed anew makes the same files
            more = tuple((self._trees.find(one, path), self._trees.find(before, path)) for one, before in others())
            try:
                self._joined[key] = self._join(path, Sides(base, source, dest, more, is_serializable))
            except tables.Clash as clash:
                self._joined[key] = clash
        found = self._joined[key]
        if isinstance(found, tables.Clash):
            raise found
        return found


class _Tables:
    """What tables say of the changes of two sides.

    Attributes:
        records: by path, what holds both sides' changes of a record.
        sides: by path, the side that a strategy takes where changes of rows exclude each other.
        clashes: by path, what excludes what, where no strategy decides.
    """

    def __init__(self, settling: Settling, three: Three, decisions: Decisions) -> None:
        self.records: dict[str, Entry] = {}
        self.sides: dict[str, Side] = {}
        self.clashes: dict[str, str] = {}
        self._settling, self._three, self._decisions = settling, three, decisions
        if three.base.id in (three.source.id, three.dest.id):
            return  # one side changed nothing
        self._theirs = settling.special(three.base, three.source)
        self._ours = settling.special(three.base, three.dest)
        for path in sorted({*self._theirs, *self._ours}):
            self._look_at(path)

    def covers(self, path: str) -> bool:
        """Whether a conflict of a path is a part of one of a table or partition."""
        return any(path.startswith(folder + "/") for folder in self.clashes)

    def _look_at(self, path: str) -> None:
        theirs, ours = self._theirs.get(path), self._ours.get(path)
        if path.endswith("/" + POINTER):
            self._look_at_iceberg(path, theirs, ours)
            return
        folder = tables.folder_of(path)
        if folder is not None:
            self._look_at_rows(folder, theirs, ours)
            return
        table = tables.table_of(path)
        assert table is not None
        if theirs is not None and ours is not None and theirs[1] is not None and ours[1] is not None:
            if theirs[1].identity != ours[1].identity:
                self._look_at_record(table, path, ours[0], theirs[1], ours[1])
            return
        for mine, other, which in ((theirs, self._three.dest, "source"), (ours, self._three.source, "branch")):
            if mine is None or mine[0] is None:
                continue
            is_gone = mine[1] is None
            is_other = mine[1] is not None and not self._settling.extends(mine[0], mine[1])
            if (is_gone or is_other) and self._settling.rows_below(self._three.base, other, table):
                done = "removed the table" if is_gone else "changed how its rows are read"
                self._excluded(table, f"the {which} {done}, and the other side wrote to it")

    def _look_at_iceberg(self, path: str, theirs: Pair | None, ours: Pair | None) -> None:
        """A table that one side dropped is a conflict of one object, like any other."""
        if theirs is None or ours is None or theirs[1] is None or ours[1] is None:
            return
        if theirs[1].identity == ours[1].identity:
            return
        try:
            self.records[path] = self._settling.joined(
                path,
                ours[0],
                theirs[1],
                ours[1],
                self._three.others,
                is_serializable=self._decisions.is_serializable(path),
            )
        except tables.Clash as clash:
            self._excluded(path.removesuffix("/" + POINTER), str(clash))

    def _look_at_record(self, table: str, path: str, base: Entry | None, source: Entry, dest: Entry) -> None:
        try:
            self.records[path] = self._settling.merged_record(path, base, source, dest)
        except tables.Clash as clash:
            self._excluded(table, str(clash))

    def _look_at_rows(self, folder: str, source: Pair | None, dest: Pair | None) -> None:
        """A mark that changed in any way, also by a revert that takes it back, tells of rows that were replaced."""
        three, settling = self._three, self._settling
        if source is not None and dest is not None:
            if _identity(source[1]) != _identity(dest[1]):
                self._excluded(folder, "both sides replaced its rows")
            return
        if self._decisions.appended == "keep":
            return
        if source is not None and settling.rows_below(three.base, three.dest, folder):
            self._excluded(folder, "the source replaced its rows, and the branch added some")
        if dest is not None and settling.rows_below(three.base, three.source, folder):
            self._excluded(folder, "the branch replaced its rows, and the source added some")

    def _excluded(self, folder: str, why: str) -> None:
        strategy = strategy_for(folder + "/", self._decisions.strategies)
        if strategy is None:
            self.clashes[folder] = why
        else:
            self.sides[folder] = "source" if strategy == "source-wins" else "dest"


def _identity(entry: Entry | None) -> object:
    return None if entry is None else entry.identity


def _entries(rows: pa.Table) -> list[Entry | None]:
    return [None if path is None else entry for path, entry in entries_of(rows)]


def _levels(paths: Iterable[str]) -> list[list[str]]:
    """Paths by how many of the others they lie below: what is decided further down counts more."""
    levels: dict[int, list[str]] = defaultdict(list)
    above: list[tuple[str, str]] = []
    for folder, path in sorted((path if not path or path.endswith("/") else path + "/", path) for path in paths):
        while above and not folder.startswith(above[-1][0]):
            above.pop()
        levels[len(above)].append(path)
        above.append((folder, path))
    return [levels[depth] for depth in sorted(levels)]


def _ranges(path: str) -> Iterator[tuple[str, str]]:
    """The paths that a decision is about: the path itself and what is below it; with a "/" at the end only that."""
    if not path or path.endswith("/"):
        yield path, prefix_end(path) or ""
        return
    yield path, path + "\0"
    yield path + "/", prefix_end(path + "/") or ""
