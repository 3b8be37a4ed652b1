"""What the objects of a repository take: by prefix, by branch, by one branch alone, and by kept history alone.

Bytes that several paths or commits share count once in each row of the result. Only bytes in the repository's own
storage namespace count, and only what was committed.

Ranges are read by whichever reads them fast, this process or Spark, into two small tables: one by holders, one by
prefix. `rows_of` makes the result of them, so that both say the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from strandline.branch.rules.record import BranchRecord, TagRecord
from strandline.core.promises import expired
from strandline.core.repository_core import RepositoryCore
from strandline.errors import UsageError
from strandline.ids import CommitId
from strandline.progress import Progress
from strandline.repository.names.branches import list_names
from strandline.results.rows import Results
from strandline.tree.files import TreeFiles
from strandline.tree.range_file import RangeInfo
from strandline.tree.rows import column
from strandline.tree.store import EMPTY, TreeStore

HISTORY = ""
"""The holder of what only commits need that are the head of nothing."""
SEPARATOR = ","
MAX_DEPTH = 100
CACHE_MAX_BYTES = 32 << 20


class StorageRow(msgspec.Struct, frozen=True):
    """What one part of a repository takes.

    Attributes:
        part: "all"; "ref", what a branch or a tag refers to at its head; "ref alone", what no other one does; "history
            alone", what only kept commits refer to that are the head of nothing; or "prefix", at any commit.
        name: of the ref, or the prefix.
        objects: distinct files.
    """

    part: str
    name: str
    objects: int
    bytes: int


class StorageUse(Results[StorageRow]):
    """What the parts of a repository take, computed once."""

    _titles = ("part", "name", "objects", "bytes")

    def __init__(self, rows: Sequence[StorageRow]) -> None:
        self._rows = rows

    def __iter__(self) -> Iterator[StorageRow]:
        return iter(self._rows)

    def to_arrow(self) -> pa.Table:
        fields = [("part", pa.string()), ("name", pa.string()), ("objects", pa.int64()), ("bytes", pa.int64())]
        return pa.Table.from_pylist([msgspec.structs.asdict(row) for row in self._rows], pa.schema(fields))

    def _cells(self, row: StorageRow) -> tuple[object, ...]:
        return row.part, row.name, row.objects, row.bytes


@dataclass(frozen=True, slots=True)
class Holdings:
    """Which ranges are held by what.

    Attributes:
        ranges: each range file once, with the number of its group.
        groups: for each group, the refs, or `HISTORY`, that hold its ranges.
    """

    ranges: list[tuple[RangeInfo, int]]
    groups: list[frozenset[str]]


def storage_use(core: RepositoryCore, depth: int, progress: Progress) -> StorageUse:
    """Count in this process."""
    check_depth(depth)
    held = holdings(core, progress)
    trees = TreeStore(core.stores.trees.blobs, CACHE_MAX_BYTES)
    objects = [pa.table({"address": [], "size": [], "group": []}, _OBJECTS)]
    prefixes = [pa.table({"prefix": [], "address": [], "size": []}, _PREFIXES)]
    for done, (info, group) in enumerate(held.ranges):
        progress("counting what ranges refer to", done, len(held.ranges))
        rows = trees.rows(info)
        addresses, sizes = column(rows, "physical_address"), column(rows, "size")
        own = pc.invert(pc.match_substring(addresses, "://"))
        addresses, sizes = addresses.filter(own), sizes.filter(own)
        objects.append(pa.table([addresses, sizes, pa.repeat(pa.scalar(group, pa.int64()), len(addresses))], _OBJECTS))
        prefixes.append(pa.table([prefix_of(column(rows, "path").filter(own), depth), addresses, sizes], _PREFIXES))
    found = pa.concat_tables(objects).group_by(["address", "group"]).aggregate([("size", "max")])
    found = found.sort_by([("address", "ascending"), ("group", "ascending")])
    by_address = found.group_by("address", use_threads=False).aggregate([("group", "list"), ("size_max", "max")])
    groups = pc.binary_join(by_address["group_list"].combine_chunks().cast(pa.list_(pa.string())), SEPARATOR)
    holders = pa.table({"groups": groups, "size": by_address["size_max_max"]}).group_by("groups")
    below = pa.concat_tables(prefixes).group_by(["prefix", "address"]).aggregate([("size", "max")]).group_by("prefix")
    return rows_of(
        held,
        _summed(holders.aggregate([("size", "count"), ("size", "sum")]), "groups", "size"),
        _summed(below.aggregate([("size_max", "count"), ("size_max", "sum")]), "prefix", "size_max"),
    )


_OBJECTS = pa.schema([("address", pa.string()), ("size", pa.int64()), ("group", pa.int64())])
_PREFIXES = pa.schema([("prefix", pa.string()), ("address", pa.string()), ("size", pa.int64())])


def _summed(table: pa.Table, key: str, of: str) -> dict[str, tuple[int, int]]:
    keys, counts, sums = (table[name].to_pylist() for name in (key, f"{of}_count", f"{of}_sum"))
    return dict(zip(keys, zip(counts, sums, strict=True), strict=True))


def check_depth(depth: int) -> None:
    if not 0 <= depth <= MAX_DEPTH:
        raise UsageError(
            f"A depth of {depth} is not possible.", next=f"Give how many folders a prefix has: 0 to {MAX_DEPTH}."
        )


def prefix_pattern(depth: int) -> str:
    """A regular expression for the first folders of a path, which RE2 and Java read alike."""
    return f"(?s)^((?:[^/]*/){{0,{depth}}}).*\\z"


def prefix_of(paths: pa.StringArray, depth: int) -> pa.StringArray:
    return pc.replace_substring_regex(paths, prefix_pattern(depth), r"\1")


def holdings(core: RepositoryCore, progress: Progress) -> Holdings:
    """Which ranges belong to which refs, and to which only history; metadata alone is read."""
    trees = TreeStore(core.stores.trees.blobs, CACHE_MAX_BYTES)
    heads: dict[str, CommitId] = {}
    for kind in ("branch", "tag"):
        for name, record in list_names(core, kind, "", "", None):
            if isinstance(record, BranchRecord):
                heads[name] = record.head
            elif isinstance(record, TagRecord):
                heads[name] = record.commit
    holders: dict[str, set[str]] = defaultdict(set)
    infos: dict[str, RangeInfo] = {}
    for done, (name, head) in enumerate(heads.items()):
        progress("reading trees of refs", done, len(heads))
        found = TreeFiles(trees)
        found.add(core.commits.tree(head))
        infos |= found.ranges
        for address in found.ranges:
            holders[address].add(name)
    gone = expired(core.stores)
    history = TreeFiles(trees)
    waiting, seen = list(heads.values()), set(heads.values())
    while waiting:
        commit = core.commits.get(waiting.pop())
        progress("reading trees of commits", len(seen) - len(waiting), 0)
        if commit.tree_ref != EMPTY.ref and (commit.id not in gone or gone[commit.id].is_only_seen):
            history.add(trees.tree(commit.tree_ref))
        fresh = set(commit.parents) - seen
        seen |= fresh
        waiting += fresh
    infos |= history.ranges
    for address in history.ranges.keys() - holders.keys():
        holders[address].add(HISTORY)
    numbers: dict[frozenset[str], int] = {}
    ranges = [(infos[at], numbers.setdefault(frozenset(held), len(numbers))) for at, held in holders.items()]
    return Holdings(ranges, list(numbers))


def rows_of(
    held: Holdings, by_groups: Mapping[str, tuple[int, int]], by_prefix: Mapping[str, tuple[int, int]]
) -> StorageUse:
    """The result.

    Args:
        by_groups: objects and bytes by the numbers of the groups whose ranges have them, joined in order.
        by_prefix: objects and bytes by prefix.
    """
    total: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    total["all", ""] = [0, 0]

    def count(part: str, name: str, objects: int, size: int) -> None:
        total[part, name][0] += objects
        total[part, name][1] += size

    for numbers, (objects, size) in by_groups.items():
        holders = frozenset().union(*(held.groups[int(number)] for number in numbers.split(SEPARATOR)))
        count("all", "", objects, size)
        for name in holders - {HISTORY}:
            count("ref", name, objects, size)
        if len(refs := holders - {HISTORY}) < 2:
            count(*(("ref alone", next(iter(refs))) if refs else ("history alone", "")), objects, size)
    for prefix, (objects, size) in by_prefix.items():
        count("prefix", prefix, objects, size)
    order = ("all", "history alone", "ref", "ref alone", "prefix")
    keys = sorted(total, key=lambda key: (order.index(key[0]), key[1]))
    return StorageUse([StorageRow(*key, *total[key]) for key in keys])
