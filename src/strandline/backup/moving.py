"""Copying the files of a repository to another store: in this process, or on Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol

import pyarrow as pa

from strandline.blob import BlobNotFound, BlobStore, is_absolute
from strandline.core.iceberg_files import is_metadata
from strandline.errors import Corrupted, ObjectMissing
from strandline.parallel import in_parallel
from strandline.progress import Progress
from strandline.tree.range_file import RangeInfo
from strandline.tree.rows import column
from strandline.tree.store import TreeStore

COPY_WHOLE_MAX_BYTES = 8 << 20
"""Larger files are copied piece by piece."""
CACHE_MAX_BYTES = 8 << 20
Sizes = Mapping[str, int | None]
"""Of files by their keys; None where the size is not on record."""


class Mover(Protocol):
    """Copies the objects of trees, and what there is besides."""

    def metadata(self, source: BlobStore, ranges: Sequence[RangeInfo]) -> list[str]:
        """The keys of metadata of Iceberg's tables among the objects in ranges."""

    def objects(
        self,
        source: BlobStore,
        ranges: Sequence[RangeInfo],
        more: Sizes,
        target: BlobStore,
        prefix: str,
        progress: Progress,
    ) -> tuple[int, int]:
        """Copy the objects in ranges that lie in the source's namespace, and more, unless they are at the target.

        Returns:
            How many they are, and their bytes, with those that were there already.

        Raises:
            ObjectMissing, Corrupted: one is not there, or has another size.
        """


class MoverHere:
    """In threads of this process. Memory: all keys."""

    def __init__(self) -> None:
        self._held: tuple[Sequence[RangeInfo], dict[str, int | None]] | None = None

    def _found(self, source: BlobStore, ranges: Sequence[RangeInfo]) -> dict[str, int | None]:
        """The objects in ranges, which are read once though they are asked for twice."""
        if self._held is None or self._held[0] is not ranges:
            trees = TreeStore(source, CACHE_MAX_BYTES)
            found: dict[str, int | None] = {}
            for info in ranges:
                found |= own_sizes(trees.rows(info))
            self._held = ranges, found
        return self._held[1]

    def metadata(self, source: BlobStore, ranges: Sequence[RangeInfo]) -> list[str]:
        return [key for key in self._found(source, ranges) if is_metadata(key)]

    def objects(
        self,
        source: BlobStore,
        ranges: Sequence[RangeInfo],
        more: Sizes,
        target: BlobStore,
        prefix: str,
        progress: Progress,
    ) -> tuple[int, int]:
        there = sizes_at(target, prefix)
        return copy_missing(source, {**more, **self._found(source, ranges)}, there, target, prefix, progress)


def own_sizes(rows: pa.Table) -> dict[str, int]:
    """The sizes of objects by their addresses, of those within the namespace."""
    pairs = zip(column(rows, "physical_address").to_pylist(), column(rows, "size").to_pylist(), strict=True)
    return {address: size for address, size in pairs if address is not None and not is_absolute(address)}


def sizes_at(target: BlobStore, prefix: str) -> dict[str, int]:
    """What lies below a prefix, by the keys without it."""
    return {info.key[len(prefix) :]: info.size for info in target.list(prefix)}


def copy_missing(
    source: BlobStore, files: Sizes, there: Mapping[str, int], target: BlobStore, prefix: str, progress: Progress
) -> tuple[int, int]:
    """Copy files that are not at the target; how many there are in all, and their bytes."""
    keys = sorted(files)
    total = sum(there[key] for key in keys if key in there)
    missing = [key for key in keys if key not in there]
    done = len(keys) - len(missing)
    copy = partial(copy_file, source, target)
    for size in in_parallel(lambda key: copy(key, prefix + key, files[key]), missing):
        done, total = done + 1, total + size
        progress("copying", done, len(keys))
    return len(keys), total


def copy_file(source: BlobStore, target: BlobStore, key: str, to: str, expected: int | None = None) -> int:
    """Copy a file; returns its size. It appears whole or not at all.

    Args:
        expected: its size, if that is on record.

    Raises:
        ObjectMissing: it is not there.
        Corrupted: it has another size.
    """
    try:
        size = source.head(key).size
        if expected is not None and size != expected:
            raise Corrupted(
                f"The file {key!r} in {source.url} has {size:,} bytes instead of {expected:,}: it was cut, or written "
                "over.",
                safe="The copy is not complete; what an earlier one at its place holds is there still.",
                next="`strandline fsck` names the objects; restore the file, or delete them, then repeat the call.",
            )
        if size <= COPY_WHOLE_MAX_BYTES:
            target.put(to, source.get(key))
        else:
            with source.open_read(key) as file:
                target.put(to, file)
    except BlobNotFound:
        raise ObjectMissing(
            f"There is nothing at {key!r} in {source.url}, though it is referred to.",
            next="`strandline fsck` says what else is missing.",
        ) from None
    return size
