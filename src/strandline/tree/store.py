"""Trees in an object store: loads and writes ranges, nodes and metaranges, and keeps the ones used last in memory.

A file is named by its content id and a suffix that no other writing shares. So nobody ever reuses a file merely because
it exists: it may be garbage that somebody is about to delete.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.blob.store import BlobNotFound, BlobStore
from strandline.errors import Corrupted, ObjectMissing
from strandline.ids import MetaRangeId, new_id
from strandline.tree.cache import ByteBoundedCache, CacheBudget
from strandline.tree.chunking import raw_bytes
from strandline.tree.node_file import (
    NodeInfo,
    Part,
    levelled_id,
    node_id,
    read_metarange,
    read_node,
    write_parts,
)
from strandline.tree.range_file import (
    RangeInfo,
    metarange_id,
    range_id,
    read_paths,
    read_rows,
    write_ranges,
    write_rows,
)
from strandline.tree.rows import SCHEMA, Entry, column

RANGES_FOLDER = "_strandline/ranges"
NODES_FOLDER = "_strandline/nodes"
METARANGES_FOLDER = "_strandline/metaranges"
CACHE_MAX_BYTES = 256 << 20
DIFFS_MAX_BYTES = 32 << 20
PART_BYTES = 400
"""What a part of an opened metarange or node takes in memory, roughly."""

TreeRef = str
"""Names a written metarange: content id, '-', suffix. Equal content in two places has two refs and one id."""


class NotInMemory(Exception):
    """A file would have to be read, and the calling thread has forbidden that."""


class FromMemory:
    """While it is entered, loads of the calling thread raise `NotInMemory`: for event loops, which must not wait."""

    __slots__ = ()

    def __enter__(self) -> None:
        _this_thread.reads_no_files = True

    def __exit__(self, *_: object) -> None:
        _this_thread.reads_no_files = False


_this_thread = threading.local()


class Tree:
    """An opened metarange: all paths of a commit, as the sorted list of its ranges, or of nodes above them.

    Attributes:
        parts: all of one height, in order.
        max_paths: the last path of each.
    """

    __slots__ = ("id", "max_paths", "parts", "ref")

    def __init__(self, ref: TreeRef, parts: tuple[Part, ...]) -> None:
        self.ref = ref
        self.id = id_of(ref)
        self.parts = parts
        self.max_paths = [part.max_path for part in parts]

    @property
    def count(self) -> int:
        return sum(part.count for part in self.parts)

    @property
    def height(self) -> int:
        """How many levels of nodes there are."""
        return self.parts[0].height if self.parts else 0

    def is_last(self, part: Part) -> bool:
        """Whether nothing comes after a part of the tree: only then may more be appended to it."""
        return part.max_path == self.max_paths[-1]


def id_of(ref: TreeRef) -> MetaRangeId:
    return MetaRangeId(ref.partition("-")[0])


EMPTY = Tree(f"{metarange_id(())}-empty", ())
"""The tree without paths; it has no file."""


class OpenRange:
    """The rows of a range in memory."""

    __slots__ = ("_columns", "_data", "_offsets", "_paths", "rows")

    def __init__(self, rows: pa.Table) -> None:
        self.rows = rows
        self._paths = column(rows, "path")
        _, offsets, data = self._paths.buffers()
        first = self._paths.offset
        self._offsets = memoryview(offsets or b"\0\0\0\0").cast("i")[first : first + len(self._paths) + 1]
        self._data = memoryview(data or b"").cast("B")  # Arrow calls its bytes signed, and then none equals 0x80
        self._columns = [
            column(rows, name).cast(pa.int64()) if name == "modified_at" else column(rows, name)
            for name in SCHEMA.names[1:]
            if name != "etag" or column(rows, name).null_count < rows.num_rows
        ]

    def find(self, path: str) -> Entry | None:
        # in the buffers themselves: a call of Arrow takes longer than all the steps of a search
        key, offsets, data = path.encode(), self._offsets, self._data
        at, end = 0, len(self._paths)
        while at < end:
            middle = (at + end) // 2
            if data[offsets[middle] : offsets[middle + 1]].tobytes() < key:
                at = middle + 1
            else:
                end = middle
        if at == len(self._paths) or data[offsets[at] : offsets[at + 1]] != key:
            return None
        return Entry(*[values[at].as_py() for values in self._columns])

    def between(self, start: str, end: str | None) -> pa.Table:
        """Rows with `start <= path < end`."""
        first = pc.search_sorted(self._paths, start).as_py() if start else 0
        last = len(self._paths) if end is None else pc.search_sorted(self._paths, end).as_py()
        return self.rows.slice(first, max(0, last - first))


class TreeStore:
    """The trees of one repository. Safe to share between threads.

    Args:
        blobs: the repository's storage namespace.
        cache_max_bytes: how much of opened ranges and metaranges stays in memory.
        budget: shared with other repositories: what all of them keep together.
        has_levels: whether large trees are written with nodes, which older versions refuse.
    """

    def __init__(
        self,
        blobs: BlobStore,
        cache_max_bytes: int = CACHE_MAX_BYTES,
        budget: CacheBudget | None = None,
        *,
        has_levels: bool = True,
    ) -> None:
        self.blobs = blobs
        self.has_levels = has_levels
        # the names of files end in a part that no other file shares, whosever it is
        self._opened: ByteBoundedCache[OpenRange] = ByteBoundedCache(cache_max_bytes, budget, "range")
        self._trees: ByteBoundedCache[Tree] = ByteBoundedCache(cache_max_bytes, budget, "tree")
        self.diffs: ByteBoundedCache[Any] = ByteBoundedCache(DIFFS_MAX_BYTES, budget, "difference")
        """Differences between trees, for `tree.diff.cached_diff`: trees never change, so neither do these."""

    def tree(self, ref: TreeRef) -> Tree:
        """Open a metarange.

        Raises:
            ObjectMissing: its file is gone.
            Corrupted, NewerFormat: its file cannot be read.
        """
        if ref == EMPTY.ref:
            return EMPTY
        tree = self._trees.get(ref)
        if tree is None:
            data = self._load(f"{METARANGES_FOLDER}/{ref}.parquet", f"metarange {ref}")
            tree = Tree(ref, read_metarange(data, id_of(ref)))
            self._trees.put(ref, tree, PART_BYTES * (1 + len(tree.parts)))
        return tree

    def open_node(self, info: NodeInfo) -> Tree:
        """What a node lists, as a tree of its own; raises like `tree`."""
        node = self._trees.get(info.address)
        if node is None:
            parts = read_node(self._load(info.address, f"node {info.id}"), info)
            if not parts or (len(parts), parts[0].min_path, parts[-1].max_path) != (
                info.children,
                info.min_path,
                info.max_path,
            ):
                raise Corrupted(f"Node {info.id} lists other parts than the node above it says.")
            node = Tree(info.address, parts)
            self._trees.put(info.address, node, PART_BYTES * (1 + len(parts)))
        return node

    def parts_of(self, info: NodeInfo) -> tuple[Part, ...]:
        return self.open_node(info).parts

    def first_range(self, tree: Tree, path: str) -> RangeInfo | None:
        """The first range that can hold a path or something after it; None if all of the tree is before it."""
        while True:
            at = bisect_left(tree.max_paths, path)
            if at == len(tree.parts):
                return None
            part = tree.parts[at]
            if not isinstance(part, NodeInfo):
                return part
            tree = self.open_node(part)

    def ranges(self, tree: Tree, start: str = "") -> Iterator[RangeInfo]:
        """The ranges from the first one on that can hold a path or something after it, in order; nodes as needed."""
        for at in range(bisect_left(tree.max_paths, start), len(tree.parts)):
            part = tree.parts[at]
            if isinstance(part, NodeInfo):
                yield from self.ranges(self.open_node(part), start)
            else:
                yield part

    def are_same(self, one: Tree, other: Tree) -> bool:
        """Whether two trees have the same ranges: one may be flat that is levelled now, and so has another id."""
        if one.id == other.id or one.height == other.height or one.count != other.count:
            return one.id == other.id
        sides = self.ranges(one), self.ranges(other)
        return all(a is not None and b is not None and a.id == b.id for a, b in zip_longest(*sides))

    def open_range(self, info: RangeInfo) -> OpenRange:
        """The rows of a range; raises like `tree`."""
        opened = self._opened.get(info.address)
        if opened is None:
            rows = read_rows(self._load(info.address, f"range {info.id}"), info.id)
            if rows.num_rows != info.count:
                raise Corrupted(f"Range {info.id} has {rows.num_rows} rows, its metarange says {info.count}.")
            opened = OpenRange(rows)
            self._opened.put(info.address, opened, rows.nbytes)
        return opened

    @property
    def readers(self) -> int:
        """How many threads may read ranges at once for the calling one."""
        return 1 if getattr(_this_thread, "reads_no_files", False) else self.blobs.readers

    @property
    def ahead_max_bytes(self) -> int:
        """How much may be read before it is needed."""
        return self._opened.max_bytes // 4

    def is_in_memory(self, info: RangeInfo) -> bool:
        """Whether the rows of a range need not be read, if they are wanted soon."""
        return self._opened.get(info.address) is not None

    def paths(self, info: RangeInfo) -> pa.StringArray:
        """The paths of a range, for a first look: of a range that is not in memory nothing else is read."""
        opened = self._opened.get(info.address)
        if opened is not None:
            return column(opened.rows, "path")
        return read_paths(self._load(info.address, f"range {info.id}"), info.id)

    def holds(self, tree: Tree, start: str, end: str) -> bool:
        """Whether a tree has a path with `start <= path < end`; at an empty end, one from there on."""
        info = self.first_range(tree, start)
        if info is None:
            return False
        if info.min_path >= start:
            return not end or info.min_path < end
        paths = self.paths(info)
        found = paths[pc.search_sorted(paths, start).as_py()].as_py()  # there is one: the range ends at it or after it
        return not end or found < end

    def rows(self, info: RangeInfo) -> pa.Table:
        return self.open_range(info).rows

    def _load(self, key: str, what: str) -> bytes:
        if getattr(_this_thread, "reads_no_files", False):
            raise NotInMemory
        try:
            return self.blobs.get(key)
        except BlobNotFound:
            raise ObjectMissing(
                f"The file of {what} is not in {self.blobs.url}.",
                next="Restore it from a backup of the object store, or use a commit that does not need it.",
            ) from None

    def write_range(self, rows: pa.Table, known: Mapping[str, Part]) -> RangeInfo:
        """Write a range, unless it is one of `known`, the ranges of the tree that the new one is made from."""
        info, content = self.new_range(rows, known)
        if content is not None:
            self.blobs.put(info.address, content, "create")
        return info

    def new_range(self, rows: pa.Table, known: Mapping[str, Part]) -> tuple[RangeInfo, bytes | None]:
        """A range and its file, which is still to be written; none if it is one of `known`."""
        rows = rows.combine_chunks()
        if rows.get_total_buffer_size() > 2 * rows.nbytes:
            rows = rows.take(pa.array(np.arange(rows.num_rows)))  # a small slice would keep all that it was cut from
        content_id = range_id(rows)
        held = known.get(content_id)
        if isinstance(held, RangeInfo):
            return held, None
        paths = column(rows, "path")
        info = RangeInfo(
            id=content_id,
            address=f"{RANGES_FOLDER}/{content_id}-{new_id()}.parquet",
            min_path=paths[0].as_py(),
            max_path=paths[len(paths) - 1].as_py(),
            count=len(paths),
            raw_bytes=raw_bytes(rows),
        )
        self._opened.put(info.address, OpenRange(rows), rows.nbytes)
        return info, write_rows(rows)

    def new_node(self, parts: Sequence[Part], known: Mapping[str, Part]) -> tuple[NodeInfo, bytes | None]:
        """A node and its file, as `new_range`."""
        id = node_id(parts)
        held = known.get(id)
        if isinstance(held, NodeInfo):
            return held, None
        info = NodeInfo(
            id=id,
            address=f"{NODES_FOLDER}/{id}-{new_id()}.parquet",
            min_path=parts[0].min_path,
            max_path=parts[-1].max_path,
            count=sum(part.count for part in parts),
            raw_bytes=sum(part.raw_bytes for part in parts),
            height=parts[0].height + 1,
            children=len(parts),
        )
        self._trees.put(info.address, Tree(info.address, tuple(parts)), PART_BYTES * (1 + len(parts)))
        return info, write_parts(parts)

    def write_tree(self, parts: tuple[Part, ...], files: Sequence[tuple[str, bytes]] = ()) -> Tree:
        """Write a metarange, and what of its nodes and ranges is not written yet; all of it is durable in the end.

        Nothing refers to any of the files before the caller publishes the tree, so their order does not matter: to a
        remote store they go side by side.

        Args:
            files: keys and contents of the nodes and ranges.
        """
        if not parts:
            return EMPTY
        if parts[0].height:
            ref, data = f"{levelled_id(parts)}-{new_id()}", write_parts(parts)
        else:
            ranges = cast("tuple[RangeInfo, ...]", parts)
            ref, data = f"{metarange_id(ranges)}-{new_id()}", write_ranges(ranges)
        self.blobs.put_new([*files, (f"{METARANGES_FOLDER}/{ref}.parquet", data)])
        tree = Tree(ref, parts)
        self._trees.put(ref, tree, PART_BYTES * (1 + len(parts)))
        return tree

    def find(self, tree: Tree, path: str) -> Entry | None:
        """The entry of a path, or None."""
        info = self.first_range(tree, path)
        return None if info is None or info.min_path > path else self.open_range(info).find(path)

    def scan(self, tree: Tree, start: str = "", end: str | None = None) -> Iterator[pa.Table]:
        """The rows with `start <= path < end`, in order, range by range."""
        for info in self.ranges(tree, start):
            if end is not None and info.min_path >= end:
                return
            inside = info.min_path >= start and (end is None or info.max_path < end)
            rows = self.rows(info) if inside else self.open_range(info).between(start, end)
            if rows.num_rows:
                yield rows
