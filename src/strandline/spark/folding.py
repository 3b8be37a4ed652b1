"""Commits, compactions and merges of very many objects: trees are put together of stretches that tasks made.

Each task lays its part of the changes over the whole tree, which costs what the part touches, and writes a tree of its
own; the driver takes of each the stretch of its part (`tree.splice.join`), and reads ranges at the edges alone. What
the tasks' own trees have besides, a metarange and some nodes each, is garbage afterwards.
"""

from __future__ import annotations

import io
import pickle
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from logging import getLogger

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import strandline
from strandline.blob import open_store
from strandline.branch.folding import Folded, Folder, fold_here
from strandline.branch.staged import SCAN_PAGE_KEYS, staged_window
from strandline.branch.stores import Stores
from strandline.core.physical import staged_part_key
from strandline.core.repository_core import RepositoryCore
from strandline.errors import FormatError, ObjectMissing, StorageError, StoreUnavailable
from strandline.ids import BranchId, StagingToken
from strandline.progress import Progress
from strandline.repository.commits.settling import TreeWorkers
from strandline.repository.commits.settling import WorkersHere as TreeWorkersHere
from strandline.spark.session import (
    check_session,
    described,
    is_of_spark,
    parallelism,
    reason_of,
    refuse_two_stores,
    watched,
)
from strandline.spark.versions import refuse_other_version, refuse_other_versions
from strandline.tables import merging as tables
from strandline.tree.apply import apply
from strandline.tree.diff import Difference, diff_of, stretches
from strandline.tree.merge import Merged, Strategies, Strategy, merge
from strandline.tree.range_file import RangeInfo
from strandline.tree.rows import changes_from_staged
from strandline.tree.splice import join
from strandline.tree.store import EMPTY, Tree, TreeRef, TreeStore

logger = getLogger(__name__)
CACHE_MAX_BYTES = 64 << 20
COPYING = "copying what is staged"
PART_KEYS = 20_000
"""Staged entries that one task lays over a tree: some seconds of work."""
FEW_STRETCHES = 64
"""So many stretches of ranges in which trees differ are merged by this process."""
STRETCHES_PER_TASK = 200
Batches = Iterable[pa.RecordBatch]


class _Job(msgspec.Struct, frozen=True):
    """What tasks need to know of the trees.

    Attributes:
        url: of the store.
        trees: that are laid over, or merged: one, or base, source and destination.
        strategies: of a merge.
    """

    version: str
    url: str
    has_levels: bool
    trees: tuple[TreeRef, ...]
    strategies: dict[str, Strategy | None] = {}


class _Part(msgspec.Struct, frozen=True):
    """What a task does.

    Attributes:
        file: of staged entries; "" for a merge.
        start, end: the stretch of paths that counts.
    """

    file: str
    start: str
    end: str | None


class _Made(msgspec.Struct, frozen=True):
    """What a task made: a tree, or conflicts; or whether it has found something."""

    tree: TreeRef = EMPTY.ref
    conflicts: dict[str, str] = {}
    found: bool = False


# --- commits and compactions ------------------------------------------------------------------------------------------


def folder(spark: SparkSession, core: RepositoryCore, branch_id: BranchId, progress: Progress) -> Folder:
    """Lays what is staged over a tree in tasks, if it is more than one of them does.

    Raises:
        UsageError: it is no session, or the repository has two stores.
    """
    check_session(spark)
    refuse_two_stores(core)
    core.resolver.namespace.spark_url("_strandline")  # refuses a lake in memory

    def fold(stores: Stores, base: Tree, tokens: Sequence[StagingToken]) -> Folded:
        parts: list[_Part] = []
        entries = 0
        started = time.monotonic()
        try:
            for keys, values in _pages(stores, tokens):
                if not entries and len(keys) < PART_KEYS:  # it is all that there is
                    break
                parts.append(_copied(stores, branch_id, keys, values))
                entries += len(keys)
                progress(COPYING, entries, None)
            if len(parts) < 2:
                return fold_here(stores, base, tokens)
            took = max(time.monotonic() - started, 1e-6)
            logger.info("copied %d staged entries, %d a second", entries, entries / took)
            job = _Job(strandline.__version__, stores.trees.blobs.url, stores.trees.has_levels, (base.ref,))
            reaching = _reaching(parts)
            made = _done(spark, job, reaching, _lays, progress, "writing ranges")
            return Folded(_joined(stores.trees, reaching, made), entries)
        finally:
            with suppress(StoreUnavailable):  # the collector takes what is left
                stores.trees.blobs.delete_many([part.file for part in parts])

    return fold


def _pages(stores: Stores, tokens: Sequence[StagingToken]) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """Staged pairs, the newest for each path, in order, as many at a time as a task gets."""
    held: tuple[list[bytes], list[bytes]] = ([], [])
    start = b""
    while tokens:
        keys, values, reach = staged_window(stores, tokens, start, None, SCAN_PAGE_KEYS)
        held[0].extend(keys)
        held[1].extend(values)
        if len(held[0]) >= PART_KEYS:
            yield held
            held = [], []
        if reach is None:
            break
        start = reach + b"\0"
    if held[0]:
        yield held


def _copied(stores: Stores, branch_id: BranchId, keys: Sequence[bytes], values: Sequence[bytes]) -> _Part:
    body = io.BytesIO()
    pq.write_table(pa.table({"key": keys, "value": values}), body, compression="zstd", use_dictionary=False)
    file = staged_part_key(branch_id)
    stores.trees.blobs.put(file, body.getvalue(), "create")
    return _Part(file, keys[0].decode(), None)


def _reaching(parts: Sequence[_Part]) -> list[_Part]:
    """Parts that reach to the next one, the first one from the beginning."""
    starts = ["", *(part.start for part in parts[1:])]
    ends = [*starts[1:], None]
    return [_Part(part.file, start, end) for part, start, end in zip(parts, starts, ends, strict=True)]


def _lays(job: _Job, part: _Part, trees: TreeStore) -> _Made:
    """Lay a part of what is staged over a tree, in a task."""
    pairs = pq.read_table(pa.BufferReader(trees.blobs.get(part.file)))
    keys, values = (pairs.column(name).to_pylist() for name in ("key", "value"))
    batches = (
        changes_from_staged(keys[at : at + SCAN_PAGE_KEYS], values[at : at + SCAN_PAGE_KEYS])
        for at in range(0, len(keys), SCAN_PAGE_KEYS)
    )
    return _Made(apply(trees, trees.tree(job.trees[0]), batches).tree.ref)


# --- merges -----------------------------------------------------------------------------------------------------------


def tree_workers(spark: SparkSession, core: RepositoryCore, progress: Progress) -> TreeWorkers:
    """Compares and merges trees in tasks, where they differ in many places.

    Raises:
        UsageError: it is no session, or the repository has two stores.
    """
    check_session(spark)
    refuse_two_stores(core)
    core.resolver.namespace.spark_url("_strandline")  # refuses a lake in memory
    return _MergesOnSpark(spark, core.stores.trees, progress)


class _MergesOnSpark:
    def __init__(self, spark: SparkSession, trees: TreeStore, progress: Progress) -> None:
        self._spark, self._trees, self._progress = spark, trees, progress
        self._here = TreeWorkersHere(trees)
        self._merged: dict[tuple[object, ...], Merged] = {}

    def special(self, base: Tree, side: Tree) -> Iterable[Difference]:
        parts = _cut([*stretches(self._trees, base, side)], parallelism(self._spark))
        if len(parts) < 2:
            return self._here.special(base, side)
        job = _Job(strandline.__version__, self._trees.blobs.url, self._trees.has_levels, (base.ref, side.ref))
        found = _done(self._spark, job, parts, _has_special, self._progress, "looking for changes of tables")
        wanted = [part for part, one in zip(parts, found, strict=True) if one.found]
        return self._special_within(base, side, wanted)

    def _special_within(self, base: Tree, side: Tree, wanted: Sequence[_Part]) -> Iterator[Difference]:
        """Where tasks have seen that there is something, this process reads what: records and marks are small."""
        for part in wanted:
            yield from diff_of(self._trees, base, side, tables.special, part.start, part.end)

    def merge(self, base: Tree, source: Tree, dest: Tree, strategies: Strategies) -> Merged:
        """Once for the same trees: the layers of a branch may move without its head."""
        key = base.ref, source.ref, dest.ref, tuple(sorted(strategies.items(), key=lambda item: item[0]))
        if key not in self._merged:
            self._merged[key] = self._merge(base, source, dest, strategies)
        return self._merged[key]

    def _merge(self, base: Tree, source: Tree, dest: Tree, strategies: Strategies) -> Merged:
        parts = _cut([*stretches(self._trees, base, source)], parallelism(self._spark))
        if len(parts) < 2:
            return self._here.merge(base, source, dest, strategies)
        refs = base.ref, source.ref, dest.ref
        job = _Job(strandline.__version__, self._trees.blobs.url, self._trees.has_levels, refs, {**strategies})
        made = _done(self._spark, job, parts, _merges, self._progress, "merging ranges")
        conflicts = {path: why for one in made for path, why in one.conflicts.items()}
        if conflicts:
            return Merged(dest, dict(sorted(conflicts.items(), key=lambda item: item[0].encode())))
        return Merged(_joined(self._trees, parts, made))


def _cut(found: Sequence[tuple[list[RangeInfo], list[RangeInfo]]], cores: int) -> list[_Part]:
    """Parts of about as many stretches in which two trees differ; all paths lie in one of them."""
    if len(found) <= FEW_STRETCHES:
        return []
    each = max(1, min(STRETCHES_PER_TASK, -(-len(found) // (2 * cores))))
    starts = [min(info.min_path for side in stretch for info in side) for stretch in found[::each]]
    starts[0] = ""
    return [_Part("", start, end) for start, end in zip(starts, [*starts[1:], None], strict=True)]


def _merges(job: _Job, part: _Part, trees: TreeStore) -> _Made:
    base, source, dest = (trees.tree(ref) for ref in job.trees)
    found = merge(trees, base, source, dest, job.strategies, (part.start, part.end))
    return _Made(found.tree.ref, found.conflicts)


def _has_special(job: _Job, part: _Part, trees: TreeStore) -> _Made:
    """Whether a side changed records or marks of tables in a stretch."""
    base, side = (trees.tree(ref) for ref in job.trees)
    found = diff_of(trees, base, side, tables.special, part.start, part.end)
    return _Made(found=next(found, None) is not None)


def _joined(trees: TreeStore, parts: Sequence[_Part], made: Sequence[_Made]) -> Tree:
    return join(trees, [(one.tree, part.start) for one, part in zip(made, parts, strict=True)])


# --- tasks ------------------------------------------------------------------------------------------------------------

Work = Callable[[_Job, _Part, TreeStore], _Made]


def _done(
    spark: SparkSession, job: _Job, parts: Sequence[_Part], work: Work, progress: Progress, what: str
) -> list[_Made]:
    """What tasks made of parts, in their order.

    Raises:
        ObjectMissing, Corrupted, NewerFormat: a file cannot be read.
        StorageError: Spark failed.
    """
    refuse_other_versions(spark)
    rows = pa.table({"at": range(len(parts)), "part": [msgspec.msgpack.encode(part) for part in parts]})
    frame = spark.createDataFrame(rows).repartitionByRange(len(parts), "at")
    try:
        with described(spark, f"strandline: {what}"):
            tasks = frame.mapInArrow(
                _working(msgspec.msgpack.encode(job), work), "at LONG, made BINARY, refused BINARY"
            )
            found = watched(spark, tasks.toArrow, progress, what).to_pylist()
    except Exception as error:
        if not is_of_spark(error):
            raise
        raise StorageError(
            f"Spark failed at {what}: {reason_of(error)}.",
            safe="The branch is as it was, and everything that was staged still is.",
            next="Look at Spark's logs, then repeat the call.",
        ) from error
    for row in found:
        if row["refused"]:
            raise pickle.loads(row["refused"])
    in_order = sorted(found, key=lambda row: int(row["at"]))
    return [msgspec.msgpack.decode(row["made"], type=_Made) for row in in_order]


_ANSWER = pa.schema([("at", pa.int64()), ("made", pa.binary()), ("refused", pa.binary())])


def _working(told: bytes, work: Work) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    def run(batches: Batches) -> Iterator[pa.RecordBatch]:
        job = msgspec.msgpack.decode(told, type=_Job)
        refuse_other_version(job.version)
        trees = TreeStore(open_store(job.url), CACHE_MAX_BYTES, has_levels=job.has_levels)
        for batch in batches:
            for row in batch.to_pylist():
                made, refused = None, None
                try:
                    done = work(job, msgspec.msgpack.decode(row["part"], type=_Part), trees)
                    made = msgspec.msgpack.encode(done)
                except (ObjectMissing, FormatError) as error:  # the layers of the branch may have moved
                    refused = pickle.dumps(error)
                yield pa.RecordBatch.from_pydict({"at": [row["at"]], "made": [made], "refused": [refused]}, _ANSWER)

    return run
