"""What becomes of the files of a namespace, as columns; and who finds that out: this process, or an engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from strandline.blob import BlobNotFound, BlobStore
from strandline.branch.stores import Stores
from strandline.branch.transactions import TransactionRecord
from strandline.clock import Microseconds
from strandline.core import promises
from strandline.core.condemned import ListPart, decode_keys
from strandline.core.iceberg_files import Reach
from strandline.core.manifest import decode_deadlist
from strandline.core.namespace import read_marker
from strandline.core.physical import transaction_folder, transaction_prefix
from strandline.core.promises import Condemned
from strandline.core.repository_core import RepositoryCore
from strandline.core.shapes import are_own, place_of
from strandline.errors import Corrupted
from strandline.ids import new_id, prefix_end
from strandline.progress import Progress
from strandline.repository.upkeep.files import Files
from strandline.repository.upkeep.owners import Owner
from strandline.tree.range_file import RangeInfo
from strandline.tree.rows import column, search
from strandline.tree.store import TreeStore

CACHE_MAX_BYTES = 16 << 20
DELETE_KEYS = 1_000
"""As many go in one request to an object store."""
DELETE_FILES = 100
EXAMPLES = 10
MAX_PLACES = 100


class GarbagePlace(msgspec.Struct, frozen=True):
    """What goes below a prefix, for one reason.

    Attributes:
        prefix: of a branch, a transaction, or a kind of metadata.
        why: in a few words.
    """

    prefix: str
    why: str
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Rule:
    """What files are judged by.

    Attributes:
        before: files that were modified later stay although nothing refers to them.
        owners: the transactions, in the states that they had before the files were listed.
        folders: of the lists of runs that have not ended.
    """

    before: Microseconds
    owners: Sequence[Owner]
    folders: Sequence[str]


Fate = Literal["stays", "goes", "listed", ""]
"""What the state of a transaction means for the files that it wrote: they stay; they go, however young; those go that
it listed itself; or they are judged as all others are. None goes that somebody refers to."""


def fate_of(owner: Owner) -> Fate:
    if owner.state in ("open", "rejected-pending"):
        return "stays"
    if owner.state == "rejected-acknowledged":
        return "goes"
    return "listed" if owner.state == "committed" and owner.record is not None else ""


ORPHAN, DEAD, REJECTED = range(3)
WHY = ("nothing refers to it", "left by a committed transaction", "of a rejected transaction")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What goes; the fields are those of a `GarbagePlan`."""

    files: int
    bytes: int
    dead: int
    rejected: int
    young: int
    young_bytes: int
    unknown: int
    total_files: int
    examples: tuple[str, ...]
    linked: int
    places: tuple[GarbagePlace, ...]


class Survey(Protocol):
    """The files of a namespace as they were when it began, and which of them somebody refers to."""

    def mark(self, addresses: pa.StringArray) -> object:
        """Note that somebody refers to these."""

    def mark_ranges(self, ranges: Sequence[RangeInfo]) -> None:
        """Note what the rows of ranges refer to."""

    def mark_iceberg(self) -> None:
        """Note what the metadata of Iceberg's tables refers to that is referred to itself.

        Raises:
            Corrupted: some of it cannot be read.
        """

    def judge(self, rule: Rule) -> Verdict:
        """What goes, once all is marked."""

    def condemn(self, record: Condemned) -> None:
        """Write the lists of what goes, then the record that makes them count."""

    def close(self) -> None:
        """Let go of what it holds."""


@dataclass(frozen=True, slots=True)
class Round:
    """Some minutes in which what is listed may be deleted.

    Attributes:
        run: of the collector.
        stamp: that the marker of the namespace has as long as no other run begins.
        until: no attempt goes on after it, by the clock of the object store.
    """

    run: str
    stamp: str
    until: Microseconds


class Surveyor(Protocol):
    """Surveys and deletes: in this process, or on Spark."""

    def survey(self, core: RepositoryCore, run: str, progress: Progress) -> Survey:
        """List the files of a namespace."""

    def settle(self, stores: Stores, record: Condemned) -> list[ListPart]:
        """Read the links, and list what is condemned without what they name."""

    def delete(self, core: RepositoryCore, round: Round, parts: Sequence[ListPart]) -> list[ListPart]:
        """Delete what is listed; returns the parts that are gone as a whole.

        Raises:
            BlobNotFound: a list is gone, and so the run has ended.
        """


def may_delete(blobs: BlobStore, round: Round, clock: str) -> bool:
    """Whether an attempt may send one more request: it is not too late, and no other run has begun.

    Args:
        clock: a key of the attempt's own; the store dates what is put there.
    """
    blobs.put(clock, b"")
    if blobs.head(clock).modified_at_us > round.until:
        return False
    try:
        marker = read_marker(blobs)
    except BlobNotFound:
        return False
    return marker is not None and marker.stamp == round.stamp


def delete_listed(blobs: BlobStore, round: Round, part: ListPart) -> bool:
    """Delete what a part lists, as long as the round lasts; whether all of it is gone."""
    clock = f"{promises.GC_FOLDER}/{round.run}/clock-{new_id()}"
    if not may_delete(blobs, round, clock):
        return False
    keys = decode_keys(blobs.get(part.file), part.file)
    at_once = DELETE_KEYS if blobs.is_remote else DELETE_FILES
    for first in range(0, len(keys), at_once):
        if not may_delete(blobs, round, clock):
            return False
        blobs.delete_many(keys.slice(first, at_once).to_pylist())
    return True


# --- in this process --------------------------------------------------------------------------------------------------


class SurveyorHere:
    """One file after the other."""

    def survey(self, core: RepositoryCore, run: str, progress: Progress) -> Survey:
        return SurveyHere(core, progress)

    def settle(self, stores: Stores, record: Condemned) -> list[ListPart]:
        return promises.settled(stores, record)

    def delete(self, core: RepositoryCore, round: Round, parts: Sequence[ListPart]) -> list[ListPart]:
        return [part for part in parts if delete_listed(core.stores.trees.blobs.own, round, part)]


class SurveyHere:
    """The keys, sizes and times of all files as columns. Ranges are read one by one, Iceberg's files in threads."""

    def __init__(self, core: RepositoryCore, progress: Progress) -> None:
        self._core, self._progress = core, progress
        self._stores = core.stores
        self._files = Files(core.stores.trees.blobs.own)
        self._goes: pa.StringArray = pa.array([], pa.string())

    def mark(self, addresses: pa.StringArray) -> object:
        return self._files.mark(addresses)

    def mark_ranges(self, ranges: Sequence[RangeInfo]) -> None:
        trees = TreeStore(self._stores.trees.blobs, CACHE_MAX_BYTES)
        for done, info in enumerate(ranges):
            self._progress("reading metadata", done, len(ranges))
            self._files.mark(column(trees.rows(info), "physical_address"))

    def mark_iceberg(self) -> None:
        # a table may have changed after the listing; what its metadata refers to can be as old as the table
        metadata = self._files.referred_metadata() + self._files.late_metadata()
        if metadata:
            for keys in Reach(self._stores.trees.blobs, self._progress).from_metadata(metadata):
                self._files.mark(pa.array(keys, pa.string()))

    def judge(self, rule: Rule) -> Verdict:
        files = self._files
        free = ~files.is_referred
        own = are_own(files.keys)
        unknown = int((free & ~own).sum())
        for folder in rule.folders:
            own[files.below(folder, prefix_end(folder))] = False
        old = files.times < rule.before
        goes = free & own & old
        young = free & own & ~old
        why = np.full(len(files), ORPHAN, np.int8)
        dead = rejected = 0
        for owner in rule.owners:
            fate = fate_of(owner)
            if fate == "stays":
                for place in owner.places(files):
                    goes[place] = young[place] = False
            elif fate == "goes":
                for place in owner.places(files):
                    rejected += int((free[place] & own[place]).sum())
                    goes[place] = free[place] & own[place]
                    why[place] = REJECTED
                    young[place] = False
            elif fate == "listed" and owner.record is not None:
                listed = self._deadlist(owner.record)
                goes[listed[free[listed] & own[listed]]] = True
                why[listed] = DEAD
                young[listed] = False
                dead += int((free[listed] & own[listed]).sum())
        at, linked = self._without_links(np.flatnonzero(goes))
        self._goes = keys = files.keys.take(pa.array(at)).cast(pa.string())
        return Verdict(
            files=len(at),
            bytes=int(files.sizes[at].sum()),
            dead=dead,
            rejected=rejected,
            young=int(young.sum()),
            young_bytes=int(files.sizes[young].sum()),
            unknown=unknown,
            total_files=len(files),
            examples=tuple(keys.slice(0, EXAMPLES).to_pylist()),
            linked=linked,
            places=_places(keys, files.sizes[at], why[at]),
        )

    def condemn(self, record: Condemned) -> None:
        promises.write_condemned(self._stores, record, self._goes)

    def close(self) -> None:
        """There is nothing to let go of."""

    def _without_links(self, at: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], int]:
        """Leave out what lies behind a link to another place; how many those are."""
        keys: list[str] = self._files.keys.take(pa.array(at)).to_pylist()
        away = self._stores.trees.blobs.own.through_links(keys)
        if not away:
            return at, 0
        return at[np.array([key not in away for key in keys], np.bool_)], len(away)

    def _deadlist(self, record: TransactionRecord) -> npt.NDArray[np.int64]:
        """Where the files stand that a committed transaction wrote and did not publish."""
        files = self._files
        folder = transaction_folder(record.branch_id, record.id)
        keys: list[str] = []
        place = files.below(folder, prefix_end(folder))
        for key in files.keys.slice(place.start, place.stop - place.start).to_pylist():
            if key[len(folder) :].startswith("deadlist-"):
                keys += listed_in(self._stores.trees.blobs, key)
        prefix = transaction_prefix(record.branch_id, record.id)
        own = sorted(key for key in keys if key.startswith(prefix))  # never anybody else's
        positions, found = search(files.keys, pa.array(own, pa.large_string()))
        return positions[found]


def listed_in(blobs: BlobStore, key: str) -> list[str]:
    """What a deadlist names; what a broken one named is garbage, and goes when it is old enough."""
    try:
        return decode_deadlist(blobs.get(key), key)
    except (BlobNotFound, Corrupted):
        return []


def _places(keys: pa.StringArray, sizes: npt.NDArray[np.int64], why: npt.NDArray[np.int8]) -> tuple[GarbagePlace, ...]:
    """What goes by prefix and reason, the most bytes first."""
    counts: Counter[tuple[str, int]] = Counter()
    volumes: Counter[tuple[str, int]] = Counter()
    for key, size, reason in zip(keys.to_pylist(), sizes.tolist(), why.tolist(), strict=True):
        place = place_of(key), reason
        counts[place] += 1
        volumes[place] += size
    return tuple(
        GarbagePlace(prefix, WHY[reason], counts[prefix, reason], size)
        for (prefix, reason), size in volumes.most_common(MAX_PLACES)
    )
