"""The files of a storage namespace as columns, and which of them somebody refers to."""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from strandline.blob import BlobStore
from strandline.core.iceberg_files import is_metadata
from strandline.core.namespace import MARKER, READERS
from strandline.core.physical import ICEBERG_ROOT
from strandline.ids import prefix_end
from strandline.shards.catalog import FOLDER
from strandline.tree.rows import search

SHARDS = FOLDER + "/"
ICEBERG = ICEBERG_ROOT + "/"


class Files:
    """The files of a storage namespace, sorted by key.

    Attributes:
        keys: as large strings.
        sizes, times: in bytes, and in microseconds since 1970 UTC.
        is_referred: which of them somebody refers to, as far as `mark` was told.
    """

    def __init__(self, blobs: BlobStore) -> None:
        keys: list[pa.Array] = []
        numbers: list[npt.NDArray[np.int64]] = []
        for page in blobs.list_pages():
            keys.append(pa.array([info.key for info in page], pa.string()))
            numbers.append(np.array([(info.size, info.modified_at_us) for info in page], np.int64).reshape(-1, 2))
        found = pa.chunked_array(keys, pa.string()).cast(pa.large_string()).combine_chunks()
        order = pc.sort_indices(found)
        self.keys: pa.LargeStringArray = found.take(order)
        sizes_and_times = (np.concatenate(numbers) if numbers else np.zeros((0, 2), np.int64))[order.to_numpy()]
        self.sizes: npt.NDArray[np.int64] = sizes_and_times[:, 0]
        self.times: npt.NDArray[np.int64] = sizes_and_times[:, 1]
        self.is_referred: npt.NDArray[np.bool_] = np.zeros(len(self.keys), np.bool_)
        self._blobs = blobs
        self._unlisted_metadata: set[str] = set()
        self.mark(pa.array([MARKER]))
        self.is_referred[self.below(READERS, prefix_end(READERS))] = True
        # what shards refer to is known to their logs alone, and collected by their own upkeep
        self.is_referred[self.below(SHARDS, prefix_end(SHARDS))] = True

    def __len__(self) -> int:
        return len(self.keys)

    def mark(self, addresses: pa.StringArray) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
        """Note that somebody refers to these; which of them are there, and how large those files are."""
        positions, found = search(self.keys, addresses.cast(pa.large_string()))
        self.is_referred[positions[found]] = True
        if not found.all():
            missing = addresses.filter(pa.array(~found))
            below = missing.filter(pc.starts_with(missing, ICEBERG))
            self._unlisted_metadata.update(key for key in below.to_pylist() if is_metadata(key))
        sizes = np.zeros(len(found), np.int64)
        sizes[found] = self.sizes[positions[found]]
        return found, sizes

    def referred_metadata(self) -> list[str]:
        """The keys of metadata of Iceberg's tables that somebody refers to."""
        place = self.below(ICEBERG, prefix_end(ICEBERG))
        keys = self.keys.slice(place.start, place.stop - place.start).filter(pa.array(self.is_referred[place]))
        return [key for key in keys.to_pylist() if is_metadata(key)]

    def late_metadata(self) -> list[str]:
        """The same of metadata that came after the files were listed. What was lost is left out: fsck tells of it."""
        return [key for key in sorted(self._unlisted_metadata) if self._blobs.exists(key)]

    @cached_property
    def iceberg_parts(self) -> dict[str, npt.NDArray[np.int64]]:
        """Where the files stand that transactions have written to Iceberg's tables, by `physical.iceberg_part`."""
        place = self.below(ICEBERG, prefix_end(ICEBERG))
        keys = self.keys.slice(place.start, place.stop - place.start)
        at = np.flatnonzero(pc.match_substring(keys, ".txn-").to_numpy(zero_copy_only=False)) + place.start
        found: defaultdict[str, list[int]] = defaultdict(list)
        for position, key in zip(at.tolist(), self.keys.take(pa.array(at)).to_pylist(), strict=True):
            parts = key.split("/", 3)
            if len(parts) > 3:  # else somebody put it there
                found[parts[2]].append(position)
        return {part: np.array(positions, np.int64) for part, positions in found.items()}

    def below(self, prefix: str, end: str | None) -> slice:
        """Where the keys with a prefix stand."""
        return slice(self._at(prefix), len(self.keys) if end is None else self._at(end))

    def _at(self, key: str) -> int:
        position: int = pc.search_sorted(self.keys, pa.scalar(key, pa.large_string())).as_py()
        return position
