"""Trees in an object store: loads and writes ranges and metaranges, and keeps the ones used last in memory.

A file is named by its content id and a suffix that no other writing shares. So nobody ever reuses a file merely because
it exists: it may be garbage that somebody is about to delete.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.blob.store import BlobNotFound, BlobStore
from strandline.errors import Corrupted, ObjectMissing
from strandline.ids import MetaRangeId, new_id
from strandline.tree.cache import ByteBoundedCache, CacheBudget
from strandline.tree.chunking import raw_bytes
from strandline.tree.range_file import (
    RangeInfo,
    metarange_id,
    range_id,
    read_paths,
    read_ranges,
    read_rows,
    write_ranges,
    write_rows,
)
from strandline.tree.rows import SCHEMA, Entry, column

RANGES_FOLDER = "_strandline/ranges"
METARANGES_FOLDER = "_strandline/metaranges"
CACHE_MAX_BYTES = 256 << 20
DIFFS_MAX_BYTES = 32 << 20
RANGE_INFO_BYTES = 400
"""What a range of an opened metarange takes in memory, roughly."""

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
    """An opened metarange: all paths of a commit, as the sorted list of its ranges."""

    __slots__ = ("id", "max_paths", "ranges", "ref")

    def __init__(self, ref: TreeRef, ranges: tuple[RangeInfo, ...]) -> None:
        self.ref = ref
        self.id = id_of(ref)
        self.ranges = ranges
        self.max_paths = [info.max_path for info in ranges]

    @property
    def count(self) -> int:
        return sum(info.count for info in self.ranges)

    def first_at(self, path: str) -> int:
        """Index of the first range that can hold `path` or something after it."""
        return bisect_left(self.max_paths, path)


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
    """

    def __init__(
        self, blobs: BlobStore, cache_max_bytes: int = CACHE_MAX_BYTES, budget: CacheBudget | None = None
    ) -> None:
        self.blobs = blobs
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
            tree = Tree(ref, read_ranges(data, id_of(ref)))
            self._trees.put(ref, tree, RANGE_INFO_BYTES * (1 + len(tree.ranges)))
        return tree

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

    def paths(self, info: RangeInfo) -> pa.StringArray:
        """The paths of a range, for a first look: of a range that is not in memory nothing else is read."""
        opened = self._opened.get(info.address)
        if opened is not None:
            return column(opened.rows, "path")
        return read_paths(self._load(info.address, f"range {info.id}"), info.id)

    def holds(self, tree: Tree, start: str, end: str) -> bool:
        """Whether a tree has a path with `start <= path < end`; at an empty end, one from there on."""
        at = tree.first_at(start)
        if at == len(tree.ranges):
            return False
        info = tree.ranges[at]
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

    def write_range(self, rows: pa.Table, known: dict[str, RangeInfo]) -> RangeInfo:
        """Write a range, unless it is one of `known`, the ranges of the tree that the new one is made from."""
        rows = rows.combine_chunks()
        if rows.get_total_buffer_size() > 2 * rows.nbytes:
            rows = rows.take(pa.array(np.arange(rows.num_rows)))  # a small slice would keep all that it was cut from
        content_id = range_id(rows)
        if content_id in known:
            return known[content_id]
        paths = column(rows, "path")
        info = RangeInfo(
            id=content_id,
            address=f"{RANGES_FOLDER}/{content_id}-{new_id()}.parquet",
            min_path=paths[0].as_py(),
            max_path=paths[len(paths) - 1].as_py(),
            count=len(paths),
            raw_bytes=raw_bytes(rows),
        )
        self.blobs.put(info.address, write_rows(rows), "create")
        self._opened.put(info.address, OpenRange(rows), rows.nbytes)
        return info

    def write_tree(self, ranges: tuple[RangeInfo, ...]) -> Tree:
        """Write a metarange; all its ranges are durable by then."""
        if not ranges:
            return EMPTY
        ref = f"{metarange_id(ranges)}-{new_id()}"
        self.blobs.put(f"{METARANGES_FOLDER}/{ref}.parquet", write_ranges(ranges), "create")
        tree = Tree(ref, ranges)
        self._trees.put(ref, tree, RANGE_INFO_BYTES * (1 + len(ranges)))
        return tree

    def find(self, tree: Tree, path: str) -> Entry | None:
        """The entry of a path, or None."""
        at = tree.first_at(path)
        if at == len(tree.ranges) or tree.ranges[at].min_path > path:
            return None
        return self.open_range(tree.ranges[at]).find(path)

    def scan(self, tree: Tree, start: str = "", end: str | None = None) -> Iterator[pa.Table]:
        """The rows with `start <= path < end`, in order, range by range."""
        for at in range(tree.first_at(start), len(tree.ranges)):
            info = tree.ranges[at]
            if end is not None and info.min_path >= end:
                return
            inside = info.min_path >= start and (end is None or info.max_path < end)
            rows = self.rows(info) if inside else self.open_range(info).between(start, end)
            if rows.num_rows:
                yield rows
